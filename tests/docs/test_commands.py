"""Every command of the pages by problem and by place does what the page says: each is run, in the order of the page."""

import os
import re
import shlex
import shutil
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.e2e.conftest import BIN, PROGRAMS, Result, build_environment, run_command
from tests.e2e.places.pods import build_pod_environment
from tests.e2e.test_readme import TRAIN, live_folder  # noqa: F401 - a fixture

DOCS = Path(__file__).parents[2] / "docs"
LIVE = ("status", "control", "stacks")
PAGES = [
    *sorted((DOCS / "tasks").glob("*.md")),
    DOCS / "places" / "ci.md",
    DOCS / "cheat-sheet.md",
    DOCS / "coming-from.md",
    DOCS / "index.md",
    DOCS / "run.md",
    DOCS / "run-options.md",
    DOCS / "run-findings.md",
    DOCS / "run-capture.md",
]
# What a page's words stand for, and what would take too long as it is written.
WORDS = {
    "torchrun --nproc-per-node=8 train.py": f"torchrun --standalone --nproc-per-node=2 {PROGRAMS / 'readme.py'}",
    "torchrun --nproc-per-node=2 train.py": f"torchrun --standalone --nproc-per-node=2 {PROGRAMS / 'readme.py'}",
    "python train.py": TRAIN,
    "s3://bucket": "file://store",
    " RUN ": " ",
}
# Commands whose answer may be no: nothing matched, or the runs differ.
MAY_SAY_NO = ("stacks", "filter-logs", "compare", "diff", "sanity", "find", "advise")
SAID = {
    "run": "verdict:",
    "report": "verdict:",
    "explain": "TD-",
    "doctor": "torch",
    "show": "",
    "stats": "layers.0.attn",
}


def list_commands(page: Path) -> list[str]:
    """The lines of a page's blocks that are commands of tdbg, without comments; none that stands for more than itself."""
    blocks = re.findall(r"^```(\w*)\n(.*?)^```$", page.read_text(encoding="utf-8"), re.S | re.M)
    texts = [text for language, text in blocks if language in ("", "bash")]
    lines = [re.sub(r"\s+# .*$", "", line) for text in texts for line in text.splitlines()]
    return [line for line in lines if line.startswith("tdbg ") and not re.search(r"\.\.\.| \| |\[", line)]


def split_command(line: str) -> list[str]:
    """The words of a command, with what they stand for."""
    for word, meaning in WORDS.items():
        line = line.replace(word, meaning)
    return shlex.split(line)


@pytest.fixture(autouse=True)
def offline_home(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """W&B stays here, and completions go into a home of the test's own."""
    monkeypatch.setenv("WANDB_MODE", "offline")
    monkeypatch.setenv("WANDB_SILENT", "true")
    monkeypatch.setenv("HOME", str(tmp_path))


@pytest.mark.timeout(1200)
@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.relative_to(DOCS).as_posix())
def test_every_command_of_a_page_works(page: Path, tmp_path: Path, request: pytest.FixtureRequest) -> None:
    lines = list(dict.fromkeys(list_commands(page)))
    assert lines, "the page begins with a command"
    folder = tmp_path / "work"
    folder.mkdir()
    for line in lines:
        words = split_command(line)
        place = request.getfixturevalue("live_folder") if words[1] in LIVE else folder
        result = run_command([sys.executable, "-m", *words], place)
        allowed = (0, 1) if set(words[1:3]) & set(MAY_SAY_NO) else (0,)
        assert result.code in allowed, (line, result.stdout[-2000:], result.stderr[-2000:])
        assert "Traceback" not in result.stderr, (line, result.stderr)
        assert SAID.get(words[1], "") in result.stdout + result.stderr, (line, result.stdout, result.stderr)


# A stand-in for srun: two tasks on this machine, with the variables that srun sets.
SRUN = """#!/bin/bash
while [[ $1 == --* ]]; do shift; done
for task in 0 1; do
    SLURM_STEP_ID=0 SLURM_PROCID=$task SLURM_LOCALID=$task SLURM_NODEID=$task SLURM_NTASKS=2 \\
        env $([[ $* == *torchrun* ]] || echo RANK=$task WORLD_SIZE=2 LOCAL_RANK=$task) "$@" &
done
wait
"""


@pytest.fixture
def cluster_environment(tmp_path: Path) -> Iterator[dict[str, str]]:
    """An environment with `srun`, a job's variables, and `train.py` in the folder."""
    (tmp_path / "bin").mkdir()
    (tmp_path / "bin" / "srun").write_text(SRUN)
    (tmp_path / "bin" / "srun").chmod(0o755)
    for name in ("readme.py", "common.py"):
        shutil.copy(PROGRAMS / name, tmp_path / name.replace("readme", "train"))
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = str(probe.getsockname()[1])
    yield build_environment(
        {
            "PATH": f"{tmp_path / 'bin'}:{BIN}:{os.environ['PATH']}",
            "SCRATCH": str(tmp_path),
            "SLURM_JOB_ID": "12345",
            "MASTER_ADDR": "127.0.0.1",
            "MASTER_PORT": port,
            "HEAD_NODE": "127.0.0.1",
            "PORT": port,
        }
    )


def run_script(text: str, folder: Path, env: dict[str, str]) -> Result:
    """Run a block of a page in bash: each node has one process, and the port is one that is free."""
    text = re.sub(r"--nproc-per-node=\d+", "--nproc-per-node=1", text.replace(":29500", f":{env['PORT']}"))
    done = subprocess.run(["bash", "-c", text], cwd=folder, env=env, capture_output=True, text=True, timeout=250)
    return Result(done.returncode, done.stdout, done.stderr)


def find_blocks(name: str, language: str = "bash") -> list[str]:
    """The blocks of a page in one language."""
    text = (DOCS / "places" / name).read_text(encoding="utf-8")
    return [block for kind, block in re.findall(r"^```(\w*)\n(.*?)^```$", text, re.S | re.M) if kind == language]


@pytest.mark.parametrize("number", [0, 1], ids=["tasks", "torchrun"])
def test_the_tasks_of_a_slurm_job_join_one_run(
    number: int, tmp_path: Path, cluster_environment: dict[str, str]
) -> None:
    start, read = find_blocks("slurm.md")[number], find_blocks("slurm.md")[2]
    result = run_script(start, tmp_path, cluster_environment)
    assert result.code == 0 and result.stderr.count("verdict:") == 1, result.stderr
    assert "2 ranks" in result.stderr, result.stderr
    result = run_script(read, tmp_path, cluster_environment)
    assert result.code == 0 and "2 ranks" in result.stdout, (result.stdout, result.stderr)


def test_the_manifest_of_kubernetes_runs_its_command(tmp_path: Path, cluster_environment: dict[str, str]) -> None:
    import yaml

    text, _ = find_blocks("kubernetes.md", "yaml")
    (container,) = yaml.safe_load(text)["spec"]["template"]["spec"]["containers"]
    mount = container["volumeMounts"][0]["mountPath"]
    words = [word.replace(mount, str(tmp_path)) for word in container["command"]]
    env = {**cluster_environment, **{item["name"]: item["value"] for item in container["env"]}}
    for name in ("SLURM_JOB_ID", "MASTER_ADDR", "MASTER_PORT"):
        del env[name]
    done = subprocess.run(words, cwd=tmp_path, env=env, capture_output=True, text=True, timeout=200)
    assert done.returncode == 0 and "verdict:" in done.stderr, done.stderr
    assert (tmp_path / "train-1" / "run.json").is_file()


def test_the_pods_of_a_job_join_one_run(tmp_path: Path, cluster_environment: dict[str, str]) -> None:
    text, _ = find_blocks("kubernetes.md")
    text = text.replace("/runs/", f"{tmp_path}/").replace("train-0.train", "127.0.0.1")
    for name in ("SLURM_JOB_ID", "MASTER_ADDR", "MASTER_PORT"):
        del cluster_environment[name]
    result = run_script(f"({text}) & ({text}) & wait", tmp_path, cluster_environment)
    assert result.stderr.count("verdict:") == 1 and "2 ranks" in result.stderr, result.stderr


def test_the_pods_of_a_pytorchjob_join_one_run(tmp_path: Path, cluster_environment: dict[str, str]) -> None:
    import yaml

    _, text = find_blocks("kubernetes.md", "yaml")
    replicas = yaml.safe_load(text)["spec"]["pytorchReplicaSpecs"]
    port = int(cluster_environment["PORT"])
    del cluster_environment["SLURM_JOB_ID"]
    pods = []
    for rank, name in enumerate(("Master", "Worker")):
        (container,) = replicas[name]["template"]["spec"]["containers"]
        words = [word.replace("/runs/", f"{tmp_path}/") for word in container["command"]]
        env = {**cluster_environment, **build_pod_environment(rank, port), "PET_MASTER_ADDR": "127.0.0.1"}
        pods.append(subprocess.Popen(words, cwd=tmp_path, env=env, stderr=subprocess.PIPE, text=True))
    said = [pod.communicate(timeout=200)[1] for pod in pods]
    assert [pod.returncode for pod in pods] == [0, 0], said
    assert "".join(said).count("verdict:") == 1 and "2 ranks" in "".join(said), said


def test_the_directories_of_pods_without_a_shared_volume_are_joined(
    tmp_path: Path, cluster_environment: dict[str, str]
) -> None:
    text, joining = find_blocks("kubernetes.md")
    one, other = (text.replace("/runs/train-1", f"node{n}").replace("train-0.train", "127.0.0.1") for n in (0, 1))
    for name in ("SLURM_JOB_ID", "MASTER_ADDR", "MASTER_PORT"):
        del cluster_environment[name]
    result = run_script(f"({one}) & ({other}) & wait\n{joining}", tmp_path, cluster_environment)
    assert "joined 2 run directories into whole" in result.stdout, result.stdout + result.stderr
    assert "2 ranks" in result.stdout, result.stdout


PROGRAM = """
import torch
from torch import nn
torch.manual_seed(0)
model = nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 4))
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for step in range(30):
    loss = model(torch.randn(6, 8)).square().mean() * (float("nan") if step == 20 else 1.0)
    optimizer.zero_grad(); loss.backward(); optimizer.step()
"""


@pytest.mark.skipif(not shutil.which("jupyter"), reason="jupyter is not installed")
def test_a_notebook_is_watched(tmp_path: Path, cluster_environment: dict[str, str]) -> None:
    import json

    cell = {"cell_type": "code", "execution_count": None, "metadata": {}, "outputs": [], "source": PROGRAM, "id": "a"}
    kernel = {"name": "python3", "display_name": "Python 3", "language": "python"}
    notebook = {"cells": [cell], "metadata": {"kernelspec": kernel}, "nbformat": 4, "nbformat_minor": 5}
    (tmp_path / "train.ipynb").write_text(json.dumps(notebook))
    for line in find_blocks("notebooks.md")[0].splitlines():
        result = run_script(line, tmp_path, cluster_environment)
        assert result.code == 0 and "TD-N001 critical: first NaN at step 21" in result.stderr, result.stderr


def test_the_cell_of_the_notebook_page_works(tmp_path: Path) -> None:
    (code,) = find_blocks("notebooks.md", "python")
    assert "PyTorchDebugger" in run_command([sys.executable, "-c", code], tmp_path).stdout


@pytest.mark.skipif(not shutil.which("ray"), reason="ray is not installed")
def test_an_actor_of_ray_is_watched(tmp_path: Path, cluster_environment: dict[str, str]) -> None:
    body = "".join(f"    {line}\n" for line in PROGRAM.strip().splitlines())
    start = "ray.init(num_cpus=1, include_dashboard=False)\nray.get(train.remote())\n"
    (tmp_path / "ray_train.py").write_text(f"import ray\n\n\n@ray.remote\ndef train():\n{body}\n\n{start}")
    result = run_script(find_blocks("ray.md")[0], tmp_path, {**cluster_environment, "HOME": str(tmp_path)})
    assert result.code == 0 and "TD-N001 critical: first NaN at step 21" in result.stderr, result.stderr


STARTED_BY = {"accelerate.md": "accelerate", "fabric.md": "fabric", "spawn.md": "spawn"}


def fill_in_program(text: str, by: str) -> str:
    """A command of a page with a program that trains two ranks under this launcher, in the place of the page's own."""
    program = f"{PROGRAMS / 'rank_faults.py'} none --by {by} --nprocs 2 --steps 30"
    return re.sub(r"--num_processes \d+", "--num_processes 2", text).replace("train.py", program)


@pytest.mark.parametrize("page", STARTED_BY)
def test_the_ranks_of_a_launcher_are_watched(page: str, tmp_path: Path, cluster_environment: dict[str, str]) -> None:
    for name in ("SLURM_JOB_ID", "MASTER_ADDR", "MASTER_PORT"):
        del cluster_environment[name]
    for line in find_blocks(page)[0].splitlines():
        result = run_script(fill_in_program(line, STARTED_BY[page]), tmp_path, cluster_environment)
        assert result.code == 0 and "2 ranks" in result.stderr, (line, result.stderr)


def test_the_machines_of_accelerate_join_one_run(tmp_path: Path, cluster_environment: dict[str, str]) -> None:
    for name in ("SLURM_JOB_ID", "MASTER_ADDR", "MASTER_PORT"):
        del cluster_environment[name]
    _, text = find_blocks("accelerate.md")
    text = fill_in_program(text, "accelerate").replace("/shared/runs/", f"{tmp_path}/")
    result = run_script(f"(NODE=0; {text}) & (NODE=1; {text}) & wait", tmp_path, cluster_environment)
    assert result.stderr.count("verdict:") == 1 and "2 ranks" in result.stderr, result.stderr


def test_the_workflow_of_ci_is_yaml_and_its_commands_are_those_of_the_page() -> None:
    import yaml

    (text,) = find_blocks("ci.md", "yaml")
    steps = yaml.safe_load(text)
    plain = list_commands(DOCS / "places" / "ci.md")
    assert [step["run"].partition(" >>")[0] for step in steps] == plain[:2]
