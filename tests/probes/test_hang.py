"""Hangs at every level: when a standstill is one, what is read of it, and what is told."""

import linecache
import sys
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch.testing._internal.distributed.fake_pg import FakeStore

from tdbg.core.events import Observation
from tdbg.core.ranges import unpack_numbers
from tdbg.probes.hang import find_given_rank, hang_watch
from tdbg.probes.hang.activity import find_distributed_call, iter_frames, make_stack_key, name_activity
from tdbg.probes.hang.collective_status import CollectiveStatus, GroupNames, RunningCall, read_status
from tdbg.probes.hang.hang_watch import HangWatch, Look, Standstill
from tdbg.probes.hang.training_lines import locate_own_line
from tdbg.runtime import thread_stacks
from tdbg.runtime.code_places import short_path

PATIENCE_S = 30.0
BASE_S = 15.0
CALL = RunningCall("all_reduce", "world", 7, 2)


class Clock:
    """Drives a watch through time: what the thread would do every two seconds."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.now = 1000.0
        self.steps = 0
        self.status = CollectiveStatus({}, {})
        self.look: dict[str, Any] = {"state": "elsewhere", "activity": "sleep", "stack_key": 1, "cpu_s": 0.0}
        self.told: list[tuple[float, Standstill]] = []
        self.resumed: list[float] = []
        self.lines: list[object] = []
        self.evaluations = 0
        self.signs: list[float] = []  # when it gave one of life
        monkeypatch.setattr(hang_watch, "read_status", lambda: self.status)
        monkeypatch.setattr(time, "monotonic", lambda: self.now)
        self.watch = HangWatch(
            BASE_S,
            lambda: (self.steps, self.steps, self.evaluations),
            self._keep_told,
            self.resumed.append,
            self.lines.append,
            report_alive=lambda where: self.signs.append(self.now),
        )
        monkeypatch.setattr(self.watch, "_read_look", lambda status: self._make_look())
        self.watch.check_progress(self.now)

    def _make_look(self) -> Look:
        known = {"call": None, "counts": None, "where": "train.py:1 in main"}
        return Look(**{**known, **self.look})

    def _keep_told(self, found: Standstill) -> None:
        self.told.append((self.now, found))

    def pass_time(self, seconds: float, *, moving: bool = False, cpu: float = 0.0) -> None:
        """Time passes without progress. moving: the stack is another one each time. cpu: share of a CPU used."""
        end = self.now + seconds
        while self.now < end:
            self.now += min(2.0, end - self.now)
            self.look["stack_key"] += moving
            self.look["cpu_s"] += 2.0 * cpu
            self.watch.check_progress(self.now)

    def go_on(self, steps: int = 1) -> None:
        for _ in range(steps):
            self.steps += 1
            self.now += 0.1
            self.watch.check_progress(self.now)


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    return Clock(monkeypatch)


def test_a_standstill_is_told_after_the_limit_and_at_doubling_times(clock: Clock) -> None:
    begun = clock.now
    clock.pass_time(14.0)
    assert not clock.told
    clock.pass_time(116.0)
    assert [round(now - begun) for now, _ in clock.told] == [16, 32, 64, 128]
    assert clock.told[0][1].limit_s == BASE_S and clock.told[0][1].look.activity == "sleep"
    clock.go_on()
    assert clock.resumed == [pytest.approx(130.1)]


@pytest.mark.parametrize("how", [{"moving": True}, {"cpu": 0.9}])
def test_who_is_at_work_is_told_much_later(clock: Clock, how: dict[str, Any]) -> None:
    clock.pass_time(8 * BASE_S - 4, **how)
    assert not clock.told
    clock.pass_time(10.0, **how)
    assert len(clock.told) == 1 and clock.told[0][1].look.activity == "compute"


def test_one_who_stops_working_is_seen_at_once(clock: Clock) -> None:
    clock.pass_time(60.0, moving=True)
    clock.pass_time(4.0)
    assert not clock.told, "it is to be confirmed"
    clock.pass_time(4.0)
    assert len(clock.told) == 1 and clock.told[0][1].look.activity == "sleep"


@pytest.mark.parametrize(
    ("activity", "limit_s"),
    [("checkpoint", 600.0), ("network", 600.0), ("command", 120.0), ("import", 120.0), ("compile", 1800.0)],
)
def test_what_takes_long_as_a_rule_has_its_own_limit(clock: Clock, activity: str, limit_s: float) -> None:
    clock.look["activity"] = activity
    clock.pass_time(limit_s - 4)
    assert not clock.told
    clock.pass_time(10.0)
    assert len(clock.told) == 1


def test_a_debugger_is_never_told(clock: Clock) -> None:
    clock.look["activity"] = "debugger"
    clock.pass_time(10_000.0)
    assert not clock.told


def test_the_limit_grows_with_what_the_run_does(clock: Clock) -> None:
    """A loader that took 14 s each epoch is told after 21 s, not after 15."""
    clock.look["activity"] = "loader"
    for _ in range(3):
        clock.pass_time(14.0)
        clock.go_on(10)
    assert not clock.told
    clock.pass_time(20.0)
    assert not clock.told
    clock.pass_time(4.0)
    assert [found.limit_s for _, found in clock.told] == [pytest.approx(1.5 * 14.1)]


def test_a_wait_for_others_is_told_whatever_it_took_before(clock: Clock) -> None:
    """How long others need is judged where they are."""
    clock.look.update(state="collective", call=CALL, activity="waiting")
    for number in range(hang_watch.MAX_EPISODES):
        clock.pass_time(100.0)
        clock.go_on()
        assert clock.told[-1][0] - 100.0 < clock.now and len(clock.resumed) == number + 1
    told = len(clock.told)
    clock.pass_time(100.0)
    assert len(clock.told) == told, "after so many, not before it takes longer"
    clock.pass_time(100.0)
    assert len(clock.told) == told + 1


def test_collectives_are_progress(clock: Clock) -> None:
    for number in range(1, 40):
        clock.status = CollectiveStatus({"0": number}, {"0": number})
        clock.pass_time(4.0)
    assert not clock.told


def test_the_time_in_which_the_process_was_stopped_does_not_count(clock: Clock) -> None:
    clock.pass_time(10.0)
    clock.now += 300.0
    clock.watch.check_progress(clock.now)
    clock.pass_time(2.0)
    assert not clock.told
    clock.pass_time(6.0)
    assert len(clock.told) == 1 and clock.told[0][1].quiet_s < 20.0


def test_another_collective_is_another_place(clock: Clock) -> None:
    clock.look.update(state="collective", call=CALL, activity="waiting")
    clock.pass_time(14.0)
    clock.look["call"] = RunningCall("broadcast", "world", 8, 2)
    clock.pass_time(4.0)
    assert not clock.told
    clock.pass_time(4.0)
    assert len(clock.told) == 1


@pytest.mark.parametrize(
    "activity", ["checkpoint", "compile", "network", "command", "import", "compute", "debugger", "evaluation"]
)
def test_who_makes_no_training_step_gives_signs_of_life(clock: Clock, activity: str) -> None:
    """Others may wait for it; and the rules tell of ranks that give none."""
    clock.look["activity"] = activity
    begun = clock.now
    for _ in range(50):
        clock.evaluations += activity == "evaluation"
        clock.pass_time(2.0)
    assert not clock.told and [round(t - begun) for t in clock.signs] == [20, 40, 60, 80, 100]


def test_who_trains_gives_no_other_sign_and_who_is_told_to_stand_still_does(clock: Clock) -> None:
    for _ in range(30):
        clock.go_on()
        clock.pass_time(4.0)
    assert not clock.signs
    clock.pass_time(300.0)
    assert len(clock.told) == 5 and len(clock.signs) == 15


@pytest.mark.parametrize(
    ("args", "kwargs", "given"),
    [
        (("gloo",), {"rank": 1, "world_size": 4}, (1, 4)),
        (("gloo", "tcp://localhost:1", None, 4, 3), {}, (3, 4)),
        (("gloo",), {}, None),
        (("gloo",), {"rank": -1, "world_size": -1}, None),
        (("gloo",), {"rank": 0, "world_size": 1}, None),
        (("gloo",), {"rank": "1", "world_size": 4}, None),
    ],
)
def test_the_rank_that_a_program_gives_to_torch_is_known(
    args: tuple[object, ...], kwargs: dict[str, object], given: tuple[int, int] | None
) -> None:
    assert find_given_rank(args, kwargs) == given


# what is read


@pytest.fixture
def gloo_alone() -> Iterator[None]:
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    yield
    dist.destroy_process_group()


def test_calls_are_counted_by_the_recorder(gloo_alone: None) -> None:
    before, names = read_status(), GroupNames()
    for _ in range(3):
        dist.all_reduce(torch.ones(2))
    dist.barrier()
    after, patient_until = read_status(), time.monotonic() + 10.0
    while after.begun != after.ended and time.monotonic() < patient_until:  # a thread of torch's notes the ends
        time.sleep(0.01)
        after = read_status()
    names.read_entries()
    counts = names.count_calls(after)
    assert counts["world"] == 4 and after.progress != before.progress
    assert names.find_running(after) is None, "each of them has ended"


def test_the_call_that_has_not_ended_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    entries = [
        {"pg_id": 0, "collective_seq_id": 4, "process_group": ["0", "default_pg"], "profiling_name": "gloo:barrier"},
        {"pg_id": 0, "collective_seq_id": 5, "process_group": ["0", "default_pg"], "profiling_name": "nccl:all_reduce"},
        {"pg_id": 3, "collective_seq_id": 1, "process_group": ["17", "pair"], "profiling_name": "nccl:send"},
    ]
    monkeypatch.setattr(
        "tdbg.probes.hang.collective_status.read_flight_record", lambda calls: {"entries": entries} if calls else {}
    )
    names = GroupNames()
    names.read_entries()
    status = CollectiveStatus({"0": 5, "3": 1, "9": 2}, {"0": 4, "3": 1})
    found = names.find_running(status)
    assert found is not None and (found.op, found.group, found.number) == ("all_reduce", "world", 5)
    assert names.count_calls(status) == {"world": 5, "17": 1}
    late = CollectiveStatus({"0": 5}, {"0": 3})
    assert names.find_running(late).number == 4, "as far as is known"
    for function, number in (("all_reduce", 5), ("barrier", 4), ("all_gather_object", 4)):
        assert names.find_running(late, function).number == number, "gloo says late what has ended: the stack knows"


@pytest.mark.parametrize("members", [[0, 1], list(range(3, 67)), list(range(1, 400, 3)), [0, 1, *range(70, 300)]])
def test_the_call_is_told_with_all_its_ranks_and_its_tensors(
    monkeypatch: pytest.MonkeyPatch, members: list[int]
) -> None:
    tensors = {"input_sizes": [[8, 4], [], [0]], "input_dtypes": ["Float", "Long", "BFloat16"]}
    entry = {"pg_id": 3, "collective_seq_id": 1, "process_group": ["17", "pair"], "profiling_name": "nccl:all_reduce"}
    rows = {"entries": [entry | tensors]}
    monkeypatch.setattr("tdbg.probes.hang.collective_status.read_flight_record", lambda calls: rows)
    monkeypatch.setattr("tdbg.probes.hang.collective_status.group_members", lambda name: members)
    names = GroupNames()
    names.read_entries()
    found = names.find_running(CollectiveStatus({"3": 1}, {"3": 0}))
    assert found is not None and found.shapes == ["8x4 Float", "1 Long", "0 BFloat16"]
    assert found.ranks == members[:64] and (found.rank_ranges is None) == (len(members) <= 64)
    assert list(unpack_numbers(found.rank_ranges or "")) == (members if len(members) > 64 else [])


@pytest.mark.parametrize("tensors", [{}, {"input_sizes": 3}, {"input_sizes": [[1]] * 9, "input_dtypes": ["Float"] * 9}])
def test_tensors_that_are_many_or_not_on_record_are_not_told(
    monkeypatch: pytest.MonkeyPatch, tensors: dict[str, Any]
) -> None:
    entry = {"pg_id": 3, "collective_seq_id": 1, "process_group": ["17", "pair"], "profiling_name": "nccl:all_reduce"}
    rows = {"entries": [entry | tensors]}
    monkeypatch.setattr("tdbg.probes.hang.collective_status.read_flight_record", lambda calls: rows)
    names = GroupNames()
    names.read_entries()
    found = names.find_running(CollectiveStatus({"3": 1}, {"3": 0}))
    assert found is not None and found.shapes is None


@pytest.mark.parametrize(
    ("row", "begun"),
    [({}, {}), ({"last_enqueued_collective": "x"}, {}), ({"last_enqueued_collective": "3"}, {"0": 3}), (7, {})],
)
def test_a_recorder_of_another_torch_is_read_as_far_as_it_goes(
    monkeypatch: pytest.MonkeyPatch, row: object, begun: dict[str, int]
) -> None:
    monkeypatch.setattr(
        "tdbg.probes.hang.collective_status.read_flight_record", lambda calls: {"pg_status": {"0": row}}
    )
    assert read_status().begun == begun


def wait_in(function: Callable[[threading.Event], object]) -> tuple[list[Any], str, int]:
    """The stack of a thread that is inside a function, its line, and the key of the stack."""
    ready, end = threading.Event(), threading.Event()

    def enter() -> None:
        ready.set()
        function(end)

    thread = threading.Thread(target=enter)
    thread.start()
    ready.wait(PATIENCE_S)
    time.sleep(0.05)
    frame = sys._current_frames()[thread.ident or 0]
    frames = iter_frames(frame)
    line = linecache.getline(frame.f_code.co_filename, frame.f_lineno)
    found = frames, line, make_stack_key(frames)
    again = make_stack_key(iter_frames(sys._current_frames()[thread.ident or 0]))
    assert again == found[2], "who stands still has the same key"
    end.set()
    thread.join(PATIENCE_S)
    return found


def sleep_a_little(end: threading.Event) -> None:
    time.sleep(0.5)


def call_pdb(end: threading.Event) -> None:
    code = compile("def interaction(end):\n    end.wait()\n", "/usr/lib/python3.11/pdb.py", "exec")
    space: dict[str, Any] = {}
    exec(code, space)
    space["interaction"](end)


@pytest.mark.parametrize(
    ("file", "activity"),
    [
        ("/env/lib/python3.11/site-packages/wandb/sdk/wandb_init.py", "network"),
        ("/usr/lib/python3.11/urllib/request.py", "network"),
        ("/usr/lib/python3.11/subprocess.py", "command"),
        ("/env/lib/python3.11/site-packages/torch/serialization.py", "checkpoint"),
        ("/env/lib/python3.11/site-packages/torch/_dynamo/eval_frame.py", "compile"),
    ],
)
def test_what_a_wait_is_for_is_known_by_the_files_on_the_stack(file: str, activity: str) -> None:
    space: dict[str, Any] = {}
    exec(compile("def work(end):\n    end.wait()\n", file, "exec"), space)
    frames, line, _ = wait_in(space["work"])
    assert name_activity(frames, line) == activity


def test_what_a_thread_does_is_known_by_its_stack() -> None:
    frames, line, _ = wait_in(sleep_a_little)
    assert name_activity(frames[:1], line) == "sleep"
    frames, line, _ = wait_in(lambda end: end.wait())
    assert name_activity(frames[:2], line) == "lock"
    frames, line, _ = wait_in(call_pdb)
    assert name_activity(frames, line) == "debugger", "whatever it waits for"
    assert find_distributed_call(frames) == ""


def test_frame_without_a_line_uses_the_first_line_of_its_function() -> None:
    """A thread may stand at one that the compiler added; generated code may have no lines at all."""

    def sleep_without_lines(end: threading.Event) -> None:
        end.wait()

    code = sleep_without_lines.__code__
    sleep_without_lines.__code__ = code.replace(co_linetable=b"")
    frames, _, _ = wait_in(sleep_without_lines)
    own = next(frame for frame in frames if frame.f_code.co_name == "sleep_without_lines")
    assert own.f_lineno is None
    assert thread_stacks.locate_frame(own) == f"test_hang.py:{code.co_firstlineno} in sleep_without_lines"
    assert thread_stacks.read_source_line(own) == linecache.getline(__file__, code.co_firstlineno)
    assert locate_own_line(own) == (f"{short_path(__file__)}:{code.co_firstlineno}", code.co_qualname)


def test_a_call_of_torch_distributed_is_known_by_its_stack() -> None:
    space: dict[str, Any] = {}
    for name, body in (("_store_wait", "end.wait()"), ("recv", "_store_wait(end)"), ("wrapper", "recv(end)")):
        path = f"/x/torch/distributed/{'c10d_logger' if name == 'wrapper' else 'distributed_c10d'}.py"
        exec(compile(f"def {name}(end):\n    {body}\n", path, "exec"), space)
    frames, _, _ = wait_in(space["wrapper"])
    assert find_distributed_call(frames) == "recv"


# what is told


def test_a_rank_that_stands_still_tells_so_without_a_flag(start_watch: Callable[..., Any]) -> None:
    run = start_watch(thresholds={"DISTRIBUTED.hang_s": 1.0})
    dist.init_process_group("fake", store=FakeStore(), rank=0, world_size=2)
    try:
        end = time.monotonic() + PATIENCE_S
        while not [event for event in run.events if isinstance(event, Observation)] and time.monotonic() < end:
            time.sleep(0.2)
        told = [event for event in run.events if isinstance(event, Observation)]
        assert told and (told[0].probe, told[0].part, told[0].flag) == ("hang", "QUIET", "DISTRIBUTED")
        values = told[0].values
        assert values["where"].startswith("test_hang.py:") and values["limit_s"] >= 1.0
        assert any("test_hang" in line for line in str(run.kept[values["stacks"]]).splitlines())
    finally:
        dist.destroy_process_group()


def test_one_process_alone_is_not_watched(start_watch: Callable[..., Any], gloo_alone: None) -> None:
    run = start_watch()
    assert run.monitor.find_probe("hang")._watch is None


def test_with_the_flag_a_busy_rank_is_reported(start_watch: Callable[..., Any]) -> None:
    limits = {"DISTRIBUTED.hang_s": 30.0, "DISTRIBUTED.quiet_s": 1.0}
    run = start_watch(flags={"DISTRIBUTED": True}, thresholds=limits)
    dist.init_process_group("fake", store=FakeStore(), rank=0, world_size=2)
    try:
        end, rows = time.monotonic() + PATIENCE_S, []
        while not rows and time.monotonic() < end:
            sum(range(1000))
            rows = [event for event in run.events if isinstance(event, Observation) and event.part == "QUIET"]
        assert rows[0].probe == "distributed" and rows[0].values["limit_s"] in (30.0, 240.0)
    finally:
        dist.destroy_process_group()


class Tracker:
    """Call counts as the flag DISTRIBUTED keeps them."""

    quiet_s, home = 20.0, None

    def __init__(self) -> None:
        self.progress = (0, 0)

    def find_state(self, frame: object) -> tuple[str, RunningCall | None]:
        return "elsewhere", None

    def count_calls(self) -> dict[str, int] | None:
        return None


@pytest.mark.parametrize(
    ("activity", "told_after_s"), [("sleep", 16.0), ("compute", 20.0), ("compile", 20.0), ("debugger", None)]
)
def test_quiet_s_limits_every_activity_but_a_debugger(clock: Clock, activity: str, told_after_s: float | None) -> None:
    clock.watch._find_tracker = Tracker
    clock.watch.check_progress(clock.now)
    begun = clock.now
    clock.look["activity"] = activity
    clock.pass_time(40.0)
    assert [told_t - begun for told_t, _ in clock.told[:1]] == ([] if told_after_s is None else [told_after_s])


@pytest.mark.parametrize("activity", ["compute", "checkpoint", "compile", "import", "command", "network"])
@pytest.mark.parametrize("how", [{"moving": True}, {"cpu": 0.9}, {"moving": True, "cpu": 0.9}])
def test_the_flag_reports_a_busy_rank_whatever_it_does(clock: Clock, activity: str, how: dict[str, Any]) -> None:
    clock.watch._find_tracker = Tracker
    clock.watch.check_progress(clock.now)
    begun = clock.now
    clock.look["activity"] = activity
    clock.pass_time(60.0, **how)
    assert [round(told_t - begun) for told_t, _ in clock.told] == [20, 40]
    assert clock.told[0][1].limit_s >= 8 * BASE_S, "by which the rules tell a hang of all ranks"


def test_calls_of_python_are_progress(clock: Clock) -> None:
    tracker = Tracker()
    clock.watch._find_tracker = lambda: tracker
    for number in range(10):
        tracker.progress = (number, number)
        clock.pass_time(10.0)
    assert clock.told == []


def test_stop_watching_reports_a_rank_that_resumed(clock: Clock) -> None:
    clock.pass_time(20.0)
    assert len(clock.told) == 1
    clock.steps += 1
    clock.now += 0.5
    clock.watch.stop_watching()
    assert len(clock.resumed) == 1
    clock.watch.stop_watching()
    assert len(clock.resumed) == 1


def test_stop_watching_waits_for_a_running_report(clock: Clock) -> None:
    """The end of watching waits for a look that writes, and not for ever."""
    clock.pass_time(20.0)
    clock.steps += 1
    with clock.watch._turn:
        ending = threading.Thread(target=clock.watch.stop_watching)
        ending.start()
        ending.join(0.1)
        assert clock.resumed == []
    ending.join(PATIENCE_S)
    assert len(clock.resumed) == 1


@pytest.mark.parametrize(("state", "has_resumed"), [("collective", True), ("backward", True), ("elsewhere", False)])
def test_destroying_the_group_ends_a_wait_for_other_ranks(clock: Clock, state: str, has_resumed: bool) -> None:
    """The last barrier before a program ends may come late; who was elsewhere may be at its end for another reason."""
    clock.look.update(state=state, activity="waiting")
    clock.pass_time(20.0)
    clock.watch.stop_watching(has_returned=True)
    assert len(clock.told) == 1 and bool(clock.resumed) == has_resumed


@pytest.mark.parametrize("first", [True, False])
def test_a_flag_that_is_turned_on_or_off_is_no_progress(clock: Clock, first: bool) -> None:
    tracker = Tracker()
    tracker.progress = (9, 8)
    clock.watch._find_tracker = (lambda: tracker) if first else (lambda: None)
    clock.pass_time(2.0)
    clock.go_on()
    clock.pass_time(20.0)
    assert len(clock.told) == 1
    clock.watch._find_tracker = (lambda: None) if first else (lambda: tracker)
    clock.pass_time(10.0)
    assert clock.resumed == [] and len(clock.told) == 1


def test_a_watch_that_is_switched_off_by_its_own_report_does_not_wait_for_itself(clock: Clock) -> None:
    stopped: list[float] = []

    def stop() -> None:
        begun = time.perf_counter()
        with clock.watch._turn:
            clock.watch.stop_watching()
        stopped.append(time.perf_counter() - begun)

    clock.pass_time(20.0)
    clock.watch._thread = threading.Thread(target=stop)
    clock.watch._thread.start()
    clock.watch._thread.join(PATIENCE_S)
    assert stopped[0] < hang_watch.LAST_LOOK_S / 2


def test_the_thread_that_trains_is_looked_at(start_watch: Callable[..., Any]) -> None:
    run = start_watch(thresholds={"DISTRIBUTED.hang_s": 1.0})
    is_told = threading.Event()

    def sleep_in_thread() -> None:
        dist.init_process_group("fake", store=FakeStore(), rank=0, world_size=2)
        is_told.wait(PATIENCE_S)
        dist.destroy_process_group()

    thread = threading.Thread(target=sleep_in_thread)
    thread.start()
    end, rows = time.monotonic() + PATIENCE_S, []
    while not rows and time.monotonic() < end:
        time.sleep(0.05)
        rows = [event for event in run.events if isinstance(event, Observation) and event.part == "QUIET"]
    is_told.set()
    thread.join(PATIENCE_S)
    assert rows[0].values["where"].endswith("in sleep_in_thread")


def test_a_group_that_cannot_be_made_is_not_watched(
    start_watch: Callable[..., Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("RANK", "0")
    monkeypatch.setenv("WORLD_SIZE", "2")
    hang = start_watch().monitor.find_probe("hang")
    with pytest.raises(TypeError, match="timeout"):
        dist.init_process_group("fake", store=FakeStore(), rank=0, world_size=2, timeout="soon")
    assert hang._watch is None and hang.monitor.given_rank is None
    dist.init_process_group("fake", store=FakeStore(), rank=0, world_size=1)
    try:
        assert hang._watch is None
    finally:
        dist.destroy_process_group()


def test_the_rank_that_was_given_is_forgotten_with_the_group(start_watch: Callable[..., Any]) -> None:
    monitor = start_watch().monitor
    dist.init_process_group("fake", store=FakeStore(), rank=1, world_size=2)
    try:
        assert monitor.given_rank == (1, 2)
    finally:
        dist.destroy_process_group()
    assert monitor.given_rank is None


def test_a_call_that_has_returned_ends_the_wait_without_a_flight_recorder(clock: Clock) -> None:
    """A rank that saves after the barrier is no longer hung."""
    clock.look.update(state="collective", activity="waiting")
    clock.pass_time(20.0)
    assert len(clock.told) == 1
    clock.look.update(state="elsewhere", activity="checkpoint")
    clock.pass_time(30.0)
    assert len(clock.resumed) == 1 and len(clock.told) == 1


def test_a_thread_that_has_ended_is_not_looked_at(start_watch: Callable[..., Any]) -> None:
    run = start_watch(thresholds={"DISTRIBUTED.hang_s": 1.0})
    hang = run.monitor.find_probe("hang")
    thread = threading.Thread(target=lambda: setattr(hang, "_home", threading.get_ident()))
    thread.start()
    thread.join()
    assert hang._find_thread() == threading.main_thread().ident
