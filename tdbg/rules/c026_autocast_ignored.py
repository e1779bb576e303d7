"""TD-C026: autocast that does not apply."""

from tdbg.core.events import Finding
from tdbg.core.observations.forward import AutocastIgnored
from tdbg.core.rundir import ProcessDir
from tdbg.core.tables import format_count, join_limited
from tdbg.rules import RULES, ObservingRule, Reported


@RULES.add
class AutocastWithoutEffect(ObservingRule[Reported]):
    """Says when a model is called inside autocast, and all its linear and convolution layers still return float32.

    What it does: With the flag FORWARD, or in the opening inspection and its later looks, it notes whether
    autocast to float16 or bfloat16 is on when the model is called, and the dtypes of what its layers put out.
    It speaks when each linear and convolution layer that was looked at returned float32 in 2 consecutive
    sampled steps.

    Why it matters: The run takes the memory and the time of float32 while everybody believes that it is mixed
    precision; a GradScaler around it scales for nothing.

    Example:
        TD-C026 warning: autocast to bfloat16 on cpu does not apply: all 3 linear and convolution layers return
        float32, rank 0

    What to do: Give autocast the device of the model (`model_device.type`), and look for an inner
    `autocast(enabled=False)`: around the loss or a single layer it is usual, around the whole model it is not.

    Thresholds: 2 consecutive sampled steps. One layer in half precision is enough to be silent.
    """

    code = "TD-C026"
    title = "autocast that does not apply"
    severity = "warning"
    observes = (AutocastIgnored,)
    kept = Reported

    def evaluate(self, process: ProcessDir, state: Reported, seen: AutocastIgnored) -> Finding | None:
        if state.is_reported:
            return None
        state.is_reported = True
        elsewhere = seen.layer_device != seen.device
        return self.make_finding(
            f"autocast to {seen.dtype} on {seen.device} does not apply: all"
            f" {format_count(seen.layer_count, 'linear and convolution layer')} return float32, {process.display_name}",
            first_step=seen.step,
            rank=process.rank,
            phase="forward",
            evidence=[f"looked at: {join_limited(seen.layers, 8, seen.layer_count)}, on {seen.layer_device}"],
            cause=f"autocast is on for {seen.device}, and the layers run on {seen.layer_device}"
            if elsewhere
            else "an inner autocast(enabled=False) around the layers, or another thread runs them",
            try_next=f"torch.autocast({seen.layer_device!r}, ...)"
            if elsewhere
            else "look for autocast(enabled=False) in the model's forward",
        )
