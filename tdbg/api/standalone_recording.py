"""A watch that records into a run directory, for programs that were not started with `tdbg run`."""

import os
import sys
import time
from collections.abc import Iterator
from itertools import count
from pathlib import Path
from typing import TYPE_CHECKING

from tdbg.api.session import LOG, Session
from tdbg.core.errors import LaunchError, TdbgError
from tdbg.core.rundir import STATE_FILE, RunDir
from tdbg.core.urls import is_url

if TYPE_CHECKING:
    from tdbg.core.config import Settings
    from tdbg.inject.on.torch_ import Rank


def start_recording(owner: str, settings: "Settings") -> Session | None:
    """A watch that writes ``settings.run_dir``, which every tdbg command can read; None where it cannot be written.

    A directory that holds a run that is over stays as it is: ``-2``, ``-3``, ... is added to the name. The ranks
    of one job write into one directory. Raises TdbgError for a directory that holds other files.
    """
    from tdbg.inject.agent import Agent
    from tdbg.inject.on.torch_ import Rank

    if is_url(settings.run_dir):
        raise TdbgError("run_dir is a URL, and must be a directory", "`tdbg run --run-dir URL` copies a run to a store")
    try:
        run, leads = _open_run_dir(Path(settings.run_dir).absolute(), settings)
        begun = time.perf_counter()
        agent = Agent(run.path, settings, speaks=False, third_party=run.read_info().get("third_party_probes"))
        agent.write_hello()
    except (LaunchError, OSError) as error:
        LOG.warning("tdbg: %s; events are kept in memory", error)
        return None
    rank = Rank(agent, begun)
    return Session(rank.monitor, owner, agent=agent, end=lambda code: _end_recording(rank, run, leads, code))


def _end_recording(rank: "Rank", run: RunDir, leads: bool, code: int) -> None:
    import atexit

    rank.record_process_end()
    atexit.unregister(rank.record_process_end)
    if rank.feed is not None:
        rank.feed.close()
    rank.me.close_files()
    if leads:
        from tdbg.launch import provenance

        run.update_info(end=time.time(), exit={"code": code, "signal": None}, ranks=provenance.collect_rank_info(run))


def _open_run_dir(path: Path, settings: "Settings") -> tuple[RunDir, bool]:
    """The directory, and whether this process made it."""
    from tdbg.launch import provenance

    job, words = _resolve_job(), [sys.executable, *sys.argv]
    for candidate in _iter_candidate_paths(path):
        settings.run_dir = str(candidate)
        if not _is_free(candidate, job):
            continue
        about = provenance.collect_provenance(settings, {}, words, os.environ, speaks="rank")
        try:
            run, joined = RunDir.create(candidate, about, job=job)
        except TdbgError:
            if (candidate / STATE_FILE).exists():  # another run was first
                continue
            raise
        return run, not joined
    raise AssertionError("the names have no end")


def _is_free(path: Path, job: str) -> bool:
    """True if there is no run yet, or one of this very job that goes on."""
    from tdbg.launch.join import is_over

    if not (path / STATE_FILE).exists():
        return True
    try:
        state = RunDir(path).read_info()
    except TdbgError:  # somebody's, and damaged
        return False
    return bool(job) and state.get("job") == job and not is_over(state, 0)


def _iter_candidate_paths(path: Path) -> Iterator[Path]:
    yield path
    yield from (path.with_name(f"{path.name}-{number}") for number in count(2))


def _resolve_job() -> str:
    """What the ranks of this job share, or an empty string: then a directory is for one process."""
    from tdbg.launch.join import job_from_env

    meeting = f"{os.environ.get('MASTER_ADDR', '')}:{os.environ.get('MASTER_PORT', '')}"
    return job_from_env(os.environ) or (f"ranks@{meeting}" if meeting != ":" else "")
