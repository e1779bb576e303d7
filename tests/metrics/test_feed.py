"""The feed: what step records say as metrics, passes of evaluation, what is logged, devices, budgets, ends."""

import json
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

from tdbg.core.config import Settings
from tdbg.core.events import Metric, Step
from tdbg.inject.agent import Agent
from tdbg.inject.metrics import dumps
from tdbg.inject.metrics import feed as feeds
from tdbg.inject.metrics.feed import Feed
from tdbg.inject.metrics.steps import Passes, values_of
from tdbg.inject.metrics.taps import TAPS, Tap
from tdbg.inject.metrics.value_sorting import sort_values
from tdbg.inject.on.torch_ import Rank
from tdbg.metrics.keys import Key
from tdbg.metrics.rows import row_codec
from tdbg.metrics.rows.row import FILE, Header, Row
from tdbg.metrics.step_logger import default_dir
from tdbg.metrics.tracker.metric_values import as_float

# step records


def test_a_record_as_values() -> None:
    record = Step(
        loss="nan",
        grad_norm=2.0,
        lr=[0.1, 0.2],
        other_losses=[3.0, "inf"],
        scale=8.0,
        skipped=True,
        step_ms=10.0,
        samples=4,
    )
    values = values_of(record)
    assert str(values.pop("train/loss")) == "nan" and values.pop("loss/other2") == float("inf")
    assert values == {
        "train/grad_norm": 2.0,
        "lr/group0": 0.1,
        "lr/group1": 0.2,
        "loss/other1": 3.0,
        "train/loss_scale": 8.0,
        "train/skipped": 1,
        "pipeline/step_ms": 10.0,
        "pipeline/samples_per_sec": 400.0,
    }
    assert all(str(Key.parse(key)) == key for key in values)
    assert values_of(Step()) == {}


def list_evaluations(*plan: Any) -> list[tuple[int, int]]:
    """(step, calls) of the passes found in a plan: "t" a training step, a number so many evaluation calls."""
    passes, step, calls, found = Passes(), 0, 0, []
    for what in plan:
        if what == "t":
            step += 1
            found.append(passes.record_train_step(step, calls))
            continue
        for _ in range(what):
            calls += 1
            record = Step(t=float(calls), step=step or calls, phase="eval", call=calls, forward_ms=1.0, samples=2)
            found.append(passes.record_eval_call(record, step, None))
    found.append(passes.end_last_pass(calls))
    return [(one.step, one.calls) for one in found if one is not None]


@pytest.mark.parametrize(
    ("plan", "expected"),
    [
        (["t", "t", 3, "t", "t", "t", 4], [(2, 3), (5, 4)]),
        ([2, "t", "t", "t"], [(0, 2)]),  # a look before training
        ([5], [(0, 5)]),  # nothing but evaluation
        ([1, "t"] * 8, []),  # a teacher in every step
        (["t", 3, "t", 3, "t", "t", "t"], []),  # epochs of one step: nobody can tell these from a teacher
        (["t"] * 5, []),
    ],
    ids=["epochs", "before", "evaluation alone", "teacher", "tiny epochs", "none"],
)
def test_passes_of_evaluation(plan: list[Any], expected: list[tuple[int, int]]) -> None:
    assert list_evaluations(*plan) == expected


def test_a_pass_of_which_calls_were_not_looked_at() -> None:
    passes = Passes()
    passes.record_train_step(10, 0)
    for call, t in ((1, 100.0), (2, 101.0), (5, 104.0)):  # 8 calls, of which 3 were affordable
        passes.record_eval_call(Step(t=t, step=10, phase="eval", call=call, forward_ms=1000.0, samples=4), 10, 2)
    over = passes.record_train_step(12, 8)
    assert over is not None and (over.step, over.epoch) == (10, 2)
    assert over.compute_metrics() == {"val/calls": 8, "val/epoch_duration_sec": pytest.approx(8.0)}, "a second a call"


# what is logged


def test_sorting() -> None:
    found = sort_values(
        {
            "a": 1,
            "b": 2.5,
            "flag": True,
            "nested": {"x": {"y": 3}},
            "word": "hello",
            "numpy": np.float32(0.5),
            "array": np.array([2.0]),
            "tensor": torch.tensor(4.0, requires_grad=True),
            "int": torch.tensor([7]),
            "bf16": nn.Parameter(torch.tensor(1.5, dtype=torch.bfloat16)),
            "nan": float("nan"),
            "vector": torch.ones(3),
            "complex": torch.tensor(1j),
            "meta": torch.ones((), device="meta"),
            "none": None,
            "object": object(),
            "dates": np.array(["2026-01-01"], dtype="M8[D]"),
            10**400: 10**400,
        }
    )
    assert str(found.values.pop("nan")) == "nan"
    huge = found.values.pop(str(10**400)[:500])
    assert huge == float("inf") and sort_values({"x": -(10**400)}).values == {"x": float("-inf")}
    assert found.values == {
        "a": 1,
        "b": 2.5,
        "flag": 1,
        "nested.x.y": 3,
        "numpy": 0.5,
        "array": 2.0,
        "tensor": 4.0,
        "int": 7,
        "bf16": 1.5,
    }
    assert found.text == {"word": "hello"} and found.late == []


def test_sorting_is_bounded() -> None:
    deep: dict[str, Any] = {"x": 1}
    for _ in range(50):
        deep = {"d": deep}
    assert sort_values(deep).values == {}
    assert len(sort_values({str(number): number for number in range(5000)}).values) == 2000


@pytest.fixture
def make_rank(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[..., Rank]]:
    """A rank of its own in this process, as `tdbg run` makes it, without the boot file."""
    made: list[Rank] = []

    def make_one(**settings: Any) -> Rank:
        me = Agent(tmp_path, Settings(**{"max_overhead": 1000.0, **settings}), speaks=False)
        monkeypatch.setattr("tdbg.inject.agent._agent", me)
        made.append(Rank(me, 0.0))
        return made[-1]

    yield make_one
    for one in made:
        one.record_process_end()
        one.monitor.detach()
        one.feed.close()
        one.me.close_files()
        assert one.me.errors == 0
    assert not default_dir.FOLDER


def train_model(steps: int) -> nn.Module:
    """A few real steps."""
    torch.manual_seed(0)
    model = nn.Linear(4, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for _ in range(steps):
        optimizer.zero_grad()
        model(torch.ones(2, 4)).sum().backward()
        optimizer.step()
    return model


def read_rows(tmp_path: Path) -> list[Row]:
    path = tmp_path / "rank0000" / FILE
    found = [row_codec.decode_line(line) for line in path.read_bytes().splitlines(keepends=True)]
    assert isinstance(found[0], Header)
    return [row for row in found if isinstance(row, Row)]


def test_nothing_is_written_by_a_process_that_never_steps(make_rank: Callable[..., Rank], tmp_path: Path) -> None:
    one = make_rank()
    one.feed.record_logged("wandb", {"a": 1.0})
    one.monitor.when_rank(lambda: None)
    one.record_process_end()
    assert list(tmp_path.iterdir()) == []


def test_what_was_logged_before_the_first_step_comes_first(make_rank: Callable[..., Rank], tmp_path: Path) -> None:
    one = make_rank()
    one.feed.record_logged("wandb", {"a": 1.0}, own_step=7)
    train_model(2)
    one.feed.flush_pending()
    first, *rest = read_rows(tmp_path)
    assert (first.source, first.values, first.own_step, first.step) == ("wandb", {"a": 1.0}, 7, 1)
    assert [row.step for row in rest] == [1, 2]


def test_scalars_of_one_step_share_a_row(make_rank: Callable[..., Rank], tmp_path: Path) -> None:
    one = make_rank()
    train_model(1)
    for step in (1, 2):
        for name in "abc":
            one.feed.record_logged("tensorboard", {name: step}, own_step=step, gather=True)
    one.feed.record_logged("tensorboard", {"a": 9}, own_step=2, gather=True)  # again: another value
    one.feed.record_logged("wandb", {"x": 1})
    logged = [(row.source, row.own_step, row.values) for row in read_rows(tmp_path)[1:]]
    assert logged == [
        ("tensorboard", 1, {"a": 1, "b": 1, "c": 1}),
        ("tensorboard", 2, {"a": 2, "b": 2, "c": 2}),
        ("tensorboard", 2, {"a": 9}),
        ("wandb", None, {"x": 1}),
    ]


def test_a_value_on_a_device_comes_a_step_late(
    make_rank: Callable[..., Rank], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    one = make_rank()
    train_model(1)
    asked: list[tuple[Any, Any]] = []
    monkeypatch.setattr(one.monitor, "read_late", lambda values, then: asked.append((values, then)))
    elsewhere = [("loss", torch.tensor(3.0)), ("norm", torch.tensor([4.0], dtype=torch.float64))]
    monkeypatch.setattr(feeds, "sort_values", lambda data: SimpleNamespace(values={"a": 1.0}, text={}, late=elsewhere))
    one.feed.record_logged("wandb", {"any": 1}, own_step=5)
    ((values, then),) = asked
    assert values.tolist() == [3.0, 4.0] and values.dim() == 1
    then(values.tolist(), None)
    late = read_rows(tmp_path)[-1]
    assert (late.values, late.own_step, late.step) == ({"loss": 3.0, "norm": 4.0}, 5, 1)
    assert read_rows(tmp_path)[-2].values == {"a": 1.0}


def test_no_sync_of_a_tensor_elsewhere() -> None:
    """A tensor whose value may not be read now is put aside, by its device alone."""

    class Elsewhere(torch.Tensor):
        device = torch.device("cuda")  # type: ignore[assignment]

        def item(self) -> Any:
            raise AssertionError("this waits for the device")

        def detach(self) -> Any:
            return self

    tensor = torch.tensor(1.0).as_subclass(Elsewhere)
    found = sort_values({"x": tensor})
    assert found.values == {} and [key for key, _ in found.late] == ["x"]


def test_a_program_that_logs_more_than_the_budget_pays_for(make_rank: Callable[..., Rank], tmp_path: Path) -> None:
    one = make_rank(max_overhead=0.001)
    train_model(1)
    for number in range(2000):
        one.feed.record_logged("wandb", {"x": number})
        one.feed.record_cost(0.001)
    kept = [row for row in read_rows(tmp_path) if row.source == "wandb"]
    assert feeds.FREE_ROWS <= len(kept) < 200
    one.feed.flush_at_exit()
    assert sum(row.left_out.get("overhead", 0) for row in read_rows(tmp_path)) == 2000 - len(kept)
    text = (tmp_path / "rank0000" / "events.jsonl").read_text(encoding="utf-8")
    assert text.count('"metrics-left-out"') == 1


def test_a_feed_that_fails_is_off_and_training_goes_on(
    make_rank: Callable[..., Rank], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    one = make_rank()
    monkeypatch.setattr(Feed, "_write_row", lambda self, row: 1 / 0)
    train_model(3)
    assert one.feed.is_off and one.me.errors == 1 and one.monitor.step == 3
    one.me.errors = 0
    text = (tmp_path / "rank0000" / "events.jsonl").read_text(encoding="utf-8")
    assert '"probe":"metrics"' in text and "ZeroDivisionError" in text


def test_the_disk_budget_holds(make_rank: Callable[..., Rank], tmp_path: Path) -> None:
    one = make_rank(disk_budget="40KB")
    train_model(1)
    for number in range(2000):
        one.feed.record_logged("wandb", {"x": number})
    size = (tmp_path / "rank0000" / FILE).stat().st_size
    assert size <= 10_000 and one.feed._file.dropped > 1000
    assert read_rows(tmp_path)[-1].left_out == {"disk": 1}, "at once: the process may be killed"
    one.feed.flush_at_exit()
    kept = [row for row in read_rows(tmp_path) if row.source == "wandb"]
    assert sum(row.left_out.get("disk", 0) for row in read_rows(tmp_path)) == 2000 - len(kept)
    assert (tmp_path / "rank0000" / FILE).stat().st_size <= 10_000


def test_values_on_a_device_that_do_not_fit_are_counted(
    make_rank: Callable[..., Rank], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    one = make_rank()
    train_model(1)
    monkeypatch.setattr(feeds, "MAX_LATE", 0)
    one.feed._queue_late_values(Row(1.0, 1, source="wandb"), [("x", torch.ones(()))])
    one.feed.record_logged("wandb", {"y": 1.0})
    assert read_rows(tmp_path)[-1].left_out == {"device": 1}


def test_a_name_of_its_own(make_rank: Callable[..., Rank], tmp_path: Path) -> None:
    one = make_rank()
    train_model(1)
    one._emit_event(Metric(t=1.0, step=1, name="accuracy", value="nan"))
    one._emit_event(Metric(t=1.0, step=1, name="val/loss", value=0.5))
    found = read_rows(tmp_path)[1:]
    assert [list(row.values) for row in found] == [["metric/accuracy"], ["val/loss"]]


def test_threads_lose_no_row(make_rank: Callable[..., Rank], tmp_path: Path) -> None:
    one = make_rank()
    train_model(1)

    def log(name: str) -> None:
        for number in range(200):
            one.feed.record_logged("tensorboard", {name: number}, own_step=number, gather=True)

    threads = [threading.Thread(target=log, args=(name,)) for name in "abcd"]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    one.feed.flush_pending()
    seen: dict[str, set[float]] = {}
    for row in read_rows(tmp_path)[1:]:
        for key, value in row.values.items():
            seen.setdefault(key, set()).add(value)
    assert seen == {name: set(range(200)) for name in "abcd"}


def make_validation_row(step: int, name: str) -> Row:
    return Row(float(step), step, 0, values={f"val/{name}": float(step)}, source="wandb")


def test_what_another_thread_logs_during_a_dump_stands_in_the_next(
    make_rank: Callable[..., Rank], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    one = make_rank(flags={"DUMP_METRICS": True})
    train_model(1)
    listens, keep, heard = one.feed.dumps, dumps._add_row, []

    def keep_and_hear(tracker: Any, row: Row, samples: int) -> None:
        keep(tracker, row, samples)
        heard.append(row.step)
        thread = threading.Thread(
            target=listens.buffer_row, args=[make_validation_row(10 + len(heard), f"late{len(heard)}")]
        )
        thread.start()
        thread.join()

    monkeypatch.setattr(dumps, "_add_row", keep_and_hear)
    for step in (2, 3):
        listens.buffer_row(make_validation_row(step, f"early{step}"))
    listens.buffer_row(make_validation_row(9, "later"))
    listens.dump_validation_state(5)
    assert heard == [1, 2, 3]
    assert [row.step for row, _ in listens._waiting] == [9, 11, 12, 13], "in the order in which they came"
    monkeypatch.undo()
    listens.dump_validation_state(20)
    first, second = (path.read_text() for path in sorted((tmp_path / "rank0000" / "metrics_state").iterdir()))
    assert "early3" in first and "late1" not in first
    assert all(name in second for name in ("later", "late1", "late2", "late3"))


def test_a_dump_and_rows_that_no_longer_wait_take_turns(
    make_rank: Callable[..., Rank], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The tracker of the feed is no place for two threads."""
    one = make_rank(flags={"DUMP_METRICS": True})
    train_model(1)
    listens, inside, over = one.feed.dumps, threading.Event(), threading.Event()
    keep, main, beside = dumps._add_row, threading.current_thread(), []

    def keep_slowly(tracker: Any, row: Row, samples: int) -> None:
        if threading.current_thread() is main and not thread.ident:
            thread.start()
            inside.wait(0.5)  # it does not come inside while this is here
            over.set()
        elif threading.current_thread() is not main:
            inside.set()
            beside.append(over.is_set())
        keep(tracker, row, samples)

    def log() -> None:
        for number in range(2 * dumps.APART):
            listens.buffer_row(make_validation_row(10, f"late{number}"))

    thread = threading.Thread(target=log)
    monkeypatch.setattr(dumps, "_add_row", keep_slowly)
    listens.buffer_row(make_validation_row(2, "early"))
    listens.dump_validation_state(5)
    thread.join()
    assert beside and all(beside)


def test_closing_leaves_nothing(make_rank: Callable[..., Rank]) -> None:
    from torch.utils.tensorboard import SummaryWriter

    before = SummaryWriter.__dict__["add_scalar"]
    one = make_rank()
    tapped = SummaryWriter.__dict__["add_scalar"]
    assert tapped is not before and tapped.__wrapped__ is before
    one.feed.close()
    assert SummaryWriter.__dict__["add_scalar"] is before


def test_no_library_is_imported_for_a_tap(make_rank: Callable[..., Rank]) -> None:
    code = "import tdbg.inject.metrics.feed, sys; print(sorted({'wandb', 'tensorboard', 'torchmetrics', 'lightning', 'transformers', 'numpy', 'msgspec', 'torch'} & set(sys.modules)))"
    import subprocess

    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


@pytest.mark.parametrize("file", sorted(set(TAPS.values())))
def test_every_tap_is_there(file: str) -> None:
    import importlib

    assert callable(importlib.import_module(f"tdbg.inject.metrics.taps.{file}").arrive)


def test_a_tap_keeps_arguments_results_and_exceptions(make_rank: Callable[..., Rank]) -> None:
    tap = Tap(make_rank().feed)
    heard: list[Any] = []

    def original(a: int, *, b: int) -> int:
        if a < 0:
            raise KeyError(b)
        return a + b

    both = tap.wrap_function(original, before=lambda *call: heard.append(call), after=lambda *call: heard.append(call))
    assert both(1, b=2) == 3 and heard == [((1,), {"b": 2}), ((1,), {"b": 2}, 3)]
    with pytest.raises(KeyError):
        both(-1, b=5)
    assert len(heard) == 3


def test_the_value_of_an_event_is_that_of_the_row() -> None:
    row = Row(1.0, 1, values={"x": float("inf")}, own_step=3)
    again = row_codec.decode_line(row_codec.encode_row(row))
    assert isinstance(again, Row) and again.values == row.values and again.own_step == 3
    assert json.loads(row_codec.encode_row(row))["values"] == {"x": "Infinity"} and as_float(again.values["x"], "x") > 0
