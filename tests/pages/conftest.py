"""Disks that are full or cannot be written, for the tests of pages."""

import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest


def _mounted(folder: Path, options: str) -> bool:
    folder.mkdir()
    done = subprocess.run(["mount", "-t", "tmpfs", "-o", options, "tmpfs", str(folder)], capture_output=True)
    return done.returncode == 0


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A disk of 2 MB; skipped where none may be mounted."""
    folder = tmp_path / "small"
    if not _mounted(folder, "size=2m"):
        pytest.skip("mounting a tmpfs is not permitted here")
    yield folder
    subprocess.run(["umount", "-l", str(folder)], check=True)


@pytest.fixture
def read_only_disk(tmp_path: Path) -> Iterator[Path]:
    """A disk that cannot be written."""
    folder = tmp_path / "read-only"
    if not _mounted(folder, "size=8m,ro"):
        pytest.skip("mounting a tmpfs is not permitted here")
    yield folder
    subprocess.run(["umount", "-l", str(folder)], check=True)
