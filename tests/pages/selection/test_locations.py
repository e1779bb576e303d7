"""What a word names: a path, a run under ./tdbg_runs as `tdbg report` takes it, a file of the newest run, or nothing."""

from pathlib import Path

import pytest

from tdbg.cli.inspect_pages import put_command_first
from tdbg.core.errors import TdbgError
from tdbg.pages.selection.locations import is_under_runs, resolve_place

OLD, NEW = "20261121-031500-train", "20261122-031500-train"


@pytest.fixture
def runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A working directory with two runs."""
    monkeypatch.chdir(tmp_path)
    for name in (OLD, NEW):
        folder = tmp_path / "tdbg_runs" / name
        (folder / "rank0000").mkdir(parents=True)
        (folder / "run.json").write_text("{}")
        (folder / "rank0000" / "batch_step00000012.safetensors").write_text("")
    return tmp_path


@pytest.mark.parametrize(
    ("word", "place"),
    [
        (OLD, f"tdbg_runs/{OLD}"),
        ("train", f"tdbg_runs/{NEW}"),
        (f"tdbg_runs/{OLD}", f"tdbg_runs/{OLD}"),
        ("rank0000/batch_step00000012.safetensors", f"tdbg_runs/{NEW}/rank0000/batch_step00000012.safetensors"),
        ("17/layers.4", "17/layers.4"),
        ("nothing", "nothing"),
    ],
)
def test_places(runs: Path, word: str, place: str) -> None:
    assert resolve_place([word]) == place
    assert is_under_runs(word) == (place != word)


def test_the_name_of_a_run_may_come_before_the_command(runs: Path) -> None:
    assert put_command_first([OLD]) == ["ls", OLD]
    assert put_command_first([OLD, "show", "batch.0"]) == ["show", OLD, "batch.0"]
    with pytest.raises(TdbgError, match="neither a command nor a path"):
        put_command_first(["20991231-000000-none"])
