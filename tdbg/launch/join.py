"""Which directory a run gets, and which agents of one job share it.

Several `tdbg run` of one job (one per node, or one per task under srun) write into one directory. They
know each other by a job id: TORCHELASTIC_RUN_ID or SLURM_JOB_ID with its step, else what a multi-node
launcher's own options say (``--rdzv-id``, or its address), or the variables that a Kubernetes operator sets in
their place. The first one makes the directory and speaks; the others join. A run that is over is never joined,
except by the restart of its own job.
"""

import json
import os
import re
import time
from collections.abc import Iterator, Mapping, Sequence
from itertools import count
from pathlib import Path
from typing import Any

from tdbg.core import run_files
from tdbg.core.config import Settings
from tdbg.core.errors import LaunchError, TdbgError
from tdbg.core.files import read_json
from tdbg.core.host import host_name
from tdbg.core.ownership import TRUST, describe_risk, is_exempt
from tdbg.core.rundir import AGENTS, RUNS, STATE_FILE, RunDir, is_process_alive, process_start, restart_count
from tdbg.core.urls import is_url
from tdbg.launch.command import short_name

# Options by which the agents of one multi-node job find each other, as torchrun and accelerate spell them.
MEETING_POINT = (
    "rdzv-id",
    "rdzv-endpoint",
    "master-addr",
    "master-port",
    "main-process-ip",
    "main-process-port",
    "deepspeed-multinode-launcher",
)
NODE_COUNT = ("nnodes", "num-machines")
OPTION_VARIABLE = "PET_"  # torchrun takes an option that was not given from the variable of this prefix and its name
IN_KUBERNETES = "KUBERNETES_SERVICE_HOST"  # Kubernetes sets it in every container
# Agents that start together come within this time, though torch elastic may count different restarts on each node.
ONE_ROUND_S = 60.0


def job_from_env(environ: Mapping[str, str]) -> str:
    """The id that all agents of a job find in their environment, or an empty string."""
    meeting = f"{environ.get('MASTER_ADDR', '')}:{environ.get('MASTER_PORT', '')}".strip(":")
    elastic = environ.get("TORCHELASTIC_RUN_ID", "")
    if elastic:
        return f"elastic-{elastic}" + (f"@{meeting}" if elastic == "none" else "")
    if environ.get("SLURM_JOB_ID") and environ.get("SLURM_STEP_ID"):
        return f"slurm-{_name_slurm_job(environ)}.{environ['SLURM_STEP_ID']}"
    if meeting and environ.get("NODE_RANK"):
        return f"nodes@{meeting}"
    return ""


def _name_slurm_job(environ: Mapping[str, str]) -> str:
    """The job as SLURM's commands name it: a task of an array by the array's number and its own, else by its id."""
    array, task = environ.get("SLURM_ARRAY_JOB_ID"), environ.get("SLURM_ARRAY_TASK_ID")
    return f"{array}_{task}" if array and task else environ["SLURM_JOB_ID"]


def job_from_command(command: Sequence[str], environ: Mapping[str, str] = {}) -> str:
    """The id that a launcher's own options, or variables in their place, make for a job of several nodes, or ``""``."""
    given = {**_read_option_variables(environ), **_parse_options(command)}
    nodes = [given[name].rpartition(":")[2] for name in NODE_COUNT if name in given]
    several = any(count.isdecimal() and int(count) > 1 for count in nodes)
    if not several and "rdzv-id" not in given:
        return ""
    return ",".join(f"{name}={given[name]}" for name in MEETING_POINT if name in given) or "nodes"


def job_from_ranks(environ: Mapping[str, str]) -> str:
    """The id of a job whose ranks are each started by themselves, with RANK and WORLD_SIZE, or an empty string."""
    meeting, rank, world = (environ.get(name, "") for name in ("MASTER_ADDR", "RANK", "WORLD_SIZE"))
    if not meeting or not rank.isdecimal() or not world.isdecimal() or int(world) < 2:
        return ""
    return f"ranks@{_name_this_host(meeting)}:{environ.get('MASTER_PORT', '')}"


def _name_this_host(address: str) -> str:
    """The name of this host in place of ``localhost``, which is another machine wherever it is read.

    Older PyTorchJob operators give ``localhost`` to the master, and the master's name to the workers.
    """
    is_local = address in ("localhost", "::1") or address.startswith("127.")
    return host_name() if is_local else address


def _read_option_variables(environ: Mapping[str, str]) -> dict[str, str]:
    """``PET_RDZV_ID=7`` is ``--rdzv-id 7``: so a PyTorchJob of Kubernetes tells torchrun."""
    found = (
        (name.removeprefix(OPTION_VARIABLE), value)
        for name, value in environ.items()
        if name.startswith(OPTION_VARIABLE)
    )
    return {name.lower().replace("_", "-"): value for name, value in found if value}


def _parse_options(command: Sequence[str]) -> dict[str, str]:
    """``--name value`` and ``--name=value`` of a command line, with ``_`` and ``-`` alike."""
    found: dict[str, str] = {}
    for word, following in zip(command, [*command[1:], ""], strict=True):
        if word.startswith("--"):
            name, has_value, value = word[2:].partition("=")
            found.setdefault(name.replace("_", "-"), value if has_value else following)
    return found


def open_run(
    settings: Settings, command: Sequence[str], environ: Mapping[str, str], record: Mapping[str, object]
) -> tuple[RunDir, bool]:
    """Make the run's directory, or join it; returns it and whether this agent leads (makes it, and speaks).

    Raises TdbgError for a directory that holds another run, LaunchError for one that cannot be written.
    """
    shared = job_from_env(environ)
    job = shared or job_from_command(command, environ) or job_from_ranks(environ)
    restart = restart_count(environ)
    path = choose_path(settings, command, shared, restart)
    before = _read_state(path)
    restart = max(restart, _count_pod_restart(before, job, environ))
    if before and is_over(before, restart):
        job = ""  # not to be joined: create() refuses it in its own words
    run, joined = RunDir.create(path, {**record, "restart": restart}, job=job, shared=settings.share)
    if not joined:
        return run, True
    _enter_node(run)
    is_leaderless = bool(before) and (_has_ended(before) or _is_left_behind(run, before, restart))
    return run, is_leaderless and _takes_over(run, restart)


def intended_path(settings: Settings, command: Sequence[str], environ: Mapping[str, str]) -> Path:
    """Where the run would be kept if no other run were there; nothing is written."""
    return next(_iter_candidate_paths(settings, command, job_from_env(environ)))


def choose_path(settings: Settings, command: Sequence[str], shared: str, restart: int) -> Path:
    """The directory asked for, or a new one under ./tdbg_runs; one per job where its agents share an id."""
    if _names_folder(settings):
        return Path(settings.run_dir).absolute()
    for path in _iter_candidate_paths(settings, command, shared):
        _make_runs_folder(path.parent)
        if _is_ours(path, bool(shared), restart, run_files.folder_mode(settings.share)):
            return path
    raise AssertionError("the candidates have no end")


def _names_folder(settings: Settings) -> bool:
    """True if a directory is asked for. A URL is none: the run is written here as ever, and copied there."""
    return bool(settings.run_dir) and not is_url(settings.run_dir)


def _iter_candidate_paths(settings: Settings, command: Sequence[str], shared: str) -> Iterator[Path]:
    """Names for the run, the best first; numbered when earlier ones are taken."""
    if _names_folder(settings):
        yield Path(settings.run_dir).absolute()
    name = settings.name or short_name(command)
    if not re.fullmatch(r"[^/\0]{1,200}", name) or name in (".", ".."):
        raise TdbgError(f"invalid run name: {name!r}", "use no '/' and at most 200 characters, or --run-dir PATH")
    stem = re.sub(r"[^A-Za-z0-9._-]+", "-", shared or time.strftime("%Y%m%d-%H%M%S"))
    folder = Path(RUNS).absolute()
    yield folder / f"{stem}-{name}"
    yield from (folder / f"{stem}-{name}-{number}" for number in count(2))


def _is_ours(path: Path, shared: bool, restart: int, mode: int) -> bool:
    """True if this run may have ``path``: it was free and is now taken, or it is a job's that is going on."""
    try:
        path.mkdir(mode=mode)
        return True
    except FileExistsError:
        return shared and not is_over(_read_state(path), restart)
    except OSError as error:
        raise _build_unwritable_error(path, error) from None


def _make_runs_folder(folder: Path) -> None:
    """Make ``tdbg_runs``. Whoever may rename what is in it could put a run of their own in place of ours."""
    try:
        folder.mkdir(mode=0o755, parents=True, exist_ok=True)  # also where the umask leaves the group its writing
        risk = "" if is_exempt(folder) else describe_risk(folder.stat())
    except OSError as error:
        raise _build_unwritable_error(folder, error) from None
    if risk:
        raise LaunchError(
            f"other users could change the runs folder {folder}: {risk}",
            f"choose another with --run-dir; if you trust those users, set {TRUST}={folder}",
        )


def _build_unwritable_error(path: Path, error: OSError) -> LaunchError:
    return LaunchError(
        f"cannot write the run directory {path}: {error.strerror or error}",
        "choose a writable one with --run-dir",
    )


def _read_state(path: Path) -> dict[str, object]:
    """What run.json in ``path`` holds, if there is one yet."""
    try:
        found = read_json(path / STATE_FILE)
    except (OSError, ValueError):
        return {}
    return found if isinstance(found, dict) else {}


def is_over(state: Mapping[str, Any], restart: int) -> bool:
    """True if the run has ended, by its own word or because its supervisor is dead, and was not restarted since."""
    return _has_ended(state) and restart <= int(state.get("restart", 0))


def _count_pod_restart(state: Mapping[str, Any], job: str, environ: Mapping[str, str]) -> int:
    """Which restart this is if Kubernetes starts a pod of a failed job again, as no variable says so; else 0."""
    is_same_job = bool(job) and state.get("job") == job and IN_KUBERNETES in environ
    has_failed = _has_ended(state) and (state.get("exit") or {}).get("code") != 0
    return int(state.get("restart", 0)) + 1 if is_same_job and has_failed else 0


def _has_ended(state: Mapping[str, Any]) -> bool:
    chief = state.get("supervisor") or {}
    if state.get("end") is not None:
        return True
    return is_process_alive(chief.get("pid"), chief.get("host"), chief.get("started")) is False


def _is_left_behind(run: RunDir, state: Mapping[str, Any], restart: int) -> bool:
    """True if the leader was of an earlier attempt on another host: one that died with its host noted no end."""
    chief = state.get("supervisor") or {}
    if restart <= int(state.get("restart", 0)) or is_process_alive(
        chief.get("pid"), chief.get("host"), chief.get("started")
    ):
        return False
    try:
        return all(time.time() - mark.stat().st_mtime > ONE_ROUND_S for mark in run.path.glob(".leader-*"))
    except OSError:  # the file system says nothing: follow, which spoils no other agent's verdict
        return False


def _takes_over(run: RunDir, restart: int) -> bool:
    """Of the agents of a restarted job, one speaks: the first to leave its mark."""
    try:
        os.close(run_files.open_file(run.path / f".leader-{restart}", os.O_CREAT | os.O_EXCL | os.O_WRONLY))
    except OSError:
        return False
    run.update_info(restart=restart, end=None, exit=None, stopped=None, stop_times=None, supervisor=describe_process())
    return True


def describe_process() -> dict[str, object]:
    """This process, so that others can tell whether it still lives."""
    return {"pid": os.getpid(), "host": host_name(), "started": process_start(os.getpid())}


def agent_name() -> str:
    """This process among the agents of a job."""
    return f"{host_name()}-{os.getpid()}"


def _enter_node(run: RunDir) -> None:
    """A joining agent writes a file of its own: nobody but the leader touches run.json."""
    mine = describe_process()
    folder = run.path / AGENTS
    try:
        text = json.dumps({**mine, "start": time.time()})
        run_files.write_atomically(folder / f"{agent_name()}.json", text.encode(), makes=True)
    except OSError as error:
        raise LaunchError(f"cannot write {folder}: {error.strerror or error}", "check space and permissions") from None


def read_nodes(run: RunDir) -> list[dict[str, object]]:
    """The agents that joined, in order of time."""
    found = []
    for path in (run.path / AGENTS).glob("*.json"):
        try:
            found.append(read_json(path))
        except (OSError, ValueError):
            continue
    return sorted(found, key=lambda node: float(node.get("start", 0)))
