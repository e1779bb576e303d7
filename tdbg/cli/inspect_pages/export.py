"""`tdbg inspect-pages export`: tensors as files of other programs."""

import os
from typing import TYPE_CHECKING, Any

from tdbg.core.command_spec import Argument, Command, Option, Options
from tdbg.pages.selection.tensor_selection import PICKING, Picking

if TYPE_CHECKING:
    from tdbg.pages.export.tensor_export import Export


def _list_formats() -> str:
    """The formats in words, by the files that hold them: help loads none of them."""
    folder = os.path.join(os.path.dirname(__file__), "..", "..", "pages", "export", "exporters")
    *names, last = sorted(name.removesuffix(".py") for name in os.listdir(folder) if name[0] not in "._")
    return f"{', '.join(names)} or {last}"


HELP = f"""Write tensors as {_list_formats()}.

    npz and safetensors are one file for all; npy, png and csv a folder with a file a tensor, or one file if -o ends in
    .npy, .png or .csv and one tensor is chosen. numpy has no bfloat16 and no float8: they become float32 in npz and npy,
    and stay what they are in safetensors. png draws two dimensions as a map, three as a grid of channels, and three
    channels as an image. csv takes one or two dimensions, and the figures (figures.csv). Nothing is overwritten.

    Examples:
        tdbg inspect-pages export npz -o captured.npz --layer 'layers.*.attn:output'
        tdbg inspect-pages export tdbg_runs/20261121-031500-train png -o pictures --keys 17,18
        tdbg inspect-pages export safetensors -o all.safetensors --steps 100:200
    """
ARGUMENT = Argument("PATH|TEXT", "A run, a folder of pages or a page (the newest run if left out), and the format.")
OPTIONS: Options = {
    "output": Option(("--output", "-o"), "FILE|DIR", "The file or folder to write."),
    **PICKING,
    "force": Option(("--force",), "", "Overwrite files that are there."),
    "json": Option(("--json",), "", "Print what was written as one JSON document."),
}
NAMED = 5


class ExportArgs(Picking):
    """What `export` can be asked."""

    output: str = ""
    force: bool = False
    json: bool = False


def export_tensors(args: ExportArgs) -> int:
    """Write the files; 1 if some tensors could not be written."""
    from pathlib import Path

    from tdbg.core.errors import TdbgError
    from tdbg.pages.export.tensor_export import Export
    from tdbg.pages.read.problem_messages import say_problems
    from tdbg.pages.selection.tensor_selection import TensorSelection

    if not args.output:
        raise TdbgError("missing option: -o FILE or DIR", "name the file or folder to write: -o captured.npz")
    paths, kind = _parse_format(args)
    picks = TensorSelection(paths, args)
    found = Export(picks, kind, Path(args.output), args.force).write_selection()
    say_problems(picks.pages)
    _report_result(found)
    if args.json:
        _print_json(found)
    return 1 if found.failed or not (found.written or found.figures) else 0


def _parse_format(args: ExportArgs) -> tuple[list[str], str]:
    """The paths among the words, and the format: a word of its own, or the end of the output's name."""
    from pathlib import Path

    from tdbg.core.errors import TdbgError
    from tdbg.core.tables import format_short
    from tdbg.pages.export.tensor_export import FORMATS

    words = list(args.paths)
    named = [word for word in words[-1:] if word in FORMATS] or [word for word in words[:1] if word in FORMATS]
    kind = named[0] if named else Path(args.output).suffix.removeprefix(".")
    if kind not in FORMATS:
        what = f"there is no format {format_short(words[-1], 40)}" if words[1:] else "a format is missing"
        raise TdbgError(what, f"write one of them: {', '.join(FORMATS)}")
    if named:
        words.remove(kind)
    return words, kind


def _report_result(found: "Export") -> None:
    from tdbg.core.output import print_messages
    from tdbg.core.tables import format_count, format_short, format_size

    total = format_size(sum(written.tensor.nbytes for written in found.written))
    figures = f" and {format_count(found.figures, 'figure')}" if found.figures else ""
    print_messages(
        f"wrote {format_count(len(found.written), 'tensor')} ({total}){figures} to {format_short(found.target, 1000)}"
    )
    if found.widened:
        print_messages(f"numpy has no {', '.join(found.widened)}: written as float32")
    for what, reasons in (("left out", found.skipped), ("failed", found.failed)):
        for reason, count in list(reasons.items())[:NAMED]:
            print_messages(f"{what}: {format_count(count, 'tensor')}: {format_short(reason, 400)}")
        if len(reasons) > NAMED:
            print_messages(f"{what}: {format_count(len(reasons) - NAMED, 'more reason')}")


def _print_json(found: "Export") -> None:
    from tdbg.core.output import print_json

    rows: list[dict[str, Any]] = []
    for file, name, datapoint, tensor, low, high in found.written:
        row: dict[str, Any] = {
            "file": file,
            "name": name,
            "key": datapoint.key,
            "rank": datapoint.rank,
            "path": tensor.path,
        }
        row |= {"step": datapoint.step, "epoch": datapoint.epoch, "dtype": tensor.dtype.name, "shape": tensor.shape}
        rows.append(row | ({} if low is None else {"low": low, "high": high}))
    payload = {"written": rows, "figures": found.figures, "left_out": found.skipped, "failed": found.failed}
    print_json("pages-export", payload)


COMMAND = Command(export_tensors, ExportArgs, HELP, OPTIONS, ARGUMENT)
