"""What the probe `validation` sees."""

from tdbg.core.events import doc
from tdbg.core.observations import Evidence, Observed
from tdbg.core.tables import format_count


class EvaluationPass(Observed):
    """A pass of evaluation between two training steps. What was not looked at has no fields from ``root`` on."""

    PROBE = "validation"
    PART = "PASS"

    number: int = doc("number of the evaluation pass, from 1", 0)
    calls: int = doc("calls of root modules in it", 0)
    seen: int = doc("number of these calls that were checked", 0)
    samples: int = doc("number of samples in the calls that were checked", 0)
    batches: int = doc("batches taken from data loaders in it", 0)
    pass_s: float | None = doc("time from its first call to its last, if any call was checked")
    host_mb: float | None = doc("resident memory at its end")
    host_grown_mb: float | None = doc("how much it grew in the pass")
    device_mb: float | None = doc("allocated accelerator memory at its end")
    device_grown_mb: float | None = doc("how much accelerator memory grew in the pass")
    faults: list[str] = doc(
        "what is wrong: train_mode (model in train mode), graphs (autograd graphs without a backward)", factory=list
    )
    root: str | None = doc("class of the module that was called")
    mode: str | None = doc("eval, train or mixed: the mode of that module")
    gradients: str | None = doc("gradients in the calls: off, on or mixed")
    inference_mode: bool | None = doc("the calls ran under torch.inference_mode")
    graphs: int | None = doc("number of calls whose output had an autograd graph that no backward used")
    dropouts: int | None = doc("dropout layers that were active")
    norms: int | None = doc("number of batch norm layers that updated their running statistics")
    compared: int | None = doc("number of calls in eval mode whose random states before and after were compared")
    drew: int | None = doc("number of these calls that drew random numbers")
    drawn_by: str | None = doc("the dropout function that drew them, if it was one")
    drawn_at: str | None = doc("file:line of the program that called it")

    so_far: bool = False  # the pass goes on: for the line alone

    @property
    def level(self) -> str:
        """W where something is wrong."""
        return "W" if self.faults else "D"

    @property
    def grown_mb(self) -> float | None:
        """How much memory grew in it: the accelerator's if there is one, else the host's."""
        return self.device_grown_mb if self.device_grown_mb is not None else self.host_grown_mb

    def text(self) -> str:
        """Size, mode, gradients and memory of the pass."""
        text = f"pass {self.number} after step {self.step}: {format_count(self.calls, 'call')}"
        text += " so far" if self.so_far else ""
        if not self.seen:
            return f"{text}, none inspected"
        text += f", {format_count(self.samples, 'sample')}" + (f" in {self.seen}" if self.seen < self.calls else "")
        text += f", {self.pass_s:.3g} s" if self.pass_s is not None else ""
        text += f"; {self.root} in {self.mode} mode, gradients {self.gradients}"
        if self.graphs:
            text += f", {format_count(self.graphs, 'graph')} built and not used"
        if self.dropouts or self.norms:
            text += f", {self.dropouts or 0} dropout and {format_count(self.norms or 0, 'batch norm layer')} active"
        if self.drew:
            text += f"; {self.drew} of {format_count(self.compared or 0, 'call')} drew random numbers"
            text += f" in {self.drawn_by} ({self.drawn_at})" if self.drawn_by else ""
        text += f"; host memory {self.host_grown_mb:+g} MB" if self.host_grown_mb is not None else ""
        return text + (f", device {self.device_grown_mb:+g} MB" if self.device_grown_mb is not None else "")


class EvalModeUpdates(Observed):
    """Updates of a model that stayed in eval mode after an evaluation pass, or was in it from the start."""

    PROBE = "validation"
    PART = "EVAL_MODE_UPDATES"
    EVIDENCE = Evidence.LOCATED

    root: str = doc("class of the module that was called", "")
    from_start: bool | None = doc("true for a model that was never updated in train mode; no evaluation came before")
    since: int = doc("first step that updated the model in eval mode", 0)
    updates: int = doc("number of consecutive updates in eval mode", 0)
    evaluated: int = doc("the step after which the model was evaluated in eval mode without gradients", 0)
    dropouts: int = doc("dropout layers that are off", 0)
    norms: int = doc("number of batch norm layers that no longer update their running statistics", 0)

    @property
    def level(self) -> str:
        """D for a mode that may be chosen."""
        return "D" if self.from_start else "W"

    def text(self) -> str:
        """Since when."""
        layers = (self.dropouts, "dropout layer"), (self.norms, "batch norm layer")
        off = " and ".join(format_count(count, noun) for count, noun in layers if count)
        after = "" if self.from_start else f", after the evaluation that followed step {self.evaluated}"
        return f"{self.root} trains in eval mode since step {self.since}{after}: {off or 'no layer'} off"


class IdleAverage(Observed):
    """An averaged model is evaluated that nothing has updated."""

    PROBE = "validation"
    PART = "AVERAGE"
    EVIDENCE = Evidence.LOCATED
    LEVEL = "W"

    averaged: str = doc("class of the model inside the average", "")

    def text(self) -> str:
        """Whose average it is."""
        return f"the AveragedModel of {self.averaged} is evaluated after step {self.step} although its n_averaged is 0"


class _ForInformation(Observed):
    """Told once a run."""

    PROBE = "validation"
    LEVEL = "I"


class CallsEachStep(_ForInformation):
    """Every step calls a model that receives no gradient."""

    PART = "EACH_STEP"
    EVIDENCE = Evidence.STATISTICAL

    root: str | None = doc("class of the module that was called")

    def text(self) -> str:
        """That they are not taken for evaluation."""
        return "every step calls a model that receives no gradient: not counted as evaluation"


class NoEvaluation(_ForInformation):
    """Epochs have passed and no evaluation was seen."""

    PART = "NONE"
    EVIDENCE = Evidence.STATISTICAL

    epochs: int = doc("epochs without evaluation", 0)

    def text(self) -> str:
        """In how many epochs."""
        return f"no evaluation was seen in {format_count(self.epochs, 'epoch')}"
