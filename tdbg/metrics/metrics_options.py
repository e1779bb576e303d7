"""The options that all commands of metrics share (run, ranks, keys), and the warnings about what was read."""

from collections.abc import Sequence
from typing import TYPE_CHECKING

from tdbg.core.command_spec import Args, Argument, Option, Options

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from tdbg.metrics.rows.row_files import Place
    from tdbg.metrics.rows.row_reader import Counts
    from tdbg.metrics.rows.series import Tally


class Selected(Args):
    """Which ranks and keys of a run."""

    ranks: str = ""
    key: Sequence[str] = ()


SELECTION: Options = {
    "ranks": Option(("--ranks", "--rank"), "RANGE", "Only these ranks, such as 0,3-5."),
    "key": Option(("--key", "-k"), "GLOB", "Only keys such as 'val/*'; repeatable."),
}
MOST_REPORTED = 8  # ranks of which it is said what they left out
ROWS_ARE = "name a run, its metrics.jsonl, or a file of JSON lines, each with a step and numbers"
NO_ROWS = "there are no metrics yet"
ARGUMENT = Argument("PATH", "A run or its URL, or a metrics.jsonl, or a folder of them; the newest run if left out.")


def find_place(args: Selected) -> "Place":
    """The files that are meant. Raises TdbgError for none, and for several paths."""
    from tdbg.core.errors import TdbgError
    from tdbg.metrics.rows.row_files import find_rows_files

    if len(args.paths) > 1:
        raise TdbgError(f"{len(args.paths)} paths were given", "name one run, folder or file")
    return find_rows_files(args.paths[0] if args.paths else "", args.ranks)


def key_filter(globs: Sequence[str], *, copies: bool = False) -> "Callable[[str], bool]":
    """Which keys are meant: those of the globs; without any all. copies: those under ``core/`` too."""
    if not globs:
        return lambda key: copies or not key.startswith("core/")
    import re
    from fnmatch import translate

    match = re.compile("|".join(map(translate, globs))).match
    return lambda key: match(key) is not None


def check_keys(globs: Sequence[str], known: "Iterable[str]") -> None:
    """TdbgError for a glob that no key fits, with the nearest keys."""
    from fnmatch import fnmatchcase

    from tdbg.core.errors import TdbgError

    keys = sorted(set(known))
    for one in globs:
        if not any(fnmatchcase(key, one) for key in keys):
            raise TdbgError(f"no key matches {one!r}", suggest_keys(one, keys))


def suggest_keys(word: str, keys: Sequence[str]) -> str:
    """A hint with the keys that a word may mean."""
    from difflib import get_close_matches

    plain = word.strip("*")
    near = [key for key in keys if plain and plain in key] or get_close_matches(word, keys, n=3)
    if near:
        return f"did you mean {' or '.join(near[:3])}?"
    return f"there are: {', '.join(keys[:8])}{' ...' if len(keys) > 8 else ''}" if keys else "there are no keys at all"


def format_key(key: str, letters: int = 80) -> str:
    """A key as a person reads it; an empty one as two quotes."""
    from tdbg.core.tables import format_short

    return format_short(key, letters) or "''"


def report_skipped_rows(name: str, counts: "Counts") -> None:
    """Say on stderr what was passed over. Raises TdbgError where that is all there was, beyond a line that a kill tore."""
    from pathlib import Path

    from tdbg.core.errors import TdbgError
    from tdbg.core.output import print_messages
    from tdbg.core.tables import format_count, safe
    from tdbg.metrics.rows.row import FILE

    foreign = Path(name).is_file() and Path(name).name != FILE
    if counts.broken and not counts.rows and (foreign or counts.broken > 1):
        hint = (
            "tdbg metrics cannot read compressed files: decompress it first"
            if name.endswith((".gz", ".zst"))
            else ROWS_ARE
        )
        raise TdbgError(f"{name}: no row of metrics in {format_count(counts.broken, 'line')}", hint)
    if counts.broken:
        torn = "it is cut off, as after a kill" if counts.broken == 1 else "they are cut off or are not rows of metrics"
        print_messages(safe(f"{name}: {format_count(counts.broken, 'line')} skipped: {torn}"))
    if counts.again:
        print_messages(safe(f"{name}: {format_count(counts.again, 'row')} skipped: a resumed run repeated these steps"))


def report_unwritten_rows(tally: "Tally") -> None:
    """Say on stderr, of each rank, which rows were never written, and why."""
    from tdbg.core.output import print_messages
    from tdbg.core.tables import format_count, format_short
    from tdbg.metrics.rows.row import LEFT_OUT

    alone = len(tally.last) <= 1
    for (rank, why), those in sorted(tally.unwritten.items())[:MOST_REPORTED]:
        of = "" if alone else f"rank {rank}: "
        reason = LEFT_OUT.get(why) or format_short(why, 60)
        print_messages(f"{of}{format_count(those.rows, 'row')} left out from step {those.first_step:,} on: {reason}")
    thin = sorted((rank, one) for rank, one in tally.records.items() if one.missing)
    for rank, one in thin[:MOST_REPORTED]:
        of = "" if alone else f"rank {rank}: "
        steps = one.count + one.missing
        print_messages(
            f"{of}{one.count:,} of {format_count(steps, 'step')} recorded, because of --max-overhead or --every"
        )


def is_place(word: str) -> bool:
    """True if a word names a run, a folder or a file, not a key."""
    import glob
    from pathlib import Path

    from tdbg.core.rundir import RUNS

    if Path(word).exists() or (Path(RUNS) / word).exists():
        return True
    return "/" not in word and bool(glob.glob(f"{RUNS}/*-{glob.escape(word)}/run.json"))
