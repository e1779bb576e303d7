"""OPTIMIZER: what the optimizer holds, what it leaves out, and how far it moves the weights."""

import time
import weakref
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from tdbg.core.observations.optimizer import (
    EmptyUpdates,
    ForgottenModel,
    ParameterCoverage,
    ParameterGroups,
    UpdateSizes,
)
from tdbg.probes import PROBES, Probe
from tdbg.probes.optimizer.coverage import CoverageWatch, Holders
from tdbg.probes.optimizer.empty_updates import EmptyUpdateWatch
from tdbg.probes.optimizer.update_sizes import MAX_NAMES, UpdateSizeWatch, name_parameter
from tdbg.runtime import tensors
from tdbg.runtime.separate_models import SeparateModels, separate_history_of

if TYPE_CHECKING:
    from torch.optim import Optimizer

    from tdbg.runtime.monitor import Monitor
    from tdbg.runtime.rerun import Call

GROUP_NAMES = 3
MAX_GROUPS = 8
MAX_OPTIMIZERS = 8
LATER_LOOKS = 6  # in each look at doubling intervals: enough for whatever is told of coverage and of empty updates
COVERAGE_LOOKS = 16  # so many first looks ask what is held by whom, and then one in so many
RATES = (
    "lr",
    "betas",
    "momentum",
    "initial_lr",
    "max_lr",
    "min_lr",
    "max_momentum",
    "base_momentum",
)  # schedules move them


@PROBES.add
class OptimizerReport(Probe):
    """Groups and hyperparameters, parameters left out or updated twice, and the size of each update.

    Reads:  ``param_groups``; before and after an update a sample of 64 elements of at most 64 weights and of their
            gradients; the trained roots' parameters, to see which no optimizer holds, and those in plain lists,
            tuples, sets and dicts of their modules; which other models are called with gradients enabled.
    Emits:  GROUPS once an optimizer and when a hyperparameter other than the rate changes; COVERAGE when
            parameters are left out or held twice; SEPARATE once for each other model whose gradients nobody uses; EMPTY
            once, when it updates nothing of the model; else one line and one observation a looked-at step.
    Cost:   some 15 us a sampled parameter on the steps that are looked at; a few microseconds on others.
    Limits: what an optimizer that is none of torch's subclasses updates counts as left out. Parameters whose weights
            are neither contiguous nor dense, and complex ones, are not sampled. Of sharded parameters (FSDP) the
            part of this rank.
    Source: the size of an update against the weight, |dw|/|w|, as in the stochastic-gradient notes of CS231n;
            around 1e-3 is usual.
    """

    name = "optimizer"
    levels = ("extreme",)
    every = 8
    comes_back = LATER_LOOKS
    observations = (UpdateSizes, ParameterGroups, ParameterCoverage, ForgottenModel, EmptyUpdates)

    def __init__(self, monitor: "Monitor") -> None:
        super().__init__(monitor)
        self._reset_state()

    def _reset_state(self) -> None:
        self._reported_values: weakref.WeakKeyDictionary[Optimizer, dict[str, object]] = weakref.WeakKeyDictionary()
        self._holders = Holders(self.monitor)
        self._separate = SeparateModels(separate_history_of(self.monitor))
        self._coverage = CoverageWatch(self, self._holders, self._separate)
        self._empty = EmptyUpdateWatch(self, self._holders, self._separate)
        self._sizes = UpdateSizeWatch(self)
        self._backwards = 0
        self._backward_step = 0  # the step of the last of them
        # of each optimizer, the backwards at its last update
        self._seen_backwards: weakref.WeakKeyDictionary[Optimizer, int] = weakref.WeakKeyDictionary()
        self._spent_s = 0.0

    def attach(self) -> None:
        self.patch_at("module-loaded", after=self._module_loaded)

    def forked(self) -> None:
        self._reset_state()

    def detach(self) -> None:
        self._sizes.forget()
        super().detach()

    # when

    def _module_loaded(self, seconds: float, args: tuple[Any, ...], kwargs: dict[str, object], result: object) -> None:
        separate_history_of(self.monitor).add_trained(args[0].parameters())

    def call_begins(self, module: nn.Module, call: "Call") -> None:
        if torch.is_grad_enabled() and (self._sizes.looks < COVERAGE_LOOKS or self.monitor.inspection.is_repeat_open):
            self._separate.add_call(module)

    def update_begins(self, optimizer: "Optimizer") -> None:
        self._holders.note_update(optimizer)
        if optimizer not in self._reported_values and len(self._reported_values) < MAX_OPTIMIZERS:
            self._report_groups(optimizer)
        if not self.monitor.is_main(optimizer):
            return
        self._sizes.moved = None  # of an update that raised
        if not self.should_sample():
            return
        begun, looks = time.perf_counter(), self._sizes.looks
        self._notice_change(optimizer)
        is_new = looks < COVERAGE_LOOKS or self.monitor.inspection.is_repeat_open
        if is_new or looks % COVERAGE_LOOKS == 0:
            self._coverage.check_coverage(looks, is_idle=self._empty.is_idle)
        self._sizes.sample_weights(optimizer)
        self._spent_s = time.perf_counter() - begun

    def backward_begins(self, loss: Tensor | None) -> None:
        self._backwards += 1
        self._backward_step = self.monitor.step + 1

    def backward_ended(self) -> None:
        self._empty.note_backward()

    def after_step(self, optimizer: "Optimizer") -> None:
        has_gradients = self._backwards > self._seen_backwards.get(optimizer, 0)
        self._seen_backwards[optimizer] = self._backwards
        if not self.monitor.is_main(optimizer):
            if has_gradients and self._sizes.looks < COVERAGE_LOOKS:
                self._empty.follow_update(optimizer, self._backward_step)
            return
        moved, self._sizes.moved = self._sizes.moved, None
        self._separate.end_step()
        if moved is None:
            return
        begun = time.perf_counter()
        if has_gradients:
            self._empty.follow_update(optimizer, self._backward_step, is_sampled=bool(moved.names))
        self._sizes.compare_sample(moved, optimizer)
        self.monitor.budget.record_cost(self.name, self._spent_s + time.perf_counter() - begun, extra=True)

    # groups

    def _report_groups(self, optimizer: "Optimizer", changed: Iterable[str] = ()) -> None:
        self._reported_values[optimizer] = _collect_hyperparameters(optimizer)
        parameters = [p for group in optimizer.param_groups for p in group["params"]]
        groups = [
            _describe_group(group) | self._summarize_trainable(group) for group in optimizer.param_groups[:MAX_GROUPS]
        ]
        seen = ParameterGroups(
            optimizer=type(optimizer).__name__,
            groups=groups,
            group_count=len(optimizer.param_groups),
            parameters=len(parameters),
            elements=sum(p.numel() for p in parameters),
            frozen=sum(not p.requires_grad for p in parameters),
            decayed_vectors=sum(
                p.ndim <= 1 for group in optimizer.param_groups if group.get("weight_decay") for p in group["params"]
            ),
            changed=list(changed) or None,
        )
        self.emit(seen)

    def _summarize_trainable(self, group: dict[str, Any]) -> dict[str, object]:
        """How many parameters of a group want a gradient, and the names of the first ones."""
        trained = [p for p in group["params"] if p.requires_grad]
        return {"trainable": len(trained), "names": [name_parameter(self.monitor, p) for p in trained[:GROUP_NAMES]]}

    def _notice_change(self, optimizer: "Optimizer") -> None:
        before, now = self._reported_values.get(optimizer), _collect_hyperparameters(optimizer)
        if before is not None and before != now:
            changed = [name for name in {**before, **now} if before.get(name) != now.get(name)]
            self._report_groups(optimizer, sorted(changed)[:MAX_NAMES])


def _simplify_value(value: object) -> object:
    """A hyperparameter as data that can be compared and written; None where it is neither."""
    if isinstance(value, Tensor):
        return float(value) if tensors.on_host(value) and value.numel() == 1 else None
    if isinstance(value, tuple | list) and len(value) <= 4:
        return [_simplify_value(item) for item in value]
    return value if isinstance(value, bool | int | float | str) else None


def _describe_group(group: dict[str, Any]) -> dict[str, object]:
    """One group: its hyperparameters, and how much it holds."""
    found = {
        str(name): _simplify_value(value) for name, value in group.items() if name not in ("params", "param_names")
    }
    held = group["params"]
    return {name: value for name, value in found.items() if value is not None} | {
        "parameters": len(held),
        "elements": sum(p.numel() for p in held),
    }


def _collect_hyperparameters(optimizer: "Optimizer") -> dict[str, object]:
    """What a change of is worth telling: all but the rates, which schedules move in every step."""
    found: dict[str, object] = {}
    for index, group in enumerate(optimizer.param_groups[:MAX_GROUPS]):
        for name, value in group.items():
            if name not in RATES and name not in ("params", "param_names"):
                found[f"{name}[{index}]"] = _simplify_value(value)
        found[f"parameters[{index}]"] = len(group["params"])
        found[f"trainable[{index}]"] = sum(p.requires_grad for p in group["params"])
    return found
