"""`tdbg run --capture` on what training does to a pass: each tensor in the pages is the one that the program saw."""

import pytest
import torch

from tdbg.pages.read.page_set import PageSet
from tests.e2e.conftest import Runner, assert_same_output, build_program_command
from tests.e2e.test_capture import list_capture_events, load_kept

LAYERS = ("stem", "block.fc", "block.attn", "look", "head")


def build_capture_options(*names: str, kinds: str = "output,grad") -> list[str]:
    return [word for name in names for word in ("--capture", f"{name}:{kinds}")]


def test_autocast_checkpoints_accumulation_attention_and_a_grad_cam(
    watched_runner: Runner, bare_runner: Runner
) -> None:
    words = build_program_command("passes")
    result = watched_runner(words, build_capture_options(*LAYERS))
    assert_same_output(result, bare_runner(words))
    expected, points = load_kept(result), list(PageSet.open(result.folder))
    phases = [("train", step, epoch) for epoch in (0, 1) for step in (2 * epoch + 1, 2 * epoch + 2) for _ in range(2)]
    for epoch in (1, 0):
        phases[4 * epoch + 4 : 4 * epoch + 4] = [("val", 2 * epoch + 2, epoch)] * 2
    assert [(point.phase, point.step, point.epoch) for point in points] == phases, "the Grad-CAM makes no datapoint"
    found = {
        f"{number}/{path}": tensor for number, point in enumerate(points) for path, tensor in point.tensors.items()
    }
    assert set(found) == set(expected)
    for path, tensor in found.items():
        wanted = expected[path].contiguous()
        assert (tensor.dtype.name, tensor.shape) == (str(wanted.dtype).removeprefix("torch."), tuple(wanted.shape)), (
            path
        )
        assert tensor.read() == bytes(wanted.view(torch.uint8).flatten().tolist()), path
    assert found["0/block.fc:output"].dtype.name == "bfloat16" and found["4/block.fc:output"].dtype.name == "float32"
    assert found["0/block.fc:output"].array().min() < 0, "before it was written into"
    assert {path.split("/")[1] for path in found if ":grad" in path} == {
        "block.fc:grad", "block.attn:grad.0", "look:grad", "head:grad",
    }  # fmt: skip
    assert points[0].scalars == {"block.attn:output.1": None}
    keys = [key for point in points for key in point.keys]
    assert sorted(keys[:12]) == [*range(12)], "indices of the whole dataset: two splits share none"
    assert torch.equal(torch.tensor(keys[:8]).sort().values, torch.tensor(keys[12:20]).sort().values)
    (done,) = list_capture_events(result, "DONE")
    assert done.values["skipped"] == {"stem:grad": "no gradient: no tensor in it requires grad"}
    assert done.values["skips"] == 8 and result.verdict["ranks"][0]["steps"] == 4
    finding = result.find_finding("TD-C020")
    assert finding["severity"] == "warning" and finding["title"].startswith("stem:grad not kept: no gradient")


def test_of_a_scripted_part_only_the_outside_is_seen_and_that_is_said(
    watched_runner: Runner, bare_runner: Runner
) -> None:
    words = build_program_command("passes", "--scripted")
    result = watched_runner(words, build_capture_options("look", "look.0", "head", kinds="output"))
    assert_same_output(result, bare_runner(words))
    expected, points = load_kept(result), list(PageSet.open(result.folder))
    assert len(points) == 12
    for number, point in enumerate(points):
        assert list(point.tensors) == ["look:output", "head:output"]
        wanted = expected[f"{number}/head:output"].contiguous()
        assert point.tensors["head:output"].read() == bytes(wanted.view(torch.uint8).flatten().tolist())
    why = "it runs inside a scripted module (torch.jit), where no hook is called"
    assert result.find_finding("TD-C020")["evidence"][1:] == [f"look.0: {why}"]


@pytest.mark.parametrize(
    ("code", "options", "why"),
    [
        ("m = torch.jit.script(torch.nn.Linear(3, 2))", [], "no call of a model was seen"),
        ("m = torch.nn.Linear(3, 2).forward", [], "no call of a model was seen"),
        ("m = torch.nn.Linear(3, 2)", ["--capture-phase", "val"], "no call of a model is selected by --capture-phase"),
    ],
)
def test_nothing_captured_is_a_finding(watched_runner: Runner, code: str, options: list[str], why: str) -> None:
    words = ["python", "-c", f"import torch\n{code}\nwith torch.no_grad():\n    m(torch.ones(1, 3))"]
    result = watched_runner(words, ["--capture", "**", *options])
    assert result.code == 0
    finding = result.find_finding("TD-C020")
    assert finding["title"] == f"--capture: nothing was captured: {why}"
    assert options or ("scripted (torch.jit)" in finding["cause"] and "model.forward(x)" in finding["cause"])


@pytest.mark.parametrize("mode", ["train", "eval"])
def test_inference_that_leaves_gradients_on_is_captured_call_by_call(watched_runner: Runner, mode: str) -> None:
    """Seen: every pass was step 1 of training, and the verdict spoke of 0 steps and of no page."""
    code = f"import torch\nm = torch.nn.Linear(3, 2).{mode}()\nfor _ in range(5):\n    m(torch.ones(1, 3))"
    result = watched_runner(["python", "-c", code], ["--capture", "**", "--capture-every", "2"])
    assert [(point.step, point.phase) for point in PageSet.open(result.folder)] == [(2, mode), (4, mode)]
    assert result.verdict["ranks"][0]["evals"] == 5 and set(result.codes) <= {"TD-P003"}
    assert all("pass 1 after step 0, 5 calls" in finding["title"] for finding in result.verdict["findings"])
    assert "5 evaluation calls" in result.stderr and "captured 2 passes" in result.stderr


def test_a_program_without_an_optimizer_is_captured_and_its_missing_steps_are_said(watched_runner: Runner) -> None:
    """Updates by hand, or gradients of the input: no step is counted, and the verdict must not sound like success."""
    code = "import torch\nm = torch.nn.Linear(3, 2)\nfor _ in range(4):\n    m(torch.ones(1, 3)).sum().backward()"
    result = watched_runner(["python", "-c", code], ["--capture", "**"])
    assert [point.step for point in PageSet.open(result.folder)] == [1, 2, 3, 4]
    assert "no optimizer step was seen" in result.find_finding("TD-C003")["title"]
    assert "captured 4 passes" in result.stderr


def test_a_model_that_is_one_layer(watched_runner: Runner) -> None:
    code = (
        "import torch\nm = torch.nn.Linear(3, 2)\nwith torch.no_grad():\n    m.weight.fill_(1)\n    m(torch.ones(1, 3))"
    )
    result = watched_runner(["python", "-c", code], ["--capture", "**:input,output"])
    (point,) = PageSet.open(result.folder)
    assert list(point.tensors) == ["root:input.0", "root:output"] and result.codes == []
    assert point.tensors["root:input.0"].array().tolist() == [[1, 1, 1]]


def test_lightning_s_parts_are_named_as_in_the_module_and_seen_from_the_first_step(watched_runner: Runner) -> None:
    pytest.importorskip("lightning")
    result = watched_runner(build_program_command("lightning_fit"), ["--capture", "body.*:output,grad"])
    points = list(PageSet.open(result.folder))
    assert [point.step for point in points if point.phase == "train"] == [*range(1, 11)]
    assert len(points) == 16, "with two passes of the sanity check and four of validation"
    for point in points:
        grads = ["body.2:grad", "body.1:grad", "body.0:grad"] if point.phase == "train" else []
        assert list(point.tensors) == ["body.0:output", "body.1:output", "body.2:output", *grads]
        assert len(point.keys) == 8
