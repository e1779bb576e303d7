"""`tdbg run --to wandb|tensorboard` on programs with and without runs of their own, read back from the real files."""

import json
import resource
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from tests.e2e.conftest import Result, Runner, build_program_command, build_torchrun_command
from tests.e2e.conftest import build_environment as clean_environment
from tests.metrics.wandb_files import load_runs

pytest.importorskip("wandb")
WANDB, TENSORBOARD, BOTH = ["--to", "wandb"], ["--to", "tensorboard"], ["--to", "wandb", "--to", "tensorboard"]
OF_TIME = ("_runtime", "_timestamp", "_wandb")
SECRET = "hf_" + "q7Rt" * 8


@pytest.fixture(autouse=True)
def no_folder_of_runs(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("WANDB_DIR", raising=False)


def build_environment(**more: str) -> dict[str, str]:
    return {"WANDB_MODE": "offline", "WANDB_SILENT": "true", "WANDB_API_KEY": "", **more}


def list_own_rows(found: dict[str, Any]) -> list[dict[str, Any]]:
    """The program's own rows, without what depends on the time."""
    return [select_own_values(row) for row in found["history"]]


def select_own_values(values: dict[str, Any]) -> dict[str, Any]:
    """What the program itself has put there, but times."""
    return {
        key: value
        for key, value in values.items()
        if key.partition(".")[0] not in OF_TIME and not key.startswith("tdbg/")
    }


def build_program_words(*args: str) -> list[str]:
    return build_program_command("own_sinks", *args)


def load_board(folder: Path) -> Any:
    accumulator = pytest.importorskip("tensorboard.backend.event_processing.event_accumulator")
    found = accumulator.EventAccumulator(str(folder), size_guidance={"scalars": 0, "tensors": 0})
    return found.Reload()


def find_own_run(folder: Path) -> dict[str, Any]:
    (found,) = load_runs(folder)
    return found


def load_outcome(result: Result, name: str) -> dict[str, Any]:
    (path,) = (result.folder / "sinks").glob(f"outcome-{name}-*.json")
    found: dict[str, Any] = json.loads(path.read_text())
    return found


@pytest.mark.parametrize("words", [(), ("explicit",), ("finish",)], ids=["plain", "explicit-step", "finished"])
def test_rows_of_the_programs_run_stay_the_same(
    watched_runner: Runner, bare_runner: Runner, tmp_path: Path, words: tuple[str, ...]
) -> None:
    args = build_program_words("wandb", "nan", *words)
    bare_runner(args, env=build_environment(WANDB_DIR=str(tmp_path / "without")))
    without = find_own_run(tmp_path / "without")
    result = watched_runner(args, WANDB, build_environment(WANDB_DIR=str(tmp_path / "with")))
    found = find_own_run(tmp_path / "with")
    assert result.code == 0, result.stderr
    assert list_own_rows(found) == list_own_rows(without) and len(found["history"]) == 10
    for part in ("config", "summary"):
        assert select_own_values(found[part]) == select_own_values(without[part]), part
    assert select_own_values(found["config"]) == {"lr": 0.1}
    assert "HandleAbandonedError" not in result.stderr, "what W&B logs of itself is no exception of the program"
    carried = [row for row in found["history"] if "tdbg/step" in row]
    assert carried, "no step record went along"
    assert all({"tdbg/train/loss", "tdbg/lr/group0"} <= row.keys() for row in carried)
    steps = [row["tdbg/step"] for row in carried]
    assert steps == sorted(set(steps))
    assert found["summary"]["tdbg/verdict"].startswith("verdict: ")
    assert "TD-N001" in found["tags"] and "mine" in found["tags"]
    assert found["alerts"][0]["title"].startswith("TD-N001: first NaN at step 10")
    titles = [one["title"] for one in found["alerts"]]
    assert len(titles) == len(set(titles)) and {title.partition(":")[0] for title in titles} <= set(found["tags"])
    report = next((tmp_path / "with").rglob("files/tdbg/report.md")).read_text()
    assert "TD-N001" in report and "tdbg report of" in report
    assert load_outcome(result, "wandb")["own"] and not load_outcome(result, "wandb")["error"]
    assert not list(result.folder.rglob("*.wandb")), "a second run was made"
    assert any(
        "program's own run" in line and "and the report (the program waited " in line for line in result.tdbg_lines
    )


def test_an_exception_stands_in_the_report_of_the_programs_run(watched_runner: Runner, tmp_path: Path) -> None:
    result = watched_runner(
        build_program_words("wandb", "crash"), WANDB, build_environment(WANDB_DIR=str(tmp_path / "with"))
    )
    uncaught = [one for one in result.verdict["findings"] if "RuntimeError" in one["title"]]
    assert result.code == 1 and len(uncaught) == 1
    found = find_own_run(tmp_path / "with")
    assert any(one["title"].startswith("TD-R003") and "RuntimeError" in one["text"] for one in found["alerts"])


def test_a_program_without_runs_gets_new_ones(watched_runner: Runner, tmp_path: Path) -> None:
    """Neither a file of the working folder nor the id of another run counts."""
    pytest.importorskip("tensorboard")
    (tmp_path / "wandb.py").write_text("raise SystemExit('not the package')\n")
    other = {"WANDB_RUN_ID": "another", "WANDB_RESUME": "must"}
    result = watched_runner(build_program_words("nan"), BOTH, build_environment(HF_TOKEN=SECRET, **other))
    assert result.code == 0, result.stderr
    (found,) = load_runs(result.folder)
    assert found["id"] != "another"
    assert (found["project"], "tdbg" in found["tags"], "TD-N001" in found["tags"]) == (result.folder.name, True, True)
    recorded = [step.step for step in result.list_steps()]
    assert [row["global_step"] for row in found["history"]] == recorded
    assert all("tdbg/lr/group0" in row for row in found["history"])
    assert found["summary"]["tdbg/verdict"].startswith("verdict: ")
    (report,) = [path for path in result.folder.rglob("files/tdbg/report.md") if "latest-run" not in path.parts]
    assert "TD-N001" in report.read_text()
    read = load_board(result.folder / "tensorboard")
    assert [event.step for event in read.Scalars("tdbg/lr/group0")] == recorded
    texts = {tag for tag in read.Tags()["tensors"] if tag.startswith("tdbg/")}
    assert {"tdbg/findings/TD-N001/text_summary", "tdbg/report/text_summary"} <= texts
    for path in result.folder.rglob("*"):
        assert SECRET.encode() not in (path.read_bytes() if path.is_file() else b""), path


def find_new_run(result: Result) -> dict[str, Any]:
    """The run that tdbg itself has begun, in the run directory."""
    (found,) = load_runs(result.folder)
    return found


@pytest.mark.parametrize(
    ("fault", "code", "said"),
    [
        ("early", 0, "ended at step 20 of 50"),
        ("killed", -signal.SIGKILL, "ended before tdbg added the report"),
        ("keys-refused", 0, "ended before tdbg added the report"),
        ("alert-raises", 0, "ended before tdbg added the report"),
    ],
)
def test_what_the_programs_run_lacks_goes_into_a_new_one(
    watched_runner: Runner, bare_runner: Runner, tmp_path: Path, fault: str, code: int, said: str
) -> None:
    args = build_program_command("sink_faults", fault)
    expected = bare_runner(args, env=build_environment(WANDB_DIR=str(tmp_path / "without")))
    result = watched_runner(args, WANDB, build_environment())
    assert expected.code == code and result.code == (code if code >= 0 else 128 - code), result.stderr
    assert result.stdout == expected.stdout
    if code >= 0:  # else the end of W&B's own file depends on when it was killed
        own = find_own_run(tmp_path / "wandb")
        assert list_own_rows(own) == list_own_rows(find_own_run(tmp_path / "without")), (
            "the program's rows have changed"
        )
    assert any(said in line and "writing everything to a new run" in line for line in result.tdbg_lines), result.stderr
    found = find_new_run(result)
    assert [row["global_step"] for row in found["history"]] == [step.step for step in result.list_steps()]
    assert set(result.codes) <= set(found["tags"]) and found["project"] == "own"


def test_each_run_of_a_program_has_its_own_part(watched_runner: Runner, tmp_path: Path) -> None:
    """The second one is left open at the end."""
    result = watched_runner(
        build_program_command("sink_faults", "two"), [*WANDB, "--max-overhead", "100"], build_environment()
    )
    assert result.code == 0, result.stderr
    first, second = load_runs(tmp_path / "wandb")
    assert [len(one["history"]) for one in (first, second)] == [20, 20]
    steps = [[row["tdbg/step"] for row in one["history"] if "tdbg/step" in row] for one in (first, second)]
    assert steps[0] and steps[1] and max(steps[0]) <= 20 < min(steps[1][1:]) and max(steps[1]) <= 40
    assert first["alerts"] == [] and "TD-N001" in second["tags"]
    assert len(list((tmp_path / "wandb").rglob("files/tdbg/report.md"))) == 2
    assert not list(result.folder.rglob("*.wandb")), "nothing was lacking"


def test_of_two_ranks_rank_0_sends(watched_runner: Runner, tmp_path: Path) -> None:
    result = watched_runner(build_torchrun_command("sink_faults", "ranks"), WANDB, build_environment())
    assert result.code == 0, result.stderr
    by_rank = {one["config"]["rank"]: one for one in load_runs(tmp_path / "wandb")}
    assert any("tdbg/step" in row for row in by_rank[0]["history"]) and "TD-N001" in by_rank[0]["tags"]
    assert not any(key.startswith("tdbg/") for row in by_rank[1]["history"] for key in row)
    assert by_rank[1]["tags"] == [] and by_rank[1]["alerts"] == [] and len(by_rank[1]["history"]) == 20
    assert not list(result.folder.rglob("*.wandb"))


def test_a_report_is_sent_later_or_refused_in_two_lines(watched_runner: Runner, bare_runner: Runner) -> None:
    """W&B switched off, and a disk on which files cannot grow."""
    result = watched_runner(build_program_words("nan"))
    before = sorted(result.folder.rglob("*"))
    report = [sys.executable, "-m", "tdbg", "report", str(result.folder)]
    off = bare_runner([*report, *WANDB], build_environment(WANDB_MODE="disabled"))
    assert off.code == 0 and "tdbg: --to wandb: nothing was sent: WANDB_MODE=disabled" in off.stderr
    full = subprocess.run(
        [*report, *TENSORBOARD],
        env={**clean_environment({}), "PYTHONDONTWRITEBYTECODE": "1"},
        capture_output=True,
        text=True,
        timeout=150,
        preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_FSIZE, (1024, 1024)),
    )
    assert full.returncode == 2 and len(full.stderr.splitlines()) == 2, full.stderr
    assert "--to tensorboard: File too large" in full.stderr and "try again: " in full.stderr
    shutil.rmtree(result.folder / "tensorboard")
    left = [path for path in sorted(result.folder.rglob("*")) if "sinks" not in path.parts]
    assert left == before, "the run directory has changed"
    assert bare_runner([*report, *TENSORBOARD], {}).code == 0
    assert load_board(result.folder / "tensorboard").Tags()["scalars"]


def test_tensorboard_gets_a_run_below_the_programs(watched_runner: Runner, bare_runner: Runner, tmp_path: Path) -> None:
    pytest.importorskip("tensorboard")
    result = watched_runner(build_program_words("tensorboard"), TENSORBOARD)
    folder = next(path for path in tmp_path.rglob("board/one") if path.is_dir())
    assert len(list(folder.glob("events.*"))) == 1, "TensorBoard stops reading a file beside which a later one lies"
    assert load_board(folder).Tags()["scalars"] == ["loss"]
    below = load_board(folder / "tdbg")
    assert [event.step for event in below.Scalars("tdbg/train/loss")] == [step.step for step in result.list_steps()]
    again = bare_runner([sys.executable, "-m", "tdbg", "report", str(result.folder), *TENSORBOARD])
    assert again.code == 0 and len(list((folder / "tdbg").iterdir())) == 1


def test_a_folder_that_is_a_url_is_not_noted(watched_runner: Runner) -> None:
    """It may hold a password or a signature."""
    pytest.importorskip("tensorboard")
    pytest.importorskip("fsspec")
    url = "memory://user:Pa55word@board/one?sig=51gnature"
    result = watched_runner(build_program_words("tensorboard"), TENSORBOARD, {"BOARD": url})
    assert result.code == 0, result.stderr
    assert load_board(result.folder / "tensorboard").Tags()["scalars"]
    noted = [path.read_text() for path in (result.folder / "sinks").iterdir()]
    assert noted and not [text for text in noted if "Pa55word" in text or "51gnature" in text]


def test_a_sink_that_hangs_is_ended_in_time(watched_runner: Runner, tmp_path: Path) -> None:
    """The package is one that never returns; the limit is made short."""
    site = tmp_path / "site"
    (site / "tdbg_hang").mkdir(parents=True)
    (site / "sitecustomize.py").write_text(
        "import os, sys\n"
        "if 'report' in sys.argv and '--to' in sys.argv:\n"
        "    import time; time.sleep(600)\n"
        "if 'run' in sys.argv:\n"
        "    import tdbg.launch.sending as s; s.LIMIT_S = 1.0\n"
    )
    begun = time.monotonic()
    result = watched_runner(build_program_words(), TENSORBOARD, {"PYTHONPATH": str(site)})
    assert result.code == 0 and time.monotonic() - begun < 60
    assert any("--to tensorboard: timed out after 1 s" in line for line in result.tdbg_lines), result.stderr
    assert "timed out" in load_outcome(result, "tensorboard")["error"]
    assert any("--to tensorboard" in note for note in result.verdict["notes"])


def test_a_sink_that_cannot_be_written_is_said_and_noted(watched_runner: Runner, tmp_path: Path) -> None:
    """A file stands where the folder should be: the other sink and the exit code do not suffer."""
    probe = watched_runner(build_program_words("tensorboard"), ["--level", "off"])
    (folder,) = [path for path in tmp_path.rglob("board/one") if path.is_dir()]
    shutil.rmtree(probe.folder)
    (folder / "tdbg").write_text("in the way")
    result = watched_runner(build_program_words("tensorboard"), BOTH, build_environment())
    assert result.code == 0
    said = [line for line in result.tdbg_lines if line.startswith("tdbg: --to tensorboard:")]
    assert len(said) == 1 and "try again: " in said[0], result.stderr
    assert any(note.startswith("--to tensorboard: ") for note in result.verdict["notes"])
    assert len(load_runs(result.folder)) == 1 and (folder / "tdbg").read_text() == "in the way"


@pytest.mark.parametrize("name", ["wandb", "tensorboard"])
def test_a_missing_package_is_refused_before_the_start(bare_runner: Runner, tmp_path: Path, name: str) -> None:
    (tmp_path / "hide.py").write_text(
        "import importlib.util, sys\n"
        "real = importlib.util.find_spec\n"
        "importlib.util.find_spec = lambda name, *more: None if name in ('wandb', 'tensorboard') else real(name, *more)\n"
        "from tdbg.__main__ import main\n"
        "sys.argv = ['tdbg', *sys.argv[1:]]\n"
        "sys.exit(main())\n"
    )
    result = bare_runner(
        [sys.executable, str(tmp_path / "hide.py"), "run", "--to", name, "--", "touch", str(tmp_path / "x")]
    )
    assert result.code == 2 and f"pip install 'tdbg[{name}]'" in result.stderr and len(result.stderr.splitlines()) == 2
    assert not (tmp_path / "x").exists()


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (["--to", "wandbx"], "--to: unknown sink 'wandbx'"),
        (["--to", "wandbb"], "did you mean wandb? choose from: tensorboard, wandb"),
        (["--to", ""], "--to"),
        (["--to", "tensorboard", "--exec"], "--to needs tdbg to stay running"),
    ],
)
def test_bad_input_is_refused(bare_runner: Runner, options: list[str], said: str) -> None:
    result = bare_runner([sys.executable, "-m", "tdbg", "run", *options, "--", "true"])
    assert result.code == 2 and said in result.stderr, result.stderr
