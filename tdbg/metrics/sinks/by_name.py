"""Sinks by their names, as settings of a program name them."""

from collections.abc import Mapping, Sequence

from tdbg.core.errors import TdbgError
from tdbg.metrics.sinks import SINKS
from tdbg.metrics.sinks.base import MetricSink


def plain_sinks(names: Sequence[str], **settings: Mapping[str, object]) -> list[MetricSink]:
    """Sinks by name (csv, wandb, tensorboard, or of other packages), each with its settings.

    Raises TdbgError for a name that there is not, and for settings that a sink does not have.
    """
    made = []
    for name in names:
        try:
            made.append(SINKS[name](**settings.get(name, {})))
        except TypeError as error:
            raise TdbgError(f"cannot create the sink {name}: {error}", "see its docstring for its settings") from None
    return made
