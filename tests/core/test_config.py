"""Settings: every source, their order, and what a bad one is answered with."""

import math
from pathlib import Path

import pytest

from tdbg.core.config import (
    Settings,
    check_setting,
    flags_from_env,
    flags_to_env,
    parse_bytes,
    read_flags,
    resolve_settings,
)
from tdbg.core.errors import TdbgError


def test_the_sources_grow_in_strength(tmp_path: Path) -> None:
    (tmp_path / "pyproject.toml").write_text(
        '[tool.tdbg]\nlevel = "advanced"\nname = "toml"\nfail_on = "error"\ndisk_budget = "1MB"\nkeep_steps = 3\n'
        "[tool.tdbg.profiles.ci]\nkeep_steps = 5\n"
    )
    (tmp_path / "tdbg.yaml").write_text("name: yaml\nfail_on: warning\ndisk_budget: 2MB\n")
    environ = {"TDBG_FAIL_ON": "critical", "TDBG_DISK_BUDGET": "3MB", "UNRELATED": "1"}
    settings, origin = resolve_settings({"disk_budget": "4MB"}, cwd=tmp_path, environ=environ, profile="ci")
    assert (settings.level, settings.name, settings.fail_on) == ("advanced", "yaml", "critical")
    assert (settings.disk_budget, settings.keep_steps, settings.tee) == ("4MB", 5, False)
    assert origin["level"].endswith("pyproject.toml")
    assert origin["name"].endswith("tdbg.yaml")
    assert origin["fail_on"] == "environment"
    assert origin["disk_budget"] == "option"
    assert origin["keep_steps"].endswith("profile ci")
    assert origin["tee"] == "default"


def test_pyproject_is_found_above(tmp_path: Path) -> None:
    (tmp_path / "pyproject.toml").write_text('[tool.tdbg]\nlevel = "extreme"\n')
    below = tmp_path / "a" / "b"
    below.mkdir(parents=True)
    assert resolve_settings({}, cwd=below, environ={})[0].level == "extreme"


def test_flags_of_all_sources_add_up(tmp_path: Path) -> None:
    (tmp_path / "tdbg.yaml").write_text("DEBUG:\n  LOSS:\n    NULL_MASKING: true\n  MEMORY: true\n")
    settings, _ = resolve_settings(
        {"flags": ["AMP", "MEMORY=false"]}, cwd=tmp_path, environ={"TDBG_FLAGS": "LR", "TDBG_PRESET": "data"}
    )
    data = {"DATALOADER": True, "AUGMENTATION": True}
    assert settings.flags == {"LOSS.NULL_MASKING": True, "MEMORY": False, "LR": True, "AMP": True, **data}
    settings, _ = resolve_settings({"flags": ["AUGMENTATION=false"], "preset": ["data"]}, cwd=tmp_path, environ={})
    assert settings.flags["DATALOADER"] is True
    assert settings.flags["AUGMENTATION"] is False


@pytest.mark.parametrize(
    ("options", "what", "hint"),
    [
        ({"level": "advancd"}, "level cannot be 'advancd'", "did you mean advanced?"),
        ({"inject": "json"}, "inject cannot be", "choose from: auto"),
        ({"max_overhead": "lots"}, "max-overhead must be a percentage", "write a number"),
        ({"max_overhead": 0}, "above 0", "write a number"),
        ({"allowance": "lots"}, "allowance must be 0 seconds or more", "write a number"),
        ({"allowance": -1}, "must be 0 seconds or more", "write a number"),
        ({"allowance": "nan"}, "must be 0 seconds or more", "write a number"),
        ({"allowance": "inf"}, "must be 0 seconds or more", "write a number"),
        ({"baseline": -1}, "cannot be negative", "0 or more"),
        ({"baseline": "ten"}, "whole number", "0 or more"),
        ({"disk_budget": "big"}, "not a size", "500MB"),
        ({"disk_budget": "0"}, "disk-budget must be above 0", "write a size above 0, such as 500MB"),
        ({"disk_budget": "0.1B"}, "disk-budget must be above 0", "write a size above 0, such as 500MB"),
        ({"fail_on": "sometimes"}, "fail-on cannot be", "choose from"),
        ({"flags": ["GRADIENT"]}, "no flag is named 'GRADIENT'", "did you mean GRADIENTS?"),
        ({"tee": "maybe"}, "must be true or false", "true or false"),
        ({"progress_every": 0}, "above 0", "such as 30"),
    ],
)
def test_a_bad_value_is_named_with_a_way_out(tmp_path: Path, options: dict[str, object], what: str, hint: str) -> None:
    with pytest.raises(TdbgError) as caught:
        resolve_settings(options, cwd=tmp_path, environ={})
    assert what in str(caught.value)
    assert hint in caught.value.hint


def test_a_bad_file_is_named(tmp_path: Path) -> None:
    (tmp_path / "tdbg.yaml").write_text("level: [\n")
    with pytest.raises(TdbgError, match=r"cannot read .*tdbg\.yaml"):
        resolve_settings({}, cwd=tmp_path, environ={})
    (tmp_path / "tdbg.yaml").write_text("levle: basic\n")
    with pytest.raises(TdbgError, match=r"tdbg\.yaml: unknown setting 'levle'"):
        resolve_settings({}, cwd=tmp_path, environ={})
    (tmp_path / "tdbg.yaml").unlink()
    (tmp_path / "pyproject.toml").write_text("[tool.tdbg\n")
    with pytest.raises(TdbgError, match=r"cannot read .*pyproject\.toml"):
        resolve_settings({}, cwd=tmp_path, environ={})
    (tmp_path / "pyproject.toml").write_text("[tool.tdbg]\n")
    with pytest.raises(TdbgError, match="no profile is named 'ci'"):
        resolve_settings({}, cwd=tmp_path, environ={}, profile="ci")


def test_a_setting_of_tdbg_that_is_no_setting_of_a_run_is_left_alone(tmp_path: Path) -> None:
    environ = {"TDBG_RUN_ID": "x", "TDBG_DEBUG": "1"}
    assert resolve_settings({}, cwd=tmp_path, environ=environ)[0] == Settings()


def test_sizes() -> None:
    assert parse_bytes("500MB") == 500_000_000
    assert parse_bytes("1.5 GiB") == 1_610_612_736
    assert parse_bytes("7") == 7


def test_settings_and_flags_travel_as_text() -> None:
    settings = Settings(flags={"LR": True, "PROFILER": "3"}, level="advanced", stop_on=["TD-N001"])
    assert Settings.from_dict({**settings.as_dict(), "of_a_newer_tdbg": 1}) == settings
    assert flags_from_env(flags_to_env(settings.flags)) == settings.flags
    assert flags_from_env("LR,PROFILER=3") == {"LR": True, "PROFILER": "3"}
    assert read_flags({"LOSS": {"NULL_MASKING": False}}) == {"LOSS.NULL_MASKING": False}


def test_a_setting_is_known_by_the_name_of_its_option(tmp_path: Path) -> None:
    (tmp_path / "tdbg.yaml").write_text("measure_overhead: 5\n")
    assert resolve_settings({}, cwd=tmp_path, environ={})[0].baseline == 5
    assert resolve_settings({}, cwd=tmp_path, environ={"TDBG_MEASURE_OVERHEAD": "7"})[0].baseline == 7


def test_a_command_may_be_a_list_of_words() -> None:
    assert check_setting("on_finding", ["python", "a b.py"]) == "python 'a b.py'"
    assert Settings(on_finding="python 'a b.py'").on_finding_argv == ["python", "a b.py"]
    assert check_setting("on_finding", "") == check_setting("notify", "") == "", "an empty variable switches it off"


NO_VALUES: dict[str, list[object]] = {  # what a configuration file can hold, and the option cannot be
    "allowance": [
        True,
        False,
        -1,
        -0.5,
        math.nan,
        math.inf,
        -math.inf,
        10**400,
        "",
        "1s",
        "2GB",
        "nan",
        None,
        [],
        {},
        [1],
    ],
    "on_finding": [True, False, 0, 1.5, None, {}, {"a": "b"}, [None], [[]], [1], [""], " ", "'", "a\0b", ["a\0b"]],
    "notify": [True, False, 0, 1, None, [], {}, ["https://x/"], "x", " ", "ftp://x/", "https://", "a\0b"],
    "to": [True, False, 0, None, {}, {"a": 1}, [None], [1], [["wandb"]], math.nan],
    "preflight": [None, -1, 2, math.nan, [], {}, "maybe", "2GB", "\udcff"],
    "fail_on": [None, True, 0, [], {}, "", "severe", "\udcff"],
}


@pytest.mark.parametrize(("key", "value"), [(key, value) for key in NO_VALUES for value in NO_VALUES[key]])
def test_what_an_option_cannot_be_is_refused(key: str, value: object) -> None:
    with pytest.raises(TdbgError) as refused:
        check_setting(key, value)
    assert refused.value.hint and "\n" not in f"{refused.value}{refused.value.hint}"


@pytest.mark.parametrize(
    ("key", "value", "expected"),
    [
        ("allowance", 0, 0.0),
        ("allowance", "2147483648", 2.0**31),
        ("on_finding", "", ""),
        ("on_finding", [], ""),
        ("on_finding", ["python", "my alert.py"], "python 'my alert.py'"),
        ("notify", "", ""),
        ("notify", "https://x/y", "https://x/y"),
        ("to", "", []),
        ("to", "WandB, tensorboard", ["wandb", "tensorboard"]),
        ("to", ["mlflow", "mlflow"], ["mlflow"]),
        ("preflight", "yes", True),
    ],
)
def test_what_an_option_can_be_is_taken(key: str, value: object, expected: object) -> None:
    assert check_setting(key, value) == expected
