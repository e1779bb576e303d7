"""Where a saved batch is: by its name in the run, never outside of it and never through a link."""

from pathlib import Path

import pytest

from tdbg.core.rundir import EVENTS, RunDir
from tdbg.viewer.answers.batches import find_batch, iter_batches

FILE = "batch_step00000003.safetensors"
FOLDERS = ("rank0000", "rank0000/attempt1", "other/vm-77", "secret")


@pytest.fixture
def run(tmp_path: Path) -> RunDir:
    for folder in FOLDERS:
        (tmp_path / folder).mkdir(parents=True, exist_ok=True)
        (tmp_path / folder / EVENTS).write_text("")
        (tmp_path / folder / FILE).write_text("x")
    (tmp_path / "rank0007").symlink_to(tmp_path / "secret")
    (tmp_path / "rank0000" / "attempt2").symlink_to(tmp_path / "secret")
    (tmp_path / "rank0000" / FILE.replace("3", "4")).symlink_to(tmp_path / "secret" / FILE)
    (tmp_path / "rank0000" / FILE.replace("3", "5")).mkdir()
    return RunDir(tmp_path)


@pytest.mark.parametrize("folder", FOLDERS[:3])
def test_a_batch_of_any_process_is_found(run: RunDir, folder: str) -> None:
    assert find_batch(run, f"{folder}/{FILE}") == run.path / folder / FILE


@pytest.mark.parametrize(
    "file",
    [
        *(f"secret/{FILE}", f"rank0007/{FILE}", f"rank0000/attempt2/{FILE}", f"rank0000/../secret/{FILE}", FILE),
        *(f"rank0000/{FILE.replace('3', number)}" for number in "459"),
        *(f"other/../{FILE}", f"other/{FILE}", f"/rank0000/{FILE}", "/etc/passwd", f"rank0000/{EVENTS}", "", "/", "\0"),
    ],
)
def test_nothing_else_is_one(run: RunDir, file: str) -> None:
    assert find_batch(run, file) is None


def test_what_is_listed_can_be_found(run: RunDir) -> None:
    listed = [one.file for one in iter_batches(run)]
    assert sorted(listed) == sorted(f"{folder}/{FILE}" for folder in FOLDERS[:3])
    assert all(find_batch(run, file) for file in listed)
