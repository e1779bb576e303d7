"""Is what was captured whole, and what can be made whole again? Nothing is ever overwritten that is the only copy."""

import contextlib
import os
import stat
import time
import zlib
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path, PurePath
from typing import NamedTuple

from tdbg.core import run_files
from tdbg.core.errors import TdbgError
from tdbg.core.rundir import RunDir
from tdbg.core.urls import Url, located
from tdbg.pages.format import disk, header, manifest
from tdbg.pages.format.file_format import MANIFEST, PAGE_NAME, journal_name, page_name
from tdbg.pages.format.header import Entries, Placed, Stored
from tdbg.pages.format.journal import frame, pack
from tdbg.pages.format.layout import Layout, tensor_names
from tdbg.pages.format.open_page import finish
from tdbg.pages.read.datapoint import Datapoint
from tdbg.pages.read.page_folder import Folder
from tdbg.pages.read.page_set import PageSet
from tdbg.pages.read.page_sources import JournalSource, Problem, Problems, SealedSource

SILENT_S = 60.0  # a writer on another host that wrote nothing for so long is taken for dead


class Recovery(NamedTuple):
    """What `recover` did, a sentence each, and what it could not mend."""

    done: list[str]
    problems: list[Problem]


def verify(path: str | os.PathLike[str], progress: Callable[[int], object] = lambda nbytes: None) -> list[Problem]:
    """All that is wrong with what is captured at and below ``path``; empty if all of it can be read.

    Looks at the checksums of journals, at every record, whether each datapoint lies within its page and shares no
    byte with another, whether the headers of sealed pages say what the records say, and at the checksums of data
    where there are any. progress: is told the bytes of each datapoint. Pages that were never sealed are no loss: such
    problems are not grave.
    Cost: reads journals and headers; data only where they have checksums. Raises TdbgError as `PageSet.open` does.
    """
    with PageSet.open(path) as found:
        spans: dict[tuple[PurePath, int, int], list[tuple[int, int, str]]] = defaultdict(list)
        sealed = _sealed(found)
        for datapoint in found:
            _check(datapoint, found, sealed, spans)
            progress(datapoint.nbytes)
        _tell_shared(spans, found.problems)
        for page in sealed.values():
            _tell_unnamed(page, found.problems)
        for source, part, _ in _parts(found):
            state = "is being filled" if alive(source) else "was never sealed; `tdbg inspect-pages recover` seals it"
            found.problems.tell(part, state, grave=False)
        return list(found.problems)


def recover(path: str | os.PathLike[str], *, force: bool = False) -> Recovery:
    """Seal the pages that a killed writer left, write a journal anew out of sealed pages, and a lost manifest.

    A second time there is nothing to do. The files of a writer that lives are left alone. force: do it even if it
    seems to live (on another host nobody can be sure). Raises TdbgError as `PageSet.open` does, or where the folder
    cannot be written.
    """
    if isinstance(located(path), Url):
        raise TdbgError(
            f"{path} is not on a disk of this machine", "recover what it was uploaded from, and upload it again"
        )
    done: list[str] = []
    run = run_files.protect_run_of(path)
    if run:
        RunDir(Path(run)).check_own()
    with PageSet.open(path) as found:
        try:
            for folder in found.folders:
                done += _mend_manifest(folder, found)
            for source, part, number in _parts(found):
                done += _seal(source, Path(part), number, found.problems, force=force)
            for journal, pages in _unrecorded(found):
                done += _write_journal(journal, pages, found, force=force)
        except OSError as error:
            raise TdbgError(
                f"{error.filename or path}: {error.strerror or error}", "copy the folder to where it can be written"
            ) from None
    with PageSet.open(path) as now:
        return Recovery(done, [*now.problems, *(p for p in found.problems if p not in now.problems and _lasts(p))])


def _lasts(problem: Problem) -> bool:
    """True for what recovering did not end."""
    return Path(problem.path).exists() and problem.path.name != MANIFEST


def alive(source: JournalSource | SealedSource) -> bool:
    """True if the writer of these files may still write them."""
    from tdbg.core.rundir import lives

    if isinstance(source, JournalSource) and source.ended is not None:
        return False
    opened = source.opened
    found = lives(opened.get("pid"), opened.get("host"), opened.get("start", ""))
    if found is not None:
        return found
    with contextlib.suppress(OSError):
        return time.time() - Path(source.path).stat().st_mtime < SILENT_S
    return False


def _sealed(found: PageSet) -> dict[tuple[PurePath, int, int], SealedSource]:
    """All sealed pages, their headers read; what cannot be read is told."""
    pages: dict[tuple[PurePath, int, int], SealedSource] = {}
    for folder in found.folders:
        for name in folder.names():
            page = PAGE_NAME.fullmatch(name)
            if page and page[3] == "safetensors":
                try:
                    pages[folder.path, int(page[1]), int(page[2])] = SealedSource(folder, name, found.problems)
                except (TdbgError, FileNotFoundError) as error:
                    found.problems.tell(folder.path / name, str(error).removeprefix(f"{folder.path / name}: "))
    return pages


def _check(
    datapoint: Datapoint,
    found: PageSet,
    sealed: dict[tuple[PurePath, int, int], SealedSource],
    spans: dict[tuple[PurePath, int, int], list[tuple[int, int, str]]],
) -> None:
    """One datapoint: its place, its checksum, and what the header of its page says of it."""
    file, layout = datapoint.file, datapoint.layout
    if file is None or layout is None or datapoint.page is None:
        return
    try:
        size = file.size()
    except TdbgError:
        return  # a missing page is told once, and not by each of its datapoints
    name, end = f"datapoint {datapoint.key!r} (number {datapoint.seq})", datapoint.base + datapoint.length
    if end > size:
        found.problems.tell(file.path, f"{name} ends at byte {end:,}, and the page at {size:,}")
        return
    where = (file.path.parent, datapoint.rank, datapoint.page)
    spans[where].append((datapoint.base, end, name))
    if datapoint.crc is not None and _crc(datapoint) != datapoint.crc:
        found.problems.tell(file.path, f"{name}: its bytes are not those that were captured (checksum)")
    if where in sealed and sealed[where].ours:
        for text in _differences(datapoint, layout, sealed[where]):
            found.problems.tell(file.path, f"{name}: {text}")


def _crc(datapoint: Datapoint) -> int:
    found = 0
    for chunk in datapoint.chunks():
        found = zlib.crc32(chunk, found)
    return found


def _differences(datapoint: Datapoint, layout: Layout, page: SealedSource) -> Iterator[str]:
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
            yield f"the page's header has {'other figures for' if stored else 'no'} {piece.path!r}"


def _tell_shared(spans: dict[tuple[PurePath, int, int], list[tuple[int, int, str]]], problems: Problems) -> None:
    for (folder, rank, page), found in spans.items():
        at, last = 0, ""
        for begin, end, name in sorted(found):
            if begin < at:
                problems.tell(folder, f"page {page} of rank {rank}: {last} and {name} share bytes")
            at, last = max(at, end), name


def _tell_unnamed(page: SealedSource, problems: Problems) -> None:
    ends = [page.data, *sorted(stored.end for stored in page.tensors.values())]
    begins = [*sorted(stored.begin for stored in page.tensors.values()), page.size]
    if ends != begins:
        problems.tell(page.path, "some of its bytes are in no tensor: other readers may refuse it", grave=False)
    if not page.ours:
        return
    strays = [name for name in page.tensors if name not in page.met and not name.startswith("pad/")]
    if strays:
        problems.tell(
            page.path, f"{len(strays)} of its tensors are in no record ({strays[0][:80]!r}, ...)", grave=False
        )


def _parts(found: PageSet) -> list[tuple[JournalSource, PurePath, int]]:
    """The pages that were never sealed, and the journals that tell of them."""
    journals = [source for source in found.sources if isinstance(source, JournalSource)]
    named = [(s, page_name(s.rank, number, sealed=False), number) for s in journals for number in sorted(s.pages)]
    return [(source, source.folder.path / name, number) for source, name, number in named if source.folder.has(name)]


def _seal(source: JournalSource, part: Path, number: int, problems: Problems, *, force: bool) -> list[str]:
    """Make a page of a ``.part``. Its bytes stay as they are; the header goes where room was left for it."""
    if alive(source) and not force:
        problems.tell(part, f"is being filled by process {source.opened.get('pid')}: left alone", grave=False)
        return []
    if part.with_suffix(".safetensors").exists():
        problems.tell(part, "has a sealed page of its number beside it: remove one of them")
        return []
    fd = run_files.open_file(part, os.O_RDWR | os.O_NONBLOCK | os.O_NOFOLLOW)
    try:
        found = os.fstat(fd)
        data = source.pages[number]
        placed = list(_placed(source, number, data, found.st_size, problems)) if stat.S_ISREG(found.st_mode) else []
        if not placed:
            problems.tell(part, "holds no datapoint that can be read: left alone", grave=False)
            return []
        about = {"writer": source.writer, "opened": source.opened}
        entries = {one.layout.id: Entries(one.layout) for one in placed}
        start = header.build(placed, entries, about, data, found.st_size)
        finish(fd, part, start, found.st_size, durable=True)
    except ValueError as error:
        problems.tell(part, f"cannot be sealed: {error}")
        return []
    finally:
        os.close(fd)
    return [f"sealed {part.with_suffix('.safetensors')}: {len(placed)} datapoints"]


def _placed(source: JournalSource, number: int, data: int, size: int, problems: Problems) -> Iterator[Placed]:
    """The datapoints of a page that lie in it whole, and in no other's bytes."""
    at = data
    for datapoint, body in source.with_bodies():
        if datapoint.page != number or datapoint.layout is None:
            continue
        if datapoint.base < at or datapoint.base + datapoint.length > size:
            problems.tell(source.path, f"datapoint {datapoint.key!r} does not lie within page {number}: left out")
        elif datapoint.crc is not None and _crc(datapoint) != datapoint.crc:
            problems.tell(source.path, f"datapoint {datapoint.key!r} has other bytes than were captured: left out")
        else:
            at = datapoint.base + datapoint.length
            yield Placed(datapoint.seq, datapoint.base, datapoint.layout, body)


def _unrecorded(found: PageSet) -> Iterable[tuple[tuple[Path, int, str], list[SealedSource]]]:
    """The sealed pages with datapoints that no journal has, by folder, rank and writer."""
    groups: dict[tuple[Path, int, str], list[SealedSource]] = defaultdict(list)
    for source in found.sources:
        if isinstance(source, SealedSource) and source.ours and source.number >= 0 and any(True for _ in source):
            groups[Path(source.folder.path), source.rank, source.writer].append(source)
    return groups.items()


def _write_journal(
    writer: tuple[Path, int, str], pages: list[SealedSource], found: PageSet, *, force: bool
) -> list[str]:
    """A journal of the datapoints that stand in the headers of sealed pages alone."""
    folder, rank, name = writer
    if alive(pages[0]) and not force:
        found.problems.tell(pages[0].path, "its writer still lives: its journal is left alone", grave=False)
        return []
    pages.sort(key=lambda page: page.number)
    ready = folder / f".recovering.{os.getpid()}"
    try:
        with run_files.open_new(ready) as file:
            count = sum(_frames(pages, file.write))
        path = _publish(ready, folder, rank, name)
    finally:
        ready.unlink(missing_ok=True)
    return [f"wrote {path}: {count} datapoints of {len(pages)} sealed pages"]


def _frames(pages: list[SealedSource], write: Callable[[bytes], object]) -> Iterator[int]:
    """Write the records of these pages; the number of datapoints of each."""
    write(pack({"t": "open", **{key: value for key, value in pages[0].opened.items() if key != "t"}}))
    known: set[int] = set()
    for page in pages:
        write(pack({"t": "page", "page": page.number, "data": page.first}))
        count = 0
        for datapoint, body in page.with_bodies():
            if datapoint.layout is not None and datapoint.layout.id not in known:
                known.add(datapoint.layout.id)
                write(frame(datapoint.layout.body))
            write(frame(body))
            count += 1
        write(pack({"t": "seal", "page": page.number, "size": page.size}))
        yield count
    write(pack({"t": "end", "recovered": True}))


def _publish(ready: Path, folder: Path, rank: int, writer: str) -> Path:
    """Under the writer's own name, or one beside it."""
    stem = writer.removeprefix(f"r{rank:04d}-")
    stem = stem if stem.isascii() and stem.replace("-", "").isalnum() else "lost"
    for name in (stem, *(f"{stem}-recovered{number or ''}" for number in range(1000))):
        path = folder / journal_name(rank, name)
        with contextlib.suppress(FileExistsError):
            disk.publish(ready, path)
            return path
    raise TdbgError(f"{folder} has too many recovered journals", "remove those that are not needed")


def _mend_manifest(folder: Folder, found: PageSet) -> list[str]:
    """Write the manifest that is lost, if all that lies there is of one run."""
    opened = [source.opened for source in found.sources if source.folder is folder and source.opened]
    if not opened or MANIFEST in folder.names():
        return []
    if len({str(one.get("run", "")) for one in opened}) > 1:
        found.problems.tell(folder.path, f"holds the pages of several runs, and no {MANIFEST}")
        return []
    known = {name: opened[0].get(name) for name in ("run", "rank", "world_size", "producer")}
    manifest.publish(Path(folder.path), {**known, "run": str(opened[0].get("run", ""))})
    return [f"wrote {folder.path / MANIFEST}"]
