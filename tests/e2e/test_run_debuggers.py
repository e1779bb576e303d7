"""`tdbg run --debugger`: debuggers by name on a program that never heard of tdbg, which does the same as without."""

from pathlib import Path

import pytest

from tdbg.pages.outputs import load_debug_outputs
from tdbg.pages.read.page_set import PageSet
from tests.e2e.conftest import Result, Runner, assert_same_output, build_program_command, build_torchrun_command
from tests.viewer.conftest import Client

ALL = [
    word
    for name in (
        "gradcam:conv", "feature_map:norm", "layer_output:conv", "activation_stats:re:(conv|norm)", "gradients:head",
        "attention:drop", "inputs", "labels", "outputs",
    )
    for word in ("--debugger", name)
]  # fmt: skip


def list_names(result: Result, phase: str) -> set[str]:
    """Which debuggers gave something for the datapoints of a phase."""
    points = [point for point in PageSet.open(result.folder) if point.phase == phase]
    return {path.partition("/")[0] for point in points for path in (*point.tensors, *point.scalars)}


def test_every_one_gives_something_and_the_run_is_the_same(watched_runner: Runner, bare_runner: Runner) -> None:
    words = build_program_command("pictures")
    result = watched_runner(words, [*ALL, "--capture", "batch", "--capture", "prediction"])
    assert_same_output(result, bare_runner(words))
    assert result.codes == [], result.stderr
    layers = {"gradcam:conv", "feature-map:norm", "layer-output:conv", "activation-stats:conv", "activation-stats:norm"}
    expected = {*layers, "attention:drop", "inputs", "labels", "outputs"}
    batch = {"inputs.image", "outputs.logits", *(f"inputs.name.{row}" for row in range(8))}
    assert list_names(result, "train") == {*expected, *batch, "gradients:head"}
    assert list_names(result, "val") == {*expected, *batch}
    sample = load_debug_outputs(result.folder / "rank0000" / "pages", 9)
    assert sample["gradcam:conv"]["gradcam"].shape == (8, 8) and sample["labels"][""] == 9 % 4
    assert sample["gradcam:conv"]["gradcam_stats"]["shape"] == [8, 8, 8]
    page = Client(result.folder.parent).ask(f"/runs/{result.folder.name}/pages/datapoint", key="9", nth=1)
    shown = str(page)
    assert all(name in shown for name in ("inputs.image", "outputs.logits", "labels", "gradcam:conv/gradcam")), shown


def test_each_rank_runs_its_own(watched_runner: Runner, bare_runner: Runner) -> None:
    words = build_torchrun_command("pictures", "--ddp")
    result = watched_runner(words, ["--debugger", "gradcam:act", "--debugger", "gradients:conv"])
    printed = sorted(bare_runner(words).stdout.splitlines())
    assert sorted(result.stdout.splitlines()) == printed
    points = list(PageSet.open(result.folder))
    assert {(point.rank, point.step) for point in points} == {(rank, step) for rank in (0, 1) for step in (1, 2)}
    assert all("gradcam:act/gradcam" in point.tensors for point in points)


def test_a_model_with_hooks_of_the_program_is_not_run_again(watched_runner: Runner, bare_runner: Runner) -> None:
    words = build_program_command("layers")
    result = watched_runner(words, ["--debugger", "gradcam:conv", "--debugger", "feature_map:head"])
    assert_same_output(result, bare_runner(words))
    assert "gradcam:conv not kept: conv has hooks of the program, which would run twice" in result.stderr
    assert list_names(result, "train") == {"feature-map:head"}


@pytest.mark.parametrize(
    ("word", "what", "next_step"),
    [
        ("grdcam:conv", "no debugger is named 'grdcam'", "did you mean gradcam?"),
        ("xyz", "no debugger is named 'xyz'", "known debuggers: activation-stats, attention,"),
        ("gradcam", "--debugger gradcam names no layer", "write --debugger gradcam:LAYER"),
        ("gradcam:re:(", "is not a regular expression", "Python's re"),
        ("gradcam:layers.[0-3", "has a '[' without a ']'", "layers.[0-3].attn"),
    ],
)
def test_a_wrong_word_is_told_before_the_start(watched_runner: Runner, word: str, what: str, next_step: str) -> None:
    result = watched_runner(build_program_command("pictures"), ["--debugger", word])
    assert result.code == 2 and result.stdout == "" and not result.folder.exists()
    first, second = result.stderr.splitlines()
    assert what in first and next_step in second


PACKAGE = """
from tdbg.debuggers import BaseDebugger

class Surprise(BaseDebugger):
    name = "surprise"

    def __init__(self, scale="1"):
        self.scale = float(scale)

    def __call__(self, datapoint, model):
        import torch
        losses = torch.nn.functional.cross_entropy(datapoint["outputs"]["logits"], datapoint["labels"], reduction="none")
        return {"loss": self.scale * losses}

class Broken(BaseDebugger):
    name = "broken"

    def __call__(self, datapoint, model):
        raise KeyError("nothing")
"""


def test_one_of_another_package_is_found_by_its_entry_point(watched_runner: Runner, tmp_path: Path) -> None:
    (tmp_path / "surprises.py").write_text(PACKAGE)
    info = tmp_path / "surprises-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: surprises\nVersion: 1.0\n")
    points = "surprise = surprises:Surprise\nbroken = surprises:Broken\n"
    (info / "entry_points.txt").write_text(f"[tdbg.debuggers]\n{points}")
    options = ["--debugger", "surprise:100", "--debugger", "broken", "--capture-phase", "train"]
    result = watched_runner(build_program_command("pictures"), options, env={"PYTHONPATH": str(tmp_path)})
    assert result.code == 0, result.stderr
    points_read = list(PageSet.open(result.folder))
    assert [list(point.tensors) for point in points_read] == [["surprise:100/loss"]] * 3
    means = [float(point.tensors["surprise:100/loss"].array().mean()) for point in points_read]
    assert means == pytest.approx([100 * step["loss"] for step in result.list_printed("step")], rel=1e-5)
    assert "broken not kept: KeyError: 'nothing'" in result.stderr
