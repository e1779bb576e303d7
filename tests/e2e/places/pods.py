"""Pods as a PyTorchJob of Kubernetes starts them: its variables, a process tree and a host name each, one shared volume.

There is no cluster: the pods are two containers by hand (UTS, PID and mount namespaces) with one network.
"""

import socket
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path

import psutil

from tests.e2e.conftest import build_environment
from tests.e2e.places.answers import (
    PATIENCE_S,
    find_line,
    judge_answer,
    read_first_finding,
    read_restarts,
    wait_for_steps,
)
from tests.e2e.places.hosts import FOR_EVER

PROGRAM = Path(__file__).parent / "train.py"
PODS = ("train-master-0", "train-worker-0")
PYTHON = (sys.executable,)
TORCHRUN = (sys.executable, "-m", "torch.distributed.run")
HUNG_S = 40
# As in a pod, tdbg is the first process.
SETTING_UP = 'hostname "$1"; mount --bind "$0/hosts" /etc/hosts; shift; exec "$@"'


def build_pod_environment(rank: int, port: int) -> dict[str, str]:
    """What Kubernetes sets in every pod, and the operator where the job has a master."""
    meeting = {"MASTER_ADDR": PODS[0], "MASTER_PORT": str(port)}
    of_torchrun = {f"PET_{name}": value for name, value in meeting.items()}
    size = {"PET_NNODES": "2", "PET_NPROC_PER_NODE": "1", "PET_NODE_RANK": str(rank)}
    of_kubernetes = {"KUBERNETES_SERVICE_HOST": "10.96.0.1", "PYTHONUNBUFFERED": "1"}
    return {**of_kubernetes, **meeting, **of_torchrun, **size, "WORLD_SIZE": "2", "RANK": str(rank)}


def start_pod(
    name: str, folder: Path, run: str, variables: Mapping[str, str], words: Sequence[str]
) -> "subprocess.Popen[bytes]":
    container = ("unshare", "-umpf", "--mount-proc", "bash", "-c", SETTING_UP, str(folder), name)
    command = [*container, sys.executable, "-m", "tdbg", "run", "--run-dir", run, "--", *words]
    env = build_environment({"GLOO_SOCKET_IFNAME": "lo", **variables})
    with (folder / f"{name}.txt").open("ab") as log:
        return subprocess.Popen(command, cwd=folder, env=env, stdin=subprocess.DEVNULL, stdout=log, stderr=log)


def end_pod(pod: "subprocess.Popen[bytes]") -> None:
    """SIGTERM to the first process of a pod, as the kubelet sends it."""
    for child in psutil.Process(pod.pid).children():
        child.terminate()


def run_pods(
    folder: Path, run: str, words: Sequence[str], *, ends_after_s: float | None = None, port: int = 0
) -> list[int]:
    """Two pods with the same command, to their end or until this long after their first steps; returns their exit codes."""
    port = port or find_free_port()
    pods = [start_pod(name, folder, run, build_pod_environment(rank, port), words) for rank, name in enumerate(PODS)]
    if ends_after_s is not None:
        wait_for_steps(folder / run / "rank0001" / "events.jsonl")
        time.sleep(ends_after_s)
        for pod in pods:
            end_pod(pod)
    return [pod.wait(PATIENCE_S) for pod in pods]


def find_free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
    return port


def count_verdicts(folder: Path) -> int:
    """How many of the pods printed a verdict, of all jobs so far."""
    return sum((folder / f"{name}.txt").read_text(encoding="utf-8").count("verdict:") for name in PODS)


def try_kubernetes(folder: Path) -> list[bool]:
    """A program that needs no launcher, and torchrun without an option."""
    (folder / "hosts").write_text(f"127.0.0.1 localhost {' '.join(PODS)}\n", encoding="utf-8")
    return [*try_healthy(folder), *try_faults(folder), try_restart(folder)]


def try_healthy(folder: Path) -> list[bool]:
    right = []
    for number, (name, launcher) in enumerate({"python": PYTHON, "torchrun": TORCHRUN}.items(), 1):
        run = f"healthy-{number}"
        codes = run_pods(folder, run, (*launcher, str(PROGRAM), "none", "60"))
        said = f"{read_first_finding(folder / run)}, exit codes {codes}, {count_verdicts(folder) - number + 1} verdict"
        right.append(judge_answer(f"{name}, healthy", said, "silent, exit codes [0, 0], 1 verdict"))
    return right


def try_faults(folder: Path) -> list[bool]:
    run_pods(folder, "nan", (*PYTHON, str(PROGRAM), "nan", "60"))
    nan = judge_answer("python, NaN on rank 1", read_first_finding(folder / "nan"), "TD-N001", "rank 1")
    run_pods(folder, "hang", (*TORCHRUN, str(PROGRAM), "hang", str(FOR_EVER)), ends_after_s=HUNG_S)
    hang = ("TD-R006", "rank 1 does not come", find_line(PROGRAM, "hang"))
    return [nan, judge_answer("torchrun, rank 1 asleep", read_first_finding(folder / "hang"), *hang)]


def try_restart(folder: Path) -> bool:
    """Both pods are killed while they train, and started again with the same variables and the same directory."""
    port = find_free_port()
    run_pods(folder, "again", (*PYTHON, str(PROGRAM), "none", str(FOR_EVER)), ends_after_s=0, port=port)
    codes = run_pods(folder, "again", (*PYTHON, str(PROGRAM), "none", "60"), port=port)
    said = f"exit codes {codes}, {read_restarts(folder / 'again')}"
    return judge_answer("pods started again", said, "exit codes [0, 0]", "attempt 0", "attempt 1 ended at step 60")
