"""The cases, and how an answer is judged."""

from __future__ import annotations

import json
import os
import re
import sys
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

from tdbg.core.files import iter_json_lines
from tdbg.core.rundir import EVENTS, FINDINGS
from tests.chance import pick_share

PROGRAMS = Path(__file__).parents[1] / "programs"
PROGRAM = PROGRAMS / "rank_faults.py"
LAUNCHERS = ("torchrun", "spawn", "fabric", "accelerate")
# With --cpu, `accelerate launch` starts one process; with --multi_gpu it starts them all, and looks for no GPU.
ACCELERATE = (
    "accelerate launch --multi_gpu --num_machines 1 --mixed_precision no --dynamo_backend no --main_process_port 0"
)
CPU_GROUPS = Path("/sys/fs/cgroup/cpu")  # of version 1, in which rank_faults.py makes a group
HANG_S = 3.0  # the limit, to save time; by default it is 15 s
CONFIRM_S = 5.0  # a hang is told within the limit and this: it must look the same twice, and be read by the supervisor
NOTES = ("info",)
PLANTED = re.compile(r"# planted: ([\w, -]+)$")
LOST = (
    "Connection closed by peer",
    "Connection reset by peer",
    "Read error",
    "Broken pipe",
)  # follows from another's end


@dataclass(frozen=True)
class Answer:
    """What is right: one of these codes, with the rank where only one is at fault, these words, and the planted line.

    twin: what is healthy and looks alike.
    """

    twin: str
    codes: tuple[str, ...]
    words: str = ""  # in the title or its evidence
    is_rank_named: bool = True
    stops: bool = False  # the job is ended once it is told to hang
    is_note: bool = False


HANG = ("TD-R006",)
FAULTS: dict[str, Answer] = {
    "loader": Answer("loads", HANG, "__getitem__", stops=True),
    "sleep": Answer("naps", HANG, "asleep at", stops=True),
    "lock": Answer("locks", HANG, "waiting for a lock at", stops=True),
    "disk": Answer("saves", HANG, stops=True),
    "skip": Answer("skips", (*HANG, "TD-R002"), stops=True),
    "leave": Answer("leaves", HANG, "barrier", stops=True),
    "order": Answer("orders", (*HANG, "TD-R002", "TD-R003"), stops=True),
    "shape": Answer("gathers", (*HANG, "TD-R002", "TD-R003"), stops=True),
    "group": Answer("groups", HANG, stops=True),
    "pause": Answer("pauses", HANG, "came late", is_note=True),
    "slow-data": Answer("refills", ("TD-R010",), "in its data loader"),
    "slow-forward": Answer("all-slow", ("TD-R010",), "in its forward pass"),
    "growing": Answer("all-grow", ("TD-R010",), "growing"),
    "checkpoints": Answer("shards", ("TD-R010",), "outside of loader"),
    "threads": Answer("idlers", ("TD-R010",)),
    "nice": Answer("all-nice", ("TD-R010",), "in its forward pass"),
    "quota": Answer("in-turns", ("TD-R010",)),  # whatever it does when the quota is used up
    "pool": Answer("pools-alike", ("TD-R010",), "in its forward pass"),
    "exit-0": Answer("quits", ("TD-R007", "TD-R002")),
    "exit-1": Answer("helper", ("TD-R002", "TD-R007")),  # where the launcher does not say with which code
    "raise": Answer("catches", ("TD-R003",), "ValueError"),
    "kill": Answer("kills", ("TD-R002", "TD-R007"), "SIGKILL"),
    "oom-kill": Answer("peaks", ("TD-R002", "TD-R007"), "out of memory"),
    "segfault": Answer("crashes", ("TD-R002",), "SIGSEGV"),
    "memory": Answer("retries", ("TD-M002", "TD-R003")),
    "weights": Answer("own-head", ("TD-R008",), is_rank_named=False),
    "seeds": Answer("by-hand", ("TD-R008",), is_rank_named=False),
    "data": Answer("validates", ("TD-R009",), is_rank_named=False),
    "same-noise": Answer("own-noise", ("TD-R011",), is_rank_named=False, is_note=True),
    "hooks": Answer("accumulates", ("TD-R008",), is_rank_named=False),
}
CONTENDED = ("nice", "quota", "pool", "threads", "slow-data", "slow-forward", "growing", "checkpoints")
TWINS = tuple(answer.twin for answer in FAULTS.values())
HEALTHY = (*TWINS, "none", "computes", "evaluates", "logs")
# Of two ranks in two different calls neither is wrong by itself: both are named.
MUTUAL = ("skip", "leave", "order", "shape", "group")


@cache
def find_planted_lines(kind: str) -> tuple[str, ...]:
    """``file:line`` of each line of the programs that is marked as this fault."""
    return tuple(
        f"{path.name}:{number}"
        for path in sorted(PROGRAMS.glob("*.py"))
        for number, line in enumerate(path.read_text(encoding="utf-8").splitlines(), 1)
        if (found := PLANTED.search(line)) is not None and kind in found[1].split(", ")
    )


@dataclass(frozen=True)
class Case:
    """One run of the table. hang_s: the limit of a hang."""

    kind: str
    ranks: int
    by: str
    hang_s: float = HANG_S

    @property
    def rank(self) -> int:
        """The rank at fault: neither always the first nor always the last."""
        return sum(map(ord, self.kind + self.by)) % self.ranks

    @property
    def is_hang(self) -> bool:
        """True if the fault is a hang for certain, and so told while it lasts."""
        return self.kind in FAULTS and FAULTS[self.kind].codes == HANG

    @property
    def options(self) -> tuple[str, ...]:
        """Those of `tdbg run`. Without any of the limit the default one holds."""
        limit = ("--threshold", f"DISTRIBUTED.hang_s={self.hang_s}")
        return (*limit, "--stop-on", HANG[0]) if self.kind in FAULTS and FAULTS[self.kind].stops else limit

    @property
    def can_run(self) -> bool:
        """False where this machine, or this user, cannot do it."""
        return self.kind != "quota" or (CPU_GROUPS.is_dir() and os.access(CPU_GROUPS, os.W_OK))

    def build_command(self) -> list[str]:
        """The program and who starts it."""
        words = [str(PROGRAM), self.kind, "--rank", str(self.rank), "--by", self.by, "--nprocs", str(self.ranks)]
        if self.by == "torchrun":
            return ["torchrun", "--standalone", f"--nproc-per-node={self.ranks}", *words]
        if self.by == "accelerate":
            return [*ACCELERATE.split(), "--num_processes", str(self.ranks), *words]
        return [sys.executable, *words]

    def judge_answer(self, findings: list[dict[str, Any]]) -> str:
        """Empty if the verdict's findings are right; else what is wrong."""
        told = [found for found in findings if found["severity"] not in NOTES]
        if self.kind in HEALTHY:
            own = [
                code
                for answer in FAULTS.values()
                if answer.is_note and answer.twin == self.kind
                for code in answer.codes
            ]
            told += [found for found in findings if found["code"] in own and found not in told]
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
        return self._judge_text(first, json.dumps(first))

    def _judge_text(self, first: dict[str, Any], text: str) -> str:
        """Whether the words and the line are told."""
        lines = find_planted_lines(self.kind)
        if FAULTS[self.kind].words not in text:
            return f"without {FAULTS[self.kind].words!r}: {first['title']}"
        if lines and not any(re.search(rf"\b{re.escape(line)}\b", text) for line in lines):
            return f"without the line {' or '.join(lines)}: {first['title']}"
        return ""

    def _find_innocent(self, told: list[dict[str, Any]]) -> dict[str, Any] | None:
        """A finding that names another rank than the one at fault."""
        if not FAULTS[self.kind].is_rank_named:
            return None
        named = (found for found in told if found["rank"] not in (None, self.rank) and not self._is_mutual(found))
        return next((found for found in named if not any(words in found["title"] for words in LOST)), None)

    def judge_live(self, run: Path) -> str:
        """Empty unless something was told of a healthy run while it went on."""
        path = run / FINDINGS
        told = [found for found in (iter_json_lines(path) if path.exists() else ()) if found["severity"] not in NOTES]
        return f"told while it ran: {told[0]['code']} {told[0]['title']}" if told and self.kind in HEALTHY else ""

    def judge_delay(self, delay_s: float | None) -> str:
        """Empty if a hang was told in time; else what is wrong."""
        if not self.is_hang:
            return ""
        if delay_s is None:
            return "not told while it lasted"
        late = delay_s > self.hang_s + CONFIRM_S
        return f"told {delay_s:.1f} s after the last step, not within {self.hang_s + CONFIRM_S:g} s" if late else ""

    def measure_delay(self, run: Path) -> float | None:
        """Seconds from the last step of the rank at fault to the first live line of a wanted code; None without one."""
        codes = FAULTS[self.kind].codes if self.kind in FAULTS else ()
        path = run / FINDINGS
        live = (found["t"] for found in (iter_json_lines(path) if path.exists() else ()) if found["code"] in codes)
        told_t = next(live, None)
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


def list_cases(hang_s: float = HANG_S) -> list[Case]:
    """All of the table."""
    kinds = (*FAULTS, *HEALTHY)
    return [Case(kind, ranks, by, hang_s) for kind in kinds for ranks in (2, 4) for by in LAUNCHERS]


def list_tested() -> list[Case]:
    """What the tests run: every fourth fault, its twin and the other healthy programs, two ranks under torchrun.

    All of them (TDBG_TEST_ALL=1) take seven minutes more. Not those of too little CPU and of slow ranks: another test
    beside them takes CPU as well. test_slow_ranks.py has slow ranks whose time does not depend on that.
    """
    faults = pick_share((kind for kind in FAULTS if kind not in CONTENDED), 4)
    kinds = {*faults, *(FAULTS[kind].twin for kind in faults), *HEALTHY[len(TWINS) :]}
    return [case for case in list_cases() if case.ranks == 2 and case.by == "torchrun" and case.kind in kinds]


def remove_cpu_groups() -> None:
    """Remove the control groups of processes that are gone."""
    for folder in CPU_GROUPS.glob("tdbg-table-*"):
        try:
            folder.rmdir()
        except OSError:  # its process still lives
            continue
