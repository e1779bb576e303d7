"""The cases, and how an answer is judged."""

from __future__ import annotations

import json
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tdbg.core.files import iter_json_lines
from tdbg.core.rundir import EVENTS, FINDINGS

PROGRAM = Path(__file__).parents[1] / "programs" / "rank_faults.py"
LAUNCHERS = ("torchrun", "spawn", "fabric")
HANG_S = 3.0
SOON = ("--threshold", f"DISTRIBUTED.hang_s={HANG_S}")
STOP = (*SOON, "--stop-on", "TD-R006")
NOTES = ("info",)
LOST = (
    "Connection closed by peer",
    "Connection reset by peer",
    "Read error",
    "Broken pipe",
)  # follows from another's end


@dataclass(frozen=True)
class Answer:
    """What is right: one of these codes, with the rank where only one is at fault, and these words."""

    codes: tuple[str, ...]
    words: str = ""  # in the title or its evidence
    is_rank_named: bool = True
    options: tuple[str, ...] = ()
    is_note: bool = False


HANG = ("TD-R006",)
FAULTS: dict[str, Answer] = {
    "loader": Answer(HANG, "rank_faults.py", options=STOP),
    "sleep": Answer(HANG, "asleep at hangs.py", options=STOP),
    "lock": Answer(HANG, "waiting for a lock at hangs.py", options=STOP),
    "disk": Answer(HANG, "hangs.py", options=STOP),
    "skip": Answer((*HANG, "TD-R002"), options=STOP),
    "leave": Answer(HANG, "barrier", options=STOP),
    "order": Answer((*HANG, "TD-R002", "TD-R003"), options=STOP),
    "shape": Answer((*HANG, "TD-R002", "TD-R003"), options=STOP),
    "group": Answer(HANG, options=STOP),
    "pause": Answer(HANG, "came late", is_note=True),
    "slow-data": Answer(("TD-R010",), "in its data loader"),
    "slow-forward": Answer(("TD-R010",), "in its forward pass"),
    "growing": Answer(("TD-R010",), "growing"),
    "checkpoints": Answer(("TD-R010",), "outside of loader"),
    "threads": Answer(("TD-R010",)),
    "exit-0": Answer(("TD-R007", "TD-R002")),
    "exit-1": Answer(("TD-R002", "TD-R007")),  # where the launcher does not say with which code
    "raise": Answer(("TD-R003",), "ValueError"),
    "kill": Answer(("TD-R002", "TD-R007"), "SIGKILL"),
    "segfault": Answer(("TD-R002",), "SIGSEGV"),
    "memory": Answer(("TD-M002", "TD-R003")),
    "weights": Answer(("TD-R008",), is_rank_named=False),
    "data": Answer(("TD-R009",), is_rank_named=False),
    "hooks": Answer(("TD-R008",), is_rank_named=False),
}
HEALTHY = ("none", "saves", "computes", "evaluates", "all-slow", "in-turns", "logs")
# Of two ranks in two different calls neither is wrong by itself: both are named.
MUTUAL = ("skip", "leave", "order", "shape", "group")


@dataclass(frozen=True)
class Case:
    """One run of the table."""

    kind: str
    ranks: int
    by: str

    @property
    def rank(self) -> int:
        """The rank at fault: neither always the first nor always the last."""
        return sum(map(ord, self.kind + self.by)) % self.ranks

    @property
    def options(self) -> tuple[str, ...]:
        return FAULTS[self.kind].options if self.kind in FAULTS else SOON

    def build_command(self) -> list[str]:
        words = [str(PROGRAM), self.kind, "--rank", str(self.rank), "--by", self.by, "--nprocs", str(self.ranks)]
        if self.by == "torchrun":
            return ["torchrun", "--standalone", f"--nproc-per-node={self.ranks}", *words]
        return [sys.executable, *words]

    def judge_answer(self, findings: list[dict[str, Any]]) -> str:
        """Empty if the verdict's findings are right; else what is wrong."""
        told = [found for found in findings if found["severity"] not in NOTES]
        if self.kind in HEALTHY:
            return "" if not told else f"a healthy run: {told[0]['code']} {told[0]['title']}"
        answer = FAULTS[self.kind]
        named = [found for found in (findings if answer.is_note else told) if found["code"] in answer.codes]
        if not named:
            return f"not told; found {', '.join(found['code'] for found in findings) or 'nothing'}"
        first = (findings if answer.is_note else told)[0]
        if first["code"] not in answer.codes:
            return f"{first['code']} comes first: {first['title']}"
        innocent = self._find_innocent(told)
        if innocent is not None:
            return f"rank {innocent['rank']} is named as well: {innocent['code']} {innocent['title']}"
        if answer.is_rank_named and first["rank"] != self.rank and not self._is_mutual(first):
            return f"rank {first['rank']} is named, {self.rank} is at fault: {first['title']}"
        if answer.words not in json.dumps(first):
            return f"without {answer.words!r}: {first['title']}"
        return ""

    def _find_innocent(self, told: list[dict[str, Any]]) -> dict[str, Any] | None:
        """A finding that names another rank than the one at fault."""
        if not FAULTS[self.kind].is_rank_named:
            return None
        named = (found for found in told if found["rank"] not in (None, self.rank) and not self._is_mutual(found))
        return next((found for found in named if not any(words in found["title"] for words in LOST)), None)

    def measure_delay(self, run: Path) -> float | None:
        """Seconds from the last step of the rank at fault to the first live line of a wanted code; None without one."""
        codes = FAULTS[self.kind].codes if self.kind in FAULTS else ()
        live = (found["t"] for found in iter_json_lines(run / FINDINGS) if found["code"] in codes)
        told_t = next(live, None) if (run / FINDINGS).exists() else None
        steps = [
            event["t"]
            for path in run.glob(f"rank{self.rank:04d}/**/{EVENTS}")
            for event in iter_json_lines(path)
            if event.get("type") == "step" and (told_t is None or event["t"] <= told_t)
        ]
        return told_t - max(steps) if told_t is not None and steps else None

    def _is_mutual(self, finding: dict[str, Any]) -> bool:
        told = "wait for each other" in finding["title"] or "SIGABRT in" in finding["title"]
        return self.ranks == 2 and self.kind in MUTUAL and told


def list_cases() -> list[Case]:
    """All of the table."""
    kinds = (*FAULTS, *HEALTHY)
    return [Case(kind, ranks, by) for kind in kinds for ranks in (2, 4) for by in LAUNCHERS]
