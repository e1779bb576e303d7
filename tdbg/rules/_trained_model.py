"""Whether it is still the same model that is trained: what is told of one loss does not hold for the next model's."""

from tdbg.core.events import Params


class TrainedModel:
    """Follows which parameters the main optimizer holds, by their names and sizes."""

    def __init__(self) -> None:
        self._known: set[tuple[str, int]] | None = None

    def is_replaced(self, event: Params) -> bool:
        """True if another model takes the place of the one that was trained until some steps ago.

        Parameters that come to those before (unfrozen layers), or leave them, are no other model. The event is written
        when an optimizer holds other tensors, so equal names and sizes are another instance.
        """
        before, self._known = self._known, set(zip(event.names, event.numel, strict=False))
        return before is not None and not (before < self._known or self._known < before)
