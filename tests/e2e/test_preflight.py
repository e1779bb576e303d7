"""`tdbg run --preflight`: one batch names the bug, the healthy twin has none, and nothing of the program's is written."""

import os
import re
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from tests.e2e.conftest import (
    Runner,
    assert_named_first,
    assert_notes_alone,
    build_environment,
    build_program_command,
    build_torchrun_command,
)

ROOT = Path(__file__).parents[2]
PREFLIGHT = ("--preflight",)
ENDED_BEFORE = "preflight: the program ended before its first update, so nothing was tested"
NAMED = {  # kind -> code, and a part of the first line
    "batch-first": ("TD-C029", 'changing one sample changes the outputs of 15 of 15 others, in "lstm" (LSTM)'),
    "view-for-transpose": ("TD-C029", ' others, in "head" (Linear)'),
    "batch-norm-by-hand": ("TD-C029", "changing one sample changes the outputs of 15 of 15 others"),
    "attention-batch-first": ("TD-C029", ' others, in "attention" (MultiheadAttention)'),
    "softmax-dimension": ("TD-C029", "changing one sample changes the outputs of 15 of 15 others"),
    "future-tokens": (
        "TD-C030",
        'changing the last token of x changes the outputs at 10 of 10 earlier positions, in "attention"',
    ),
    "mask-ignored": ("TD-C031", "mask has no effect: changing "),
    "input-ignored": ("TD-C032", "input t has no effect on the model's output"),
    "own-generator": ("TD-C022", "evaluation is not repeatable, even with the same random numbers"),
    "custom-gradient": ("TD-G006", "backward of Swish is wrong for input x: "),
    "detached": ("TD-L022", "one batch cannot be overfitted: cross_entropy falls only from "),
    "functional-dropout": ("TD-C022", "dropout is active in evaluation: dropout at"),
}
TRIED = {  # kind -> the trial that its healthy twin must go through
    "batch-first": "one sample changed",
    "view-for-transpose": "one sample changed",
    "batch-norm-by-hand": "one sample changed",
    "attention-batch-first": "one sample changed",
    "softmax-dimension": "one sample changed",
    "future-tokens": "last token changed",
    "mask-ignored": "padding changed",
    "input-ignored": "each input changed",
    "functional-dropout": "evaluation twice",
    "own-generator": "evaluation twice",
    "custom-gradient": "gradients of custom functions",
    "detached": "one batch overfitted",
}


@pytest.mark.parametrize("kind", NAMED)
def test_preflight_names_what_is_wrong(watched_runner: Runner, kind: str) -> None:
    assert_named_first(
        watched_runner(build_program_command("planted_preflight", kind, "fault"), PREFLIGHT), *NAMED[kind]
    )


@pytest.mark.parametrize("kind", NAMED)
def test_preflight_ends_before_the_first_update_and_keeps_nothing(
    watched_runner: Runner, kind: str, tmp_path: Path
) -> None:
    result = watched_runner(build_program_command("planted_preflight", kind, "healthy"), PREFLIGHT)
    assert_notes_alone(result)
    assert result.stdout == ""
    assert not (tmp_path / "first.pt").exists()
    assert not (result.folder / "preflight").exists()
    trial = TRIED.get(kind)
    assert trial is None or [row["tried"] for row in result.verdict["preflight"] if row["trial"] == trial] == [True]
    assert any(
        line.startswith("tdbg: preflight tried: evaluation twice (the output is the same)")
        for line in result.tdbg_lines
    )


def list_contents(folder: Path) -> dict[str, bytes | None]:
    """Every file and folder below it, with what files hold."""
    return {str(path.relative_to(folder)): path.read_bytes() if path.is_file() else None for path in folder.rglob("*")}


def make_old_files(folder: Path) -> None:
    """What stood there before `writes_files` ran."""
    (folder / "old-run").mkdir()
    for name, text in (("before.txt", "x"), ("appended.txt", "old "), ("deleted.txt", ""), ("moved.txt", "moved")):
        (folder / name).write_text(text)
    (folder / "old-run" / "a").write_text("a")
    (folder / "folder").mkdir()
    (folder / "folder" / "inside.txt").write_text("inside")
    (folder / "kept.txt").write_text("kept")
    (folder / "script-of-before.pt").write_text("no script")
    (folder / "mapped.bin").write_bytes(bytes(16))


def test_nothing_of_the_program_is_written(watched_runner: Runner, tmp_path: Path) -> None:
    make_old_files(tmp_path)
    before = list_contents(tmp_path)
    result = watched_runner(build_program_command("writes_files"), PREFLIGHT)
    assert result.code == 0, result.stderr
    after = {name: held for name, held in list_contents(tmp_path).items() if Path(name).parts[0] != "run"}
    assert after == before
    assert result.stdout.splitlines()[0] == "refused refused.bin" and "model.safetensors" in result.stdout
    assert "updated" not in result.stdout
    assert any(
        line.startswith("tdbg: preflight: the program and its Python processes wrote to ") for line in result.tdbg_lines
    )
    assert not (result.folder / "preflight").exists()


def test_without_preflight_the_same_program_writes(watched_runner: Runner, tmp_path: Path) -> None:
    make_old_files(tmp_path)
    result = watched_runner(build_program_command("writes_files"))
    assert "updated" in result.stdout and (tmp_path / "out" / "model.pt").exists(), result.stderr


STARTS = """
import subprocess, sys
{first}
print(subprocess.run(["cat", "old.txt"], capture_output=True, text=True).stdout)
{second}
print(subprocess.run(["cat", "old.txt"], capture_output=True, text=True).stdout)
"""
CHANGED = "open('old.txt', 'w').write('new')"
AS_BEFORE = (
    "tdbg: preflight: commands started by the program may have seen its files as they were before it changed them"
)


@pytest.mark.parametrize(("first", "second", "told"), [(CHANGED, "pass", 1), ("pass", CHANGED, 1), ("pass", "pass", 0)])
def test_commands_that_see_files_as_before_are_told_of(
    watched_runner: Runner, first: str, second: str, told: int, tmp_path: Path
) -> None:
    (tmp_path / "old.txt").write_text("old")
    result = watched_runner([sys.executable, "-c", STARTS.format(first=first, second=second)], PREFLIGHT)
    assert result.stdout.split() == ["old", "old"], result.stderr
    assert [line for line in result.tdbg_lines if line.startswith(AS_BEFORE)] == [AS_BEFORE] * told
    assert not (result.folder / "preflight").exists()


LOOPS = {  # program and its arguments -> a trial that must be made
    "accumulate": ((), "one batch overfitted"),
    "lbfgs": ((), "one batch overfitted"),
    "amp": ((), "one batch overfitted"),
    "compiled": (("whole", "eager"), "one batch overfitted"),
    "gan": ((), "one sample changed"),
    "hf_trainer": (("1", "trained"), "one batch overfitted"),
    "lightning_fit": ((), "one batch overfitted"),
    "evaluate": ((), ""),
}


@pytest.mark.parametrize("kind", LOOPS)
def test_loops_end_before_the_first_update_and_write_nothing(watched_runner: Runner, kind: str, tmp_path: Path) -> None:
    args, trial = LOOPS[kind]
    result = watched_runner(build_program_command(kind, *args), PREFLIGHT)
    assert_notes_alone(result)
    assert all(step.skipped for step in result.list_steps())
    assert {path.name for path in tmp_path.iterdir()} == {"run"}
    made = [row["trial"] for row in result.verdict["preflight"] if row["tried"]]
    assert trial in made if trial else not made, result.stderr


def test_under_ddp_one_rank_tries_and_all_end(watched_runner: Runner) -> None:
    result = watched_runner(build_torchrun_command("preflight_ranks", "ddp"), PREFLIGHT)
    assert result.code == 0 and "updated" not in result.stdout, result.stderr
    rows = result.verdict["preflight"]
    assert [row["trial"] for row in rows if row["tried"]] == [
        "evaluation twice",
        "one sample changed",
        "each input changed",
        "one batch overfitted",
    ]
    assert len(rows) == 7


SHARED = {
    "fsdp": "FSDPModule",
    "fsdp1": "FullyShardedDataParallel",
    "tensor": "sharded parameters",
    "pipeline": "a pipeline stage",
}


@pytest.mark.parametrize("kind", SHARED)
def test_a_forward_that_needs_other_ranks_is_refused(watched_runner: Runner, kind: str) -> None:
    result = watched_runner(build_torchrun_command("preflight_ranks", kind), PREFLIGHT)
    assert result.code == 2 and "updated" not in result.stdout, result.stderr
    refused = f"tdbg: preflight refused: the forward pass needs other ranks ({SHARED[kind]})"
    assert any(line.startswith(refused) for line in result.tdbg_lines), result.stderr


def test_a_program_without_an_update_keeps_its_code(watched_runner: Runner) -> None:
    result = watched_runner(
        [sys.executable, "-c", "import torch; torch.nn.Linear(2, 2)(torch.ones(2)); raise SystemExit(7)"], PREFLIGHT
    )
    assert result.code == 7
    assert any(ENDED_BEFORE in line for line in result.tdbg_lines), result.stderr


SLEEPS = """
import os, sys, time
open("mine.txt", "w").write("x")
print(os.getpid(), os.path.exists("mine.txt"), flush=True)
time.sleep(60)
"""


@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143), (signal.SIGKILL, 137)])
def test_a_program_that_is_stopped_leaves_nothing(tmp_path: Path, number: signal.Signals, code: int) -> None:
    words = [sys.executable, "-m", "tdbg", "run", "--run-dir", "run", "--preflight", "--", sys.executable, "-c", SLEEPS]
    with subprocess.Popen(
        words, cwd=tmp_path, env=build_environment({}), stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as process:
        assert process.stdout is not None
        pid, seen = process.stdout.readline().split()
        os.kill(int(pid), number)
        _, stderr = process.communicate(timeout=60)
    assert (process.returncode, seen) == (code, "True"), stderr
    assert {path.name for path in tmp_path.iterdir()} == {"run"}
    assert not (tmp_path / "run" / "preflight").exists()
    assert ENDED_BEFORE in stderr


def test_a_program_that_fails_keeps_its_code_and_its_files(watched_runner: Runner, tmp_path: Path) -> None:
    fails = "import torch\nopen('mine.txt', 'w').write('x')\nraise ValueError('before the first update')"
    result = watched_runner([sys.executable, "-c", fails], PREFLIGHT)
    assert result.code == 1 and "ValueError: before the first update" in result.stderr
    assert {path.name for path in tmp_path.iterdir()} == {"run"}


def test_profile_refuses_preflight() -> None:
    words = [sys.executable, "-m", "tdbg", "profile", "--preflight", "--", "true"]
    result = subprocess.run(words, capture_output=True, text=True, check=False)
    assert result.returncode == 2 and "--preflight" in result.stderr


@pytest.mark.parametrize(
    "options",
    [("--exec",), ("--level", "off"), ("--capture", "*"), ("--measure-overhead", "5"), ("--to", "tensorboard")],
)
def test_what_preflight_excludes_is_refused(options: tuple[str, ...]) -> None:
    words = [sys.executable, "-m", "tdbg", "run", "--preflight", *options, "--", "true"]
    result = subprocess.run(words, capture_output=True, text=True, check=False)
    assert result.returncode == 2 and "--preflight" in result.stderr


FAILS = """
import torch
{how}
model = torch.nn.Linear(4, 4)
optimizer = torch.optim.SGD(model.parameters(), 0.1)
for _ in range(20):
    {update}
    print("updated")
torch.save(model.state_dict(), "last.pt")
"""
HAND_MADE = "model.weight.grad = torch.randn(4, 4); optimizer.step()"
BACKWARD = "model(torch.randn(8, 4)).sum().backward(); optimizer.step()"
CLOSURE = "optimizer.step(lambda: model(torch.randn(8, 4)).sum().backward())"
IN_RECORD = "from tdbg.probes.preflight.batch_overfitted import LossRecorder; LossRecorder.backward_begins = None"
IN_TRIALS = "import tdbg.probes.preflight as probe; probe.unwrap_module = None"


@pytest.mark.parametrize(("how", "update"), [(IN_RECORD, BACKWARD), (IN_TRIALS, BACKWARD), (IN_RECORD, CLOSURE)])
def test_a_failure_of_the_trials_ends_the_process_too(
    watched_runner: Runner, how: str, update: str, tmp_path: Path
) -> None:
    result = watched_runner([sys.executable, "-c", FAILS.format(how=how, update=update)], PREFLIGHT)
    assert result.code == 125 and "updated" not in result.stdout, result.stderr
    assert "was stopped before its first update because the trials failed (TD-C005)" in result.stderr
    assert "TD-C005" in result.codes and "training went on" not in str(result.verdict)
    assert "the preflight failed: nothing was tried (TD-C005)" in result.stderr
    assert not (tmp_path / "last.pt").exists()


COMPILED = {  # how an update is compiled, each with the eager backend
    "method": "optimizer.step = torch.compile(optimizer.step, backend='eager')",
    "whole": "optimizer.step = torch.compile(optimizer.step, backend='eager', fullgraph=True)",
    "function": "update = torch.compile(lambda: torch.optim.SGD.step(optimizer), backend='eager')",
}


@pytest.mark.parametrize("kind", COMPILED)
@pytest.mark.parametrize(("how", "code"), [("", 0), (IN_TRIALS, 125)])
def test_a_compiled_update_ends_the_process(watched_runner: Runner, kind: str, how: str, code: int) -> None:
    update = BACKWARD.replace("optimizer.step()", "update()" if kind == "function" else "optimizer.step()")
    result = watched_runner(
        [sys.executable, "-c", FAILS.format(how=how, update=update).replace("for _", f"{COMPILED[kind]}\nfor _")],
        PREFLIGHT,
    )
    assert result.code == code and "updated" not in result.stdout, result.stderr
    assert ENDED_BEFORE not in result.stderr


@pytest.mark.parametrize("update", [HAND_MADE, "optimizer.step(lambda: model.weight.sum().detach())"])
def test_updates_without_a_backward_pass_end_the_process(watched_runner: Runner, update: str) -> None:
    result = watched_runner([sys.executable, "-c", FAILS.format(how="", update=update)], PREFLIGHT)
    assert result.code == 0 and "updated" not in result.stdout, result.stderr
    assert {row["reason"] for row in result.verdict["preflight"]} == {"no call of a model was seen"}


CUT = """
import torch

class Net(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.head = torch.nn.Linear(4, 3)

    def forward(self, x):
        logits = self.head(x)
        return {logits} + x[:, :3] * 0.1

model = Net()
optimizer = torch.optim.SGD(model.parameters(), 0.1)
x = torch.randn(8, 4, requires_grad=True)
torch.nn.functional.cross_entropy(model(x), torch.arange(8) % 3).backward()
optimizer.step()
"""


@pytest.mark.parametrize("logits", ["logits.detach()", "logits"])
def test_a_loss_that_gives_no_parameter_a_gradient_is_named(watched_runner: Runner, logits: str) -> None:
    result = watched_runner([sys.executable, "-c", CUT.format(logits=logits)], PREFLIGHT)
    assert result.code == 0, result.stderr
    assert [row["tried"] for row in result.verdict["preflight"] if row["trial"] == "one batch overfitted"] == [True]
    if logits == "logits":
        assert "TD-L022" not in result.codes
    else:
        named = "one batch cannot be overfitted: no parameter receives a gradient of cross_entropy"
        assert named in result.find_finding("TD-L022")["title"]


@pytest.mark.cold
@pytest.mark.parametrize(
    ("broken", "text", "other"),
    [
        ("tdbg/inject/redirects.py", "import", "this is no Python"),
        (
            "tdbg/inject/redirects.py",
            "def install_torch_redirects() -> None:",
            "def install_torch_redirects() -> None:\n    raise ValueError\n",
        ),
        (
            "tdbg/inject/redirects.py",
            'replace_function("preflight-libraries", owner, name, _with',
            "owner.__closed__.set(name, _with",
        ),
        ("tdbg/runtime/torch_hooks.py", '("torch:save",)', '("torch:saved",)'),
        ("tdbg/probes/preflight/__init__.py", "import", "this is no Python"),
    ],
)
def test_a_program_does_not_run_where_preflight_cannot_start(
    broken: str, text: str, other: str, tmp_path: Path
) -> None:
    """It would write its files, and train on."""
    shutil.copytree(ROOT / "tdbg", tmp_path / "copy" / "tdbg")
    file = tmp_path / "copy" / broken
    assert text in file.read_text()
    file.write_text(file.read_text().replace(text, other, 1))
    (tmp_path / "work").mkdir()
    run = [sys.executable, "-P", "-m", "tdbg", "run", "--run-dir", str(tmp_path / "run"), "--preflight", "--"]
    env = build_environment({"PYTHONPATH": str(tmp_path / "copy"), "PYTHONDONTWRITEBYTECODE": "1"})
    done = subprocess.run(
        [*run, *build_program_command("writes_files")],
        cwd=tmp_path / "work",
        env=env,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 125, done.stderr
    assert re.search(
        "tdbg: preflight: process [0-9]+ was stopped because tdbg failed to start in it: .*Error: ", done.stderr
    )
    assert list((tmp_path / "work").iterdir()) == []


PARTS = """
import torch
from torch import nn
torch.manual_seed(0)
encoder, body = nn.Sequential(nn.Embedding(50, 16)), nn.Sequential(nn.Linear(16, 4))
optimizers = [torch.optim.SGD(part.parameters(), 0.1) for part in (encoder, body)]
loss = nn.functional.cross_entropy(body(encoder(torch.randint(0, 50, (8,)))), torch.randint(0, 4, (8,)))
loss.backward()
for optimizer in optimizers:
    optimizer.step()
"""
NO_MODEL = """
import torch
weight = torch.nn.Parameter(torch.ones(4))
optimizer = torch.optim.SGD([weight], 0.1)
(weight * torch.randn(4)).sum().backward()
optimizer.step()
"""


def test_a_model_that_is_called_in_parts_is_tried(watched_runner: Runner) -> None:
    result = watched_runner([sys.executable, "-c", PARTS], PREFLIGHT)
    tried = {row["trial"] for row in result.verdict["preflight"] if row["tried"]}
    assert {"evaluation twice", "one sample changed"} <= tried
    assert "verdict: no problem found in the preflight" in result.stderr


def test_a_preflight_that_could_try_nothing_does_not_say_that_no_problem_was_found(watched_runner: Runner) -> None:
    result = watched_runner([sys.executable, "-c", NO_MODEL], PREFLIGHT)
    assert "verdict: preflight: no test could be made; " in result.stderr and "no problem" not in result.stderr
    assert "not tried: evaluation twice (no call of a model was seen)" in result.stderr
