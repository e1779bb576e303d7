"""`tdbg run --capture` while something is wrong: the program ends as without tdbg, what was written is whole, all is told."""

import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tdbg.core.events import ProbeOff
from tdbg.pages.read.page_set import PageSet
from tdbg.pages.repair.verification import verify_pages
from tests.e2e.conftest import (
    Result,
    Runner,
    assert_same_output,
    build_program_command,
    build_torchrun_command,
    run_command,
)
from tests.e2e.test_capture import is_equal, list_capture_events, load_kept
from tests.pages.conftest import mount_disk

CONV = ("--capture", "conv", "--fail-on", "error")
HEADER = 1 << 20  # of a page, kept free for its header


def assert_whole(result: Result, passes: range) -> list[int]:
    """So many passes are in the pages, each as the program saw it; returns their steps."""
    expected, pages = load_kept(result), PageSet.open(result.folder)
    points = list(pages)
    assert len(points) in passes and [point.seq for point in points] == [*range(len(points))]
    for number, point in enumerate(points):
        evaluated = sum(other.phase == "val" for other in points[: number + 1])
        place = f"train{point.step}" if point.phase == "train" else f"val{evaluated}"
        assert is_equal(point.tensors["conv:output"], expected[f"{place}/conv:output"]), place
    assert not list(pages.problems) and not [problem for problem in verify_pages(result.folder) if problem.grave]
    return [point.step for point in points]


def assert_told(result: Result, why: str, written: int) -> None:
    """The verdict has the error and its reason, and counts what was written and what was not."""
    (error,) = [found for found in result.verdict["findings"] if found["severity"] == "error"]
    assert error["code"] == "TD-C020" and error["title"].startswith("capturing ended at step"), error
    assert why in error["title"] and error["title"] in result.stderr
    (done,) = list_capture_events(result, "DONE")
    assert done.values["datapoints"] == written and done.values["dropped"]["not written"] >= 1
    assert "not written" in " ".join(line for line in result.tdbg_lines if "passes left out" in line)
    assert result.code == 1, "--fail-on error"
    assert not result.list_events(ProbeOff), "it is no error in tdbg"


def test_files_that_may_not_grow(watched_runner: Runner, bare_runner: Runner) -> None:
    result = watched_runner(build_program_command("capture_faults", "limit", str(HEADER + 30_000)), CONV)
    assert result.stdout == bare_runner(build_program_command("layers")).stdout
    steps = assert_whole(result, range(3, 4))
    assert steps == [1, 2, 3]
    assert_told(result, "File too large", 3)
    assert len(list(result.folder.rglob("*.safetensors"))) == 1


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A disk of 200 kB where runs go; skipped where none may be mounted (the test above needs no rights)."""
    with mount_disk(tmp_path / "run", "size=200k") as folder:
        yield folder


@pytest.mark.usefixtures("small_disk")
def test_a_full_disk(watched_runner: Runner, bare_runner: Runner) -> None:
    """The run's own files are on it too: whatever of them is missing, the rank has said why capturing ended."""
    words = build_program_command("layers", "--epochs", "8")
    result = watched_runner(
        words, [*CONV, "--allowance", "0"]
    )  # what the opening inspection writes would fill it first
    assert result.stdout == bare_runner(words).stdout
    assert result.code == 1 and "TD-C020 error: capturing ended at step" in result.stderr, result.stderr
    assert "No space left on device" in result.stderr and "Traceback" not in result.stderr
    assert_whole(result, range(8, 20))


def test_a_folder_that_cannot_be_made(watched_runner: Runner, bare_runner: Runner) -> None:
    result = watched_runner(build_program_command("capture_faults", "file"), CONV)
    assert result.stdout == bare_runner(build_program_command("layers")).stdout
    assert_told(result, "Not a directory", 0)


def test_a_fault_of_the_writer(watched_runner: Runner, bare_runner: Runner) -> None:
    """It is a fault of tdbg's, and told as such; the program and the pages before it are whole."""
    result = watched_runner(build_program_command("capture_faults", "worker", "4"), CONV)
    assert_same_output(result, bare_runner(build_program_command("layers")))
    assert_whole(result, range(4, 5))
    off = result.find_finding("TD-C005")
    assert "ZeroDivisionError: planted" in off["title"]
    assert "not written" in result.find_finding("TD-C020")["title"]


@pytest.mark.parametrize("policy", ["block", "drop", "sample"])
def test_a_slow_disk(watched_runner: Runner, bare_runner: Runner, policy: str) -> None:
    """Whoever waits loses nothing; what is left out otherwise is counted, in the verdict and in the pages."""
    result = watched_runner(
        build_program_command("capture_faults", "slow"), ["--capture", "conv", "--capture-policy", policy]
    )
    assert_same_output(result, bare_runner(build_program_command("layers")))
    (done,) = list_capture_events(result, "DONE")
    dropped, points = done.values["dropped"], list(PageSet.open(result.folder))
    assert len(points) == done.values["datapoints"] and len(points) + sum(dropped.values()) == 12
    assert {drop.reason: drop.datapoints for drop in PageSet.open(result.folder).drops} == dropped
    if policy == "block":
        assert dropped == {} and done.values["waited_s"] > 0 and result.codes == []
    else:
        assert dropped["no room"] >= 1 and ("sampled" in dropped) == (policy == "sample")
        assert f"{dropped['no room']} no room" in result.find_finding("TD-C020")["title"]


def test_fsdp_is_seen_through(watched_runner: Runner, bare_runner: Runner) -> None:
    words = build_torchrun_command("fsdp2")
    result = watched_runner(words, ["--capture", "1.fc:output,grad", "--capture", "3"])
    assert_same_output(result, bare_runner(words))
    points = list(PageSet.open(result.folder))
    assert [(point.rank, point.step) for point in points] == [(rank, step) for rank in (0, 1) for step in range(1, 7)]
    for point in points:
        shapes = {path: tensor.shape for path, tensor in point.tensors.items()}
        assert shapes == {"1.fc:output": (16, 16), "3:output": (16, 1), "1.fc:grad": (16, 16)}
    first, second = (points[number].tensors["1.fc:output"].read() for number in (0, 6))
    assert first != second, "each rank has its own samples"


def test_odd_outputs_threads_and_layers_that_run_twice_or_not_at_all(watched_runner: Runner) -> None:
    result = watched_runner(
        build_program_command("capture_faults", "odd"), ["--capture", "odd", "--capture", "head:output,input"]
    )
    assert result.code == 0, result.stderr
    points = list(PageSet.open(result.folder))
    good, first, second = "odd:output.good", ["head:input.0", "head:output"], ["head#1:input.0", "head#1:output"]
    assert [list(point.tensors) for point in points] == [[good, *first, *second], [good, *first], [good]]
    for number, point in enumerate(points):
        for path, tensor in point.tensors.items():
            if path == good or "input" in path:
                assert set(tensor.array().flatten()) == {number + 1}, "not what the thread beside it put in"
            else:
                assert tensor.array().max() < 1e5
    finding = result.find_finding("TD-C020")
    assert finding["title"].startswith("odd:output.none not kept: on the meta device")


def test_a_run_that_ends_switched_off(watched_runner: Runner) -> None:
    """A baseline leaves out blocks of steps, the last one as well: pages are sealed, and it is told what is in them."""
    result = watched_runner(build_program_command("layers", "--epochs", "7"), ["--capture", "conv", "--baseline", "2"])
    assert result.code == 0, result.stderr
    (done,) = list_capture_events(result, "DONE")
    steps = assert_whole_but_for_gaps(result)
    assert len(steps) == done.values["datapoints"] and max(steps) < 21
    assert not list(result.folder.rglob("*.part"))


def assert_whole_but_for_gaps(result: Result) -> list[int]:
    """The steps of what was captured in training, each as the program saw it."""
    expected, points = load_kept(result), list(PageSet.open(result.folder))
    for point in points:
        if point.phase == "train":
            assert is_equal(point.tensors["conv:output"], expected[f"train{point.step}/conv:output"])
    return [point.step for point in points]


def test_another_run_into_the_folder_is_refused(watched_runner: Runner) -> None:
    first = watched_runner(build_program_command("capture_faults", "odd"), ["--capture", "head"])
    before = {path: path.read_bytes() for path in first.folder.rglob("*") if path.is_file()}
    again = watched_runner(build_program_command("capture_faults", "odd"), ["--capture", "head"])
    assert again.code == 2 and "already holds a run" in again.stderr and again.stdout == ""
    assert {path: path.read_bytes() for path in first.folder.rglob("*") if path.is_file()} == before


def test_ranks_that_save_into_one_folder(tmp_path: Path) -> None:
    """What the debuggers of two ranks saved is all there, of each epoch its own, the padding of the sampler too."""
    result = run_command(build_torchrun_command("sequential_ranks"), tmp_path)
    assert result.code == 0, result.stderr
    for epoch in range(2):
        points = list(PageSet.open(tmp_path / "run" / f"epoch_{epoch}" / "debugger"))
        assert [(point.rank, point.key) for point in points] == [(0, 0), (0, 2), (0, 4), (1, 1), (1, 3), (1, 0)]
        for point in points:
            assert set(point.tensors["map/feature_map"].array().flatten()) == {2.0 * point.key - 1}
    assert sorted(path.name for path in tmp_path.iterdir()) == ["run"]
    listed = run_command([sys.executable, "-m", "tdbg", "inspect-pages", "ls", "run/epoch_0"], tmp_path)
    assert "1 of 5 samples were captured on several ranks (0): a sampler pads" in listed.stderr
