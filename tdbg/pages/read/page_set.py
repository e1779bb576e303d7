"""Reads captured tensors: a run, a rank's folder, a folder of pages, one page. Never torch, and nothing is executed.

Every file is taken for hostile: what is not as it should be is told in ``problems``, or raised as a TdbgError.
"""

import os
from collections.abc import Iterator
from pathlib import Path

from tdbg.core.errors import TdbgError
from tdbg.core.run_files import PIECES_MARKER
from tdbg.core.urls import Url, parse_location
from tdbg.pages.format import manifest
from tdbg.pages.format.file_format import JOURNAL_NAME, MANIFEST, PAGE_NAME
from tdbg.pages.read.datapoint import Datapoint, Tensor
from tdbg.pages.read.listing import Layer, Listing
from tdbg.pages.read.page_folder import DEPTH, Folder, open_page_folders
from tdbg.pages.read.page_sources import Drop, JournalSource, Problem, Problems, SealedSource, Source, encode_needles

__all__ = ["Datapoint", "Drop", "NoPagesError", "PageSet", "Problem", "Tensor"]


class NoPagesError(TdbgError):
    """There are no pages of tdbg's own at this place."""


class PageSet:
    """Datapoints of one or many ranks, in the order (rank, number).

    problems: what is wrong, as far as it was met: of single records it is known once they were read.
    Cost: `open` reads the journals; a page is opened when a tensor of it is read.
    """

    def __init__(self, path: Path | Url) -> None:
        self.path = path
        self.problems = Problems()
        self.sources: list[Source] = []
        self.folders: list[Folder] = []
        self._only: tuple[int, int] | None = None  # the rank and number of the one page that was asked for

    @classmethod
    def open(cls, path: str | os.PathLike[str]) -> "PageSet":
        """What is captured at and below ``path``, a folder or one file: a page, a journal, a plain safetensors file.

        path: on this machine, or a URL such as ``s3://bucket/run``, of which only what is asked for is fetched.
        Raises NoPagesError where there is none, TdbgError for what cannot be read and for a version it does not know.
        """
        found = cls(parse_location(path))
        try:
            folders, file = _open_folders(found.path)
        except FileNotFoundError:
            raise NoPagesError(f"there is no {path}", "name a run, a folder of pages or a page") from None
        if file:
            found._add_file(folders[0], file)
        else:
            for folder in folders:
                found._add_folder(folder)
        if not found.folders:
            raise NoPagesError(f"{path} holds no pages", "capture some with `tdbg run --capture`")
        found.sources.sort(key=lambda source: source.order)
        return found

    def __iter__(self) -> Iterator[Datapoint]:
        for source in self.sources:
            yield from filter(self._is_wanted, source)

    def rows(self) -> Iterator[Datapoint]:
        """The same, and each row of a batch that is stored once as a datapoint of its own."""
        for datapoint in self:
            yield from datapoint.rows()

    def find(self, key: str | int) -> list[Datapoint]:
        """Those of this key, whether it is a number or its text; of a batch that has it the row. In order; none is an empty list."""
        text, texts = str(key), encode_needles(key)
        found: list[Datapoint] = []
        for source in self.sources:
            for datapoint in filter(self._is_wanted, source.iter_containing(texts)):
                rows = [index for index, one in enumerate(datapoint.keys or ()) if str(one) == text]
                found += map(datapoint.of_row, rows)
                if not rows and str(datapoint.key) == text:  # else the batch is named by its first sample
                    found.append(datapoint)
        return found

    def layers(self) -> list[Layer]:
        """What was captured, path by path, in the order of first appearance. Cost: reads every record."""
        found = Listing()
        for datapoint in self:
            found.add_datapoint(datapoint)
        return found.list_layers()

    @property
    def drops(self) -> list[Drop]:
        """What the writers left out, and why."""
        return [drop for source in self.sources if isinstance(source, JournalSource) for drop in source.drops]

    def _is_wanted(self, datapoint: Datapoint) -> bool:
        return self._only is None or self._only == (datapoint.rank, datapoint.page)

    def close(self) -> None:
        """Close the files; reading opens them again."""
        for folder in self.folders:
            folder.close()

    def __enter__(self) -> "PageSet":
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()

    def _add_folder(self, folder: Folder) -> None:
        self.folders.append(folder)
        names = folder.list_names()
        if MANIFEST in names:
            self._check_manifest(folder)
        else:
            self.problems.report(folder.path, f"has no {MANIFEST}", grave=False)
        found_ones = (self._open_journal(folder, name) for name in names if JOURNAL_NAME.fullmatch(name))
        journals = [found for found in found_ones if found]
        self.sources += journals
        known = {source.writer: source for source in journals}
        sealed = {(source.rank, page): size for source in journals for page, size in source.sealed.items()}
        names = folder.list_names()  # again: what the journals tell of is there by now
        for name in names:
            page = PAGE_NAME.fullmatch(name)
            if page and page[3] == "safetensors":
                self._add_sealed(folder, name, sealed.get((int(page[1]), int(page[2]))), known)
        self._report_missing(folder, names, journals)

    def _check_manifest(self, folder: Folder) -> None:
        try:
            text = folder.read_range(MANIFEST, 0, manifest.LARGEST_BYTES)
        except (FileNotFoundError, TdbgError) as error:
            self.problems.report(folder.path / MANIFEST, str(error))
            return
        try:
            manifest.parse_manifest(text, folder.path / MANIFEST)
        except manifest.VersionError:
            raise
        except TdbgError as error:
            self.problems.report(folder.path / MANIFEST, str(error))

    def _open_journal(self, folder: Folder, name: str) -> JournalSource | None:
        try:
            return JournalSource(folder, name, self.problems)
        except manifest.VersionError:
            raise
        except TdbgError as error:
            self.problems.report(folder.path / name, str(error))
            return None

    def _add_sealed(self, folder: Folder, name: str, size: int | None, known: dict[str, JournalSource]) -> None:
        """A sealed page: its header is read only where no journal tells that all of it is known."""
        try:
            if size is not None:
                there = folder.get_size(name)
                if there != size:
                    self.problems.report(folder.path / name, f"has {there:,} bytes, but had {size:,} when sealed")
                return
            found = SealedSource(folder, name, self.problems)
        except manifest.VersionError:
            raise
        except (TdbgError, FileNotFoundError) as error:
            self.problems.report(folder.path / name, str(error))
            return
        if found.ours:
            journal = known.get(found.writer)
            found.after = journal.last_seq() if journal else -1
        self.sources.append(found)

    def _report_missing(self, folder: Folder, names: list[str], journals: list[JournalSource]) -> None:
        """Pages that a journal tells of and that are not there, and pages that no journal tells of."""
        for source in journals:
            for number in sorted(source.pages):
                try:
                    source.get_page_file(number).get_size()
                except TdbgError:
                    self.problems.report(
                        folder.path, f"page {number} of rank {source.rank} is missing, or cannot be read"
                    )
        known = {(source.rank, number) for source in journals for number in source.pages}
        whole = {source.rank for source in journals if not source.broken}
        for name in names:
            page = PAGE_NAME.fullmatch(name)
            if page and page[3] == "part" and (int(page[1]), int(page[2])) not in known:
                lost = int(page[1]) not in whole  # else the writer had not yet acknowledged anything in it
                text = "is in no journal, so its content is unknown" if lost else "holds no recorded datapoint"
                self.problems.report(folder.path / name, text, grave=lost)

    def _add_file(self, folder: Folder, name: str) -> None:
        """One journal, one page, or any safetensors file."""
        found = PAGE_NAME.fullmatch(name)
        if JOURNAL_NAME.fullmatch(name):
            self.folders.append(folder)
            self.sources.append(JournalSource(folder, name, self.problems))
        elif found and found[3] == "part":
            self._add_folder(folder)
            self._only = int(found[1]), int(found[2])
        elif name.endswith(".safetensors"):
            self.folders.append(folder)
            self.sources.append(SealedSource(folder, name, self.problems))
        else:
            raise NoPagesError(
                f"{folder.path / name} is not a page", "name a run, a folder of pages or a .safetensors file"
            )


def _open_folders(path: Path | Url) -> tuple[list[Folder], str]:
    if isinstance(path, Path) and not _is_in_pieces(path):
        return open_page_folders(path)
    from tdbg.pages.read import remote_store

    return remote_store.open_remote_folders(Url(f"file://{path.absolute()}") if isinstance(path, Path) else path)


def _is_in_pieces(path: Path) -> bool:
    """True for a place in a copy of a run that `tdbg run --run-dir URL` wrote to a local folder, or that was fetched."""
    return any((folder / PIECES_MARKER).is_file() for folder in (path, *path.absolute().parents[:DEPTH]))
