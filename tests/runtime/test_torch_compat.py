"""Private names of torch: without any one of them one feature is off and says so, and the rest works."""

import ast
import json
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from tdbg.runtime import torch_compat
from tests.e2e.conftest import build_environment

PROGRAM = Path(__file__).with_name("without_a_name.py")
WINDOWS = "torch.profiler.profiler._KinetoProfile"


def _run_program(*words: str) -> subprocess.CompletedProcess[str]:
    env = build_environment({})
    return subprocess.run([sys.executable, str(PROGRAM), *words], capture_output=True, text=True, env=env, timeout=300)


def test_nothing_is_missing_in_this_torch() -> None:
    assert torch_compat.MISSING == {}


def test_each_may_be_missing() -> None:
    names = json.loads(_run_program("--list").stdout)
    looked_up = [
        node
        for node in ast.walk(ast.parse(Path(torch_compat.__file__).read_text(encoding="utf-8")))
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == "_resolve_name"
    ]
    assert len(names) >= len(looked_up) >= 20  # two of them are in loops over names
    halves = names[::2], names[1::2]
    with ThreadPoolExecutor(2) as pool:
        for half, done in zip(halves, pool.map(lambda half: _run_program(*half), halves), strict=True):
            assert done.returncode == 0, done.stderr
            answers = [json.loads(line) for line in done.stdout.splitlines() if line.startswith("{")]
            for name, found in zip(half, answers, strict=True):
                assert found["notes"] == [f"this torch has no {name}: {found['goes_off']}"]
                assert (name, found["failed"], found["steps"], found["first_bad"]) == (name, [], 12, 9)
                assert name == WINDOWS or found["profiled"], name


def test_a_window_that_cannot_be_recorded_is_refused_in_words() -> None:
    found = json.loads(_run_program(WINDOWS).stdout.splitlines()[-1])
    assert found["profiled"] == ""
    assert "no profiler that tdbg can drive" in found["refused"]
