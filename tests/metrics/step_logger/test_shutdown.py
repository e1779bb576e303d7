"""SIGKILL at random moments: no row that was written is lost, and a resumed run has no gap and no double."""

import json
import os
import random
import signal
import subprocess
import sys
import time

import pytest
from metrics.rows_of import list_lines, read_raw

from tdbg.metrics.rows.row import FILE
from tdbg.metrics.rows.row_files import find_rows_files
from tdbg.metrics.rows.row_reader import Reading

STEPS = 400
EVERY = 7  # steps of a window
PROGRAM = """
import json, os, sys, time
from tdbg.metrics.step_logger.step_metrics_logger import StepMetricsLogger
from tdbg.metrics.step_logger.ops_schedule import OpsSchedule
folder, steps, every = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])
schedule = OpsSchedule(total_steps=steps, wandb=every, console=0, lr=5)
logger = StepMetricsLogger(schedule=schedule, folder=folder, rank=0)
saved = os.path.join(folder, "checkpoint.json")
first = 1
if os.path.exists(saved):
    state = json.load(open(saved))
    first = state["step"] + 1
    logger.tracker.load_state_dict(state["tracker"])
    logger.load_state_dict(state["logger"])
acked = os.open(os.path.join(folder, "acked"), os.O_WRONLY | os.O_CREAT | os.O_APPEND)
for step in range(first, steps + 1):
    os.read(0, 1)  # a step for each byte that it is given; as many as it likes after their end
    time.sleep(0.002)
    logger.log_step_metrics({"loss": 1 / step}, step=step, epoch=step // 100, samples=step % 3 + 1, lr=0.1 / step)
    os.write(acked, b"%d\\n" % step)
    if step % 11 == 0:
        state = {"step": step, "logger": logger.state_dict(), "tracker": logger.tracker.state_dict()}
        with open(saved + ".part", "w") as file: json.dump(state, file)
        os.replace(saved + ".part", saved)
"""


def compute_mean(last):
    """What a window that ends at a step holds, summed here."""
    steps = range(last - (last - 1) % EVERY, last + 1)
    weights = [step % 3 + 1 for step in steps]
    return sum(weight / step for weight, step in zip(weights, steps, strict=True)) / sum(weights)


@pytest.mark.parametrize("seed", range(4))
def test_killed_at_random_and_resumed(tmp_path, seed):
    chance = random.Random(seed)
    path = tmp_path / FILE
    command = [sys.executable, "-c", PROGRAM, str(tmp_path), str(STEPS), str(EVERY)]
    for kill in range(5):
        given = chance.randrange(20, 70)  # five times that is less than all steps: none gets to the end
        before = count_acked_steps(tmp_path)
        with subprocess.Popen(command, stdin=subprocess.PIPE) as child:
            child.stdin.write(b"." * given)
            child.stdin.flush()
            if kill == 3:
                time.sleep(chance.uniform(0.1, 0.8))  # while it starts, or looks what there is, or later
            else:
                wanted, until = before + chance.randrange(1, given), time.monotonic() + 60
                while count_acked_steps(tmp_path) < wanted:
                    assert child.poll() is None and time.monotonic() < until
                    time.sleep(0.002)
                time.sleep(chance.uniform(0.0, 0.005))
            assert child.poll() is None
            child.send_signal(signal.SIGKILL)
        assert_nothing_written_is_lost(tmp_path)
    done = subprocess.run(command, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    reading = Reading(find_rows_files(str(path)).files)
    found = [line for _, line in reading.iter_lines()]
    losses = [(line.step, line.values["train/step_avg_loss"]) for line in found if "train/step_avg_loss" in line.values]
    ends = [*range(EVERY, STEPS, EVERY), STEPS]
    assert [step for step, _ in losses] == ends  # no gap, no double
    assert [value for _, value in losses] == pytest.approx([compute_mean(step) for step in ends], rel=1e-12)
    rates = [(line.step, line.values["lr/group0"]) for line in found if "lr/group0" in line.values]
    assert rates == [(step, 0.1 / step) for step in range(5, STEPS + 1, 5)]


def count_acked_steps(folder):
    """How many steps the programs so far were told are written; some of them twice."""
    return (folder / "acked").read_bytes().count(b"\n") if (folder / "acked").exists() else 0


def assert_nothing_written_is_lost(folder):
    """Every window and rate up to the last step that the program was told is written stands in the file."""
    acked = [int(word) for word in (folder / "acked").read_text().split()] if (folder / "acked").exists() else []
    written = list_lines(folder / FILE) if (folder / FILE).exists() else []  # the first row is the rate of step 5
    there = {(line.step, key) for line in written for key in line.values}
    last = acked[-1] if acked else 0
    for step in range(1, last + 1):
        assert step % EVERY or (step, "train/step_avg_loss") in there
        assert step % 5 or (step, "lr/group0") in there


def test_sigterm_writes_the_window_that_is_under_way(tmp_path):
    command = [sys.executable, "-c", PROGRAM, str(tmp_path), "100000", "1000000"]
    child = subprocess.Popen(command, stdin=subprocess.DEVNULL)
    while not (tmp_path / "acked").exists() or (tmp_path / "acked").stat().st_size < 60:
        time.sleep(0.01)
    child.send_signal(signal.SIGTERM)
    assert child.wait(20) == -signal.SIGTERM
    acked = int((tmp_path / "acked").read_text().split()[-1])
    found = [line for line in read_raw(tmp_path / FILE) if "train/step_avg_loss" in line.get("values", {})]
    assert len(found) == 1 and found[0]["step"] in (acked, acked + 1)


ENDS = """
import signal, sys, os, time
from tdbg.metrics.step_logger.step_metrics_logger import StepMetricsLogger
from tdbg.metrics.step_logger.ops_schedule import OpsSchedule
how, folder = sys.argv[1:]
if how == "handler":
    def mine(number, frame):
        print("mine", flush=True)
        log.log_step_metrics({"loss": 9.0}, step=4)
        sys.exit(7)
    signal.signal(signal.SIGTERM, mine)
if how == "ignored": signal.signal(signal.SIGTERM, signal.SIG_IGN)
log = StepMetricsLogger(schedule=OpsSchedule(wandb=1000, console=0), folder=folder, rank=0)
for step in (1, 2, 3): log.log_step_metrics({"loss": float(step)}, step=step)
if how == "exception": raise RuntimeError("the program's own")
if how == "exit": sys.exit(5)
if how in ("handler", "ignored"): os.kill(os.getpid(), signal.SIGTERM)
"""


@pytest.mark.parametrize(
    ("how", "code", "means"),
    [
        ("plain", 0, [2.0]),
        ("exception", 1, [2.0]),
        ("exit", 5, [2.0]),
        ("ignored", 0, [2.0]),
        ("handler", 7, [2.0, 9.0]),
    ],
)
def test_however_a_program_ends_the_last_window_is_written(tmp_path, how, code, means):
    done = subprocess.run([sys.executable, "-c", ENDS, how, tmp_path], capture_output=True, text=True, timeout=60)
    assert done.returncode == code
    assert ("the program's own" in done.stderr) == (how == "exception")
    assert ("mine" in done.stdout) == (how == "handler")
    assert [line.values["train/step_avg_loss"] for line in list_lines(tmp_path / FILE)] == means


def test_a_checkpoint_holds_plain_data(tmp_path):
    from tdbg.metrics.step_logger.step_metrics_logger import StepMetricsLogger

    log = StepMetricsLogger(folder=tmp_path, rank=0, console=False)
    log.log_step_metrics({"loss": float("nan")}, step=1)
    state = json.loads(json.dumps(log.state_dict(), allow_nan=False))
    log.load_state_dict(state)
    log.close()


WORKERS = """
import multiprocessing, os, signal, sys, threading, time
from tdbg.metrics.step_logger.shutdown import SHUTDOWN
from tdbg.metrics.step_logger.step_metrics_logger import StepMetricsLogger
from tdbg.metrics.step_logger.ops_schedule import OpsSchedule
how, folder = sys.argv[1:]
if how == "handler":
    def mine(number, frame):
        os.write(1, b"worker's\\n" if os.getpid() != parent else b"parent's\\n")
        os._exit(0)
    signal.signal(signal.SIGTERM, mine)
parent = os.getpid()
log = StepMetricsLogger(sinks=["tensorboard", "csv"], schedule=OpsSchedule(wandb=4), folder=folder, rank=0, console=False)
for step in (1, 2): log.log_step_metrics({"loss": float(step)}, step=step)
if how == "busy":  # another thread writes, and holds the lock, at the moment of the fork
    inside, over = threading.Event(), threading.Event()
    def write():
        SHUTDOWN.begin_write()
        with SHUTDOWN._lock:
            inside.set()
            over.wait()
        SHUTDOWN.end_write()
    thread = threading.Thread(target=write)
    thread.start()
    inside.wait()
def busy(_):
    SHUTDOWN.begin_write()
    SHUTDOWN.end_write()
    return SHUTDOWN.busy
reads, writes = os.pipe()
def stay(_):
    os.write(writes, b".")
    time.sleep(100)
with multiprocessing.get_context("fork").Pool(2) as pool:
    assert pool.map(abs, [-1, -2, -3]) == [1, 2, 3]
    assert how != "busy" or pool.map(busy, range(4)) == [0] * 4
    pool.map_async(stay, range(2), chunksize=1)
    assert os.read(reads, 1) + os.read(reads, 1) == b".."
if how == "busy":
    over.set()
    thread.join()
for step in (3, 4, 5): log.log_step_metrics({"loss": float(step)}, step=step)
"""


@pytest.mark.parametrize("how", ["plain", "handler", "busy"])
def test_a_forked_worker_that_is_terminated_leaves_the_sinks_to_its_parent(tmp_path, how):
    pytest.importorskip("tensorboard")
    said = tmp_path / "said"
    with said.open("w") as out:
        command = [sys.executable, "-c", WORKERS, how, str(tmp_path)]
        child = subprocess.Popen(command, stdout=out, stderr=out, start_new_session=True)
        try:
            assert child.wait(20) == 0, said.read_text()
        finally:
            if child.poll() is None:
                os.killpg(child.pid, signal.SIGKILL)
                child.wait()
    assert said.read_text() == ("worker's\n" * 2 if how == "handler" else "")
    assert [line.values["train/step_avg_loss"] for line in list_lines(tmp_path / FILE)] == [2.5, 5.0]
    table = (tmp_path / "metrics.csv").read_text()
    assert [line.split(",")[-1] for line in table.splitlines() if "step_avg_loss" in line] == ["2.5", "5.0"]
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    board = EventAccumulator(str(tmp_path / "tensorboard"))
    board.Reload()
    assert [(found.step, found.value) for found in board.Scalars("train/step_avg_loss")] == [(4, 2.5), (5, 5.0)]
