"""`tdbg run --run-dir URL`: the run can be read from the store while it goes on, after its end, and after kill -9."""

import json
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest

from tests.e2e.conftest import (
    Result,
    build_environment,
    build_program_command,
    build_torchrun_command,
    run_command,
)
from tests.stores import BUCKET, serve_s3

SETTINGS = {"AWS_EC2_METADATA_DISABLED": "true", "AWS_MAX_ATTEMPTS": "1"}
PATIENCE_S = 90.0


@pytest.fixture(scope="module")
def s3_server() -> Iterator[dict[str, str]]:
    with serve_s3() as found:
        yield {**found, **SETTINGS}


def build_run(url: str, words: list[str], *options: str) -> list[str]:
    return [sys.executable, "-m", "tdbg", "run", "--run-dir", url, *options, "--", *words]


def ask(folder: Path, env: Mapping[str, str], *words: str) -> Result:
    return run_command([sys.executable, "-m", "tdbg", *words], folder, env)


def find_local(folder: Path) -> Path:
    (found,) = (folder / "tdbg_runs").iterdir()
    return found


def test_two_ranks_are_read_from_the_store_as_from_the_disk(tmp_path: Path, s3_server: dict[str, str]) -> None:
    url = f"s3://{BUCKET}/two"
    words = build_torchrun_command("layers", "--ddp")
    result = run_command(build_run(url, words, "--capture", "conv", "--capture-phase", "train"), tmp_path, s3_server)
    assert result.code == 0, result.stderr
    local = find_local(tmp_path)
    assert f"of the run are on {url}, and in {local}" in result.stderr, result.stderr
    here, there = (ask(tmp_path, s3_server, "report", place, "--json") for place in (str(local), url))
    assert there.code == 0 and json.loads(there.stdout)["data"]["run"] == url, there.stderr
    assert there.stdout.replace(url, str(local)) == here.stdout
    assert len(json.loads(there.stdout)["data"]["ranks"]) == 2
    status = json.loads(ask(tmp_path, s3_server, "status", url, "--json").stdout)["data"]
    assert status["state"] == "ended" and [row["rank"] for row in status["ranks"]] == [0, 1]
    pages = [ask(tmp_path, s3_server, "inspect-pages", "ls", "--datapoints", place) for place in (str(local), url)]
    assert pages[0].stdout.count("\n") > 10 and pages[1].stdout == pages[0].stdout
    kept = "".join(path.read_text(errors="replace") for path in local.rglob("*") if path.is_file())
    assert "sesame" not in kept + result.stderr, "the key of the store is in the run directory"
    again = run_command(build_run(url, words), tmp_path, s3_server)
    assert again.code == 2 and f"{url} already holds a run" in again.stderr and not again.stdout, again.stderr
    assert find_local(tmp_path) == local, "nothing is left of a run that was refused"


def start_patient_run(folder: Path, url: str, env: Mapping[str, str]) -> "subprocess.Popen[str]":
    """A program that trains until it is ended, whose first steps are on the store."""
    process = subprocess.Popen(
        build_run(url, build_program_command("witness", str(folder / "witness"), "100000000"), "--max-overhead", "100"),
        cwd=folder,
        env=build_environment(env),
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    until = time.monotonic() + PATIENCE_S
    while not read_steps(folder, url, env):
        assert process.poll() is None and time.monotonic() < until, process.communicate()
        time.sleep(0.5)
    return process


def read_steps(folder: Path, url: str, env: Mapping[str, str]) -> list[dict[str, Any]]:
    """The step records of rank 0 that the store holds, by way of a command."""
    target = folder / f"back-{time.monotonic_ns()}"
    if ask(folder, env, "join", url, "-o", str(target)).code:
        return []
    events = target / "rank0000/events.jsonl"
    lines = events.read_text().splitlines(keepends=True) if events.exists() else []
    found = [json.loads(line) for line in lines if line.endswith("\n")]
    return [one for one in found if one["type"] == "step"]


def test_what_was_copied_survives_kill_9_of_the_supervisor(tmp_path: Path) -> None:
    url = f"file://{tmp_path}/store/train"
    process = start_patient_run(tmp_path, url, {})
    os.kill(process.pid, signal.SIGKILL)
    process.communicate()
    steps = read_steps(tmp_path, url, {})
    assert [one["step"] for one in steps] == list(range(1, len(steps) + 1))
    report = ask(tmp_path, {}, "report", url)
    assert report.code == 0 and url in report.stdout and "Traceback" not in report.stderr, report.stderr
    status = ask(tmp_path, {}, "status", url)
    assert status.code == 0 and f"run: {url} (ended" in status.stdout, status.stdout


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_stopped_run_is_copied_to_its_end(number: int, tmp_path: Path) -> None:
    url = f"file://{tmp_path}/store/train"
    process = start_patient_run(tmp_path, url, {})
    begun = time.monotonic()
    os.kill(process.pid, number)
    _, stderr = process.communicate(timeout=PATIENCE_S)
    assert time.monotonic() - begun < 15 and f"of the run are on {url}" in stderr, stderr
    local = find_local(tmp_path)
    for path in ("rank0000/events.jsonl", "report.json", "run.json"):
        ask(tmp_path, {}, "join", url, "-o", "back")
        assert (tmp_path / "back" / path).read_bytes() == (local / path).read_bytes(), path


def test_a_store_without_an_answer_costs_the_run_nothing(tmp_path: Path) -> None:
    with socket.socket() as closed:  # bound, and nobody listens
        closed.bind(("127.0.0.1", 0))
        env = {
            "AWS_ENDPOINT_URL": f"http://127.0.0.1:{closed.getsockname()[1]}",
            "AWS_ACCESS_KEY_ID": "someone",
            "AWS_SECRET_ACCESS_KEY": "sesame",
            **SETTINGS,
        }
        words = [sys.executable, "-c", "import sys; print('out'); sys.exit(3)"]
        result = run_command(build_run(f"s3://{BUCKET}/gone", words), tmp_path, env)
    assert (result.code, result.stdout) == (3, "out\n"), result.stderr
    assert result.stderr.count("tdbg will retry") == 1 and "sesame" not in result.stderr, result.stderr
    assert f"the whole run is in {find_local(tmp_path)}" in result.stderr
    assert (find_local(tmp_path) / "report.json").exists()


def test_a_restarted_job_goes_on_in_its_own_place(tmp_path: Path) -> None:
    url, words = f"file://{tmp_path}/store/train", [sys.executable, "-c", "print('out')"]
    job = {"SLURM_JOB_ID": "7", "SLURM_STEP_ID": "0"}
    assert run_command(build_run(url, words), tmp_path, job).code == 0
    again = run_command(build_run(url, words), tmp_path, {**job, "SLURM_RESTART_COUNT": "1"})
    assert again.code == 0 and f"of the run are on {url}" in again.stderr, again.stderr
    other = run_command(build_run(url, words), tmp_path, {**job, "SLURM_JOB_ID": "8"})
    assert other.code == 2 and "already holds a run" in other.stderr and not other.stdout, other.stderr


@pytest.mark.parametrize(
    ("url", "text"),
    [
        ("s3://no-such-bucket/x", "s3://no-such-bucket does not exist"),
        ("file:///dev/null/x", "--run-dir: file:///dev/null/x"),
    ],
)
def test_a_place_that_cannot_be_written_is_refused_before_the_start(
    url: str, text: str, tmp_path: Path, s3_server: dict[str, str]
) -> None:
    result = run_command(build_run(url, [sys.executable, "-c", "print('started')"]), tmp_path, s3_server)
    assert result.code == 2 and text in result.stderr and not result.stdout, result.stderr
    assert not list((tmp_path / "tdbg_runs").iterdir()) and len(result.stderr.splitlines()) == 2
