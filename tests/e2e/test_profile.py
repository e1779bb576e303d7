"""`tdbg profile`: the windows asked for are in the traces, over real steps, and the program is as it was."""

import gzip
import json
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest

from tdbg.core.events import Observation, Trace
from tdbg.core.profiling import is_trace_name
from tdbg.traces.analyze.summary_cache import load_summary
from tdbg.traces.parse import trace_files
from tests.e2e.conftest import (
    Result,
    Runner,
    assert_same_output,
    build_environment,
    build_program_command,
    build_torchrun_command,
    run_command,
)
from tests.e2e.test_control import begin_run  # noqa: F401

Spans = list[dict[str, Any]]


@pytest.fixture
def profiled_runner(tmp_path: Path) -> Runner:
    """``profiled(words, options, env)``: the command under `tdbg profile`."""

    def run_profiled(words: Sequence[str], options: Sequence[str] = (), env: Mapping[str, str] = {}) -> Result:
        folder = tmp_path / "run"
        command = [sys.executable, "-m", "tdbg", "profile", "--run-dir", str(folder), *options, "--", *words]
        result = run_command(command, tmp_path, env)
        result.folder = folder
        return result

    return run_profiled


def load_traces(result: Result, rank: int = 0) -> list[dict[str, Any]]:
    """What the traces of a rank hold, in order of time; each is compressed, and nothing half done is beside them."""
    folder = result.folder / f"rank{rank:04d}" / "traces"
    found = sorted(folder.iterdir(), key=lambda path: path.name) if folder.is_dir() else []
    files = [path for path in found if not path.name.startswith("events.out.tfevents.")]
    assert all(is_trace_name(path.name) and path.name.endswith(".gz") for path in files), files
    told = [event.file + ".gz" for event in result.list_events(Trace, rank)]
    assert told == [f"traces/{path.name}" for path in files]
    return [json.loads(gzip.decompress(path.read_bytes())) for path in files]


def find_spans(trace: Mapping[str, Any], name: str) -> Spans:
    """The spans whose names begin so."""
    found = [event for event in trace["traceEvents"] if event.get("ph") == "X" and event["name"].startswith(name)]
    return sorted(found, key=lambda event: event["ts"])


def list_steps(trace: Mapping[str, Any]) -> list[int]:
    """The steps that the trace marks."""
    return [int(span["name"].partition("#")[2]) for span in find_spans(trace, "ProfilerStep#")]


def find_done(result: Result, rank: int = 0) -> Observation:
    """What the profiler said at the end."""
    (event,) = [
        event for event in result.list_events(Observation, rank) if event.probe == "profiler" and event.part == "DONE"
    ]
    return event


def test_the_first_window_is_over_three_real_steps(profiled_runner: Runner, bare_runner: Runner) -> None:
    result = profiled_runner(build_program_command("plain"))
    assert_same_output(result, bare_runner(build_program_command("plain")))
    (trace,) = load_traces(result)
    assert list_steps(trace) == [3, 4, 5]
    assert len(find_spans(trace, "Optimizer.step#AdamW")) == 3, "one update a step"
    assert len(find_spans(trace, "enumerate(DataLoader)")) == 3
    assert trace["tdbg"] == {
        "first_step": 3, "wanted": 3, "phase": "train", "kind": "light", "rank": 0, "world_size": 1,
        "float32_matmul_precision": "highest",
    }  # fmt: skip
    assert result.codes == []
    (event,) = result.list_events(Trace)
    assert (event.steps, event.wanted, event.ended, event.why) == (3, 3, "", "schedule")
    assert len(event.steps_ms) == 3
    assert event.outside_ms is None, "of the steps before it one has no beginning, and one warms up"
    assert f"`tdbg trace show {result.folder}`" in result.stderr
    values = find_done(result).values
    assert values["inside_ms"] > 0 and values["outside_ms"] > 0 and values["pause_ms"] > 0 and not values["missing"]


def test_of_two_optimizers_the_first_counts(profiled_runner: Runner, bare_runner: Runner) -> None:
    result = profiled_runner(build_program_command("gan"))
    assert_same_output(result, bare_runner(build_program_command("gan")))
    (trace,) = load_traces(result)
    assert list_steps(trace) == [3, 4, 5]
    for step in find_spans(trace, "ProfilerStep#"):
        updates = [
            one
            for one in find_spans(trace, "Optimizer.step#Adam")
            if step["ts"] <= one["ts"] < step["ts"] + step["dur"]
        ]
        assert len(updates) == 2, "the generator's and the discriminator's"


def test_a_program_that_only_evaluates(profiled_runner: Runner, bare_runner: Runner) -> None:
    result = profiled_runner(build_program_command("evaluate"))
    assert_same_output(result, bare_runner(build_program_command("evaluate")))
    (trace,) = load_traces(result)
    assert list_steps(trace) == [3, 4, 5] and trace["tdbg"]["phase"] == "eval"
    assert len(find_spans(trace, "enumerate(DataLoader)")) == 3
    assert result.codes == []


def test_ranks_have_traces_of_their_own(profiled_runner: Runner) -> None:
    result = profiled_runner(build_torchrun_command("layers", "--ddp"))
    assert result.code == 0, result.stderr
    for rank in (0, 1):
        (trace,) = load_traces(result, rank)
        assert list_steps(trace) == [3, 4, 5]
        assert trace["tdbg"]["rank"] == trace["distributedInfo"]["rank"] == rank
        assert find_spans(trace, "gloo:all_reduce")
    assert "profiled 3 steps on each of 2 ranks, in 2 traces" in result.stderr


def test_a_run_that_ends_in_a_window_gives_what_there_is(profiled_runner: Runner) -> None:
    result = profiled_runner(build_program_command("plain"), ["--window", "11:14"])
    assert result.code == 0
    (trace,) = load_traces(result)
    assert trace["tdbg"]["partial_step"] == 13, "the program has 12; the span of the 13th was begun"
    assert list_steps(trace) == [11, 12, 13]
    finding = result.find_finding("TD-P004")
    assert finding["title"] == "not all was profiled on rank 0: the program ended"
    (event,) = result.list_events(Trace)
    assert (event.steps, event.wanted, event.ended) == (2, 4, "the program ended")


def test_a_run_that_ends_before_the_window_says_so(profiled_runner: Runner) -> None:
    result = profiled_runner(build_program_command("plain"), ["--skip-first", "20"])
    assert result.code == 0 and load_traces(result) == []
    finding = result.find_finding("TD-P004")
    assert finding["title"] == "nothing was profiled on rank 0: 12 steps seen, but the next window ends at step 25"
    assert "profiled nothing" in result.stderr and "trace show" not in result.stderr


def test_a_short_evaluation_is_part_of_the_step(profiled_runner: Runner) -> None:
    """Steps 3 and 4 of `layers` have a validation of three calls between them."""
    result = profiled_runner(build_program_command("layers"))
    (trace,) = load_traces(result)
    assert list_steps(trace) == [3, 4, 5] and result.codes == []


ENDS = """
import os, signal, torch
model = torch.nn.Linear(8, 8)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for step in range(1, 10):
    loss = model(torch.ones(4, 8)).square().sum()
    optimizer.zero_grad()
    loss.backward()
    if step == 4:
        {how}
    optimizer.step()
"""


def test_a_crash_in_a_window_has_its_step(profiled_runner: Runner) -> None:
    result = profiled_runner([sys.executable, "-c", ENDS.format(how="raise ValueError('boom')")])
    assert "after step 3" in result.find_finding("TD-R003")["title"]
    assert "rank 0: step 3, ValueError, loss " in result.stderr and " at step 2\n" in result.stderr


@pytest.mark.cold  # its own exit is known by its process id
def test_a_process_killed_in_a_window_has_its_step(profiled_runner: Runner) -> None:
    result = profiled_runner([sys.executable, "-c", ENDS.format(how="os.kill(os.getpid(), signal.SIGTERM)")])
    finding = result.find_finding("TD-P004")
    assert finding["title"] == "nothing was profiled on rank 0: SIGTERM while profiling steps 3 to 5"
    assert "1 rank, 3 steps, loss " in result.stderr


EVALUATES = """
import torch
model = torch.nn.Linear(8, 8)
with torch.no_grad():
    for _ in range(60):
        model(torch.ones(2, 8))
"""


def test_all_calls_of_an_evaluation_are_counted(profiled_runner: Runner) -> None:
    result = profiled_runner([sys.executable, "-c", EVALUATES])
    assert "1 rank, 60 evaluation calls" in result.stderr


def test_trainings_one_after_the_other_are_told_each(profiled_runner: Runner) -> None:
    twice = "import subprocess, sys\nfor n in ('3', '4'): subprocess.run([sys.executable, '-c', sys.argv[1], n])"
    train = EVALUATES.replace("with torch.no_grad():", "import sys\nif True:").replace(
        "range(60)", "range(int(sys.argv[1]))"
    )
    steps = "model(torch.ones(2, 8)).sum().backward(); torch.optim.SGD(model.parameters(), 0.1).step()"
    result = profiled_runner([sys.executable, "-c", twice, train.replace("model(torch.ones(2, 8))\n", steps + "\n")])
    assert "2 training processes without a process group, 4 steps" in result.stderr
    assert len(re.findall(r"process \d+: step [34], ended", result.stderr)) == 2 and "attempt" not in result.stderr
    assert "profiled 2 steps in 1 trace" in result.stderr


def test_the_optimizer_asked_for_never_stepped(profiled_runner: Runner) -> None:
    result = profiled_runner([sys.executable, "-c", ENDS.format(how="pass")], ["--step-optimizer", "Nope"])
    title = result.find_finding("TD-C003")["title"]
    assert "no optimizer of class Nope has stepped" in title and "seen: SGD; nothing was profiled" in title


GUEST = """
import sys, torch
from torch.profiler import profile, schedule, tensorboard_trace_handler
net = torch.nn.Linear(4, 4)
optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
def train(steps, after=lambda: None):
    for _ in range(steps):
        optimizer.zero_grad(); net(torch.ones(2, 4)).sum().backward(); optimizer.step(); after()
train(BEFORE)
with profile(schedule=schedule(wait=1, warmup=1, active=2, repeat=1), on_trace_ready=HANDLER) as prof:
    train(6, prof.step)
print(sum(event.count for event in prof.key_averages() if event.key.startswith("Optimizer.step")))
train(12)
"""


def write_guest(tmp_path: Path, before: int, handler: str) -> list[str]:
    path = tmp_path / "guest.py"
    path.write_text(GUEST.replace("BEFORE", str(before)).replace("HANDLER", handler))
    return [sys.executable, str(path)]


@pytest.mark.parametrize("before", [0, 3])
def test_it_stands_aside_for_the_programs_own_profiler(profiled_runner: Runner, tmp_path: Path, before: int) -> None:
    """The program's comes in the warm-up, or after so many steps of the window: it gets all that it asked for."""
    result = profiled_runner(write_guest(tmp_path, before, "tensorboard_trace_handler('theirs')"))
    assert (result.code, result.stdout) == (0, "2\n"), result.stderr
    theirs = json.loads(next((tmp_path / "theirs").iterdir()).read_text())
    found = load_traces(result)
    assert theirs in found, "taken over"
    events = result.list_events(Trace)
    cut = [(event.steps, event.ended) for event in events if event.why == "schedule"]
    assert cut == [(before - 1, "a profiler of the program began")] * (before > 1)
    assert [event.why for event in events][-1] == "program" and events[-1].steps == 2
    assert result.codes == [], "the program's own counts"


def test_where_the_program_writes_no_trace_the_window_comes_later(profiled_runner: Runner, tmp_path: Path) -> None:
    result = profiled_runner(write_guest(tmp_path, 0, "None"))
    assert (result.code, result.stdout) == (0, "2\n"), result.stderr
    (trace,) = load_traces(result)
    assert trace["tdbg"]["first_step"] == 7
    assert list_steps(trace) == [7, 6, 8, 9], "the program goes on to mark steps of its own for a while"
    (one,) = trace_files.find_traces(str(result.folder))
    assert [step.number for step in load_summary(one.path).steps] == [7, 8, 9], "they are told apart"
    assert result.codes == []


@pytest.mark.parametrize("name", ["hf_trainer", "lightning_fit"])
def test_programs_of_frameworks(profiled_runner: Runner, bare_runner: Runner, name: str) -> None:
    result = profiled_runner(build_program_command(name))
    assert_same_output(result, bare_runner(build_program_command(name)))
    (trace,) = load_traces(result)
    assert list_steps(trace) == [3, 4, 5] and trace["tdbg"]["phase"] == "train"
    assert len(find_spans(trace, "Optimizer.step#")) == 3
    assert "TD-P004" not in result.codes


def test_the_profiler_of_lightning(profiled_runner: Runner, tmp_path: Path) -> None:
    """What Lightning's own profiler writes is in the run, too; before it begins there is no room for a window."""
    result = profiled_runner(build_program_command("lightning_fit", "--own-profiler", "theirs"))
    assert result.code == 0, result.stderr
    theirs = [json.loads(path.read_text()) for path in (tmp_path / "theirs").glob("*.json")]
    assert theirs and theirs[0] in load_traces(result)
    assert next(iter(result.list_events(Trace))).why == "program"
    assert "TD-P004" not in result.codes


def test_ctrl_c_inside_a_window(tmp_path: Path) -> None:
    folder = tmp_path / "run"
    words = build_program_command("layers", "--epochs", "2000", "--pause", "0.2", "--progress", "steps")
    command = [sys.executable, "-m", "tdbg", "profile", "--run-dir", str(folder), "--active", "100", "--", *words]
    process = subprocess.Popen(
        command,
        cwd=tmp_path,
        env=build_environment({}),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    begun = tmp_path / "steps"
    deadline = time.monotonic() + 60
    while not (begun.exists() and begun.read_text().count("\n") >= 8) and time.monotonic() < deadline:
        assert process.poll() is None, process.communicate()
        time.sleep(0.1)
    process.send_signal(signal.SIGINT)
    stdout, stderr = process.communicate(timeout=60)
    result = Result(process.returncode, stdout, stderr, folder)
    assert result.code == 130, stderr
    (trace,) = load_traces(result)
    assert len(list_steps(trace)) >= 2
    (event,) = result.list_events(Trace)
    assert event.ended == "the program ended" and 2 <= event.steps < 100
    assert result.find_finding("TD-P004")["title"].startswith("not all was profiled")


def test_loader_workers_forked_inside_a_window(profiled_runner: Runner, bare_runner: Runner) -> None:
    """The second epoch's two workers are forked in step 7."""
    result = profiled_runner(build_program_command("plain"), ["--window", "6:8", "--kind", "full"])
    assert_same_output(result, bare_runner(build_program_command("plain")))
    (trace,) = load_traces(result)
    assert list_steps(trace) == [6, 7, 8]
    assert {event["pid"] for event in find_spans(trace, "aten::")} == {find_spans(trace, "aten::")[0]["pid"]}


def test_a_live_run_is_profiled_on_all_ranks_at_the_same_steps(begin_run: Callable[..., Any]) -> None:  # noqa: F811
    live = begin_run(build_torchrun_command("patient"))
    live.wait_for_step(20, ranks=2)
    answer = live.run_tdbg("control", "--profile", "3")
    assert answer.returncode == 0, answer.stderr
    assert "3 steps profiled" in answer.stdout
    live.wait_until(lambda seen: all(list((live.folder / f"rank000{rank}").glob("traces/*.gz")) for rank in (0, 1)))
    result = live.finish_run()
    (one,), (two,) = load_traces(result, 0), load_traces(result, 1)
    assert list_steps(one) == list_steps(two) and len(list_steps(one)) == 3
    (event,) = result.list_events(Trace)
    assert event.why == "control"
    assert result.codes == []


def test_a_window_after_a_finding_is_over_the_same_steps_on_all_ranks(profiled_runner: Runner) -> None:
    words = build_torchrun_command("layers", "--ddp", "--nan-at", "3", "--epochs", "120", "--pause", "0.02")
    result = profiled_runner(words, ["--window-on", "TD-N001", "--active", "2"])
    (one,), (two,) = load_traces(result, 0), load_traces(result, 1)
    assert list_steps(one) == list_steps(two) and len(list_steps(one)) == 2 and list_steps(one)[0] > 3
    assert [event.why for event in result.list_events(Trace)] == ["finding"]


def test_a_folder_that_takes_no_trace(profiled_runner: Runner, bare_runner: Runner, tmp_path: Path) -> None:
    """A file lies where the folder of the traces would be."""
    script = tmp_path / "blocked.py"
    script.write_text(
        "import torch, pathlib\n"
        "net = torch.nn.Linear(2, 2); optimizer = torch.optim.SGD(net.parameters(), lr=0.1)\n"
        "for step in range(8):\n"
        "    optimizer.zero_grad(); net(torch.ones(1, 2)).sum().backward(); optimizer.step()\n"
        "    if not step: pathlib.Path('run/rank0000/traces').write_text('')\n"
        "print('done')\n"
    )
    result = profiled_runner([sys.executable, str(script)])
    assert (result.code, result.stdout) == (0, "done\n"), result.stderr
    assert "is lost" in result.find_finding("TD-P004")["title"]


@pytest.mark.parametrize("kind", ["light", "stacks"])
def test_what_other_threads_do(profiled_runner: Runner, tmp_path: Path, kind: str) -> None:
    """Their operators are in no trace; their calls of Python are where stacks are. Nothing of tdbg is in a light one."""
    script = tmp_path / "threads.py"
    script.write_text(
        "import threading, time, torch\n"
        "net = torch.nn.Linear(2, 2); optimizer = torch.optim.SGD(net.parameters(), lr=0.1)\n"
        "over = threading.Event()\n"
        "def beside():\n"
        "    while not over.wait(0.001): torch.zeros(3).cosh_()\n"
        "thread = threading.Thread(target=beside); thread.start()\n"
        "for step in range(8):\n"
        "    optimizer.zero_grad(); net(torch.ones(1, 2)).sum().backward(); optimizer.step(); time.sleep(0.02)\n"
        "over.set(); thread.join()\n"
    )
    result = profiled_runner([sys.executable, str(script)], ["--kind", kind])
    assert result.code == 0, result.stderr
    (trace,) = load_traces(result)
    assert find_spans(trace, "aten::linear") and not find_spans(trace, "aten::cosh_")
    (own,) = {event["tid"] for event in find_spans(trace, "aten::linear")}
    others = [event for event in find_spans(trace, "") if event["tid"] != own and event["cat"] == "python_function"]
    assert bool(others) == (kind == "stacks")
    assert kind == "stacks" or not any("tdbg" in event["name"] for event in find_spans(trace, ""))


XLA = '''"""Stands in for torch_xla, which has no build for this machine: its `save` moves to the host, then calls torch's."""
import torch


def save(data, file_or_path, master_only=True, global_master=False):
    torch.save(data, file_or_path)
'''
SAVES = """
import torch, torch.distributed as dist, torch.distributed.checkpoint as dcp
from torch.distributed.checkpoint import async_save
import torch_xla.core.xla_model as xm
dist.init_process_group("gloo", init_method="file:///{folder}/meeting", rank=0, world_size=1)
model = torch.nn.Linear(8, 8)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for step in range(1, 10):
    optimizer.zero_grad()
    model(torch.ones(4, 8)).square().sum().backward()
    optimizer.step()
    xm.save(model.state_dict(), "xla.pt")
    dcp.async_save(dict(model.state_dict()), checkpoint_id=f"one{{step}}").result()
    async_save(dict(model.state_dict()), checkpoint_id=f"two{{step}}").result()
    dcp.save(dict(model.state_dict()), checkpoint_id=f"three{{step}}")
dist.destroy_process_group()
print("done")
"""


def test_saves_of_every_kind_are_spans_in_a_window(profiled_runner: Runner, tmp_path: Path) -> None:
    (tmp_path / "torch_xla" / "core").mkdir(parents=True)
    for place in ("__init__.py", "core/__init__.py"):
        (tmp_path / "torch_xla" / place).touch()
    (tmp_path / "torch_xla" / "core" / "xla_model.py").write_text(XLA)
    script = tmp_path / "saves.py"
    script.write_text(SAVES.format(folder=str(tmp_path).lstrip("/")))
    result = profiled_runner([sys.executable, str(script)])
    assert (result.code, result.stdout) == (0, "done\n"), result.stderr
    (trace,) = load_traces(result)
    recorded = len(list_steps(trace))
    assert recorded == 3
    for name, a_step in (
        ("xm.save", 1),
        ("torch.distributed.checkpoint.async_save", 2),
        ("torch.distributed.checkpoint.save", 1),
    ):
        found = [span for span in find_spans(trace, f"tdbg.save: {name}") if span["name"] == f"tdbg.save: {name}"]
        assert (recorded - 1) * a_step <= len(found) <= recorded * a_step, (name, found)
        assert all(span["dur"] > 0 for span in found)
    inner = find_spans(trace, "tdbg.save: torch.save")
    outer = find_spans(trace, "tdbg.save: xm.save")
    assert all(any(one["ts"] <= span["ts"] < one["ts"] + one["dur"] for span in inner) for one in outer)
