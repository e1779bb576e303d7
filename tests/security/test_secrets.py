"""Secrets of a command line and its environment, against every byte that a run leaves behind."""

import gzip
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from tdbg.core.redaction import MARK, redact_argv
from tdbg.core.rundir import allowed_env
from tests.e2e.conftest import build_environment, warm_command

TRAINING = """
import json, logging, os, sys
import torch
logging.basicConfig(level=logging.INFO)
model = torch.nn.Linear(4, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for step in range(5):
    optimizer.zero_grad()
    model(torch.ones(2, 4)).sum().backward()
    optimizer.step()
print(json.dumps([sys.argv[1:], os.environ["WANDB_API_KEY"], os.environ["TDBG_TEST_PASSWORD"]]))
try:
    raise ConnectionError("no answer from " + sys.argv[sys.argv.index("--endpoint") + 1])
except ConnectionError:
    logging.exception("upload with %s failed", sys.argv[2])
raise ValueError("refused: api_key=" + os.environ["WANDB_API_KEY"])
"""
ARGV = ["--api-key", "Kx7qT4vR8mZ1bW6cYpL", "--hub_token=Kx7nH3sD9kF2gJ5aXeU", "-k", "Kx7iO7uV1xQ8wM4zBtR",
        "--endpoint", "https://me:Kx7hS2dG6fK9jP3lCyN@example.org/v1", "db.password=Kx7eA5rW8tY1uI4oLpM", "--lr", "0.125"]  # fmt: skip
ENVIRON = {
    "WANDB_API_KEY": "Kx7zX3cV7bN2mQ9wErT",
    "HF_TOKEN": "Kx7yU6iO1pA4sD8fGhJ",
    "NCCL_TOKEN": "Kx7kL5zC9vB3nM7qWeR",
    "TDBG_TEST_PASSWORD": "Kx7tY2uI6oP1aS5dFgH",
    "NCCL_DEBUG": "WARN",
}
SECRET = b"Kx7"  # all of them begin so


def read_contents(path: Path) -> bytes:
    data = path.read_bytes()
    return gzip.decompress(data) if path.suffix == ".gz" else data


@pytest.mark.parametrize(
    "options", [(), ("--level", "extreme", "-f", "FORWARD", "-f", "GRADIENTS", "--capture", "**:output")]
)
def test_no_secret_reaches_a_run_directory(tmp_path: Path, options: tuple[str, ...]) -> None:
    script, run = tmp_path / "train.py", tmp_path / "run"
    script.write_text(TRAINING)
    words = [sys.executable, "-m", "tdbg", "run", "--run-dir", str(run), *options, "--", sys.executable, str(script)]
    done = subprocess.run(
        warm_command([*words, *ARGV]),
        cwd=tmp_path,
        env=build_environment(ENVIRON),
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert done.returncode == 1 and json.loads(done.stdout)[0] == ARGV, "the program has them all"
    files = [path for path in run.rglob("*") if path.is_file()]
    assert {"run.json", "report.json", "events.jsonl", "records.jsonl"} <= {path.name for path in files}
    leaks = [
        f"{path.relative_to(run)}: {line!r}"
        for path in files
        for line in read_contents(path).splitlines()
        if SECRET in line
    ]
    assert leaks == []
    assert not any(SECRET.decode() in str(path) for path in run.rglob("*"))
    kept = json.loads((run / "run.json").read_text())
    assert kept["command"][2:] == redact_argv(ARGV) and MARK in kept["command"] and kept["command"][-1] == "0.125"
    assert b"no answer from" in (run / "rank0000" / "events.jsonl").read_bytes(), "the exception was written down"


def test_the_tables_of_what_may_be_kept() -> None:
    environ = {**ENVIRON, "RANK": "1", "HOME": "/root", "TDBG_LEVEL": "basic"}
    assert allowed_env(environ) == {"RANK": "1", "NCCL_DEBUG": "WARN", "TDBG_LEVEL": "basic"}
    assert redact_argv(["--password", os.sep]) == ["--password", MARK] and redact_argv(["--lr", "0.1"]) == [
        "--lr",
        "0.1",
    ]
