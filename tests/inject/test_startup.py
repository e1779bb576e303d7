"""What the boot file adds to a Python process that never imports torch; `benchmarks/startup.py` has the times."""

import os
from typing import Any

from tdbg.launch.bytecode import precompile_boot_file


def test_nothing_but_os_and_sys_is_loaded(make_run: Any) -> None:
    run = make_run(flags={"LOSS.NULL_MASKING": True}, log_level="DEBUG")
    code = "import sys; print(sorted(sys.modules))"
    bare = {key: value for key, value in run.build_environment().items() if key != "PYTHONPATH"}
    assert run.run_python("-c", code).stdout == run.run_python("-c", code, env=bare).stdout
    assert run.has_woken
    assert os.listdir(run.boot)


def test_no_process_compiles_the_boot_file(make_run: Any) -> None:
    run = make_run()
    env = {**run.build_environment(), "PYTHONDONTWRITEBYTECODE": "1"}
    boot_file = str(run.boot / "sitecustomize.py")
    source, bytecode = f"# code object from {boot_file}", f"matches {boot_file}"
    compiled_anew = run.run_python("-v", "-c", "pass", env=env).stderr
    assert source in compiled_anew and bytecode not in compiled_anew
    precompile_boot_file(boot_file)
    precompiled = run.run_python("-v", "-c", "pass", env=env).stderr
    assert bytecode in precompiled and source not in precompiled
