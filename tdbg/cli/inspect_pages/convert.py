"""`tdbg inspect-pages convert`: pages of other tools as pages of tdbg."""

from contextlib import contextmanager
from typing import TYPE_CHECKING

from tdbg.core.command_spec import Args, Argument, Command, Option, Options

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from tdbg.pages.pickle_reader.conversion import Conversion

HELP = """Make pages of tdbg out of page_N.pkl files that other tools wrote with joblib or pickle.

    Nothing in such a file is run: it is read by a small machine that knows tensors, arrays and plain values, and refuses
    the rest by name. Order, epochs and repeated ids are kept; a damaged page gives what it still holds. Afterwards both
    sides are read and every value is compared. Exits with 1 if anything was refused, lost or is not the same.

    Examples:
        tdbg inspect-pages convert old_run/epoch_3/debugger -o converted
        tdbg inspect-pages convert old_run -o converted --page-size 500MB
    """
ARGUMENT = Argument(
    "PATH", "A page_N.pkl, a folder of them, or the folder above debugger or epoch_N/debugger; or its URL."
)
OPTIONS: Options = {
    "output": Option(("--output", "-o"), "DIR", "The folder to write; it must be new or empty."),
    "page_size": Option(("--page-size",), "SIZE", "Size of a page."),
    "json": Option(("--json",), "", "Print what was done as one JSON document."),
}
NAMED = 20


class ConvertArgs(Args):
    """What `convert` can be asked."""

    output: str = ""
    page_size: str = "100MB"
    json: bool = False


def convert_pages(args: ConvertArgs) -> int:
    """Convert; 1 if not all of it is in the new pages."""
    from pathlib import Path

    from tdbg.core.errors import TdbgError
    from tdbg.pages.pickle_reader.conversion import Conversion

    if len(args.paths) != 1:
        raise TdbgError("name one path to convert", "a page_N.pkl, or a folder of them")
    if not args.output:
        raise TdbgError("missing option: -o DIR", "name the folder to write: -o converted")
    page_bytes = _parse_size(args.page_size)
    with _open_local_pages(args.paths[0]) as source:
        found = Conversion(source, Path(args.output), page_bytes=page_bytes).convert_and_compare()
    _report_result(found)
    if args.json:
        _print_json(found)
    return 0 if found.is_whole else 1


@contextmanager
def _open_local_pages(place: str) -> "Iterator[Path]":
    """The pages on this machine's disk: those of a store are copied, as all of them are read, and twice."""
    from tdbg.core.urls import Url, parse_location

    found = parse_location(place)
    if not isinstance(found, Url):
        yield found
        return
    from tdbg.core.errors import TdbgError
    from tdbg.pages.read import remote_store

    paths = remote_store.legacy_pages(found)
    if not paths:
        raise TdbgError(f"{place}: no page_N.pkl there", "name a page, or a folder of them")
    with remote_store.download_files(found, paths) as folder:
        yield folder


def _parse_size(text: str) -> int:
    from tdbg.core.config import parse_bytes

    return parse_bytes(text)


def _report_result(found: "Conversion") -> None:
    from tdbg.core.output import print_messages
    from tdbg.core.tables import format_count, format_short, format_size

    what = f"{format_count(found.datapoints, 'datapoint')}, {format_count(found.tensors, 'tensor')}, {format_size(found.nbytes)}"
    print_messages(f"converted {what} to {format_short(found.target, 1000)}")
    if found.mismatches:
        print_messages("comparing both sides found differences:")
    else:
        print_messages("both sides were read again and compared: every value is the same")
    refused = [f"refused, {format_count(count, 'time')}: {name}" for name, count in found.refused.items()]
    for lines in (found.mismatches, found.problems, [f"lost: {text}" for text in found.lost], refused):
        for line in lines[:NAMED]:
            print_messages(format_short(line, 400))
        if len(lines) > NAMED:
            print_messages(f"and {len(lines) - NAMED} more")


def _print_json(found: "Conversion") -> None:
    from tdbg.core.output import print_json

    payload = {
        "target": str(found.target),
        "datapoints": found.datapoints,
        "tensors": found.tensors,
        "bytes": found.nbytes,
        "whole": found.is_whole,
        "mismatches": found.mismatches,
        "problems": found.problems,
        "lost": found.lost,
        "refused": found.refused,
    }
    print_json("pages-convert", payload)


COMMAND = Command(convert_pages, ConvertArgs, HELP, OPTIONS, ARGUMENT)
