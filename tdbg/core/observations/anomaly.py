"""What the probe `anomaly` sees."""

from tdbg.core.events import doc
from tdbg.core.observations import Evidence, Observed


class AnomalyMode(Observed):
    """A step that ran in autograd's anomaly mode."""

    PROBE = "anomaly"

    check_nan: bool = doc("true if autograd checks each node for NaN and raises", False)
    slow_pct: float | None = doc("extra time of the step over the median of steps without anomaly mode, in %")

    def text(self) -> str:
        """How the mode was set, and what it cost."""
        text = f"anomaly mode on, check_nan {self.check_nan}"
        return text + (f", step {self.slow_pct:g} % longer" if self.slow_pct is not None else "")


class BackwardFailed(Observed):
    """Backward raised in anomaly mode."""

    PROBE = "anomaly"
    PART = "ERROR"
    EVIDENCE = Evidence.LOCATED
    LEVEL = "E"

    error: str = doc("what backward raised", "")

    def text(self) -> str:
        """What was raised."""
        return f"backward failed: {self.error}"
