"""The look at all modules: right figures, hooks only for one pass, and nothing of the program's changed."""

import contextlib
import copy
import io
import math
import weakref
import zipfile
from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn

from tdbg.core.events import Observation
from tdbg.runtime import module_sampler, tensors
from tdbg.runtime.budget import ALWAYS_STEPS
from tdbg.runtime.sampling import SAMPLE, stack_samples
from tests.probes.conftest import Watch

FLAGS = {"FORWARD": True, "BACKWARD": True}


def list_observations(watch: Watch, probe: str) -> list[Observation]:
    return [event for event in watch.events if isinstance(event, Observation) and event.probe == probe]


def train_model(model: nn.Module, inputs: Tensor, steps: int = 2) -> list[Tensor]:
    """Train for a few steps; returns the losses."""
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    losses = []
    for _ in range(steps):
        loss = model(inputs).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.detach())
    return losses


def test_figures_against_hooks_of_ones_own(start_watch: Callable[..., Watch]) -> None:
    one = start_watch(flags=FLAGS)
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 4))
    inputs = torch.randn(32, 8)
    own_rms, own_flow = [], {}

    def keep_flow(place: int) -> Callable[..., None]:
        return lambda module, into, out: own_flow.update({place: out[0].norm().item()})

    for place, module in enumerate(model):
        module.register_forward_hook(lambda _, __, out: own_rms.append(out.detach().square().mean().sqrt().item()))
        module.register_full_backward_hook(keep_flow(place))
    train_model(model, inputs, steps=1)
    (forward,) = list_observations(one, "forward")
    (backward,) = [event for event in list_observations(one, "backward") if not event.part]
    assert forward.values["modules"] == ["0", "1", "2", ""]
    assert forward.values["rms"][:3] == pytest.approx(own_rms, rel=1e-3)
    assert backward.values["flow"][:3] == pytest.approx([own_flow[0], own_flow[1], own_flow[2]], rel=1e-3)
    assert forward.values["zero_share"][1] == pytest.approx(0.5, abs=0.2)
    assert forward.step == backward.step == 1


def test_no_hook_is_left_and_no_value_differs(start_watch: Callable[..., Watch]) -> None:
    inputs = torch.randn(16, 8)

    def losses() -> list[Tensor]:
        torch.manual_seed(0)
        model = nn.Sequential(nn.Linear(8, 8), nn.Dropout(0.5), nn.ReLU(inplace=True), nn.Linear(8, 2))
        found = train_model(model, inputs, steps=6)
        assert not any(module._forward_hooks for module in model.modules() if module is not model)
        return found

    bare = losses()
    one = start_watch(flags=FLAGS, level="extreme")
    assert torch.equal(torch.stack(losses()), torch.stack(bare))
    assert len(list_observations(one, "forward")) == 6


def test_names_are_told_once_and_again_when_shapes_change(start_watch: Callable[..., Watch]) -> None:
    one = start_watch(flags=FLAGS)
    model = nn.Linear(4, 4)
    train_model(model, torch.randn(8, 4), steps=2)
    train_model(model, torch.randn(6, 4), steps=1)
    assert ["modules" in event.values for event in list_observations(one, "forward")] == [True, False, True]


def test_a_forward_that_raises_leaves_no_hook(start_watch: Callable[..., Watch]) -> None:
    one = start_watch(flags=FLAGS)
    model = nn.Sequential(nn.Linear(4, 4), nn.Linear(5, 5))
    with pytest.raises(RuntimeError):
        model(torch.randn(2, 4))
    good = nn.Sequential(nn.Linear(4, 4), nn.ReLU())
    train_model(good, torch.randn(2, 4))
    assert one.monitor.modules.count_hooks() == 0
    assert not model[0]._forward_hooks
    assert list_observations(one, "forward")


def test_a_caught_failure_leaves_nothing_and_the_retry_is_looked_at(start_watch: Callable[..., Watch]) -> None:
    one = start_watch(flags=FLAGS)
    outputs: list[weakref.ref[Tensor]] = []

    class Tight(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layer = nn.Linear(4, 4)

        def forward(self, batch: Tensor) -> Tensor:
            output: Tensor = self.layer(batch)
            outputs.append(weakref.ref(output))
            if len(batch) > 8:
                raise MemoryError("too large")
            return output.relu()

    model = Tight()
    with contextlib.suppress(MemoryError):
        model(torch.randn(16, 4))
    assert outputs[0]() is None
    assert one.monitor.modules.count_hooks() <= 1  # torch goes through the root's hooks as it raises
    assert not model.layer._forward_hooks
    train_model(model, torch.randn(8, 4), steps=1)
    assert one.monitor.modules.count_hooks() == 0
    (seen,) = list_observations(one, "forward")
    assert seen.step == 1


def test_non_finite_and_zero_outputs_are_named(start_watch: Callable[..., Watch]) -> None:
    one = start_watch(flags=FLAGS)
    model = nn.Sequential(nn.Linear(4, 4), nn.ReLU(), nn.Linear(4, 2))
    with torch.no_grad():
        model[0].bias.fill_(-1e4)
        model[2].bias[0] = math.inf
    model(torch.randn(8, 4)).sum().backward()
    torch.optim.SGD(model.parameters(), lr=0.0).step()
    (seen,) = list_observations(one, "forward")
    assert seen.values["dead"] == ["1"]
    assert seen.values["bad"][0] == "2"


def test_selected_steps_only(start_watch: Callable[..., Watch]) -> None:
    one = start_watch(flags=FLAGS, steps="3:4,6", level="basic")
    train_model(nn.Linear(4, 4), torch.randn(8, 4), steps=8)
    assert [event.step for event in list_observations(one, "forward")] == [3, 4, 6]
    other = start_watch(flags=FLAGS, every=3)
    train_model(nn.Linear(4, 4), torch.randn(8, 4), steps=8)
    assert [event.step for event in list_observations(other, "forward")] == [3, 6]


def test_another_rank_is_not_looked_at(start_watch: Callable[..., Watch]) -> None:
    one = start_watch(flags=FLAGS, ranks="1-3")
    train_model(nn.Linear(4, 4), torch.randn(8, 4))
    assert not list_observations(one, "forward")


def test_on_an_accelerator_the_figures_come_a_step_late(
    start_watch: Callable[..., Watch], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tensors, "on_host", lambda tensor: False)
    one = start_watch(flags=FLAGS)
    train_model(nn.Linear(4, 4), torch.randn(8, 4), steps=4)
    one.monitor.finish_run()
    assert [event.step for event in list_observations(one, "forward")] == [1, 2, 3, 4]


def test_a_compiled_model_is_run_eagerly_for_the_look(start_watch: Callable[..., Watch]) -> None:
    one = start_watch(flags={"FORWARD": True}, steps="3")
    torch._dynamo.reset()
    model = torch.compile(nn.Sequential(nn.Linear(4, 4), nn.ReLU(), nn.Linear(4, 2)), backend="eager")
    train_model(model, torch.randn(8, 4), steps=6)
    (seen,) = list_observations(one, "forward")
    assert seen.values["modules"] == ["0", "1", "2", ""]
    assert torch._dynamo.utils.counters["stats"]["unique_graphs"] == 1
    torch._dynamo.reset()


def make_deep_model(layers: int = 20) -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(*(nn.Linear(8, 8) for _ in range(layers)))


def test_without_a_flag_modules_have_their_turn(start_watch: Callable[..., Watch]) -> None:
    one = start_watch(level="advanced", max_overhead=1e5)
    model = make_deep_model()
    rms = {}
    for name, layer in model.named_children():
        layer.register_forward_hook(lambda _, __, out, name=name: rms.update({name: out.norm().item() / 128**0.5}))
    turns_in_all = -(-20 // module_sampler.IN_TURN)
    train_model(model, torch.randn(16, 8), steps=4 * turns_in_all)
    whole, *looks = list_observations(one, "forward")
    looks = [look for look in looks if "turn" in look.values]  # MEMORY looks at all modules twice
    assert whole.values["modules"] == [*map(str, range(20)), ""]
    steps = [look.step for look in looks if look.step > ALWAYS_STEPS]
    assert steps == list(range(ALWAYS_STEPS + 2, 4 * turns_in_all + 1, 2)), "at every other step"
    turns = [look.values["turn"] for look in looks]
    assert set(turns) == set(range(1, turns_in_all + 1))
    assert {look.values["turns"] for look in looks} == {turns_in_all}
    names = {look.values["turn"]: look.values["modules"] for look in looks if "modules" in look.values}
    assert sum("modules" in look.values for look in looks) == len(names) == turns_in_all, "names once a turn"
    most = module_sampler.IN_TURN + 2
    assert all(found[0] == "0" and found[-1] == "19" and len(found) <= most for found in names.values())
    assert {name for found in names.values() for name in found} == set(map(str, range(20)))
    last = looks[-1].values
    assert last["rms"] == pytest.approx([rms[name] for name in names[last["turn"]]], rel=1e-3)
    flows = [look.values for look in list_observations(one, "backward") if look.values.get("turn") == last["turn"]]
    assert all(flow["first_module"] == "0" and flow["last_module"] == "19" for flow in flows)
    assert one.failures == []


class Deep(nn.Module):
    """As `make_deep_model`, of a class of its own: torch compiles nothing of a Sequential that is the root."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = make_deep_model()

    def forward(self, x_NF: Tensor) -> Tensor:
        found: Tensor = self.layers(x_NF)
        return found


def test_a_model_compiled_between_looks_is_let_alone(start_watch: Callable[..., Watch]) -> None:
    one = start_watch(level="advanced", max_overhead=100.0)
    model = Deep()
    train_model(model, torch.randn(16, 8), steps=4)
    torch._dynamo.reset()
    model.compile(backend="eager")
    before = len(list_observations(one, "forward"))
    train_model(model, torch.randn(16, 8), steps=4)
    stats = torch._dynamo.utils.counters["stats"]
    assert (stats["unique_graphs"], stats["calls_captured"]) == (1, 20), "hooks on the layers would break the graph"
    assert len(list_observations(one, "forward")) == before
    torch._dynamo.reset()


def test_an_output_that_is_written_into_is_read_before(start_watch: Callable[..., Watch]) -> None:
    one = start_watch(level="extreme", max_overhead=100.0)
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(8, 8), nn.ReLU(inplace=True), nn.Linear(8, 2))
    inputs = torch.randn(16, 8)
    expected = model[0](inputs).detach().square().mean().sqrt().item()
    train_model(model, inputs, steps=3)
    first, second, _ = list_observations(one, "forward")
    assert first.values["modules"] == ["1", "2", ""], "what it was before is not known"
    assert second.values["modules"] == ["0", "1", "2", ""]
    assert second.values["rms"][0] == pytest.approx(expected, rel=0.3)
    assert second.values["min"][0] < 0.0 <= second.values["min"][1]


def test_figures_are_the_same_whether_tensors_are_held_or_not(
    start_watch: Callable[..., Watch], monkeypatch: pytest.MonkeyPatch
) -> None:
    def figures() -> list[dict[str, object]]:
        one = start_watch(level="extreme", max_overhead=100.0)
        train_model(make_deep_model(4), torch.ones(16, 8), steps=3)
        return [event.values for probe in ("forward", "backward") for event in list_observations(one, probe)]

    held = figures()
    monkeypatch.setattr(module_sampler, "HELD_BYTES", 0)
    assert figures() == held


def test_no_tensor_of_the_program_is_held_after_its_step(start_watch: Callable[..., Watch]) -> None:
    one = start_watch(level="extreme", max_overhead=100.0)
    outputs: list[weakref.ref[Tensor]] = []
    model = make_deep_model(4)
    model[1].register_forward_hook(lambda _, __, out: outputs.append(weakref.ref(out)))
    train_model(model, torch.randn(16, 8), steps=3)
    assert len(list_observations(one, "forward")) == 3
    assert [ref() for ref in outputs] == [None, None, None]


def test_the_last_output_is_not_kept_until_backward(start_watch: Callable[..., Watch]) -> None:
    start_watch(flags={"FORWARD": True})
    model = nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 1 << 18))
    output = model(torch.randn(8, 4))
    held, total = weakref.ref(output), output.sum()
    del output
    assert held() is None
    total.backward()


def test_large_outputs_are_estimated_from_a_sample(start_watch: Callable[..., Watch]) -> None:
    one = start_watch(level="extreme", max_overhead=100.0)
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(64, 512), nn.Tanh())
    inputs = torch.randn(128, 64)
    rms = model(inputs).detach().square().mean().sqrt().item()
    model.zero_grad()
    train_model(model, inputs, steps=1)
    (seen,) = list_observations(one, "forward")
    assert seen.values["rms"][1] == pytest.approx(rms, rel=0.15)
    assert one.failures == []


@pytest.mark.parametrize("shape", [(128, 256), (3, 5), (1024,), (1025,), (64, 64, 8)])
def test_samples_cover_the_tensor(shape: tuple[int, ...]) -> None:
    values = torch.arange(math.prod(shape), dtype=torch.float32).reshape(shape)
    (sample,) = stack_samples([values])
    assert sample.shape == (SAMPLE,)
    assert sample.mean().item() == pytest.approx(values.mean().item(), rel=0.15, abs=1.0)
    if values.dim() == 2 and values.numel() > SAMPLE:
        assert len({int(value) % shape[1] for value in sample}) > shape[1] // 2, "all columns have a chance"
    (transposed,) = stack_samples([values.transpose(0, -1)])
    assert transposed.mean().item() == pytest.approx(values.mean().item(), rel=0.15, abs=1.0)


def make_replica(module: nn.Module) -> nn.Module:
    """A copy as DataParallel makes them: it shares the hooks, and its parameters are plain tensors."""
    made = module._replicate_for_data_parallel()  # type: ignore[no-untyped-call]
    for name, child in module.named_children():
        setattr(made, name, make_replica(child))
    for name, parameter in module.named_parameters(recurse=False):
        setattr(made, name, parameter.clone())
    return made  # type: ignore[no-any-return]


class Parallel(nn.Module):
    """DataParallel on the host: one replica each half of the batch."""

    def __init__(self, module: nn.Module) -> None:
        super().__init__()
        self.module = module

    def forward(self, inputs: Tensor) -> Tensor:
        parts = inputs.chunk(2)
        made = [make_replica(self.module) for _ in parts]
        return torch.cat([one(part) for one, part in zip(made, parts, strict=True)])


def test_replicas_are_looked_at_and_have_no_turns(start_watch: Callable[..., Watch]) -> None:
    one = start_watch(level="advanced", max_overhead=1e5)
    train_model(Parallel(make_deep_model()), torch.randn(16, 8), steps=6)
    looks = list_observations(one, "forward")
    assert looks[0].values["modules"].count("module.7") == 2, "each replica has its part of the batch"
    assert [(look.step, len(look.values["rms"])) for look in looks] == [(step, 2 * 21 + 1) for step in range(1, 7)]
    assert not any("turn" in look.values for look in looks)


def test_the_line_tells_shapes_dtypes_devices_and_loss_anew_when_they_change(start_watch: Callable[..., Watch]) -> None:
    one = start_watch(flags={"FORWARD": True})
    model = nn.Sequential(nn.Linear(8, 16), nn.ReLU())
    losses = train_model(model, torch.randn(32, 8), steps=2)
    losses += train_model(model, torch.randn(4, 8), steps=1)
    texts = [event.text for event in list_observations(one, "forward")]
    assert [f"loss {loss.item():.6g}" in text for loss, text in zip(losses, texts, strict=True)] == [True] * 3
    assert "outputs: 0 (Linear) float32[32, 16], 1 (ReLU) float32[32, 16]" in texts[0] and "on cpu" in texts[0]
    assert "outputs:" not in texts[1]
    assert "outputs: 0 (Linear) float32[4, 16], 1 (ReLU) float32[4, 16]" in texts[2]


class Fails(Deep):
    """Raises in its forward pass when it is told to."""

    fails = False

    def forward(self, x_NF: Tensor) -> Tensor:
        found_NF = super().forward(x_NF)
        if self.fails:
            raise ArithmeticError("mine")
        return found_NF


def make_raised_model(one: Watch) -> Fails:
    """A model that has trained, and whose last pass has raised while its modules were looked at."""
    model = Fails()
    train_model(model, torch.randn(16, 8), steps=1)
    model.fails = True
    with pytest.raises(ArithmeticError):
        model(torch.randn(16, 8))
    assert one.monitor.modules.count_hooks() == 1, "torch goes through the hooks of the root when it raises"
    model.fails = False
    return model


def read_pickle(model: nn.Module) -> bytes:
    """What `torch.save` says of a module beside its numbers."""
    file = io.BytesIO()
    torch.save(model, file)
    with zipfile.ZipFile(file) as archive:
        return archive.read(next(name for name in archive.namelist() if name.endswith("data.pkl")))


def test_a_model_that_raised_is_saved_and_copied_as_without_tdbg(start_watch: Callable[..., Watch]) -> None:
    one = start_watch(level="extreme", max_overhead=100.0)
    model = make_raised_model(one)
    kept, copied = read_pickle(model), copy.deepcopy(model)
    assert not any("look" in str(key) for module in copied.modules() for key in module._forward_hooks)
    one.monitor.detach()
    assert kept == read_pickle(model)
    assert b"tdbg" not in kept.replace(Fails.__module__.encode(), b"")


def test_a_model_that_raised_is_compiled_once(start_watch: Callable[..., Watch]) -> None:
    one = start_watch(level="extreme", max_overhead=100.0)
    model = make_raised_model(one)
    torch._dynamo.reset()
    model.compile(backend="eager")
    assert one.monitor.modules.count_hooks() == 0
    train_model(model, torch.randn(16, 8), steps=4)
    stats = torch._dynamo.utils.counters["stats"]
    assert (stats["unique_graphs"], stats["calls_captured"]) == (1, 20)


def test_the_programs_stance_is_back_after_a_raise(start_watch: Callable[..., Watch]) -> None:
    """The look at a compiled model runs it uncompiled; its next passes are compiled again."""
    start_watch(flags={"FORWARD": True}, max_overhead=100.0)
    model = Fails()
    compiled = torch.compile(model, backend="eager")
    model.fails = True
    with pytest.raises(ArithmeticError):
        compiled(torch.randn(16, 8))
    assert torch._dynamo.eval_frame._stance.stance == "default"
    with torch.compiler.set_stance("force_eager"), pytest.raises(ArithmeticError):
        compiled(torch.randn(16, 8))
    assert torch._dynamo.eval_frame._stance.stance == "default"
