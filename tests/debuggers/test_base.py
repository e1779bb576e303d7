"""What all forward debuggers share: when they capture, what they keep, and that nothing of them is left."""

import copy
import io
import signal
import threading

import pytest
import torch
from torch import nn
from torch._dynamo.testing import CompileCounter
from torch.utils.checkpoint import checkpoint

from tdbg.core.errors import TdbgError
from tdbg.debuggers import ActivationStats, Attention, BaseDebugger, FeatureMap, ForwardDebugger, Gradients, LayerOutput
from tdbg.debuggers.base import MAX_CALLS
from tdbg.debuggers.hooks import AROUND_OWN_PASSES, suspend_debuggers
from tests.debuggers.conftest import Branches, Gives, small_cnn


class Keeps(ForwardDebugger):
    """As code written for the older interface: no copies, no care."""

    def process_forward(self, module, input, output):
        return {"output": output}


def test_the_interface():
    with pytest.raises(TypeError):
        BaseDebugger()
    with pytest.raises(TypeError):
        ForwardDebugger("x")
    debugger = Keeps("0")
    assert debugger.layer_name == "0" and debugger.last_capture is None and debugger({}, nn.Sequential()) is None


def test_a_capture_is_read_once(count_hooks):
    model, debugger = small_cnn(), Keeps("0")
    x_BCHW = torch.randn(2, 1, 6, 6)
    with debugger.attach(model):
        model(x_BCHW)
        capture = debugger.last_capture
        assert debugger({}, model) is capture and debugger.last_capture is None
        assert debugger({}, model) is None
    assert count_hooks(model) == 0
    model(x_BCHW)
    assert debugger.captures == ()


def test_hooked_by_hand():
    model, debugger = small_cnn(), Keeps("0")
    handle = model[0].register_forward_hook(debugger.forward_hook_fn)
    x_BCHW = torch.randn(2, 1, 6, 6)
    model(x_BCHW)
    with suspend_debuggers():
        model(x_BCHW)
    handle.remove()
    found = debugger({}, model)
    assert torch.equal(found["output"], model[0](x_BCHW)) and "earlier_calls" not in found


def test_an_in_place_operation_behind_the_layer():
    model, debugger = small_cnn(), Keeps("0")
    x_BCHW = torch.randn(2, 1, 6, 6)
    with debugger.attach(model):
        model(x_BCHW)
    found = debugger({}, model)["output"]
    assert found.min() < 0 and torch.equal(found, model[0](x_BCHW)) and not found.requires_grad


def test_a_buffer_that_is_used_again():
    class Reuses(nn.Module):
        def __init__(self):
            super().__init__()
            self.buffer = torch.zeros(2)

        def forward(self, x):
            return self.buffer.copy_(x)

    model, debugger, found = nn.Sequential(Reuses()), Keeps("0"), []
    with debugger.attach(model):
        for number in range(3):
            model(torch.full((2,), float(number)))
            found.append(debugger({}, model)["output"].tolist())
    assert found == [[0, 0], [1, 1], [2, 2]]


def test_a_slice_of_a_large_tensor():
    model, debugger = Gives(), Keeps("layer")
    with debugger.attach(model):
        model(torch.zeros(1 << 20)[:10])
    assert debugger({}, model)["output"].untyped_storage().nbytes() == 40


def test_a_layer_that_runs_twice():
    model, debugger = Branches(), Keeps("shared")
    x_BF = torch.randn(3, 4)
    with debugger.attach(model):
        model(x_BF)
        assert len(debugger.captures) == 2
        found = debugger({}, model)
    first = model.shared(x_BF + 1)
    assert torch.equal(found["earlier_calls"][0]["output"], first)
    assert torch.equal(found["output"], model.shared(first)), "the last call's own keys, as with one call"
    assert "calls_dropped" not in found and set(found) == {"output", "earlier_calls"}


def test_calls_that_are_no_mappings():
    class Sums(ForwardDebugger):
        def process_forward(self, module, input, output):
            return output.numel()

    model, debugger = Branches(), Sums("shared")
    with debugger.attach(model):
        model(torch.ones(3, 4))
        assert debugger({}, model) == [12, 12]


def test_a_layer_that_runs_very_often():
    model, debugger = Branches(), Keeps("often")
    with debugger.attach(model):
        model(torch.zeros(1, 4), times=MAX_CALLS + 5)
        found = debugger({}, model)
    assert found["calls_dropped"] == 5 and len(found["earlier_calls"]) == MAX_CALLS - 1
    assert found["earlier_calls"][0]["output"][0, 0] == 6 and found["output"][0, 0] == MAX_CALLS + 5


def test_a_pass_that_nobody_read_is_forgotten():
    model, debugger = Branches(), Keeps("shared")
    with debugger.attach(model):
        for _ in range(3):
            model(torch.randn(3, 4))
        assert len(debugger.captures) == 2


def test_a_layer_that_did_not_run():
    model, debugger = Branches(), Keeps("unused")
    with debugger.attach(model):
        model(torch.randn(3, 4))
        assert debugger({}, model) is None
        assert debugger.missing(model).startswith("not executed: 'unused' did not run")
    assert "is not attached" in debugger.missing(model)


def test_stale_values_do_not_leak():
    class Sometimes(nn.Module):
        def __init__(self):
            super().__init__()
            self.layer = nn.Identity()

        def forward(self, x, run):
            return self.layer(x) if run else x

    model, debugger = Sometimes(), Keeps("layer")
    with debugger.attach(model):
        model(torch.ones(1), True)
        model(torch.ones(1), False)
        assert debugger({}, model) is None


def test_a_pass_that_fails(count_hooks):
    model, debugger = small_cnn(), Keeps("0")
    with pytest.raises(RuntimeError), debugger.attach(model):
        model(torch.randn(2, 3, 6, 6))
    assert count_hooks(model) == 0 and debugger({}, model) is None


class Fails(ForwardDebugger):
    error: BaseException = LookupError("mine")
    calls = 0

    def process_forward(self, module, input, output):
        self.calls += 1
        raise self.error


@pytest.mark.parametrize("error", [LookupError("mine"), SystemExit(3), KeyboardInterrupt("mine"), MemoryError("mine")])
def test_an_exception_of_the_debugger_switches_it_off(count_hooks, caplog, error):
    model, debugger, other = small_cnn().eval(), Fails("0"), Keeps("0")
    debugger.error = error
    x_BCHW = torch.randn(2, 1, 6, 6)
    expected = model(x_BCHW)
    with debugger.attach(model), other.attach(model):
        for _ in range(3):
            assert torch.equal(model(x_BCHW), expected) and other({}, model) is not None
        assert debugger({}, model) is None and debugger.calls == 1
        assert (
            debugger.missing(model)
            == f"switched off: {type(error).__name__}: {error}"
            == (f"switched off: {debugger.switched_off}")
        )
    (line,) = caplog.messages
    assert line == f"tdbg switched off its debugger Fails at '0': {type(error).__name__}: {error}"
    assert count_hooks(model) == 0 and not other.switched_off


def test_hooked_by_hand_it_is_switched_off_too(caplog):
    model, debugger = small_cnn(), Fails("0")
    model[0].register_forward_hook(debugger.forward_hook_fn)
    for _ in range(2):
        model(torch.randn(2, 1, 6, 6))
    assert debugger.calls == 1 and len(caplog.messages) == 1


def test_ctrl_c_of_the_program_gets_through():
    class Waits(ForwardDebugger):
        def process_forward(self, module, input, output):
            signal.raise_signal(signal.SIGINT)

    model, debugger = small_cnn(), Waits("0")
    with pytest.raises(KeyboardInterrupt), debugger.attach(model):
        model(torch.randn(2, 1, 6, 6))
    assert not debugger.switched_off


class Refuses:
    """An output that raises at whatever is asked of it."""

    def __init__(self, tensor):
        self.__dict__["tensor"] = tensor

    def __getattr__(self, name):
        raise RuntimeError(f"no {name}")

    def __len__(self):
        raise RuntimeError("no length")

    __repr__ = __iter__ = __len__


@pytest.mark.parametrize("kind", (ActivationStats, FeatureMap, LayerOutput, Attention, Gradients, Keeps))
def test_an_output_that_raises_harms_nothing(kind, caplog):
    class Odd(nn.Module):
        def forward(self, x):
            return Refuses(x * 2)

    class Model(nn.Module):
        def __init__(self):
            super().__init__()
            self.odd, self.last = Odd(), nn.Linear(2, 1)

        def forward(self, x):
            return self.last(vars(self.odd(x))["tensor"])

    model, debugger = Model(), kind("odd")
    x_NF = torch.ones(3, 2)
    expected = model(x_NF)
    with debugger.attach(model):
        for _ in range(2):
            found = model(x_NF)
            found.sum().backward()
            assert torch.equal(found, expected)
        debugger({}, model)
    assert len(caplog.messages) == bool(debugger.switched_off)


def test_an_attention_call_that_fails_leaves_no_mode(caplog):
    class Layer(nn.Module):
        def forward(self, x):
            return nn.functional.scaled_dot_product_attention(x, x, x)

    class Deaf(Attention):
        def describe_call(self, call):
            raise LookupError("deaf")

    model, debugger = nn.Sequential(Layer()), Deaf("0")
    with debugger.attach(model):
        for _ in range(2):
            model(torch.ones(1, 1, 2, 4))
            assert not torch.overrides._get_current_function_mode_stack()
        assert debugger({}, model) is None
    assert caplog.messages == ["tdbg switched off its debugger Deaf at '0': LookupError: deaf"]

    model, debugger = nn.MultiheadAttention(4, 1), Deaf("")
    with debugger.attach(model):
        model(torch.ones(2, 4), torch.ones(2, 4), torch.ones(2, 4))
    assert debugger.switched_off == "LookupError: deaf"


def test_attached_twice_is_refused(count_hooks):
    model, debugger = small_cnn(), Keeps("0")
    hooks = debugger.attach(model)
    with pytest.raises(TdbgError, match="already attached to '0'"):
        debugger.attach(model)
    with Keeps("0").attach(model):
        assert count_hooks(model) == 4
    hooks.remove()
    hooks.remove()
    with debugger.attach(model):
        pass
    assert count_hooks(model) == 0


def test_no_such_layer_leaves_nothing(count_hooks):
    model = torch.compile(small_cnn(), backend="eager")
    with pytest.raises(TdbgError, match="no layer is named 'nine'"):
        Keeps("nine").attach(model)
    assert count_hooks(model) == 0


def test_a_scripted_model_is_refused():
    with pytest.raises(TdbgError, match="scripted"):
        Keeps("0").attach(torch.jit.script(nn.Sequential(nn.Linear(2, 2))))


def test_threads_have_captures_of_their_own():
    model, debugger, wrong, all_ran = Gives(), Keeps("layer"), [], threading.Barrier(4)

    def work(number):
        for turn in range(20):
            model(torch.full((4,), float(100 * number + turn)))
            all_ran.wait()
            found = debugger({}, model)
            if found is None or "earlier_calls" in found or found["output"][0] != 100 * number + turn:
                wrong.append((number, turn))
            all_ran.wait()

    with debugger.attach(model):
        threads = [threading.Thread(target=work, args=(number,)) for number in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert wrong == [] and debugger({}, model) is None


def test_a_copied_model_does_not_carry_it():
    model, debugger = small_cnn().eval(), Keeps("0")
    x_BCHW = torch.randn(2, 1, 6, 6)
    with debugger.attach(model):
        twin = copy.deepcopy(model)
        saved = io.BytesIO()
        torch.save(model, saved)
    saved.seek(0)
    for other in (twin, torch.load(saved, weights_only=False)):
        assert torch.equal(other(x_BCHW), model(x_BCHW)) and debugger({}, model) is None


def test_a_debugger_can_be_copied():
    debugger = Keeps("0")
    debugger.last_capture = {"x": 1}
    assert copy.deepcopy(debugger).last_capture is None and copy.deepcopy(debugger).layer_name == "0"


def test_a_subclass_that_sets_last_capture_itself():
    class Own(ForwardDebugger):
        def __init__(self):  # without the base's
            self.layer_name = "0"

        def process_forward(self, module, input, output):
            return None

        def forward_hook_fn(self, module, input, output):
            self.last_capture = float(output.sum())

    model, debugger = nn.Sequential(nn.Identity()), Own()
    with debugger.attach(model):
        model(torch.ones(3))
        assert debugger({}, model) == 3 and debugger({}, model) is None


@pytest.mark.parametrize("reentrant", (False, True))
def test_a_checkpointed_layer_is_seen_once(reentrant):
    class Model(nn.Module):
        def __init__(self):
            super().__init__()
            self.layer = nn.Sequential(nn.Linear(4, 4), nn.Tanh())

        def forward(self, x):
            return checkpoint(self.layer, x, use_reentrant=reentrant)

    model, debugger = Model(), Keeps("layer.0")
    with debugger.attach(model):
        model(torch.randn(2, 4, requires_grad=True)).sum().backward()
        assert len(debugger.captures) == 1


def test_a_compiled_model_runs_uncompiled_while_it_is_looked_into():
    counter = CompileCounter()
    model = small_cnn().eval()
    compiled, debugger = torch.compile(model, backend=counter), Keeps("0")
    x_BCHW = torch.randn(2, 1, 6, 6)
    expected, first = compiled(x_BCHW), model[0](x_BCHW)
    frames, other = counter.frame_count, Keeps("1")
    hooks, others = debugger.attach(compiled), other.attach(compiled)
    assert torch.equal(compiled(x_BCHW), expected)
    assert torch.equal(debugger({}, compiled)["output"], first) and other({}, compiled) is not None
    hooks.remove()
    compiled(x_BCHW)  # the other one still looks
    assert debugger({}, compiled) is None
    assert torch.equal(other({}, compiled)["output"], first.relu())
    others.remove()
    compiled(x_BCHW)
    assert (counter.frame_count, debugger({}, compiled)) == (frames, None)


def test_hooks_that_are_compiled_are_nothing():
    counter = CompileCounter()
    model, debugger = small_cnn().eval(), Keeps("0")
    bare = CompileCounter()
    torch.compile(small_cnn().eval(), backend=bare)(torch.randn(2, 1, 6, 6))
    with debugger.attach(model):
        torch.compile(model, backend=counter)(torch.randn(2, 1, 6, 6))
    assert (counter.frame_count, counter.op_count) == (bare.frame_count, bare.op_count) and bare.frame_count == 1
    assert debugger({}, model) is None


def test_a_traced_model():
    model, debugger = nn.Sequential(nn.Linear(2, 2)), Keeps("0")
    with debugger.attach(model):
        traced = torch.jit.trace(model, torch.ones(1, 2), check_trace=False)
    assert debugger({}, model) is None and "clone" not in str(traced.inlined_graph)


@pytest.mark.parametrize("kind", (ActivationStats, Keeps, Attention))
def test_inside_a_function_transform(kind):
    model, debugger = nn.Sequential(nn.Linear(2, 2)), kind("0")
    with debugger.attach(model):
        torch.func.vmap(model)(torch.ones(3, 2))
        torch.func.grad(lambda x: model(x).sum())(torch.ones(2))
        assert debugger({}, model) is None
        torch.func.functional_call(model, {}, torch.ones(2))
        assert debugger({}, model) is not None


def test_a_frozen_model_and_gradients():
    model, debugger = small_cnn(), Keeps("0")
    model.requires_grad_(False)
    with debugger.attach(model), torch.inference_mode():
        model(torch.randn(2, 1, 6, 6))
        found = debugger({}, model)["output"]
    assert not found.is_inference() and not found.requires_grad


def test_gradients_are_the_same_with_it():
    x_BCHW, grads = torch.randn(2, 1, 6, 6), []
    for attached in (False, True):
        model = small_cnn().eval()
        hooks = FeatureMap("0").attach(model) if attached else None
        model(x_BCHW).sum().backward()
        grads.append([parameter.grad for parameter in model.parameters()])
        if hooks:
            hooks.remove()
    assert all(torch.equal(*pair) for pair in zip(*grads, strict=True))


def test_a_pass_of_our_own_is_not_looked_at():
    model, debugger, told = small_cnn(), Keeps("0"), []

    class Context:
        def __enter__(self):
            told.append("in")

        def __exit__(self, *error):
            told.append("out")

    AROUND_OWN_PASSES.append(Context)
    try:
        with debugger.attach(model):
            model(torch.randn(2, 1, 6, 6))
            with suspend_debuggers():
                model(torch.randn(2, 1, 6, 6))
            assert len(debugger.captures) == 1 and told == ["in", "out"]
    finally:
        AROUND_OWN_PASSES.clear()
