"""`AsyncTrainingLogger`: progress, warnings and checks for a training that runs in an asyncio program."""

import asyncio
import contextlib
import logging
import math
import time
import traceback
from collections import deque
from collections.abc import Callable, Iterator, Mapping
from enum import StrEnum
from types import TracebackType
from typing import Any, TypeVar

import torch
from torch import Tensor, nn

from tdbg.api.anomaly_mode import AnomalyMode
from tdbg.api.debugger import HISTORY, PyTorchDebugger
from tdbg.api.levels import DebugLevel
from tdbg.api.session import current_session
from tdbg.core.events import plain
from tdbg.core.tables import format_count, join_limited

T = TypeVar("T")
LOG = logging.getLogger("tdbg.training")


class TrainingPhase(StrEnum):
    """What a training is doing: the phase that a warning or an error belongs to."""

    INITIALIZATION = "initialization"
    DATA_LOADING = "data_loading"
    TRAINING = "training"
    VALIDATION = "validation"
    CHECKPOINTING = "checkpointing"
    COMPLETION = "completion"


class Anomalies(dict[str, Any]):
    """What a check found, as a mapping. ``problems``: what is wrong with it, in words; empty if nothing is."""

    def __init__(self, values: Mapping[str, object], problems: list[str]) -> None:
        super().__init__(values, problems=problems)

    @property
    def problems(self) -> list[str]:
        """What is wrong, in words."""
        found: list[str] = self["problems"]
        return found


class _Quiet(PyTorchDebugger):
    """Leaves the talking to the logger above it, but for the rank's own log."""

    def _log_anomaly(self, mark: str, text: str, level: str) -> None:
        session = current_session()
        if session is not None and session.agent is not None:
            super()._log_anomaly(mark, text, level)


class AsyncTrainingLogger:
    """Logs a training from coroutines; what reads tensors runs in a thread, so that the event loop goes on.

    user_id, model_name: stand in every record, as given. enable_autograd_debug: torch's anomaly mode from
    `start_training` to `complete_training` (1.3-1.5x a step).
    Records go to the logger ``tdbg.training`` (INFO, WARNING, ERROR) with ``user_id``, ``model_name`` and ``phase`` as
    attributes, and the last 1,000 stay in ``records`` as plain data. In a run an error that is logged becomes
    part of the run as well. One loop may await several methods at once; a tensor that is being checked must not be
    written to meanwhile: await the check first.
    """

    def __init__(
        self, user_id: str | None = None, model_name: str | None = None, enable_autograd_debug: bool = False
    ) -> None:
        self.user_id = user_id
        self.model_name = model_name
        self.enable_autograd_debug = enable_autograd_debug
        self.phase = TrainingPhase.INITIALIZATION
        self.records: deque[dict[str, Any]] = deque(maxlen=HISTORY)
        self.debugger: PyTorchDebugger = _Quiet(DebugLevel.BASIC)
        self._mode = AnomalyMode()
        self._counts = {"warnings": 0, "errors": 0, "anomalies": 0}
        self._total = 0, 0
        self._begun_at = 0.0
        self._progress: dict[str, object] = {}

    # the course of a training

    def start_training(self, total_epochs: int, total_steps: int) -> None:
        """The training begins. total_steps: of all epochs together; 0 where it is not known. Returns at once."""
        self._total, self._begun_at, self._progress = (total_epochs, total_steps), time.monotonic(), {}
        self.phase = TrainingPhase.TRAINING
        if self.enable_autograd_debug:
            self._mode.enable()
        self._log_record(
            logging.INFO,
            f"training begins: {format_count(total_epochs, 'epoch')}, {format_count(total_steps, 'step')}",
            self.phase,
        )

    def complete_training(self) -> dict[str, Any]:
        """The training is over: anomaly mode goes back, and the summary is logged and returned."""
        self._mode.restore()
        self.phase = TrainingPhase.COMPLETION
        summary = self.get_training_summary()
        warnings, errors = format_count(summary["warnings"], "warning"), format_count(summary["errors"], "error")
        text = f"training ends at step {summary['step']}: {warnings}, {errors}"
        self._log_record(logging.INFO, text, self.phase)
        return summary

    async def __aenter__(self) -> "AsyncTrainingLogger":
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if isinstance(error, Exception):
            self.log_error(error, self.phase, {})
        self.complete_training()

    async def update_progress_async(
        self, epoch: int, step: int, loss: Tensor | float, learning_rate: float
    ) -> dict[str, Any]:
        """How far it is: returns epoch, step, loss, learning_rate, percent, seconds and eta_s (None where unknown).

        loss: a number, or a tensor of one element on any device, which is read in a thread. One that is not finite is
        logged as a warning. Raises ValueError for a loss of several elements.
        """
        value = await _in_thread(lambda: _read_loss(loss), loss) if isinstance(loss, Tensor) else float(loss)
        total = self._total[1]
        seconds = time.monotonic() - self._begun_at if self._begun_at else 0.0
        self.phase = TrainingPhase.TRAINING
        self._progress = {
            "epoch": epoch,
            "step": step,
            "loss": value,
            "learning_rate": float(learning_rate),
            "percent": round(100.0 * step / total, 2) if total else None,
            "seconds": round(seconds, 3),
            "eta_s": round(seconds * (total - step) / step, 3) if total and step and self._begun_at else None,
        }
        share = f" ({self._progress['percent']:g} %)" if total else ""
        self._log_record(
            logging.INFO, f"epoch {epoch}, step {step}{share}: loss {value:.6g}, lr {learning_rate:g}", self.phase
        )
        if not math.isfinite(value):
            self._counts["anomalies"] += 1
            self.log_warning(f"the loss is {value} at step {step}", phase=TrainingPhase.TRAINING)
        return dict(self._progress)

    # checks

    async def check_tensor_anomalies_async(self, tensor: Tensor, name: str = "tensor") -> Anomalies:
        """The fields of a `TensorInfo` (has_nan, has_inf, nan_count, ...), finite, and problems: texts.

        Each problem is logged as a warning. A mask, which holds -inf alone, has has_inf and no problem.
        """
        info, problem = await _in_thread(lambda: self.debugger.judge_tensor(tensor, name), tensor)
        return Anomalies({**info.as_dict(), "finite": info.finite}, self._log_problems([problem] if problem else []))

    async def check_gradient_anomalies_async(self, model: nn.Module) -> Anomalies:
        """What `analyze_gradients` gives (params_with_nan_grad, params_with_inf_grad, total_norm, norms, ...), and more.

        has_nan, has_inf; non_finite, exploding and vanishing: names of parameters whose gradient's norm is NaN or Inf,
        above 10, below 1e-6; problems: texts, each of which is logged as a warning. Call it between backward and the
        optimizer's step, and await it before that.
        """
        first = next((p for p in model.parameters() if p.grad is not None), None)
        found = await _in_thread(lambda: self.debugger.analyze_gradients(model), first)
        norms: dict[str, float] = found["norms"]
        bad = [name for name, norm in norms.items() if not math.isfinite(norm)]
        large = [name for name in self.debugger.exploding(norms) if name not in bad]
        small = self.debugger.vanishing(norms)
        texts = []
        for names, what in ((bad, "not finite"), (large, "above 10"), (small, "below 1e-06")):
            if names:
                texts.append(f"gradient norm {what}: {join_limited(names, 1)}")
        values = {
            "has_nan": found["params_with_nan_grad"] > 0,
            "has_inf": found["params_with_inf_grad"] > 0,
            "non_finite": bad,
            "exploding": large,
            "vanishing": small,
        }
        return Anomalies({**found, **values}, self._log_problems(texts))

    def _log_problems(self, texts: list[str]) -> list[str]:
        for text in texts:
            self._counts["anomalies"] += 1
            self.log_warning(text, phase=self.phase)
        return texts

    # messages

    def log_warning(self, msg: str, phase: TrainingPhase | str = TrainingPhase.TRAINING) -> None:
        """A warning, with the phase it belongs to. Returns at once (but for the handlers of the program's logging)."""
        self._counts["warnings"] += 1
        self._log_record(logging.WARNING, msg, _parse_phase(phase))

    def log_error(
        self,
        exc: BaseException,
        phase: TrainingPhase | str = TrainingPhase.TRAINING,
        context: dict[str, object] | None = None,
    ) -> None:
        """An exception, with the phase it came in and whatever else is worth knowing; it is not raised again.

        context: kept as plain data. The record holds the exception's class, text and traceback.
        """
        self._counts["errors"] += 1
        lines = "".join(traceback.format_exception(exc)).splitlines()[-60:]
        about = {"exception": type(exc).__name__, "lines": lines, "context": plain(context or {})}
        self._log_record(logging.ERROR, f"{type(exc).__name__}: {exc}", _parse_phase(phase), error=exc, **about)

    def get_training_summary(self) -> dict[str, Any]:
        """step, epoch, loss, learning_rate, percent, seconds, phase, and the numbers of warnings, errors, anomalies."""
        return {
            "user_id": self.user_id,
            "model_name": self.model_name,
            "phase": self.phase.value,
            "total_epochs": self._total[0],
            "total_steps": self._total[1],
            "epoch": self._progress.get("epoch"),
            "step": self._progress.get("step", 0),
            "loss": self._progress.get("loss"),
            "learning_rate": self._progress.get("learning_rate"),
            "percent": self._progress.get("percent"),
            "seconds": round(time.monotonic() - self._begun_at, 3) if self._begun_at else 0.0,
            **self._counts,
        }

    def _log_record(
        self, level: int, text: str, phase: TrainingPhase, *, error: BaseException | None = None, **about: object
    ) -> None:
        who = {"user_id": self.user_id, "model_name": self.model_name, "phase": phase.value}
        row = {"timestamp": time.time(), "level": logging.getLevelName(level), "text": text, **who, **about}
        self.records.append(row)
        LOG.log(level, "[%s] %s", phase.value, text, exc_info=error, extra=who)


def _parse_phase(phase: TrainingPhase | str) -> TrainingPhase:
    """The phase of that name; another word is training, rather than an error inside an error handler."""
    try:
        return TrainingPhase(str(phase).lower())
    except ValueError:
        return TrainingPhase.TRAINING


def _read_loss(loss: Tensor) -> float:
    if loss.numel() != 1:
        raise ValueError(f"the loss has {format_count(loss.numel(), 'element')}: pass the one backward() ran on")
    return float(loss.detach())


async def _in_thread(work: Callable[[], T], tensor: Tensor | None) -> T:
    """Do it in a thread, on the stream that the caller's kernels run on."""
    stream = torch.cuda.current_stream(tensor.device) if tensor is not None and tensor.is_cuda else None

    def run_work() -> T:
        with _use_stream(stream), torch.no_grad():
            return work()

    return await asyncio.to_thread(run_work)


@contextlib.contextmanager
def _use_stream(stream: Any) -> Iterator[None]:
    if stream is None:
        yield
        return
    with torch.cuda.stream(stream):
        yield
