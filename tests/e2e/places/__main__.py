"""Try tdbg where tests cannot: two hosts as network namespaces, a real SLURM, Ray Train.

python -m tests.e2e.places [namespaces] [slurm] [ray]

Says the date and the versions first, then a line for each trial: what was asked, and whether the answer names the rank.
Exits with 1 if one is wrong. It must be root for namespaces and slurm (slurmctld, slurmd and munged are started with one
node); ray needs ray[train] in this environment.
"""

import argparse
import datetime
import importlib.metadata
import importlib.util
import json
import os
import shutil
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from tests.e2e.conftest import build_environment

HERE = Path(__file__).parent
PATIENCE_S = 300
CLOCK_AHEAD_S = 3.0
HOSTS = {"a": "10.77.0.1", "b": "10.77.0.2"}
# A Python that starts in the place of this clock is three seconds ahead.
CLOCK = f"""import time
_time, _time_ns = time.time, time.time_ns
time.time = lambda: _time() + {CLOCK_AHEAD_S}
time.time_ns = lambda: _time_ns() + {int(CLOCK_AHEAD_S * 1e9)}
"""
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


def run_quietly(*words: str, **more: Any) -> subprocess.CompletedProcess[str]:
    return subprocess.run(words, capture_output=True, text=True, check=True, timeout=PATIENCE_S, **more)


def read_first_finding(run: Path) -> str:
    """The first finding of a run, read anew by `tdbg report`."""
    done = subprocess.run(
        [sys.executable, "-m", "tdbg", "report", str(run), "--json"], capture_output=True, text=True, check=False
    )
    findings = json.loads(done.stdout)["data"]["findings"] if done.stdout else []
    return f"{findings[0]['code']} {findings[0]['title']}" if findings else "silent"


def judge_answer(trial: str, said: str, *wanted: str) -> bool:
    right = all(words in said for words in wanted)
    print(f"{'right' if right else 'WRONG':<6}{trial:<44}{said[:150]}")
    sys.stdout.flush()
    return right


# two hosts


@contextmanager
def two_namespaces(folder: Path) -> Iterator[None]:
    """Two network namespaces with a cable between them, and a hosts file that both may use."""
    (folder / "hosts").write_text("127.0.0.1 localhost\n" + "".join(f"{ip} host-{n}\n" for n, ip in HOSTS.items()))
    delete_namespaces()  # of a trial that was killed
    try:
        for name in HOSTS:
            run_quietly("ip", "netns", "add", f"tdbg-{name}")
        run_quietly("ip", "link", "add", "cable-a", "type", "veth", "peer", "name", "cable-b")
        for name, address in HOSTS.items():
            run_quietly("ip", "link", "set", f"cable-{name}", "netns", f"tdbg-{name}")
            inside = ("ip", "netns", "exec", f"tdbg-{name}", "ip")
            run_quietly(*inside, "addr", "add", f"{address}/24", "dev", f"cable-{name}")
            run_quietly(*inside, "link", "set", f"cable-{name}", "up")
            run_quietly(*inside, "link", "set", "lo", "up")
        yield
    finally:
        delete_namespaces()


def delete_namespaces() -> None:
    for name in HOSTS:
        subprocess.run(["ip", "netns", "del", f"tdbg-{name}"], capture_output=True, check=False)


def start_host(name: str, folder: Path, run: str, fault: str, steps: int, ahead: bool) -> "subprocess.Popen[bytes]":
    """`tdbg run -- torchrun` on one of the hosts."""
    setting_up = f'hostname host-{name}; mount --bind "$0/hosts" /etc/hosts; exec "$@"'
    env = build_environment({"GLOO_SOCKET_IFNAME": f"cable-{name}"})
    if ahead:
        env["PYTHONPATH"] = str(folder / "ahead")
    words = [
        *("ip", "netns", "exec", f"tdbg-{name}", "unshare", "-um", "bash", "-c", setting_up, str(folder)),
        *(sys.executable, "-m", "tdbg", "run", "--run-dir", run, "--", sys.executable, "-m", "torch.distributed.run"),
        *("--nnodes=2", "--nproc-per-node=1", "--rdzv-backend=c10d", f"--rdzv-id={fault}"),
        *(f"--rdzv-endpoint={HOSTS['a']}:29500", f"--local-addr={HOSTS[name]}"),
        *(str(HERE / "train.py"), fault, str(steps)),
    ]
    log = (folder / f"{name}.txt").open("ab")
    return subprocess.Popen(words, cwd=folder, env=env, stdin=subprocess.DEVNULL, stdout=log, stderr=log)


def run_hosts(folder: Path, runs: tuple[str, str], fault: str, steps: int, *, ahead: bool, action: str = "") -> None:
    """Both hosts to their end; action: ``cut`` the cable or only ``end`` them once rank 1 has stepped for a while."""
    hosts = [
        start_host(name, folder, run, fault, steps, ahead and name == "b")
        for name, run in zip(HOSTS, runs, strict=True)
    ]
    if action:
        wait_for_steps(folder / runs[1] / "rank0001" / "events.jsonl")
        if action == "cut":
            switch_cable("down")
        time.sleep(80 if action == "cut" else 40)
        for host in hosts:
            host.terminate()
    for host in hosts:
        host.wait(PATIENCE_S)
    switch_cable("up")


def switch_cable(state: str) -> None:
    """Plug the cable of host b in (``up``) or out (``down``)."""
    run_quietly("ip", "netns", "exec", "tdbg-b", "ip", "link", "set", "cable-b", state)


def wait_for_steps(events: Path) -> None:
    deadline = time.monotonic() + PATIENCE_S
    while not (events.exists() and '"type":"step"' in events.read_text(encoding="utf-8", errors="replace")):
        if time.monotonic() > deadline:
            raise TimeoutError(events)
        time.sleep(0.5)
    time.sleep(5)


def try_namespaces(folder: Path) -> list[bool]:
    (folder / "ahead").mkdir()
    (folder / "ahead" / "sitecustomize.py").write_text(CLOCK, encoding="utf-8")
    right = []
    with two_namespaces(folder):
        run_hosts(folder, ("nan", "nan"), "nan", 60, ahead=False)
        right.append(
            judge_answer("NaN on host b, one run directory", read_first_finding(folder / "nan"), "TD-N001", "rank 1")
        )
        run_hosts(folder, ("cut", "cut"), "none", 100_000, ahead=False, action="cut")
        right.append(judge_answer("cable cut", read_first_finding(folder / "cut"), "TD-R006", "no rank"))
        run_hosts(folder, ("own-a", "own-b"), "hang", 100_000, ahead=True, action="end")
        alone = read_first_finding(folder / "own-a")
        right.append(judge_answer("hang on host b, what host a says", alone, "TD-R006", "another host"))
        joined = run_quietly(
            *(sys.executable, "-m", "tdbg", "join", "own-a", "own-b", "-o", "whole"), cwd=folder
        ).stdout
        whole = read_first_finding(folder / "whole")
        right.append(judge_answer("the same, joined, clocks 3 s apart", whole, "TD-R006", "rank 1 does not come"))
        right.append(judge_answer("its clock", joined.strip().splitlines()[-1].strip(), "clock", "s ahead"))
    return right


# SLURM


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
        run_quietly("srun", "-n", "2", *tdbg, sys.executable, str(HERE / "train.py"), "nan", "60", cwd=folder, env=env)
        (run,) = (folder / "tdbg_runs").glob("slurm-*")
        right.append(judge_answer("srun -n 2, NaN on rank 1", read_first_finding(run), "TD-N001", "rank 1"))
        script = folder / "job.sh"
        script.write_text(
            f"#!/bin/bash\nexport MASTER_PORT=$((29800 + SLURM_ARRAY_TASK_ID))\n"
            f"srun {' '.join(tdbg)} {sys.executable} {HERE / 'train.py'} none $STEPS\n",
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
    page = run_quietly(
        sys.executable, "-m", "tdbg", "report", str(folder / "tdbg_runs" / f"slurm-{job}.0-train")
    ).stdout
    line = next((line for line in page.splitlines() if line.startswith("restarts:")), "no restart")
    return judge_answer("scontrol requeue", line, "attempt 0", "attempt 1 ended at step 300")


# Ray


def try_ray(folder: Path) -> list[bool]:
    program = (sys.executable, str(HERE / "ray_train.py"), "nan", "60", str(folder / "results"))
    env = build_environment({"RAY_USAGE_STATS_ENABLED": "0"})
    run_quietly(sys.executable, "-m", "tdbg", "run", "--run-dir", "ray", "--", *program, cwd=folder, env=env)
    return [
        judge_answer("TorchTrainer, 2 workers, NaN on rank 1", read_first_finding(folder / "ray"), "TD-N001", "rank 1")
    ]


TRIALS = {"namespaces": try_namespaces, "slurm": try_slurm, "ray": try_ray}


def list_versions() -> str:
    found = [f"{name} {importlib.metadata.version(name)}" for name in ("tdbg", "torch")]
    for name in ("ray",):
        if importlib.util.find_spec(name):
            found.append(f"{name} {importlib.metadata.version(name)}")
    if shutil.which("slurmctld"):
        found.append(run_quietly("slurmctld", "-V").stdout.strip())
    return ", ".join([*found, f"kernel {os.uname().release}"])


def main() -> int:
    """Run the chosen trials, one after another."""
    parser = argparse.ArgumentParser(prog="python -m tests.e2e.places")
    parser.add_argument("places", nargs="*", choices=[*TRIALS, []])
    args = parser.parse_args()
    print(f"{datetime.datetime.now(datetime.UTC):%Y-%m-%d %H:%M} UTC: {list_versions()}")
    right: list[bool] = []
    for place in args.places or TRIALS:
        with tempfile.TemporaryDirectory(prefix=f"tdbg-{place}-", ignore_cleanup_errors=True) as folder:
            right += TRIALS[place](Path(folder))
    print(f"{sum(right)} of {len(right)} right")
    return 0 if all(right) else 1


if __name__ == "__main__":
    raise SystemExit(main())
