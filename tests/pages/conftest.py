"""Disks that are full or cannot be written, for the tests of pages."""

import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest


@contextmanager
def mount_disk(folder: Path, options: str) -> Iterator[Path]:
    """A disk of its own at a new folder; the test is skipped where none may be mounted."""
    folder.mkdir()
    command = ["mount", "-t", "tmpfs", "-o", options, "tmpfs", str(folder)]
    if subprocess.run(command, capture_output=True).returncode:
        pytest.skip("mounting a tmpfs is not permitted here")
    try:
        yield folder
    finally:
        subprocess.run(["umount", "-l", str(folder)], check=True)


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A disk of 2 MB; skipped where none may be mounted."""
    with mount_disk(tmp_path / "small", "size=2m") as folder:
        yield folder


@pytest.fixture
def read_only_disk(tmp_path: Path) -> Iterator[Path]:
    """A disk that cannot be written."""
    with mount_disk(tmp_path / "read-only", "size=8m,ro") as folder:
        yield folder
