"""What the callbacks of all frameworks share: a watch over one training."""

from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

from tdbg.api.flag_values import get_live_flags
from tdbg.api.levels import DebugLevel
from tdbg.api.session import LOG, Session, current_session, run_agent
from tdbg.api.watching import start_session, stop_session
from tdbg.core.errors import TdbgError
from tdbg.core.events import Plan
from tdbg.core.flags import Value, parse_flag

if TYPE_CHECKING:
    from torch import nn


class Watch:
    """Starts a watch where nobody watches yet, and ends the one it started.

    run_dir: record there as `tdbg run` does (one that holds a run is left alone, and ``-2``, ``-3``, ... added);
        in memory if empty. level: as in `tdbg run`. flags: names or aliases, ``FLAG=VALUE``.
    In a process of `tdbg run`, or while `debug_context` or `enable_debugging` watches, it does nothing.
    Raises TdbgError for an unknown level or flag.
    """

    def __init__(self, run_dir: str, level: DebugLevel | str, flags: Iterable[str]) -> None:
        self.run_dir = str(run_dir)
        self.level = DebugLevel.of(level)
        self.flags: dict[str, Value] = {}
        for name in flags:
            try:
                self.flags.update(parse_flag(name))
            except TdbgError as error:
                raise TdbgError(f"{error}; {error.hint}", error.hint) from None
        self._flags_before: dict[str, Value] = {}
        self.session: Session | None = None  # the one that was started here, also after its end

    def begin_training(self, model: "nn.Module") -> None:
        """A training begins."""
        self.end_training(code=1)  # one that ended by an exception its framework told nobody of
        if self.level is DebugLevel.OFF or run_agent() is not None or current_session() is not None:
            return
        self._flags_before = dict(get_live_flags())
        get_live_flags().update(self.flags)
        try:
            self.session = start_session("callback", self.level.value, run_dir=self.run_dir, modules=[model])
        except TdbgError:
            self._restore_flags()
            raise

    def record_plan(self, source: str, steps: float | None, done: int, epochs: float | None) -> None:
        """How far the training means to go. steps: of all; done: those before this training, which goes on with it."""
        session = self.session
        if session is None or current_session() is not session:
            return
        ahead = int(steps) - done if steps is not None and 0 < steps < float("inf") else None
        event = Plan(steps=ahead, epochs=epochs, source=source)
        session.monitor.when_rank(lambda: session.monitor.emit(event))

    def end_training(self, code: int = 0) -> None:
        """The training is over: write what is pending, take everything away, and say where the record is.

        code: what the training would exit with.
        """
        if self.session is None or current_session() is not self.session:
            return
        stop_session(self.session, code)
        self._restore_flags()
        where = f": `tdbg report {self.session.run_dir}`" if self.session.run_dir else ""
        LOG.info("tdbg watched %d steps%s", self.session.monitor.step, where)

    def record_failure(self, error: BaseException) -> None:
        """The training ends by this exception."""
        session = self.session
        if (
            session is not None
            and current_session() is session
            and session.agent is not None
            and isinstance(error, Exception)
        ):
            from tdbg.inject import tracebacks

            tracebacks.record_exception(session.agent, error, how="uncaught")
        self.end_training(code=1)

    def _restore_flags(self) -> None:
        get_live_flags().clear()
        get_live_flags().update(self._flags_before)

    def findings(self) -> list[dict[str, Any]]:
        """What the rules of `tdbg report` conclude so far, worst first; complete once the training is over."""
        from tdbg.api.findings import findings_of

        return findings_of(self.session) if self.session is not None else []
