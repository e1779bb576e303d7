"""`tdbg.metric`: a number the program measures itself, kept with the run."""

import math
import sys
import time
from typing import TYPE_CHECKING, Any

from tdbg.api.compiling import compiling
from tdbg.api.session import LOG, Session, current
from tdbg.events import Metric, number
from tdbg.probes import metrics_seen

if TYPE_CHECKING:
    from tdbg.events import Step

MAX_LATE = 64  # device values on their way at a time
MAX_NAME = 200
_refused: set[str] = set()
_flying = 0


def metric(name: str, value: Any) -> None:
    """Keep one number of the program's own under ``name``: stored with its step, and known to conditions.

    value: an int, float, bool, NumPy scalar or tensor of one element; NaN and Inf are kept as such. A value on an
        accelerator is read one step late with tdbg's one copy, so that nothing waits; of a DTensor only a
        replicated one is taken.
    ``tdbg run --when 'metric.accuracy < 0.5'`` reads the last value. Inside torch.compile it does nothing.
    Raises nothing: what is no number is refused, with a note said once per name. Cost: about 20 us in a run.
    """
    if compiling():
        return
    name = str(name)[:MAX_NAME]
    session = current()
    if type(value) is not float and type(value) is not int:
        tensor = _as_tensor(value)
        if tensor is not None:
            value = _of_tensor(name, tensor, session)
        else:
            value = _of_other(name, value)
        if value is None:
            return
    _keep(session, name, float(value), _step(session))


def _keep(session: Session | None, name: str, value: float, step: int) -> None:
    if not metrics_seen.keep(name, value):
        _refuse(session, "metric-names", f"more than {metrics_seen.MAX_NAMES} metrics: {name} is left out")
        return
    if session is not None:
        event = Metric(t=time.time(), step=step, name=name, value=number(value) or 0.0)
        session.monitor.when_rank(lambda: session.monitor.emit(event))


def _step(session: Session | None) -> int:
    return session.monitor.running_step if session is not None else 0


def _as_tensor(value: Any) -> Any:
    torch = sys.modules.get("torch")
    return value if torch is not None and isinstance(value, torch.Tensor) else None


def _of_other(name: str, value: Any) -> float | None:
    try:
        return float(value)
    except (TypeError, ValueError, OverflowError):
        _refuse(current(), f"metric {name}", f"metric {name!r} is no number: {type(value).__name__}")
        return None


def _of_tensor(name: str, tensor: Any, session: Session | None) -> float | None:
    """The value of a tensor on the host; None where it comes later, or not at all."""
    from tdbg.probes import tensors

    if tensor.numel() != 1 or tensor.is_complex() or tensor.is_meta:
        shape = "x".join(map(str, tensor.shape)) or "scalar"
        _refuse(session, f"metric {name}", f"metric {name!r} is one real number, not a {tensor.dtype} of {shape}")
        return None
    if tensors.is_sharded(tensor):
        if not all(place.is_replicate() for place in tensor.placements):
            _refuse(session, f"metric {name}", f"metric {name!r} is a DTensor that is not replicated: reduce it first")
            return None
        tensor = tensors.local(tensor)
    if tensors.on_host(tensor):
        return float(tensor.detach())
    _read_late(name, tensor, session)
    return None


def _read_late(name: str, tensor: Any, session: Session | None) -> None:
    """Have the value come with the step's one copy."""
    global _flying
    if session is None:
        _refuse(session, f"metric {name}", f"metric {name!r} is on {tensor.device}: outside of a run give .item()")
        return
    if _flying >= MAX_LATE:
        _refuse(session, "metric-late", f"metric {name!r}: {MAX_LATE} device values are on their way already")
        return
    _flying += 1
    step = _step(session)

    def arrived(values: list[float], record: "Step | None") -> None:
        global _flying
        _flying -= 1
        _keep(session, name, values[0] if values else math.nan, step)

    session.monitor.read_late(tensor.detach().reshape(1), arrived)


def _refuse(session: Session | None, code: str, text: str) -> None:
    """Say once why a value is not kept."""
    if code in _refused or len(_refused) >= metrics_seen.MAX_NAMES:
        return
    _refused.add(code)
    if session is not None:
        session.monitor.note(code.replace(" ", "-"), text)
    else:
        LOG.warning("%s", text)
