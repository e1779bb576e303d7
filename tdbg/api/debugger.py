"""`PyTorchDebugger`: looking at tensors, parameters and gradients by hand, with the figures of tdbg's own core."""

import contextlib
import math
import os
import threading
import time
import traceback
from collections import Counter, deque
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import asdict, dataclass, field
from typing import Any, ClassVar
from weakref import WeakSet

import torch
from torch import Tensor, nn

from tdbg.api.anomaly_mode import AnomalyMode
from tdbg.api.compiling import is_compiling
from tdbg.api.levels import DebugLevel
from tdbg.api.session import Session, current_session
from tdbg.api.tagged_lines import is_loader_worker, log_line
from tdbg.core.events import Anomaly, plain
from tdbg.core.flags import tag
from tdbg.core.guard import Guard
from tdbg.core.step_anomalies import EXPLOSION, VANISHING
from tdbg.core.tables import format_count, join_limited
from tdbg.runtime.tensors import Figures, compute_norms, count_bytes, iter_tensors, measure_tensors

HISTORY = 1000  # entries
RECORDED = 1000  # anomalies of a kind that each get an event of the run; of more every so many
TENSORS = 500  # tensors whose last figures are kept at level extreme,
TENSOR_HISTORY = 32  # and how many of each
ERROR_LINES = 60
FLAG_OF = {  # what was found -> the flag under whose tag the line stands
    "non-finite": "FORWARD",
    "explosion": "GRADIENTS",
    "vanishing": "GRADIENTS",
    "autograd": "AUTOGRAD_ANOMALY",
    "latents": "FORWARD",
}
GRAVE = ("non-finite", "autograd")
LOUD = 10  # the first so many of a kind are warnings, the others debug lines
_MADE: WeakSet["PyTorchDebugger"] = WeakSet()
_recorded: Counter[tuple[str, str]] = Counter()  # anomalies of all debuggers of this process, by sort and kind


@dataclass(frozen=True, slots=True)
class TensorInfo:
    """What one tensor holds.

    mean_value, std_value (with n - 1), min_value and max_value are those of the finite elements, of a complex
    tensor those of the magnitudes; None where there are none (empty, meta, all NaN) or level OFF looks at nothing.
    memory_usage: bytes on this rank. A DTensor is this rank's part, a sparse tensor what it stores.
    """

    name: str
    shape: tuple[int, ...]
    dtype: torch.dtype
    device: torch.device
    requires_grad: bool
    has_nan: bool
    has_inf: bool
    nan_count: int
    inf_count: int
    mean_value: float | None
    std_value: float | None
    min_value: float | None
    max_value: float | None
    memory_usage: int

    @classmethod
    def of(cls, name: str, tensor: Tensor, figures: Figures | None) -> "TensorInfo":
        """The tensor's own facts, with the figures that were measured."""
        known = figures or Figures(0)
        return cls(
            name=name,
            shape=tuple(tensor.shape),
            dtype=tensor.dtype,
            device=tensor.device,
            requires_grad=tensor.requires_grad,
            has_nan=known.nan > 0,
            has_inf=known.inf > 0,
            nan_count=known.nan,
            inf_count=known.inf,
            mean_value=known.mean,
            std_value=known.std,
            min_value=known.low,
            max_value=known.high,
            memory_usage=count_bytes(tensor),
        )

    @property
    def finite(self) -> bool:
        """True if no element that was looked at is NaN or Inf."""
        return not (self.has_nan or self.has_inf)

    def as_dict(self) -> dict[str, Any]:
        """Plain data, as JSON can carry it."""
        found = asdict(self)
        found["shape"] = list(self.shape)
        found["dtype"] = str(self.dtype).removeprefix("torch.")
        found["device"] = str(self.device)
        return found

    def problem(self) -> str:
        """``3 NaN and 1 Inf in body.0.weight``; empty if all is finite."""
        parts = [f"{count:,} {word}" for count, word in ((self.nan_count, "NaN"), (self.inf_count, "Inf")) if count]
        return f"{' and '.join(parts)} in {self.name}" if parts else ""


@dataclass(frozen=True, slots=True)
class Validation:
    """The outcome of a check; true as a condition if nothing is wrong."""

    checked: int  # tensors looked at
    problems: dict[str, TensorInfo] = field(default_factory=dict)  # by name, those that hold NaN or Inf

    @property
    def valid(self) -> bool:
        """True if every tensor looked at is finite."""
        return not self.problems

    def __bool__(self) -> bool:
        return self.valid

    def __str__(self) -> str:
        if self.valid:
            return f"{format_count(self.checked, 'tensor')}, all finite"
        shown = "; ".join(info.problem() for info in list(self.problems.values())[:4])
        return f"{len(self.problems)} of {format_count(self.checked, 'tensor', 'is')} not finite: {shown}"


class PyTorchDebugger:
    """Looks at tensors, parameters and gradients when it is asked to.

    level: OFF looks at nothing: every method returns at once, what it returns is empty. Any other level measures
    what a method is named for; EXTREME keeps the last figures of each tensor (``tensor_history``), and errors
    with their traceback. What is found wrong is an entry of ``debug_history`` (plain data, the last 1,000), and
    a line in the rank's debug log, or of the logger ``tdbg`` outside of a run.
    All figures of a call come with one copy from each device; nothing is changed, no random number is drawn, no
    collective issued. Methods may be called from several threads.
    Cost: see each method; ``get_debug_summary()["spent_ms"]`` tells the sum. It is the program's own call, so it
    does not count in the budget of `tdbg run`.
    """

    _sort: ClassVar[str] = "general"  # the part of the run's summary that its anomalies count in

    def __init__(self, level: DebugLevel | str = DebugLevel.BASIC) -> None:
        self.level = DebugLevel.of(level)
        self.debug_history: deque[dict[str, Any]] = deque(maxlen=HISTORY)
        self.tensor_history: dict[str, deque[TensorInfo]] = {}
        self.session: Session | None = None  # the watch of `debug_context`
        self._lock = threading.RLock()  # a signal's handler may look at tensors too
        self._anomalies: Counter[str] = Counter()
        self._looked_at = 0
        self._spent_s = 0.0
        _MADE.add(self)

    # one tensor, many tensors

    def analyze_tensor(self, tensor: Tensor, name: str = "tensor") -> TensorInfo:
        """The exact figures of one tensor of any dtype, layout and device.

        One that is not finite is remembered, unless it is so by -inf alone, as a mask is on purpose.
        Raises TypeError for what is no tensor. Cost: about 50 us and three passes, one copy from the device.
        """
        if not isinstance(tensor, Tensor):
            raise TypeError(f"{name} is a {type(tensor).__name__}, not a tensor")
        info, _ = self.judge_tensor(tensor, name)
        return info

    def problem_of(self, tensor: Tensor, name: str = "tensor") -> str:
        """What is wrong with a tensor, in words; empty if nothing is, or if it is a mask. As `analyze_tensor` else."""
        return self.judge_tensor(tensor, name)[1]

    def judge_tensor(self, tensor: Tensor, name: str = "tensor") -> tuple[TensorInfo, str]:
        """What `analyze_tensor` and `problem_of` give, with one look."""
        ((info, figures),) = self._measure_tensors({name: tensor})
        return info, info.problem() if self._record_if_bad(info, figures, masks=True) else ""

    def analyze_model_parameters(self, model: nn.Module) -> dict[str, TensorInfo]:
        """The exact figures of every parameter, by name; shared ones once. Those that are not finite are remembered.

        Cost: three passes over the parameters, one copy from each device for all of them.
        """
        found = self._measure_tensors(dict(parameters_of(model)))
        for info, figures in found:
            self._record_if_bad(info, figures)
        return {info.name: info for info, _ in found}

    def _measure_tensors(self, found: Mapping[str, Tensor]) -> list[tuple[TensorInfo, Figures | None]]:
        """The figures of each tensor; None at level OFF and where there is nothing to read."""
        if self.level is DebugLevel.OFF:
            return [(TensorInfo.of(name, tensor, None), None) for name, tensor in found.items()]
        with self._time_call():
            figures = measure_tensors(list(found.values()))
            pairs = zip(found.items(), figures, strict=True)
            result = [(TensorInfo.of(name, tensor, row), row) for (name, tensor), row in pairs]
        with self._lock:
            self._looked_at += len(result)
        if self.level is DebugLevel.EXTREME:
            self._keep_history(info for info, _ in result)
        return result

    def _record_if_bad(self, info: TensorInfo, figures: Figures | None, *, masks: bool = False) -> bool:
        """True, and it is remembered, if a tensor is not finite; with ``masks`` one with -inf alone is let be."""
        if info.finite or (masks and figures is not None and figures.only_minus_inf):
            return False
        self.remember("non-finite", info.problem(), tensor=info.as_dict())
        return True

    def _keep_history(self, found: Iterable[TensorInfo]) -> None:
        with self._lock:
            for info in found:
                if info.name in self.tensor_history or len(self.tensor_history) < TENSORS:
                    self.tensor_history.setdefault(info.name, deque(maxlen=TENSOR_HISTORY)).append(info)

    # gradients

    def analyze_gradients(self, model: nn.Module) -> dict[str, Any]:
        """The L2 norm of every gradient, and how many are not finite.

        Returns total_params, params_with_grad, params_with_nan_grad, params_with_inf_grad (numbers of parameters),
        total_norm (over all gradients; None without any) and norms ({name: norm}, those with a gradient). Gradients
        are taken as they are: scaled ones (GradScaler) give scaled norms, shards (FSDP) those of this rank.
        Cost: one pass, one copy; a second look at those whose norm is not finite.
        """
        parameters = dict(parameters_of(model))
        grads = {name: p.grad for name, p in parameters.items() if p.grad is not None}
        empty: dict[str, object] = {
            "params_with_nan_grad": 0,
            "params_with_inf_grad": 0,
            "total_norm": None,
            "norms": {},
        }
        result: dict[str, object] = {"total_params": len(parameters), "params_with_grad": len(grads), **empty}
        if self.level is not DebugLevel.OFF and grads:
            with self._time_call():
                result.update(self._norms_of(grads))
        return result

    def _norms_of(self, grads: Mapping[str, Tensor], values: list[float] | None = None) -> dict[str, object]:
        """values: the norms, where they were read already."""
        found = dict(
            zip(grads, compute_norms(list(grads.values())).tolist() if values is None else values, strict=True)
        )
        bad = {name: grads[name] for name, norm in found.items() if not norm < float("inf")}
        exact = dict(zip(bad, measure_tensors(list(bad.values())), strict=True))
        nans = [name for name, row in exact.items() if row is not None and row.nan]
        infs = [name for name, row in exact.items() if row is not None and row.inf]
        for name, row in exact.items():
            if row is not None and row.finite and row.norm is not None:
                found[name] = row.norm  # float32 overflowed, the gradient did not
            elif row is not None:
                info = TensorInfo.of(f"gradient of {name}", grads[name], row)
                if not info.finite:
                    self.remember("non-finite", info.problem(), flag="GRADIENTS", tensor=info.as_dict())
        total = math.hypot(*found.values())
        return {
            "params_with_nan_grad": len(nans),
            "params_with_inf_grad": len(infs),
            "total_norm": total,
            "norms": found,
        }

    def check_gradient_explosion(self, model: nn.Module, threshold: float = EXPLOSION) -> list[str]:
        """Names of the parameters whose gradient's L2 norm is above ``threshold``, or not finite.

        Source: Pascanu et al. 2013. Cost: as `analyze_gradients`.
        """
        found = self.exploding(self.analyze_gradients(model)["norms"], threshold)
        if found:
            self.remember("explosion", f"gradient norm above {threshold:g}: {join_limited(found, 4)}", names=found[:50])
        return found

    def check_gradient_vanishing(self, model: nn.Module, threshold: float = VANISHING) -> list[str]:
        """Names of the parameters whose gradient's L2 norm is below ``threshold``, zero too; None is no gradient.

        Cost: as `analyze_gradients`.
        """
        found = self.vanishing(self.analyze_gradients(model)["norms"], threshold)
        if found:
            self.remember("vanishing", f"gradient norm below {threshold:g}: {join_limited(found, 4)}", names=found[:50])
        return found

    @staticmethod
    def exploding(found: Mapping[str, float], threshold: float = EXPLOSION) -> list[str]:
        """The names whose norm is above the threshold, or not finite."""
        return [name for name, norm in found.items() if not norm <= threshold]

    @staticmethod
    def vanishing(found: Mapping[str, float], threshold: float = VANISHING) -> list[str]:
        """The names whose norm is below the threshold."""
        return [name for name, norm in found.items() if norm < threshold]

    @contextlib.contextmanager
    def autograd_anomaly_detection(self) -> Iterator["PyTorchDebugger"]:
        """torch's anomaly mode inside the ``with``: an error in backward names the line of the forward pass.

        A NaN in backward raises RuntimeError there; it passes, and is an entry of ``debug_history``. The mode is as
        before on exit. Nothing at level OFF. Cost: 1.3-1.5x of a step.
        """
        if self.level is DebugLevel.OFF:
            yield self
            return
        mode = AnomalyMode()
        mode.enable()
        try:
            yield self
        except RuntimeError as error:
            if "returned nan values" in str(error):
                self.remember("autograd", str(error).splitlines()[0])
            raise
        finally:
            mode.restore()

    # memory, validation

    def profile_memory_usage(self, model: nn.Module) -> dict[str, int]:
        """Bytes of parameters, gradients, buffers, and their total, on this rank; of a sharded model its shards.

        Optimizer state and activations are not the model's: flag MEMORY of a run tells them. Cost: no copy, no pass.
        """
        if self.level is DebugLevel.OFF:
            return dict.fromkeys(("parameters", "gradients", "buffers", "total"), 0)
        parameters = [parameter for _, parameter in parameters_of(model)]
        found = {
            "parameters": sum(map(count_bytes, parameters)),
            "gradients": sum(count_bytes(p.grad) for p in parameters if p.grad is not None),
            "buffers": sum(map(count_bytes, model.buffers())),
        }
        return {**found, "total": sum(found.values())}

    def validate_parameters(self, model: nn.Module) -> Validation:
        """Whether every parameter and every buffer is finite; of a buffer -inf is taken for a mask.

        Cost: as `analyze_model_parameters`.
        """
        parameters, buffers = dict(parameters_of(model)), dict(model.named_buffers())
        found = self._measure_tensors({**buffers, **parameters})
        bad = [info for info, row in found if self._record_if_bad(info, row, masks=info.name not in parameters)]
        return Validation(0 if self.level is DebugLevel.OFF else len(found), {info.name: info for info in bad})

    def validate_outputs(self, outputs: object, name: str = "output") -> Validation:
        """Whether every tensor in what a model returned is finite.

        outputs: a tensor, or tuples, lists, mappings and dataclasses of them (the first 64 of each, six deep).
        A tensor whose only bad values are -inf is taken for a mask. Cost: as `analyze_tensor`, one copy for all.
        """
        if isinstance(outputs, Tensor):
            named = {name: outputs}
        else:
            named = {f"{name}.{path}": tensor for path, tensor in iter_tensors(outputs)}
        found = self._measure_tensors(named)
        bad = [info for info, row in found if self._record_if_bad(info, row, masks=True)]
        return Validation(0 if self.level is DebugLevel.OFF else len(found), {info.name: info for info in bad})

    # what was found

    def remember(self, kind: str, text: str, *, flag: str = "", **values: object) -> None:
        """Add an entry to the history, a line to the log under the tag of the flag or of the kind's own, and an event.

        The event is one of the run (`tdbg run`), so that `tdbg report` and the viewer count it. Cost: 40 us.
        """
        with self._lock:
            self._anomalies[kind] += 1
            count = self._anomalies[kind]
            self.debug_history.append({"timestamp": time.time(), "kind": kind, "text": text, **plain(values)})
        mark = tag(flag or FLAG_OF.get(kind, "TRAINING_LOOP"), kind.upper().replace("-", "_"))
        self._log_anomaly(mark, text, "W" if kind in GRAVE and count <= LOUD else "D")
        _record_anomaly(self._sort, kind, text)

    def _log_anomaly(self, mark: str, text: str, level: str) -> None:
        log_line(mark, text, level)

    def remember_error(self, error: BaseException) -> None:
        """Add an exception; at level EXTREME with its traceback and the last step records."""
        if self.level is DebugLevel.OFF:
            return
        values: dict[str, Any] = {"exception": type(error).__name__}
        if self.level is DebugLevel.EXTREME:
            values["lines"] = "".join(traceback.format_exception(error)).splitlines()[-ERROR_LINES:]
            values["steps"] = self.session.monitor.recorder.list_rows() if self.session is not None else []
        self.remember("exception", f"{type(error).__name__}: {error}"[:2000], **values)

    def findings(self) -> list[dict[str, Any]]:
        """What the rules of `tdbg report` conclude from the watch of `debug_context` so far, worst first.

        Of a run: from what this rank wrote so far. Empty without a watch. Raises ImportError where msgspec is
        missing (a rank's environment need not have it). Cost: 50 us an event.
        """
        from tdbg.api.findings import findings_of

        return findings_of(self.session) if self.session is not None else []

    def _known_findings(self) -> list[dict[str, object]]:
        try:
            return self.findings()
        except ImportError:  # a rank's environment need not have msgspec
            return []

    def get_debug_summary(self) -> dict[str, Any]:
        """total_anomalies, debug_history_length, anomalies by kind, tensors_analyzed, level, last_anomaly, spent_ms.

        Of a `debug_context` the findings of its watch count too, by code, but for those of severity info. Cost: that
        of `findings` there.
        """
        found = [finding for finding in self._known_findings() if finding["severity"] != "info"]
        with self._lock:
            anomalies = self._anomalies + Counter(finding["code"] for finding in found)
            last = self.debug_history[-1] if self.debug_history else (found[-1] if found else None)
            return {
                "total_anomalies": anomalies.total(),
                "debug_history_length": len(self.debug_history),
                "anomalies": dict(anomalies),
                "tensors_analyzed": self._looked_at,
                "level": self.level.value,
                "last_anomaly": dict(last) if last is not None else None,
                "spent_ms": round(self._spent_s * 1e3, 3),
            }

    def clear_debug_history(self) -> None:
        """Forget every entry and every count."""
        with self._lock:
            self.debug_history.clear()
            self.tensor_history.clear()
            self._anomalies.clear()
            self._looked_at = 0

    @contextlib.contextmanager
    def _time_call(self) -> Iterator[None]:
        begun = time.perf_counter()
        try:
            yield
        finally:
            spent_s = time.perf_counter() - begun
            with self._lock:
                self._spent_s += spent_s


def _begin_anew() -> None:
    """In a forked child: another thread of the parent may have held a lock, and the counts are the parent's."""
    _recorded.clear()
    for made in _MADE:
        made._lock = threading.RLock()


os.register_at_fork(after_in_child=lambda: Guard("debugger").call_guarded(_begin_anew))


def parameters_of(model: nn.Module) -> Iterator[tuple[str, Tensor]]:
    """Named parameters as the user knows them: without the parts that wrappers add."""
    from tdbg.runtime.root_modules import clean_path, unwrap_module

    for name, parameter in unwrap_module(model).named_parameters():
        yield clean_path(name), parameter


def _record_anomaly(sort: str, kind: str, text: str) -> None:
    """Write an anomaly to the events of the run, if there is one."""
    session = current_session()
    if session is None or session.agent is None or is_compiling() or is_loader_worker():
        return
    _recorded[sort, kind] += 1
    count = _recorded[sort, kind]
    if count <= RECORDED or count % RECORDED == 0:
        monitor = session.monitor
        event = Anomaly(
            t=time.time(), step=monitor.user_facing_step, debugger=sort, kind=kind, text=text[:500], count=count
        )
        monitor.when_rank(lambda: monitor.emit(event))
