"""Export for TensorBoard beside a run's traces: step times, waits and losses as scalars, a summary as text.

Written after the run by the process that watched it, into the folder of the traces, in the format of SummaryWriter
and by the same writer (that of the `tensorboard` package). Neither torch nor TensorFlow is loaded.
"""

import math
import os
import socket
import time
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tdbg.core import run_files
from tdbg.core.events import Event, Observation, Step, Trace
from tdbg.core.rundir import ProcessDir, RunDir

MAX_POINTS = 5_000  # of a curve: TensorBoard itself shows 1,000 of them; each takes 50 us to write
PREFIX = "tdbg"
CURVES = {"step_ms": "step_ms/outside", "loader_ms": "data_wait_ms", "loss": "loss"}  # field of a step -> tag
INSIDE = "step_ms/inside"
COLUMNS = ("trace", "steps", "kind", "inside ms", "outside ms", "pause ms", "MB", "ended early")


@dataclass(slots=True)
class Curve:
    """Points of one tag: all of them, or every second, fourth ... of a long run."""

    points: list[tuple[float, int, float]] = field(default_factory=list)  # time, step, value
    stride: int = 1
    _seen: int = 0

    def add_point(self, t: float, step: int, value: Any) -> None:
        """A point, if it has a number."""
        number = _parse_finite(value)
        if number is None:
            return
        if self._seen % self.stride == 0:
            self.points.append((t, step, number))
        self._seen += 1
        if len(self.points) > MAX_POINTS:
            self.points = self.points[::2]
            self.stride *= 2


def _parse_finite(value: Any) -> float | None:
    """A finite number as a float; None for all else (TensorBoard draws no NaN)."""
    try:
        number = float(value)
    except (TypeError, ValueError):
        return None
    return number if math.isfinite(number) else None


def export_scalars(run: RunDir) -> list[Path]:
    """Write a file beside the traces of each rank, and return them; none without the `tensorboard` package.

    A folder that has one already is left alone. Raises OSError where it cannot be written.
    """
    with_traces = [
        process for process in run.list_processes() if process.is_rank and _needs_export(process.path / "traces")
    ]
    if not with_traces:
        return []
    try:
        import tensorboard.compat.proto.event_pb2  # noqa: F401
    except ImportError:
        return []
    return [_write_events_file(process) for process in with_traces]


def _needs_export(folder: Path) -> bool:
    return folder.is_dir() and any(folder.iterdir()) and not any(folder.glob("events.out.tfevents.*"))


def _write_events_file(process: ProcessDir) -> Path:
    from tensorboard.summary.writer.record_writer import RecordWriter

    curves, windows, last = _read_curves(process)
    path = process.path / "traces" / f"events.out.tfevents.{int(time.time())}.{socket.gethostname()}.{os.getpid()}.tdbg"
    part = path.with_name(f".{path.name}.part")
    with run_files.open_new(part) as file:
        writer = RecordWriter(file)
        for record in _iter_records(curves, _format_summary(windows, last)):
            writer.write(record)
    run_files.rename_file(part, path)
    return path


def _read_curves(process: ProcessDir) -> tuple[dict[str, Curve], list[Trace], str]:
    """The curves by their tags, the windows, and what the profiler said at the end."""
    curves: defaultdict[str, Curve] = defaultdict(Curve)
    windows: list[Trace] = []
    last = ""
    for event in process.iter_events():
        if isinstance(event, Step):
            _add_step(curves, event)
        elif isinstance(event, Trace):
            windows.append(event)
            for number, took_ms in enumerate(event.steps_ms):
                curves[INSIDE].add_point(event.t, event.first_step + number, took_ms)
        elif _is_last(event):
            last = getattr(event, "text", "")
    return curves, windows, last


def _add_step(curves: dict[str, Curve], event: Step) -> None:
    evaluated = event.phase != "train"
    step = event.call if evaluated and event.call is not None else event.step
    for name, tag in CURVES.items():
        curves[f"eval/{tag}" if evaluated else tag].add_point(event.t, step, getattr(event, name))


def _is_last(event: Event) -> bool:
    return isinstance(event, Observation) and event.probe == "profiler" and event.part == "DONE"


def _format_summary(windows: list[Trace], last: str) -> str:
    """The summary, in Markdown."""
    lines = [last, "", f"| {' | '.join(COLUMNS)} |", "|---" * len(COLUMNS) + "|"]
    for one in windows:
        inside = sorted(one.steps_ms)
        cells = (
            one.file,
            f"{one.first_step} to {one.first_step + max(one.steps, 1) - 1}",
            one.kind or "the program's own",
            f"{inside[len(inside) // 2]:.4g}" if inside else "",
            f"{one.outside_ms:.4g}" if one.outside_ms is not None else "",
            f"{one.pause_ms:.4g}",
            f"{one.bytes / 1e6:.1f}",
            one.ended,
        )
        lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines)


def _iter_records(curves: dict[str, Curve], text: str) -> Iterator[bytes]:
    """The file, record by record: its version, the text, the points."""
    from tensorboard.compat.proto.event_pb2 import Event as Record
    from tensorboard.compat.proto.summary_pb2 import Summary, SummaryMetadata
    from tensorboard.compat.proto.tensor_pb2 import TensorProto
    from tensorboard.compat.proto.tensor_shape_pb2 import TensorShapeProto

    now = time.time()
    yield Record(wall_time=now, file_version="brain.Event:2").SerializeToString()
    shape = TensorShapeProto(dim=[TensorShapeProto.Dim(size=1)])
    tensor = TensorProto(dtype="DT_STRING", string_val=[text.encode()], tensor_shape=shape)
    metadata = SummaryMetadata(plugin_data=SummaryMetadata.PluginData(plugin_name="text"))
    value = Summary.Value(tag=f"{PREFIX}/profile", metadata=metadata, tensor=tensor)
    yield Record(wall_time=now, step=0, summary=Summary(value=[value])).SerializeToString()
    for tag, curve in curves.items():
        for t, step, number in curve.points:
            value = Summary.Value(tag=f"{PREFIX}/{tag}", simple_value=number)
            yield Record(wall_time=t, step=step, summary=Summary(value=[value])).SerializeToString()
