"""How long commands take, and how much memory, on the run of a large job: 1,024 ranks with 1,000 step records each.

    python benchmarks/many_ranks.py [--ranks N] [--steps N] [--rounds N] [--keep DIR] [--check]

The run directory is made up: every rank's start, its steps, and a line of log a step; one rank is slow from step 400 on.
After the last step one hangs, the others wait for it in a collective, and all tell of that twice until the job is killed;
the CPU time is printed that TD-R006 takes for these, as they are fed to it live. Each command is run in turn, ``--rounds`` times; printed are the median wall time, the largest peak of resident
memory and the lines of its output. ``--check`` exits with 1 where a command takes more than 5 s or 300 MB, or prints more
than one screen.
"""

import argparse
import json
import os
import random
import resource
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from tdbg.core.config import Settings
from tdbg.core.events import Cost, Event, Observation, Params, Start, Step, encode
from tdbg.core.rundir import EVENTS, ProcessDir, RunDir, rank_folder
from tdbg.rules.kept_verdict import save_verdict
from tdbg.rules.r006_rank_quiet import RankQuiet
from tdbg.rules.rule_engine import judge_run

MOST_S, MOST_MB, MOST_LINES = 5.0, 300.0, 24
SLOW_FROM, SLOW_MS = 400, 40.0
QUIET_TIMES_S = (16.0, 32.0)
HANG_FED_S = 2.0
COMMANDS = {
    "report": ["report", "{run}"],
    "status": ["status", "{run}"],
    "filter-logs --collapse": ["filter-logs", "{run}", "--collapse"],
    "metrics show": ["metrics", "show", "{run}"],
}


def list_rank_events(rank: int, ranks: int, steps: int) -> list[Event]:
    """The events of one rank."""
    draw = random.Random(rank)
    slow = ranks // 3
    checksums = {"group": list(range(ranks)), "wrapped": True, "names": ["x"], "checksums": [str(rank)]}
    found: list[Event] = [
        Start(rank=rank, world_size=ranks, host=f"node{rank // 8:03d}", pid=1000 + rank),
        Params(names=["w"], numel=[4], optimizers=["AdamW"]),
        Observation(probe="rank-batches", part="BATCH", step=1, values=checksums),
    ]
    for step in range(1, steps + 1):
        extra = SLOW_MS if step > SLOW_FROM else 0.0
        own = extra if rank == slow else 0.0
        found.append(
            Step(
                step=step,
                loss=2.0 + draw.random() / step,
                lr=[1e-3],
                grad_norm=1.0 + draw.random(),
                finite=True,
                checked="all",
                loader_ms=1.0 + draw.random() + own,
                forward_ms=20.0 + draw.random(),
                backward_ms=40.0 + extra - own,
                optimizer_ms=2.0,
                step_ms=66.0 + extra,
            )
        )
    return [*found, Cost(step=steps, own_ms=50.0, wall_ms=66.0 * steps)]


def list_hang_events(rank: int, ranks: int, steps: int, begun_t: float) -> list[Event]:
    """What a rank tells of the hang after the last step."""
    is_hung = rank == 2 * ranks // 3
    call = {} if is_hung else {"op": "all_reduce", "group": "world", "number": steps + 1, "size": ranks}
    values = {
        "state": "elsewhere" if is_hung else "collective",
        "activity": "sleep" if is_hung else "waiting",
        "began_t": begun_t,
        "counts": {"world": steps + (not is_hung), f"tensor{rank // 8}": steps},
        "where": "train.py:88 in evaluate" if is_hung else "train.py:41 in main",
        "limit_s": 15.0,
        **call,
    }
    return [
        Observation(
            t=begun_t + quiet_s + rank * 1e-4,
            probe="hang",
            flag="DISTRIBUTED",
            part="QUIET",
            step=steps + 1,
            text="-",
            values={**values, "quiet_s": quiet_s},
        )
        for quiet_s in QUIET_TIMES_S
    ]


def measure_hang(run: RunDir, ranks: int, steps: int) -> float:
    """Seconds of CPU time that TD-R006 takes for what all ranks tell of the hang, in the order of time."""
    rule, rows = RankQuiet(), []
    for rank in range(ranks):
        process = ProcessDir(run, rank_folder(run.path, rank))
        rule.feed(process, Start(rank=rank, world_size=ranks))
        rows += [(event.t, process, event) for event in list_hang_events(rank, ranks, steps, 1.7e9)]
    rows.sort(key=lambda row: row[0])
    begun = time.process_time()
    found = [one.rank for _, process, event in rows for one in rule.feed(process, event)]
    spent_s = time.process_time() - begun
    assert found == [2 * ranks // 3], found
    return spent_s


def write_run(folder: Path, ranks: int, steps: int) -> Path:
    """A run directory as such a job leaves it."""
    settings = Settings().as_dict()
    run, _ = RunDir.create(folder, {"command": ["torchrun", "train.py"], "settings": settings, "start": 1.0})
    for rank in range(ranks):
        place = rank_folder(run.path, rank)
        place.mkdir()
        with open(place / EVENTS, "wb") as events:
            for number, event in enumerate(list_rank_events(rank, ranks, steps)):
                event.t = 1.7e9 + 0.066 * number + rank * 1e-4
                events.write(encode(event))
            for event in list_hang_events(rank, ranks, steps, 1.7e9 + 0.066 * (steps + 4)):
                events.write(encode(event))
        with open(place / "metrics.jsonl", "w", encoding="utf-8") as metrics:
            print(
                json.dumps({"schema": 1, "run": "run", "rank": rank, "attempt": 0, "t": 1.7e9, "pid": 1000}),
                file=metrics,
            )
            for step in range(1, steps + 1):
                row = {"t": 1.7e9 + 0.066 * step, "step": step, "phase": "train", "rank": rank, "source": "tdbg"}
                print(json.dumps({**row, "values": {"train/loss": 2.0 + 1 / step, "lr/group0": 1e-3}}), file=metrics)
        with open(place / f"info_log_rank{rank}.txt", "w", encoding="utf-8") as log:
            for step in range(1, steps + 1, 10):
                log.write(f"2026-11-27 12:00:{step % 60:02d} INFO train: step {step} of {steps} is done\n")
    verdict = judge_run(run, -15)
    save_verdict(run, verdict)
    run.update_info(end=1.7e9 + 0.07 * steps + 2 * QUIET_TIMES_S[-1], exit={"code": None, "signal": 15})
    return run.path


def measure_command(words: list[str]) -> tuple[float, float, int]:
    """Seconds, megabytes at the peak, and lines of the output."""
    begun = time.perf_counter()
    with tempfile.TemporaryFile() as output:
        process = subprocess.Popen([sys.executable, "-m", "tdbg", *words], stdout=output, stderr=subprocess.DEVNULL)
        _, code, usage = os.wait4(process.pid, 0)
        seconds = time.perf_counter() - begun
        process.returncode = code
        output.seek(0)
        lines = output.read().count(b"\n")
    return seconds, usage.ru_maxrss / (1024 if sys.platform == "linux" else 1024**2), lines


def main() -> int:
    """Make the run, then time the commands."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--ranks", type=int, default=1024)
    parser.add_argument("--steps", type=int, default=1000)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--keep", type=Path, metavar="DIR")
    parser.add_argument("--check", action="store_true")
    options = parser.parse_args()
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    failed = False
    with tempfile.TemporaryDirectory(prefix="ranks") as temporary:
        folder = options.keep or Path(temporary) / "run"
        run = folder if folder.exists() else write_run(folder, options.ranks, options.steps)
        print(f"{options.ranks:,} ranks, {options.ranks * options.steps:,} step records")
        hang_s = measure_hang(RunDir(run), options.ranks, options.steps)
        failed = hang_s > HANG_FED_S
        print(f"{'TD-R006 of a hang, fed':<24}{hang_s:7.2f} s")
        for name, words in COMMANDS.items():
            rounds = [measure_command([word.format(run=run) for word in words]) for _ in range(options.rounds)]
            seconds, peak_mb = statistics.median(row[0] for row in rounds), max(row[1] for row in rounds)
            lines = rounds[0][2]
            kept = seconds <= MOST_S and peak_mb <= MOST_MB and lines <= MOST_LINES
            failed = failed or not kept
            print(f"{name:<24}{seconds:7.2f} s {peak_mb:6.0f} MB {lines:5} lines{'' if kept else '   above the limit'}")
    return 1 if failed and options.check else 0


if __name__ == "__main__":
    raise SystemExit(main())
