"""The exit codes and signals of a launcher's children become events; those of its tools do not."""

import textwrap
from typing import Any

import pytest

SETUP = """
import multiprocessing, os, signal, subprocess, sys, types
from tdbg.inject import children
from tdbg.inject.agent import get_agent
me = get_agent()
children.install_child_watch(me)
HELLO = f"import os; open({str(me.run_dir)!r} + '/hello/{me.host}-' + str(os.getpid()) + '.json', 'w').close();"
os.makedirs(me.run_dir / "hello", exist_ok=True)
def child(code, hello=True): return subprocess.Popen([sys.executable, "-c", (HELLO if hello else "") + code])
def leave(code): os._exit(code)
def killed(number): os.kill(os.getpid(), number)
"""


def list_exit_codes(run: Any, text: str) -> list[int]:
    path = run.path.parent / "s.py"
    path.write_text(SETUP + "if __name__ == '__main__':\n" + textwrap.indent(textwrap.dedent(text), "    "))
    done = run.run_python(str(path))
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")
    assert run.list_events("probe_off") == []
    return [event.get("code", 0) for event in run.list_events("child_exit")]


@pytest.mark.parametrize(
    ("text", "then"),
    [
        ("child('import sys; sys.exit(7)').wait()", [7]),
        ("child('import os; os.kill(os.getpid(), 9)').communicate()", [-9]),
        ("c = child('os.abort()')\nwhile c.poll() is None: pass\nc.poll(); c.wait()", [-6]),
        ("child('pass').wait()", []),
        ("child('pass').wait(); child('import sys; sys.exit(7)').wait(); child('pass').wait()", [0, 7, 0]),
        ("subprocess.run(['sh', '-c', 'exit 128'])", []),
        ("child('import sys; sys.exit(7)', hello=False).wait()", []),
        (
            "sys.modules['torch.distributed.launcher.api'] = types.ModuleType('x')\n"
            "child('import sys; sys.exit(7)', hello=False).wait(); subprocess.run(['sh', '-c', 'exit 128'])",
            [7],
        ),
    ],
    ids=["code", "signal", "polled", "success", "one of three", "tool", "not torch", "launcher"],
)
def test_subprocess(make_run: Any, text: str, then: list[int]) -> None:
    assert list_exit_codes(make_run(), text) == then


@pytest.mark.parametrize("method", ["fork", "spawn", "forkserver"])
def test_multiprocessing(make_run: Any, method: str) -> None:
    run = make_run()
    found = list_exit_codes(
        run,
        f"""
        context = multiprocessing.get_context("{method}")
        for target, value in ((leave, 3), (leave, 0), (killed, signal.SIGKILL)):
            process = context.Process(target=target, args=(value,))
            process.start(); process.join(); process.is_alive(); process.exitcode
        """,
    )
    # a forkserver knows its children's signals too
    assert found == [3, -9]
    assert all(event["pid"] and event["host"] for event in run.list_events("child_exit"))


def test_terminated_by_multiprocessing_itself(make_run: Any) -> None:
    text = """
    import time
    process = multiprocessing.get_context("fork").Process(target=time.sleep, args=(60,), daemon=True)
    process.start(); process.terminate(); process.join()
    """
    assert list_exit_codes(make_run(), text) == []
