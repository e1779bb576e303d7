"""`tdbg.metric`: a number the program measures itself, kept with the run."""

import sys
import time
from typing import TYPE_CHECKING, Any

from tdbg.api.compiling import is_compiling
from tdbg.api.session import LOG, Session, current_session
from tdbg.core.events import Metric, number

if TYPE_CHECKING:
    from torch import Tensor

    from tdbg.core.events import Step

MAX_NAMES = 1000
MAX_NAME = 200
MAX_LATE = 1000  # device values on their way at a time
_refused: set[str] = set()


def metric(name: str, value: object) -> None:
    """Keep one number of the program's own under ``name``: stored with its step, and known to conditions.

    value: an int, float, bool, NumPy scalar or tensor of one element; NaN and Inf are kept as such. A value on an
        accelerator is read one step late with tdbg's one copy, so that nothing waits; of DTensors only a
        replicated one is taken.
    ``tdbg run --when 'metric.accuracy < 0.5'`` reads the last value. Outside of a run it is kept while a watch is on
    (`debug_context`, `enable_debugging`), else it does nothing; so in a DataLoader's worker, and inside torch.compile.
    Raises nothing: what is no number is refused, with a note once per name. Cost: about 1 us, in a run 20 us, which
    is the program's own and does not count in tdbg's budget.
    """
    if is_compiling():
        return
    session = current_session()
    if session is None:
        return
    name = str(name)[:MAX_NAME]
    if type(value) is not float:
        torch = sys.modules.get("torch")
        if torch is not None and isinstance(value, torch.Tensor):
            value = _of_tensor(name, value, session)
        else:
            value = _of_other(name, value, session)
        if value is None:
            return
    _record_value(session, name, value, session.monitor.user_facing_step)


def _record_value(session: Session, name: str, value: float, step: int) -> None:
    monitor = session.monitor
    if name not in monitor.metrics and len(monitor.metrics) >= MAX_NAMES:
        _note_refusal(session, "metric-names", f"there are more than {MAX_NAMES} metrics: {name} is left out")
        return
    monitor.metrics[name] = value
    event = Metric(t=time.time(), step=step, name=name, value=number(value) or 0.0)
    monitor.when_rank(lambda: monitor.emit(event))


def _of_other(name: str, value: Any, session: Session) -> float | None:
    try:
        return float(value)
    except (TypeError, ValueError, OverflowError):
        _note_refusal(session, f"metric-{name}", f"metric {name!r} is no number: {type(value).__name__}")
        return None


def _of_tensor(name: str, tensor: Any, session: Session) -> float | None:
    """The value of a tensor on the host; None where it comes later, or not at all."""
    from tdbg.runtime import tensors

    code = f"metric-{name}"
    if tensor.numel() != 1 or tensor.is_complex() or tensor.is_meta:
        shape = "x".join(map(str, tensor.shape)) or "no shape"
        _note_refusal(
            session, code, f"metric {name!r} is not one real number: {tensor.dtype} of {shape} on {tensor.device}"
        )
        return None
    if tensors.is_sharded(tensor):
        if not all(place.is_replicate() for place in tensor.placements):
            _note_refusal(session, code, f"metric {name!r} is a DTensor that is not replicated: reduce it first")
            return None
        tensor = tensors.to_local_part(tensor)
    if tensors.on_host(tensor):
        return float(tensor.detach())
    _read_late(name, tensor, session)
    return None


def _read_late(name: str, tensor: "Tensor", session: Session) -> None:
    """Have the value come with the step's one copy."""
    if session.late_values >= MAX_LATE:
        _note_refusal(session, "metric-late", f"metric {name!r} left out: {MAX_LATE} device values are pending")
        return
    session.late_values += 1
    step = session.monitor.user_facing_step

    def record_late_value(values: list[float], record: "Step | None") -> None:
        session.late_values -= 1
        _record_value(session, name, values[0], step)

    copied = tensor.detach().reshape(1).float().clone()  # a view would keep what it is a part of alive
    session.monitor.read_late(copied, record_late_value)


def _note_refusal(session: Session, code: str, text: str) -> None:
    """Say once why a value is not kept."""
    if code in _refused or len(_refused) >= MAX_NAMES:
        return
    _refused.add(code)
    session.monitor.note(code, text)
    if session.agent is None:
        LOG.warning("%s", text)
