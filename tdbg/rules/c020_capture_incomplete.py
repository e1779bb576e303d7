"""TD-C020: what was asked to be captured was not, or not all of it."""

from collections.abc import Iterable

from tdbg.core.capture import ASKED_FOR
from tdbg.core.config import Settings
from tdbg.core.events import Finding
from tdbg.core.observations.capture import CaptureDone, CaptureFailed, CaptureOver, LayersChosen, LayersMissing
from tdbg.core.rundir import ProcessDir, read_upload_reports
from tdbg.core.tables import format_count, join_limited
from tdbg.rules import RULES
from tdbg.rules._kinds import KindsRule
from tdbg.rules.silence import explain_silence
from tdbg.rules.view import View

Captured = LayersChosen | LayersMissing | CaptureOver | CaptureDone

# Why samples could not be chosen, and what to do.
UNSCORED = (
    "the batch has no labels that fit what the model returned, or, for `wrong`, labels that are neither classes nor 0 and 1",
    "look at `labels` and `outputs` of a datapoint; `--capture-samples N` (every Nth) needs no labels",
)
WITHOUT_ROWS = (
    "the number of samples is unknown: the model's arguments have no tensor, or the first one does not have one row per sample",
    "leave out `--capture-samples`, or pass the model a batch-first tensor as its first argument",
)


@RULES.add
class CaptureIncomplete(KindsRule):
    """Says which layers of `--capture` do not exist or never ran, and which passes or samples were not kept as asked.

    What it does: With `tdbg run --capture` it reports a name that matches no layer of a root module; a layer that
    ran in no captured pass; what could not be kept (a tensor without values, a gradient that never came); passes
    that were left out; batches of which `--capture-samples` could not choose samples; calls that match no batch of
    a DataLoader; a full disk; a `--capture-budget` that is used up; a run of which nothing was captured; and pages
    that `--capture-upload` could not copy.

    Why it matters: Pages that lack what they were made for are found out too late.

    Example:
        TD-C020 error: --capture 'blocks.*.atn': no layer of GPT matches; did you mean blocks.0.attn?, rank 0

    What to do: Mend the name; choose fewer layers, steps or epochs; raise `--capture-budget`.

    Thresholds: None.
    """

    code = "TD-C020"
    title = "capture incomplete"
    severity = "error"
    observes = (LayersChosen, LayersMissing, CaptureOver, CaptureFailed, CaptureDone)

    def __init__(self) -> None:
        super().__init__()
        self._has_begun = False  # capturing had something to do

    def finish(self, view: View) -> Iterable[Finding]:
        """Nothing captured at all; and what could not be copied elsewhere."""
        yield from self._find_nothing_captured(view)
        yield from self._find_failed_copies(view)

    def _find_nothing_captured(self, view: View) -> Iterable[Finding]:
        settings = view.settings
        if not settings.captures or settings.capture_on or settings.level == "off" or self._has_begun:
            return ()
        if not view.over or view.exit_code != 0 or explain_silence(view.run) is not None:
            return ()  # said already: it failed, or nobody reported
        chosen = [name for name, value in _list_limits(settings) if value]
        if chosen:
            why = f"no call of a model is selected by {join_limited(chosen, 4)}"
            cause, advice = "", "choose other steps, epochs or phases"
        else:
            why = "no call of a model was seen"
            cause = (
                "the model is scripted (torch.jit), which takes no hooks, or the program calls a method of it, such as "
                "model.forward(x) or model.encode(x), instead of the model itself"
            )
            advice = "capture before scripting; call model(x)"
        title = f"{'--capture' if settings.capture else '--debugger'}: nothing was captured: {why}"
        found = self.make_finding(title, phase="capture", cause=cause, try_next=advice)
        return (found,)

    def evaluate(self, process: ProcessDir, seen: Captured) -> Iterable[tuple[str, Finding]]:
        if isinstance(seen, CaptureDone) and seen.why is not None:
            return  # nothing was captured: `finish` says so, if it is a fault
        self._has_begun = True
        if isinstance(seen, LayersMissing):
            yield f"missing {seen.pattern}", self._make_missing_finding(process, seen)
        elif isinstance(seen, CaptureFailed):
            yield "failed", self._make_failed_finding(process, seen)
        elif isinstance(seen, CaptureOver):
            yield "over", self._make_over_finding(process, seen)
        elif isinstance(seen, CaptureDone):
            yield from self._evaluate_totals(process, seen)

    def _make_missing_finding(self, process: ProcessDir, seen: LayersMissing) -> Finding:
        return self.make_finding(
            f"{seen.option} {seen.pattern!r}: no layer of {seen.root} matches; {seen.hint}, {process.display_name}",
            first_step=seen.step,
            rank=process.rank,
            phase="capture",
            try_next="correct the name: a path, with * for one part of it and ** for several parts",
        )

    def _make_over_finding(self, process: ProcessDir, seen: CaptureOver) -> Finding:
        return self.make_finding(
            f"capturing ended at step {seen.step}, {process.display_name}: {seen.why}",
            severity="info",
            first_step=seen.step,
            rank=process.rank,
            phase="capture",
            try_next="capture fewer layers or steps, or raise --capture-budget",
        )

    def _make_failed_finding(self, process: ProcessDir, seen: CaptureFailed) -> Finding:
        return self.make_finding(
            f"capturing ended at step {seen.step}, {process.display_name}: {seen.why}",
            first_step=seen.step,
            rank=process.rank,
            phase="capture",
            cause="the pages could not be written; pages written before are complete",
            try_next="free disk space, or choose another disk with --run-dir",
        )

    def _evaluate_totals(self, process: ProcessDir, seen: CaptureDone) -> Iterable[tuple[str, Finding]]:
        kept = [f"{format_count(seen.datapoints, 'pass')} written, {seen.bytes / 1e6:.1f} MB"]
        if seen.not_executed:
            yield "idle", self._make_idle_finding(process, seen.not_executed, kept)
        if seen.skipped:
            yield "skipped", self._make_skipped_finding(process, seen.skipped, seen.skips or 0, kept)
        if seen.unscored:
            yield "unscored", self._make_unchosen_finding(process, seen.unscored, kept, UNSCORED)
        if seen.without_rows:
            yield "without rows", self._make_unchosen_finding(process, seen.without_rows, kept, WITHOUT_ROWS)
        if seen.without_batch:
            yield "without batch", self._make_without_batch_finding(process, seen.without_batch, kept)
        lost = {why: count for why, count in (seen.dropped or {}).items() if why not in ASKED_FOR}
        if lost:
            yield "lost", self._make_lost_finding(process, lost, kept)

    def _make_idle_finding(self, process: ProcessDir, layers: list[str], kept: list[str]) -> Finding:
        return self.make_finding(
            f"{join_limited(layers, 4)} not executed in any captured pass, {process.display_name}",
            severity="warning",
            rank=process.rank,
            phase="capture",
            evidence=kept,
            cause="the model has these layers and does not use them, or not in these steps and phases",
            try_next="choose other layers, steps or phases",
        )

    def _make_unchosen_finding(
        self, process: ProcessDir, passes: int, kept: list[str], why: tuple[str, str]
    ) -> Finding:
        return self.make_finding(
            f"cannot choose samples in {format_count(passes, 'captured pass')}, all were kept, {process.display_name}",
            severity="warning",
            rank=process.rank,
            phase="capture",
            evidence=kept,
            cause=why[0],
            try_next=why[1],
        )

    def _make_without_batch_finding(self, process: ProcessDir, passes: int, kept: list[str]) -> Finding:
        return self.make_finding(
            f"kept the arguments of {format_count(passes, 'call')} instead of the batch, {process.display_name}",
            severity="info",
            rank=process.rank,
            phase="capture",
            evidence=kept,
            cause="no DataLoader batch matches these calls of the model",
            try_next="read `inputs` as the arguments of the model; labels may be missing",
        )

    def _make_skipped_finding(
        self, process: ProcessDir, skipped: dict[str, str], skips: int, kept: list[str]
    ) -> Finding:
        path, why = next(iter(skipped.items()))
        return self.make_finding(
            f"{path} not kept: {why}, {process.display_name}",
            severity="warning",
            rank=process.rank,
            phase="capture",
            evidence=[*kept, *(f"{path}: {why}" for path, why in skipped.items())],
            cause=f"left out {format_count(skips, 'time')}",
            try_next="choose other layers or kinds of tensors; what runs the model again also works in the program: `tdbg.debuggers`",
        )

    def _make_lost_finding(self, process: ProcessDir, lost: dict[str, int], kept: list[str]) -> Finding:
        reasons = "; ".join(f"{count:,} {why}" for why, count in lost.items())
        cause, advice = NEXT[next((why for why in lost if why in NEXT), "")]
        return self.make_finding(
            f"passes left out: {reasons}, {process.display_name}",
            severity="warning",
            rank=process.rank,
            phase="capture",
            evidence=kept,
            cause=cause,
            try_next=advice,
        )

    def _find_failed_copies(self, view: View) -> Iterable[Finding]:
        """One for each host whose last try to copy what it captured failed."""
        for copied in read_upload_reports(view.run):
            if copied.get("error"):
                yield self.make_finding(
                    f"some captured pages are not on {copied.get('url')}: {copied['error']}",
                    severity="warning",
                    phase="capture",
                    evidence=[
                        f"host {copied.get('host')}: {format_count(copied.get('files', 0), 'file')} copied, "
                        f"{format_count(copied.get('failures', 0), 'failure')}"
                    ],
                    try_next=f"on its host, `tdbg inspect-pages upload RUN {copied.get('url')}` copies the rest; its run directory holds all pages",
                )


def _list_limits(settings: Settings) -> Iterable[tuple[str, object]]:
    yield "--capture-phase", settings.capture_phase
    yield "--capture-steps", settings.capture_steps
    yield "--capture-every", settings.capture_every > 1
    yield "--capture-epochs", settings.capture_epochs
    yield "--ranks", settings.ranks


NEXT = {
    "no room": ("the disk is slower than the capture", "capture less often, or with --capture-policy block"),
    "not written": ("writing failed while these passes were queued", "see the finding about the failed write"),
    "": ("", "capture fewer layers"),
}
