"""Datapoints on their way to the disk: a thread writes what passes have copied, and whoever captures is told of trouble."""

import ctypes
import queue
import threading
import time
from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Callable, Container, Iterable, Iterator, Sequence
from typing import Any

import torch
from torch import Tensor

from tdbg.core.capture import NO_SAMPLE
from tdbg.core.errors import TdbgError
from tdbg.core.guard import guarded
from tdbg.debuggers.plain import to_raw_dtype
from tdbg.debuggers.pool import Pool
from tdbg.debuggers.sample_choice import SampleChooser
from tdbg.debuggers.structure import is_number_list
from tdbg.debuggers.tap import Copied, Form
from tdbg.pages.format.layout import UnstorableError
from tdbg.pages.format.page_writer import BudgetExceeded, Item, PageWriter
from tdbg.runtime.tensors import is_checkable, measure_tensors

DRAIN_S = 60.0
FIGURES = ("count", "nan", "inf", "mean", "std", "low", "high")


class Job(ABC):
    """Something to be written: what one pass copied, or what debuggers made of one datapoint."""

    @abstractmethod
    def write_pages(self, writer: PageWriter) -> int:
        """Write it, in the thread; returns the bytes of its tensors."""

    def release_memory(self) -> None:  # noqa: B027  (what holds no memory has none to give back)
        """Give its memory back, written or not."""


class SkippedError(Exception):
    """Nothing of this pass is to be written, as was asked for; the text is the reason."""


class Pass(Job):
    """What one pass copied. about: fields of `PageWriter.add`. stats: write statistics of the tensors instead of them.

    chooser: which samples are kept; None keeps all. samples: number of rows of the batch, 0 if unknown.
    """

    def __init__(
        self,
        copied: Copied,
        pool: Pool,
        key: str | int,
        about: dict[str, Any],
        *,
        stats: bool = False,
        chooser: SampleChooser | None = None,
        samples: int = 0,
    ) -> None:
        self.copied, self.pool, self.key, self.about, self.stats = copied, pool, key, about, stats
        self._chooser, self._samples = chooser, samples

    def write_pages(self, writer: PageWriter) -> int:
        copied = self.copied
        for event in copied.events:
            event.synchronize()
        rows = self._choose_rows()
        if rows is not None:
            return self._write_rows(writer, rows)
        if self.stats:
            about = {name: value for name, value in self.about.items() if name != "split"}
            writer.add(self.key, [], scalars={**copied.scalars, **figures_of(copied)}, **about)
        elif copied.is_complete and copied.plan is not None and copied.buffer is not None:
            writer.add_flat(
                self.key, copied.plan.layout, view_bytes(copied.buffer), scalars=copied.scalars, **self.about
            )
        else:
            items = [_build_item(form, data) for form, data in iter_parts(copied)]
            writer.add(self.key, items, scalars=copied.scalars, **self.about)
        return copied.data_bytes

    def _choose_rows(self) -> list[int] | None:
        """The rows of the chosen samples; None for all of them. SkippedError for none."""
        if self._chooser is None:
            return None
        rows = self._chooser.choose_rows(self._samples, self._list_tensors() if self._chooser.needs_labels else {})
        if rows == []:
            raise SkippedError(NO_SAMPLE)
        return rows

    def _list_tensors(self) -> dict[str, Tensor]:
        """What was copied, by path; labels may be a list of numbers."""
        found = {form.path: tensor for form, tensor in _iter_tensors(self.copied)}
        for path, value in self.copied.scalars.items():
            if isinstance(value, list) and is_number_list(value) and len(value) == self._samples:
                with guarded("a number may be too large for a tensor", program_code=True):
                    found[path] = torch.tensor(value)
        return found

    def _write_rows(self, writer: PageWriter, rows: list[int]) -> int:
        """Write the chosen samples; tensors that do not have one row per sample are written whole."""
        about, copied = dict(self.about), self.copied
        split = {form.path for form in copied.list_forms() if form.shape[:1] == (self._samples,) and not form.note}
        about["rows"] = rows
        if "keys" in about:
            about |= {
                "keys": _select_rows(about["keys"], rows),
                "split": [path for path in about["split"] if path in split],
            }
        of_padding = about.pop("padding", ())
        padded = [place for place, row in enumerate(rows) if row in of_padding]
        about.pop("flags", None)
        if padded:
            about |= {"flags": ["padding"], "padding": padded}
        scalars = {
            path: _select_rows(value, rows) if isinstance(value, list) and len(value) == self._samples else value
            for path, value in copied.scalars.items()
        }
        if self.stats:
            about.pop("split", None)
            writer.add(self.key, [], scalars={**scalars, **figures_of(copied, rows, split)}, **about)
            return 0
        items = [
            _build_row_item(form, data, rows) if form.path in split else _build_item(form, data)
            for form, data in iter_parts(copied)
        ]
        writer.add(self.key, items, scalars=scalars, **about)
        return sum(len(item.data) for item in items)

    def release_memory(self) -> None:
        for buffer in self.copied.list_buffers():
            self.pool.return_buffer(buffer)


class Recording:
    """Writes in a thread of its own; every datapoint is written, or counted as dropped with its reason.

    A failure of the disk or of the thread is raised by the next `submit_job` and by `close`; nothing waits for a thread that
    is gone. open: makes the writer, in the thread, when the first datapoint comes. pool: where jobs have their
    memory, so that nobody waits there for a thread that is gone.
    """

    def __init__(self, open: Callable[[], PageWriter], pool: Pool) -> None:
        self._open = open
        pool.set_alive_check(self._is_alive)
        self.written = self.bytes = 0
        self.dropped: Counter[str] = Counter()
        self.error: BaseException | None = None
        self._is_reported = False
        self._jobs: queue.SimpleQueue[Job | None] = queue.SimpleQueue()
        self._waiting = 0
        self._idle = threading.Condition()
        self._writer: PageWriter | None = None
        self._thread: threading.Thread | None = None

    @property
    def on_disk(self) -> int:
        """Bytes of its files."""
        return 0 if self._writer is None else self._writer.written_bytes

    def submit_job(self, job: Job) -> None:
        """Have it written; raises what kept earlier ones from it, once."""
        if self.error is not None:
            self.count_dropped(1, self._explain_drop())
            job.release_memory()
            self._raise_error()
            return
        with self._idle:
            self._start_writer()
            self._waiting += 1
        self._jobs.put(job)

    def _start_writer(self) -> None:
        """One, however many threads submit. The caller holds the lock."""
        if self._thread is None:
            writer = threading.Thread(target=self._run_writer, name="tdbg-capture", daemon=True)
            writer.start()
            self._thread = writer  # after start(): only a started thread can be joined

    def count_dropped(self, count: int, reason: str) -> None:
        """So many passes are not kept; told in the pages when there are any."""
        with self._idle:  # both threads count
            self.dropped[reason] += count

    def drain(self, seconds: float = DRAIN_S) -> bool:
        """Wait until all is written; False if it took too long or cannot be."""
        until = time.monotonic() + seconds
        with self._idle:
            while self._waiting and self._is_alive():
                if not self._idle.wait(min(0.2, max(until - time.monotonic(), 0.0))) and time.monotonic() > until:
                    return False
            return not self._waiting

    def close(self, seconds: float = DRAIN_S) -> None:
        """Write the rest, seal the last page, end the thread; raises what went wrong and was not told yet."""
        thread = self._thread
        if thread is not None:
            self._jobs.put(None)
            thread.join(seconds)
            if thread.is_alive():
                raise TdbgError(
                    f"captured data is still not written after {seconds:.0f} s", "`tdbg inspect-pages recover` saves it"
                )
            self._thread = None
        self._raise_error()

    def _explain_drop(self) -> str:
        return "over budget" if isinstance(self.error, BudgetExceeded) else "not written"

    def abandon(self) -> None:
        """Nobody will ask again: the thread writes the rest and ends by itself."""
        if self._thread is not None:
            self._jobs.put(None)

    def _is_alive(self) -> bool:
        return self._thread is not None and self._thread.is_alive()

    def _raise_error(self) -> None:
        if self.error is not None and not self._is_reported:
            self._is_reported = True
            raise self.error

    # in the thread

    def _run_writer(self) -> None:
        keeps_error = guarded("the next put raises it", self._keep_error, program_code=True)
        while (job := self._jobs.get()) is not None:
            try:
                with keeps_error:
                    self._process_job(job)
            finally:
                with self._idle:
                    self._waiting -= 1
                    self._idle.notify_all()
        if self._writer is not None:
            with keeps_error:
                self._close_writer(self._writer)

    def _keep_error(self, error: BaseException) -> None:
        self.error = self.error or error

    def _process_job(self, job: Job) -> None:
        try:
            if self.error is None:
                self._write_job(job)
            else:
                self.count_dropped(1, self._explain_drop())
        except (UnstorableError, SkippedError) as error:  # only this pass is not written
            self.count_dropped(1, str(error))
        except BaseException as error:  # guard: told by the next put
            self.error = error
            self.count_dropped(1, self._explain_drop())
        finally:
            job.release_memory()

    def _close_writer(self, writer: PageWriter) -> None:
        """Have what was left out in the pages, and close them; a full disk may not even take the former."""
        try:
            for reason, count in self.dropped.items():
                writer.record_drop(count, reason)
        finally:
            writer.close()

    def _write_job(self, job: Job) -> None:
        if self._writer is None:
            self._writer = self._open()
        self.bytes += job.write_pages(self._writer)
        self.written += 1


def view_bytes(tensor: Tensor) -> memoryview:
    """The bytes of a contiguous host tensor, without a copy and without numpy; valid as long as the tensor is."""
    size = tensor.nbytes
    return memoryview((ctypes.c_char * size).from_address(tensor.data_ptr())).cast("B") if size else memoryview(b"")


def iter_parts(copied: Copied) -> Iterable[tuple[Form, memoryview]]:
    """Each tensor that came, with its bytes."""
    if copied.plan is not None and copied.buffer is not None:
        whole = view_bytes(copied.buffer)
        for form, offset in zip(copied.plan.forms[: copied.filled], copied.plan.offsets, strict=False):
            yield form, whole[offset : offset + form.nbytes]
    for loose in copied.loose:
        yield loose.form, view_bytes(loose.buffer)


def _iter_tensors(copied: Copied) -> Iterator[tuple[Form, Tensor]]:
    """Each tensor that came, in host memory."""
    if copied.plan is not None and copied.buffer is not None:
        yield from zip(copied.plan.forms[: copied.filled], copied.plan.build_views(copied.buffer), strict=False)
    for loose in copied.loose:
        yield loose.form, loose.buffer.view(to_raw_dtype(loose.form.dtype)).view(loose.form.shape)


def figures_of(copied: Copied, rows: Sequence[int] = (), split: Container[str] = ()) -> dict[str, object]:
    """Exact figures of each copied tensor, under its path. rows: only these rows of the tensors in ``split``."""
    found = [(form, tensor[list(rows)] if form.path in split else tensor) for form, tensor in _iter_tensors(copied)]
    measured = [(form, _to_measurable(form, tensor)) for form, tensor in found if tensor.numel()]
    measured_figures = measure_tensors([tensor for _, tensor in measured])
    return {
        f"{form.path}/{name}": getattr(figures, name)
        for (form, _), figures in zip(measured, measured_figures, strict=True)
        if figures is not None
        for name in FIGURES
        if getattr(figures, name) is not None
    }


def _to_measurable(form: Form, tensor: Tensor) -> Tensor:
    """Numbers that can be measured: integers as float64, quantised ones as what they stand for."""
    if is_checkable(tensor):
        return tensor
    values, note = tensor.to(torch.float64), dict(form.note)
    if "scales" in note:
        sizes = [-1 if dim == note["axis"] else 1 for dim in range(values.dim())]
        zeros, scales = (torch.tensor(note[name], dtype=values.dtype).view(sizes) for name in ("zero_points", "scales"))
        return values.sub(zeros).mul(scales)
    return values.sub(note.get("zero_point", 0)).mul(note.get("scale", 1.0))


def _format_dtype(form: Form) -> str:
    return str(form.dtype).removeprefix("torch.")


def _select_rows(values: Sequence[Any], rows: Sequence[int]) -> list[Any]:
    return [values[row] for row in rows]


def _build_row_item(form: Form, data: memoryview, rows: Sequence[int]) -> Item:
    size = len(data) // form.shape[0]
    picked = b"".join(data[row * size : (row + 1) * size] for row in rows)
    return Item(form.path, _format_dtype(form), (len(rows), *form.shape[1:]), picked, dict(form.note))


def _build_item(form: Form, data: memoryview) -> Item:
    return Item(form.path, _format_dtype(form), tuple(form.shape), data, dict(form.note))
