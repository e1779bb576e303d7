"""The wheel that README.md has people build holds what it promises: completions and manual pages."""

import re
import shutil
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]


@pytest.mark.cold
def test_the_wheel_has_completions_and_manual_pages(tmp_path: Path) -> None:
    text = (ROOT / "README.md").read_text(encoding="utf-8")
    (line,) = re.findall(r"^python (-m pip wheel .*)$", text, re.M)
    for name in ("tdbg", "man", "completions"):
        shutil.copytree(ROOT / name, tmp_path / name, ignore=shutil.ignore_patterns("__pycache__"))
    for name in ("pyproject.toml", "README.md", "LICENSE"):
        shutil.copy(ROOT / name, tmp_path)
    done = subprocess.run([sys.executable, *line.split()], cwd=tmp_path, capture_output=True, text=True, timeout=280)
    assert done.returncode == 0, done.stderr
    (wheel,) = (tmp_path / "dist").glob("tdbg-*.whl")
    names = zipfile.ZipFile(wheel).namelist()
    for wanted in [
        "share/bash-completion/completions/tdbg",
        "share/zsh/site-functions/_tdbg",
        "share/fish/vendor_completions.d/tdbg.fish",
        *(f"share/man/man1/{path.name}" for path in (ROOT / "man").glob("*.1")),
    ]:
        assert any(name.endswith(f".data/data/{wanted}") for name in names), wanted
