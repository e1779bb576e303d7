"""Rows for TensorBoard, by the writer of its own package; torch is not needed."""

import os
from collections import Counter
from collections.abc import Mapping
from pathlib import Path
from typing import Any, ClassVar

from tdbg.core import run_files
from tdbg.core.errors import TdbgError
from tdbg.core.host import host_name
from tdbg.core.redaction import redact_text
from tdbg.metrics.rows.row import Row
from tdbg.metrics.sinks import SINKS
from tdbg.metrics.sinks.base import MetricSink, RunDescription

FOLDER = "tensorboard"
SUB_RUN = "tdbg"  # a folder of its own: TensorBoard leaves a file for good once a later one lies beside it
FLUSH_S = 30  # what a kill can lose here; `metrics.jsonl` loses nothing


@SINKS.add
class TensorboardSink(MetricSink):
    """A file of events in ``folder``. A resumed run makes TensorBoard forget the steps that are made again.

    folder: ``tensorboard`` beside ``metrics.jsonl`` if left out. Each process writes a file of its own there.
    suffix: the end of that file's name.
    """

    name: ClassVar[str] = "tensorboard"
    package: ClassVar[str] = "tensorboard"

    def __init__(self, folder: str | os.PathLike[str] | None = None, *, suffix: str = "") -> None:
        self._is_named = folder is not None
        self._folder = FOLDER if folder is None else os.fspath(folder)
        self._suffix = suffix
        self._writer: Any = None
        self._texts: Counter[tuple[str, int]] = Counter()  # of each tag and step

    @classmethod
    def open_for_run(cls, run: RunDescription) -> "TensorboardSink":
        """Write beside the program's own events; the file of an earlier time is replaced."""
        folder, suffix = find_folder(run), f".{run.name}.tdbg"
        for path in folder.glob(f"events.out.tfevents.*{suffix}"):
            run_files.remove_file(path)
        return cls(folder, suffix=suffix)

    def describe_place(self) -> str:
        """The folder."""
        return self._folder

    def place(self, folder: Path) -> None:
        """Have the events below this folder, unless theirs was named."""
        if not self._is_named:
            self._folder = str(folder / FOLDER)

    @property
    def writer(self) -> Any:
        """The writer of events, made at its first use. Raises TdbgError without the package."""
        if self._writer is None:
            try:
                from tensorboard.summary.writer.event_file_writer import EventFileWriter
            except ImportError:
                hint = "install the extra: pip install 'tdbg[tensorboard]'"
                raise TdbgError("the tensorboard sink needs tensorboard", hint) from None
            run_files.make_folder(self._folder)
            self._writer = EventFileWriter(self._folder, flush_secs=FLUSH_S, filename_suffix=self._suffix)
        return self._writer

    def write(self, row: Row) -> None:
        """One event with all values of the row; epoch as a curve too."""
        from tensorboard.compat.proto.summary_pb2 import Summary

        values = [Summary.Value(tag=key, simple_value=float(value)) for key, value in row.values.items()]
        if row.epoch is not None:
            values.append(Summary.Value(tag="epoch", simple_value=float(row.epoch)))
        values += [_build_text_value(key, text) for key, text in row.text.items()]
        self._add_event(row.t, row.step, summary=Summary(value=values))

    def config(self, values: Mapping[str, object]) -> None:
        """The config as a table."""
        import time

        from tensorboard.compat.proto.summary_pb2 import Summary

        lines = ["| setting | value |", "|---|---|", *(f"| {key} | {value} |" for key, value in values.items())]
        self._add_event(time.time(), 0, summary=Summary(value=[_build_text_value("config", "\n".join(lines))]))

    def add_finding(self, finding: Mapping[str, Any]) -> None:
        """A text at the finding's first step."""
        lines = [f"**{finding.get('severity')}: {finding.get('title')}**"]
        lines += [f"- {line}" for line in finding.get("evidence") or []]
        lines += [f"{key}: {finding[key]}" for key in ("cause", "try_next") if finding.get(key)]
        self._add_text(f"tdbg/findings/{finding.get('code')}", "\n\n".join(lines), finding.get("first_step") or 0)

    def add_report(self, headline: str, markdown: str) -> None:
        """The report as a text."""
        self._add_text("tdbg/report", markdown, 0)

    def _add_text(self, tag: str, text: str, step: int) -> None:
        """A text; of several at one step each has a tag of its own, since TensorBoard shows one."""
        import time

        from tensorboard.compat.proto.summary_pb2 import Summary

        self._texts[tag, step] += 1
        count = self._texts[tag, step]
        tag = tag if count == 1 else f"{tag}_{count}"
        self._add_event(time.time(), step, summary=Summary(value=[_build_text_value(tag, redact_text(text))]))

    def resumed(self, step: int) -> None:
        """Tell TensorBoard that later steps are made again."""
        import time

        from tensorboard.compat.proto.event_pb2 import SessionLog

        self._add_event(time.time(), step + 1, session_log=SessionLog(status=SessionLog.START))

    def _add_event(self, t: float, step: int, **what: object) -> None:
        from tensorboard.compat.proto.event_pb2 import Event

        self.writer.add_event(Event(wall_time=t, step=step, **what))

    def flush(self) -> None:
        """Write what is buffered."""
        if self._writer is not None:
            self._writer.flush()

    def close(self) -> None:
        """Write what is buffered, and close the file. Raises what its own thread could not write, as a full disk."""
        if self._writer is not None:
            writer, self._writer = self._writer, None
            try:
                writer.flush()
            finally:
                writer.close()
            # A failure that came after the last event was taken: `close` has waited for the thread, and does not say it.
            worker = getattr(getattr(writer, "_async_writer", None), "_worker", None)
            error = getattr(worker, "exception", None)
            if error is not None:
                raise error


def find_folder(run: RunDescription) -> Path:
    """Below the folder of the program's own events, where it is on this machine; else in the run directory."""
    for own in run.own_runs:
        folder = Path(str(own.get("folder")))
        if own.get("host") == host_name() and folder.is_dir():
            return folder / SUB_RUN
    return run.folder / FOLDER


def _build_text_value(tag: str, text: str) -> object:
    from tensorboard.compat.proto.summary_pb2 import Summary, SummaryMetadata
    from tensorboard.compat.proto.tensor_pb2 import TensorProto
    from tensorboard.compat.proto.tensor_shape_pb2 import TensorShapeProto

    plugin = SummaryMetadata(plugin_data=SummaryMetadata.PluginData(plugin_name="text"))
    shape = TensorShapeProto(dim=[TensorShapeProto.Dim(size=1)])
    tensor = TensorProto(dtype="DT_STRING", string_val=[text.encode("utf-8", "backslashreplace")], tensor_shape=shape)
    return Summary.Value(tag=f"{tag}/text_summary", metadata=plugin, tensor=tensor)
