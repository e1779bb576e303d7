"""A real SLURM of one node."""

import os
import shutil
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from tests.e2e.conftest import build_environment
from tests.e2e.places.answers import (
    PATIENCE_S,
    judge_answer,
    read_first_finding,
    read_restarts,
    run_quietly,
    wait_for_steps,
)

PROGRAM = Path(__file__).parent / "train.py"
SLURM_CONF = """ClusterName=trial
SlurmctldHost={host}
SlurmUser=root
SlurmdUser=root
AuthType=auth/munge
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
SwitchType=switch/none
MpiDefault=none
ReturnToService=2
SlurmctldPidFile={folder}/ctld.pid
SlurmdPidFile={folder}/slurmd.pid
SlurmdSpoolDir={folder}/spool
StateSaveLocation={folder}/state
SlurmctldLogFile={folder}/ctld.log
SlurmdLogFile={folder}/slurmd.log
SelectType=select/cons_tres
SelectTypeParameters=CR_Core
NodeName={host} CPUs=2 Boards=1 SocketsPerBoard=1 CoresPerSocket=2 ThreadsPerCore=1 State=UNKNOWN
PartitionName=all Nodes=ALL Default=YES MaxTime=INFINITE State=UP OverSubscribe=FORCE:4
"""


@contextmanager
def one_node_cluster(folder: Path) -> Iterator[None]:
    """munged, slurmctld and slurmd, with this machine as the only node."""
    conf = folder / "slurm.conf"
    for name in ("spool", "state"):
        (folder / name).mkdir()
    conf.write_text(SLURM_CONF.format(host=socket.gethostname().partition(".")[0], folder=folder), encoding="utf-8")
    os.environ["SLURM_CONF"] = str(conf)
    if subprocess.run(["munge", "-n"], capture_output=True, check=False).returncode:
        Path("/run/munge").mkdir(exist_ok=True)
        shutil.chown("/run/munge", "munge")
        run_quietly("runuser", "-u", "munge", "--", "munged")
    daemons = [
        subprocess.Popen([name, "-D"], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        for name in ("slurmctld", "slurmd")
    ]
    try:
        deadline = time.monotonic() + 60
        while "idle" not in subprocess.run(["sinfo"], capture_output=True, text=True, check=False).stdout:
            if time.monotonic() > deadline:
                raise TimeoutError("no node became idle")
            time.sleep(1)
        yield
    finally:
        for daemon in daemons:
            daemon.terminate()
            daemon.wait(30)


def try_slurm(folder: Path) -> list[bool]:
    right = []
    env = build_environment({"SLURM_CONF": str(folder / "slurm.conf"), "MASTER_PORT": "29771"})
    with one_node_cluster(folder):
        tdbg = (sys.executable, "-m", "tdbg", "run", "--")
        run_quietly("srun", "-n", "2", *tdbg, sys.executable, str(PROGRAM), "nan", "60", cwd=folder, env=env)
        (run,) = (folder / "tdbg_runs").glob("slurm-*")
        right.append(judge_answer("srun -n 2, NaN on rank 1", read_first_finding(run), "TD-N001", "rank 1"))
        script = folder / "job.sh"
        script.write_text(
            f"#!/bin/bash\nexport MASTER_PORT=$((29800 + SLURM_ARRAY_TASK_ID))\n"
            f"srun {' '.join(tdbg)} {sys.executable} {PROGRAM} none $STEPS\n",
            encoding="utf-8",
        )
        array = ("sbatch", "--wait", "--ntasks=2", "--output=/dev/null", "--parsable")
        done = run_quietly(*array, "--array=1-2", str(script), cwd=folder, env={**env, "STEPS": "60"})
        job = done.stdout.strip().partition(";")[0]
        found = sorted(path.name for path in (folder / "tdbg_runs").glob(f"slurm-{job}_*"))
        right.append(judge_answer("sbatch --array=1-2", " ".join(found), f"slurm-{job}_1.", f"slurm-{job}_2."))
        right.append(requeue_job(folder, script, {**env, "STEPS": "300"}))
    return right


def requeue_job(folder: Path, script: Path, env: dict[str, str]) -> bool:
    """A job that is put back into the queue while it trains is a second attempt of the same run."""
    sbatch = ("sbatch", "--requeue", "--ntasks=2", "--output=/dev/null", "--parsable", "--array=7")
    job = run_quietly(*sbatch, str(script), cwd=folder, env=env).stdout.strip() + "_7"
    wait_for_steps(folder / "tdbg_runs" / f"slurm-{job}.0-train" / "rank0001" / "events.jsonl")
    run_quietly("scontrol", "requeue", job, env=env)
    time.sleep(10)
    run_quietly("scontrol", "update", f"job={job}", "StartTime=now", env=env)
    deadline = time.monotonic() + PATIENCE_S
    while run_quietly("squeue", "-h", env=env).stdout.strip() and time.monotonic() < deadline:
        time.sleep(2)
    line = read_restarts(folder / "tdbg_runs" / f"slurm-{job}.0-train")
    return judge_answer("scontrol requeue", line, "attempt 0", "attempt 1 ended at step 300")
