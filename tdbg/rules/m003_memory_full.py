"""TD-M003: host memory is nearly full."""

from tdbg.core.events import Finding
from tdbg.core.observations.memory import MachineMemory
from tdbg.core.rule_base import Link
from tdbg.core.rundir import ProcessDir
from tdbg.rules import RULES, ObservingRule
from tdbg.rules.text import format_figure


@RULES.add
class MemoryFull(ObservingRule[None]):
    """Says when the machine's or the container's memory is nearly used up, while there is still somebody to say it.

    What it does: With the flag MEMORY (or from level advanced on) it asks every five seconds how much of the
    machine's memory, and of the container's limit, is in use (what can be dropped at once does not count). It
    speaks when that passes MEMORY.full_pct and this process has at least a tenth of it.

    Why it matters: When host memory runs out the kernel kills a process: exit by SIGKILL, no traceback, no last
    log line. Loader workers and pinned buffers get there first.

    Example:
        TD-M003 warning: 96 % of the container's 64,000 MB are in use, rank 0

    What to do: Fewer loader workers, a smaller prefetch, no copies of the data set per worker; TD-M001 says
    whether it grows from step to step.

    Thresholds: MEMORY.full_pct 95; a tenth of the limit.
    """

    code = "TD-M003"
    title = "host memory nearly full"
    severity = "warning"
    leads_to = (Link("TD-M002", least=0), Link("TD-R002", least=0))
    observes = (MachineMemory,)

    def evaluate(self, process: ProcessDir, state: None, seen: MachineMemory) -> Finding | None:
        return self.make_finding(
            f"{format_figure(seen.used_pct)} % of the {seen.whose}'s {seen.limit_mb:,.0f} MB are in use, {process.display_name}",
            first_step=seen.step,
            rank=process.rank,
            phase="train",
            evidence=[f"at step {seen.step} this process has {format_figure(seen.host_mb)} MB of it"],
            cause="loader workers, copies of the data, or a memory leak",
            try_next="use fewer workers or a smaller prefetch; check the memory of each process",
        )
