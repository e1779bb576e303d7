"""`tdbg report`: the verdict from the files alone."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from streams import Stream, make_nonfinite

from tdbg.cli import main


@pytest.fixture
def run_stream(tmp_path: Path) -> Stream:
    made = Stream(tmp_path / "tdbg_runs" / "run", flags={"SCHEDULING": True}, inject="none")
    rank = made.begin_rank()
    made.emit_steps(rank, [2.5, 2.4])
    made.emit_events(rank, make_nonfinite())
    made.emit_steps(rank, ["nan"], first=3)
    made.end_process(rank, 3)
    made.record_exit(0)
    return made


def read_folder(folder: Path) -> dict[str, bytes]:
    return {str(path): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def test_page(run_stream, capsys):
    assert main(["report", str(run_stream.run.path)]) == 0
    out = capsys.readouterr().out
    assert 'TD-N001 critical: first NaN at step 3 on rank 0, in backward of module "blocks.2.act" (Act)' in out
    assert "batch kept: rank0000/batch_step00000003.safetensors" in out and "rank 0: step 3, ended" in out


def test_json_is_one_document(run_stream, capsys):
    assert main(["report", str(run_stream.run.path), "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert (found["kind"], found["version"]) == ("report", 1)
    assert found["data"]["findings"][0]["code"] == "TD-N001" and found["data"]["people"] == []


def test_the_newest_run_is_meant_when_none_is_named(run_stream, capsys, monkeypatch):
    monkeypatch.chdir(run_stream.run.path.parent.parent)
    assert main(["report"]) == 0
    assert main(["report", "run"]) == 0


def test_reading_writes_nothing(run_stream, capsys):
    before = read_folder(run_stream.run.path)
    main(["report", str(run_stream.run.path)])
    main(["report", str(run_stream.run.path), "--json"])
    assert read_folder(run_stream.run.path) == before


@pytest.mark.parametrize(("floor", "code"), [("critical", 1), ("info", 1), ("never", 0)])
def test_fail_on(run_stream, capsys, floor, code):
    assert main(["report", str(run_stream.run.path), "--fail-on", floor]) == code


def test_fail_on_with_a_slip(run_stream, capsys):
    assert main(["report", str(run_stream.run.path), "--fail-on", "eror"]) == 2
    assert "did you mean error?" in capsys.readouterr().err


def test_a_damaged_state_file_is_told_and_the_events_are_judged(run_stream, capsys):
    (run_stream.run.path / "run.json").write_text('{"schema')
    assert main(["report", str(run_stream.run.path / "notes.txt")]) == 0
    said = capsys.readouterr()
    assert "TD-N001" in said.out and "run.json" in said.err and "the ranks' events only" in said.err
    for path in run_stream.run.path.glob("rank*/events.jsonl"):
        path.unlink()
    assert main(["report", str(run_stream.run.path)]) == 2
    what, hint = capsys.readouterr().err.splitlines()
    assert "cannot read" in what and "name another run" in hint


def test_notes_of_people_stay_with_the_run(run_stream, capsys):
    assert main(["report", str(run_stream.run.path), "--note", "batch 12 holds\nan empty image"]) == 0
    assert "an empty image" in capsys.readouterr().out
    with (run_stream.run.path / "notes.jsonl").open("a") as file:
        file.write('{"torn')
    main(["report", str(run_stream.run.path), "--json"])
    (note,) = json.loads(capsys.readouterr().out)["data"]["people"]
    assert note["text"] == "batch 12 holds\nan empty image"


def test_an_empty_note_is_refused(run_stream, capsys):
    assert main(["report", str(run_stream.run.path), "--note", " "]) == 2


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write anywhere")
def test_a_note_where_nothing_may_be_written(run_stream, capsys):
    run_stream.run.path.chmod(0o500)
    assert main(["report", str(run_stream.run.path), "--note", "x"]) == 2
    run_stream.run.path.chmod(0o700)


def test_no_run_there(tmp_path, capsys, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert main(["report", "nothing"]) == 2
    err = capsys.readouterr().err.splitlines()
    assert len(err) == 2 and all(line.startswith("tdbg: ") for line in err)
    assert main(["report"]) == 2
    assert list(tmp_path.iterdir()) == []


def test_report_file_and_command_agree(run_stream, capsys):
    verdict = run_stream.judge_stream()
    verdict.write_report(run_stream.run)
    main(["report", str(run_stream.run.path), "--json"])
    shown = json.loads(capsys.readouterr().out)["data"]
    kept = json.loads((run_stream.run.path / "report.json").read_text())
    assert shown["findings"] == kept["findings"] and shown["ranks"] == kept["ranks"]


def test_a_run_of_which_nothing_can_be_read_is_no_verdict(tmp_path: Path) -> None:
    (tmp_path / "run.json").write_text("[1,2")
    done = subprocess.run(
        [sys.executable, "-m", "tdbg", "report", str(tmp_path)], capture_output=True, text=True, check=False
    )
    assert done.returncode == 2
    assert done.stdout == ""
    assert [line[:5] for line in done.stderr.splitlines()] == ["tdbg:", "tdbg:"]


def test_one_screen_unless_all_is_asked_for(run_stream, capsys):
    main(["report", str(run_stream.run.path)])
    screen = capsys.readouterr().out.splitlines()
    assert screen[0].startswith("verdict: ") and screen[-1].endswith("`tdbg explain TD-N001`")
    count = int(screen[-1].split()[0])
    assert screen[-1].startswith(f"{count} more lines: `tdbg report {run_stream.run.path} --all`")
    main(["report", str(run_stream.run.path), "--all"])
    whole = capsys.readouterr().out.splitlines()
    assert whole[0] == f"run: {run_stream.run.path}" and whole[1] == screen[0] and "files:" in whole
    assert len([line for line in whole[1:] if line]) == len(screen) - 1 + count


def test_a_healthy_run_in_three_lines(tmp_path, capsys):
    made = Stream(tmp_path / "run")
    rank = made.begin_rank()
    made.emit_steps(rank, [2.5, 2.25])
    made.end_process(rank, 2)
    made.record_exit(0)
    assert main(["report", str(made.run.path)]) == 0
    verdict, watched, unwatched = capsys.readouterr().out.splitlines()
    assert verdict == "verdict: no problem found in what was watched; 1 rank, 2 steps, loss 2.25; exit 0"
    assert watched.startswith("watched (--level basic): 2 of 2 steps on record")
    assert unwatched.startswith("not watched: ") and unwatched.endswith(f"more: `tdbg report {made.run.path} --all`")


def test_a_run_of_this_folder_is_named_without_its_path(run_stream, capsys, monkeypatch):
    monkeypatch.chdir(run_stream.run.path.parent.parent)
    main(["report"])
    assert "`tdbg report run --all`" in capsys.readouterr().out
    Path("run").mkdir()  # then the name alone would mean another folder
    main(["report"])
    assert "`tdbg report tdbg_runs/run --all`" in capsys.readouterr().out


def test_markdown_holds_findings_and_environment(run_stream, capsys):
    main(["report", str(run_stream.run.path), "--note", "a | note"])
    capsys.readouterr()
    assert main(["report", str(run_stream.run.path), "--markdown", "--fail-on", "critical"]) == 1
    text = capsys.readouterr().out
    assert text.startswith("### tdbg report of `run`\n\n`verdict: 1 finding (1 critical)")
    assert "| `TD-N001` | `critical` | 3 | 0 |" in text and "command: python x.py" in text and "a | note" in text


def test_markdown_of_a_run_whose_state_file_is_damaged(run_stream, capsys):
    (run_stream.run.path / "run.json").write_text('{"schema')
    assert main(["report", str(run_stream.run.path / "notes.txt"), "--markdown"]) == 0
    said = capsys.readouterr()
    assert "`TD-N001`" in said.out and "command:" not in said.out and "run.json" in said.err


def test_json_and_markdown_cannot_both_be(run_stream, capsys):
    before = read_folder(run_stream.run.path)
    assert main(["report", str(run_stream.run.path), "--json", "--markdown"]) == 2
    said = capsys.readouterr()
    assert said.out == "" and said.err.splitlines() == [
        "tdbg: --json and --markdown exclude each other",
        "tdbg: choose one",
    ]
    assert main(["report", str(run_stream.run.path), "--markdown", "--json", "--note", "x"]) == 2
    assert read_folder(run_stream.run.path) == before
