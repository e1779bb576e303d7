"""Whose configuration files count, and for what."""

import json
import os
from pathlib import Path

import pytest

from tests.security.conftest import OTHER, Place, give_away, needs_root

YAML = "level: advanced\n"
TOML = '[tool.tdbg]\nlevel = "advanced"\n'
FILES = {"tdbg.yaml": YAML, "pyproject.toml": TOML}


def read_level(place: Place, cwd: Path | None = None, **env: str) -> tuple[str, str]:
    """The level that a run would have, and what tdbg says."""
    done = place.run_tdbg("run", "--dry-run", "--", "true", cwd=cwd, **env)
    assert done.returncode == 0, done.stderr
    line = next(line for line in done.stdout.splitlines() if line.startswith("level: "))
    return line.split()[1].rstrip(","), done.stderr


def make_foreign(path: Path) -> None:
    give_away(path)


def make_world_writable(path: Path) -> None:
    path.chmod(0o666)


def make_group_writable(path: Path) -> None:
    os.chown(path, -1, OTHER)
    path.chmod(0o664)


def give_folder_away(path: Path) -> None:
    give_away(path.parent)


def open_folder_to_all(path: Path) -> None:
    path.parent.chmod(0o777)


@needs_root
@pytest.mark.parametrize("name", FILES)
@pytest.mark.parametrize(
    ("spoil", "why"),
    [
        (make_foreign, f"belongs to uid {OTHER}"),
        (make_world_writable, "every user can write to it"),
        (make_group_writable, f"group {OTHER} can write to it"),
        (give_folder_away, f"belongs to uid {OTHER}"),
        (open_folder_to_all, "every user can write to it"),
    ],
    ids=lambda value: getattr(value, "__name__", ""),
)
def test_a_file_that_another_may_change_is_not_read(private_place: Place, name: str, spoil, why: str) -> None:
    path = private_place.write_file(name, FILES[name])
    assert read_level(private_place) == ("advanced", "")
    spoil(path)
    found, said = read_level(private_place)
    assert found == "basic"
    assert len(said.splitlines()) == 1 and f"{path} is not read" in said and why in said and "TDBG_TRUST" in said
    for named in (path, private_place.folder):
        assert read_level(private_place, TDBG_TRUST=f"/elsewhere{os.pathsep}{named}") == ("advanced", "")
    assert read_level(private_place, TDBG_TRUST=f"{path}x")[0] == "basic"


@needs_root
def test_a_file_above_that_another_owns_is_not_read(private_place: Place) -> None:
    below = private_place.folder / "a" / "b"
    below.mkdir(parents=True)
    give_away(private_place.write_file("pyproject.toml", TOML))
    found, said = read_level(private_place, cwd=below)
    assert found == "basic" and "pyproject.toml is not read" in said
    assert read_level(private_place, cwd=below, TDBG_TRUST=str(private_place.folder))[0] == "advanced"


@needs_root
def test_a_sticky_folder_is_no_risk_for_ones_own_file(private_place: Place) -> None:
    private_place.write_file("tdbg.yaml", YAML)
    private_place.folder.chmod(0o1777)
    assert read_level(private_place) == ("advanced", "")


def test_a_private_group_may_write(private_place: Place) -> None:
    private_place.write_file("tdbg.yaml", YAML).chmod(0o664)  # umask 002, where each user has a group of one
    if os.geteuid() == 0:
        assert read_level(private_place) == ("advanced", "")


def test_a_pipe_of_that_name_holds_nothing_up(private_place: Place) -> None:
    os.mkfifo(private_place.folder / "tdbg.yaml")
    assert read_level(private_place)[0] == "basic"


# what a file may say

HOSTILE = {
    "capture_upload": "s3://attacker/bucket",
    "debugger": ["labels"],
    "run_dir": "/tmp/anywhere-else",
    "share": True,
    "on_finding": "touch /tmp/anywhere-else",
    "notify": "https://attacker.example/hook",
    "to": ["wandb"],
}
SHOWN = {"notify": "***"}  # where --dry-run does not show the value


def format_toml(key: str, value: object) -> str:
    return f"{key} = {json.dumps(value)}\n"


def write_hostile_setting(place: Place, where: str, key: str, value: object) -> tuple[str, ...]:
    """Write one dangerous setting where a cloned repository could; the options that make it count."""
    if where == "tdbg.yaml":
        place.write_file(where, f"{key}: {json.dumps(value)}\n")
        return ()
    section = "tool.tdbg.profiles.deep" if where == "profile" else "tool.tdbg"
    place.write_file("pyproject.toml", f"[{section}]\n{format_toml(key, value)}")
    return ("--profile-name", "deep") if where == "profile" else ()


def read_settings(place: Place, *options: str) -> tuple[str, str]:
    """What a run would have that is no default, and what tdbg says."""
    done = place.run_tdbg("run", "--dry-run", "--capture", "*", *options, "--", "true")
    assert done.returncode == 0, done.stderr
    return done.stdout, done.stderr


@pytest.mark.parametrize("where", ["tdbg.yaml", "pyproject.toml", "profile"])
@pytest.mark.parametrize("key", HOSTILE)
def test_a_file_of_a_folder_never_acts_until_it_is_trusted(private_place: Place, where: str, key: str) -> None:
    options = write_hostile_setting(private_place, where, key, HOSTILE[key])
    shown, said = read_settings(private_place, *options)
    assert f"setting: {key}" not in shown
    name = "tdbg.yaml" if where == "tdbg.yaml" else "pyproject.toml"
    assert len(said.splitlines()) == 1 and key in said and name in said and f"tdbg trust {private_place.folder}" in said
    assert private_place.run_tdbg("trust", ".").returncode == 0
    shown, said = read_settings(private_place, *options)
    assert f"setting: {key} = {SHOWN.get(key, HOSTILE[key])}" in shown and said == ""


def test_trust_of_ids_is_no_trust_to_act(private_place: Place) -> None:
    write_hostile_setting(private_place, "tdbg.yaml", "capture_upload", HOSTILE["capture_upload"])
    done = private_place.run_tdbg("run", "--dry-run", "--", "true", TDBG_TRUST=str(private_place.folder))
    assert "capture_upload is ignored" in done.stderr


def test_the_users_own_folder_counts(private_place: Place) -> None:
    mine = private_place.home / "config" / "tdbg" / "config.toml"
    mine.parent.mkdir(parents=True)
    mine.write_text(format_toml("capture_upload", "s3://mine/bucket") + format_toml("level", "extreme"))
    shown, said = read_settings(private_place)
    assert "setting: capture_upload = s3://mine/bucket" in shown and said == ""
    private_place.write_file("tdbg.yaml", YAML)
    assert read_level(private_place)[0] == "advanced"  # the nearer one wins
    if os.geteuid() == 0:
        give_away(mine)
        shown, said = read_settings(private_place)
        assert "s3://mine" not in shown and "config.toml is not read" in said


def test_a_relative_home_of_configuration_is_not_the_current_folder(private_place: Place) -> None:
    private_place.write_file("config/tdbg/config.toml", format_toml("capture_upload", "s3://attacker/bucket"))
    done = private_place.run_tdbg("run", "--dry-run", "--", "true", XDG_CONFIG_HOME="config")
    assert "attacker" not in done.stdout


def test_the_command_line_counts(private_place: Place) -> None:
    assert "setting: capture_upload = s3://x/y" in read_settings(private_place, "--capture-upload", "s3://x/y")[0]


# tdbg trust


def test_trust_lists_and_removes(private_place: Place) -> None:
    assert private_place.run_tdbg("trust", "--list").stdout == "folder\towner\n"
    assert private_place.run_tdbg("trust", ".").stdout == f"trusted: {private_place.folder}\n"
    store = private_place.home / "config" / "tdbg" / "trusted.json"
    assert store.stat().st_mode & 0o777 == 0o600 and store.parent.stat().st_mode & 0o777 == 0o700
    listed = json.loads(private_place.run_tdbg("trust", "--json").stdout)["data"]
    assert listed == [{"path": str(private_place.folder), "owner": os.geteuid()}]
    (private_place.folder.parent / "link").symlink_to(private_place.folder)
    assert private_place.run_tdbg("trust", "--remove", "../link").returncode == 0
    assert private_place.run_tdbg("trust", "--remove", ".").returncode == 1
    for wrong in (["trust", "nowhere"], ["trust", "--remove"], ["trust", ".", "--list"]):
        assert private_place.run_tdbg(*wrong).returncode == 2


@needs_root
def test_trust_ends_with_another_owner(private_place: Place) -> None:
    write_hostile_setting(private_place, "tdbg.yaml", "capture_upload", HOSTILE["capture_upload"])
    private_place.run_tdbg("trust", ".")
    give_away(private_place.folder)
    assert "attacker" not in read_settings(private_place)[0]
    done = private_place.run_tdbg(
        "run", "--dry-run", "--", "true", TDBG_TRUST=str(private_place.folder)
    )  # read, and still not trusted
    assert "attacker" not in done.stdout and "capture_upload is ignored" in done.stderr


@needs_root
def test_a_folder_for_all_is_not_trusted(private_place: Place) -> None:
    private_place.folder.chmod(0o777)
    done = private_place.run_tdbg("trust", ".")
    assert done.returncode == 2 and "every user can write to it" in done.stderr


@needs_root
def test_a_list_that_others_may_change_counts_for_nothing(private_place: Place) -> None:
    write_hostile_setting(private_place, "tdbg.yaml", "capture_upload", HOSTILE["capture_upload"])
    private_place.run_tdbg("trust", ".")
    (private_place.home / "config" / "tdbg" / "trusted.json").chmod(0o666)
    shown, said = read_settings(private_place)
    assert "attacker" not in shown and "trusted.json is not read" in said


@needs_root
def test_a_trusted_folder_of_another_user_is_read(private_place: Place) -> None:
    give_away(private_place.write_file("tdbg.yaml", YAML))
    give_away(private_place.folder)
    assert read_level(private_place)[0] == "basic"
    assert private_place.run_tdbg("trust", str(private_place.folder)).returncode == 0
    assert read_level(private_place) == ("advanced", "")
