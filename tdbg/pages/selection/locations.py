"""Locate the pages that a path names, and select datapoints from them."""

import os

from tdbg.core.command_spec import Args, Option, Options
from tdbg.core.errors import TdbgError

TYPE_CHECKING = False  # what `typing` says, without its import
if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Sequence

    from tdbg.pages.read.page_set import Datapoint, PageSet


class Selected(Args):
    """What every command of pages can be asked: which datapoints."""

    ranks: str = ""
    steps: str = ""
    epochs: str = ""
    phase: str = ""


SELECTION: Options = {
    "ranks": Option(("--ranks", "--rank"), "RANGE", "Only these ranks, such as 0,3-5."),
    "steps": Option(("--steps", "--step"), "RANGE", "Only these steps, such as 100:200,500."),
    "epochs": Option(("--epochs", "--epoch"), "RANGE", "Only these epochs, such as 0:2."),
    "phase": Option(("--phase",), "PHASE", "Only this phase, such as train or eval.", takes_empty=True),
}


class Grouped(Selected):
    """What commands can be asked that set the samples that fail against the others."""

    group_by: str = ""
    scores: str = ""


GROUPING: Options = {
    "group_by": Option(
        ("--group-by",),
        "FIELD",
        "Group by rank, step, epoch, phase, a number captured with each datapoint, or a step metric such as loss.",
    ),
    "scores": Option(("--scores",), "FILE", "Group by the scores of a CSV file (key,score) or JSON Lines file."),
}


def find_newest_run() -> str:
    """The newest run under ./tdbg_runs that has pages; the newest, if none has."""
    from tdbg.core.rundir import RunDir

    runs = (run.path for run in reversed(RunDir.list_runs()))
    found = next((path for path in runs if any((*path.glob("rank*/pages"), *path.glob("rank*/*/pages")))), None)
    return str(found or RunDir.open(None).path)


def resolve_place(paths: "Sequence[str]") -> str:
    """The one path that is named, or the newest run. Raises TdbgError for several, and where there is no run."""
    if len(paths) > 1:
        raise TdbgError(f"{len(paths)} paths were given", "name one run, folder or page")
    return _find_under_runs(paths[0]) if paths else find_newest_run()


def _find_under_runs(path: str) -> str:
    """The path; where it is nothing here, the run of that name, or the file of the newest run, as findings name it."""
    run = _get_named_run(path)
    if run:
        return run
    inside = _get_path_in_newest_run(path)
    if not inside:
        return path
    from tdbg.core.output import print_messages

    print_messages(f"{inside}, of the newest run")
    return inside


def is_under_runs(word: str) -> bool:
    """True if a word is no path here, but names a run, or a file of the newest: ``rank0000/batch_step00000012.safetensors``."""
    return bool(_get_named_run(word) or _get_path_in_newest_run(word))


def _get_named_run(name: str) -> str:
    """The run of this name under ./tdbg_runs, as `tdbg report` takes it; empty where there is none."""
    if not name or is_place(name) or "/" in name:
        return ""
    from tdbg.core.rundir import RunDir

    try:
        return str(RunDir.open(name).path)
    except TdbgError:
        return ""


def _get_path_in_newest_run(path: str) -> str:
    if is_place(path) or not path.startswith("rank") or "/" not in path:
        return ""
    from tdbg.core.rundir import RunDir

    runs = RunDir.list_runs()
    inside = os.path.join(runs[-1].path, path) if runs else ""
    return inside if inside and os.path.exists(inside) else ""


def open_pages(paths: "Sequence[str]") -> "PageSet":
    """The pages at the one path that is named. Raises TdbgError for none and for several."""
    from tdbg.pages.read.page_set import NoPagesError, PageSet

    where = resolve_place(paths)
    try:
        found = PageSet.open(where)
    except NoPagesError as error:
        raise _of_another_tool(where) or error from None
    _say_gap(where)
    return found


def _say_gap(where: str) -> None:
    """Say that a run on a store was not copied to its end: pages may be missing."""
    from tdbg.core.output import print_messages
    from tdbg.core.redaction import redact_text
    from tdbg.core.run_files import PIECES_MARKER
    from tdbg.core.urls import Url, parse_location

    place = parse_location(where)
    if isinstance(place, Url) or (place / PIECES_MARKER).is_file():
        from tdbg.pages.read.remote_store import Store, describe_gap

        gap = describe_gap(Store(str(place) if isinstance(place, Url) else f"file://{place.absolute()}"))
        if gap:
            print_messages(f"{redact_text(where)}: {gap}")


def _of_another_tool(where: str) -> TdbgError | None:
    """The error for pages that have to be converted; None if there are none either."""
    from tdbg.core.tables import format_count, format_short
    from tdbg.core.urls import Url, parse_location
    from tdbg.pages.pickle_reader import pickle_pages

    found: list[str] = []
    base = parse_location(where)
    try:
        if isinstance(base, Url):
            from tdbg.pages.read.remote_store import legacy_pages

            found = [path.rpartition("/")[2] or base.name for path in legacy_pages(base)]
        else:
            found = [
                page.name for page in pickle_pages.find_pickled_pages(base) if pickle_pages.PAGE.fullmatch(page.name)
            ]
    except TdbgError:
        pass
    if not found:
        return None
    return TdbgError(
        f"{format_short(where, 1000)} holds {format_count(len(found), 'pickle')} of another tool ({found[0]}), not tdbg pages",
        f"`tdbg inspect-pages convert {format_short(where, 1000)} -o DIR` converts them and runs no code in them",
    )


def is_place(word: str) -> bool:
    """True if a word names something on the disk or on a store rather than a key."""
    from tdbg.core.urls import is_url

    return is_url(word) or os.path.exists(word)


def place_and_word(words: "Sequence[str]", what: str, example: str, *, either: bool = True) -> tuple[list[str], str]:
    """The words of ``[PATH] WORD``: the paths for `open_pages`, and the word. Raises TdbgError where one is missing.

    either: ``WORD PATH`` is understood too, where only the second one is there.
    """
    if len(words) == 2:
        turned = either and is_place(words[1]) and not is_place(words[0])
        path, word = reversed(words) if turned else words
        return [path], word
    if len(words) == 1:
        return [], words[0]
    raise TdbgError(
        f"{what} is missing" if not words else f"{len(words)} arguments were given instead of [PATH] and {what}",
        f"for example: {example}",
    )


def select_datapoints(found: "Iterable[Datapoint]", question: Selected) -> "Iterator[Datapoint]":
    """Those datapoints that the options of `SELECTION` leave. Raises TdbgError for a range that is none."""
    tests = _build_filters(question)
    return (datapoint for datapoint in found if all(test(datapoint) for test in tests)) if tests else iter(found)


def describe_selectable(pages: "PageSet") -> str:
    """What can be selected, in words: ``there are: ranks 0 to 3, steps 1 to 20, epochs 0 to 1, phases train, val``."""
    from tdbg.core.tables import safe

    numbers: dict[str, set[int]] = {"rank": set(), "step": set(), "epoch": set()}
    phases: dict[str, None] = {}
    for datapoint in pages:
        for name, found in numbers.items():
            value = getattr(datapoint, name)
            if value is not None:
                found.add(value)
        if datapoint.phase:
            phases[datapoint.phase] = None
    parts = [
        f"{name} {min(found)}" if len(found) == 1 else f"{name}s {min(found)} to {max(found)}"
        for name, found in numbers.items()
        if found
    ]
    parts += [f"phase {', '.join(phases)}"] if phases else []
    return safe(f"there are: {', '.join(parts)}") if parts else "nothing was captured here"


def is_selected(question: Selected) -> bool:
    """True if the options of `SELECTION` leave anything out."""
    return bool(question.ranks or question.steps or question.epochs or question.phase)


def _build_filters(question: Selected) -> "list[Callable[[Datapoint], bool]]":
    """One for each option that is given: a listing asks them of every datapoint."""
    if not is_selected(question):
        return []
    from tdbg.core.ranges import parse_ranges

    def is_within(value: int | None, bounds: "Sequence[tuple[float, float]]") -> bool:
        return value is not None and any(low <= value <= high for low, high in bounds)

    tests: list[Callable[[Datapoint], bool]] = []
    if question.ranks and question.ranks != "all":
        ranks = parse_ranges("ranks", question.ranks, "-")
        tests.append(lambda datapoint: is_within(datapoint.rank, ranks))
    if question.steps:
        steps = parse_ranges("steps", question.steps, ":")
        tests.append(lambda datapoint: is_within(datapoint.step, steps))
    if question.epochs:
        epochs = parse_ranges("epochs", question.epochs, ":")
        tests.append(lambda datapoint: is_within(datapoint.epoch, epochs))
    if question.phase:
        tests.append(lambda datapoint: datapoint.phase == question.phase)
    return tests
