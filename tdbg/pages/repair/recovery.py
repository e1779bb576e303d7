"""Recover captured pages: seal what a killed writer left, rebuild journals and manifests. No only copy is overwritten."""

import contextlib
import os
import stat
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import NamedTuple

from tdbg.core import run_files
from tdbg.core.errors import TdbgError
from tdbg.core.rundir import RunDir
from tdbg.core.tables import format_count
from tdbg.core.urls import Url, parse_location
from tdbg.pages.format import disk, header, manifest
from tdbg.pages.format.file_format import MANIFEST, journal_name
from tdbg.pages.format.header import Entries, Placed
from tdbg.pages.format.journal import encode_frame, frame_body
from tdbg.pages.format.open_page import finish_page
from tdbg.pages.read.page_folder import Folder
from tdbg.pages.read.page_set import PageSet
from tdbg.pages.read.page_sources import JournalSource, Problem, Problems, SealedSource
from tdbg.pages.repair.verification import checksum_of, is_writer_alive, unsealed_pages


class Recovery(NamedTuple):
    """What `recover_pages` did, a sentence each, and what it could not mend."""

    done: list[str]
    problems: list[Problem]


def recover_pages(path: str | os.PathLike[str], *, force: bool = False) -> Recovery:
    """Seal the pages that a killed writer left, write a journal anew out of sealed pages, and a lost manifest.

    A second time there is nothing to do. The files of a writer that lives are left alone. force: do it even if it
    seems to live (on another host nobody can be sure). Raises TdbgError as `PageSet.open` does, or where the folder
    cannot be written.
    """
    if isinstance(parse_location(path), Url):
        raise TdbgError(f"{path} is not on a local disk", "recover the local copy, and upload it again")
    done: list[str] = []
    run = run_files.protect_run_of(path)
    if run:
        RunDir(Path(run)).check_ownership()
    with PageSet.open(path) as found:
        try:
            for folder in found.folders:
                done += _write_manifest(folder, found)
            for source, part, number in unsealed_pages(found):
                done += _seal_page(source, Path(part), number, found.problems, force=force)
            for journal, pages in _unrecorded_pages(found):
                done += _write_journal(journal, pages, found, force=force)
        except OSError as error:
            raise TdbgError(
                f"{error.filename or path}: {error.strerror or error}", "copy the folder to where it can be written"
            ) from None
    with PageSet.open(path) as now:
        return Recovery(
            done, [*now.problems, *(p for p in found.problems if p not in now.problems and _is_unresolved(p))]
        )


def _is_unresolved(problem: Problem) -> bool:
    """True for what recovering did not end."""
    return Path(problem.path).exists() and problem.path.name != MANIFEST


def _seal_page(source: JournalSource, part: Path, number: int, problems: Problems, *, force: bool) -> list[str]:
    """Make a page of a ``.part``. Its bytes stay as they are; the header goes where room was left for it."""
    if is_writer_alive(source) and not force:
        problems.report(part, f"is being filled by process {source.opened.get('pid')}: left alone", grave=False)
        return []
    if part.with_suffix(".safetensors").exists():
        problems.report(part, "exists beside a sealed page with the same number: remove one of them")
        return []
    fd = run_files.open_file(part, os.O_RDWR | os.O_NONBLOCK | os.O_NOFOLLOW)
    try:
        found = os.fstat(fd)
        data = source.pages[number]
        placed = (
            list(_complete_datapoints(source, number, data, found.st_size, problems))
            if stat.S_ISREG(found.st_mode)
            else []
        )
        if not placed:
            problems.report(part, "holds no datapoint that can be read: left alone", grave=False)
            return []
        about = {"writer": source.writer, "opened": source.opened}
        entries = {one.layout.id: Entries(one.layout) for one in placed}
        start = header.build_header(placed, entries, about, data, found.st_size)
        finish_page(fd, part, start, found.st_size, durable=True)
    except ValueError as error:
        problems.report(part, f"cannot be sealed: {error}")
        return []
    finally:
        os.close(fd)
    return [f"sealed {part.with_suffix('.safetensors')}: {format_count(len(placed), 'datapoint')}"]


def _complete_datapoints(
    source: JournalSource, number: int, data: int, size: int, problems: Problems
) -> Iterator[Placed]:
    """The datapoints of a page that lie in it whole, and in no other's bytes."""
    at = data
    for datapoint, body in source.with_bodies():
        if datapoint.page != number or datapoint.layout is None:
            continue
        if datapoint.base < at or datapoint.base + datapoint.length > size:
            problems.report(source.path, f"datapoint {datapoint.key!r} does not lie within page {number}: left out")
        elif datapoint.crc is not None and checksum_of(datapoint) != datapoint.crc:
            problems.report(source.path, f"datapoint {datapoint.key!r} does not match its checksum: left out")
        else:
            at = datapoint.base + datapoint.length
            yield Placed(datapoint.seq, datapoint.base, datapoint.layout, body)


def _unrecorded_pages(found: PageSet) -> Iterable[tuple[tuple[Path, int, str], list[SealedSource]]]:
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
    if is_writer_alive(pages[0]) and not force:
        found.problems.report(pages[0].path, "its writer still runs: its journal is left alone", grave=False)
        return []
    pages.sort(key=lambda page: page.number)
    ready = folder / f".recovering.{os.getpid()}"
    try:
        with run_files.open_new(ready) as file:
            count = sum(_write_records(pages, file.write))
        path = _publish_journal(ready, folder, rank, name)
    finally:
        ready.unlink(missing_ok=True)
    return [f"wrote {path}: {format_count(count, 'datapoint')} of {format_count(len(pages), 'sealed page')}"]


def _write_records(pages: list[SealedSource], write: Callable[[bytes], object]) -> Iterator[int]:
    """Write the records of these pages; the number of datapoints of each."""
    write(encode_frame({"t": "open", **{key: value for key, value in pages[0].opened.items() if key != "t"}}))
    known: set[int] = set()
    for page in pages:
        write(encode_frame({"t": "page", "page": page.number, "data": page.first}))
        count = 0
        for datapoint, body in page.with_bodies():
            if datapoint.layout is not None and datapoint.layout.id not in known:
                known.add(datapoint.layout.id)
                write(frame_body(datapoint.layout.journal_body))
            write(frame_body(body))
            count += 1
        write(encode_frame({"t": "seal", "page": page.number, "size": page.size}))
        yield count
    write(encode_frame({"t": "end", "recovered": True}))


def _publish_journal(ready: Path, folder: Path, rank: int, writer: str) -> Path:
    """Under the writer's own name, or one beside it."""
    stem = writer.removeprefix(f"r{rank:04d}-")
    stem = stem if stem.isascii() and stem.replace("-", "").isalnum() else "lost"
    for name in (stem, *(f"{stem}-recovered{number or ''}" for number in range(1000))):
        path = folder / journal_name(rank, name)
        with contextlib.suppress(FileExistsError):
            disk.publish_file(ready, path)
            return path
    raise TdbgError(f"{folder} has too many recovered journals", "remove those that are not needed")


def _write_manifest(folder: Folder, found: PageSet) -> list[str]:
    """Write the manifest that is lost, if all that lies there is of one run."""
    opened = [source.opened for source in found.sources if source.folder is folder and source.opened]
    if not opened or MANIFEST in folder.list_names():
        return []
    if len({str(one.get("run", "")) for one in opened}) > 1:
        found.problems.report(folder.path, f"holds the pages of several runs, and no {MANIFEST}")
        return []
    known = {name: opened[0].get(name) for name in ("run", "rank", "world_size", "producer")}
    manifest.publish_manifest(Path(folder.path), {**known, "run": str(opened[0].get("run", ""))})
    return [f"wrote {folder.path / MANIFEST}"]
