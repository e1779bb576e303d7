"""Two hosts as network namespaces, with a cable between them."""

import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from tests.e2e.conftest import build_environment
from tests.e2e.places.answers import PATIENCE_S, judge_answer, read_first_finding, run_quietly, wait_for_steps
from tests.e2e.places.slow_cable import SlowCable

PROGRAM = Path(__file__).parent / "train.py"
CLOCK_AHEAD_S = 3.0
HOSTS = {"a": "10.77.0.1", "b": "10.77.0.2"}
CABLE = ("cable-a", "cable-b")
FOR_EVER = 100_000
# A Python that starts in the place of this clock is three seconds ahead.
CLOCK = f"""import time
_time, _time_ns = time.time, time.time_ns
time.time = lambda: _time() + {CLOCK_AHEAD_S}
time.time_ns = lambda: _time_ns() + {int(CLOCK_AHEAD_S * 1e9)}
"""
# Of the slow cable: a step of 25 ms then needs some four packets' time more.
DELAY_S, BYTES_PER_S, SLOW_STEPS = 0.02, 1_000_000.0, 500
Agents = list["subprocess.Popen[bytes]"]
Action = Callable[[Agents], object]


@contextmanager
def two_namespaces(folder: Path) -> Iterator[None]:
    """Two network namespaces without a cable, and a hosts file that both may use."""
    (folder / "hosts").write_text("127.0.0.1 localhost\n" + "".join(f"{ip} host-{n}\n" for n, ip in HOSTS.items()))
    delete_namespaces()  # of a trial that was killed
    try:
        for name in HOSTS:
            run_quietly("ip", "netns", "add", f"tdbg-{name}")
        yield
    finally:
        delete_namespaces()


def delete_namespaces() -> None:
    for name in HOSTS:
        subprocess.run(["ip", "netns", "del", f"tdbg-{name}"], capture_output=True, check=False)


@contextmanager
def plain_cable() -> Iterator[None]:
    run_quietly("ip", "link", "add", CABLE[0], "type", "veth", "peer", "name", CABLE[1])
    plug_cable_in()
    try:
        yield
    finally:
        run_quietly("ip", "netns", "exec", "tdbg-a", "ip", "link", "del", CABLE[0])


@contextmanager
def slow_cable() -> Iterator[SlowCable]:
    cable = SlowCable(CABLE)
    try:
        plug_cable_in()
        yield cable
    finally:
        cable.remove()


def plug_cable_in() -> None:
    for name, address in HOSTS.items():
        run_quietly("ip", "link", "set", f"cable-{name}", "netns", f"tdbg-{name}")
        inside = ("ip", "netns", "exec", f"tdbg-{name}", "ip")
        run_quietly(*inside, "addr", "add", f"{address}/24", "dev", f"cable-{name}")
        run_quietly(*inside, "link", "set", f"cable-{name}", "up")
        run_quietly(*inside, "link", "set", "lo", "up")


def switch_cable(state: str) -> None:
    """Plug the cable of host b in (``up``) or out (``down``)."""
    run_quietly("ip", "netns", "exec", "tdbg-b", "ip", "link", "set", CABLE[1], state)


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
        *(str(PROGRAM), fault, str(steps)),
    ]
    with (folder / f"{name}.txt").open("ab") as log:
        return subprocess.Popen(words, cwd=folder, env=env, stdin=subprocess.DEVNULL, stdout=log, stderr=log)


def run_hosts(
    folder: Path, runs: tuple[str, str], fault: str, steps: int, *, ahead: bool = False, action: Action | None = None
) -> None:
    """Both hosts to their end; action: what happens to them once rank 1 has stepped for a while."""
    hosts = [
        start_host(name, folder, run, fault, steps, ahead and name == "b")
        for name, run in zip(HOSTS, runs, strict=True)
    ]
    if action is not None:
        wait_for_steps(folder / runs[1] / "rank0001" / "events.jsonl")
        action(hosts)
    for host in hosts:
        host.wait(PATIENCE_S)


def cut_cable(hosts: Agents) -> None:
    """Pull the plug of host b, and end both hosts a while later."""
    switch_cable("down")
    time.sleep(80)
    end_hosts(hosts)


def end_later(hosts: Agents) -> None:
    time.sleep(40)
    end_hosts(hosts)


def end_hosts(hosts: Agents) -> None:
    for host in hosts:
        host.terminate()


def try_namespaces(folder: Path) -> list[bool]:
    """A NaN, a cut cable, a slow cable, and a hang on hosts that share nothing."""
    (folder / "ahead").mkdir()
    (folder / "ahead" / "sitecustomize.py").write_text(CLOCK, encoding="utf-8")
    with two_namespaces(folder):
        with plain_cable():
            right = [try_nan(folder), *try_apart(folder)]
        with plain_cable():
            right.append(try_cut(folder))
        with slow_cable() as cable:
            return [*right, try_slow(folder, cable)]


def try_nan(folder: Path) -> bool:
    run_hosts(folder, ("nan", "nan"), "nan", 60)
    return judge_answer("NaN on host b, one run directory", read_first_finding(folder / "nan"), "TD-N001", "rank 1")


def try_cut(folder: Path) -> bool:
    run_hosts(folder, ("cut", "cut"), "none", FOR_EVER, action=cut_cable)
    return judge_answer("cable cut", read_first_finding(folder / "cut"), "TD-R006", "no rank")


def try_slow(folder: Path, cable: SlowCable) -> bool:
    """Neither rank does anything slowly: whoever is named is innocent. That the loss does not fall is true, and no matter."""
    run_hosts(folder, ("slow", "slow"), "none", SLOW_STEPS, action=lambda hosts: cable.slow_down(DELAY_S, BYTES_PER_S))
    return judge_answer("cable slow", read_first_finding(folder / "slow", "TD-R"), "silent")


def try_apart(folder: Path) -> list[bool]:
    """A hang on host b, where each host has a run directory of its own, and their clocks differ."""
    run_hosts(folder, ("own-a", "own-b"), "hang", FOR_EVER, ahead=True, action=end_later)
    alone = read_first_finding(folder / "own-a")
    words = (sys.executable, "-m", "tdbg", "join", "own-a", "own-b", "-o", "whole")
    joined = run_quietly(*words, cwd=folder).stdout
    whole = read_first_finding(folder / "whole")
    return [
        judge_answer("hang on host b, what host a says", alone, "TD-R006", "another host"),
        judge_answer("the same, joined, clocks 3 s apart", whole, "TD-R006", "rank 1 does not come"),
        judge_answer("its clock", joined.strip().splitlines()[-1].strip(), "clock", "s ahead"),
    ]
