"""`tdbg doctor`: what it finds, and what it calls a problem."""

import json
import os
from importlib import metadata
from pathlib import Path

import pytest

from tdbg.cli import doctor, main


@pytest.fixture(autouse=True)
def clean_place(tmp_path, monkeypatch):
    """An empty folder, and no setting from the environment."""
    monkeypatch.chdir(tmp_path)
    for name in os.environ:
        if name.startswith("TDBG_"):
            monkeypatch.delenv(name)
    return tmp_path


def run_doctor(capsys) -> tuple[int, dict[str, dict[str, str]], dict[str, dict]]:
    """Exit code, checks by name, settings by name."""
    code = main(["doctor", "--json"])
    data = json.loads(capsys.readouterr().out)["data"]
    return (
        code,
        {check["name"]: check for check in data["checks"]},
        {item["setting"]: item for item in data["settings"]},
    )


def test_a_healthy_place(capsys):
    code, checks, settings = run_doctor(capsys)
    assert code == 0 and "problem" not in {check["status"] for check in checks.values()}
    assert checks["torch"]["found"] == metadata.version("torch")
    assert {"tdbg", "python", "libraries", "launchers", "PYTHONPATH", "sitecustomize", "hook", "run directory"} <= set(
        checks
    )
    assert settings["level"] == {"setting": "level", "value": "basic", "from": "default"}


def test_as_text_there_are_two_tables(capsys):
    assert main(["doctor"]) == 0
    checks, settings = capsys.readouterr().out.split("\n\n")
    assert checks.startswith("check\tstatus\tfound\tnext\n") and settings.startswith("setting\tvalue\tfrom\n")


def test_it_writes_nothing(clean_place, capsys):
    run_doctor(capsys)
    assert list(clean_place.iterdir()) == []


def test_where_each_setting_came_from(clean_place, monkeypatch, capsys):
    (clean_place / "pyproject.toml").write_text('[tool.tdbg]\nlevel = "extreme"\nname = "toml"\ntee = true\n')
    (clean_place / "tdbg.yaml").write_text("level: advanced\nname: yaml\n")
    monkeypatch.setenv("TDBG_NAME", "env")
    monkeypatch.setenv("TDBG_FLAGS", "LR,SCHEDULING=3")
    _code, _checks, settings = run_doctor(capsys)
    assert settings["tee"]["from"].endswith("pyproject.toml") and settings["tee"]["value"] is True
    assert settings["level"]["from"].endswith("tdbg.yaml") and settings["level"]["value"] == "advanced"
    assert (settings["name"]["value"], settings["name"]["from"]) == ("env", "environment")
    assert settings["flags"]["value"] == {"LR": True, "SCHEDULING": "3"}
    main(["doctor"])
    assert "\nflags\tLR, SCHEDULING=3\tenvironment\n" in capsys.readouterr().out


def test_a_bad_source_is_a_problem_not_a_failure(clean_place, capsys):
    (clean_place / "tdbg.yaml").write_text("level: advancd\n")
    code, checks, settings = run_doctor(capsys)
    assert code == 1 and checks["settings"]["status"] == "problem" and settings == {}
    assert "tdbg.yaml" in checks["settings"]["found"] and "did you mean advanced?" in checks["settings"]["next"]


def test_a_misspelt_variable_is_a_problem(monkeypatch, capsys):
    monkeypatch.setenv("TDBG_LEVLE", "basic")
    code, checks, _settings = run_doctor(capsys)
    assert code == 1 and checks["TDBG_LEVLE"]["next"] == "did you mean TDBG_LEVEL?"


def test_a_sitecustomize_of_your_own_is_noted(clean_place, monkeypatch, capsys):
    (clean_place / "sitecustomize.py").write_text("")
    monkeypatch.syspath_prepend(str(clean_place))
    code, checks, _settings = run_doctor(capsys)
    assert code == 0 and checks["sitecustomize"]["found"] == str(clean_place / "sitecustomize.py")


@pytest.mark.parametrize(
    ("version", "status"), [("2.5.1", "problem"), ("2.6.0", "ok"), ("2.13.0+cpu", "ok"), ("3.0a1", "ok")]
)
def test_an_old_torch_is_a_problem(monkeypatch, version, status):
    monkeypatch.setattr(doctor, "version_of", lambda package: version if package == "torch" else "1.0")
    torch = next(check for check in doctor.check_packages() if check.name == "torch")
    assert (torch.found, torch.status) == (version, status)


def test_what_is_missing_is_named(monkeypatch):
    monkeypatch.setattr(doctor, "version_of", lambda package: "" if package in ("torch", "yacs", "wandb") else "1.0")
    checks = {check.name: check for check in doctor.check_packages()}
    assert checks["torch"].status == "note"
    assert checks["libraries"].status == "problem" and checks["libraries"].next == "python -m pip install yacs"
    assert checks["extras"].status == "ok" and "missing: wandb" in checks["extras"].found


def test_a_place_that_cannot_be_written_is_a_problem(monkeypatch, clean_place):
    monkeypatch.setattr(os, "access", lambda path, mode: Path(path) != clean_place)
    (check,) = doctor.check_run_folder()
    assert check.status == "problem" and "--run-dir" in check.next


def test_a_run_directory_below_a_file_is_a_problem(monkeypatch, clean_place):
    (clean_place / "file").write_text("")
    monkeypatch.setenv("TDBG_RUN_DIR", str(clean_place / "file" / "run"))
    (check,) = doctor.check_run_folder()
    assert check.status == "problem"
