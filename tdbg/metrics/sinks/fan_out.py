"""One sink in front of many: a failing one is switched off and counted, and training never hears of it."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from tdbg.core.guard import guarded
from tdbg.core.output import print_messages
from tdbg.core.tables import format_count
from tdbg.metrics.rows.row import Row
from tdbg.metrics.sinks.base import MetricSink

SENDING: list[str] = []  # the sinks that write a row now: what they send elsewhere is in the run's own file already
STRIKES = 3  # failures in a row until a sink is switched off


@dataclass(slots=True)
class Health:
    """How a sink does."""

    strikes: int = 0  # failures in a row
    lost: int = 0  # rows that it did not take
    error: str = ""  # the last one
    is_off: bool = False


class FanOut(MetricSink):
    """Gives every call to each of its sinks. An exception of a sink is counted; the third in a row switches it off.

    say: told once of each sink that is switched off, and at the end of rows that one lost.
    """

    name = "fan-out"

    def __init__(self, sinks: Sequence[MetricSink], say: Callable[[str], None] = print_messages) -> None:
        self.sinks = list(sinks)
        self.health = {id(sink): Health() for sink in self.sinks}
        self._say = say
        self._closed = False

    def get_health(self, sink: MetricSink) -> Health:
        """How one of them does."""
        return self.health[id(sink)]

    def write(self, row: Row) -> None:
        """Give each its row; a sink that is off has it counted as lost."""
        for sink in self.sinks:
            health = self.health[id(sink)]
            if health.is_off:
                health.lost += 1
                continue
            SENDING.append(sink.name)
            try:
                sink.write(row)
            except Exception as error:  # a sink never reaches training; inline, as this runs at every row
                health.lost += 1
                self._record_failure(sink, health, error)
            else:
                health.strikes = 0
            finally:
                SENDING.pop()

    def _call_each(self, call: Callable[[MetricSink], object]) -> None:
        for sink in self.sinks:
            health = self.health[id(sink)]
            if not health.is_off:
                with guarded("a sink never reaches training", partial(self._record_failure, sink, health)):
                    call(sink)

    def _record_failure(self, sink: MetricSink, health: Health, error: BaseException) -> None:
        health.strikes += 1
        health.error = f"{type(error).__name__}: {error}"[:300]
        if health.strikes == STRIKES:
            health.is_off = True
            self._say(f"metrics: sink {sink.name} is switched off ({health.error}); training and other sinks continue")

    def place(self, folder: Path) -> None:
        self._call_each(lambda sink: sink.place(folder))

    def config(self, values: Mapping[str, object]) -> None:
        self._call_each(lambda sink: sink.config(values))

    def resumed(self, step: int) -> None:
        self._call_each(lambda sink: sink.resumed(step))

    def summary(self, values: Mapping[str, object]) -> None:
        self._call_each(lambda sink: sink.summary(values))

    def flush(self) -> None:
        self._call_each(lambda sink: sink.flush())

    def close(self) -> None:
        """Close each; say which of them lost rows."""
        if self._closed:
            return
        self._closed = True
        self._call_each(lambda sink: sink.close())
        for sink in self.sinks:
            health = self.health[id(sink)]
            if health.lost:
                self._say(f"metrics: sink {sink.name} lost {format_count(health.lost, 'row')} ({health.error})")

    def add_finding(self, finding: Mapping[str, Any]) -> None:
        self._call_each(lambda sink: sink.add_finding(finding))

    def add_report(self, headline: str, markdown: str) -> None:
        self._call_each(lambda sink: sink.add_report(headline, markdown))

    def state_dict(self) -> dict[str, object]:
        """Those of its sinks, by their names."""
        found: dict[str, Any] = {}
        self._call_each(lambda sink: found.update({sink.name: state} if (state := sink.state_dict()) else {}))
        return found

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Give each what it had saved."""
        self._call_each(lambda sink: sink.load_state_dict(state[sink.name]) if sink.name in state else None)
