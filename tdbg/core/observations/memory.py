"""What the probe `memory` sees."""

from tdbg.core.events import doc
from tdbg.core.observations import Evidence, Observed
from tdbg.core.tables import format_count

PHASES = ("forward", "backward", "update")


class MemoryReading(Observed):
    """Memory in use, and after which part of the step it was highest."""

    PROBE = "memory"

    host_mb: float | None = doc("resident memory of the process")
    host_peak_mb: float | None = doc("peak resident memory of the process")
    device_mb: float | None = doc("allocated device memory")
    device_reserved_mb: float | None = doc("device memory reserved by the allocator")
    device_peak_mb: float | None = doc("peak allocated device memory")
    ooms: int | None = doc("out-of-memory errors of the device allocator so far")
    forward_mb: float | None = doc("how much memory rose in forward (device memory if there is any, else host memory)")
    backward_mb: float | None = doc("how much it rose in backward")
    update_mb: float | None = doc("how much it rose in the rest of the step")
    highest: str | None = doc("after which part of the step it was highest")
    used_pct: float | None = doc("memory in use on the machine or in the container, in %")

    def text(self) -> str:
        """Host and device memory, and what each part of the step added."""
        words = []
        for kind, now, peak in (
            ("host", self.host_mb, self.host_peak_mb),
            ("device", self.device_mb, self.device_peak_mb),
        ):
            if now is not None:
                words.append(f"{kind} {now:,.1f} MB" + (f" (peak {peak:,.1f})" if peak else ""))
        rises = zip(PHASES, (self.forward_mb, self.backward_mb, self.update_mb), strict=True)
        words += [f"{phase} {rise:+.1f}" for phase, rise in rises if rise is not None]
        return ", ".join(words) + (f"; highest after {self.highest}" if self.highest else "")


class EvaluationMemory(MemoryReading):
    """The same at a call of a run that only evaluates; ``step`` is the number of the call."""

    PART = "EVAL"

    def text(self) -> str:
        """Which call, and the memory at it."""
        return f"evaluation call {self.step}: {super().text()}"


class _HeldMemory(Observed):
    """What the model holds."""

    PROBE = "memory"

    parameters_mb: float | None = doc("size of the parameters")
    gradients_mb: float | None = doc("size of the gradients")
    optimizer_mb: float | None = doc("size of the optimizer state")
    buffers_mb: float | None = doc("size of the buffers")
    activations_mb: float | None = doc("size of the outputs of leaf modules in one forward pass")

    def collect_held_mb(self) -> dict[str, float]:
        """Megabytes by what holds them; only what is known."""
        found = {
            "parameters": self.parameters_mb,
            "gradients": self.gradients_mb,
            "optimizer": self.optimizer_mb,
            "buffers": self.buffers_mb,
            "activations": self.activations_mb,
        }
        return {name: mb for name, mb in found.items() if mb is not None}


class ModuleMemory(_HeldMemory):
    """What holds memory at its peak, and which modules hold most of it."""

    PART = "MODULES"

    peak_mb: float = doc("peak memory in use", 0.0)
    rest_mb: float | None = doc("the peak minus the sizes above")
    kind: str = doc("host or device", "host")
    modules: list[str] = doc("the modules that hold most, at most eight", factory=list)
    modules_mb: list[float] = doc(
        "size of parameters, gradients, optimizer state and buffers of each module", factory=list
    )
    activation_modules: list[str] = doc("the modules whose outputs are largest, at most eight", factory=list)
    activation_modules_mb: list[float] = doc("size of their outputs, in MB", factory=list)

    def text(self) -> str:
        """The peak, its shares, and the modules that hold most."""
        shares = {**self.collect_held_mb(), "rest": self.rest_mb or 0.0}
        shares_text = ", ".join(f"{name} {mb:,.1f}" for name, mb in shares.items())
        most = zip(self.modules[:3], self.modules_mb[:3], strict=False)
        inside = ", ".join(f"{name} ({mb:,.1f})" for name, mb in most)
        return f"{self.kind} peak {self.peak_mb:,.1f} MB: {shares_text}" + (f"; most in {inside}" if inside else "")


class MemoryGrowth(Observed):
    """Memory that grew from step to step, and the live tensors that became more."""

    PROBE = "memory"
    PART = "CREEP"
    EVIDENCE = Evidence.STATISTICAL

    kind: str = doc("host or device", "host")
    grown_mb: float = doc("how much memory grew", 0.0)
    grown_pct: float | None = doc("growth in % of the memory in use before")
    from_step: int | None = doc("step since which memory grew")
    steps: int = doc("number of steps over which memory grew", 1)
    graphs: int = doc("increase in live tensors that keep an autograd graph alive", 0)
    graph_steps: int = doc("number of steps over which these tensors were counted", 0)
    piled_up: bool = doc("the number of tensors with a graph rose steadily", False)
    growing: list[str] = doc("kinds of tensors whose number grew, at most eight", factory=list)
    holder: str = doc("the object that holds these tensors, and its attribute", "")
    top: list[str] = doc("the largest live tensors, at most eight kinds", factory=list)
    sure: bool = doc("worth a finding: graphs pile up, or the growth passed MEMORY.creep_mb", False)

    @property
    def level(self) -> str:
        """W where it is worth a finding."""
        return "W" if self.sure else "D"

    @property
    def mb_per_step(self) -> float:
        """How fast it grew."""
        return self.grown_mb / max(self.steps, 1)

    def text(self) -> str:
        """How much, since when, and how many graphs with it."""
        return (
            f"{self.kind} memory grew {self.grown_mb:,.0f} MB in {format_count(self.steps, 'step')} ({self.mb_per_step:.2f} MB a step)"
            f" since step {self.from_step}; {format_count(self.graphs, 'more tensor')} with a graph in {format_count(self.graph_steps, 'step')}"
            + (f", in {self.holder}" if self.holder else "")
        )


class AllocationFailed(MemoryReading, _HeldMemory):
    """An allocation that failed, and what was alive then."""

    PART = "OOM"
    EVIDENCE = Evidence.LOCATED
    LEVEL = "E"

    error: str = doc("what was raised, shortened", "")
    tried_mb: float | None = doc("size of the allocation that failed")
    total_mb: float | None = doc("all the memory that the device, or the machine or container, has")
    line: str = doc("line of the program at which it failed", "")
    kind: str = doc("host or device", "host")
    top: list[str] = doc("the largest live tensors, at most eight kinds", factory=list)
    snapshot: str = doc("file with the allocator's snapshot", "")

    def text(self) -> str:
        """What was asked for and in use, and a line for each of the largest tensors."""
        asked = f"tried to allocate {self.tried_mb:,.1f} MB, " if self.tried_mb else ""
        return "\n".join([f"out of memory at step {self.step}: {asked}{super().text()}", *self.top])


class MachineMemory(Observed):
    """The machine's or the container's memory is nearly used up, and this process has a good part of it."""

    PROBE = "memory"
    PART = "FULL"
    LEVEL = "W"

    host_mb: float = doc("resident memory of the process", 0.0)
    used_pct: float = doc("memory in use on the machine or in the container, in %", 0.0)
    limit_mb: float = doc("total memory of the machine or container", 0.0)
    whose: str = doc("machine or container", "machine")

    def text(self) -> str:
        """How full, and how much of it is this process's."""
        return (
            f"{self.used_pct:.0f} % of the {self.whose}'s {self.limit_mb:,.0f} MB are in use, {self.host_mb:,.0f} MB by"
            " this process"
        )
