"""Several debuggers on one model, datapoint after datapoint, into pages."""

import contextlib
import logging
import os
import shutil
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import nn

from tdbg.core.capture import Epochs
from tdbg.core.errors import TdbgError
from tdbg.core.guard import undo_on_error
from tdbg.core.urls import Url, parse_location
from tdbg.debuggers.base import BaseDebugger, ForwardDebugger
from tdbg.debuggers.captured_outputs import CapturedOutputs
from tdbg.debuggers.hooks import Hooks
from tdbg.debuggers.ids import batch_ids
from tdbg.debuggers.pool import RING_BYTES, Pool
from tdbg.debuggers.recording_thread import Recording
from tdbg.pages.format.file_format import JOURNAL_NAME, MANIFEST, PAGE_NAME
from tdbg.pages.format.page_writer import PageWriter

LOG = logging.getLogger("tdbg")


def checkpoint_indices(method: str | int, epochs: int) -> list[int]:
    """The epochs, from 0, whose datapoints are kept: ``'all'``, ``'latest'``, or every Nth and the last.

    Raises TdbgError for another word, and for a number below 1.
    """
    return Epochs.parse(str(method), "checkpoint_method").select_indices(epochs)


class SequentialDebugger(BaseDebugger):
    """Runs debuggers in the order of their configuration and writes what they give to pages as it comes.

    debuggers_config: ``{'name': ..., 'debugger_config': {'class': C, 'args': {...}}}`` each (or ``{'class', 'args'}``
        with the class's name for a name). The class is a live one. A name that occurs twice is an AssertionError.
    model: whose layers forward debuggers hook, as long as ``enabled`` is true and no longer.
    page_size_mb: of a page, 1,000,000 bytes each; honoured to one datapoint.
    output_dir: where pages go as they are filled. Without one they wait in a folder beside the working directory
        (``.tdbg-pages-...``), which a killed process leaves behind, until `save_all` names their place.
    ring_bytes: of host memory that datapoints may wait in; whoever brings more waits for the disk.
    rank: this process's; that of torch.distributed unless it is given. Ranks may share a folder.

    What is brought is copied at once. An output that cannot be stored is named in ``dropped``, in one warning of the
    logger ``tdbg`` and by `tdbg inspect-pages ls`, and the others of the datapoint are kept. It is a debugger itself. The disk's errors are raised by the next call, `flush`, `save_all` or `reset_buffer`.
    """

    def __init__(
        self,
        debuggers_config: Sequence[Mapping[str, object]],
        model: nn.Module,
        page_size_mb: float = 100,
        *,
        output_dir: str | os.PathLike[str] | None = None,
        ring_bytes: int = RING_BYTES,
        run: str = "",
        rank: int | None = None,
    ) -> None:
        self.model = model
        self.page_size = int(page_size_mb * 1_000_000)
        self.output_dir: Path | Url | None = None  # where the last pages were saved
        self.debuggers: dict[str, BaseDebugger] = {}
        self.forward_debuggers: dict[str, list[ForwardDebugger]] = {}
        self.dropped: dict[str, int] = {}  # what could not be stored: "name/path: why" -> how often
        self._run = run
        self._rank, self._world_size = _place_among_ranks(rank)
        self._pool = Pool(ring_bytes)
        self._hooks: list[Hooks] = []
        self._on = False
        self._recording: Recording | None = None
        self._place = _on_disk(output_dir) if output_dir is not None else None
        self._spool: Path | None = None
        self._begun = False  # writing into ``output_dir``
        for config in debuggers_config:
            self._add_debugger(config)

    def _add_debugger(self, config: Mapping[str, Any]) -> None:
        made = config.get("debugger_config", config)
        cls, args = made["class"], made.get("args") or {}
        name = str(config.get("name") or cls.__name__)
        assert name not in self.debuggers, f"Duplicate debugger name: {name}"
        found = cls(**args)
        self.debuggers[name] = found
        if isinstance(found, ForwardDebugger):
            self.forward_debuggers.setdefault(found.layer_name, []).append(found)

    @property
    def enabled(self) -> bool:
        """True while hooks are in place and calls keep something."""
        return self._on

    @enabled.setter
    def enabled(self, on: bool) -> None:
        if on == self._on:
            return
        self._remove_hooks()
        self._on = False
        if on:
            with undo_on_error(self._remove_hooks):
                for debugger in self.debuggers.values():
                    self._hooks.append(debugger.attach(self.model))
            self._on = True

    def _remove_hooks(self) -> None:
        hooks, self._hooks = self._hooks, []
        for handle in hooks:
            handle.remove()

    def __call__(self, datapoint: Mapping[str, object], model: nn.Module | None = None) -> dict[str, Any]:
        """Run all debuggers on a datapoint that the model has worked on; {} while disabled.

        datapoint: ``inputs``, ``labels``, ``outputs`` and ``meta_info``, whose ``idx`` names it: an int, a text, a list
            or tensor of one, or of as many as the batch has samples.
        model: what the debuggers are given; left out, the model whose layers are hooked.
        Returns name -> what the debugger gave; None of a layer that did not run, of which the page says why
        (``not executed: ...``). An exception of a debugger is the caller's.
        """
        if not self._on:
            return {}
        watched = self.model if model is None else model
        found = {name: debugger(datapoint, watched) for name, debugger in self.debuggers.items()}
        kept = {name: self._resolve_output(name, value) for name, value in found.items() if not _is_empty(value)}
        if kept:
            self._submit_outputs(ids_of(datapoint), kept, self._switched_off())
        return found

    def _switched_off(self) -> list[str]:
        """The debuggers of which a hook has failed, as ``name: why``; each has said so itself."""
        forward = [(name, found) for name, found in self.debuggers.items() if isinstance(found, ForwardDebugger)]
        return [f"{name}: switched off: {found.switched_off}" for name, found in forward if found.switched_off]

    def attach(self, model: nn.Module) -> Hooks:
        """Enable it until ``remove()``; the layers are those of ``model`` from now on."""
        was_on, self.model = self._on and model is self.model, model
        hooks = Hooks()
        if not was_on:
            self.enabled = False
            self.enabled = True
            hooks.enter_context(_while_enabled(self))
        return hooks

    def _resolve_output(self, name: str, value: object) -> object:
        return self.debuggers[name].missing(self.model) if value is None else value

    def add_to_buffer(self, idx: object, outputs: Mapping[str, object]) -> None:
        """Have the outputs of one datapoint (or of a batch, if ``idx`` has several ids) written."""
        self._submit_outputs(idx if isinstance(idx, list) else [idx], outputs, [])

    def _submit_outputs(self, ids: list[Any], outputs: Mapping[str, object], switched_off: list[str]) -> None:
        points = CapturedOutputs(ids, outputs, self._pool)
        for why in points.refused:
            if why not in self.dropped:
                LOG.warning("tdbg: not stored: %s; the other outputs are kept", why)
        points.refused += switched_off
        for why in points.refused:
            self.dropped[why] = self.dropped.get(why, 0) + 1
        if self._recording is None:
            self._recording = self._start_recording()
        self._recording.submit_job(points)

    def _start_recording(self) -> Recording:
        """The thread that writes must not hold this object, which then would live as long as it does."""
        folder = self._place
        if folder is not None and not self._begun:
            _refuse_pages_of(self._rank, folder)
            self._begun = True
        if folder is None:
            folder = self._spool = self._spool or Path(tempfile.mkdtemp(prefix=".tdbg-pages-", dir="."))
        write = partial(
            PageWriter,
            folder,
            run=self._run,
            rank=self._rank,
            world_size=self._world_size,
            page_bytes=self.page_size,
        )
        return Recording(write, self._pool)

    def flush(self) -> None:
        """Wait until all that was brought is written. Raises what kept it from that."""
        recording = self._recording
        if recording is not None and (not recording.drain() or recording.error is not None):
            recording.close()

    def save_all(self, output_dir: str | os.PathLike[str] | None = None) -> None:
        """Write the rest, seal the last page, and have all pages in ``output_dir``, a folder or a URL (``s3://...``).

        Raises TdbgError if there is something already that is no page of another rank, or it cannot be reached; the
        pages stay where they are then.
        """
        self._end_recording()
        target = parse_location(output_dir) if output_dir is not None else self._place
        if target is None:
            raise TdbgError("save_all has no output folder", "pass one: save_all('results/debugger')")
        if isinstance(target, Url):
            _upload_pages(self._spool or self._place, target)
            self.reset_buffer()
        elif self._spool is not None:
            _move_pages(self._spool, target, self._rank)
            self._spool = None
        self.output_dir = target

    def reset_buffer(self) -> None:
        """Write the rest, and forget what was not saved: pages that wait for a place are removed."""
        self._end_recording()
        if self._spool is not None:
            shutil.rmtree(self._spool, ignore_errors=True)
            self._spool = None

    def _end_recording(self) -> None:
        recording, self._recording = self._recording, None
        if recording is not None:
            try:
                recording.close()
            finally:
                for why, count in recording.dropped.items():
                    self.dropped[why] = self.dropped.get(why, 0) + count

    def close(self) -> None:
        """Remove the hooks and write the rest; where no place was named the pages stay in their waiting folder."""
        self.enabled = False
        self._end_recording()

    def __enter__(self) -> "SequentialDebugger":
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()

    def __del__(self) -> None:
        recording = getattr(self, "_recording", None)
        if recording is not None:
            recording.abandon()


@contextlib.contextmanager
def _while_enabled(debugger: SequentialDebugger) -> Iterator[None]:
    try:
        yield
    finally:
        debugger.enabled = False


def _on_disk(output_dir: str | os.PathLike[str]) -> Path:
    found = parse_location(output_dir)
    if isinstance(found, Path):
        return found
    raise TdbgError(f"pages cannot be written directly to {found}", "omit output_dir; pass the URL to save_all")


def _upload_pages(source: Path | None, url: Url) -> None:
    if source is None or not source.exists():  # nothing was captured
        return
    from tdbg.pages.page_upload import Upload

    upload = Upload(source, str(url))
    if upload.store.list_files():
        raise TdbgError(f"{url} is not empty", f"name a new place; the pages are in {source} until then")
    upload.upload_new_files(last=True)


def _place_among_ranks(rank: int | None) -> tuple[int, int]:
    """(rank, how many there are)."""
    distributed = torch.distributed
    there = distributed.is_available() and distributed.is_initialized()
    if rank is None:
        rank = distributed.get_rank() if there else 0
    return rank, max(distributed.get_world_size() if there else 1, rank + 1)


def _refuse_pages_of(rank: int, folder: Path) -> None:
    """TdbgError if an earlier run left pages of this rank in the folder."""
    if any(folder.glob(f"r{rank:04d}-*")):
        raise TdbgError(f"{folder} holds pages of an earlier run", "name a new folder, or remove them")


def _move_pages(spool: Path, target: Path, rank: int) -> None:
    """Bring pages to their place, where other ranks may have brought theirs. Raises TdbgError."""
    target.mkdir(parents=True, exist_ok=True)
    for path in target.iterdir():
        own = path.name.startswith(f"r{rank:04d}-")
        if own or not (path.name == MANIFEST or JOURNAL_NAME.fullmatch(path.name) or PAGE_NAME.fullmatch(path.name)):
            raise TdbgError(f"{target} is not empty", f"name a new folder; the pages are in {spool} until then")
    for path in sorted(spool.iterdir()):  # the manifest comes first
        if path.name != MANIFEST or not (target / MANIFEST).exists():
            shutil.move(path, target / path.name)
    shutil.rmtree(spool)


def _is_empty(value: object) -> bool:
    return isinstance(value, Mapping) and not value


def ids_of(datapoint: Mapping[str, object]) -> list[Any]:
    """The ids in ``meta_info['idx']``; TdbgError where there are none."""
    found = batch_ids(datapoint)
    if not found:
        raise TdbgError("the datapoint has no meta_info['idx']", "set it: an int, a string, or a list, one per sample")
    return found
