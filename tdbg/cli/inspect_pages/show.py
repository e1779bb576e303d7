"""`tdbg inspect-pages show`: the tensors of one datapoint, in figures and as pictures."""

from typing import TYPE_CHECKING, Any

from tdbg.core.command_spec import JSON, Argument, Command, Option, Options
from tdbg.core.output import print_json, print_lines, print_messages, print_styled
from tdbg.pages.selection.locations import SELECTION, Selected

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from tdbg.pages.read.datapoint import Datapoint, Tensor
    from tdbg.pages.read.page_set import PageSet
    from tdbg.pages.read.tensor_slices import Part
    from tdbg.pages.render.terminal_screen import Screen
    from tdbg.pages.selection.tensor_name import TensorTarget
    from tdbg.pages.stats.value_stats import ValueStats

HELP = """Show the tensors of a datapoint: figures, histogram, picture, values.

    KEY alone shows all tensors of the datapoint; KEY/PATH one of them, those below a path, or those of a pattern. Two
    dimensions become a heat map, three a grid of channels or heads; in a terminal that takes pictures they are real
    pixels. If several datapoints have the key, choose with --rank, --step, --epoch or --nth.

    Examples:
        tdbg inspect-pages show 17
        tdbg inspect-pages show 17/layers.4.attn:output --slice 0,:,3:5
        tdbg inspect-pages show tdbg_runs/train '17/layers.*:output' --rank 3
    """
ARGUMENT = Argument(
    "PATH|KEY",
    "Optional: a run, a folder of pages or a page; the newest run if left out. Then KEY or KEY/PATH of a tensor.",
)
OPTIONS: Options = {
    "slice": Option(("--slice",), "SLICE", "A part of a tensor, such as 0,:,3:5; only its rows are read."),
    **SELECTION,
    "nth": Option(("--nth",), "N", "The N-th of several datapoints with this key, from 1.", shows_default=False),
    "image": Option(("--image",), "IMAGE", "How pictures are sent to the terminal; auto asks its environment."),
    "json": JSON,
}
EXAMPLE = "tdbg inspect-pages show 17/layers.4.attn:output"
TEXT = 200  # letters of a scalar


class ShowArgs(Selected):
    """What `show` can be asked."""

    slice: str = ""
    nth: int = 0
    image: str = "auto"
    json: bool = False


def show_datapoint(args: ShowArgs) -> int:
    """Print it; 1 if there is no such key or tensor."""
    from tdbg.core.errors import TdbgError
    from tdbg.pages.read.problem_messages import say_problems
    from tdbg.pages.render.terminal_screen import Screen
    from tdbg.pages.selection.locations import is_place, open_pages, place_and_word
    from tdbg.pages.selection.tensor_name import resolve_target

    screen = Screen(args.image)
    place, word = place_and_word(args.paths, "KEY", EXAMPLE)
    try:
        found = open_pages(place)
    except TdbgError:
        if place or not is_place(word):
            raise
        raise TdbgError(f"{word} is a path: the key is missing", f"write it such as: {EXAMPLE}") from None
    with found as pages:
        target = resolve_target(pages, word, args)
        if target is None:
            code = _report_unknown_key(pages, word, args)
        elif target.path and not target.tensors:
            code = _report_unknown_path(target)
        else:
            code = _show_target(target, args, screen)
        say_problems(pages, drops=False)
    return code


def _report_unknown_key(pages: "PageSet", word: str, args: ShowArgs) -> int:
    from tdbg.core.tables import safe
    from tdbg.pages.selection.locations import describe_selectable, is_place, is_selected
    from tdbg.pages.selection.tensor_name import near_keys

    near = ", ".join(map(safe, near_keys(pages, word, args)))
    among = " among those that are selected" if is_selected(args) else ""
    print_messages(f"no datapoint has the key {safe(word)!r}{among}")
    if len(args.paths) == 1 and is_place(word):
        print_messages(f"write a key after the path: tdbg inspect-pages show {safe(word)} KEY")
    print_messages(f"keys near to it: {near}" if near else describe_selectable(pages))
    return 1


def _report_unknown_path(target: "TensorTarget") -> int:
    from tdbg.core.tables import safe
    from tdbg.pages.selection.tensor_name import near_paths
    from tdbg.pages.stats.value_stats import parse_recorded_stats

    print_messages(f"datapoint {safe(target.key)} has no tensor {safe(target.path)!r}")
    near = near_paths(target.datapoints, target.path)
    kept = any(parse_recorded_stats(datapoint) for datapoint in target.datapoints)
    none = "figures alone were kept of it; show the key alone" if kept else "it has no tensors at all"
    print_messages(f"names near to it: {', '.join(map(safe, near))}" if near else none)
    return 1


def _show_target(target: "TensorTarget", args: ShowArgs, screen: "Screen") -> int:
    from tdbg.core.errors import TdbgError
    from tdbg.core.tables import format_count
    from tdbg.pages.selection.datapoint_data import describe_datapoint

    found = target.datapoints
    if not 0 <= args.nth <= len(found):
        raise TdbgError(
            f"--nth {args.nth}: {format_count(len(found), 'datapoint', 'has')} the key {target.key}", "count from 1"
        )
    if args.nth:
        found = [found[args.nth - 1]]
    shown = [(one, [one.tensors[path] for path in target.tensors if path in one.tensors]) for one in found]
    single = len(found) == 1 and len(target.tensors) == 1
    if args.slice and len(target.tensors) != 1:
        raise TdbgError("--slice needs exactly one tensor", f"name it: {EXAMPLE}")
    if args.json:
        whole = len(found) == 1 or bool(target.path)
        print_json("pages-datapoint", [describe_datapoint(*one, args.slice, whole=whole) for one in shown])
        return 0
    if single and target.path:
        _print_tensor(found[0], shown[0][1][0], args, screen)
        return 0
    return _print_tensors(shown, args, screen) if len(found) == 1 or target.path else _print_candidates(found)


# several


def _print_candidates(found: "Sequence[Datapoint]") -> int:
    from tdbg.core.tables import format_count, print_table
    from tdbg.pages.selection.datapoint_data import DATAPOINT_COLUMNS, build_datapoint_row

    print_table(("nth", *DATAPOINT_COLUMNS), ((nth, *build_datapoint_row(one)) for nth, one in enumerate(found, 1)))
    print_messages(
        f"{format_count(len(found), 'datapoint', 'has')} this key: choose with --rank, --step, --epoch or --nth"
    )
    return 0


def _print_tensors(shown: "Sequence[tuple[Datapoint, list[Tensor]]]", args: ShowArgs, screen: "Screen") -> int:
    """A line a tensor, or a layer of which figures alone were kept."""
    from tdbg.core.tables import format_count, format_shape, print_table
    from tdbg.pages.stats.value_stats import parse_recorded_stats

    several = len(shown) > 1
    columns = ("rank", "step", "epoch") if several else ()
    names = ("tensor", "dtype", "shape", "nan", "inf", "zero", "mean", "std", "min", "max", "histogram")
    code, rows = 0, []
    for datapoint, tensor, found in _iter_measured(shown, args):
        place = (datapoint.rank, datapoint.step, datapoint.epoch) if several else ()
        about = (*place, tensor.path, tensor.dtype.name, format_shape(tensor.shape))
        if isinstance(found, str):
            print_messages(found)
            code = 2
            rows.append((*about, *(None,) * 8))
            continue
        figures, bars = found
        rows.append((*about, *_figure_cells(figures), screen.format_histogram(bars).rstrip()))
    for datapoint, tensors in shown:
        place = (datapoint.rank, datapoint.step, datapoint.epoch) if several else ()
        for path, figures in parse_recorded_stats(datapoint).items() if not tensors else ():
            rows.append((*place, path, "figures", None, *_figure_cells(figures), None))
    if not several:
        _print_head(shown[0][0])
    if rows:
        print_table((*columns, *names), rows)
    if several:
        print_messages(
            f"{format_count(len(shown), 'datapoint', 'has')} this key: choose with --rank, --step, --epoch or --nth"
        )
    return code


def _figure_cells(figures: "ValueStats") -> tuple[Any, ...]:
    share = None if figures.zero_share is None else f"{figures.zero_share:.1%}"
    return figures.nan, figures.inf, share, figures.mean, figures.std, figures.min, figures.max


def _iter_measured(
    shown: "Sequence[tuple[Datapoint, list[Tensor]]]", args: ShowArgs
) -> "Iterator[tuple[Datapoint, Tensor, tuple[ValueStats, list[int]] | str]]":
    """Each tensor with its figures and its histogram, or why it cannot be read."""
    from tdbg.core.errors import TdbgError
    from tdbg.core.tables import safe
    from tdbg.pages.progress_bar import Progress
    from tdbg.pages.read.tensor_values import value_count
    from tdbg.pages.stats.stored_tensor import measure_tensor
    from tdbg.pages.stats.value_stats import PURE

    every = [tensor for _, tensors in shown for tensor in tensors]
    lists = PURE if sum(value_count(tensor.dtype, tensor.shape) for tensor in every) <= 2 * PURE else 0
    with Progress("reading", sum(tensor.nbytes for tensor in every)) as progress:
        for datapoint, tensors in shown:
            for tensor in tensors:
                try:
                    figures, bars, _ = measure_tensor(tensor, args.slice, 16, progress.advance, lists)
                    yield datapoint, tensor, (figures, bars)
                except TdbgError as error:
                    if args.slice:
                        raise
                    yield datapoint, tensor, safe(str(error))


# one


def _print_head(datapoint: "Datapoint", *, scalars: bool = True) -> None:
    from tdbg.core.tables import safe
    from tdbg.pages.stats.value_stats import parse_recorded_stats

    places = (("rank", datapoint.rank), ("step", datapoint.step), ("epoch", datapoint.epoch))
    named = [*places, ("phase", datapoint.phase or None), ("page", datapoint.page), ("row", datapoint.row)]
    about = ", ".join(f"{name} {value}" for name, value in named if value is not None)
    print_lines([f"datapoint {safe(str(datapoint.key))}: {safe(about)}"])
    if datapoint.flags:
        print_lines([f"flags: {safe(', '.join(datapoint.flags))}"])
    kept = parse_recorded_stats(datapoint) if scalars else {}
    for name, value in datapoint.scalars.items() if scalars else ():
        if name.rpartition("/")[0] in kept:
            continue
        text = safe(f"{value:.6g}" if isinstance(value, float) else str(value))
        print_lines([f"{safe(name)} = {text if len(text) <= TEXT else text[: TEXT - 3] + '...'}"])


def _print_tensor(datapoint: "Datapoint", tensor: "Tensor", args: ShowArgs, screen: "Screen") -> None:
    from tdbg.core.tables import format_shape, format_size, safe
    from tdbg.pages.progress_bar import Progress
    from tdbg.pages.render import heat_map
    from tdbg.pages.selection.datapoint_data import BARS, FEW, SLICED_FEW
    from tdbg.pages.stats.stored_tensor import EXACT, measure_tensor

    with Progress("reading", tensor.nbytes) as progress:
        figures, bars, part = measure_tensor(tensor, args.slice, BARS, progress.advance)
    _print_head(datapoint, scalars=False)
    cut = f", of it [{args.slice.strip('[]')}]: {format_shape(part.shape)}" if args.slice and part else ""
    print_lines(
        [f"{safe(tensor.path)}: {tensor.dtype.name} {format_shape(tensor.shape)}, {format_size(tensor.nbytes)}{cut}"]
    )
    if tensor.note:
        print_lines([f"note: {safe(str(dict(tensor.note)))[:TEXT]}"])
    print_lines(figure_lines(figures, exact=part is not None))
    if sum(bars):
        print(f"{figures.min:.4g} |{screen.format_histogram(bars)}| {figures.max:.4g}")
    if part is None:
        print_lines([f"more than {EXACT:,} values: --slice shows a part of them as a picture"])
        return
    if not part.count or part.count <= (SLICED_FEW if args.slice else FEW):
        for line in value_lines(part):
            print(line)
    labels = find_tokens(datapoint, part.shape)
    for line in heat_map.render_heat_map(part, figures, screen, labels):
        print_styled(line)


def figure_lines(figures: "ValueStats", *, exact: bool) -> "Iterator[str]":
    """The figures in three lines."""
    from tdbg.core.tables import format_cell, format_count
    from tdbg.pages.stats.value_stats import QUANTILE_NAMES

    share = "" if figures.zero_share is None else f", zero {figures.zero:,} ({figures.zero_share:.1%})"
    yield (f"{format_count(figures.count, 'value')}: nan {figures.nan:,}, inf {figures.inf:,}{share}")
    if figures.mean is None:
        return
    named = ("mean", "std", "min", "max", "absmax")
    yield ", ".join(f"{name} {format_cell(getattr(figures, name))}" for name in named)
    pairs = zip(QUANTILE_NAMES, figures.quantiles, strict=False)
    about = "" if exact else " (within 0.8 %)"
    if figures.quantiles:
        yield ", ".join(f"{name} {format_cell(value)}" for name, value in pairs) + about


def value_lines(part: "Part") -> "Iterator[str]":
    """The values, a line for each row of the last dimension."""
    from tdbg.pages.read.tensor_values import format_value

    texts = [format_value(value) for value in part.to_numbers()]
    if not texts:
        return
    wide = max(map(len, texts))
    length = part.shape[-1] if part.shape else 1
    for start in range(0, len(texts), length):
        line = texts[start : start + length]
        for at in range(0, length, 16):
            yield " ".join(text.rjust(wide) for text in line[at : at + 16])


def find_tokens(datapoint: "Datapoint", shape: "Sequence[int]") -> "list[str]":
    """The texts that name the rows of a tensor: a list of as many as it has, among what was captured with it."""
    sizes = [size for size in shape if size != 1]
    for value in datapoint.scalars.values():
        fits = isinstance(value, list) and len(sizes) > 1 and len(value) == sizes[-2]
        if fits and all(isinstance(item, str) for item in value):
            return list(value)
    return []


COMMAND = Command(show_datapoint, ShowArgs, HELP, OPTIONS, ARGUMENT)
