"""What is written for TensorBoard, read back by TensorBoard itself: as a server whose data API answers."""

import json
import os
import signal
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tdbg.core.events import Observation, Step, Trace, encode
from tdbg.core.profiling import trace_name
from tdbg.core.rundir import RunDir
from tdbg.traces.render import tensorboard_export

Get = Callable[[str], Any]


def make_run(folder: Path, steps: int = 40) -> RunDir:
    """A run of two ranks: steps outside of a window over 3 to 5, whose trace is there on rank 0 alone."""
    for rank in (0, 1):
        place = folder / f"rank{rank:04d}"
        (place / "traces").mkdir(parents=True)
        events = [
            Step(t=float(step), step=step, step_ms=10.0 + step, loader_ms=1.0, loss="nan" if step == 7 else 1 / step)
            for step in range(1, steps + 1)
            if not 2 <= step <= 5
        ]
        name = trace_name("rank0000", 17)
        (place / "traces" / f"{name}.gz").write_bytes(b"")
        window = Trace(t=5.0, file=f"traces/{name}", first_step=3, steps=3, steps_ms=[20.0, 21.0, 22.0], bytes=10**6)
        said = Observation(t=9.0, probe="profiler", part="DONE", text="profiled 3 steps in 1 trace")
        lines = [encode(event) for event in [*events, window, said]]
        (place / "events.jsonl").write_bytes(b"\n".join(lines) + b"\n")
    (folder / "rank0001" / "traces" / f"{name}.gz").unlink()
    return RunDir(folder)


@pytest.fixture(scope="module")
def get_from_tensorboard(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Get]:
    """``get(path)``: what TensorBoard answers over a run; JSON as data."""
    pytest.importorskip("tensorboard")
    run = make_run(tmp_path_factory.mktemp("board") / "run")
    (path,) = tensorboard_export.export_scalars(run)
    assert path.parent == run.path / "rank0000" / "traces"
    assert tensorboard_export.export_scalars(run) == [], "once"
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    words = [sys.executable, "-m", "tensorboard.main", "--logdir", str(run.path), "--port", str(port)]
    server = subprocess.Popen(
        [*words, "--host", "127.0.0.1", "--load_fast", "false"],
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        env={**os.environ, "TF_CPP_MIN_LOG_LEVEL": "3"},
    )

    def fetch_path(path: str) -> Any:
        with urllib.request.urlopen(f"http://127.0.0.1:{port}{path}", timeout=10) as answer:
            data = answer.read()
        return json.loads(data) if path.startswith("/data/") else data.decode()

    deadline = time.monotonic() + 60
    while True:
        try:
            if len(read_curve(fetch_path, "tdbg/step_ms/inside")) == 3:  # the last of the file
                break
        except (urllib.error.URLError, ConnectionError):
            pass
        assert server.poll() is None and time.monotonic() < deadline, "TensorBoard does not answer"
        time.sleep(0.2)
    yield fetch_path
    server.send_signal(signal.SIGTERM)
    server.communicate(timeout=30)


def read_curve(get: Get, tag: str) -> list[tuple[int, float]]:
    query = urllib.parse.urlencode({"run": "rank0000/traces", "tag": tag})
    return [(step, value) for _, step, value in get(f"/data/plugin/scalars/scalars?{query}")]


def test_its_page_and_its_runs(get_from_tensorboard: Get) -> None:
    assert "TensorBoard" in get_from_tensorboard("/")
    assert get_from_tensorboard("/data/runs") == ["rank0000/traces"]
    tags = set(get_from_tensorboard("/data/plugin/scalars/tags")["rank0000/traces"])
    assert tags == {"tdbg/step_ms/outside", "tdbg/step_ms/inside", "tdbg/data_wait_ms", "tdbg/loss"}


def test_its_scalars(get_from_tensorboard: Get) -> None:
    outside = read_curve(get_from_tensorboard, "tdbg/step_ms/outside")
    assert [step for step, _ in outside] == [1, *range(6, 41)] and outside[1] == (6, 16.0)
    assert read_curve(get_from_tensorboard, "tdbg/step_ms/inside") == [(3, 20.0), (4, 21.0), (5, 22.0)]
    assert 7 not in dict(read_curve(get_from_tensorboard, "tdbg/loss")), "no number"
    assert dict(read_curve(get_from_tensorboard, "tdbg/data_wait_ms"))[8] == 1.0


def test_its_text(get_from_tensorboard: Get) -> None:
    query = urllib.parse.urlencode({"run": "rank0000/traces", "tag": "tdbg/profile"})
    (shown,) = get_from_tensorboard(f"/data/plugin/text/text?{query}")
    assert "profiled 3 steps in 1 trace" in shown["text"]
    assert "<td>3 to 5</td>" in shown["text"] and "<td>21</td>" in shown["text"]


def test_a_long_curve_keeps_its_shape() -> None:
    curve = tensorboard_export.Curve()
    for step in range(100_000):
        curve.add_point(0.0, step, step)
    assert tensorboard_export.MAX_POINTS / 2 <= len(curve.points) <= tensorboard_export.MAX_POINTS
    assert curve.points[0][1] == 0 and curve.points[-1][1] > 99_000
    for value in (None, "nan", "inf", "word"):
        curve.add_point(0.0, 7, value)
    assert all(step == value for _, step, value in curve.points)


def test_without_the_package_nothing_is_written(tmp_path: Path) -> None:
    make_run(tmp_path / "run")
    code = (
        "import sys; sys.modules['tensorboard'] = None; from tdbg.core.rundir import RunDir; from pathlib import Path\n"
        f"from tdbg.traces.render import tensorboard_export; assert tensorboard_export.export_scalars(RunDir(Path({str(tmp_path / 'run')!r}))) == []\n"
        "assert not {'torch', 'tensorflow'} & set(sys.modules)"
    )
    subprocess.run([sys.executable, "-c", code], check=True)
    assert not list(tmp_path.rglob("events.out*"))


def test_neither_torch_nor_tensorflow_is_loaded(tmp_path: Path) -> None:
    pytest.importorskip("tensorboard")
    make_run(tmp_path / "run")
    code = (
        "import sys; from tdbg.core.rundir import RunDir; from pathlib import Path; from tdbg.traces.render import tensorboard_export\n"
        f"assert len(tensorboard_export.export_scalars(RunDir(Path({str(tmp_path / 'run')!r})))) == 1\n"
        "assert not {'torch', 'tensorflow'} & set(sys.modules)"
    )
    subprocess.run([sys.executable, "-c", code], check=True)
