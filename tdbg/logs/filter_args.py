"""What `tdbg filter-logs` can be given, and the query that follows from it."""

from tdbg.core.command_spec import Args
from tdbg.core.errors import TdbgError

TYPE_CHECKING = False  # what `typing` says, without its import
if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    from tdbg.logs.query import Query

STDOUT = "-"
TEXT, JSONL = "text", "jsonl"


class FilterArgs(Args):
    """The options of `tdbg.cli.filter_logs` by name, at their defaults."""

    flag: "Sequence[str]" = ()
    exclude_flag: "Sequence[str]" = ()
    prefix: "Sequence[str]" = ()
    ranks: str = "all"
    kind: str = "debug"
    level: str = ""
    steps: str = ""
    since: str = ""
    until: str = ""
    regex: str = ""
    invert: bool = False
    map: str = ""
    after: int = 0
    before: int = 0
    context: int = 0
    merge: bool = False
    follow: bool = False
    collapse: bool = False
    diverge: bool = False
    silent: bool = False
    errors: bool = False
    count: bool = False
    stats: bool = False
    list_prefixes: bool = False
    output: str = STDOUT
    format: str = TEXT
    log_format: str = ""
    jobs: int = 0

    @property
    def views(self) -> list[str]:
        """The ways to look at the records that were asked for; at most one makes sense."""
        return [name for name in VIEWS if getattr(self, name)]


VIEWS = ("merge", "follow", "collapse", "diverge", "silent", "errors", "count", "stats", "list_prefixes")
COUNTS = {"after": "--after-context", "before": "--before-context", "context": "--context", "jobs": "--jobs"}


def query_of(args: FilterArgs) -> "Query":
    """The query in it; TdbgError for what cannot be asked."""
    import os
    import re

    from tdbg.core.ranges import parse_ranges
    from tdbg.logs.query import Query, resolve_tag_family

    try:
        pattern = re.compile(os.fsencode(args.regex), re.MULTILINE) if args.regex else None
    except re.error as error:
        what = f"--regex {args.regex!r}: {error}"
        raise TdbgError(what, "it is a Python regular expression, matched on bytes") from None
    query = Query(
        families=() if args.map else tuple(map(resolve_tag_family, _expand_flags(args.flag))),
        excluded=() if args.map else tuple(map(resolve_tag_family, _expand_flags(args.exclude_flag))),
        prefixes=tuple(os.fsencode(f"[{word.strip('[]')}") for word in args.prefix),
        level=level_number(args.level),
        ranks=tuple(parse_ranges("ranks", "" if args.ranks == "all" else args.ranks, "-")),
        steps=tuple(parse_ranges("steps", args.steps, ":")),
        since=_parse_time("--since", args.since),
        until=_parse_time("--until", args.until),
        pattern=pattern,
        invert=args.invert,
    )
    return _with_map(query, args) if args.map else query


def _with_map(query: "Query", args: FilterArgs) -> "Query":
    """The query with what a map says of the flags; flags that only the map knows are flags as well."""
    from tdbg.logs.query import resolve_tag_family
    from tdbg.logs.tagmap import Spoken, load_map

    found = load_map(args.map)
    wanted, excluded = (list(_expand_flags(words, found.entries)) for words in (args.flag, args.exclude_flag))
    return query._replace(
        families=tuple(map(resolve_tag_family, wanted)),
        excluded=tuple(map(resolve_tag_family, excluded)),
        spelled=Spoken(found, wanted) if wanted else None,
        spelled_out=Spoken(found, excluded) if excluded else None,
    )


def _expand_flags(words: "Sequence[str]", known: "Iterable[str]" = ()) -> "Iterator[str]":
    if words:
        from tdbg.core.flags import expand

        for word in words:
            yield from expand(word, known)


def _parse_time(name: str, text: str) -> bytes:
    """A time as logs have it when they are compared; TdbgError for what is none."""
    import re

    from tdbg.logs.formats import normalize_time

    month, day = r"(?:0[1-9]|1[0-2])", r"(?:0[1-9]|[12]\d|3[01])"
    hour, minute, second = r"(?:[01]\d|2[0-3])", r"[0-5]\d", r"(?:[0-5]\d|60)(?:\.\d+)?"
    clock = rf"{hour}(?::{minute}(?::{second})?)?"
    date = rf"\d{{4}}(?:-{month}(?:-{day}(?:T{clock}(?:Z|[+-]\d\d:?\d\d)?)?)?)?"
    found = normalize_time(text.strip().encode("utf-8", "replace"))
    known = rf"{date}|{hour}:{minute}(?::{second})?|{month}{day}T{clock}|{month}-{day}T{clock}|\d{{9,}}(?:\.\d+)?"
    if text and not re.fullmatch(known, found.decode("utf-8", "replace")):
        raise TdbgError(
            f"{name} cannot be {text!r}", "write a time as the log does, or its beginning: 2026-11-21 03:06"
        )
    return found


def level_number(word: str) -> int:
    """A level's number; TdbgError for a word that is none."""
    from tdbg.logs.formats import WORDS

    if not word:
        return 0
    found = WORDS.get(word.upper().encode())
    if found is None:
        known = ", ".join(name.decode() for name in WORDS)
        raise TdbgError(f"there is no log level {word!r}", f"known: {known}")
    return found


def validate_args(args: FilterArgs) -> None:
    """TdbgError for options that do not go together, or words that are none of a few."""
    _one_of("--type", args.kind, ("debug", "info", "both"))
    _one_of("--format", args.format, (TEXT, JSONL))
    for name, option in COUNTS.items():
        if getattr(args, name) < 0:
            raise TdbgError(f"{option} cannot be negative", f"write {option} 0 or more")
    views = [f"--{name.replace('_', '-')}" for name in args.views]
    if len(views) > 1:
        raise TdbgError(f"{views[0]} and {views[1]} do not go together", "ask for one of them, then for the other")
    if views and (args.before or args.after or args.context):
        raise TdbgError(f"-A, -B and -C do not go together with {views[0]}", "leave one of them out")


def _one_of(name: str, value: str, words: tuple[str, ...]) -> None:
    if value not in words:
        raise TdbgError(f"{name} cannot be {value!r}", f"write {name} {', '.join(words[:-1])} or {words[-1]}")
