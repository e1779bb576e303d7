"""What torch.compile has given up, and how long it compiled: what the compiler keeps anyway."""

import time
from typing import TYPE_CHECKING

from tdbg.core.events import Step
from tdbg.core.observations.compilation import CompilerGaveUp, CompileTime, GraphBreaks
from tdbg.probes import PROBES, Probe
from tdbg.runtime.torch_compat import (
    compiler_count,
    compiler_failures,
    graph_breaks,
    is_dynamo_loaded,
    list_compilations,
)

if TYPE_CHECKING:
    from tdbg.runtime.monitor import Monitor

PAUSE_S = 5.0  # from look to look
MAX_NAMED = 8
MAX_FAILURES = 64  # places that are remembered
LEAST_S = 0.5  # of compiling since the last line that tells of it
MAX_REASON = 160  # characters


@PROBES.add
class Compilation(Probe):
    """Functions at torch.compile's recompile limit, functions that it could not compile, graph breaks, and compile times.

    Reads:  Dynamo's own counters and its list of the last 64 compilations, at most every 5 seconds and at the end.
    Emits:  `CompilerGaveUp` and `GraphBreaks`, when there is more of them than before; `CompileTime` after half a second
            of compiling.
    Cost:   nothing where nothing is compiled; about 20 us a look.
    Limits: a break is counted when its graph is compiled, not at each call. What a program clears with
            `torch._dynamo.reset()` or reads in another process is not seen.
    """

    name = "compilation"
    levels = ("basic", "advanced", "extreme")
    observations = (CompilerGaveUp, GraphBreaks, CompileTime)

    def __init__(self, monitor: "Monitor") -> None:
        super().__init__(monitor)
        self._due = 0.0
        # Kind and place -> reason: the compiler's list has the last 64 compilations alone.
        self._gave_up: dict[tuple[str, str], str] = {}
        self._broken = 0  # as many as were told of
        self._compiled = CompileTime()
        self._last_t = time.time()  # when the last reported compilation began; earlier ones are of no concern

    def record_written(self, record: Step) -> None:
        now = time.perf_counter()
        if now >= self._due and is_dynamo_loaded():
            self._due = now + PAUSE_S
            self._read_counters()

    def run_ends(self) -> None:
        if is_dynamo_loaded():
            self._read_counters()

    def _read_counters(self) -> None:
        breaks = graph_breaks()
        graphs = compiler_count("stats", "unique_graphs")
        if self._add_failures():
            self._report_failures(graphs)
        count = sum(breaks.values())
        if count > self._broken:
            self._broken = count
            reasons = sorted(breaks, key=lambda reason: -breaks[reason])
            self.emit(
                GraphBreaks(breaks=count, graphs=graphs, reasons=[_shorten_reason(why) for why in reasons[:MAX_NAMED]])
            )

        self._report_times()

    def _add_failures(self) -> bool:
        """Remember what was given up, by its place; true if there is something new."""
        before = len(self._gave_up)
        for one in compiler_failures():
            if one.kind == "Unsupported":  # these are graph breaks
                continue
            kind, reason = ("limit", one.reason) if one.kind == "limit" else ("failed", f"{one.kind}: {one.reason}")
            key = kind, one.where or one.reason
            if key in self._gave_up or len(self._gave_up) < MAX_FAILURES:
                self._gave_up[key] = reason
        return len(self._gave_up) > before

    def _report_failures(self, graphs: int) -> None:
        limit = {where: reason for (kind, where), reason in self._gave_up.items() if kind == "limit"}
        failed = {where: reason for (kind, where), reason in self._gave_up.items() if kind != "limit"}
        failed = {where: why for where, why in failed.items() if where not in limit}
        seen = CompilerGaveUp(
            at_limit=list(limit)[:MAX_NAMED],
            limit_reasons=[_shorten_reason(why) for why in limit.values()][:MAX_NAMED],
            failed=list(failed)[:MAX_NAMED],
            fail_reasons=[_shorten_reason(why) for why in failed.values()][:MAX_NAMED],
            graphs=graphs,
        )
        self.emit(seen)

    def _report_times(self) -> None:
        new = [one for one in list_compilations() if one[0] > self._last_t]
        took_s = sum(seconds for _, seconds in new)
        if took_s < LEAST_S:
            return
        self._last_t = new[-1][0]
        self._compiled = CompileTime(
            seconds=round(self._compiled.seconds + took_s, 3),
            count=self._compiled.count + len(new),
            began=[round(began, 3) for began, _ in new],
            took_s=[round(seconds, 3) for _, seconds in new],
        )
        self.emit(self._compiled)

    def forked(self) -> None:
        self._compiled = CompileTime()
        self._gave_up, self._broken = {}, 0


def _shorten_reason(reason: str) -> str:
    """The first line of a reason, and its explanation; without the guard's own hint."""
    lines = [line.strip() for line in reason.partition("(HINT:")[0].splitlines() if line.strip()]
    text, rest = (lines[0], lines[1:]) if lines else ("", [])
    if rest and rest[0].startswith("Explanation: "):
        text = f"{text}: {rest[0].removeprefix('Explanation: ')}"
    elif rest and text.endswith(":"):
        text = f"{text} {rest[0]}"
    text = " ".join(text.split())
    return text if len(text) <= MAX_REASON else text[: MAX_REASON - 3] + "..."
