"""What the supervisor reads of its host: from a made-up /proc and /sys, and from the real one."""

import json
import os
import time
from pathlib import Path
from typing import Any

import pytest

from tdbg.core.rundir import RunDir
from tdbg.launch import host_pressure
from tdbg.launch.host_pressure import HostSampler

TICK = os.sysconf("SC_CLK_TCK")
TOP, RANK, OTHER = 100, 101, 200


class Host:
    """A host made of files, and its run."""

    def __init__(self, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self.root = folder / "root"
        self.run, _ = RunDir.create(folder / "run", {})
        self.now = 1000.0
        monkeypatch.setattr(host_pressure.time, "monotonic", lambda: self.now)
        self.sampler = HostSampler(self.run, str(self.root), TOP)

    def write(self, name: str, text: str) -> None:
        """A file below the root."""
        path = self.root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)

    def write_process(self, pid: int, parent: int, cpu_s: float, threads: int = 1) -> None:
        """What the kernel says of a process; its name has what makes parsing hard."""
        times = f"{int(cpu_s * TICK)} 0"
        self.write(f"proc/{pid}/stat", f"{pid} (a) b) R {parent} 1 1 0 -1 4194304 0 0 0 0 {times} 0 0 20 0 1 0 5\n")
        self.write(f"proc/{pid}/status", f"Name:\ta\nThreads:\t{threads}\n")

    def write_times(self, busy_s: float, iowait_s: float = 0.0) -> None:
        """The CPU time of all processes."""
        self.write("proc/stat", f"cpu  {int(busy_s * TICK)} 0 0 9999 {int(iowait_s * TICK)} 0 0 0 0 0\ncpu0 1\n")

    def sample(self, after_s: float = 10.0) -> list[dict[str, Any]]:
        """The samples, after one more time has passed."""
        self.now += after_s
        self.sampler.sample_if_due({0: RANK})
        files = list((self.run.path / "pressure").glob("*.jsonl"))
        return [json.loads(line) for file in files for line in file.read_text().splitlines()]


@pytest.fixture
def host(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Host:
    """A host with a rank and another process."""
    found = Host(tmp_path, monkeypatch)
    for pid, parent in ((TOP, 1), (RANK, TOP), (OTHER, 1)):
        found.write_process(pid, parent, 0.0)
    found.write_times(0.0)
    return found


def test_other_processes_are_told_from_the_job(host: Host) -> None:
    assert host.sample() == []
    host.write_process(RANK, TOP, 8.0, threads=12)
    host.write_process(OTHER, 1, 5.0)
    host.write_times(13.0, 3.0)
    (row,) = host.sample()
    assert row["others"] == pytest.approx(0.5) and row["iowait"] == pytest.approx(0.3)
    assert row["threads"] == {"0": 12}


def test_how_long_a_rank_waited_for_a_cpu(host: Host) -> None:
    rows: list[dict[str, Any]] = []
    for wait_s in (1, 8, 9):
        host.write(f"proc/{RANK}/schedstat", f"5000000000 {wait_s * 10**9} 77\n")
        rows = host.sample()
    assert [row["cpu_waits"] for row in rows] == [{"0": 0.7}, {"0": 0.1}]
    host.write(f"proc/{RANK}/schedstat", "odd\n")
    assert "cpu_waits" not in host.sample()[-1]


def test_pressure_swap_memory_and_frequency(host: Host) -> None:
    for seconds in (0, 4):
        for name in ("cpu", "memory", "io"):
            host.write(f"proc/pressure/{name}", f"some avg10=1.0 total={seconds * 10**6}\nfull avg10=0.0 total=1\n")
        host.write("proc/vmstat", f"pswpin {seconds * 10**6 // os.sysconf('SC_PAGE_SIZE')}\npswpout 7\n")
        host.write("proc/loadavg", "1.50 1.20 1.00 7/147 12653\n")
        host.write("proc/meminfo", "MemTotal: 8000000 kB\nMemAvailable: 500000 kB\nSwapFree: 0 kB\nodd\n")
        host.write("sys/devices/system/cpu/cpu0/cpufreq/scaling_cur_freq", "2400000\n")
        rows = host.sample()
    (row,) = rows
    assert [row[f"{name}_stall"] for name in ("cpu", "memory", "io")] == [0.4, 0.4, 0.4]
    assert row["load"] == 1.5 and row["runnable"] == 7
    assert row["available_mb"] == 500.0 and row["ghz"] == 2.4 and 0.3 < row["swapped_in_mb"] < 0.5


@pytest.mark.parametrize("version", [1, 2])
def test_the_quota_of_the_nearest_group_that_has_one(host: Host, version: int) -> None:
    for seconds in (0, 6):
        if version == 2:
            host.write("proc/self/cgroup", "0::/pod/inner\n")
            host.write("sys/fs/cgroup/pod/inner/cpu.max", "max 100000\n")
            host.write("sys/fs/cgroup/pod/cpu.max", "150000 100000\n")
            host.write("sys/fs/cgroup/pod/cpu.stat", f"nr_throttled 3\nthrottled_usec {seconds * 10**6}\n")
        else:
            host.write("proc/self/cgroup", "5:memory:/\n1:cpu,cpuacct:/not/seen/here\n0::/\n")
            host.write("sys/fs/cgroup/cpu,cpuacct/cpu.cfs_quota_us", "150000\n")
            host.write("sys/fs/cgroup/cpu,cpuacct/cpu.cfs_period_us", "100000\n")
            host.write("sys/fs/cgroup/cpu,cpuacct/cpu.stat", f"throttled_time {seconds * 10**9}\n")
        rows = host.sample()
    assert rows[0]["quota"] == 1.5 and rows[0]["throttled"] == 0.6


def test_nothing_is_written_without_proc(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    host = Host(tmp_path, monkeypatch)
    assert [host.sample() for _ in range(3)] == [[], [], []]
    assert not (host.run.path / "pressure").exists()


def test_foreign_and_half_written_files_are_passed_over(host: Host) -> None:
    for name in ("stat", "pressure/cpu", "vmstat", "meminfo", "loadavg", "self/cgroup", "101/stat", "200/status"):
        host.write(f"proc/{name}", "some total=x\nMemTotal:\nThreads:\tmany\n0::/../../etc\npswpin\xff zz\n")
    host.write("proc/77/stat", "77 (half")
    host.write_times(1.0)
    host.sample()
    (row,) = host.sample()
    assert row["threads"] == {"0": 1} and row["cpu_stall"] == 0.0


def test_nothing_is_written_after_the_ranks_have_ended(host: Host) -> None:
    host.sample()
    host.write("proc/101/status", "")
    assert host.sample() == []


def test_a_counter_that_falls_is_no_rate(host: Host) -> None:
    host.write_times(100.0)
    host.sample()
    host.write_times(1.0)
    assert host.sample()[0]["others"] == 0.0


def test_samples_become_seldom(host: Host) -> None:
    for _ in range(24 * 60):
        rows = host.sample(60.0)
    assert len(rows) < 400


def test_the_real_host_costs_little(tmp_path: Path) -> None:
    system = host_pressure.System(Path("/"))
    begun = time.process_time()
    reading = system.read(time.monotonic())
    assert time.process_time() - begun < 0.5
    assert not os.path.isdir("/proc/self") or (reading.counters["busy"] > 0 and os.getpid() in reading.processes)
    assert not os.path.isdir("/proc/self") or system.count_threads(os.getpid()) >= 1
