"""Asks the live ranks of a run for their Python stacks, and reads those that a hang left behind."""

import contextlib
import os
import time
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import NamedTuple

from tdbg.core import run_files
from tdbg.core.config import Settings
from tdbg.core.files import read_json
from tdbg.core.host import find_signal_number, host_name, is_signal_caught
from tdbg.core.native_stack import STACKS_NOW
from tdbg.core.rundir import RunDir, find_live_owner
from tdbg.core.stack_tree import ThreadStack, parse_dump, parse_kept
from tdbg.launch.live import RankState, read_snapshot

ANSWER_S = 2.0  # a process that is stopped, or in an uninterruptible wait, does not answer
LOOK_S = 0.05  # without a byte more: the dump is complete
MAX_BYTES = 4 << 20
MAX_WORKERS = 64
MAX_THREADS = 64


class Stacks(NamedTuple):
    """The stacks of a run. t: when they were taken; silent: processes that did not answer, and why."""

    t: float
    is_live: bool
    found: list[ThreadStack]
    silent: dict[str, str]


def collect_stacks(run: RunDir) -> Stacks:
    """Of the ranks that live on this host, now; where none does, those that the run kept when it hung last."""
    snapshot = read_snapshot(run)
    found: list[ThreadStack] = []
    silent: dict[str, str] = {}
    asked: list[RankState] = []
    number = find_signal_number(snapshot.settings.stack_signal)
    for rank in snapshot.live:
        why = _explain_refusal(rank, snapshot.settings, number)
        if why:
            silent[f"rank {rank.rank}"] = why
            continue
        asked.append(rank)
    with ThreadPoolExecutor(
        max(min(len(asked), MAX_THREADS), 1)
    ) as pool:  # the stacks of one moment, and a wait in all
        answers = [answer for answers in pool.map(partial(_ask_rank, number=number), asked) for answer in answers]
    for name, pid, text in answers:
        found += parse_dump(text, name)
        if not text:
            silent[name] = f"process {pid} did not answer within {ANSWER_S:g} s"
    if found or silent:
        return Stacks(time.time(), True, found, silent)
    return _read_kept(run)


def _ask_rank(rank: RankState, number: int) -> list[tuple[str, int, str]]:
    """Name, process and answer of a rank and of its workers, one after the other: they write into one file."""
    file, pid = rank.process.path / STACKS_NOW, rank.pid or 0
    processes = [(f"rank {rank.rank}", pid), *_list_workers(pid, rank.rank, number)]
    return [(name, process, _ask_process(process, number, file)) for name, process in processes]


def _explain_refusal(rank: RankState, settings: Settings, number: int) -> str:
    """Why a rank cannot be asked; empty if it can. The signal would end a process that does not wait for it."""
    if rank.host != host_name():
        return f"runs on {rank.host}: run `tdbg stacks` there"
    if not number:
        return f"stack requests are off (--stack-signal {settings.stack_signal})"
    if rank.pid is None or find_live_owner(rank.process.path) != rank.pid:
        return "its process is gone"
    if not (rank.process.path / STACKS_NOW).exists() or not is_signal_caught(number, rank.pid):
        return (
            f"it does not answer SIG{settings.stack_signal}: no step has run yet, the level is off, or the program uses the"
            " signal itself (then choose another with --stack-signal)"
        )
    return ""


def _read_command(pid: int) -> bytes:
    with contextlib.suppress(OSError):
        return Path(f"/proc/{pid}/cmdline").read_bytes()
    return b""


def _list_workers(pid: int, rank: int, number: int) -> list[tuple[str, int]]:
    """Children that were forked after the rank began: loader workers."""
    with contextlib.suppress(OSError, ValueError):
        children = Path(f"/proc/{pid}/task/{pid}/children").read_text(encoding="ascii").split()[:MAX_WORKERS]
        forked = [int(child) for child in children if _read_command(int(child)) == _read_command(pid)]  # not exec'd
        return [(f"rank {rank} worker", child) for child in forked if is_signal_caught(number, child)]
    return []


def _ask_process(pid: int, number: int, file: Path) -> str:
    """What a process writes of its stacks; empty if it does not in time."""
    before = _measure_file(file)
    with contextlib.suppress(OSError):
        os.kill(pid, number)
    until = time.monotonic() + ANSWER_S
    seen = before
    while time.monotonic() < until:
        time.sleep(LOOK_S)
        now = _measure_file(file)
        if now > before and now == seen:  # it has ended: the handler writes at once
            break
        seen = now
    with contextlib.suppress(OSError):
        return run_files.read_bytes(file, MAX_BYTES + before)[before:].decode("utf-8", "replace")
    return ""


def _measure_file(file: Path) -> int:
    with contextlib.suppress(OSError):
        return file.stat().st_size
    return 0


def _read_kept(run: RunDir) -> Stacks:
    """The last stacks that each rank kept when it made no progress."""
    found: list[ThreadStack] = []
    newest = 0.0
    for process in run.list_processes():
        files = sorted(process.path.glob("stacks_step*.json"))
        if not files or process.rank is None:
            continue
        kept = read_json(files[-1])
        if isinstance(kept, dict) and isinstance(kept.get("threads"), dict):
            found += parse_kept(kept["threads"], f"rank {process.rank}")
            t = kept.get("t")
            newest = max(newest, t if isinstance(t, float) else 0.0)
    return Stacks(newest, False, found, {})
