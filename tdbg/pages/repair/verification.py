"""Verify captured pages: checksums, records, places of datapoints and headers. Nothing is written."""

import contextlib
import os
import time
import zlib
from collections import defaultdict
from collections.abc import Callable, Iterator
from pathlib import Path, PurePath

from tdbg.core.errors import TdbgError
from tdbg.pages.format.file_format import PAGE_NAME, page_name
from tdbg.pages.format.header import Stored
from tdbg.pages.format.layout import Layout, tensor_names
from tdbg.pages.read.datapoint import Datapoint
from tdbg.pages.read.page_set import PageSet
from tdbg.pages.read.page_sources import JournalSource, Problem, Problems, SealedSource

SILENT_S = 60.0  # a writer on another host that wrote nothing for so long is taken for dead

Spans = dict[tuple[PurePath, int, int], list[tuple[int, int, str]]]  # of a page: where its datapoints begin and end


def verify_pages(
    path: str | os.PathLike[str], progress: Callable[[int], object] = lambda nbytes: None
) -> list[Problem]:
    """All that is wrong with what is captured at and below ``path``; empty if all of it can be read.

    Looks at the checksums of journals, at every record, whether each datapoint lies within its page and shares no
    byte with another, whether the headers of sealed pages say what the records say, and at the checksums of data
    where there are any. progress: is told the bytes of each datapoint. Pages that were never sealed are no loss: such
    problems are not grave.
    Cost: reads journals and headers; data only where they have checksums. Raises TdbgError as `PageSet.open` does.
    """
    with PageSet.open(path) as found:
        spans: Spans = defaultdict(list)
        sealed = _read_sealed_pages(found)
        for datapoint in found:
            _check_datapoint(datapoint, found, sealed, spans)
            progress(datapoint.nbytes)
        _report_shared_bytes(spans, found.problems)
        for page in sealed.values():
            _report_stray_bytes(page, found.problems)
        for source, part, _ in unsealed_pages(found):
            state = (
                "is being filled"
                if is_writer_alive(source)
                else "was never sealed; `tdbg inspect-pages recover` seals it"
            )
            found.problems.report(part, state, grave=False)
        return list(found.problems)


def is_writer_alive(source: JournalSource | SealedSource) -> bool:
    """True if the writer of these files may still write them."""
    from tdbg.core.rundir import is_process_alive

    if isinstance(source, JournalSource) and source.ended is not None:
        return False
    opened = source.opened
    found = is_process_alive(opened.get("pid"), opened.get("host"), opened.get("start", ""))
    if found is not None:
        return found
    with contextlib.suppress(OSError):
        return time.time() - Path(source.path).stat().st_mtime < SILENT_S
    return False


def unsealed_pages(found: PageSet) -> list[tuple[JournalSource, PurePath, int]]:
    """The pages that were never sealed, and the journals that tell of them."""
    journals = [source for source in found.sources if isinstance(source, JournalSource)]
    named = [(s, page_name(s.rank, number, sealed=False), number) for s in journals for number in sorted(s.pages)]
    return [
        (source, source.folder.path / name, number) for source, name, number in named if source.folder.has_file(name)
    ]


def checksum_of(datapoint: Datapoint) -> int:
    found = 0
    for chunk in datapoint.chunks():
        found = zlib.crc32(chunk, found)
    return found


def _read_sealed_pages(found: PageSet) -> dict[tuple[PurePath, int, int], SealedSource]:
    """All sealed pages, their headers read; what cannot be read is told."""
    pages: dict[tuple[PurePath, int, int], SealedSource] = {}
    for folder in found.folders:
        for name in folder.list_names():
            page = PAGE_NAME.fullmatch(name)
            if page and page[3] == "safetensors":
                try:
                    pages[folder.path, int(page[1]), int(page[2])] = SealedSource(folder, name, found.problems)
                except (TdbgError, FileNotFoundError) as error:
                    found.problems.report(folder.path / name, str(error).removeprefix(f"{folder.path / name}: "))
    return pages


def _check_datapoint(
    datapoint: Datapoint,
    found: PageSet,
    sealed: dict[tuple[PurePath, int, int], SealedSource],
    spans: Spans,
) -> None:
    """One datapoint: its place, its checksum, and what the header of its page says of it."""
    file, layout = datapoint.file, datapoint.layout
    if file is None or layout is None or datapoint.page is None:
        return
    try:
        size = file.get_size()
    except TdbgError:
        return  # a missing page is told once, and not by each of its datapoints
    name, end = f"datapoint {datapoint.key!r} (number {datapoint.seq})", datapoint.base + datapoint.length
    if end > size:
        found.problems.report(file.path, f"{name} ends at byte {end:,}, but the page ends at {size:,}")
        return
    where = (file.path.parent, datapoint.rank, datapoint.page)
    spans[where].append((datapoint.base, end, name))
    if datapoint.crc is not None and checksum_of(datapoint) != datapoint.crc:
        found.problems.report(file.path, f"{name}: its bytes differ from those captured (checksum)")
    if where in sealed and sealed[where].ours:
        for text in _header_differences(datapoint, layout, sealed[where]):
            found.problems.report(file.path, f"{name}: {text}")


def _header_differences(datapoint: Datapoint, layout: Layout, page: SealedSource) -> Iterator[str]:
    """What the header of a page says otherwise than the record of a datapoint."""
    if datapoint.base < page.data:
        yield "it begins within the header"
    for path, piece in zip(tensor_names(layout.pieces), layout.pieces, strict=True):
        name = f"{datapoint.seq:08d}/{path}"
        begin = datapoint.base + piece.offset
        wanted = Stored(piece.dtype.stored, piece.dtype.stored_shape(piece.shape), begin, begin + piece.length)
        stored = page.tensors.get(name)
        page.met.add(name)
        if stored != wanted:
            yield f"the page's header has {'a different entry for' if stored else 'no entry for'} {piece.path!r}"


def _report_shared_bytes(spans: Spans, problems: Problems) -> None:
    for (folder, rank, page), found in spans.items():
        at, last = 0, ""
        for begin, end, name in sorted(found):
            if begin < at:
                problems.report(folder, f"page {page} of rank {rank}: {last} and {name} share bytes")
            at, last = max(at, end), name


def _report_stray_bytes(page: SealedSource, problems: Problems) -> None:
    ends = [page.data, *sorted(stored.end for stored in page.tensors.values())]
    begins = [*sorted(stored.begin for stored in page.tensors.values()), page.size]
    if ends != begins:
        problems.report(page.path, "some of its bytes are in no tensor: other readers may refuse it", grave=False)
    if not page.ours:
        return
    strays = [name for name in page.tensors if name not in page.met and not name.startswith("pad/")]
    if strays:
        problems.report(
            page.path, f"{len(strays)} of its tensors are in no record ({strays[0][:80]!r}, ...)", grave=False
        )
