"""TD-C020: what was asked to be captured was not, or not all of it."""

from collections.abc import Iterable

from tdbg.events import Finding, Observation
from tdbg.rules import RULES
from tdbg.rules._kinds import KindsRule
from tdbg.rules.text import counted, joined
from tdbg.rundir import ProcessDir


@RULES.add
class CaptureIncomplete(KindsRule):
    """Says which layers of `--capture` do not exist or never ran, and how many passes were left out.

    What it does: With `tdbg run --capture` it speaks when no layer of a root module matches a name, when a layer
    ran in no captured pass, when passes that were asked for were left out, when tensors could not be kept as they
    are, when the disk took no more, and when the bytes asked for were used up.

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

    def see(self, process: ProcessDir, event: Observation) -> Iterable[tuple[str, Finding]]:
        values = event.values
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
        if values["not_executed"]:
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
        if values["skipped"]:
            kinds = "; ".join(f"{path}: {why}" for path, why in list(values["skipped"].items())[:4])
            found = self.found(
                f"tensors that cannot be kept: {kinds}, rank {process.rank}",
                rank=process.rank,
                phase="capture",
                evidence=kept,
                try_next="capture another layer, or what these are made of",
            )
            found.severity = "warning"
            yield "skipped", found
        lost = {why: count for why, count in values["dropped"].items() if why not in ASKED}
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


ASKED = ("sampled", "over budget", "of an epoch that was not the last")  # these are no loss
NEXT = {
    "no room": ("the disk takes less than is captured", "capture less often, or with --capture-policy block"),
    "not written": ("writing failed while they waited for it", "see the finding of what failed"),
    "": ("", "capture fewer layers"),
}
