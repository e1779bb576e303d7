"""Metrics with no code at all: what tdbg sees of a program, as rows of the rank's ``metrics.jsonl``."""

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping
    from typing import Any, Protocol

    from tdbg.core.guard import Guard
    from tdbg.inject.agent import Agent
    from tdbg.metrics.rows.row import Row
    from tdbg.runtime.monitor import Monitor

    class RowSink(Protocol):
        """A run of the program's own that rows of tdbg's go into."""

        def add_row(self, row: Row) -> None:
            """Take one row; it costs no more than a few microseconds."""

    class RowFeed(Protocol):
        """What `tdbg.inject.metrics.feed` is to those who hand rows to it."""

        me: Agent
        monitor: Monitor
        guard: Guard
        is_off: bool
        own_run: RowSink | None  # the program's own run elsewhere, which tdbg's rows go into as well
        rehearses: bool  # Lightning tries out the validation: nothing of it counts

        @property
        def is_listening(self) -> bool:
            """False while nothing that the program logs is to be taken."""

        def record_logged(
            self,
            source: str,
            data: Mapping[Any, object],
            *,
            own_step: int | None = None,
            epoch: float | None = None,
            phase: str | None = None,
            gather: bool = False,
            step: int | None = None,
        ) -> None:
            """Take what the program logged."""

        def leave_out(self, why: str, count: int = 1) -> None:
            """Count rows that are not written."""

        def record_cost(self, seconds: float) -> None:
            """Count time that went into it."""

        def record_own_row(self, row: Row) -> None:
            """Write a row of tdbg's own."""
