"""What can be asked of logs: the options of `tdbg filter-logs`, declared once (see `tdbg.core.asked`)."""

from tdbg.core.asked import Asked, read
from tdbg.core.errors import TdbgError

TYPE_CHECKING = False  # what `typing` says, without its import
if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    from tdbg.logs.query import Query

STDOUT = "-"
TEXT, JSONL = "text", "jsonl"


class Question(Asked):
    """The options by name, at their defaults; see `OPTIONS` for what they mean."""

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

# field of Question -> names, kind of the value, help
OPTIONS: dict[str, tuple[tuple[str, ...], str, str]] = {
    "flag": (("--flag", "-f"), "FLAG", "Records of this flag and of those below it; repeat for more flags."),
    "exclude_flag": (("--exclude-flag", "-x"), "FLAG", "Leave out records of this flag; repeat to leave out more."),
    "prefix": (("--prefix", "-p"), "TEXT", "Records whose tag starts with TEXT; repeat for more prefixes."),
    "ranks": (("--ranks", "-r"), "RANGE", "These ranks only: 0,3-5, or all."),
    "kind": (("--type", "-t"), "NAME", "Which of tdbg's two logs of a rank: debug, info or both."),
    "level": (("--level",), "LOG_LEVEL", "This level and above: DEBUG, STATS, INFO ..."),
    "steps": (("--steps",), "RANGE", "These steps only: 100:200,500."),
    "since": (("--since",), "TEXT", "From this time on, as the log writes it, or its beginning: 2026-11-21T03."),
    "until": (("--until",), "TEXT", "Up to this time."),
    "regex": (("--regex", "-e"), "TEXT", "Records in which this expression is found."),
    "invert": (("--invert-match", "-v"), "", "The records that do not fit."),
    "map": (("--map",), "FILE", "How this program spells its flags, from `tdbg flags scan`."),
    "after": (("--after-context", "-A"), "N", "So many records after each one that fits."),
    "before": (("--before-context", "-B"), "N", "So many records before each one that fits."),
    "context": (("--context", "-C"), "N", "So many records before and after."),
    "merge": (("--merge",), "", "One stream of all logs, by time, each line with its rank."),
    "follow": (("--follow", "-F"), "", "Go on as the logs grow, are rotated, and new ranks come."),
    "collapse": (("--collapse",), "", "What several ranks say alike is printed once: [r0-63]."),
    "diverge": (("--diverge",), "", "Only what some ranks say and others do not; names the first such step."),
    "silent": (("--silent",), "", "The last sign of life of each rank; who went quiet first."),
    "errors": (("--errors",), "", "The first error of each rank, causes before what they caused."),
    "count": (("--count",), "", "Only the number of records."),
    "stats": (("--stats",), "", "How many records and bytes by tag, rank and level."),
    "list_prefixes": (("--list-prefixes",), "", "The tags there are, and the flag that owns each."),
    "output": (("--output", "-o"), "FILE", "Write there instead of to stdout (-)."),
    "format": (("--format",), "NAME", "text, as it was read, or jsonl: one JSON object a record."),
    "log_format": (
        ("--log-format",),
        "NAME",
        "How the logs are written, where that cannot be seen from their beginning.",
    ),
    "jobs": (("--jobs",), "N", "Worker processes; 0: one a CPU."),
}


def parse(words: "Sequence[str]") -> Question | None:
    """The question a command line asks; None for what the whole parser has to look at."""
    return read(Question(), OPTIONS, words)


def query_of(question: Question) -> "Query":
    """The query in it; TdbgError for what cannot be asked."""
    import os
    import re

    from tdbg.core.ranges import parse_ranges
    from tdbg.logs.query import Query, family

    try:
        pattern = re.compile(os.fsencode(question.regex), re.MULTILINE) if question.regex else None
    except re.error as error:
        what = f"--regex {question.regex!r}: {error}"
        raise TdbgError(what, "it is a Python regular expression, matched on bytes") from None
    query = Query(
        families=() if question.map else tuple(map(family, _flags(question.flag))),
        excluded=() if question.map else tuple(map(family, _flags(question.exclude_flag))),
        prefixes=tuple(os.fsencode(f"[{word.strip('[]')}") for word in question.prefix),
        level=level_number(question.level),
        ranks=tuple(parse_ranges("ranks", "" if question.ranks == "all" else question.ranks, "-")),
        steps=tuple(parse_ranges("steps", question.steps, ":")),
        since=_time("--since", question.since),
        until=_time("--until", question.until),
        pattern=pattern,
        invert=question.invert,
    )
    return _with_map(query, question) if question.map else query


def _with_map(query: "Query", question: Question) -> "Query":
    """The query with what a map says of the flags; flags that only the map knows are flags as well."""
    from tdbg.logs.query import family
    from tdbg.logs.tagmap import Spoken, load

    found = load(question.map)
    wanted, excluded = (list(_flags(words, found.entries)) for words in (question.flag, question.exclude_flag))
    return query._replace(
        families=tuple(map(family, wanted)),
        excluded=tuple(map(family, excluded)),
        spelled=Spoken(found, wanted) if wanted else None,
        spelled_out=Spoken(found, excluded) if excluded else None,
    )


def _flags(words: "Sequence[str]", known: "Iterable[str]" = ()) -> "Iterator[str]":
    if words:
        from tdbg.core.flags import expand

        for word in words:
            yield from expand(word, known)


def _time(name: str, text: str) -> bytes:
    """A time as logs have it when they are compared; TdbgError for what is none."""
    import re

    from tdbg.logs.formats import sortable

    month, day = r"(?:0[1-9]|1[0-2])", r"(?:0[1-9]|[12]\d|3[01])"
    hour, minute, second = r"(?:[01]\d|2[0-3])", r"[0-5]\d", r"(?:[0-5]\d|60)(?:\.\d+)?"
    clock = rf"{hour}(?::{minute}(?::{second})?)?"
    date = rf"\d{{4}}(?:-{month}(?:-{day}(?:T{clock}(?:Z|[+-]\d\d:?\d\d)?)?)?)?"
    found = sortable(text.strip().encode("utf-8", "replace"))
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


def check(question: Question) -> None:
    """TdbgError for options that do not go together, or words that are none of a few."""
    _one_of("--type", question.kind, ("debug", "info", "both"))
    _one_of("--format", question.format, (TEXT, JSONL))
    for name in ("after", "before", "context", "jobs"):
        if getattr(question, name) < 0:
            raise TdbgError(f"{OPTIONS[name][0][0]} cannot be negative", f"write {OPTIONS[name][0][0]} 0 or more")
    views = [OPTIONS[name][0][0] for name in question.views]
    if len(views) > 1:
        raise TdbgError(f"{views[0]} and {views[1]} do not go together", "ask for one of them, then for the other")
    if views and (question.before or question.after or question.context):
        raise TdbgError(f"-A, -B and -C do not go together with {views[0]}", "leave one of them out")


def _one_of(name: str, value: str, words: tuple[str, ...]) -> None:
    if value not in words:
        raise TdbgError(f"{name} cannot be {value!r}", f"write {name} {', '.join(words[:-1])} or {words[-1]}")
