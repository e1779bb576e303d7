"""What `--capture` kept, of the first rank, in a line."""

from tdbg.core.events import Observation
from tdbg.core.observations.capture import CaptureDone, CaptureFailed, CaptureOver, LayersChosen

SHOWN_CHARS = 140
CUT_OFF = "captured until it ended"  # it ended before it could tell


def describe_capture(event: Observation) -> tuple[str, bool] | None:
    """The line of the last observation, and whether pages are there; None where it tells of neither."""
    done = CaptureDone.of(event)
    if done is not None:
        return event.text, done.why is None
    if any(kind.of(event) is not None for kind in (LayersChosen, CaptureOver, CaptureFailed)):
        return CUT_OFF, True
    return None
