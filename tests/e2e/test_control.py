"""A run that is changed while it goes on, and one that changes itself: real commands on real ranks."""

import json
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
from jsonschema import Draft202012Validator

from tdbg.core.control import CONTROL_FILE, read_requests
from tdbg.core.errors import TdbgError
from tdbg.core.events import Cost, Note, Observation, ProbeOff, Switch, Trigger
from tdbg.core.rundir import RunDir, read_events
from tdbg.launch.live import Snapshot, read_snapshot
from tests.contract import schemas
from tests.e2e.conftest import (
    EVERY_STEP,
    PATIENCE_S,
    Result,
    Runner,
    assert_no_finding,
    assert_same_output,
    build_environment,
    build_program_command,
    build_torchrun_command,
)

ALLOWANCE_MS = 60.0  # the first eight steps are looked at whatever they cost


@dataclass
class Live:
    """A run in the background."""

    folder: Path
    process: "subprocess.Popen[str]"
    until: Path  # the program goes on until this file is there
    said: list[str] = field(default_factory=list)

    def run_tdbg(self, *words: str) -> "subprocess.CompletedProcess[str]":
        """Another tdbg command on this run."""
        command = [sys.executable, "-m", "tdbg", words[0], str(self.folder), *words[1:]]
        return subprocess.run(
            command, capture_output=True, text=True, timeout=PATIENCE_S, env=build_environment({}), check=False
        )

    def wait_until(self, for_what: Callable[[Snapshot], bool]) -> Snapshot:
        """Look until it is so."""
        deadline = time.monotonic() + PATIENCE_S
        while time.monotonic() < deadline:
            assert self.process.poll() is None, self.process.communicate()
            try:
                snapshot = read_snapshot(RunDir(self.folder))
                if for_what(snapshot):
                    return snapshot
            except TdbgError:  # not even run.json is there
                pass
            time.sleep(0.2)
        raise AssertionError(f"it did not come so far: {read_snapshot(RunDir(self.folder)).as_dict()}")

    def wait_for_step(self, step: int, ranks: int) -> Snapshot:
        """Look until all ranks are past the step."""
        return self.wait_until(lambda seen: len(seen.ranks) == ranks and min(rank.step for rank in seen.ranks) >= step)

    def finish_run(self) -> Result:
        """Let the program end, and read what is left."""
        self.until.touch()
        stdout, stderr = self.process.communicate(timeout=PATIENCE_S)
        result = Result(self.process.returncode, stdout, stderr)
        result.folder = self.folder
        return result


def start_patient(folder: Path, words: list[str], *options: str) -> Live:
    """Start the patient program, which is told where its end will lie."""
    command = [sys.executable, "-m", "tdbg", "run", "--run-dir", str(folder / "run"), *options, "--", *words]
    process = subprocess.Popen(
        [*command, str(folder / "done")],
        cwd=folder,
        env=build_environment({}),
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    return Live(folder / "run", process, folder / "done")


@pytest.fixture
def begin_run(tmp_path: Path) -> Iterator[Callable[..., Live]]:
    """``begin(words, *options)``: the run is ended after the test, whatever happened."""
    begun: list[Live] = []

    def start_run(words: list[str], *options: str) -> Live:
        begun.append(start_patient(tmp_path, words, *options))
        return begun[-1]

    yield start_run
    for live in begun:
        _end_run(live)


def _end_run(live: Live) -> None:
    live.until.touch()
    if live.process.poll() is None:
        live.process.terminate()
        live.process.communicate(timeout=PATIENCE_S)


@dataclass
class Story:
    """What was done with the long run of two ranks, and what was answered."""

    broken: "subprocess.CompletedProcess[str]"
    short: "subprocess.CompletedProcess[str]"
    status: "subprocess.CompletedProcess[str]"
    long: dict[str, Any]
    flags: dict[str, Any]
    dead: "subprocess.CompletedProcess[str]"
    result: Result


@pytest.fixture(scope="module")
def control_story(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Story]:
    """Two DDP ranks; a broken control file; advanced for 30 steps; advanced for longer; a flag on and off."""
    live = start_patient(tmp_path_factory.mktemp("live"), build_torchrun_command("patient"))
    try:
        live.wait_for_step(40, ranks=2)
        (live.folder / CONTROL_FILE).write_text('{"requests": [{"number": 1, "lev')
        live.wait_until(lambda seen: all(_has_noted(live, rank.rank) for rank in seen.ranks))
        broken = live.run_tdbg("control", "--flag", "LR", "--no-flag", "LR")
        short = live.run_tdbg("control", "--level", "advanced", "--for", "30")
        rate = live.wait_until(lambda seen: {rank.level for rank in seen.ranks} == {"basic"}).ranks[0].rate or 10.0
        steps = int(rate * 12)  # two signs of life and more
        long = json.loads(live.run_tdbg("control", "--level", "advanced", "--for", str(steps), "--json").stdout)["data"]
        status = live.run_tdbg("status")
        live.wait_for_step(long["at_step"] + steps + 5, ranks=2)
        flags = json.loads(live.run_tdbg("control", "--flag", "MEMORY", "--json").stdout)["data"]
        # Until its probe has looked, not for a number of steps: on a loaded machine the budget puts the first look off.
        live.wait_until(
            lambda seen: all(_find_last_observed(live, rank.rank, "MEMORY") >= flags["at_step"] for rank in seen.ranks)
        )
        result = live.finish_run()
        yield Story(broken, short, status, long, flags, live.run_tdbg("control", "--level", "basic"), result)
    finally:
        _end_run(live)


def _has_noted(live: Live, rank: int) -> bool:
    return b'"code":"control"' in (live.folder / f"rank{rank:04d}" / "events.jsonl").read_bytes()


def _find_last_observed(live: Live, rank: int, flag: str) -> int:
    """The last step at which a probe of the flag observed something; 0 before the first."""
    seen = read_events(live.folder / f"rank{rank:04d}" / "events.jsonl")
    return max((event.step or 0 for event in seen if isinstance(event, Observation) and event.flag == flag), default=0)


def list_switches(story: Story, rank: int) -> list[tuple[int, str, list[str], str]]:
    """Step, level, flags and reason of each switch of a rank."""
    found: list[Switch] = story.result.list_events(Switch, rank)
    return [(event.step, event.level, sorted(event.flags), event.why) for event in found]


def test_the_answers_fit_their_schema(control_story: Story) -> None:
    validator = Draft202012Validator(schemas.load_published()["control"])
    for answer in (control_story.long, control_story.flags):
        document = {"kind": "control", "version": 1, "data": answer}
        assert [error.message for error in validator.iter_errors(document)] == []
        assert [row["rank"] for row in answer["switched"]] == [0, 1]


def test_both_ranks_switch_at_the_same_step_and_back(control_story: Story) -> None:
    assert control_story.short.returncode == 0, control_story.short.stderr
    assert control_story.result.code == 0, control_story.result.stderr
    assert list_switches(control_story, 0) == list_switches(control_story, 1)
    asked = {one.number: one.at_step for one in read_requests(control_story.result.folder / CONTROL_FILE)}
    events = [event for rank in (0, 1) for event in control_story.result.list_events(Switch, rank) if event.asked]
    assert events and all(event.late == (event.step >= asked[event.asked]) for event in events)
    up, down = [row for row in list_switches(control_story, 0) if row[1] == "advanced" or row[3] == "end"][:2]
    assert up[1:] == ("advanced", [], "control") and down == (up[0] + 30, "basic", [], "end")
    number = next(event.asked for event in events if event.step == up[0])
    late = f", late: step {asked[number]} had passed" if up[0] >= asked[number] else ""  # of a machine that sped up
    assert control_story.short.stdout == f"2 ranks switched at step {up[0] + 1}{late} (level advanced, for 30 steps)\n"


def test_the_higher_level_looked_closer_in_those_steps_only(control_story: Story) -> None:
    spans = [range(step + 1, step + 1 + length) for step, length in _list_advanced(control_story)]
    for rank in (0, 1):
        seen = {
            event.step for event in control_story.result.list_events(Observation, rank) if event.probe == "tensor-stats"
        }
        assert seen and all(any(step in span for span in spans) for step in seen)


def _list_advanced(story: Story) -> list[tuple[int, int]]:
    """The last step before each time at the level advanced, and how long it held."""
    rows = list_switches(story, 0)
    return [(row[0], rows[place + 1][0] - row[0]) for place, row in enumerate(rows) if row[1] == "advanced"]


def test_cost_is_within_the_budget_before_during_and_after(control_story: Story) -> None:
    (_, _), (step, length) = _list_advanced(control_story)
    lost_ms = {
        line["rank"]: line["lost_ms"] for line in control_story.result.list_printed("done")
    }  # at times inside a hook
    for rank in (0, 1):
        costs: list[Cost] = control_story.result.list_events(Cost, rank)
        during = [cost for cost in costs if step < cost.step <= step + length]
        assert (
            during and {cost.level for cost in during} == {"advanced"} and {cost.budget_pct for cost in during} == {3}
        )
        assert any(cost.step <= step for cost in costs) and any(cost.step > step + length for cost in costs)
        for cost in costs:
            assert cost.own_ms - cost.inspection_ms <= 1.1 * cost.earned_ms + ALLOWANCE_MS + lost_ms[rank], (
                rank,
                cost,
                lost_ms,
            )


def test_a_flag_switched_on_wakes_its_probe(control_story: Story) -> None:
    assert [row["rank"] for row in control_story.flags["switched"]] == [0, 1] and control_story.flags["missing"] == []
    for rank in (0, 1):
        seen = [event.step for event in control_story.result.list_events(Observation, rank) if event.flag == "MEMORY"]
        assert seen and max(seen) >= control_story.flags["at_step"]
    assert list_switches(control_story, 0)[-1][1:] == ("basic", ["MEMORY"], "control")


def test_a_broken_control_file_is_noted_once_and_replaced(control_story: Story) -> None:
    assert control_story.broken.returncode == 0 and "is replaced" in control_story.broken.stderr, (
        control_story.broken.stderr
    )
    for rank in (0, 1):
        notes = [event for event in control_story.result.list_events(Note, rank) if event.code == "control"]
        assert len(notes) == 1 and "was ignored" in notes[0].text


def test_status_of_a_live_run(control_story: Story) -> None:
    head, columns, *rows, finding = control_story.status.stdout.splitlines()
    assert head.endswith("(running)") and finding == "last finding: none"
    for rank, row in enumerate(rows):
        cells = dict(zip(columns.split("\t"), row.split("\t"), strict=True))
        assert (cells["rank"], cells["state"], cells["level"]) == (str(rank), "running", "advanced")
        assert float(cells["steps/s"]) > 0 and float(cells["loss"]) > 0


def test_a_dead_run_cannot_be_changed(control_story: Story) -> None:
    assert control_story.dead.returncode == 2 and len(control_story.dead.stderr.splitlines()) == 2
    assert "has ended (exit 0)" in control_story.dead.stderr


def test_a_healthy_run_that_was_changed_is_a_healthy_run(control_story: Story) -> None:
    assert_no_finding(control_story.result)
    steps = {line["rank"]: line["steps"] for line in control_story.result.list_printed("done")}
    assert [row["steps"] for row in control_story.result.verdict["ranks"]] == [steps[0], steps[1]]
    assert not control_story.result.verdict["triggers"]


def test_off_and_on_again(begin_run: Callable[..., Live]) -> None:
    live = begin_run(build_program_command("patient"))
    live.wait_for_step(20, ranks=1)
    off = live.run_tdbg("control", "--level", "off")
    assert off.returncode == 0 and off.stdout.startswith("1 rank switched at step ")
    then = live.wait_until(lambda seen: seen.ranks[0].level == "off").ranks[0].step
    live.wait_for_step(then + 10, ranks=1)  # its signs of life go on
    on = live.run_tdbg("control", "--level", "basic")
    assert on.returncode == 0, on.stdout + on.stderr
    live.wait_until(lambda seen: seen.ranks[0].level == "basic")
    result = live.finish_run()
    (first, second) = result.list_events(Switch)
    recorded = [record.step for record in result.list_steps()]
    assert not [step for step in recorded if first.step < step <= second.step]
    assert result.verdict["ranks"][0]["steps"] == result.list_printed("done")[0]["steps"]
    assert_no_finding(result)


def test_evaluation_can_be_controlled(begin_run: Callable[..., Live]) -> None:
    live = begin_run(build_program_command("patient", "--evaluate"))
    live.wait_until(lambda seen: bool(seen.ranks))
    done = live.run_tdbg("control", "--flag", "MEMORY")
    assert done.returncode == 0 and "1 rank switched" in done.stdout, done.stdout + done.stderr
    live.finish_run()


def test_a_spike_escalates_and_dumps(begin_run: Callable[..., Live]) -> None:
    live = begin_run(build_program_command("patient", "--spike", "300"))
    live.wait_for_step(340, ranks=1)
    result = live.finish_run()
    (found,) = result.list_events(Trigger)
    assert (found.step, found.condition, found.action) == (300, "loss spike", "dump, level=advanced for 20")
    assert [(event.step, event.level, event.why) for event in result.list_events(Switch)] == [
        (300, "advanced", "trigger"),
        (320, "basic", "end"),
    ]
    folder = result.folder / "rank0000"
    story = json.loads((folder / found.dump).read_text())
    assert story["condition"] == "loss spike" and story["records"][-1]["step"] == 300
    assert (folder / found.batch).is_file()
    (row,) = result.verdict["triggers"]
    assert row["dump"] == f"rank0000/{found.dump}" and result.codes == []
    assert any("trigger: loss spike at step 300, rank 0" in line for line in result.tdbg_lines)
    (done,) = result.list_printed("done")
    for cost in result.list_events(Cost):
        assert cost.own_ms - cost.inspection_ms <= 1.1 * cost.earned_ms + ALLOWANCE_MS + done["lost_ms"], (cost, done)


def test_a_condition_may_end_the_run(watched_runner: Runner, tmp_path: Path) -> None:
    options = ("--when", "loss > 20", "--then", "level=extreme for 20, dump, stop", "--when", "step == 9")
    result = watched_runner(build_program_command("patient", str(tmp_path / "never"), "--spike", "60"), options)
    assert "tdbg: stopping the command: 'loss > 20' in step 60, rank 0 (--then)" in result.tdbg_lines
    assert result.code == 143
    rows = {row["condition"]: row["action"] for row in result.verdict["triggers"]}
    assert rows["loss > 20"] == "dump, level=extreme for 20, stop" and rows["step == 9"] == "dump"


@pytest.mark.parametrize(
    ("options", "says"),
    [
        (("--when", "los > 1"), "did you mean loss?"),
        (("--when", "loss > 1", "--then", "dmp"), "did you mean dump?"),
        (("--then", "dump"), "--when"),
        (("--when", "__import__('os').system('true') > 1"), "for example"),
        (("--when", "loss > 1", "--then", "stop", "--exec"), "--exec"),
    ],
)
def test_wrong_conditions_stop_nothing_but_themselves(
    watched_runner: Runner, options: tuple[str, ...], says: str
) -> None:
    result = watched_runner(build_program_command("plain"), options)
    assert result.code == 2 and result.stdout == "" and len(result.tdbg_lines) == 2 and says in result.stderr
    assert not result.folder.exists()


def test_a_probe_that_raises_at_every_step(watched_runner: Runner, bare_runner: Runner) -> None:
    words = build_program_command("raising_probe")
    result = watched_runner(words, ("--when", "step == 3", "--then", "level=advanced", *EVERY_STEP))
    assert_same_output(result, bare_runner(words))
    (off,) = result.list_events(ProbeOff)
    assert off.probe == "raising" and "planted" in off.error
    assert result.codes == ["TD-C005"] and result.verdict["cost"]["errors"] >= 1
    assert len(result.list_steps()) == 20, "the others go on"
    told = [line for line in result.tdbg_lines if "switched itself off" in line]
    assert len(told) == 2, "once while it ran, once in the verdict"
    assert "detach" not in "".join(off.lines), "the first error is told, not what came of it"
