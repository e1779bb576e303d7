"""`tdbg run --capture`: what the program's own hooks saw is what is in the pages, bit for bit."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor
from torch.nn import functional

from tdbg.core.events import Cost, Observation
from tdbg.pages.read.page_set import PageSet
from tests.e2e.conftest import Result, Runner, assert_same_output, build_program_command, build_torchrun_command
from tests.e2e.programs.common import make_tokens

TRAIN = [*range(1, 7)]


def load_kept(result: Result, rank: int = 0) -> dict[str, Any]:
    """What the program kept itself."""
    return torch.load(result.folder.parent / f"kept{rank}.pt", weights_only=True)


def is_equal(tensor: Any, expected: torch.Tensor) -> bool:
    return tuple(tensor.shape) == tuple(expected.shape) and tensor.read() == expected.contiguous().numpy().tobytes()


def list_capture_events(result: Result, part: str) -> list[Observation]:
    return [event for event in result.list_events(Observation) if event.probe == "capture" and event.part == part]


def test_outputs_inputs_and_gradients_are_those_of_the_program(watched_runner: Runner, bare_runner: Runner) -> None:
    words = build_program_command("layers")
    result = watched_runner(words, ["--capture", "conv:output,input,grad", "--capture", "mix", "--capture", "h*d"])
    assert_same_output(result, bare_runner(words))
    expected, pages = load_kept(result), PageSet.open(result.folder)
    found = list(pages)
    assert not list(pages.problems)
    assert [(point.phase, point.step, point.epoch) for point in found] == [
        *(("train", step, 0) for step in (1, 2, 3)), *(("val", 3, 0) for _ in range(3)),
        *(("train", step, 1) for step in (4, 5, 6)), *(("val", 6, 1) for _ in range(3)),
    ]  # fmt: skip
    passes = 0
    for point in found:
        passes += point.phase == "val"
        place = f"train{point.step}" if point.phase == "train" else f"val{passes}"
        kinds = ["conv:input.0", "conv:output", "mix:output", "mix#1:output", "head:output"]
        assert list(point.tensors) == [*kinds, *(["conv:grad"] if point.phase == "train" else [])]
        for path, tensor in point.tensors.items():
            if path != "conv:input.0":
                assert is_equal(tensor, expected[f"{place}/{path}"]), (place, path)
        assert point.tensors["conv:output"].array().min() < 0, "before the ReLU wrote into it"
        assert point.keys == [100 + 8 * ((point.seq % 6) % 3) + row for row in range(8)]
    (datapoint, again, *_) = pages.find(117)
    assert datapoint.row == 1 and datapoint.step == 3 and again.phase == "val"
    assert datapoint.tensors["head:output"].read() == expected["train3/head:output"][1].numpy().tobytes()
    (layers,) = list_capture_events(result, "LAYERS")
    assert layers.values["layers"] == ["conv", "mix", "head"]
    (done,) = list_capture_events(result, "DONE")
    assert done.values["datapoints"] == 12 and done.values["dropped"] == {}
    assert result.codes == []
    (*_, cost) = result.list_events(Cost)
    assert cost.capture_ms > 0
    assert "capturing" in result.stderr, "in the verdict's line of the cost"


@pytest.mark.parametrize("ranks", [1, 2])
def test_batches_and_predictions_are_those_of_the_program(
    ranks: int, watched_runner: Runner, bare_runner: Runner
) -> None:
    words = build_program_command("layers") if ranks == 1 else build_torchrun_command("layers", "--ddp")
    asked = ["--capture", "batch", "--capture", "prediction", "--capture", "conv"]
    result = watched_runner(words, asked)
    assert sorted(result.stdout.splitlines()) == sorted(bare_runner(words).stdout.splitlines())
    points = list(PageSet.open(result.folder))
    assert len(points) == 12 * ranks and result.codes == []
    passes = 0
    for point in points:
        passes += point.phase == "val"
        place = f"train{point.step}" if point.phase == "train" else f"val{(passes - 1) % 6 + 1}"
        expected = load_kept(result, point.rank or 0)
        assert list(point.tensors) == ["inputs", "labels", "meta_info.idx", "conv:output", "outputs"]
        assert is_equal(point.tensors["outputs"], expected[f"{place}/head:output"])
        assert point.tensors["meta_info.idx"].array().tolist() == point.keys
        assert point.tensors["labels"].array().tolist() == [(key - 100) % 4 for key in point.keys or ()]
        seed = (0 if point.phase == "train" else 1000) + (point.keys or [0])[0] - 100
        first = torch.randn(3, 8, 8, generator=torch.Generator().manual_seed(seed))
        assert is_equal(point.tensors["inputs"].row(0), first)


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        (["--capture-every", "2"], [("train", 2), ("train", 4), ("val", 6), ("val", 6), ("val", 6), ("train", 6)]),
        (["--capture-phase", "val"], [("val", 3)] * 3 + [("val", 6)] * 3),
        (["--capture-phase", "train", "--capture-steps", "2:3,6"], [("train", 2), ("train", 3), ("train", 6)]),
        (["--capture-phase", "train", "--capture-epochs", "2"], [("train", 4), ("train", 5), ("train", 6)]),
        (["--capture-phase", "train", "--capture-epochs", "latest"], [("train", 4), ("train", 5), ("train", 6)]),
        (["--capture-phase", "val", "--capture-epochs", "all"], [("val", 3)] * 3 + [("val", 6)] * 3),
    ],
)
def test_which_passes(watched_runner: Runner, options: list[str], expected: list[tuple[str, int]]) -> None:
    result = watched_runner(build_program_command("layers"), ["--capture", "head", *options])
    assert result.code == 0
    assert sorted((point.phase, point.step) for point in PageSet.open(result.folder)) == sorted(expected)


def choose_rows(text: str, outputs: Tensor, labels: Tensor, first: int) -> list[int]:
    """The rows that `--capture-samples` keeps. first: how many samples were captured before."""
    if text == "wrong":
        return (outputs.argmax(1) != labels).nonzero()[:, 0].tolist()
    if text == "5":
        return [row for row in range(len(labels)) if (first + row) % 5 == 0]
    losses = functional.cross_entropy(outputs, labels, reduction="none")
    return sorted(losses.argsort(descending=True)[:3].tolist())


@pytest.mark.parametrize("text", ["worst:3", "wrong", "5"])
def test_samples_of_a_batch_by_their_loss_error_and_place(watched_runner: Runner, text: str) -> None:
    """Against the same program with whole batches captured."""
    words, layer = build_program_command("layers"), ["--capture", "conv:output,grad"]
    parts = ["--capture", "batch", "--capture", "prediction"]
    whole = watched_runner(words, [*layer, *parts])
    points = list(PageSet.open(whole.folder.rename(whole.folder.with_name("whole"))))
    result = watched_runner(words, [*layer, *(parts if text == "5" else []), "--capture-samples", text])
    assert result.stdout == whole.stdout and result.codes == [], result.stderr
    kept = list(PageSet.open(result.folder))
    first, expected = 0, []
    for point in points:
        arrays = {path: torch.from_numpy(np.array(tensor.array())) for path, tensor in point.tensors.items()}
        rows = choose_rows(text, arrays["outputs"], arrays["labels"].long(), first)
        first += len(arrays["labels"])
        if rows:
            expected.append((point, rows, arrays))
    assert len(kept) == len(expected) and any(len(rows) < 8 for _, rows, _ in expected)
    for point, (other, rows, arrays) in zip(kept, expected, strict=True):
        assert (point.key, point.step, point.phase) == (other.key, other.step, other.phase)
        assert point.keys == [(other.keys or [])[row] for row in rows]
        assert list(point.tensors) == list(other.tensors)
        for path, tensor in point.tensors.items():
            assert is_equal(tensor, arrays[path][rows]), path
            assert tensor.row(0).read() == arrays[path][rows[0]].contiguous().numpy().tobytes(), path


def test_without_labels_all_samples_are_kept_and_reported(watched_runner: Runner) -> None:
    words = build_program_command("lightning_fit")
    result = watched_runner(words, ["--capture", "2", "--capture-samples", "wrong"])
    assert result.code == 0
    finding = result.find_finding("TD-C020")
    assert finding["title"] == "cannot choose samples in 16 captured passes, all were kept, rank 0"


def test_samples_are_those_of_the_pass_where_batches_are_fetched_ahead(watched_runner: Runner) -> None:
    result = watched_runner(build_program_command("hf_trainer", "2"), ["--capture", "transformer.wte:input"])
    points, sequences = list(PageSet.open(result.folder)), make_tokens(80, 16, 50)
    assert len(points) == 20
    for point in points:
        assert point.keys is not None and len(point.keys) == 4
        assert is_equal(point.tensors["transformer.wte:input.0"], sequences[point.keys])


def test_validation_belongs_to_the_epoch_that_was_trained(watched_runner: Runner) -> None:
    result = watched_runner(build_program_command("lightning_fit"), ["--capture", "2", "--capture-epochs", "latest"])
    points = list(PageSet.open(result.folder))
    assert {point.phase for point in points} == {"train", "val"}
    assert {point.epoch for point in points} == {1}, "the second of two"


def test_a_batch_has_no_key_that_a_sample_could_have(watched_runner: Runner) -> None:
    result = watched_runner(build_program_command("layers"), ["--capture", "head", "--capture-phase", "train"])
    assert [point.key for point in PageSet.open(result.folder)] == [f"step{step}" for step in TRAIN]


def test_ranks_have_pages_of_their_own(watched_runner: Runner) -> None:
    result = watched_runner(
        build_torchrun_command("layers", "--ddp"), ["--capture", "conv", "--capture-phase", "train"]
    )
    assert any(line.startswith("tdbg: rank 0: captured") for line in result.tdbg_lines), (
        "the line says whose passes these are"
    )
    assert result.code == 0, result.stderr
    points = list(PageSet.open(result.folder))
    assert [(point.rank, point.step) for point in points] == [(rank, step) for rank in (0, 1) for step in TRAIN]
    for rank in (0, 1):
        expected = load_kept(result, rank)
        for point in (point for point in points if point.rank == rank):
            assert is_equal(point.tensors["conv:output"], expected[f"train{point.step}/conv:output"])


def test_a_layer_that_is_not_there_is_said_with_the_nearest(watched_runner: Runner, bare_runner: Runner) -> None:
    result = watched_runner(build_program_command("layers"), ["--capture", "cnv"])
    assert_same_output(result, bare_runner(build_program_command("layers")))
    finding = result.find_finding("TD-C020")
    assert finding["severity"] == "error"
    assert finding["title"] == "--capture 'cnv': no layer of Net matches; did you mean conv?, rank 0"
    assert not list(result.folder.rglob("*.journal"))


def test_a_layer_that_never_runs_is_said(watched_runner: Runner) -> None:
    result = watched_runner(build_program_command("layers"), ["--capture", "unused", "--capture", "head"])
    assert result.code == 0
    (done,) = list_capture_events(result, "DONE")
    assert done.values["not_executed"] == ["unused"]
    finding = result.find_finding("TD-C020")
    assert (finding["severity"], finding["title"]) == ("warning", "unused not executed in any captured pass, rank 0")
    assert any(
        line.startswith("tdbg: captured 12 passes") and "tdbg inspect-pages" in line for line in result.tdbg_lines
    )


@pytest.mark.parametrize(
    ("options", "why"),
    [
        (["--capture-steps", "100:200"], "no pass matched the capture options"),
        (["--capture-on", "TD-N001"], "no finding matched --capture-on"),
    ],
)
def test_nothing_captured_is_said(watched_runner: Runner, options: list[str], why: str) -> None:
    result = watched_runner(build_program_command("layers"), ["--capture", "head", *options])
    assert f"tdbg: captured nothing: {why}" in result.tdbg_lines


def test_figures_instead_of_tensors(watched_runner: Runner) -> None:
    result = watched_runner(
        build_program_command("layers"), ["--capture", "head", "--capture-stats", "--capture-phase", "train"]
    )
    points, expected = list(PageSet.open(result.folder)), load_kept(result)
    assert [point.step for point in points] == TRAIN and not any(point.tensors for point in points)
    for point in points:
        tensor = expected[f"train{point.step}/head:output"]
        assert point.scalars["head:output/mean"] == pytest.approx(tensor.mean().item(), rel=1e-5)
        assert point.scalars["head:output/high"] == pytest.approx(tensor.max().item())
        assert (point.scalars["head:output/nan"], point.scalars["head:output/count"]) == (0, 32)


def test_the_budget_ends_it_and_nothing_else(watched_runner: Runner, bare_runner: Runner) -> None:
    result = watched_runner(build_program_command("layers"), ["--capture", "conv", "--capture-budget", "100kB"])
    assert_same_output(result, bare_runner(build_program_command("layers")))
    pages = sum(path.stat().st_size for path in result.folder.rglob("pages/*"))
    assert 0 < pages <= 100_000
    finding = result.find_finding("TD-C020")
    assert finding["severity"] == "info" and "capturing ended at step" in finding["title"]
    (done,) = list_capture_events(result, "DONE")
    assert done.values["datapoints"] == len(list(PageSet.open(result.folder))) > 0
    assert set(done.values["dropped"]) == {"over budget"} and done.values["datapoints"] < 12


def test_a_killed_run_leaves_what_was_written(watched_runner: Runner) -> None:
    result = watched_runner(build_program_command("layers", "--die-at", "5"), ["--capture", "conv:output"])
    assert result.code == 137
    pages = PageSet.open(result.folder)
    points = list(pages)
    assert 1 <= len(points) <= 7 and [point.seq for point in points] == [*range(len(points))]
    for point in points:
        assert all(len(tensor.read()) == tensor.nbytes for tensor in point.tensors.values())


def test_a_wrong_word_is_told_before_the_start(watched_runner: Runner) -> None:
    for options, text in (
        (["--capture", "conv:outputs"], "'outputs' is not a kind of tensor"),
        (["--capture", "conv", "--capture-phase", "test"], "capture-phase cannot be 'test'"),
        (["--capture", "conv", "--capture-epochs", "0"], "capture-epochs cannot be '0'"),
        (["--capture", "conv", "--level", "off"], "nothing is captured at level off"),
        (["--capture", "conv", "--capture-on", "TD-X99"], "TD-X99"),
        (["--capture-every", "2"], "--capture-every needs --capture"),
    ):
        result = watched_runner(build_program_command("layers"), options)
        assert result.code == 2 and text in result.stderr, result.stderr
        assert not Path(result.folder).exists()


def test_a_finding_starts_it_on_all_ranks_at_one_step(watched_runner: Runner) -> None:
    words = build_torchrun_command("layers", "--ddp", "--nan-at", "4", "--epochs", "60", "--pause", "0.05")
    result = watched_runner(words, ["--capture", "conv", "--capture-on", "TD-N001", "--capture-phase", "train"])
    assert result.code == 0, result.stderr
    assert "TD-N001" in result.codes
    steps = {rank: [] for rank in (0, 1)}
    for point in PageSet.open(result.folder):
        steps[point.rank].append(point.step)
    assert steps[0] == steps[1] == [*range(steps[0][0], steps[0][0] + 20)]
    assert steps[0][0] > 4


def test_without_the_finding_nothing_is_captured(watched_runner: Runner, bare_runner: Runner) -> None:
    result = watched_runner(build_program_command("layers"), ["--capture", "conv", "--capture-on", "warning"])
    assert_same_output(result, bare_runner(build_program_command("layers")))
    assert result.codes == [] and not list(result.folder.rglob("pages"))


@pytest.mark.parametrize("form", ["whole", "block", "fullgraph", "method"])
def test_compiled_models_run_uncompiled_in_the_captured_steps_only(
    watched_runner: Runner, bare_runner: Runner, form: str
) -> None:
    words = build_program_command("compiled", form)
    result = watched_runner(words, ["--capture", "blocks.*.fc:output,grad", "--capture-steps", "6:7"])
    expected = bare_runner(words)
    assert result.code == 0, result.stderr
    (mine,), (theirs,) = result.list_printed("compile"), expected.list_printed("compile")
    assert (mine["graphs"], mine["breaks"]) == (theirs["graphs"], theirs["breaks"])
    assert [line["loss"] for line in result.list_printed()] == pytest.approx(
        [line["loss"] for line in expected.list_printed()]
    )
    points = list(PageSet.open(result.folder))
    assert [point.step for point in points] == [6, 7]
    for point in points:
        assert list(point.tensors) == [
            "blocks.0.fc:output", "blocks.1.fc:output", "blocks.1.fc:grad", "blocks.0.fc:grad",
        ]  # fmt: skip
        assert all(tensor.shape == (8, 8, 64) for tensor in point.tensors.values())
