"""`tdbg run --to wandb|tensorboard` on programs with and without runs of their own, read back from the real files."""

import json
import shutil
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from tests.e2e.conftest import Result, Runner, program
from tests.metrics.wandb_files import runs

pytest.importorskip("wandb")
WANDB, TENSORBOARD, BOTH = ["--to", "wandb"], ["--to", "tensorboard"], ["--to", "wandb", "--to", "tensorboard"]
OF_TIME = ("_runtime", "_timestamp", "_wandb")
SECRET = "hf_" + "q7Rt" * 8


def environment(**more: str) -> dict[str, str]:
    return {"WANDB_MODE": "offline", "WANDB_SILENT": "true", "WANDB_API_KEY": "", "WANDB_DIR": "", **more}


def rows(found: dict[str, Any]) -> list[dict[str, Any]]:
    """The program's own rows, without what depends on the time."""
    kept = [{k: v for k, v in row.items() if k not in OF_TIME} for row in found["history"]]
    return [{k: v for k, v in row.items() if not k.startswith("tdbg/")} for row in kept]


def program_words(*args: str) -> list[str]:
    return program("own_sinks", *args)


def board(folder: Path) -> Any:
    accumulator = pytest.importorskip("tensorboard.backend.event_processing.event_accumulator")
    found = accumulator.EventAccumulator(str(folder), size_guidance={"scalars": 0, "tensors": 0})
    return found.Reload()


def own_run(folder: Path) -> dict[str, Any]:
    (found,) = runs(folder)
    return found


def outcome(result: Result, name: str) -> dict[str, Any]:
    (path,) = (result.folder / "sinks").glob(f"outcome-{name}-*.json")
    found: dict[str, Any] = json.loads(path.read_text())
    return found


@pytest.mark.parametrize("words", [(), ("explicit",), ("finish",)], ids=["plain", "explicit-step", "finished"])
def test_rows_of_the_programs_run_stay_the_same(
    watched: Runner, bare: Runner, tmp_path: Path, words: tuple[str, ...]
) -> None:
    args = program_words("wandb", "nan", *words)
    bare(args, env=environment(WANDB_DIR=str(tmp_path / "without")))
    without = own_run(tmp_path / "without")
    result = watched(args, WANDB, environment(WANDB_DIR=str(tmp_path / "with")))
    found = own_run(tmp_path / "with")
    assert result.code == 0, result.stderr
    assert rows(found) == rows(without) and len(found["history"]) == 10
    assert {key: value for key, value in found["config"].items() if key != "_wandb"} == {"lr": 0.1}
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
    assert outcome(result, "wandb")["own"] and not outcome(result, "wandb")["error"]
    assert not list(result.folder.rglob("*.wandb")), "a second run was made"
    assert any("program's own run" in line and "with the report" in line for line in result.said)


def test_an_exception_stands_in_the_report_of_the_programs_run(watched: Runner, tmp_path: Path) -> None:
    result = watched(program_words("wandb", "crash"), WANDB, environment(WANDB_DIR=str(tmp_path / "with")))
    uncaught = [one for one in result.verdict["findings"] if "RuntimeError" in one["title"]]
    assert result.code == 1 and len(uncaught) == 1
    found = own_run(tmp_path / "with")
    assert any(one["title"].startswith("TD-R003") and "RuntimeError" in one["text"] for one in found["alerts"])


def test_a_program_without_runs_gets_new_ones(watched: Runner) -> None:
    pytest.importorskip("tensorboard")
    result = watched(program_words("nan"), BOTH, environment(HF_TOKEN=SECRET))
    assert result.code == 0, result.stderr
    (found,) = runs(result.folder)
    assert (found["project"], "tdbg" in found["tags"], "TD-N001" in found["tags"]) == (result.folder.name, True, True)
    recorded = [step.step for step in result.steps()]
    assert [row["global_step"] for row in found["history"]] == recorded
    assert all("tdbg/lr/group0" in row for row in found["history"])
    assert found["summary"]["tdbg/verdict"].startswith("verdict: ")
    read = board(result.folder / "tensorboard")
    assert [event.step for event in read.Scalars("tdbg/lr/group0")] == recorded
    texts = {tag for tag in read.Tags()["tensors"] if tag.startswith("tdbg/")}
    assert {"tdbg/findings/TD-N001/text_summary", "tdbg/report/text_summary"} <= texts
    for path in result.folder.rglob("*"):
        assert SECRET.encode() not in (path.read_bytes() if path.is_file() else b""), path


def test_tensorboard_gets_a_run_below_the_programs(watched: Runner, bare: Runner, tmp_path: Path) -> None:
    pytest.importorskip("tensorboard")
    result = watched(program_words("tensorboard"), TENSORBOARD)
    folder = next(path for path in tmp_path.rglob("board/one") if path.is_dir())
    assert len(list(folder.glob("events.*"))) == 1, "TensorBoard stops reading a file beside which a later one lies"
    assert board(folder).Tags()["scalars"] == ["loss"]
    below = board(folder / "tdbg")
    assert [event.step for event in below.Scalars("tdbg/train/loss")] == [step.step for step in result.steps()]
    again = bare([sys.executable, "-m", "tdbg", "report", str(result.folder), *TENSORBOARD])
    assert again.code == 0 and len(list((folder / "tdbg").iterdir())) == 1


def test_a_sink_that_hangs_is_ended_in_time(watched: Runner, tmp_path: Path) -> None:
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
    result = watched(program_words(), TENSORBOARD, {"PYTHONPATH": str(site)})
    assert result.code == 0 and time.monotonic() - begun < 60
    assert any("--to tensorboard: not sent within 1 s" in line for line in result.said), result.stderr
    assert "not sent" in outcome(result, "tensorboard")["error"]
    assert any("--to tensorboard" in note for note in result.verdict["notes"])


def test_a_sink_that_cannot_be_written_is_said_and_noted(watched: Runner, tmp_path: Path) -> None:
    """A file stands where the folder should be: the other sink and the exit code do not suffer."""
    probe = watched(program_words("tensorboard"), ["--level", "off"])
    (folder,) = [path for path in tmp_path.rglob("board/one") if path.is_dir()]
    shutil.rmtree(probe.folder)
    (folder / "tdbg").write_text("in the way")
    result = watched(program_words("tensorboard"), BOTH, environment())
    assert result.code == 0
    said = [line for line in result.said if line.startswith("tdbg: --to tensorboard:")]
    assert len(said) == 1 and "tries again" in said[0], result.stderr
    assert any(note.startswith("--to tensorboard: ") for note in result.verdict["notes"])
    assert len(runs(result.folder)) == 1 and (folder / "tdbg").read_text() == "in the way"


def test_a_missing_package_is_refused_before_the_start(bare: Runner, tmp_path: Path) -> None:
    (tmp_path / "hide.py").write_text(
        "import importlib.util, sys\n"
        "real = importlib.util.find_spec\n"
        "importlib.util.find_spec = lambda name, *more: None if name == 'wandb' else real(name, *more)\n"
        "from tdbg.__main__ import main\n"
        "sys.argv = ['tdbg', *sys.argv[1:]]\n"
        "sys.exit(main())\n"
    )
    result = bare([sys.executable, str(tmp_path / "hide.py"), "run", *WANDB, "--", "touch", "started"])
    assert result.code == 2 and "pip install 'tdbg[wandb]'" in result.stderr
    assert not list(tmp_path.rglob("started"))


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (["--to", "wandbb"], "did you mean wandb?"),
        (["--to", ""], "--to"),
        (["--to", "tensorboard", "--exec"], "--to needs a supervisor"),
    ],
)
def test_bad_input_is_refused(bare: Runner, options: list[str], said: str) -> None:
    result = bare([sys.executable, "-m", "tdbg", "run", *options, "--", "true"])
    assert result.code == 2 and said in result.stderr, result.stderr
