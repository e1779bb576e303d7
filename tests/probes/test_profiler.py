"""The profiler's probe inside the test process: what is recorded, and what becomes of it where something is in the way."""

import gzip
import json
import math
import os
import threading
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from tdbg.core.events import Observation, Trace
from tdbg.core.profiling import MAX_STEPS, trace_name, wait_while_recording
from tdbg.probes.profiler.memory_history import MemoryHistory, name_beside, write_memory_history
from tests.probes.conftest import Watch

Start = Callable[..., Watch]


class Training:
    """A tiny training under the probe, whose traces go into a folder."""

    def __init__(self, seen: Watch, folder: Path) -> None:
        self.seen = seen
        self.folder = folder
        seen.monitor.folder = lambda: folder
        self.layer = nn.Linear(4, 1)
        self.optimizer = torch.optim.SGD(self.layer.parameters(), lr=1e-3)

    def run_steps(self, count: int) -> None:
        for _ in range(count):
            loss = self.layer(torch.ones(2, 4)).square().mean()
            self.optimizer.zero_grad()
            loss.backward()
            self.optimizer.step()

    def end_process(self) -> list[dict[str, Any]]:
        """The process ends; what the traces hold."""
        self.seen.monitor.finish_run()
        assert self.seen.failures == []
        files = sorted((self.folder / "traces").glob("*"))
        assert all(path.name.endswith(".pt.trace.json.gz") for path in files), files
        return [json.loads(gzip.decompress(path.read_bytes())) for path in files]

    @property
    def trace_events(self) -> list[Trace]:
        return [event for event in self.seen.events if isinstance(event, Trace)]

    @property
    def last_observation(self) -> Observation:
        return [event for event in self.seen.events if isinstance(event, Observation) and event.part == "DONE"][-1]


def list_marked_steps(trace: dict[str, Any]) -> list[int]:
    names = [event["name"] for event in sorted(trace["traceEvents"], key=lambda event: event.get("ts", 0))]
    return [int(name.partition("#")[2]) for name in names if name.startswith("ProfilerStep#")]


@pytest.fixture
def begin_training(start_watch: Start, tmp_path: Path) -> Iterator[Any]:
    def begin_one(**settings: Any) -> Training:
        return Training(start_watch(flags={"PROFILER": True}, **settings), tmp_path)

    yield begin_one
    if torch.autograd._profiler_enabled():
        torch.autograd._disable_profiler()
        pytest.fail("a profiler was left running")


def test_a_window(begin_training: Any) -> None:
    run = begin_training()
    run.run_steps(10)
    (trace,) = run.end_process()
    assert list_marked_steps(trace) == [3, 4, 5]
    (event,) = run.trace_events
    assert (event.first_step, event.steps, event.ended) == (3, 3, "") and len(event.steps_ms) == 3
    assert run.last_observation.values["missing"] == "" and run.last_observation.values["outside_ms"] > 0
    assert not run.seen.monitor.quiet
    assert [step.step for step in run.seen.train_steps if 2 <= step.step <= 6] == [2, 6], "a window is left alone"


def test_saves_and_beginnings_of_passes_have_spans_in_a_window_and_nowhere_else(
    begin_training: Any, tmp_path: Path
) -> None:
    import safetensors.torch
    import torch.distributed.checkpoint as dcp

    run = begin_training()
    outside = torch.save, torch.utils.data.DataLoader.__iter__
    for number in range(6):
        run.run_steps(1)
        torch.save(run.layer.state_dict(), tmp_path / f"{number}.pt")
        safetensors.torch.save_file(run.layer.state_dict(), str(tmp_path / f"{number}.safetensors"))
        if number > 2:
            dcp.save(run.layer.state_dict(), checkpoint_id=str(tmp_path / f"dcp{number}"))
        next(iter(torch.utils.data.DataLoader(torch.ones(4, 4))))
    (trace,) = run.end_process()
    names = Counter(event["name"] for event in trace["traceEvents"] if event.get("cat") == "user_annotation")
    recorded = len(list_marked_steps(trace))
    assert 0 < recorded < 6
    for name in ("tdbg.save: safetensors.save_file", "enumerate(DataLoader)#DataLoader.__iter__"):
        assert recorded - 1 <= names[name] <= recorded, (name, names)
    assert recorded - 1 <= names["tdbg.save: torch.save"] < 2 * 6  # other saves call it too
    assert names["tdbg.save: torch.distributed.checkpoint.save"] >= 1
    run.seen.monitor.detach()
    assert (torch.save, torch.utils.data.DataLoader.__iter__) != outside
    assert not hasattr(torch.save, "__wrapped__") and not hasattr(torch.utils.data.DataLoader.__iter__, "__wrapped__")


def test_the_steps_around_a_window_do_not_hold_its_pause(begin_training: Any) -> None:
    """Of three windows, since another process may hold up any one step."""
    run = begin_training(profile_kind="full", profile_active=20, profile_repeat=3)
    run.run_steps(70)
    run.end_process()
    after = [step.step_ms or 0.0 for step in run.seen.train_steps if step.step in (23, 45, 67)]
    assert len(after) == len(run.trace_events) == 3
    assert 0 < min(after) < min(event.pause_ms for event in run.trace_events) / 2


def test_freeing_what_was_recorded_belongs_to_the_pause(begin_training: Any) -> None:
    """Not to the steps after it, and not to what tdbg itself costs."""
    run = begin_training(profile_active=3, profile_kind="full")
    seen = run.seen
    block = nn.Sequential(*[nn.Linear(8, 8) for _ in range(300)])
    optimizer = torch.optim.SGD(block.parameters(), lr=1e-3)
    for _ in range(8):
        block(torch.ones(2, 8)).square().mean().backward()
        optimizer.step()
    paused_ms = seen.monitor.find_probe("profiler").tally.pause_ms
    assert len(run.trace_events) == 1 and paused_ms > 0.0
    assert seen.monitor.budget.by_part["profiler"] * 1e3 < 0.1 * paused_ms


def test_a_child_forked_in_a_window_records_nothing(begin_training: Any) -> None:
    run = begin_training(profile_active=5)
    run.run_steps(4)
    read, write = os.pipe()
    child = os.fork()
    if not child:
        run.seen.monitor.forked()
        run.layer(torch.ones(2, 4))
        os.write(write, b"%d" % (run.seen.monitor.find_probe("profiler").session is None))
        os._exit(0)
    os.waitpid(child, 0)
    assert os.read(read, 9) == b"1"
    os.close(read), os.close(write)
    run.run_steps(5)
    (trace,) = run.end_process()
    assert list_marked_steps(trace) == [3, 4, 5, 6, 7]


def test_a_window_that_another_thread_would_have_to_end_is_lost(begin_training: Any) -> None:
    run = begin_training(profile_active=5)
    run.run_steps(4)
    session = run.seen.monitor.find_probe("profiler").session
    thread = threading.Thread(target=lambda: run.run_steps(5))
    thread.start()
    thread.join()
    assert torch.autograd._profiler_enabled(), "torch goes on in the thread that began"
    torch.autograd._disable_profiler()
    assert session is not None and run.end_process() == []
    assert "is lost" in run.last_observation.values["missing"]


def test_many_evaluations_in_a_step_end_the_window(begin_training: Any) -> None:
    run = begin_training()
    run.run_steps(4)
    with torch.no_grad():
        for _ in range(40):
            run.layer(torch.ones(2, 4))
    run.run_steps(4)
    (trace,) = run.end_process()
    assert list_marked_steps(trace) == [3, 4, 5] and trace["tdbg"]["partial_step"] == 5
    assert run.trace_events[0].ended == "an evaluation began"


def test_switched_off_in_a_window(begin_training: Any) -> None:
    run = begin_training()
    run.run_steps(4)
    run.seen.monitor.set_active(False)
    run.run_steps(4)
    assert run.trace_events[0].ended == "tdbg was switched off" and run.trace_events[0].steps == 2
    assert not torch.autograd._profiler_enabled()


def test_a_profiler_of_the_program_gets_all_it_asked_for(begin_training: Any) -> None:
    run = begin_training()
    run.run_steps(4)
    with torch.profiler.profile() as own:
        run.run_steps(3)
    updates = sum(row.count for row in own.key_averages() if row.key.startswith("Optimizer.step"))
    assert updates == 3
    own.export_chrome_trace(str(run.folder / "own.json"))
    run.run_steps(9)
    ours, theirs = run.end_process()
    assert theirs == json.loads((run.folder / "own.json").read_text())
    assert [(event.why, event.steps) for event in run.trace_events] == [("schedule", 2), ("program", 3)]
    assert run.last_observation.values["missing"] == "" and list_marked_steps(ours) == [3, 4, 5]


def test_bytes_are_bounded(begin_training: Any) -> None:
    run = begin_training(profile_repeat=0, profile_active=1, disk_budget="1kB")
    run.run_steps(20)
    assert len(run.end_process()) == 1
    assert "--disk-budget" in run.last_observation.values["missing"]


@pytest.mark.parametrize(
    ("settings", "expected"),
    [
        ({"profile_wait": 0, "profile_warmup": 0, "profile_active": 2}, [[1, 2]]),
        ({"profile_active": 1, "profile_repeat": 2, "profile_skip_first": 2}, [[5], [8]]),
        ({"profile_wait": 0, "profile_active": 2, "profile_repeat": 0}, [[2, 3], [5, 6], [8, 9]]),
        ({"profile_window": "4:5,9"}, [[4, 5], [9]]),
        ({"profile_window": "1:2"}, [[1, 2]]),
        ({"ranks": "1"}, []),
    ],
)
def test_which_steps(begin_training: Any, settings: dict[str, Any], expected: list[list[int]]) -> None:
    """After the ninth step no window is open: one that is, and lasts longer than a step, is kept when the run ends."""
    run = begin_training(**settings)
    run.run_steps(9)
    assert [list_marked_steps(trace) for trace in run.end_process()] == expected
    assert run.last_observation.values["missing"] == ""


def test_threads_of_tdbg_rest_in_a_window(begin_training: Any) -> None:
    """Stacks are of all threads: a busy one of ours would be most of the trace."""
    ended, turns = threading.Event(), [0]

    def busy_thread_of_ours() -> None:
        while not ended.is_set():
            wait_while_recording()
            turns[0] += 1

    thread = threading.Thread(target=busy_thread_of_ours)
    thread.start()
    run = begin_training(profile_kind="stacks")
    try:
        run.run_steps(10)
        begun = turns[0]
        while turns[0] == begun:  # it goes on
            threading.Event().wait(0.001)
    finally:
        ended.set()
        thread.join()
    (trace,) = run.end_process()
    names = [event["name"] for event in trace["traceEvents"]]
    assert sum("busy_thread_of_ours" in name or "rest" in name for name in names) < 20
    assert sum("Linear" in name for name in names) >= 3


def test_without_the_finding_that_is_waited_for(begin_training: Any) -> None:
    run = begin_training(profile_on=["TD-N001"])
    run.run_steps(10)
    assert run.end_process() == [] and "no finding that --window-on waits for came in time" in run.last_observation.text


def test_of_many_ranks_the_first_alone(begin_training: Any) -> None:
    for rank, ranks, expected in ((0, "", 1), (3, "", 0), (3, "2-4", 1)):
        run = begin_training(ranks=ranks)
        run.folder = run.folder / f"{rank}{ranks}"
        run.folder.mkdir()
        folder = run.folder
        run.seen.monitor.folder = lambda folder=folder: folder
        run.seen.monitor.rank, run.seen.monitor.world_size = rank, 9
        run.run_steps(8)
        assert len(run.end_process()) == expected, (rank, ranks)
        run.seen.monitor.detach()
        assert run.last_observation.values["missing"] == ""
        assert ("--ranks selects others" in run.last_observation.text) == (not expected)


def test_what_the_allocator_of_cuda_did_is_written_as_json(tmp_path: Path) -> None:
    """The history itself is CUDA's; without it there is none, and nothing is written."""
    history = MemoryHistory()
    history.stop_recording()
    assert history.snapshot == {} or torch.cuda.is_initialized()
    trace = tmp_path / trace_name("rank0002", 17)
    path = name_beside(trace)
    assert path.name == "rank0002.17.memory.json.gz"
    entry = {"action": "alloc", "addr": 1 << 46, "size": 512, "frames": [{"filename": "a.py", "line": 3, "name": "f"}]}
    write_memory_history({"segments": [], "device_traces": [[entry]], "odd": {torch.float32: 1}.keys()}, path)
    kept = json.loads(gzip.decompress(path.read_bytes()))
    assert kept["device_traces"] == [[entry]] and "float32" in kept["odd"]
    write_memory_history({}, tmp_path / "nowhere" / "x.memory.json.gz")
    assert [one.name for one in tmp_path.iterdir()] == [path.name]


def test_calls_count_where_nothing_is_trained(begin_training: Any) -> None:
    run = begin_training(max_overhead=1e-6)
    with torch.no_grad():
        for _ in range(12):
            run.layer(torch.ones(2, 4))
    (trace,) = run.end_process()
    assert list_marked_steps(trace) == [3, 4, 5] and trace["tdbg"]["phase"] == "eval"
    assert trace["tdbg"]["float32_matmul_precision"] == "highest"  # torch's default; TD-P117 asks for it


def test_an_evaluation_before_the_training_does_not_count(begin_training: Any) -> None:
    """Two calls, as Lightning makes to see whether all works."""
    run = begin_training()
    with torch.no_grad():
        run.layer(torch.ones(2, 4)), run.layer(torch.ones(2, 4))
    run.run_steps(10)
    (trace,) = run.end_process()
    assert list_marked_steps(trace) == [3, 4, 5] and trace["tdbg"]["phase"] == "train"
    assert run.last_observation.values["missing"] == ""


def test_of_two_optimizers_the_first_counts(begin_training: Any) -> None:
    run = begin_training()
    other = torch.optim.Adam(run.layer.parameters(), lr=1e-4)
    for _ in range(8):
        run.run_steps(1)
        other.step()
    (trace,) = run.end_process()
    assert list_marked_steps(trace) == [3, 4, 5]
    names = [event["name"] for event in trace["traceEvents"]]
    assert names.count("Optimizer.step#Adam.step") == 3


def test_a_step_that_a_scaler_skips_is_a_step(begin_training: Any) -> None:
    run = begin_training(profile_active=4)
    scaler = torch.amp.GradScaler("cpu", init_scale=2.0)
    for step in range(1, 10):
        loss = run.layer(torch.ones(2, 4)).square().mean() * (float("inf") if step == 4 else 1.0)
        run.optimizer.zero_grad()
        scaler.scale(loss).backward()
        scaler.step(run.optimizer)
        scaler.update()
    (trace,) = run.end_process()
    assert list_marked_steps(trace) == [3, 4, 5, 6]
    assert run.trace_events[0].steps == 4


@pytest.mark.parametrize("before", [0, 1, 2, 3])
def test_a_schedule_of_the_programs_own(begin_training: Any, before: int) -> None:
    run = begin_training()
    run.run_steps(before)
    written = []
    plan = torch.profiler.schedule(wait=1, warmup=1, active=2, repeat=1)
    with torch.profiler.profile(
        schedule=plan, on_trace_ready=lambda own: written.append(export_trace(own, run.folder))
    ) as own:
        for _ in range(6):
            run.run_steps(1)
            own.step()
    run.run_steps(12)
    traces = run.end_process()
    assert json.loads(written[0].read_text()) == traces[-1] and len(written) == 1
    cut = [(event.steps, event.ended) for event in run.trace_events if event.why == "schedule"]
    assert cut == [(before - 1, "a profiler of the program began")] * (before > 1)
    assert run.trace_events[-1].why == "program" and run.trace_events[-1].steps == 2
    assert run.last_observation.values["missing"] == ""


def export_trace(own: torch.profiler.profile, folder: Path) -> Path:
    path = folder / "theirs.json"
    own.export_chrome_trace(str(path))
    return path


def test_where_the_program_writes_no_trace_the_window_comes_later(begin_training: Any) -> None:
    run = begin_training()
    run.run_steps(1)
    with torch.profiler.profile():
        run.run_steps(4)
    run.run_steps(9)
    (trace,) = run.end_process()
    assert list_marked_steps(trace) == [8, 9, 10], "a wait and a warm-up after the fifth step"
    assert run.last_observation.values["missing"] == ""


KINDS: dict[str, Callable[[dict[str, Any]], Any]] = {
    "memory": lambda trace: any(event["name"] == "[memory]" for event in trace["traceEvents"]),
    "shapes": lambda trace: any("Input Dims" in event.get("args", {}) for event in trace["traceEvents"]),
    "stacks": lambda trace: any(event["name"].startswith("nn.Module: Linear") for event in trace["traceEvents"]),
    "flops": lambda trace: trace.get("with_flops"),
}


@pytest.mark.parametrize("kind", ["light", *KINDS, "full"])
def test_kinds(begin_training: Any, kind: str) -> None:
    run = begin_training(profile_kind=kind, profile_active=1)
    run.run_steps(5)
    (trace,) = run.end_process()
    for name, holds in KINDS.items():
        assert bool(holds(trace)) == (kind in (name, "full") or (name, kind) == ("shapes", "flops")), name


def test_nothing_of_tdbg_is_recorded(begin_training: Any) -> None:
    """The first eight steps are looked at whatever it costs; not so those that are recorded."""
    run = begin_training(level="extreme")
    run.run_steps(10)
    (trace,) = run.end_process()
    run.seen.monitor.detach()
    with torch.profiler.profile() as own:
        run.run_steps(3)
    own.export_chrome_trace(str(run.folder / "own.json"))
    bare = json.loads((run.folder / "own.json").read_text())
    assert count_operators(trace) == count_operators(bare) and count_operators(bare)["aten::addmm"] == 3


def count_operators(trace: dict[str, Any]) -> Counter[str]:
    return Counter(event["name"] for event in trace["traceEvents"] if event["name"].startswith("aten::"))


def test_a_nan_that_came_in_a_window_is_told_with_all_its_steps(begin_training: Any) -> None:
    """Nobody looked: neither the step nor the cause is known, and the batch at hand is a later one."""
    run = begin_training()
    run.run_steps(3)
    with torch.no_grad():
        run.layer.weight[0, 0] = math.nan
    run.run_steps(4)
    run.end_process()
    (event,) = run.seen.bad_values
    assert (event.step, event.until, event.phase, event.parameter) == (3, 5, "", "weight")
    assert event.batch == "" and run.seen.saved == [] and event.last_good["step"] == 2
    assert event.note == "not watched: a profiler was recording"


def test_nothing_of_tdbg_is_recorded_where_nothing_is_trained(begin_training: Any) -> None:
    run = begin_training(level="extreme")
    with torch.no_grad():
        for _ in range(10):
            run.layer(torch.ones(2, 4))
    (trace,) = run.end_process()
    run.seen.monitor.detach()
    with torch.no_grad(), torch.profiler.profile() as own:
        for _ in range(3):
            run.layer(torch.ones(2, 4))
    own.export_chrome_trace(str(run.folder / "own.json"))
    assert count_operators(trace) == count_operators(json.loads((run.folder / "own.json").read_text()))


def test_training_ends_a_window_over_an_evaluation(begin_training: Any) -> None:
    run = begin_training()
    with torch.no_grad():
        for _ in range(4):
            run.layer(torch.ones(2, 4))
    run.run_steps(8)
    evaluation, trace = run.end_process()
    assert count_operators(evaluation)["aten::linear"] == 2, "of steps 3 and 4, and none of training"
    assert trace["tdbg"]["phase"] == "train" and list_marked_steps(trace) == [3, 4, 5]


def test_a_profiler_of_the_programs_own_shows_the_program_alone(start_watch: Start, tmp_path: Path) -> None:
    """Whatever flags are on."""
    rows = []
    for level in ("basic", "extreme", "off"):
        seen = start_watch(level=level)
        if level == "off":
            seen.monitor.detach()
        run = Training(seen, tmp_path)
        run.run_steps(1)
        with torch.profiler.profile() as own:
            run.run_steps(3)
        rows.append({row.key: row.count for row in own.key_averages()})
        run.run_steps(2)
        if level != "off":
            assert [step.step for step in seen.train_steps] == [1, 5, 6], "and then tdbg goes on"
            seen.monitor.detach()
    assert rows[0] == rows[1] == rows[2]


def test_a_profiler_that_never_ends_does_not_blind_tdbg(start_watch: Start, tmp_path: Path) -> None:
    seen = start_watch()
    run = Training(seen, tmp_path)
    with torch.profiler.profile():
        run.run_steps(MAX_STEPS + 5)
    assert seen.train_steps[0].step == MAX_STEPS + 1 and "profiled-on" in seen.notes


def test_a_window_that_was_asked_for_and_came_too_late(begin_training: Any) -> None:
    """The finding that --window-on waits for was there; the program ended before its window."""
    run = begin_training(profile_on=["TD-N001"])
    run.run_steps(4)
    run.seen.monitor.request_profile(5, 3, "TD-N001")
    run.run_steps(1)
    assert run.end_process() == []
    assert run.last_observation.values["missing"] == "5 steps seen, but the next window ends at step 8"
