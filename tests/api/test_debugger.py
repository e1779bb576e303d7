"""PyTorchDebugger: every field against the truth, at every level."""

import json
import math
import threading
from collections import Counter, deque
from dataclasses import fields

import pytest
import torch
from forks import fork_while_held
from torch import nn
from torch.utils._python_dispatch import TorchDispatchMode

from tdbg import DebugLevel, PyTorchDebugger, TensorInfo
from tdbg.core.errors import TdbgError

from .conftest import small_model

NAN, INF = math.nan, math.inf


@pytest.fixture
def debugger() -> PyTorchDebugger:
    return PyTorchDebugger(DebugLevel.BASIC)


def run_backward(model: nn.Module, scale: float = 1.0) -> nn.Module:
    """A model after backward."""
    (model(torch.randn(6, 8)).pow(2).mean() * scale).backward()
    return model


def test_the_fields_are_those_that_people_know():
    assert [item.name for item in fields(TensorInfo)] == [
        "name",
        "shape",
        "dtype",
        "device",
        "requires_grad",
        "has_nan",
        "has_inf",
        "nan_count",
        "inf_count",
        "mean_value",
        "std_value",
        "min_value",
        "max_value",
        "memory_usage",
    ]


def test_a_tensor(debugger):
    tensor = torch.tensor([[1.0, 2.0, NAN], [4.0, INF, -INF]], dtype=torch.float64, requires_grad=True)
    info = debugger.analyze_tensor(tensor, "logits")
    assert (info.name, info.shape, info.dtype, info.requires_grad) == ("logits", (2, 3), torch.float64, True)
    assert info.device == torch.device("cpu") and info.memory_usage == 48
    assert (info.has_nan, info.has_inf, info.nan_count, info.inf_count) == (True, True, 1, 2)
    assert (info.min_value, info.max_value) == (1.0, 4.0)
    assert info.mean_value == pytest.approx(7 / 3) and info.std_value == pytest.approx(1.5275252)
    assert info.problem() == "1 NaN and 2 Inf in logits"
    json.dumps(info.as_dict(), allow_nan=False)
    assert info.as_dict()["dtype"] == "float64"
    with pytest.raises(TypeError, match="a list"):
        debugger.analyze_tensor([1.0], "x")


def test_the_level_by_any_spelling():
    assert PyTorchDebugger("Extreme").level is DebugLevel.EXTREME
    assert DebugLevel.BASIC == "basic" and DebugLevel.ADVANCED.reaches(DebugLevel.BASIC)
    assert not DebugLevel.BASIC.reaches(DebugLevel.ADVANCED)
    with pytest.raises(TdbgError, match="choose from: off, basic, advanced, extreme"):
        PyTorchDebugger("loud")


def test_parameters(debugger):
    model = small_model()
    model[0].bias.data[2] = NAN
    model.extra = model[2]  # shared: looked at once
    found = debugger.analyze_model_parameters(model)
    assert list(found) == ["0.weight", "0.bias", "2.weight", "2.bias"]
    assert found["0.bias"].nan_count == 1 and found["0.weight"].finite
    assert found["2.weight"].mean_value == pytest.approx(model[2].weight.mean().item(), rel=1e-5)
    assert found["2.weight"].std_value == pytest.approx(model[2].weight.std().item(), rel=1e-5)
    assert debugger.get_debug_summary()["tensors_analyzed"] == 4


def test_names_are_free_of_wrappers(debugger):
    model = torch.compile(small_model(), backend="eager")
    assert "0.weight" in debugger.analyze_model_parameters(model)


def test_gradients(debugger):
    model = run_backward(small_model())
    model[2].bias.requires_grad_(False).grad = None
    found = debugger.analyze_gradients(model)
    norms = {name: p.grad.norm().item() for name, p in model.named_parameters() if p.grad is not None}
    assert set(found) == {
        "total_params",
        "params_with_grad",
        "params_with_nan_grad",
        "params_with_inf_grad",
        "total_norm",
        "norms",
    }
    assert (found["total_params"], found["params_with_grad"]) == (4, 3)
    assert (found["params_with_nan_grad"], found["params_with_inf_grad"]) == (0, 0)
    assert found["norms"] == pytest.approx(norms)
    assert found["total_norm"] == pytest.approx(math.sqrt(sum(norm**2 for norm in norms.values())))
    assert debugger.debug_history == type(debugger.debug_history)([])


def test_bad_gradients_are_told_from_overflowing_norms(debugger):
    model = run_backward(small_model())
    model[0].weight.grad[0, 0] = NAN
    model[0].bias.grad[:2] = INF
    model[2].weight.grad.fill_(1e25)  # finite, but its norm is not in float32
    found = debugger.analyze_gradients(model)
    assert (found["params_with_nan_grad"], found["params_with_inf_grad"]) == (1, 1)
    assert found["norms"]["2.weight"] == pytest.approx(1e25 * 8)
    assert [entry["text"] for entry in debugger.debug_history] == [
        "1 NaN in gradient of 0.weight",
        "2 Inf in gradient of 0.bias",
    ]


def test_without_any_gradient(debugger):
    found = debugger.analyze_gradients(small_model())
    assert (found["params_with_grad"], found["total_norm"], found["norms"]) == (0, None, {})
    assert debugger.check_gradient_explosion(small_model()) == debugger.check_gradient_vanishing(small_model()) == []


def test_explosion_and_vanishing(debugger):
    model = run_backward(small_model())
    assert debugger.check_gradient_explosion(model) == debugger.check_gradient_vanishing(model) == []
    model[0].weight.grad.mul_(1e4)
    model[2].weight.grad.zero_()
    model[2].bias.grad[0] = NAN
    assert debugger.check_gradient_explosion(model) == ["0.weight", "2.bias"]
    assert debugger.check_gradient_vanishing(model) == ["2.weight"]
    assert debugger.check_gradient_explosion(model, threshold=1e9) == ["2.bias"]
    assert debugger.check_gradient_vanishing(model, threshold=0.0) == []
    assert debugger.get_debug_summary()["anomalies"] == {"non-finite": 4, "explosion": 2, "vanishing": 1}


def test_half_precision_gradients(debugger):
    model = small_model().half()
    for parameter in model.parameters():
        parameter.grad = torch.full_like(parameter, 30000.0)
    found = debugger.analyze_gradients(model)
    assert found["params_with_inf_grad"] == 0
    assert found["norms"]["0.weight"] == pytest.approx(30000 * math.sqrt(128), rel=1e-3)


def test_anomaly_detection_is_put_back(debugger):
    torch.autograd.set_detect_anomaly(True, check_nan=False)
    with debugger.autograd_anomaly_detection() as same:
        assert same is debugger and torch.is_anomaly_check_nan_enabled()
    assert torch.is_anomaly_enabled() and not torch.is_anomaly_check_nan_enabled()
    torch.autograd.set_detect_anomaly(False)
    x = torch.zeros(2, requires_grad=True)
    raises = pytest.raises(RuntimeError, match="returned nan values")
    with pytest.warns(UserWarning, match="Error detected"), raises, debugger.autograd_anomaly_detection():
        (x.sqrt() * 0).sum().backward()
    assert not torch.is_anomaly_enabled()
    assert [entry["kind"] for entry in debugger.debug_history] == ["autograd"]
    assert "SqrtBackward0" in debugger.debug_history[0]["text"]


def test_memory(debugger):
    model = nn.Sequential(nn.Linear(8, 16), nn.BatchNorm1d(16).half())
    assert debugger.profile_memory_usage(model) == {
        "parameters": 144 * 4 + 32 * 2,
        "gradients": 0,
        "buffers": 32 * 2 + 8,
        "total": 144 * 4 + 32 * 2 + 32 * 2 + 8,
    }
    model[0].weight.grad = torch.zeros(16, 8)
    assert debugger.profile_memory_usage(model)["gradients"] == 512
    with torch.device("meta"):
        assert debugger.profile_memory_usage(nn.Linear(8, 8))["total"] == 0


def test_validation(debugger):
    model = small_model()
    good = debugger.validate_parameters(model)
    assert good and good.valid and str(good) == "4 tensors, all finite"
    model.register_buffer("mask", torch.tensor([0.0, -INF]))
    assert debugger.validate_parameters(model), "-inf in a buffer is a mask"
    model[0].weight.data[0, 0] = -INF
    bad = debugger.validate_parameters(model)
    assert not bad and list(bad.problems) == ["0.weight"] and bad.checked == 5
    assert str(bad) == "1 of 5 tensors are not finite: 1 Inf in 0.weight"


def test_outputs(debugger):
    logits = torch.tensor([0.0, -INF])
    assert debugger.validate_outputs({"logits": logits, "loss": torch.tensor(1.0)})
    found = debugger.validate_outputs({"logits": (logits, torch.tensor([NAN, 1.0])), "text": "x"})
    assert list(found.problems) == ["output.logits.1"] and found.checked == 2
    assert list(debugger.validate_outputs(torch.tensor(NAN), "loss").problems) == ["loss"]
    assert debugger.validate_outputs(None) and debugger.validate_outputs(None).checked == 0


def test_off_looks_at_nothing(monkeypatch):
    debugger = PyTorchDebugger(DebugLevel.OFF)
    model = run_backward(small_model())
    model[0].weight.grad[0, 0] = NAN
    monkeypatch.setattr(torch.Tensor, "tolist", lambda self: pytest.fail("a value was read"))
    info = debugger.analyze_tensor(torch.tensor([NAN]), "x")
    assert (info.has_nan, info.mean_value, info.shape) == (False, None, (1,))
    assert debugger.analyze_gradients(model)["norms"] == {}
    assert debugger.check_gradient_explosion(model) == []
    assert debugger.profile_memory_usage(model)["total"] == 0
    assert debugger.validate_parameters(model).checked == 0
    with debugger.autograd_anomaly_detection():
        assert not torch.is_anomaly_enabled()
    assert debugger.get_debug_summary()["total_anomalies"] == 0


def test_the_history_is_bounded_and_can_be_forgotten(debugger):
    for index in range(1100):
        debugger.remember("latents", f"{index}")
    summary = debugger.get_debug_summary()
    assert (summary["total_anomalies"], summary["debug_history_length"]) == (1100, 1000)
    assert summary["last_anomaly"]["text"] == "1099"
    json.dumps(summary)
    debugger.clear_debug_history()
    summary = debugger.get_debug_summary()
    assert (summary["total_anomalies"], summary["debug_history_length"], summary["last_anomaly"]) == (0, 0, None)


def test_extreme_keeps_the_last_figures_of_each_tensor():
    debugger = PyTorchDebugger("extreme")
    for index in range(40):
        debugger.analyze_tensor(torch.tensor([float(index)]), "x")
    assert [info.mean_value for info in debugger.tensor_history["x"]] == list(map(float, range(8, 40)))
    for index in range(600):
        debugger.analyze_tensor(torch.ones(1), f"t{index}")
    assert len(debugger.tensor_history) == 500
    assert PyTorchDebugger("advanced").tensor_history == {}


def test_a_grave_thing_is_a_warning_ten_times(debugger, caplog):
    caplog.set_level("DEBUG", logger="tdbg")
    for _ in range(12):
        debugger.analyze_tensor(torch.tensor([NAN]), "x")
    levels = [record.levelname for record in caplog.records]
    assert levels == ["WARNING"] * 10 + ["DEBUG"] * 2
    assert caplog.records[0].getMessage() == "[DEBUG_FORWARD_NON_FINITE] 1 NaN in x"


def test_from_several_threads(debugger):
    def look() -> None:
        for _ in range(50):
            debugger.analyze_tensor(torch.tensor([NAN]), "x")

    threads = [threading.Thread(target=look) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert debugger.get_debug_summary()["total_anomalies"] == 200
    assert debugger.get_debug_summary()["tensors_analyzed"] == 200


def test_in_a_handler_of_a_signal(debugger, signal_sender):
    """While the program is at the same, with the lock held."""

    def look() -> None:
        debugger.analyze_tensor(torch.tensor([NAN]), "handler's")
        debugger.get_debug_summary()

    send = signal_sender(look)

    class History(deque):
        def append(self, entry):
            send()
            super().append(entry)

    debugger.debug_history = History()
    debugger.analyze_tensor(torch.tensor([NAN]), "program's")
    assert [entry["text"] for entry in debugger.debug_history] == ["1 NaN in handler's", "1 NaN in program's"]
    summary = debugger.get_debug_summary()
    assert (summary["total_anomalies"], summary["tensors_analyzed"]) == (2, 2)


def test_in_a_child_that_was_forked_while_another_thread_was_at_it(debugger):
    def child() -> bool:
        debugger.remember("non-finite", "child's")
        return debugger.get_debug_summary()["total_anomalies"] == 1

    assert fork_while_held(debugger._lock, child) == 0


class CountedCalls(TorchDispatchMode):
    """Counts the calls of torch's operations by their names."""

    def __init__(self) -> None:
        super().__init__()
        self.calls: Counter[str] = Counter()

    def __torch_dispatch__(self, operation, types, args=(), kwargs=None):
        self.calls[str(operation).split(".")[1]] += 1
        return operation(*args, **kwargs or {})


def test_it_reads_once_for_all_tensors_and_calls_less_than_six_figures_by_hand(debugger):
    """A read of a number waits for an accelerator; by hand there are five for each tensor."""
    model = nn.Sequential(*(nn.Linear(16, 16) for _ in range(20)))
    with CountedCalls() as by_hand:
        for p in model.parameters():
            p = p.detach()
            _ = [p.isnan().sum().item(), p.isinf().sum().item(), p.mean().item(), p.std().item(), p.min().item()]
    with CountedCalls() as counted:
        debugger.analyze_model_parameters(model)

    assert by_hand.calls["_local_scalar_dense"] == 200
    assert counted.calls["_local_scalar_dense"] == 0 and counted.calls["cat"] == 1, "one tensor of all figures is read"
    assert 0 < counted.calls.total() < by_hand.calls.total()
    assert debugger.get_debug_summary()["spent_ms"] > 0


def test_a_gradient_that_is_not_finite_is_logged_under_gradients(debugger, logged_messages):
    model = run_backward(small_model())
    model[0].weight.grad[0, 0] = NAN
    debugger.analyze_gradients(model)
    debugger.analyze_tensor(torch.tensor([NAN]), "x")
    lines = logged_messages()
    assert lines[0].startswith("[DEBUG_GRADIENTS_NON_FINITE] 1 NaN in gradient of 0.weight")
    assert lines[1].startswith("[DEBUG_FORWARD_NON_FINITE] 1 NaN in x")


def test_what_debuggers_find_in_a_run_is_on_record_and_counted(program_runner):
    done = program_runner(
        """
        training, diffusion, general = tdbg.TrainingDebugger(), tdbg.DiffusionModelDebugger(), tdbg.PyTorchDebugger()
        def look(step):
            diffusion.monitor_diffusion_step(None, step, torch.randn(2, 8) * (1e6 if step == 3 else 1.0))
            if step in (2, 4):
                general.analyze_tensor(torch.tensor([float("nan")]), "x")
        train(4, look)
        for _ in range(2500):
            general.remember("odd", "one of many")
        print(json.dumps([diffusion.get_debug_summary()["anomalies"], general.get_debug_summary()["total_anomalies"]]))
        """,
        [],
    )
    assert done.printed_json == [{"latents": 1}, 2502]
    found = done.read_events("anomaly")
    assert Counter((one["debugger"], one["kind"]) for one in found) == {
        ("diffusion", "latents"): 1,
        ("general", "non-finite"): 2,
        ("general", "odd"): 1001,  # of many the first, and then every thousandth
    }
    assert [one["step"] for one in found if one["kind"] == "non-finite"] == [2, 4]
    summary = json.loads((done.folder / "report.json").read_text())["debug_summary"]
    assert summary["diffusion_debugger"] == {"total_anomalies": 1, "debug_history_length": 1}
    assert summary["general_debugger"]["anomalies"] == {"non-finite": 2, "odd": 2000}
    assert summary["general_debugger"]["total_anomalies"] == 2002


def test_outside_of_a_run_nothing_is_written(program_runner):
    done = program_runner("tdbg.PyTorchDebugger().analyze_tensor(torch.tensor([float('nan')]))\nprint(json.dumps(1))")
    assert done.printed_json == 1 and not done.folder.exists()
