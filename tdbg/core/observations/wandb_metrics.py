"""What the probe `wandb-metrics` sees."""

from typing import Any

from tdbg.core.events import doc
from tdbg.core.observations import Evidence, Observed
from tdbg.core.tables import format_count


class _OfWandb(Observed):
    """What wandb did or was given; nothing of it is measured."""

    PROBE = "wandb-metrics"
    EVIDENCE = Evidence.LOCATED


class WandbStarted(_OfWandb):
    """A run of wandb has begun."""

    PART = "INIT"
    LEVEL = "I"

    run: str = doc("the run's id", "")
    mode: str = doc("online, offline, shared or disabled", "")
    project: str = doc("the project", "")
    seconds: float = doc("duration of the call", 0.0)
    starting_step: int = doc("the step from which a resumed run continues", 0)

    def text(self) -> str:
        """Run, project, mode and time."""
        resumed = f", continuing from step {self.starting_step}" if self.starting_step else ""
        return f"run {self.run} of project {self.project or '-'}, {self.mode}, in {self.seconds:.2f} s{resumed}"


class WandbLogin(_OfWandb):
    """A login has ended."""

    PART = "LOGIN"

    ok: bool = doc("true if there are credentials now", False)

    @property
    def level(self) -> str:
        """W without credentials."""
        return "I" if self.ok else "W"

    def text(self) -> str:
        """Whether there are credentials."""
        return "credentials found" if self.ok else "no credentials, or wandb is offline or running already"


class WandbFinished(_OfWandb):
    """A run of wandb has ended."""

    PART = "FINISH"
    LEVEL = "I"

    run: str = doc("the run's id", "")
    calls: int = doc("number of log calls in the whole run", 0)
    key_count: int = doc("number of distinct keys", 0)
    dropped: int = doc("number of calls with a step that had already passed", 0)
    once: list[str] = doc("keys logged only once, while others were logged more often; at most eight", factory=list)
    once_count: int = doc("number of keys logged only once", 0)
    bad: dict[str, int] = doc("keys whose value was NaN or Inf -> number of times; at most eight", factory=dict)
    seconds: float = doc("duration of the call", 0.0)

    def text(self) -> str:
        """Calls, keys, and the keys that came only once."""
        text = f"{format_count(self.calls, 'call')}, {format_count(self.key_count, 'key')}, {format_count(self.dropped, 'call')} dropped, in {self.seconds:.2f} s"
        return text + (f"; sent once: {_format_first_names(self.once)}" if self.once else "")


class WandbLogged(_OfWandb):
    """What one step sent."""

    PART = "LOG"
    ALWAYS = ("wandb_step",)

    run: str = doc("the run's id", "")
    calls: int = doc("number of log calls in the step", 0)
    keys: list[str] = doc("the first keys; at most eight", factory=list)
    key_count: int = doc("number of keys", 0)
    wandb_step: int | None = doc("the last step the program gave, if it gave one")
    values: dict[str, Any] = doc("the values of those keys", factory=dict)
    uncommitted: int = doc("calls with commit=False", 0)
    new: dict[str, str] | None = doc("keys never sent before, with the kind of their values; at most eight")
    bad: list[str] | None = doc("keys whose value is NaN or Inf; at most eight")

    def text(self) -> str:
        """The keys with their numbers, what is new, and what is not finite."""
        shown = ", ".join(f"{key} {value}" for key, value in self.values.items()) or ", ".join(self.keys)
        text = f"{format_count(self.key_count, 'key')} in {format_count(self.calls, 'call')}: {shown}"
        text += f"; new: {_format_first_names(list(self.new))}" if self.new else ""
        return text + (f"; not finite: {', '.join(self.bad[:3])}" if self.bad else "")


class _Warning(_OfWandb):
    """Something that did not arrive."""

    LEVEL = "W"


class WandbDroppedCall(_Warning):
    """A call that gave a step which had passed; told of the 1st, 2nd, 4th, 8th ... such call."""

    PART = "DROPPED"

    run: str = doc("the run's id", "")
    wandb_step: int = doc("the step that has passed", 0)
    current_step: int = doc("current step of the run", 0)
    keys: list[str] = doc("the first keys; at most eight", factory=list)
    dropped: int = doc("number of calls with a step that had already passed", 0)

    def text(self) -> str:
        """The step, where the run is, and the keys."""
        return (
            f"step {self.wandb_step} has passed (the run is at {self.current_step}), so wandb drops"
            f" {', '.join(self.keys[:3])}; {format_count(self.dropped, 'such call')}"
        )


class ChartlessKey(_Warning):
    """A key whose values make no chart."""

    PART = "CHART"

    run: str = doc("the run's id", "")
    key: str = doc("the key", "")
    why: str = doc("text (numbers written as text) or non-finite (no value ever was a finite number)", "")
    example: str = doc("such a value", "")

    def text(self) -> str:
        """The key, why, and an example."""
        reason = "numbers written as text" if self.why == "text" else "never a finite number"
        return f"{self.key} cannot be charted: {reason}, such as {self.example}"


class WandbMessage(_OfWandb):
    """What wandb prints, or would if it were not told to be silent."""

    PART = "SAYS"

    severity: str = doc("warning or error", "warning")
    message: str = doc("the text, at most 300 characters", "")

    @property
    def level(self) -> str:
        """As wandb has it."""
        return "E" if self.severity == "error" else "W"

    def text(self) -> str:
        """The message."""
        return f"wandb: {self.message}"


class WandbCallFailed(_OfWandb):
    """A call of wandb that raised or timed out."""

    PART = "FAILED"
    LEVEL = "E"

    what: str = doc("init, login, log or finish", "")
    error: str = doc("the exception, or what happened instead", "")
    seconds: float = doc("duration of the call", 0.0)

    def text(self) -> str:
        """Which call, after how long, and the error."""
        return f"{self.what} failed after {self.seconds:.1f} s: {self.error}"


def _format_first_names(names: list[str]) -> str:
    return ", ".join(names[:3]) + (" ..." if len(names) > 3 else "")
