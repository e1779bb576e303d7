"""TD-C020: what was asked to be captured was not, or not all of it."""

from collections.abc import Iterable

from tdbg.core.capture import ASKED_FOR
from tdbg.core.config import Settings
from tdbg.core.events import Finding, Observation
from tdbg.core.rundir import ProcessDir, copies_of
from tdbg.core.tables import counted
from tdbg.rules import RULES
from tdbg.rules._kinds import KindsRule
from tdbg.rules.silence import silence
from tdbg.rules.text import joined
from tdbg.rules.view import View


@RULES.add
class CaptureIncomplete(KindsRule):
    """Says which layers of `--capture` do not exist or never ran, and how many passes were left out.

    What it does: With `tdbg run --capture` it speaks when no layer of a root module matches a name, when a layer
    ran in no captured pass, when something could not be kept (a tensor without values, a gradient that never came),
    when passes were left out, when the disk took no more, when the bytes asked for were used up, when nothing was
    captured, and when `--capture-upload` could not copy all of it.

    Why it matters: Pages that lack what they were made for are found out too late.

    Example:
        TD-C020 error: --capture 'blocks.*.atn': no layer of GPT matches; did you mean blocks.0.attn?, rank 0

    What to do: Mend the name; choose fewer layers, steps or epochs; raise `--capture-budget`.

    Thresholds: None.
    """

    code = "TD-C020"
    title = "capture incomplete"
    severity = "error"
    probe = "capture"

    def __init__(self) -> None:
        super().__init__()
        self._seen = False  # capturing had something to do

    def finish(self, view: View) -> Iterable[Finding]:
        """Nothing captured at all; and what could not be copied elsewhere."""
        yield from self._nothing(view)
        yield from self._not_copied(view)

    def _nothing(self, view: View) -> Iterable[Finding]:
        settings = view.settings
        if not settings.capture or settings.capture_on or settings.level == "off" or self._seen:
            return ()
        if not view.over or view.exit_code != 0 or silence(view.run) is not None:
            return ()  # said already: it failed, or nobody reported
        chosen = [name for name, value in _limits(settings) if value]
        found = self.found(
            "--capture: nothing was captured",
            phase="capture",
            cause=(
                f"no pass of a model in what {joined(chosen, 4)} choose"
                if chosen
                else "no call of a model was seen: it is scripted (torch.jit), which takes no hooks, or called by forward()"
            ),
            try_next="choose other steps, epochs or phases" if chosen else "capture before scripting; call model(x)",
        )
        return (found,)

    def see(self, process: ProcessDir, event: Observation) -> Iterable[tuple[str, Finding]]:
        values = event.values
        if event.part == "DONE" and "why" in values:
            return  # nothing was captured: `finish` says so, if it is a fault
        self._seen = True
        if event.part == "MISSING":
            yield (
                f"missing {values['pattern']}",
                self.found(
                    f"--capture {values['pattern']!r}: no layer of {values['root']} matches; {values['hint']}, rank {process.rank}",
                    first_step=event.step,
                    rank=process.rank,
                    phase="capture",
                    try_next="mend the name: a path, with * for a part of it and ** for several parts",
                ),
            )
        elif event.part == "OVER":
            found = self.found(
                f"capturing ended at step {event.step}, rank {process.rank}: {values['why']}",
                first_step=event.step,
                rank=process.rank,
                phase="capture",
                try_next="capture fewer layers or steps, or raise --capture-budget",
            )
            found.severity = "info"
            yield "over", found
        elif event.part == "FAILED":
            yield (
                "failed",
                self.found(
                    f"capturing ended at step {event.step}, rank {process.rank}: {values['why']}",
                    first_step=event.step,
                    rank=process.rank,
                    phase="capture",
                    cause="the pages could not be written; what was written before is whole",
                    try_next="make room, or choose a disk that can be written with --run-dir",
                ),
            )
        elif event.part == "DONE":
            yield from self._done(process, event)

    def _done(self, process: ProcessDir, event: Observation) -> Iterable[tuple[str, Finding]]:
        values = event.values
        kept = [f"{counted(values['datapoints'], 'pass')} written, {values['bytes'] / 1e6:.1f} MB"]
        if values.get("not_executed"):
            found = self.found(
                f"{joined(values['not_executed'], 4)} not executed in any captured pass, rank {process.rank}",
                rank=process.rank,
                phase="capture",
                evidence=kept,
                cause="the model has these layers and does not use them, or not in these steps and phases",
                try_next="choose other layers, steps or phases",
            )
            found.severity = "warning"
            yield "idle", found
        if values.get("skipped"):
            found = self.found(
                f"{next(iter(values['skipped']))} not kept: {next(iter(values['skipped'].values()))}, rank {process.rank}",
                rank=process.rank,
                phase="capture",
                evidence=[*kept, *(f"{path}: {why}" for path, why in values["skipped"].items())],
                cause=f"something asked for could not be kept {counted(values['skips'], 'time')}",
                try_next="choose other layers, or ask for other things of them",
            )
            found.severity = "warning"
            yield "skipped", found
        lost = {why: count for why, count in values["dropped"].items() if why not in ASKED_FOR}
        if lost:
            reasons = "; ".join(f"{count:,} {why}" for why, count in lost.items())
            cause, advice = NEXT[next((why for why in lost if why in NEXT), "")]
            found = self.found(
                f"passes left out: {reasons}, rank {process.rank}",
                rank=process.rank,
                phase="capture",
                evidence=kept,
                cause=cause,
                try_next=advice,
            )
            found.severity = "warning"
            yield "lost", found

    def _not_copied(self, view: View) -> Iterable[Finding]:
        """One for each host whose last try to copy what it captured failed."""
        for copied in copies_of(view.run):
            if copied.get("error"):
                yield self.found(
                    f"not all that was captured is on {copied.get('url')}: {copied['error']}",
                    severity="warning",
                    phase="capture",
                    evidence=[
                        f"host {copied.get('host')}: {counted(copied.get('files', 0), 'file')} copied, "
                        f"{counted(copied.get('failures', 0), 'failure')}"
                    ],
                    try_next=f"`tdbg inspect-pages upload {view.run.path} {copied.get('url')}`; it is all here",
                )


def _limits(settings: Settings) -> Iterable[tuple[str, object]]:
    yield "--capture-phase", settings.capture_phase
    yield "--capture-steps", settings.capture_steps
    yield "--capture-every", settings.capture_every > 1
    yield "--capture-epochs", settings.capture_epochs
    yield "--ranks", settings.ranks


NEXT = {
    "no room": ("the disk takes less than is captured", "capture less often, or with --capture-policy block"),
    "not written": ("writing failed while they waited for it", "see the finding of what failed"),
    "": ("", "capture fewer layers"),
}
