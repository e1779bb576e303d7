"""`tdbg inspect-pages diff`: where two captures part."""

from typing import TYPE_CHECKING

from tdbg.core.command_spec import JSON, Args, Argument, Command, Option, Options
from tdbg.core.output import print_json, print_lines

if TYPE_CHECKING:
    from tdbg.pages.diff.datapoint_pairs import CaptureSide, Entry
    from tdbg.pages.diff.divergence import Divergence, TensorDifference
    from tdbg.pages.read.page_set import PageSet

HELP = """Compare two runs, epochs or ranks: the first tensor that differs, and the worst ones.

    Datapoints are paired by key, their tensors by path, in the order they were captured in; where layers were inserted or
    removed the others still find each other. The error of a value is its difference relative to itself or to the root
    mean square of its tensor, whichever is larger. NaN is equal to NaN. What differs beyond the tolerance (1e-5 for
    float32, 1e-2 for bfloat16, nothing for integers) makes the exit code 1; so does a datapoint that one side lacks.

    Examples:
        tdbg inspect-pages diff tdbg_runs/good tdbg_runs/bad
        tdbg inspect-pages diff tdbg_runs/good --epochs 1,2 --layer 'layers.*.attn:output'
        tdbg inspect-pages diff tdbg_runs/good --ranks 0,1 --pair-by order
    """
ARGUMENT = Argument("PATH", "Two runs or folders of pages; one, or none for the newest run, with --epochs or --ranks.")
OPTIONS: Options = {
    "layer": Option(("--layer",), "GLOB", "Only paths like this glob; repeatable."),
    "tolerance": Option(("--tolerance",), "SHARE", "Allow this relative error, whatever the type: 1e-3."),
    "by": Option(("--pair-by",), "NAME", "Pair datapoints by key or by order.", old_names=("--by",)),
    "epochs": Option(("--epochs",), "RANGE", "Compare these two epochs: 1,2; or one epoch of two runs."),
    "ranks": Option(("--ranks",), "RANGE", "Compare these two ranks: 0,1; or one rank of two runs."),
    "top": Option(("--top",), "N", "Rows in the table of the worst tensors.", least=0),
    "json": JSON,
}
NAMED = 5  # of what one side lacks


class DiffArgs(Args):
    """What `diff` can be asked."""

    layer: tuple[str, ...] = ()
    tolerance: str = ""
    by: str = "key"
    epochs: str = ""
    ranks: str = ""
    top: int = 10
    json: bool = False


def diff_pages(args: DiffArgs) -> int:
    """Print where the sides part; 1 if they do."""
    from tdbg.core.tables import to_json_value
    from tdbg.pages.diff.divergence import Divergence
    from tdbg.pages.read.problem_messages import say_problems
    from tdbg.pages.selection.layer_globs import match_layers

    allowed = _parse_tolerance(args.tolerance)
    a, b = _open_sides(args)
    found = Divergence(a, b, match_layers(args.layer), allowed).compare_captures()
    _check_compared(found, args)
    for pages in {id(side.pages): side.pages for side in (a, b)}.values():
        say_problems(pages)
    if args.json:
        print_json("pages-diff", to_json_value(_as_json(found, args.top)))
    else:
        _print_divergence(found, args.top)
    return 1 if found.differs else 0


def _parse_tolerance(text: str) -> float | None:
    from tdbg.core.errors import TdbgError

    if not text:
        return None
    try:
        found = float(text)
    except ValueError:
        found = -1.0
    if not 0 <= found < float("inf"):
        raise TdbgError(f"--tolerance cannot be {text!r}", "write a number from 0, such as 1e-3")
    return found


def _open_sides(args: DiffArgs) -> "tuple[CaptureSide, CaptureSide]":
    from tdbg.core.errors import TdbgError
    from tdbg.pages.diff.datapoint_pairs import CaptureSide
    from tdbg.pages.selection.locations import open_pages

    epochs, ranks = _parse_pair("--epochs", args.epochs), _parse_pair("--ranks", args.ranks)
    if args.by not in ("key", "order"):
        raise TdbgError(f"--pair-by cannot be {args.by!r}", "write --pair-by key or --pair-by order")
    paths = list(args.paths)
    if len(paths) > 2:
        raise TdbgError(f"{len(paths)} paths were given", "name two runs, folders or pages")
    if len(paths) < 2 and epochs[0] == epochs[1] and ranks[0] == ranks[1]:
        raise TdbgError(
            "only one side was given", "name two paths, or two epochs (--epochs 1,2) or ranks (--ranks 0,1)"
        )
    first = open_pages(paths[:1])
    second = open_pages(paths[1:]) if len(paths) == 2 else first
    if epochs == (None, None) and len(paths) == 2:
        epochs = _find_single_epoch(first), _find_single_epoch(second)
    order = args.by == "order"
    return (
        CaptureSide(first, epoch=epochs[0], rank=ranks[0], order=order),
        CaptureSide(second, epoch=epochs[1], rank=ranks[1], order=order),
    )


def _find_single_epoch(pages: "PageSet") -> int | None:
    """The epoch of a side that is one folder ``epoch_N``: two such sides are compared although their epochs differ."""
    epochs = {source.epoch for source in pages.sources}
    return epochs.pop() if len(epochs) == 1 else None


def _parse_pair(option: str, text: str) -> tuple[int | None, int | None]:
    """The numbers of both sides; one number is meant for both."""
    from tdbg.core.errors import TdbgError

    words = [word.strip() for word in text.split(",")] if text else []
    if len(words) > 2 or not all(word.isdecimal() for word in words):
        raise TdbgError(f"{option} cannot be {text!r}", f"write two numbers: {option} 0,1")
    numbers = [int(word) for word in words]
    return (numbers[0], numbers[-1]) if numbers else (None, None)


def _check_compared(found: "Divergence", args: DiffArgs) -> None:
    """TdbgError where nothing was compared, and so nothing is known."""
    from tdbg.core.errors import TdbgError
    from tdbg.pages.selection.layer_globs import unknown_layer_error

    for side, name in ((found.a, "A"), (found.b, "B")):
        if not side.count:
            raise TdbgError(
                f"{_describe_side(side)}: there are no datapoints on side {name}",
                "`tdbg inspect-pages ls` shows what there is",
            )
    if not found.datapoints:
        keys = ", ".join(_describe_entry(entry) for entry in (found.alone_a[0], found.alone_b[0]))
        hint = "--pair-by order pairs them by order" if args.by == "key" else "were they captured in other phases?"
        raise TdbgError(f"no datapoint of A is in B too; their first are {keys}", hint)
    if not found.paths and not found.unreadable:
        known = [layer.path for layer in found.a.pages.layers()]
        if args.layer and not (found.only_a or found.only_b):
            raise unknown_layer_error(args.layer, known)
        raise TdbgError("no tensor of A is in B too", "`tdbg inspect-pages ls` shows what each of them has")


def _describe_side(side: "CaptureSide") -> str:
    where = [f"epoch {side.epoch}"] if side.epoch is not None else []
    where += [f"rank {side.rank}"] if side.rank is not None else []
    return ", ".join([str(side.pages.path), *where])


def _describe_entry(entry: "Entry") -> str:
    from tdbg.core.tables import format_short

    epoch = f"epoch {entry.place[0]}, " if entry.place[0] >= 0 else ""
    return f"{format_short(entry.datapoint.key)} ({epoch}rank {entry.datapoint.rank}, step {entry.datapoint.step})"


# as text


def _print_divergence(found: "Divergence", top: int) -> None:
    for line in _format_lines(found):
        print_lines([line])
    worst = found.list_worst(top)
    if worst:
        from tdbg.core.tables import print_table

        print()
        columns = ("path", "type", "differ", "first at", "error", "allowed", "worst at", "largest difference")
        print_table(columns, [_build_row(found, finding) for finding in worst])


def _format_lines(found: "Divergence") -> list[str]:
    from tdbg.core.tables import format_count, format_short

    lines = [f"A: {format_short(_describe_side(found.a), 1000)}", f"B: {format_short(_describe_side(found.b), 1000)}"]
    what = f"{format_count(found.datapoints, 'datapoint')}, {format_count(found.tensors, 'tensor')} compared"
    if found.first is None:
        lines.append(f"{what}: {'all equal within the tolerance' if not found.unreadable else 'none differs'}")
    else:
        lines.append(
            f"{what}: {found.differing_tensors:,} differ, in {format_count(found.differing_datapoints, 'datapoint')}"
        )
        lines += _format_first_difference(found.first)
    lines += _format_names("only in A", found.only_a) + _format_names("only in B", found.only_b)
    lines += _format_names("renamed", {f"{one} -> {other}": count for (one, other), count in found.renamed.items()})
    lines += _format_names(
        "other type", {f"{path} ({one} -> {other})": n for (path, one, other), n in found.dtypes.items()}
    )
    for name, alone in (("A", found.alone_a), ("B", found.alone_b)):
        if alone:
            shown = ", ".join(_describe_entry(entry) for entry in alone[:NAMED])
            lines.append(
                f"{format_count(len(alone), 'datapoint')} only in {name}: {shown}{' ...' if len(alone) > NAMED else ''}"
            )
    for text, count in list(found.unreadable.items())[:NAMED]:
        lines.append(f"cannot be compared: {format_count(count, 'tensor')}: {format_short(text, 400)}")
    return lines


def _format_first_difference(finding: "TensorDifference") -> list[str]:
    from tdbg.core.tables import format_count, format_short
    from tdbg.pages.read.tensor_values import format_value

    gap = finding.gap
    name = format_short(finding.path) + (
        f" (in B {format_short(finding.path_b)})" if finding.path != finding.path_b else ""
    )
    lines = [f"first difference: datapoint {_describe_entry(finding.a)}, {name}, {finding.form}"]
    if gap.where is not None:
        at = f" at {list(gap.where)}" if gap.where else ""
        a, b = (
            format_short(format_value(value) if isinstance(value, int | float | complex) else repr(value), 60)
            for value in (gap.a, gap.b)
        )
        lines.append(
            f"    error {gap.error:.3g} (allowed {gap.tolerance:.3g}){at}: {a} became {b}; "
            f"{gap.differing:,} of {format_count(gap.total, 'value')} differ"
        )
    if gap.reason:
        lines.append(f"    {gap.reason}")
    return lines


def _format_names(what: str, names: dict[str, int]) -> list[str]:
    """A line that names some of many."""
    from tdbg.core.tables import format_short, join_limited

    return [f"{what}: {join_limited([format_short(name) for name in names], NAMED)}"] if names else []


def _build_row(found: "Divergence", finding: "TensorDifference") -> list[object]:
    from tdbg.core.tables import format_short

    about, gap = found.paths[finding.path], finding.gap
    first = about.first.a if about.first else finding.a
    worst = format_short(finding.a.datapoint.key, 40) + (f" {list(gap.where)}" if gap.where else "")
    error = gap.reason or f"{gap.error:.3g}"
    share = f"{about.differing} of {about.compared}"
    return [
        format_short(finding.path),
        finding.form,
        share,
        format_short(first.datapoint.key, 40),
        error,
        f"{gap.tolerance:.3g}",
        worst,
        gap.apart,
    ]


# as JSON


def _as_json(found: "Divergence", top: int) -> dict[str, object]:
    return {
        "equal": not found.differs,
        "a": _describe_side(found.a),
        "b": _describe_side(found.b),
        "datapoints": found.datapoints,
        "tensors": found.tensors,
        "differing_datapoints": found.differing_datapoints,
        "differing_tensors": found.differing_tensors,
        "first": _build_difference_dict(found, found.first) if found.first else None,
        "worst": [_build_difference_dict(found, finding) for finding in found.list_worst(top)],
        "only_a": {"paths": found.only_a, "datapoints": [_build_entry_dict(entry) for entry in found.alone_a]},
        "only_b": {"paths": found.only_b, "datapoints": [_build_entry_dict(entry) for entry in found.alone_b]},
        "renamed": [{"a": one, "b": other, "datapoints": count} for (one, other), count in found.renamed.items()],
        "dtypes": [{"path": p, "a": one, "b": other, "datapoints": n} for (p, one, other), n in found.dtypes.items()],
        "unreadable": found.unreadable,
    }


def _build_entry_dict(entry: "Entry") -> dict[str, object]:
    point = entry.datapoint
    epoch = entry.place[0] if entry.place[0] >= 0 else None
    return {"key": point.key, "rank": point.rank, "epoch": epoch, "step": point.step, "phase": point.phase}


def _build_difference_dict(found: "Divergence", finding: "TensorDifference") -> dict[str, object]:
    about, gap = found.paths[finding.path], finding.gap
    return {
        "path": finding.path,
        "path_b": finding.path_b,
        "type": finding.form,
        "at": _build_entry_dict(finding.a),
        "at_b": _build_entry_dict(finding.b),
        "error": gap.error,
        "tolerance": gap.tolerance,
        "reason": gap.reason,
        "differing": gap.differing,
        "count": gap.total,
        "largest_difference": gap.apart,
        "index": list(gap.where) if gap.where is not None else None,
        "value_a": gap.a,
        "value_b": gap.b,
        "datapoints": {"compared": about.compared, "differing": about.differing},
    }


COMMAND = Command(diff_pages, DiffArgs, HELP, OPTIONS, ARGUMENT)
