"""The scan finds flags in the shapes programs write them in, runs nothing, and stays within its bounds."""

import textwrap
from pathlib import Path

import pytest

from tdbg.launch import scan
from tdbg.launch.scan import known_flags, python_flags, yaml_flags


@pytest.mark.parametrize(
    ("source", "then"),
    [
        ("_C.DEBUG = CN()\n_C.DEBUG.LOSS = CN()\n_C.DEBUG.LOSS.MINE = False", {"LOSS.MINE"}),
        ("if cfg.DEBUG.MINE: pass", {"MINE"}),
        ("if self.cfg.debug.mine: pass", {"MINE"}),
        ("if config['DEBUG']['LOSS']['MINE']: pass", {"LOSS.MINE"}),
        ("getattr(cfg.DEBUG, 'MINE', False); hasattr(cfg.DEBUG.LOSS, 'OTHER')", {"MINE", "LOSS.OTHER"}),
        ("cfg.DEBUG.get('MINE', False)", {"MINE"}),
        ("check_debug_flag(cfg, 'DEBUG.LOSS.MINE')", {"LOSS.MINE"}),
        ("check_debug_flag(cfg, 'MINE')", {"MINE"}),
        ("import tdbg\ntdbg.flag('mine')", {"MINE"}),
        ("D = cfg.DEBUG\nif D.MINE and D.LOSS.OTHER: pass", {"MINE", "LOSS.OTHER"}),
        ("cfg = CN({'DEBUG': {'LOSS': CN({'MINE': False}), 'OTHER': 1}})", {"LOSS.MINE", "OTHER"}),
        ("p.add_argument('--debug-mine-too', '-d', action='store_true')", {"MINE_TOO"}),
        ("p.add_argument('--debug.loss.mine')", {"LOSS.MINE"}),
        ("class DebugConfig:\n    mine: bool = False\n    depth: int = 3", {"MINE"}),
        ("logging.DEBUG; logger.debug('x'); torch.debug.mine; cfg.DEBUG.freeze(); cfg.DEBUG.items()", set()),
        ("DEBUG = True\nif DEBUG: print('DEBUG.x', 'debug.mine')", set()),
        ("x = 'DEBUG.MINE'\nthis is no python", set()),
        ("x = '\\d' + cfg.DEBUG.MINE", {"MINE"}),
    ],
)
def test_shapes_in_python(source: str, then: set[str], tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(source)
    assert known_flags(["python", "train.py"], tmp_path) == then


@pytest.mark.parametrize(
    ("text", "then"),
    [
        ("lr: 1\nDEBUG:\n  LOSS:\n    MINE: true\n  # why\n\n  OTHER: false\nnext: 2\n", {"LOSS.MINE", "OTHER"}),
        ("debug:\n  mine: true", {"mine"}),
        ("DEBUG: true\nx:\n  MINE: 1\n", set()),
        ("DEBUG:\n  - a\n", set()),
        ("DEBUG:\n  x: [\n", set()),
        ("DEBUG:\n  x: !!python/object/apply:os.system ['exit 1']\n", set()),
    ],
)
def test_yaml(text: str, then: set[str]) -> None:
    assert yaml_flags(text) == then


def write_tree(folder: Path, **files: str) -> None:
    for name, text in files.items():
        path = folder / name.replace("__", "/").replace("_py", ".py").replace("_yaml", ".yaml")
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(textwrap.dedent(text))


def test_a_hydra_group_called_debug(tmp_path: Path) -> None:
    write_tree(tmp_path, train_py="", conf__debug__default_yaml="mine: false\nloss:\n  other: 1\n")
    assert known_flags(["python", "train.py"], tmp_path) == {"MINE", "LOSS.OTHER"}


@pytest.mark.parametrize(
    "command",
    [
        ["python", "tools/train.py"],
        ["torchrun", "--nproc-per-node=2", "tools/train.py", "--lr", "1"],
        ["python", "-m", "pkg.train"],
        ["python", "-m", "torch.distributed.run", "tools/train.py"],
        ["sh", "-c", "cd . && python tools/train.py"],
        ["./tools/train.py"],
    ],
)
def test_commands(command: list[str], tmp_path: Path) -> None:
    write_tree(
        tmp_path,
        tools__train_py="cfg.DEBUG.SCRIPT",
        pkg__train_py="cfg.DEBUG.PACKAGE",
        conf__a_yaml="DEBUG:\n  FILE: 1\n",
    )
    assert known_flags(command, tmp_path) == {"SCRIPT", "PACKAGE", "FILE"}


def test_a_script_elsewhere(tmp_path: Path) -> None:
    write_tree(tmp_path, far__train_py="cfg.DEBUG.SCRIPT", here__other_py="cfg.DEBUG.HERE")
    assert known_flags(["python", "../far/train.py"], tmp_path / "here") == {"SCRIPT", "HERE"}


def test_what_is_skipped(tmp_path: Path) -> None:
    write_tree(
        tmp_path,
        train_py="",
        env__lib__x_py="cfg.DEBUG.VENV",
        git__x_py="cfg.DEBUG.GIT",
        tdbg_runs__x_py="cfg.DEBUG.RUN",
    )
    (tmp_path / "env/pyvenv.cfg").touch()
    (tmp_path / "git").rename(tmp_path / ".git")
    assert known_flags(["python", "train.py"], tmp_path) == set()


def test_nothing_is_executed(tmp_path: Path) -> None:
    write_tree(tmp_path, train_py=f"open({str(tmp_path / 'ran')!r}, 'w')\ncfg.DEBUG.MINE")
    assert known_flags(["python", "train.py"], tmp_path) == {"MINE"}
    assert not (tmp_path / "ran").exists()


def test_bounds(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write_tree(tmp_path, **{f"f{number:03d}_py": f"cfg.DEBUG.F{number}" for number in range(20)})
    monkeypatch.setattr(scan, "MAX_FILES", 5)
    assert len(known_flags(["python", "f000.py"], tmp_path)) == 5
    monkeypatch.setattr(scan, "MAX_FILES", 100)
    monkeypatch.setattr(scan, "MAX_PARSED_BYTES", 40)
    assert 0 < len(known_flags(["python", "f000.py"], tmp_path)) < 5


def test_odd_files_do_no_harm(tmp_path: Path) -> None:
    write_tree(tmp_path, train_py="cfg.DEBUG.MINE", deep_py="x = " + "(" * 5000 + "DEBUG" + ")" * 5000)
    (tmp_path / "null.py").write_bytes(b"DEBUG\x00\xff\xfe")
    (tmp_path / "long.py").write_text("x = " + "+".join(["cfg.DEBUG.A"] * 3000))
    (tmp_path / "link.py").symlink_to(tmp_path / "nowhere.py")
    (tmp_path / "loop").symlink_to(tmp_path)
    (tmp_path / "fifo_dir").mkdir(mode=0o000)
    assert "MINE" in known_flags(["python", "train.py"], tmp_path)


def test_prefixes_are_families_not_flags() -> None:
    assert python_flags("_C.DEBUG.LOSS.A = 1; _C.DEBUG.LOSS") == {"LOSS", "LOSS.A"}


def test_home_and_root_are_not_scanned(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write_tree(tmp_path, other_py="cfg.DEBUG.HOME", work__train_py="cfg.DEBUG.MINE")
    monkeypatch.setattr(Path, "home", lambda: tmp_path)
    assert known_flags(["python", "work/train.py"], tmp_path) == {"MINE"}
