"""What the boot file costs a Python process that never imports torch: at most 1.3 times the bare start."""

import os
import random
import statistics
import subprocess
import sys
import time
from collections.abc import Mapping
from typing import Any

from tdbg.launch.bytecode import precompile_boot_file

ROUNDS = 25


def time_startup(env: Mapping[str, str]) -> float:
    begun = time.perf_counter()
    subprocess.run([sys.executable, "-c", "pass"], env=env, check=True)
    return time.perf_counter() - begun


def test_instrumented_start_up(make_run: Any) -> None:
    """Interleaved in shuffled order, with a second bare arm as a control."""
    run = make_run(flags={"LOSS.NULL_MASKING": True}, log_level="DEBUG")
    ours = {**run.build_environment(), "PYTHONDONTWRITEBYTECODE": "1"}
    bare = {key: value for key, value in ours.items() if key != "PYTHONPATH"}
    compiled_anew = measure_arms({"bare": bare, "ours": ours})["ours"]
    precompile_boot_file(str(run.boot / "sitecustomize.py"))
    ratios = measure_arms({"bare": bare, "control": bare, "ours": ours})
    print({name: round(ratio, 3) for name, ratio in {**ratios, "compiled anew": compiled_anew}.items()})
    assert ratios["ours"] <= 1.3, ratios
    assert compiled_anew <= 1.5


def measure_arms(arms: Mapping[str, Mapping[str, str]]) -> dict[str, float]:
    """Each arm's median time over the bare arm's."""
    times: dict[str, list[float]] = {name: [] for name in arms}
    for env in arms.values():
        time_startup(env)
    for _ in range(ROUNDS):
        for name in random.sample(list(arms), len(arms)):
            times[name].append(time_startup(arms[name]))
    middle = {name: statistics.median(values) for name, values in times.items()}
    return {name: value / middle["bare"] for name, value in middle.items()}


def test_nothing_but_os_and_sys_is_loaded(make_run: Any) -> None:
    run = make_run(flags={"LOSS.NULL_MASKING": True}, log_level="DEBUG")
    code = "import sys; print(sorted(sys.modules))"
    bare = {key: value for key, value in run.build_environment().items() if key != "PYTHONPATH"}
    assert run.run_python("-c", code).stdout == run.run_python("-c", code, env=bare).stdout
    assert run.has_woken
    assert os.listdir(run.path / "boot")
