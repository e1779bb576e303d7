"""TD-C010: a checkpoint's keys did not fit, and the model kept the values it had."""

from collections.abc import Iterable

from tdbg.core.events import Finding
from tdbg.core.observations.checkpoint import PartlyLoaded
from tdbg.core.rundir import ProcessDir
from tdbg.core.tables import format_count, join_limited
from tdbg.rules import RULES
from tdbg.rules._kinds import KindsRule


@RULES.add
class PartialLoad(KindsRule):
    """Says when load_state_dict put little or nothing into a model, because the keys have other names.

    What it does: With the flag CHECKPOINT (or from level advanced) it reads what load_state_dict reports as
    missing and unexpected. It speaks when missing keys were offered under a prefix (`module.`, `_orig_mod.`) or
    without one, with the same shapes, or when at most a tenth of the offered keys found a place in a model that
    misses nine tenths of its own; and only when by the first update or evaluation nothing else has filled the
    missing ones.

    Why it matters: `strict=False` drops what does not fit without a word. The run then begins from random weights,
    or keeps them in a part of the model, and looks like a fine-tuning that does not work.

    Example:
        TD-C010 error: Net: 0 of 120 keys loaded, all given keys carry the prefix module., rank 0

    What to do: Take the prefix off (or put it on) before loading, load into the wrapped module (`model.module`), or
    use `strict=True` and look at what it says. For a part of a model load into that part.

    Thresholds: two keys under one prefix; 10 % placed and 90 % missing. A new head, adapters and a backbone without
    its head are loaded in part on purpose: nothing is said of keys that fit under no other name.
    """

    code = "TD-C010"
    title = "checkpoint not loaded"
    severity = "warning"
    observes = (PartlyLoaded,)

    def evaluate(self, process: ProcessDir, seen: PartlyLoaded) -> Iterable[tuple[str, Finding]]:
        nothing = seen.placed <= seen.given // 10
        prefix = seen.prefix or seen.lacks
        carry = "carry" if seen.prefix else "lack"
        title = f"{seen.module}: {seen.placed} of {format_count(seen.keys, 'key')} loaded"
        if prefix:
            title += f", {seen.prefixed} of {format_count(seen.given, 'given key')} {carry} the prefix {prefix}"
        found = self.make_finding(
            f"{title}, {process.display_name}",
            severity="error" if nothing else self.severity,
            first_step=seen.step,
            rank=process.rank,
            phase="load",
            module=seen.module,
            evidence=[
                f"missing, {seen.missing_count}: {join_limited(seen.missing, 4)}",
                f"unexpected, {seen.unexpected_count}: {join_limited(seen.unexpected, 4)}",
                "the missing parameters still have their initial values at the first update or evaluation",
            ],
            cause=f"the keys {carry} the prefix {prefix}" if prefix else "the keys are those of another model",
            try_next="rename the keys before load_state_dict, and load with strict=True",
        )
        return [(seen.module, found)]
