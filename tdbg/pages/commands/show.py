"""`tdbg inspect-pages show`: the tensors of one datapoint, in figures and as pictures."""

from typing import TYPE_CHECKING, Any

from tdbg.core.asked import Options
from tdbg.pages.selection.locations import SELECTION, Selected

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from tdbg.pages.read.datapoint import Datapoint, Tensor
    from tdbg.pages.read.page_set import PageSet
    from tdbg.pages.read.tensor_slices import Part
    from tdbg.pages.render.terminal_screen import Screen
    from tdbg.pages.selection.tensor_name import Target
    from tdbg.pages.stats.value_stats import Figures

HELP = """Show the tensors of a datapoint: figures, histogram, picture, values.

    KEY alone shows all tensors of the datapoint; KEY/PATH one of them, those below a path, or those of a pattern. Two
    dimensions become a heat map, three a grid of channels or heads; in a terminal that takes pictures they are real
    pixels. If several datapoints have the key, choose with --rank, --step, --epoch or --nth.

    Examples:
        tdbg inspect-pages show 17
        tdbg inspect-pages show 17/layers.4.attn:output --slice 0,:,3:5
        tdbg inspect-pages show tdbg_runs/train '17/layers.*:output' --rank 3
    """
ARGUMENTS = (
    "PATH|KEY",
    "Optional: a run, a folder of pages or a page; the newest run if left out. Then KEY or KEY/PATH of a tensor.",
)
OPTIONS: Options = {
    "slice": (("--slice",), "TEXT", "A part of a tensor, such as 0,:,3:5; only its rows are read."),
    **SELECTION,
    "nth": (("--nth",), "N", "The N-th of several datapoints with this key, from 1."),
    "image": (("--image",), "IMAGE", "How pictures are sent to the terminal; auto asks its environment."),
    "json": (("--json",), "", "Print one JSON document."),
}
EXAMPLE = "tdbg inspect-pages show 17/layers.4.attn:output"
FEW, SLICED_FEW = 64, 1024  # values that are printed
TEXT = 200  # letters of a scalar


class Question(Selected):
    """What `show` can be asked."""

    slice: str = ""
    nth: int = 0
    image: str = "auto"
    json: bool = False


def answer(question: Question) -> int:
    """Print it; 1 if there is no such key or tensor."""
    from tdbg.core.errors import TdbgError
    from tdbg.pages.read.problem_messages import say_problems
    from tdbg.pages.render.terminal_screen import Screen
    from tdbg.pages.selection.locations import is_place, opened, place_and_word
    from tdbg.pages.selection.tensor_name import resolve

    screen = Screen(question.image)
    place, word = place_and_word(question.paths, "KEY", EXAMPLE)
    try:
        found = opened(place)
    except TdbgError:
        if place or not is_place(word):
            raise
        raise TdbgError(f"{word} is a path: the key is missing", f"write it such as: {EXAMPLE}") from None
    with found as pages:
        target = resolve(pages, word, question)
        if target is None:
            code = _no_key(pages, word, question)
        elif target.path and not target.tensors:
            code = _no_path(target)
        else:
            code = _show(target, question, screen)
        say_problems(pages, drops=False)
    return code


def _no_key(pages: "PageSet", word: str, question: Question) -> int:
    from tdbg.core.output import say
    from tdbg.core.tables import safe
    from tdbg.pages.selection.locations import is_place, is_selected, there_is
    from tdbg.pages.selection.tensor_name import near_keys

    near = ", ".join(map(safe, near_keys(pages, word, question)))
    among = " among those that are selected" if is_selected(question) else ""
    say(f"no datapoint has the key {safe(word)!r}{among}")
    if len(question.paths) == 1 and is_place(word):
        say(f"write a key behind the path: tdbg inspect-pages show {safe(word)} KEY")
    say(f"keys near to it: {near}" if near else there_is(pages))
    return 1


def _no_path(target: "Target") -> int:
    from tdbg.core.output import say
    from tdbg.core.tables import safe
    from tdbg.pages.selection.tensor_name import near_paths
    from tdbg.pages.stats.value_stats import recorded

    say(f"datapoint {safe(target.key)} has no tensor {safe(target.path)!r}")
    near = near_paths(target.datapoints, target.path)
    kept = any(recorded(datapoint) for datapoint in target.datapoints)
    none = "figures alone were kept of it; show the key alone" if kept else "it has no tensors at all"
    say(f"names near to it: {', '.join(map(safe, near))}" if near else none)
    return 1


def _show(target: "Target", question: Question, screen: "Screen") -> int:
    from tdbg.core.errors import TdbgError

    found = target.datapoints
    if not 0 <= question.nth <= len(found):
        raise TdbgError(f"--nth {question.nth}: {len(found)} datapoints have the key {target.key}", "count from 1")
    if question.nth:
        found = [found[question.nth - 1]]
    shown = [(one, [one.tensors[path] for path in target.tensors if path in one.tensors]) for one in found]
    single = len(found) == 1 and len(target.tensors) == 1
    if question.slice and len(target.tensors) != 1:
        raise TdbgError("--slice is of one tensor", f"name it: {EXAMPLE}")
    if question.json:
        return _print_json(shown, question, whole=len(found) == 1 or bool(target.path))
    if single and target.path:
        _print_tensor(found[0], shown[0][1][0], question, screen)
        return 0
    return _print_all(shown, question, screen) if len(found) == 1 or target.path else _print_list(found)


# several


def _print_list(found: "Sequence[Datapoint]") -> int:
    from tdbg.core.output import say
    from tdbg.core.tables import print_rows
    from tdbg.pages.commands.ls import DATAPOINT_COLUMNS, datapoint_row

    print_rows(("nth", *DATAPOINT_COLUMNS), ((nth, *datapoint_row(one)) for nth, one in enumerate(found, 1)))
    say(f"{len(found)} datapoints have this key: choose with --rank, --step, --epoch or --nth")
    return 0


def _print_all(shown: "Sequence[tuple[Datapoint, list[Tensor]]]", question: Question, screen: "Screen") -> int:
    """A line a tensor, or a layer of which figures alone were kept."""
    from tdbg.core.output import say
    from tdbg.core.tables import print_rows, shape
    from tdbg.pages.stats.value_stats import recorded

    several = len(shown) > 1
    columns = ("rank", "step", "epoch") if several else ()
    names = ("tensor", "dtype", "shape", "nan", "inf", "zero", "mean", "std", "min", "max", "histogram")
    code, rows = 0, []
    for datapoint, tensor, found in _measured(shown, question):
        place = (datapoint.rank, datapoint.step, datapoint.epoch) if several else ()
        about = (*place, tensor.path, tensor.dtype.name, shape(tensor.shape))
        if isinstance(found, str):
            say(found)
            code = 2
            rows.append((*about, *(None,) * 8))
            continue
        figures, bars = found
        rows.append((*about, *_figure_cells(figures), screen.bar(bars).rstrip()))
    for datapoint, tensors in shown:
        place = (datapoint.rank, datapoint.step, datapoint.epoch) if several else ()
        for path, figures in recorded(datapoint).items() if not tensors else ():
            rows.append((*place, path, "figures", None, *_figure_cells(figures), None))
    if not several:
        _print_head(shown[0][0])
    if rows:
        print_rows((*columns, *names), rows)
    if several:
        say(f"{len(shown)} datapoints have this key: choose with --rank, --step, --epoch or --nth")
    return code


def _figure_cells(figures: "Figures") -> tuple[object, ...]:
    share = None if figures.zero_share is None else f"{figures.zero_share:.1%}"
    return figures.nan, figures.inf, share, figures.mean, figures.std, figures.min, figures.max


def _measured(
    shown: "Sequence[tuple[Datapoint, list[Tensor]]]", question: Question
) -> "Iterator[tuple[Datapoint, Tensor, tuple[Figures, list[int]] | str]]":
    """Each tensor with its figures and its histogram, or why it cannot be read."""
    from tdbg.core.errors import TdbgError
    from tdbg.core.tables import safe
    from tdbg.pages.progress_bar import Progress
    from tdbg.pages.read.tensor_values import value_count
    from tdbg.pages.stats.stored_tensor import measure
    from tdbg.pages.stats.value_stats import PURE

    every = [tensor for _, tensors in shown for tensor in tensors]
    lists = PURE if sum(value_count(tensor.dtype, tensor.shape) for tensor in every) <= 2 * PURE else 0
    with Progress("reading", sum(tensor.nbytes for tensor in every)) as progress:
        for datapoint, tensors in shown:
            for tensor in tensors:
                try:
                    figures, bars, _ = measure(tensor, question.slice, 16, progress.add, lists)
                    yield datapoint, tensor, (figures, bars)
                except TdbgError as error:
                    if question.slice:
                        raise
                    yield datapoint, tensor, safe(str(error))


# one


def _print_head(datapoint: "Datapoint", *, scalars: bool = True) -> None:
    from tdbg.core.tables import safe
    from tdbg.pages.stats.value_stats import recorded

    places = (("rank", datapoint.rank), ("step", datapoint.step), ("epoch", datapoint.epoch))
    named = [*places, ("phase", datapoint.phase or None), ("page", datapoint.page), ("row", datapoint.row)]
    about = ", ".join(f"{name} {value}" for name, value in named if value is not None)
    print(f"datapoint {safe(str(datapoint.key))}: {safe(about)}")
    if datapoint.flags:
        print(f"flags: {safe(', '.join(datapoint.flags))}")
    kept = recorded(datapoint) if scalars else {}
    for name, value in datapoint.scalars.items() if scalars else ():
        if name.rpartition("/")[0] in kept:
            continue
        text = safe(f"{value:.6g}" if isinstance(value, float) else str(value))
        print(f"{safe(name)} = {text if len(text) <= TEXT else text[: TEXT - 3] + '...'}")


def _print_tensor(datapoint: "Datapoint", tensor: "Tensor", question: Question, screen: "Screen") -> None:
    from tdbg.core.output import print_styled
    from tdbg.core.tables import safe, shape, size
    from tdbg.pages.progress_bar import Progress
    from tdbg.pages.render import heat_map as pictures
    from tdbg.pages.stats.stored_tensor import EXACT, measure

    with Progress("reading", tensor.nbytes) as progress:
        figures, bars, part = measure(tensor, question.slice, 40, progress.add)
    _print_head(datapoint, scalars=False)
    cut = f", of it [{question.slice.strip('[]')}]: {shape(part.shape)}" if question.slice and part else ""
    print(f"{safe(tensor.path)}: {tensor.dtype.name} {shape(tensor.shape)}, {size(tensor.nbytes)}{cut}")
    if tensor.note:
        print(f"note: {safe(str(dict(tensor.note)))[:TEXT]}")
    for line in figure_lines(figures, exact=part is not None):
        print(line)
    if sum(bars):
        print(f"{figures.min:.4g} |{screen.bar(bars)}| {figures.max:.4g}")
    if part is None:
        print(f"more than {EXACT:,} values: --slice shows a part of them as a picture")
        return
    if not part.count or part.count <= (SLICED_FEW if question.slice else FEW):
        for line in value_lines(part):
            print(line)
    labels = tokens(datapoint, part.shape)
    for line in pictures.lines(part, figures, screen, labels):
        print_styled(line)


def figure_lines(figures: "Figures", *, exact: bool) -> "Iterator[str]":
    """The figures in three lines."""
    from tdbg.core.tables import cell
    from tdbg.pages.stats.value_stats import QUANTILE_NAMES

    share = "" if figures.zero_share is None else f", zero {figures.zero:,} ({figures.zero_share:.1%})"
    yield (f"{figures.count:,} values: nan {figures.nan:,}, inf {figures.inf:,}{share}")
    if figures.mean is None:
        return
    named = ("mean", "std", "min", "max", "absmax")
    yield ", ".join(f"{name} {cell(getattr(figures, name))}" for name in named)
    pairs = zip(QUANTILE_NAMES, figures.quantiles, strict=False)
    about = "" if exact else " (within 0.8 %)"
    if figures.quantiles:
        yield ", ".join(f"{name} {cell(value)}" for name, value in pairs) + about


def value_lines(part: "Part") -> "Iterator[str]":
    """The values, a line for each row of the last dimension."""
    from tdbg.pages.read.tensor_values import shown

    texts = [shown(value) for value in part.listed()]
    if not texts:
        return
    wide = max(map(len, texts))
    length = part.shape[-1] if part.shape else 1
    for start in range(0, len(texts), length):
        line = texts[start : start + length]
        for at in range(0, length, 16):
            yield " ".join(text.rjust(wide) for text in line[at : at + 16])


def tokens(datapoint: "Datapoint", shape: "Sequence[int]") -> "list[str]":
    """The texts that name the rows of a tensor: a list of as many as it has, among what was captured with it."""
    sizes = [size for size in shape if size != 1]
    for value in datapoint.scalars.values():
        fits = isinstance(value, list) and len(sizes) > 1 and len(value) == sizes[-2]
        if fits and all(isinstance(item, str) for item in value):
            return list(value)
    return []


# JSON


def _print_json(shown: "Sequence[tuple[Datapoint, list[Tensor]]]", question: Question, *, whole: bool) -> int:
    from tdbg.core.output import print_json
    from tdbg.core.tables import finite
    from tdbg.pages.commands.ls import DATAPOINT_COLUMNS, datapoint_row

    found: list[dict[str, Any]] = []
    for datapoint, tensors in shown:
        one = dict(zip(DATAPOINT_COLUMNS, datapoint_row(datapoint), strict=True))
        one |= {"key": datapoint.key, "flags": datapoint.flags, "scalars": dict(datapoint.scalars)}
        one["tensors"] = [_tensor_dict(tensor, question, whole=whole) for tensor in tensors]
        found.append(one)
    print_json("pages-datapoint", finite(found))
    return 0


def _tensor_dict(tensor: "Tensor", question: Question, *, whole: bool) -> dict[str, object]:
    from tdbg.core.errors import TdbgError
    from tdbg.pages.stats.stored_tensor import measure

    about: dict[str, object] = {"path": tensor.path, "dtype": tensor.dtype.name, "shape": tensor.shape}
    about |= {"bytes": tensor.nbytes, "note": dict(tensor.note)}
    if not whole:
        return about
    try:
        figures, bars, part = measure(tensor, question.slice, 40)
    except TdbgError as error:
        if question.slice:
            raise
        return {**about, "error": str(error)}
    about |= {"figures": figures.as_dict(), "histogram": bars}
    if question.slice and part is not None:
        about |= {"slice": question.slice, "slice_shape": part.shape}
    if part is not None and part.count <= (SLICED_FEW if question.slice else FEW):
        about["values"] = part.listed()
    return about
