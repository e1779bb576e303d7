"""Sinks: each takes what it is given, and a failing one is nobody's problem but its own."""

import io
import os

import pytest
from metrics.rows_of import list_lines, make_row, read_csv, read_raw, run_program

from tdbg.core.errors import TdbgError
from tdbg.metrics.sinks import SINKS, MetricSink
from tdbg.metrics.sinks.by_name import plain_sinks
from tdbg.metrics.sinks.console import MOST_RESULTS, ConsoleSink, format_duration
from tdbg.metrics.sinks.csv_ import CsvSink
from tdbg.metrics.sinks.fan_out import STRIKES, FanOut
from tdbg.metrics.sinks.jsonl import JsonlSink
from tdbg.metrics.sinks.tensorboard_ import TensorboardSink
from tdbg.metrics.step_logger.step_metrics_logger import StepMetricsLogger


class Keeps(MetricSink):
    name = "keeps"

    def __init__(self):
        self.rows, self.calls = [], []

    def write(self, row):
        self.rows.append(row.step)

    def config(self, values):
        self.calls.append("config")

    def flush(self):
        self.calls.append("flush")

    def close(self):
        self.calls.append("close")


class Fails(MetricSink):
    """Fails at these rows, or at every call."""

    name = "fails"

    def __init__(self, *steps):
        self.steps, self.took = steps, []

    def write(self, row):
        if not self.steps or row.step in self.steps:
            raise ConnectionError("no route to host")
        self.took.append(row.step)

    def flush(self):
        raise RuntimeError("cannot flush")

    close = flush


def test_a_sink_that_fails_is_switched_off_and_said_once():
    said = []
    good, bad = Keeps(), Fails()
    fan = FanOut([bad, good], said.append)
    for step in range(10):
        fan.write(make_row(step, {}))
    fan.config({})
    fan.flush()
    fan.close()
    assert good.rows == list(range(10)) and good.calls == ["config", "flush", "close"]
    health = fan.get_health(bad)
    assert (health.is_off, health.lost) == (True, 10)
    assert len(said) == 2 and "fails is switched off" in said[0] and "lost 10 rows" in said[1]


def test_a_sink_that_fails_now_and_then_is_kept_and_counted():
    said = []
    bad = Fails(2, 3, 6)
    fan = FanOut([bad], said.append)
    for step in range(9):
        fan.write(make_row(step, {}))
    assert STRIKES == 3 and not fan.get_health(bad).is_off
    assert bad.took == [0, 1, 4, 5, 7, 8] and fan.get_health(bad).lost == 3
    fan.close()
    assert said == ["metrics: sink fails lost 3 rows (RuntimeError: cannot flush)"]


def test_what_ends_the_program_passes():
    class Ends(MetricSink):
        def write(self, row):
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        FanOut([Ends()]).write(make_row(1, {}))


def test_the_base_does_nothing():
    sink = MetricSink()
    sink.write(make_row(1, {}))
    sink.config({})
    sink.resumed(1)
    sink.summary({})
    sink.flush()
    sink.close()
    sink.close()
    assert sink.state_dict() == {}


def test_sinks_are_known_by_name(tmp_path):
    assert set(SINKS.names()) >= {"jsonl", "csv", "console", "wandb", "tensorboard"}
    (made,) = plain_sinks(["csv"], csv={"path": tmp_path / "x.csv"})
    assert isinstance(made, CsvSink)
    with pytest.raises(TdbgError, match="no metric sink is named 'tensorbord'") as failed:
        plain_sinks(["tensorbord"])
    assert "tensorboard" in failed.value.hint
    with pytest.raises(TdbgError, match="cannot create the sink"):
        plain_sinks(["csv"], csv={"paths": 1})


def test_a_sink_of_another_package_is_found(tmp_path):
    folder = tmp_path / "theirs-1.0.dist-info"
    folder.mkdir()
    (folder / "METADATA").write_text("Metadata-Version: 2.1\nName: theirs\nVersion: 1.0\n")
    (folder / "entry_points.txt").write_text("[tdbg.metric_sinks]\ntheirs = theirs:Sink\n")
    (tmp_path / "theirs.py").write_text(
        "from tdbg.metrics.sinks import MetricSink\nclass Sink(MetricSink):\n    name = 'theirs'\n"
    )
    code = "from tdbg.metrics.sinks import SINKS; print(SINKS['theirs'].__module__)"
    done = run_program(code, env={"PYTHONPATH": str(tmp_path)})
    assert done.stdout == "theirs\n", done.stderr


def test_the_console_tells_progress_values_rate_and_time_left():
    stream = io.StringIO()
    sink = ConsoleSink(total_steps=1000, stream=stream)
    values = {"train/loss": 0.41234567, "train/samples_per_sec": 512.25, "train/eta_sec": 72.0, "core/train_loss": 1.0}
    sink.write(make_row(120, values, epoch=1, text={"train/mode_str": "a\x1b[2Jb"}))
    assert stream.getvalue() == (
        "step 120/1000 [#.........] 12% epoch 1  train: loss 0.41235  mode_str a\\x1b[2Jb  512.2 samples/s  eta 0:01:12\n"
    )
    assert (format_duration(3723.4), format_duration(float("inf")), format_duration(-1)) == ("1:02:03", "-", "-")


def test_the_final_results_have_a_line_a_metric():
    stream = io.StringIO()
    summary = {"val/acc1_genus": 50.0, "val/best_acc1_genus": 75.0, "val/best_acc1_genus.epoch": 1}
    summary |= {"train/loss": 0.25, "core/train_loss": 0.25, "val/loss": 0.5, "val/best_loss": 0.125}
    summary |= {"val/best_loss.epoch": 2, "val/best_loss.step": 300, "val/best_effort": 1.0}
    summary |= {"val/epoch_duration_sec": 3.0, "val/best_epoch_duration_sec": 3.0, "val/avg_samples_per_sec": 9.0}
    ConsoleSink(stream=stream).summary(summary)
    assert stream.getvalue().splitlines() == [
        "final result     last   best  at epoch  at step",
        "train/loss       0.25      -         -        -",
        "val/loss          0.5  0.125         2      300",
        "val/best_effort     1      -         -        -",
        "val/acc1_genus     50     75         1        -",
    ]


def test_final_results_are_not_endless():
    stream = io.StringIO()
    ConsoleSink(stream=stream).summary({f"val/acc1_task{number}": 1.0 for number in range(200)} | {"val/loss": 0.5})
    lines = stream.getvalue().splitlines()
    assert len(lines) == MOST_RESULTS + 2 and lines[1].startswith("val/loss ")
    assert "141 metrics more" in lines[-1] and "tdbg metrics show" in lines[-1]


def test_files_that_nobody_named_lie_beside_the_rows(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for rank in (0, 1):
        sinks = ["csv", "tensorboard", "jsonl", CsvSink("named.csv")]
        with StepMetricsLogger(sinks=sinks, folder=tmp_path / f"rank{rank}", rank=rank, console=False) as log:
            log.log_step_metrics({"loss": 1.0}, step=10)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["named.csv", "rank0", "rank1"]
    assert {path.name for path in (tmp_path / "rank0").iterdir()} == {"metrics.csv", "metrics.jsonl", "tensorboard"}
    assert {path.name for path in (tmp_path / "rank1").iterdir()} == {"metrics.csv", "metrics.jsonl"}
    assert {one["rank"] for one in read_csv(tmp_path / "rank1" / "metrics.csv")} == {"1"}
    assert {one["rank"] for one in read_csv(tmp_path / "named.csv")} == {"0"}
    assert len(read_raw(tmp_path / "rank0" / "metrics.jsonl")) == 2


def test_a_console_that_nobody_listens_to_is_switched_off():
    read, written = os.pipe()
    os.close(read)
    said = []
    with os.fdopen(written, "w") as stream:
        fan = FanOut([ConsoleSink(stream=stream)], said.append)
        for step in range(5):
            fan.write(make_row(step, {"train/loss": 1.0}))
        assert fan.get_health(fan.sinks[0]).is_off
        os.dup2(os.open(os.devnull, os.O_WRONLY), stream.fileno())


def test_a_full_disk_loses_rows_and_comes_back(tmp_path, monkeypatch):
    said = []
    path = tmp_path / "metrics.jsonl"
    sink = JsonlSink(path, on_trouble=said.append)
    fan = FanOut([sink], said.append)
    fan.write(make_row(1, {"train/loss": 1.0}))
    write, full = os.write, [True]

    def half(fd, data):
        return write(fd, data[: len(data) // 2]) if full[0] and b'"step"' in data else write(fd, data)

    monkeypatch.setattr("tdbg.core.lines.os.write", half)
    fan.write(make_row(2, {"train/loss": 2.0}))
    full[0] = False
    fan.write(make_row(3, {"train/loss": 3.0}))
    monkeypatch.undo()
    fan.close()
    assert [line.step for line in list_lines(path)] == [1, 3]
    assert "No space left" in said[0] and "lost 1 row" in said[-1]


def test_a_folder_that_cannot_be_made_is_said_once(tmp_path):
    said = []
    (tmp_path / "file").write_text("")
    fan = FanOut([JsonlSink(tmp_path / "file" / "metrics.jsonl", on_trouble=said.append)], said.append)
    for step in range(9):
        fan.write(make_row(step, {"train/loss": 1.0}))
    assert len(said) == 2 and "File exists" in said[0] and "switched off" in said[1]


def test_tensorboard_reads_it_back(tmp_path):
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    sink = TensorboardSink(tmp_path)
    sink.config({"lr": 0.1})
    for step in range(1, 11):
        sink.write(
            make_row(step, {"train/loss": 1 / step, "val/acc1_taxa_L10": step / 10}, text={"schedule/group_str": "a"})
        )
    sink.close()
    sink = TensorboardSink(tmp_path)  # resumed from the checkpoint of step 6
    sink.resumed(6)
    for step in range(7, 13):
        sink.write(make_row(step, {"train/loss": 100.0 + step}))
    sink.flush()
    sink.close()
    sink.close()
    read = EventAccumulator(str(tmp_path), size_guidance={"scalars": 0, "tensors": 0})
    read.Reload()
    losses = [(one.step, one.value) for one in read.Scalars("train/loss")]
    assert [step for step, _ in losses] == list(range(1, 13))
    assert [value for _, value in losses] == pytest.approx(
        [1 / s for s in range(1, 7)] + [100.0 + s for s in range(7, 13)]
    )
    assert set(read.Tags()["scalars"]) == {"train/loss", "val/acc1_taxa_L10", "epoch"}
    assert read.Tensors("schedule/group_str/text_summary")[0].tensor_proto.string_val[0] == b"a"
    assert b"lr" in read.Tensors("config/text_summary")[0].tensor_proto.string_val[0]


@pytest.mark.filterwarnings("ignore::pytest.PytestUnhandledThreadExceptionWarning")
def test_tensorboard_raises_what_its_own_thread_could_not_write(tmp_path):
    """Which fails after the last row was taken."""
    import errno
    import time

    def refuse(data):
        time.sleep(0.2)
        raise OSError(errno.ENOSPC, "No space left on device")

    sink = TensorboardSink(tmp_path)
    sink.writer.flush()
    sink.writer._async_writer._writer.write = refuse
    sink.write(make_row(1, {"loss": 1.0}))
    with pytest.raises(OSError, match="No space left"):
        sink.close()
