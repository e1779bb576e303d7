"""TD-N001: where the first NaN or Inf came from."""

from collections.abc import Iterable

from tdbg.core.events import MOMENT, Event, Finding, NonFinite, Start, Step
from tdbg.core.rule_base import Link
from tdbg.core.rundir import ProcessDir
from tdbg.core.tables import format_count, join_limited
from tdbg.core.window import compute_median
from tdbg.rules import RULES, Rule, overwrite_finding
from tdbg.rules._origins import REDUCED, Sighting, find_origin
from tdbg.rules.text import format_figure, format_kind, format_ranks, get_kept_path
from tdbg.rules.view import View, is_non_finite, to_finite

# A value not known to come from here waits this many steps for the rank it came from. Ranks run in step, so
# two are enough; where it certainly came from another rank, that rank's file may be slow to appear.
PATIENCE_STEPS = {"unknown": 2, "other-rank": 200}
HOW = {
    "rerun": "located by re-running the saved batch",
    "bracket": "located indirectly (less certain)",
    "check": "seen in the tensor itself",
    "record": "from the step record alone",
}
CAUSES = {
    "input": "the batch held it before the first module saw it",
    "forward": "the module made it out of finite inputs: overflow, log or division at 0, or a bad weight of its own",
    "loss": "NaN or Inf among the targets or loss weights, or a log, exp or division in the loss outside its valid range",
    "backward": "likely: the forward result is finite but its derivative is not (sqrt or norm at 0, 0 * inf, log of 0"
    " under where())",
    "gradient": "this parameter's gradient is the first one seen to be bad; the cause is at it or just after it in the model",
    "optimizer": "an earlier update wrote it into the weights: learning rate, eps or weight decay",
    "weights": "the parameter changed between two updates: an in-place write, a load, an EMA or weight swap, or another"
    " thread",
}
TRIES = {
    "input": "check decoding, normalisation (division by a zero std) and missing labels",
    "forward": "clamp or rescale what enters the module, or run it in float32",
    "loss": "check the targets; clamp the loss's inputs (log, exp, division), or reduce in float32",
    "backward": "add an eps inside the root or norm, or use a safe where() on the input, not the output",
    "gradient": "check what multiplies this parameter: custom backward, hooks, loss scale; --flag AUTOGRAD_ANOMALY=raise "
    "ends a run at the operation and prints its line",
    "optimizer": "lower the learning rate or raise eps, and save a checkpoint before the step above",
    "weights": "look for what writes parameters after optimizer.step(): .data, copy_, load_state_dict, EMA or swap code",
}
REPEATS = "{}; the saved batch repeats it"
WITH_BATCH = {"input": "look at the saved batch; {}", "forward": REPEATS, "loss": REPEATS}
# What an operation did that made the value out of finite inputs, weights among them, as far as its name tells.
OPERATIONS = {
    **dict.fromkeys(("div", "div_", "true_divide", "reciprocal"), "division by zero in {}: check the divisor"),
    **dict.fromkeys(("log", "log2", "log10"), "logarithm of zero or of a negative number in {}: check its input"),
    "sqrt": "root of a negative number in {}: check its input",
    "rsqrt": "root of zero or of a negative number in {}: check its input",
    **dict.fromkeys(("exp", "exp2", "expm1", "cosh", "sinh"), "overflow in {}: check how large its input is"),
    "pow": "overflow, or a power of zero or of a negative number, in {}: check base and exponent",
    **dict.fromkeys(("acos", "asin", "atanh"), "input outside of -1 to 1 in {}: clamp it"),
}
INITIAL = "the weights were not finite before training began: initialisation, or the checkpoint that was loaded"
INITIAL_TRY = "check the functions that initialise them and the file that is loaded; --flag MODEL_BUILD looks at both"
WRITTEN = {"optimizer": ", written by the update", "weights": ", written between two updates"}
# Before an overflow: a last loss so far above the median of the records kept is no noise of a healthy run.
DIVERGED_RATIO, DIVERGED_LOSS = 1000.0, 1000.0
CALM = "lower the learning rate or warm it up, clip gradients; check that zero_grad() is called"
SKIPPED = "GradScaler skipped this update: the weights stayed good"
# Bad weights alone tell neither: `first_bad` says "weights" where a record refutes the gradient.
UNREAD = (
    "the gradients were not read at this step: this parameter's gradient was bad, or something wrote the parameter after"
    " the update (an in-place write, a load, an EMA or weight swap)"
)
UNREAD_TRY = "check both; --max-overhead 100 reads the gradients of every step"
# The gradients of a module's parameters tell that the value came to it, not that it was made there.
BRACKETED = (
    "at this module, or at anything that its output passes through on its way to the loss: later modules, another"
    " model, the loss itself; the forward result is finite but its derivative is not (sqrt or norm at 0, 0 * inf, log of 0)"
)
BRACKETED_TRY = "add an eps inside the root or norm, in whichever of these has one"
WATCH_ALL = "; --max-overhead 100 looks before each update and runs the batch again, which names the module"
UNWATCHED = "run it again so that each of these steps is watched: raise --max-overhead or --allowance, or choose another --window"


class _State:
    """What is kept of one process."""

    step: int = 0  # the last one on record
    records: int = 0
    scale: float | None = None  # of GradScaler, if it uses one
    waiting: NonFinite | None = None  # until its step record tells whether GradScaler skipped the update


@RULES.add
class FirstNonFinite(Rule):
    """Names the step, rank, module and phase of the first NaN or Inf of a run.

    What it does: Takes the first non-finite value each rank located, and names the one it all began with. Evidence
    has an order: a rank that located the value by re-running its batch comes first, then one whose own input, loss
    or gradient before the reduction was bad, then those that saw it after the reduction or in their weights, at
    the same step or one later. Ranks of the last kind are listed as evidence, not as the origin. An Inf in a step
    that GradScaler skipped is the scaler's normal work: silent. A NaN in such a step is told as `info`, because
    the weights were protected.

    Why it matters: One NaN in a gradient ruins every weight at the next update, on every rank. From then on
    each module is "the first NaN module"; only the first step, before its update, tells the cause.

    Example:
        TD-N001 critical: first NaN at step 3 on rank 1, in backward of module "blocks.2.act" (Act)
          gradient of input 0: 12 of 4,096 elements, float32 [4, 8, 128]; located by re-running the saved batch
          made by SqrtBackward0 at model.py:33: return torch.sqrt(x * 0)

    The rows of dimension 0 are named where they are few, and the samples of the dataset behind them where the
    indices of the batch are known and a pass with other samples in their place is finite.

    What to do: The phase says where to look. `input`: the saved batch. `forward`: the named module. `loss`: the
    loss function. `backward`: the derivative of the named module (sqrt or norm at 0); where the title says "or
    between it and the loss", the bad gradient passed that module, and another model may have made it. `gradient`:
    the named parameter. `optimizer`: the update before. `weights`: what writes the parameter between two updates.
    The batch is kept beside the events, so the step can be repeated without the run. Steps that a profiler recorded
    are only counted: a value from there is told with all of them, without module and batch; so are steps of less
    than a millisecond of which only one in up to 8 is checked, once the allowance is used up. `tdbg run
    --stop-before-update` ends the run while the weights are still good. Where the loss had risen far before an
    overflow, that rise is named as the cause, and not the module that gave way.

    Thresholds: None: any NaN, any Inf. A tensor of -Inf alone in a module without weights is a softmax mask and
    does not count. If the origin is unclear, the finding waits 2 steps for evidence from another rank. A rise of
    the loss is one to 1,000 or more that is also 1,000 times the median of the records kept.
    """

    code = "TD-N001"
    title = "first NaN or Inf"
    severity = "critical"
    leads_to = (
        Link("TD-N002", least=0),
        Link("TD-N003", least=0),
        Link("TD-R003", least=-1, most=1),
        Link("TD-R002", least=-1, most=1),
    )
    listens = (Start, Step, NonFinite)

    def __init__(self) -> None:
        self._world = 1
        self._states: dict[str, _State] = {}
        self._seen: dict[str, Sighting] = {}
        self._given: Finding | None = None
        self._held = False

    def feed(self, process: ProcessDir, event: Event) -> Iterable[Finding]:
        state = self._states.setdefault(process.label, _State())
        if isinstance(event, Start):
            self._world = max(self._world, event.world_size)
        elif isinstance(event, NonFinite):
            return self._evaluate_nonfinite(process, state, event)
        elif isinstance(event, Step) and event.phase == "train":
            return self._evaluate_step(process, state, event)
        return ()

    def finish(self, view: View) -> Iterable[Finding]:
        new: list[Finding] = []
        for label, state in self._states.items():
            if state.waiting is not None and label in view.processes:
                new += self._add_sighting(Sighting(view.processes[label].process, state.waiting))
        return [*new, *self._report_origin()]

    def _evaluate_nonfinite(self, process: ProcessDir, state: _State, event: NonFinite) -> Iterable[Finding]:
        if event.eval:
            return ()
        # A rank tells of a second value only after it recovered from the first: that update was skipped.
        before, state.waiting = state.waiting, None
        new = (
            [*self._add_sighting(Sighting(process, before, recovered=True))] if before and "nan" in before.kind else []
        )
        if event.phase not in ("input", "optimizer", "") and (state.scale is not None or state.step == 0):
            state.waiting = event
            return new
        return [*new, *self._add_sighting(Sighting(process, event))]

    def _evaluate_step(self, process: ProcessDir, state: _State, event: Step) -> Iterable[Finding]:
        state.step = event.step
        state.records += 1
        before, state.scale = state.scale, to_finite(event.scale)
        if state.waiting is not None and event.step >= state.waiting.step:
            # Where the budget left out the very record, a scale that fell tells of the skip.
            fell = before is not None and state.scale is not None and state.scale < before
            skipped = event.skipped if event.step == state.waiting.step else fell
            waited, state.waiting = state.waiting, None
            if not skipped or "nan" in waited.kind:
                return self._add_sighting(Sighting(process, waited, recovered=skipped))
        elif event.finite is False and not event.skipped and process.label not in self._seen:
            return self._add_sighting(Sighting(process, _build_from_record(event)))
        return self._report_origin() if self._held and self._has_waited(event.step) else ()

    def _has_waited(self, step: int) -> bool:
        best = self._find_best().event
        return step >= best.step + PATIENCE_STEPS.get(best.origin, 0)

    def _add_sighting(self, sighting: Sighting) -> Iterable[Finding]:
        known = self._seen.get(sighting.process.label)
        # Of several skipped updates the first is the first NaN; one that reached the weights matters more.
        if known is None or (known.recovered and not sighting.recovered) or known.event.how == "record":
            state = self._states[sighting.process.label]
            steps = max(state.step, sighting.event.step - 1)
            self._seen[sighting.process.label] = sighting._replace(records=state.records, steps=steps)
        if self._given is not None:
            overwrite_finding(self._given, self._make_origin_finding())
            return ()
        self._held = not (self._world == 1 and sighting.event.how != "record") and not self._find_best().is_certain
        return () if self._held else self._report_origin()

    def _report_origin(self) -> Iterable[Finding]:
        self._held = False
        if self._given is not None or not self._seen:
            return ()
        self._given = self._make_origin_finding()
        return (self._given,)

    def _find_best(self) -> Sighting:
        return find_origin(list(self._seen.values()), self._world)

    def _make_origin_finding(self) -> Finding:
        best = self._find_best()
        event, name = best.event, best.process.display_name
        who = f"received by {name} from another rank" if best.grade == REDUCED else f"on {name}"
        found = f"first {format_kind(event.kind)} {_describe_when(event)}{',' if best.grade == REDUCED else ''} {who}"
        return self.make_finding(
            f"{found}, {_describe_place(event)}",
            severity="info" if best.recovered else self.severity,
            first_step=event.step,
            rank=best.process.rank,
            phase=event.phase,
            module=event.module,
            evidence=[
                *_describe_evidence(best),
                *([SKIPPED] if best.recovered else []),
                *self._describe_others(best),
                *_describe_parameters(event),
            ],
            cause=_describe_cause(event),
            try_next=_choose_advice(event),
            grade=best.evidence.grade_word,
        )

    def _describe_others(self, best: Sighting) -> list[str]:
        others = [seen for seen in self._seen.values() if seen.process is not best.process]
        through = [seen.process.rank or 0 for seen in others if seen.event.origin == "other-rank"]
        later = [seen for seen in others if seen.event.origin != "other-rank" and seen.process.rank is not None]
        lines = (
            [f"{format_ranks(through)} received it in the gradient reduction (own gradients finite)"] if through else []
        )
        if later:
            lines.append(
                "also seen on "
                + join_limited([f"rank {seen.process.rank} at step {seen.event.step}" for seen in later], 4)
            )
        return lines


def _is_unread(event: NonFinite) -> bool:
    """True if one weight was seen bad after the update, and no gradient of the step was read or left its trace."""
    seen = event.weights == "updated" and (event.phase, event.how) == ("gradient", "check")
    return seen and event.tensor != MOMENT and event.origin != "other-rank"


def _are_weights(event: NonFinite) -> bool:
    """True if what `bad_params` names are weights, and not gradients."""
    if event.phase in ("", "optimizer", "weights"):
        return True
    return event.weights == "updated" and (event.phase, event.how) in (("gradient", "check"), ("backward", "bracket"))


def _is_bracketed(event: NonFinite) -> bool:
    """True if the module named is the last one that a bad gradient passed, and others may lie behind it."""
    return (event.phase, event.how) == ("backward", "bracket") and bool(event.module)


def _is_initial(event: NonFinite) -> bool:
    """True if a weight was bad before the first update."""
    return event.phase == "optimizer" and event.weights == "intact" and event.step <= 1


def _describe_cause(event: NonFinite) -> str:
    if _is_unread(event):
        return UNREAD
    if _is_initial(event):
        return INITIAL
    likely = OPERATIONS.get(event.operation.removeprefix("aten.")) if event.phase == "forward" else None
    if likely and not _describe_divergence(event):
        return "likely: " + likely.format(event.operation)
    return _describe_divergence(event) or (BRACKETED if _is_bracketed(event) else CAUSES.get(event.phase, ""))


def _choose_advice(event: NonFinite) -> str:
    if event.until:
        return UNWATCHED
    if _is_unread(event):
        return UNREAD_TRY
    if _is_initial(event):
        return INITIAL_TRY
    if _is_bracketed(event):
        return BRACKETED_TRY + (WATCH_ALL if event.weights == "updated" else "")
    if _describe_divergence(event):
        return CALM
    advice = TRIES.get(event.phase, "")
    return WITH_BATCH.get(event.phase, "{}").format(advice) if event.batch else advice


def _build_from_record(step: Step) -> NonFinite:
    """What a step record alone can tell, for a run in which nothing located the value."""
    bad_loss = is_non_finite(step.loss)
    value = step.loss if bad_loss else step.grad_norm
    return NonFinite(
        step=step.step,
        phase="" if bad_loss else "gradient",
        kind=str(value).lstrip("-") if is_non_finite(value) else "",
        tensor="loss" if bad_loss else "gradient norm",
        how="record",
        loss=step.loss,
    )


def _describe_divergence(event: NonFinite) -> str:
    """What to say of a forward pass or loss that overflowed at the end of a rise of the loss; empty if it is none."""
    last = to_finite(event.last_good.get("loss")) if event.last_good else None
    losses = [loss for row in event.ring or () if (loss := to_finite(row.get("loss"))) is not None]
    if last is None or not losses or event.phase not in ("forward", "loss"):
        return ""
    usual = compute_median(losses)
    if abs(last) < DIVERGED_LOSS or abs(last) < DIVERGED_RATIO * abs(usual):  # a loss without a lower bound too
        return ""
    return f"the run had diverged: loss {format_figure(last)} at step {event.last_good.get('step')}, {format_figure(usual)} at the median"


def _describe_when(event: NonFinite) -> str:
    return f"at step {event.step}" if event.until <= event.step else f"in one of steps {event.step} to {event.until}"


def _describe_place(event: NonFinite) -> str:
    """``in backward of module "blocks.2.act" (Act)``, in the words of the phase."""
    kind = f" ({event.module_class})" if event.module_class else ""
    named = f'module "{event.module}"{kind}' if event.module else (event.module_class or "the model")
    if event.phase == "input":
        return f"in the input of {named}" if event.module else "in the input batch"
    if event.phase == "forward":
        return f"in forward of {named}" + ("" if event.tensor in ("", "output") else f", {event.tensor}")
    if _is_bracketed(event):
        return f"in backward at {named} or between it and the loss"
    if event.phase == "backward":
        return f"in backward of {named}" if event.module else "in backward of the loss"
    if _is_unread(event):
        return f"in weight {event.parameter}, seen after the update"
    if event.phase == "gradient":
        return f"in the gradient of {event.parameter}" if event.parameter else f"in the {event.tensor or 'gradients'}"
    if _is_initial(event):
        return f"in weight {event.parameter}, before the first update" if event.parameter else "in initial weights"
    if event.phase in WRITTEN or event.parameter:
        return f"in weight {event.parameter}" + WRITTEN.get(event.phase, "")
    return "in the loss" if event.phase == "loss" or event.tensor == "loss" else f"in the {event.tensor or 'loss'}"


def _describe_evidence(seen: Sighting) -> list[str]:
    event = seen.event
    size = (
        f": {event.count:,} of {format_count(event.numel, 'element')}"
        if event.count is not None and event.numel
        else ""
    )
    kind = f", {event.dtype.removeprefix('torch.')} {event.shape}" if event.dtype else ""
    weights = f", weights {event.weights}" if event.weights in ("intact", "updated") else ""
    lines = [
        f"{event.tensor or event.phase or 'loss'}{size}{kind}{_describe_rows(event)}; {HOW.get(event.how, event.how)}{weights}"
    ]
    if event.operation:
        at = f" at {event.line}: {event.code}" if event.line else ""
        lines.append(f"made by {event.operation}{at}")
    good = event.last_good
    parts = []
    if good:
        is_sparse = seen.records < seen.steps - 1  # the record of the last step may still be on its way
        sparse = f" ({seen.records:,} of {format_count(seen.steps, 'step')} on record)" if is_sparse else ""
        parts.append(
            f"last good record: step {format_figure(good.get('step'))}{sparse}, loss {format_figure(good.get('loss'))},"
            f" grad norm {format_figure(good.get('grad_norm'))}, lr {format_figure(good.get('lr'))}"
        )
    if event.batch:
        parts.append(f"batch kept: {get_kept_path(seen.process.label, event.batch)}")
    return [*lines, *(["; ".join(parts)] if parts else [])]


def _describe_rows(event: NonFinite) -> str:
    """``, all in row 20 of 32 (from sample 4711 of Sensors)``; empty for weights and gradients."""
    if not event.rows or not event.rows_are_samples or event.how == "bracket":
        return ""
    rows = f", all in {_join_numbered('row', event.rows)} of {event.shape[0]:,}"
    samples = (
        f"from {_join_numbered('sample', event.samples)} of {event.dataset}" if event.samples else "counted from 0"
    )
    return f"{rows} ({samples})"


def _join_numbered(noun: str, numbers: list[int]) -> str:
    return f"{noun}{'s' if len(numbers) > 1 else ''} {join_limited(numbers, 4)}"


def _describe_parameters(event: NonFinite) -> list[str]:
    lines = []
    if event.bad_param_count:
        names = join_limited(event.bad_params, 3, event.bad_param_count)
        what = "weights" if _are_weights(event) else "gradients"
        lines.append(f"non-finite {what} in {format_count(event.bad_param_count, 'parameter')}: {names}")
    if event.note:
        lines.append(f"note: {event.note}")
    return lines
