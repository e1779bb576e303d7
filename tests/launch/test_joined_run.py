"""`tdbg join`: the run directories of several hosts become one run, or are refused and nothing is left."""

import json
import os
import re
import shutil
from collections.abc import Callable
from datetime import datetime
from pathlib import Path
from typing import Any

import pytest

from tdbg.cli import main
from tdbg.core.events import Observation, Start, Step
from tdbg.core.observations.hang import HungRank
from tdbg.core.rundir import RunDir
from tdbg.rules.rule_engine import judge_run
from tests.streams import Stream

NAN = "nan"
WRITTEN = "2026-11-20T03:06:40.000299"


class Hosts:
    """Makes the run directory of a host, and joins what was made."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.out = folder / "whole"
        self.names: list[str] = []
        self.t = 0.0

    def make_host(
        self, name: str, *ranks: int, ahead_s: float = 0.0, world: int = 2, losses: Any = (1.0,) * 20, code: int = 0
    ) -> Stream:
        """A host whose ranks took steps at the same time as those of the others, by a clock that is ahead."""
        run = Stream(self.folder / name)
        self.t = self.t or run.t - 1000.0
        for rank in ranks:
            run.t = self.t + ahead_s + 0.003 * rank
            run.emit_steps(run.begin_rank(rank, world, host=name), losses)
        self.end_host(run, name, code)
        return run

    def end_host(self, run: Stream, name: str, code: int = 0) -> None:
        """The command of a host has ended."""
        self.names.append(str(run.run.path))
        run.run.update_info(
            host=name, start=run.t - 1, end=run.t, exit={"code": code, "signal": None}, child={"pid": 7, "host": name}
        )

    def join(self, *names: str) -> int:
        """The exit code of `tdbg join`."""
        return main(["join", *(names or self.names), "-o", str(self.out)])

    def read_steps(self, folder: str) -> list[Step]:
        """The step records of one process of the joined run."""
        found = [one for one in RunDir(self.out).list_processes() if one.label == folder]
        return [event for one in found for event in one.iter_events() if isinstance(event, Step)]


@pytest.fixture
def hosts(tmp_path: Path) -> Hosts:
    """Hosts of one job."""
    return Hosts(tmp_path)


Refuse = Callable[..., None]


@pytest.fixture
def refuse(hosts: Hosts, capsys: pytest.CaptureFixture[str]) -> Refuse:
    """Asserts that a join is refused in these words, and that nothing is left of it."""

    def assert_refused(text: str, *names: str) -> None:
        before = sorted(os.listdir(hosts.folder))
        assert hosts.join(*names) == 2
        said = capsys.readouterr().err
        assert text in said and len(said.splitlines()) == 2, said
        assert sorted(os.listdir(hosts.folder)) == before

    return assert_refused


def test_the_ranks_of_two_hosts_are_one_run(hosts: Hosts, capsys: pytest.CaptureFixture[str]) -> None:
    hosts.make_host("b", 2, 3, world=4, losses=[1.0] * 10 + [NAN] * 10)
    hosts.make_host("a", 0, 1, world=4)
    assert hosts.join() == 0
    said = capsys.readouterr().out
    assert "a: host a, ranks 0-1\n" in said and "b: host b, ranks 2-3, clock agrees within" in said
    verdict = judge_run(RunDir(hosts.out))
    assert [row["rank"] for row in verdict.ranks] == [0, 1, 2, 3]
    assert [row["host"] for row in verdict.ranks] == ["a", "a", "b", "b"]
    assert verdict.exit["code"] == 0
    assert sum("joined from" in note for note in verdict.notes) == 2
    assert [(finding.code, finding.rank) for finding in verdict.findings] == [("TD-N001", 2)]


def test_every_command_reads_it(hosts: Hosts, capsys: pytest.CaptureFixture[str]) -> None:
    hosts.make_host("a", 0)
    hosts.make_host("b", 1)
    assert hosts.join() == 0
    for words in (["report", "--all"], ["status", "--json"], ["metrics", "show"], ["stacks"], ["runs", "ls"]):
        place = str(hosts.folder) if words[0] == "runs" else str(hosts.out)
        code = main([*words, place])
        said = capsys.readouterr()
        assert code in (0, 1) or words[0] in ("stacks", "metrics"), said.err
        assert "tdbg itself failed" not in said.err


def test_nothing_but_the_parts_files_is_copied_and_none_is_linked(hosts: Hosts) -> None:
    run = hosts.make_host("a", 0)
    hosts.make_host("b", 1)
    for name in ("boot/sitecustomize.py", "report.json", "control.json", "rank0000/pages/page_0.tdp", "stranger/x.pkl"):
        path = run.run.path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(b"not a pickle")
    assert hosts.join() == 0
    assert sorted(os.listdir(hosts.out)) == ["other", "rank0000", "rank0001", "run.json"]
    kept = hosts.out / "rank0000" / "pages" / "page_0.tdp"
    assert kept.read_bytes() == b"not a pickle" and kept.stat().st_nlink == 1
    assert hosts.out.stat().st_mode & 0o077 == 0


def test_output_notes_and_hellos_of_all_hosts_are_kept(hosts: Hosts) -> None:
    for name, rank in (("a", 0), ("b", 1)):
        path = hosts.make_host(name, rank).run.path
        (path / "stdout.log").write_text(name)
        (path / "notes.jsonl").write_text(json.dumps({"t": 1.0, "text": name}) + "\n")
        (path / "hello").mkdir()
        (path / "hello" / "vm-1.json").write_text("{}")
    assert hosts.join() == 0
    assert [(hosts.out / name).read_text() for name in ("stdout.log", "stdout-2.log")] == ["a", "b"]
    assert len((hosts.out / "notes.jsonl").read_text().splitlines()) == 2
    assert sorted(os.listdir(hosts.out / "hello")) == ["vm-1-2.json", "vm-1.json"]


def test_the_output_of_agents_that_shared_a_directory_is_copied(hosts: Hosts) -> None:
    path = hosts.make_host("a", 0).run.path
    hosts.make_host("b", 1)
    (path / "stdout.log").write_text("first")
    (path / "stdout.vm-7.log").write_text("second")
    assert hosts.join() == 0
    assert [(hosts.out / name).read_text() for name in ("stdout.log", "stdout.vm-7.log")] == ["first", "second"]


def test_a_line_that_was_cut_off_is_not_glued_to_the_next_host_s(hosts: Hosts) -> None:
    for name, rank, text in (("a", 0, '{"t": 1.0, "te'), ("b", 1, '{"t": 2.0, "text": "whole"}\n')):
        (hosts.make_host(name, rank).run.path / "notes.jsonl").write_text(text)
    assert hosts.join() == 0
    assert (hosts.out / "notes.jsonl").read_text().splitlines()[-1] == '{"t": 2.0, "text": "whole"}'


def test_the_exit_code_is_the_bad_one(hosts: Hosts) -> None:
    hosts.make_host("a", 0)
    hosts.make_host("b", 1, code=3)
    assert hosts.join() == 0
    assert judge_run(RunDir(hosts.out)).exit["code"] == 3


# clocks


@pytest.mark.parametrize("ahead_s", [12.0, -340.0])
def test_times_are_shifted_to_one_clock(hosts: Hosts, ahead_s: float, capsys: pytest.CaptureFixture[str]) -> None:
    hosts.make_host("a", 0)
    folder = hosts.make_host("b", 1, ahead_s=ahead_s).run.path / "rank0001"
    (folder / "info_log_rank1.txt").write_text(f"{WRITTEN} I r0001 s00000002 [DEBUG_LR] x\n    more\n")
    (folder / "records.jsonl").write_text(f'{{"time": "{WRITTEN}", "message": "x"}}\n{{"torn')
    assert hosts.join() == 0
    word = "ahead" if ahead_s > 0 else "behind"
    assert re.search(
        rf"clock \d+\.\d+ s {word} \(measured over 20 common steps\); its times are shifted", capsys.readouterr().out
    )
    pairs = zip(hosts.read_steps("rank0000"), hosts.read_steps("rank0001"), strict=True)
    assert max(abs(one.t - other.t) for one, other in pairs) < 0.01
    log = (hosts.out / "rank0001" / "info_log_rank1.txt").read_text().splitlines()
    lines = (hosts.out / "rank0001" / "records.jsonl").read_text().split("\n")
    moved_s = (datetime.fromisoformat(log[0][:26]) - datetime.fromisoformat(WRITTEN)).total_seconds()
    assert abs(moved_s + ahead_s) < 0.01 and log[0][26:] == f"{WRITTEN} I r0001 s00000002 [DEBUG_LR] x"[26:]
    assert lines[0] == f'{{"time": "{log[0][:26]}", "message": "x"}}'
    assert [log[1], lines[1]] == ["    more", '{"torn']


def test_a_clock_that_was_set_on_the_way_is_left_and_said(hosts: Hosts, capsys: pytest.CaptureFixture[str]) -> None:
    hosts.make_host("a", 0)
    run = Stream(hosts.folder / "b")
    run.t = hosts.t
    folder = run.begin_rank(1, 2, host="b")
    run.emit_steps(folder, [1.0] * 10)
    run.t += 90.0
    run.emit_steps(folder, [1.0] * 10, first=11)
    hosts.end_host(run, "b")
    assert hosts.join() == 0
    assert "clock not aligned: over 20 common steps its difference varies by 90 s" in capsys.readouterr().out
    assert any("clock not aligned" in note for note in judge_run(RunDir(hosts.out)).notes)


def test_too_few_common_steps_are_said(hosts: Hosts, capsys: pytest.CaptureFixture[str]) -> None:
    hosts.make_host("a", 0)
    hosts.make_host("b", 1, losses=[1.0])
    assert hosts.join() == 0
    assert "clock not aligned: 1 common step with the first directory, and 3 are needed" in capsys.readouterr().out


def test_a_hang_across_hosts_whose_clocks_differ_names_the_missing_rank(hosts: Hosts) -> None:
    """By the clocks alone rank 0 waited long after rank 1 was quiet."""
    for rank, ahead_s in ((0, 0.0), (1, -300.0)):
        run = hosts.make_host(f"host{rank}", rank, ahead_s=ahead_s)
        about: dict[str, Any] = {"quiet_s": 40.0, "limit_s": 15.0, "began_t": run.t, "where": "train.py:9 in main"}
        about |= (
            {"state": "elsewhere"} if rank else {"state": "collective", "op": "all_reduce", "size": 2, "ranks": [0, 1]}
        )
        values = HungRank(**about).as_values()
        quiet = Observation(probe=HungRank.PROBE, part=HungRank.PART, step=21, values=values, t=run.t + 40.0)
        run.emit_events(f"rank{rank:04d}", quiet)
        run.run.update_info(end=run.t + 60)
    assert hosts.join() == 0
    found = [one for one in judge_run(RunDir(hosts.out)).findings if one.code == "TD-R006"]
    assert [one.rank for one in found] == [1], found


# restarts


def test_restarts_are_attempts_on_whatever_host_they_ran(hosts: Hosts) -> None:
    """After a restart the launcher gave rank 0 to the host that had rank 1."""
    for name, ranks in (("a", (0, 1)), ("b", (1, 0))):
        run = Stream(hosts.folder / name)
        hosts.t = hosts.t or run.t - 1000
        for number, rank in enumerate(ranks):
            run.t = hosts.t + 100 * number
            run.emit_steps(run.begin_rank(rank, 2, host=name), [1.0] * 9)
        hosts.end_host(run, name)
    assert hosts.join() == 0
    found = RunDir(hosts.out).list_processes()
    starts = {
        one.label: next(event for event in one.iter_events() if isinstance(event, Start)).host
        for one in found
        if one.is_rank
    }
    assert starts == {"rank0000": "a", "rank0000/attempt1": "b", "rank0001": "b", "rank0001/attempt1": "a"}
    assert {row["rank"]: row["host"] for row in judge_run(RunDir(hosts.out)).ranks} == {0: "b", 1: "a"}


def test_attempts_of_one_host_keep_their_folders(hosts: Hosts) -> None:
    run = hosts.make_host("a", 0)
    run.emit_steps(run.begin_rank(0, 2, attempt=1, host="a"), [1.0] * 5)
    run.emit_steps("rank0000/pid77-a", [1.0])
    hosts.make_host("b", 1)
    assert hosts.join() == 0
    labels = [one.label for one in RunDir(hosts.out).list_processes() if one.rank is not None]
    assert labels == ["rank0000", "rank0000/attempt1", "rank0000/pid77-a", "rank0001"]


# refused


def test_the_same_rank_twice(hosts: Hosts, refuse: Refuse) -> None:
    hosts.make_host("a", 0, 1)
    hosts.make_host("b", 1)
    refuse("rank 1 is in both")


def test_a_copy_of_a_part_and_a_part_named_twice(hosts: Hosts, refuse: Refuse) -> None:
    run = hosts.make_host("a", 0)
    shutil.copytree(run.run.path, hosts.folder / "copy")
    refuse("rank 0 is in both", str(run.run.path), str(hosts.folder / "copy"))
    refuse("is named twice", str(run.run.path), f"{run.run.path}/../a")


def test_two_runs_of_one_process_are_no_restart(hosts: Hosts, refuse: Refuse) -> None:
    hosts.make_host("a", 0, world=1)
    hosts.t += 300
    hosts.make_host("b", 0, world=1)
    refuse("rank 0 is in both")


def test_another_command_world_size_job_or_time(hosts: Hosts, refuse: Refuse) -> None:
    first = hosts.make_host("a", 0).run
    other = hosts.make_host("b", 1).run
    third = hosts.make_host("c", 1, world=8).run
    other.update_info(command=["python", "y.py"])
    refuse("different commands", str(first.path), str(other.path))
    other.update_info(command=["python", "x.py"], start=5.0, end=6.0)
    refuse("world sizes: 2 and 8", str(first.path), str(third.path))


def test_another_job(hosts: Hosts, refuse: Refuse) -> None:
    for rank in (0, 1):
        run = Stream(hosts.folder / f"host{rank}")
        run.t -= 1000
        run.emit_steps(run.begin_rank(rank, 2, env={"TORCHELASTIC_RUN_ID": f"job{rank}"}), [1.0])
        hosts.end_host(run, f"host{rank}")
    refuse("is of another job than")


def test_runs_of_different_days(hosts: Hosts, refuse: Refuse) -> None:
    hosts.make_host("a", 0)
    hosts.t -= 86_400
    hosts.make_host("b", 1)
    refuse("did not run at the same time")


def test_options_of_a_launcher_that_name_the_host_are_no_other_command(hosts: Hosts) -> None:
    for rank, words in ((0, ["--node-rank", "0"]), (1, ["--node_rank=1", "--local-addr=h"])):
        run = hosts.make_host(f"host{rank}", rank).run
        run.update_info(command=["/env/bin/torchrun", "--nnodes=2", *words, "x.py", "--lr", "1"])
    assert hosts.join() == 0


def test_a_live_run(hosts: Hosts, refuse: Refuse) -> None:
    hosts.make_host("a", 0)
    run = hosts.make_host("b", 1).run
    me = {"pid": os.getpid(), "host": os.uname().nodename}
    run.update_info(end=None, exit=None, supervisor=me)
    refuse("may still be running")
    (run.path / "rank0001" / "events.jsonl").open("ab").write(b'{"type":"note","v":1,"t":99999999999.0}\n')
    run.update_info(supervisor={"pid": 1, "host": "elsewhere"})
    refuse("may still be running")


def test_a_run_that_was_killed_long_ago_is_joined_as_ended(hosts: Hosts) -> None:
    hosts.make_host("a", 0)
    run = hosts.make_host("b", 1).run
    run.update_info(end=None, exit=None, supervisor={"pid": 1, "host": "elsewhere"})
    assert hosts.join() == 0
    assert judge_run(RunDir(hosts.out)).exit == {"code": None, "text": "cut off before its end"}


@pytest.mark.parametrize("name", ["whole", "a/inside"])
def test_an_output_that_exists_or_lies_inside(hosts: Hosts, refuse: Refuse, name: str) -> None:
    hosts.make_host("a", 0)
    hosts.make_host("b", 1)
    hosts.out = hosts.folder / name
    if name == "whole":
        hosts.out.mkdir()
    refuse("already exists" if name == "whole" else "would be inside")


@pytest.mark.parametrize("name", ["rank0001/pages", "rank0001/x.txt", "hello", "stdout.log", "rank0001/attempt1"])
def test_links(hosts: Hosts, refuse: Refuse, name: str) -> None:
    hosts.make_host("a", 0)
    run = hosts.make_host("b", 1).run
    secret = hosts.folder / "secret"
    secret.mkdir()
    (secret / "events.jsonl").write_text("{}\n")
    (run.path / name).symlink_to(secret)
    refuse("is a symbolic link")


def test_no_room(hosts: Hosts, refuse: Refuse, monkeypatch: pytest.MonkeyPatch) -> None:
    hosts.make_host("a", 0)
    hosts.make_host("b", 1)
    usage = shutil.disk_usage(hosts.folder)._replace(free=1000)
    monkeypatch.setattr(shutil, "disk_usage", lambda path: usage)
    refuse("has 1 kB left")


def test_what_is_no_run(hosts: Hosts, refuse: Refuse) -> None:
    hosts.make_host("a", 0)
    (hosts.folder / "b").mkdir()
    refuse("is not a run directory", hosts.names[0], str(hosts.folder / "b"))
    refuse("there is no run directory", hosts.names[0], str(hosts.folder / "none"))
    refuse("needs at least two", hosts.names[0])
    refuse("there is no run directory nowhere", "nowhere")
    (hosts.folder / "b" / "run.json").write_text('{"schema": 1, "comm')
    refuse("cannot read", hosts.names[0], str(hosts.folder / "b"))
    (hosts.folder / "b" / "run.json").write_text('{"end": 1}')
    refuse("no rank wrote events", hosts.names[0], str(hosts.folder / "b"))


# bad input


def test_torn_foreign_and_missing_events(hosts: Hosts, capsys: pytest.CaptureFixture[str]) -> None:
    hosts.make_host("a", 0)
    path = hosts.make_host("b", 1, ahead_s=30.0, world=4).run.path
    hosts.make_host("c", 2, world=4)
    RunDir(hosts.folder / "a").update_info(command=["python", "x.py"])
    with (path / "rank0001" / "events.jsonl").open("ab") as file:
        file.write(b'[1]\n\xff\xfe\n{"type":"step","t":"late"}\n{"type":"step","v":1,"t":17')
    (path / "rank0001" / "metrics.jsonl").write_bytes(b"\0" * 100 + b'\n{"t":true}\n')
    os.mkfifo(path / "rank0001" / "pipe")
    (path / "rankfoo").mkdir()
    (path / "rank0007").mkdir()
    assert hosts.join(str(path), str(hosts.folder / "c")) == 0
    said = capsys.readouterr()
    assert "pipe is left out" in said.err and "no directory holds ranks 0, 3" in said.err
    assert len(hosts.read_steps("rank0001")) == 20
    assert (hosts.out / "rank0001" / "events.jsonl").read_bytes().endswith(b'{"type":"step","v":1,"t":17')


def test_times_and_names_that_nothing_real_has(hosts: Hosts, capsys: pytest.CaptureFixture[str]) -> None:
    hosts.make_host("a", 0)
    run = hosts.make_host("b", 1).run
    lines = (run.path / "rank0001" / "events.jsonl").read_text().splitlines()
    rows = [{**json.loads(line), "t": 1e300} for line in lines]
    (run.path / "rank0001" / "events.jsonl").write_text(
        "".join(f"{json.dumps(row)}\n".replace(": ", ":").replace(", ", ",") for row in rows)
    )
    run.update_info(host="x\0/../\x1b[31m" * 40, start=float("nan"), child={"pid": 7, "host": ["b"]})
    assert hosts.join() == 0
    said = capsys.readouterr()
    assert "clock not aligned" in said.out and "\x1b" not in said.out
    assert [path.name for path in (hosts.out / "other").iterdir() if not path.name.isascii()] == []


def test_ten_thousand_ranks(hosts: Hosts) -> None:
    for name, ranks in (("a", range(5000)), ("b", range(5000, 10_000))):
        run = Stream(hosts.folder / name)
        for rank in ranks:
            folder = run.run.path / f"rank{rank:04d}"
            folder.mkdir()
            line = {"type": "start", "v": 1, "t": run.t - 900, "rank": rank, "world_size": 10_000, "host": name}
            (folder / "events.jsonl").write_text(json.dumps(line) + "\n")
        run.t -= 900
        hosts.end_host(run, name)
    assert hosts.join() == 0
    assert len(RunDir(hosts.out).list_processes()) == 10_002
