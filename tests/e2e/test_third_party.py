"""A probe of another package, found by its entry point when the run starts, works in the rank."""

from pathlib import Path

from tdbg.core.events import Observation
from tests.e2e.conftest import EVERY_STEP, Runner, build_program_command

PROBE = """
from tdbg.probes import Probe

class Losses(Probe):
    name = "losses"
    levels = ("basic",)
    fields = {"loss": "the loss"}

    def record_written(self, record):
        self.see(f"loss {record.loss}", step=record.step, loss=record.loss)
"""


def write_package(folder: Path, point: str) -> dict[str, str]:
    """An installed package with one probe; returns the environment that finds it."""
    (folder / "losses_probe.py").write_text(PROBE)
    info = folder / "losses_probe-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: losses-probe\nVersion: 1.0\n")
    (info / "entry_points.txt").write_text(f"[tdbg.probes]\nlosses = {point}\n")
    return {"PYTHONPATH": str(folder)}


def test_it_watches_like_one_of_ours(watched_runner: Runner, tmp_path: Path) -> None:
    result = watched_runner(
        build_program_command("plain"), EVERY_STEP, env=write_package(tmp_path, "losses_probe:Losses")
    )
    assert result.code == 0, result.stderr
    seen = [event for event in result.list_events(Observation) if event.probe == "losses"]
    assert [event.values["loss"] for event in seen] == [step.loss for step in result.list_steps()]
    assert result.codes == []


def test_one_that_cannot_be_imported_is_named(watched_runner: Runner, tmp_path: Path) -> None:
    result = watched_runner(
        build_program_command("plain"), EVERY_STEP, env=write_package(tmp_path, "losses_probe:Absent")
    )
    assert result.code == 0, result.stderr
    assert "losses_probe:Absent" in result.find_finding("TD-C005")["title"]
    assert len(result.list_steps()) == len(result.list_printed())
