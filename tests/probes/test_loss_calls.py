"""Torch's own losses under the LOSS flags: what is counted, what is named, and that the program is left as it was."""

import copy
import pickle
import traceback
import warnings
import weakref
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from tdbg.core.events import Observation
from tdbg.runtime import tensors
from tdbg.runtime.torch_hooks import PLACES, iter_targets

LOSSES = {"LOSS.NULL_MASKING": True, "LOSS.CLASS_WEIGHTING": True, "LOSS.TAXONOMY_SMOOTHING": True}
FUNCTIONS = list(iter_targets("loss-computed"))
CLASSES = 5


@pytest.fixture(autouse=True)
def nobody_calls_diagnostics(loss_flags: dict[str, Any]) -> None:
    """What a program speaks of itself is not told twice: no other test is that program."""


class Training:
    """A small classifier that learns under a monitor with the LOSS flags."""

    def __init__(self, watch: Callable[..., Any], **settings: Any) -> None:
        torch.manual_seed(0)
        self.watch = watch(**{"flags": dict(LOSSES), **settings})
        self.model = nn.Linear(4, CLASSES)
        self.optimizer = torch.optim.SGD(self.model.parameters(), lr=0.01)

    def run_step(self, loss_of: Callable[[Tensor], Tensor], size: int = 8) -> float:
        loss = loss_of(self.model(torch.randn(size, 4)))
        self.optimizer.zero_grad()
        loss.backward()
        self.optimizer.step()
        return loss.item()

    def list_observations(self, part: str) -> list[Observation]:
        self.watch.monitor.finish_run()
        return [
            event
            for event in self.watch.events
            if isinstance(event, Observation) and event.probe == "loss-calls" and event.part == part
        ]

    @property
    def faults(self) -> list[dict[str, Any]]:
        self.watch.monitor.finish_run()
        seen = [event for event in self.watch.events if isinstance(event, Observation) and event.probe == "loss-calls"]
        return [{**fault, "step": event.step} for event in seen for fault in event.values.get("faults", ())]

    @property
    def codes(self) -> list[tuple[str, int]]:
        return [(fault["code"], fault["step"]) for fault in self.faults]


@pytest.fixture
def make_training(start_watch: Callable[..., Any]) -> Callable[..., Training]:
    return lambda **settings: Training(start_watch, **settings)


def make_labels(size: int = 8) -> Tensor:
    return torch.arange(size) % CLASSES


# what is counted


def test_masked_targets_are_counted(make_training: Callable[..., Training]) -> None:
    run = make_training()
    weight = torch.tensor([1.0, 1.0, 1.0, 1.0, 0.0])
    target = torch.tensor([0, 1, 4, 4, -100, -100, -100, 2])
    run.run_step(lambda y: F.cross_entropy(y, target, weight=weight))
    (seen,) = run.list_observations("TARGETS")
    assert (seen.flag, seen.step) == ("LOSS.NULL_MASKING", 1)
    values = seen.values
    assert (values["targets"], values["ignored"], values["zero_weight"], values["share"]) == (8, 3, 2, 5 / 8)
    assert "8 targets, 3 ignored (ignore_index -100, 37.5 %) and 2 of weight 0 (25 %), 3 count" in seen.text
    assert not run.faults


@pytest.mark.parametrize(
    "loss_of",
    [
        nn.CrossEntropyLoss(ignore_index=1),
        lambda y, t: F.nll_loss(F.log_softmax(y, 1), t, ignore_index=1),
        lambda y, t: F.nll_loss(F.log_softmax(y, 1), t, None, None, 1),
    ],
)
def test_of_each_function_of_classes(make_training: Callable[..., Training], loss_of: Callable[..., Tensor]) -> None:
    run = make_training()
    run.run_step(lambda y: loss_of(y, make_labels()))
    (seen,) = run.list_observations("TARGETS")
    assert (seen.values["targets"], seen.values["ignored"]) == (8, 2)


def test_calls_of_one_step_are_told_together(make_training: Callable[..., Training]) -> None:
    run = make_training()
    run.run_step(
        lambda y: F.cross_entropy(y, make_labels()) + F.cross_entropy(y, make_labels().where(make_labels() > 1, -100))
    )
    (seen,) = run.list_observations("TARGETS")
    assert (seen.values["calls"], seen.values["targets"], seen.values["ignored"]) == (2, 16, 4)


def test_weights_of_elements_count_as_masks(make_training: Callable[..., Training]) -> None:
    run = make_training()
    weight = torch.tensor([1.0, 0.0, 0.0, 0.0, 0.0])
    run.run_step(lambda y: F.binary_cross_entropy_with_logits(y, torch.zeros(8, CLASSES), weight=weight))
    (seen,) = run.list_observations("TARGETS")
    assert (seen.values["targets"], seen.values["zero_weight"]) == (40, 32)


@pytest.mark.parametrize("name", ["mse_loss", "l1_loss", "smooth_l1_loss", "huber_loss", "soft_margin_loss"])
def test_losses_that_mask_nothing_are_told_once(make_training: Callable[..., Training], name: str) -> None:
    run = make_training()
    for _ in range(4):
        run.run_step(lambda y: getattr(F, name)(y, torch.ones(8, CLASSES)))
    (seen,) = run.list_observations("TARGETS")
    assert seen.text == f"{name}: 40 targets, none masked" and not run.faults


def test_without_a_flag_torch_is_as_it_was(start_watch: Callable[..., Any]) -> None:
    before = [getattr(owner, name) for owner, name in FUNCTIONS]
    start_watch()
    assert [getattr(owner, name) for owner, name in FUNCTIONS] == before
    start_watch(flags={"LOSS.GRADNORM_METRICS": True})
    assert [getattr(owner, name) for owner, name in FUNCTIONS] == before


def test_a_program_that_speaks_for_itself_is_not_told_twice(
    make_training: Callable[..., Training], loss_flags: dict[str, Any]
) -> None:
    from tdbg.probes import loss

    run = make_training()
    loss_flags["LOSS.NULL_MASKING"] = True
    loss.null_masking(make_labels(), make_labels() == 0)
    run.run_step(lambda y: F.cross_entropy(y, make_labels(), ignore_index=0))
    assert not run.list_observations("TARGETS")
    run.run_step(lambda y: F.cross_entropy(y, torch.full((8,), -100)))
    assert run.codes == [("TD-L004", 2)], "but what is wrong is"


def test_the_cost_is_within_the_budget(make_training: Callable[..., Training]) -> None:
    run = make_training(max_overhead=1e-6)
    for _ in range(40):
        run.run_step(lambda y: F.cross_entropy(y, make_labels()))
    assert [seen.step for seen in run.list_observations("TARGETS")] == list(range(1, 9)), "the first steps alone"


def test_chosen_steps_alone(make_training: Callable[..., Training]) -> None:
    run = make_training(steps="3:4")
    for _ in range(6):
        run.run_step(lambda y: F.cross_entropy(y, make_labels()))
    assert [seen.step for seen in run.list_observations("TARGETS")] == [3, 4]


# what is named


@pytest.mark.parametrize("bad_step", [2, 30])
@pytest.mark.parametrize("smoothing", [0.0, 0.1])
def test_a_mean_over_ignored_targets_is_named(
    make_training: Callable[..., Training], bad_step: int, smoothing: float
) -> None:
    run = make_training(max_overhead=1e-6)
    for step in range(1, 33):
        target = torch.full((8,), -100) if step == bad_step else make_labels()
        run.run_step(lambda y, t=target: F.cross_entropy(y, t, label_smoothing=smoothing))  # type: ignore[misc]
    assert run.codes == [("TD-L004", bad_step)]
    kinds = [type(event).__name__ for event in run.watch.events]
    place = next(i for i, event in enumerate(run.watch.events) if getattr(event, "values", {}).get("faults"))
    assert place < kinds.index("NonFinite"), "the cause is told first"


@pytest.mark.parametrize("ignored", [0, 3])
def test_weights_that_sum_to_zero_are_told_apart(make_training: Callable[..., Training], ignored: int) -> None:
    run = make_training()
    target = torch.full((8,), 4)
    target[:ignored] = -100
    weight = torch.tensor([1.0, 1.0, 1.0, 1.0, 0.0])
    run.run_step(lambda y: F.cross_entropy(y, target, weight=weight))
    assert run.codes == [("TD-L020", 1)]


def test_a_mean_over_an_empty_selection_is_named(make_training: Callable[..., Training]) -> None:
    run = make_training()
    run.run_step(lambda y: F.mse_loss(y[:0], torch.ones(0, CLASSES)))
    assert run.codes == [("TD-L004", 1)] and "without a target" in run.faults[0]["title"]


def test_another_nan_is_not_laid_on_the_targets(make_training: Callable[..., Training]) -> None:
    run = make_training()
    weight = torch.tensor([1.0, 1.0, 1.0, 1.0, 0.0])
    run.run_step(lambda y: F.cross_entropy(y * float("nan"), make_labels(), weight=weight))
    assert run.watch.bad_values and not run.faults


def test_a_program_that_skips_such_batches_is_healthy(make_training: Callable[..., Training]) -> None:
    run = make_training()
    for step in range(12):
        target = torch.full((8,), -100) if step % 3 == 0 else make_labels()

        def loss_of(y: Tensor, target: Tensor = target) -> Tensor:
            loss = F.cross_entropy(y, target)
            return loss if loss.isfinite() else y.sum() * 0

        run.run_step(loss_of)
    assert not run.faults


def test_the_sum_of_nothing_is_named_where_it_lasts(make_training: Callable[..., Training]) -> None:
    run = make_training()
    for step in range(6):
        target = torch.full((32,), -100) if step < 4 else make_labels(32)
        run.run_step(lambda y, t=target: F.cross_entropy(y, t, reduction="sum"), 32)  # type: ignore[misc]
    assert run.codes == [("TD-L004", 3)] and run.faults[0]["severity"] == "warning"


def test_in_evaluation_too(make_training: Callable[..., Training]) -> None:
    run = make_training()
    run.run_step(lambda y: F.cross_entropy(y, make_labels()))
    with torch.no_grad():
        F.cross_entropy(run.model(torch.randn(8, 4)), torch.full((8,), -100))
    (fault,) = run.faults
    assert (fault["code"], fault["severity"]) == ("TD-L004", "warning")
    assert run.list_observations("TARGETS")[-1].values["training"] is False


@pytest.mark.parametrize(
    ("more", "expected"),
    [
        ({}, [("TD-L021", 1)]),
        ({"ignore_index": 0}, []),
        ({"weight": torch.tensor([0.0, 1, 1, 1, 1])}, []),
        ({"ignore_index": 1}, [("TD-L021", 1)]),
        ({"reduction": "none"}, []),
    ],
)
def test_the_null_class(make_training: Callable[..., Training], more: dict[str, Any], expected: list[Any]) -> None:
    run = make_training(thresholds={"LOSS.NULL_MASKING.null_index": 0.0})
    for _ in range(3):
        run.run_step(lambda y: F.cross_entropy(y, make_labels(), **more).mean())
    assert run.codes == expected
    assert run.list_observations("TARGETS")[0].values["nulls"] == 2


def test_no_null_class_is_configured_by_itself(make_training: Callable[..., Training]) -> None:
    run = make_training()
    run.run_step(lambda y: F.cross_entropy(y, make_labels()))
    assert "nulls" not in run.list_observations("TARGETS")[0].values


def make_soft_targets(sums: float) -> Tensor:
    return F.one_hot(make_labels(), CLASSES) * sums


@pytest.mark.parametrize(
    ("target", "expected"),
    [
        (make_soft_targets(1.0), []),
        (make_soft_targets(1.0) * 0.9 + 0.1 / CLASSES, []),
        ((make_soft_targets(1.0) * 0.9 + 0.1 / CLASSES).bfloat16().float(), []),
        (make_soft_targets(1.0) * (make_labels() > 1)[:, None], []),  # empty rows are masked ones
        (make_soft_targets(1.0) + 0.1, ["TD-L007"]),
        (make_soft_targets(1.0) * 3 - 2 / CLASSES * torch.ones(8, CLASSES), ["TD-L007"]),  # sums to 1, and negative
    ],
)
def test_rows_of_soft_targets(make_training: Callable[..., Training], target: Tensor, expected: list[str]) -> None:
    run = make_training()
    run.run_step(lambda y: F.cross_entropy(y, target))
    assert [code for code, _ in run.codes] == expected
    assert run.list_observations("ROWS")[0].values["rows"] == 8


@pytest.mark.parametrize("log_target", [False, True])
@pytest.mark.parametrize("shape", [(8, CLASSES), (2, 4, CLASSES)])
def test_rows_of_kl_div_lie_along_either_dimension(
    make_training: Callable[..., Training], shape: tuple[int, ...], log_target: bool
) -> None:
    run = make_training()
    target = torch.randn(shape).softmax(-1)
    target = target.log() if log_target else target
    for good in (target, target + 0.5):
        run.run_step(
            lambda y, t=good: F.kl_div(  # type: ignore[misc]
                y.log_softmax(1).reshape(shape), t, reduction="batchmean", log_target=log_target
            )
        )
    assert run.codes == [("TD-L007", 2)]


def test_label_smoothing_is_told_once(make_training: Callable[..., Training]) -> None:
    run = make_training()
    for _ in range(3):
        run.run_step(lambda y: F.cross_entropy(y, make_labels(), label_smoothing=0.1))
    (seen,) = run.list_observations("ROWS")
    assert "label_smoothing 0.1 over 5 classes, the true class keeps 92 %" in seen.text and not run.faults


def test_smoothing_that_leaves_nothing(make_training: Callable[..., Training]) -> None:
    run = make_training()
    run.run_step(lambda y: F.cross_entropy(y, make_labels(), label_smoothing=1.0))
    assert run.codes == [("TD-L008", 1)]


def test_classes_seen_are_counted_on(make_training: Callable[..., Training]) -> None:
    run = make_training()
    weight = torch.tensor([2.0, 1.0, 1.0, 1.0, 0.0])
    for _ in range(2):
        run.run_step(lambda y: F.cross_entropy(y, make_labels(), weight=weight))
    seen = run.list_observations("CLASSES")[-1]
    assert (seen.values["classes"], seen.values["seen"], seen.values["samples"], seen.values["ratio"]) == (5, 5, 16, 2)
    assert "0: weight 2, 4 seen" in seen.text and not run.faults


def draw_imbalanced(size: int = 64) -> Tensor:
    return torch.multinomial(torch.tensor([0.6, 0.2, 0.1, 0.06, 0.04]), size, replacement=True)


@pytest.mark.parametrize(
    ("weight", "expected"),
    [
        ([1.0, 3.0, 6.0, 10.0, 15.0], []),
        ([1.0, 1.0, 1.0, 1.0, 1.0], []),
        ([15.0, 5.0, 2.5, 1.5, 1.0], ["TD-L012"]),
        ([1.0, 1.0, 1.0, 1.0, 400.0], ["TD-L011"]),
        ([1.0, 1.0, 1.0, 0.0, float("inf")], ["TD-L011"]),
        ([1.0, -1.0, 1.0, 1.0, 1.0], ["TD-L011"]),
    ],
)
def test_weights_against_the_classes_seen(
    make_training: Callable[..., Training], weight: list[float], expected: list[str]
) -> None:
    run = make_training()
    for _ in range(40):
        run.run_step(
            lambda y: F.cross_entropy(y, draw_imbalanced(), weight=torch.tensor(weight)).nan_to_num(0, 0, 0), 64
        )
    assert list(dict.fromkeys(code for code, _ in run.codes)) == expected


@pytest.mark.parametrize("least", range(CLASSES))
def test_weights_of_balanced_classes_are_not_judged_by_noise(
    make_training: Callable[..., Training], least: int
) -> None:
    run = make_training()
    weight = torch.full((CLASSES,), 2.0)
    weight[least] = 1.0
    for _ in range(40):
        target = torch.randint(0, CLASSES, (64,))
        run.run_step(lambda y, t=target: F.cross_entropy(y, t, weight=weight), 64)  # type: ignore[misc]
    assert not run.faults


@pytest.mark.parametrize(("weight", "expected"), [(9.0, []), (1 / 9, ["TD-L012"]), (1.0, []), (-1.0, ["TD-L011"])])
@pytest.mark.parametrize("shape", [(1,), (CLASSES,)])
def test_pos_weight_upside_down(
    make_training: Callable[..., Training], shape: tuple[int, ...], weight: float, expected: list[str]
) -> None:
    run = make_training()
    for _ in range(40):
        target = (torch.rand(64, CLASSES) < 0.1).float()
        run.run_step(
            lambda y, t=target: F.binary_cross_entropy_with_logits(y, t, pos_weight=torch.full(shape, weight)),  # type: ignore[misc]
            64,
        )
    assert [code for code, _ in run.codes] == expected


# on an accelerator


@pytest.fixture
def fake_accelerator(monkeypatch: pytest.MonkeyPatch) -> None:
    """Every tensor counts as if it were on an accelerator."""
    monkeypatch.setattr(tensors, "on_host", lambda tensor: False)


@pytest.mark.usefixtures("fake_accelerator")
def test_figures_of_a_device_are_read_a_step_late(
    make_training: Callable[..., Training], monkeypatch: pytest.MonkeyPatch
) -> None:
    run = make_training()
    weight = torch.tensor([2.0, 1.0, 1.0, 1.0, 0.0])
    for step in range(1, 4):
        target = make_labels().where(make_labels() != step, -100)
        with monkeypatch.context() as patch:
            patch.setattr(Tensor, "tolist", lambda tensor: pytest.fail("the program waits"))
            loss = F.cross_entropy(run.model(torch.randn(8, 4)), target, weight=weight)
        run.optimizer.zero_grad()
        loss.backward()
        run.optimizer.step()
    seen = run.list_observations("TARGETS")
    assert [(one.step, one.values["ignored"], one.values["zero_weight"]) for one in seen] == [
        (1, 2, 1),
        (2, 2, 1),
        (3, 1, 1),
    ]
    assert run.list_observations("CLASSES")[-1].values["samples"] == 19


@pytest.mark.usefixtures("fake_accelerator")
def test_a_mean_over_nothing_is_named_a_step_late(make_training: Callable[..., Training]) -> None:
    run = make_training()
    for step in range(1, 7):
        target = torch.full((8,), -100) if step == 3 else make_labels()
        run.run_step(lambda y, t=target: F.cross_entropy(y, t))  # type: ignore[misc]
    assert run.codes == [("TD-L004", 3)]


# what stays as it was


def test_functions_stay_the_programs_own(start_watch: Callable[..., Any]) -> None:
    held, module = F.cross_entropy, nn.Module()
    module.loss_of = F.binary_cross_entropy_with_logits
    running = start_watch(flags=dict(LOSSES))
    assert F.cross_entropy is held and pickle.loads(pickle.dumps(F.kl_div)) is F.kl_div
    assert pickle.loads(pickle.dumps(module)).loss_of is F.binary_cross_entropy_with_logits
    assert copy.deepcopy(module).loss_of is module.loss_of
    for owner, name in FUNCTIONS:
        assert pickle.loads(pickle.dumps(getattr(owner, name))) is getattr(owner, name)
    running.monitor.detach()
    assert pickle.loads(pickle.dumps(module)).loss_of is F.binary_cross_entropy_with_logits
    assert F.cross_entropy is held


def test_a_name_imported_before_is_observed(make_training: Callable[..., Training]) -> None:
    held = F.cross_entropy
    run = make_training()
    run.run_step(lambda y: held(y, make_labels()))
    assert run.list_observations("TARGETS")


BAD = [
    lambda: F.cross_entropy(torch.randn(3, 4), torch.ones(3, dtype=torch.int32)),
    lambda: F.cross_entropy(torch.randn(3, 4), torch.tensor([0, 1, 9])),
    lambda: F.cross_entropy(torch.randn(3, 4), torch.tensor([0, 1])),
    lambda: F.cross_entropy(torch.randn(3, 4), torch.tensor([0, 1, 2]), weight=torch.ones(3)),
    lambda: F.cross_entropy(torch.randn(3, 4), [0, 1, 2]),  # type: ignore[arg-type]
    lambda: F.nll_loss(torch.randn(3, 4), torch.ones(3)),
    lambda: F.binary_cross_entropy(torch.full((3,), 2.0), torch.ones(3)),
    lambda: F.binary_cross_entropy_with_logits(torch.randn(3, 4), torch.ones(3, 4), pos_weight=torch.ones(3)),
    lambda: F.kl_div(torch.randn(3, 4), torch.randn(3, 5)),
    lambda: F.mse_loss(torch.randn(3), "targets"),  # type: ignore[arg-type]
]


def describe_raised(call: Callable[[], object]) -> list[str]:
    with pytest.raises(Exception) as caught, warnings.catch_warnings():
        warnings.simplefilter("ignore")
        call()
    frames = traceback.extract_tb(caught.value.__traceback__)[1:]
    return [repr(caught.value), *(f"{frame.filename}:{frame.lineno} {frame.name}" for frame in frames)]


@pytest.mark.parametrize("place", range(len(BAD)))
def test_an_error_of_the_loss_is_the_programs_own(start_watch: Callable[..., Any], place: int) -> None:
    """Class, message and every frame."""
    before = describe_raised(BAD[place])
    start_watch(flags=dict(LOSSES))
    assert describe_raised(BAD[place]) == before


def list_warnings() -> list[tuple[str, str, int]]:
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        F.mse_loss(torch.ones(3, 1), torch.ones(3))
        F.kl_div(torch.ones(3), torch.ones(3))
    return [(str(one.message), one.filename, one.lineno) for one in caught]


def test_a_warning_names_the_programs_line(start_watch: Callable[..., Any]) -> None:
    before = list_warnings()
    start_watch(flags=dict(LOSSES))
    assert list_warnings() == before and before[0][1] == __file__


def test_torch_jit_scripts_losses_before_while_and_after(start_watch: Callable[..., Any]) -> None:
    given = torch.randn(3, CLASSES), torch.tensor([0, 1, 2])
    expected = F.cross_entropy(*given)

    def scripted() -> Tensor:
        torch.jit._state._clear_class_state()
        found: Tensor = torch.jit.script(nn.CrossEntropyLoss())(*given)
        return found

    running = start_watch(flags=dict(LOSSES))
    assert torch.equal(scripted(), expected)
    running.monitor.detach()
    assert torch.equal(scripted(), expected)


def test_torch_jit_traces_losses(make_training: Callable[..., Training]) -> None:
    run = make_training()
    given = torch.randn(3, CLASSES), torch.tensor([0, 1, 2])
    with warnings.catch_warnings():
        warnings.simplefilter("error", torch.jit.TracerWarning)
        traced = torch.jit.trace(lambda x, y: F.cross_entropy(x, y), given)
    assert torch.equal(traced(*given), F.cross_entropy(*given))
    kinds = [node.kind() for node in traced.graph.nodes()]
    assert kinds[-1] == "aten::cross_entropy_loss" and set(kinds) <= {"prim::Constant", "aten::cross_entropy_loss"}
    assert not run.watch.failures


class Criterion(nn.Module):
    def forward(self, x: Tensor, y: Tensor) -> Tensor:
        return F.cross_entropy(x, y, label_smoothing=0.1) + F.kl_div(x, x.softmax(1), reduction="batchmean")


def trace_criterion(kind: str) -> list[str]:
    """What tracers make of a criterion."""
    given = torch.randn(3, CLASSES), torch.tensor([0, 1, 2])
    if kind == "symbolic_trace":
        traced = torch.fx.symbolic_trace(Criterion())
        assert pickle.loads(pickle.dumps(traced)).code == traced.code
        return [traced.code, str([node.target for node in traced.graph.nodes])]
    if kind == "make_fx":
        from torch.fx.experimental.proxy_tensor import make_fx

        return [make_fx(Criterion())(*given).code]
    strict = kind == "export-strict"
    return [str(node.target) for node in torch.export.export(Criterion(), given, strict=strict).graph.nodes]


@pytest.mark.parametrize("kind", ["symbolic_trace", "make_fx", "export", "export-strict"])
def test_tracers_see_the_same(start_watch: Callable[..., Any], kind: str) -> None:
    before = trace_criterion(kind)
    start_watch(flags=dict(LOSSES))
    assert trace_criterion(kind) == before


@pytest.mark.parametrize("transform", ["vmap", "grad", "jacrev", "functional_call"])
def test_transforms_compute_the_same(start_watch: Callable[..., Any], transform: str) -> None:
    x, y = torch.randn(3, 6, CLASSES), torch.randint(0, CLASSES, (3, 6))
    calls: dict[str, Callable[[], Tensor]] = {
        "vmap": lambda: torch.func.vmap(F.cross_entropy)(x, y),
        "grad": lambda: torch.func.grad(F.cross_entropy)(x[0], y[0]),
        "jacrev": lambda: torch.func.jacrev(lambda z: F.cross_entropy(z, y[0], reduction="none"))(x[0]),
        "functional_call": lambda: torch.func.functional_call(nn.CrossEntropyLoss(), {}, (x[0], y[0])),
    }
    before = calls[transform]()
    start_watch(flags=dict(LOSSES))
    assert torch.equal(calls[transform](), before)


@pytest.mark.parametrize("max_overhead", [50.0, 1e-6])
def test_a_mode_of_the_program_sees_its_own_calls_alone(
    make_training: Callable[..., Training], max_overhead: float
) -> None:
    class Noting(torch.overrides.TorchFunctionMode):
        def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            seen.append(func)
            return func(*args, **(kwargs or {}))

    def record_functions() -> list[object]:
        seen.clear()
        with Noting():
            F.cross_entropy(*given)
        return list(seen)

    seen: list[object] = []
    given = torch.randn(8, CLASSES), make_labels()
    before = record_functions()
    run = make_training(max_overhead=max_overhead)
    for _ in range(12):
        run.run_step(lambda y: F.cross_entropy(y, make_labels()))
    assert record_functions() == before and F.cross_entropy in before


def test_large_targets_are_not_kept_alive(make_training: Callable[..., Training]) -> None:
    run = make_training(max_overhead=1e-6)
    model = nn.Linear(1, 2)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    run.optimizer = optimizer
    for step in range(1, 12):
        target = torch.full((600_000,), -100 if step == 11 else 1)
        alive = weakref.ref(target)
        loss = F.cross_entropy(model(torch.ones(600_000, 1)), target)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        del target, loss
        assert alive() is None
    assert run.codes == [("TD-L004", 11)], "it is still there when its loss is sent backward"


class Marked(Tensor):
    """A subclass that notes which functions it is given."""

    seen: list[object] = []

    @classmethod
    def __torch_function__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        cls.seen.append(func)
        return super().__torch_function__(func, types, args, kwargs or {})


def test_a_tensor_subclass_sees_the_functions_that_it_knows(make_training: Callable[..., Training]) -> None:
    def record_functions() -> tuple[list[object], type]:
        Marked.seen = []
        found = F.cross_entropy(torch.ones(3, 4).as_subclass(Marked), torch.tensor([0, 1, 2]).as_subclass(Marked))
        return Marked.seen, type(found)

    before = record_functions()
    make_training()
    assert record_functions() == before and before == ([F.cross_entropy], Marked)


def test_training_is_the_same_to_the_bit(start_watch: Callable[..., Any]) -> None:
    def train() -> list[Tensor]:
        torch.manual_seed(3)
        model = nn.Linear(4, CLASSES)
        optimizer = torch.optim.Adam(model.parameters())
        for step in range(12):
            y = model(torch.randn(8, 4))
            target = torch.randint(0, CLASSES, (8,))
            target[: step % 8] = -100
            loss = F.cross_entropy(y, target, weight=torch.rand(CLASSES), label_smoothing=0.1)
            loss = loss + F.binary_cross_entropy_with_logits(y, y.detach().sigmoid(), pos_weight=torch.ones(CLASSES))
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
        return [*model.parameters(), torch.rand(3)]

    before = train()
    start_watch(flags=dict(LOSSES))
    assert all(map(torch.equal, train(), before))


def count_compiled(backend: str) -> tuple[dict[str, int], int, list[float]]:
    """Graphs, breaks, recompiles of a compiled step with losses of several kinds, and what it computes."""
    import torch._dynamo.utils as dynamo

    torch._dynamo.reset()
    dynamo.counters.clear()
    torch.manual_seed(0)
    model, criterion = nn.Linear(4, CLASSES), nn.CrossEntropyLoss(ignore_index=0)

    @torch.compile(backend=backend, fullgraph=True)
    def forward(x: Tensor, y: Tensor) -> Tensor:
        out = model(x)
        rows = F.one_hot(y, CLASSES).float()
        of_labels = F.binary_cross_entropy_with_logits(out, rows) + torch.binary_cross_entropy_with_logits(
            out, rows, None, None, 1
        )
        return criterion(out, y) + of_labels + F.mse_loss(out, rows) + torch.kl_div(out, rows, 1)

    losses = [forward(torch.ones(size, 4), make_labels(size)).item() for size in (8, 8, 8, 12, 12)]
    breaks = sum(dynamo.counters["graph_break"].values())
    return dict(dynamo.counters["stats"]) | dict(dynamo.counters["frames"]), breaks, losses


@pytest.mark.parametrize("backend", ["eager", "aot_eager"])
@pytest.mark.parametrize("loaded", [True, False])
def test_compiled_graphs_are_the_same(start_watch: Callable[..., Any], backend: str, loaded: bool) -> None:
    """loaded: torch.compile knew its functions before tdbg stood in front of them."""
    from torch._dynamo import trace_rules

    def reset() -> None:
        if not loaded:
            trace_rules.get_torch_obj_rule_map.cache_clear()

    before = count_compiled(backend)
    reset()
    running = start_watch(flags=dict(LOSSES))
    reset()
    assert count_compiled(backend) == before
    running.monitor.detach()
    assert count_compiled(backend) == before
    trace_rules.get_torch_obj_rule_map.cache_clear()


def test_flags_that_come_in_a_live_run_compile_nothing_again(start_watch: Callable[..., Any]) -> None:
    import torch._dynamo.utils as dynamo

    torch._dynamo.reset()
    dynamo.counters.clear()
    forward = torch.compile(lambda x, y: nn.CrossEntropyLoss()(x, y) + F.mse_loss(x, x), backend="aot_eager")
    given = torch.randn(8, CLASSES), make_labels()
    before = forward(*given)
    counts = dict(dynamo.counters["stats"]), dict(dynamo.counters["frames"])
    running = start_watch(flags=dict(LOSSES))
    assert torch.equal(forward(*given), before)
    running.monitor.detach()
    assert torch.equal(forward(*given), before)
    assert (dict(dynamo.counters["stats"]), dict(dynamo.counters["frames"])) == counts


def test_every_place_is_there_in_this_torch() -> None:
    assert len(FUNCTIONS) == len(PLACES["loss-computed"].paths)
