"""How this process's children ended: a launcher tells its caller its own exit code, not theirs."""

import functools
import signal
import sys
import threading
import time
from typing import Any

from tdbg.core.events import ChildExit
from tdbg.inject.agent import Agent

MAX_HELD = 64
LAUNCHERS = ("torch.distributed.launcher.api", "accelerate.commands.launch", "deepspeed.launcher.launch")


def install_child_watch(agent: Agent) -> None:
    """Chain the two places where Python learns a child's status; subclasses come with them."""
    import subprocess

    _watch_subprocess(agent, subprocess.Popen)
    for name in ("popen_fork", "popen_forkserver"):
        try:
            module = __import__(f"multiprocessing.{name}", fromlist=["Popen"])
        except ImportError:  # a platform without it
            continue
        _watch_multiprocessing(agent, module.Popen)


def _watch_subprocess(agent: Agent, popen: Any) -> None:
    real, guard = getattr(popen, "_handle_exitstatus", None), agent.get_guard("children")
    if real is None:
        return

    @functools.wraps(real)
    def handle_exitstatus(self: object, *args: object, **kwargs: object) -> object:
        result = real(self, *args, **kwargs)
        guard.call_guarded(_look_at_popen, agent, self)
        return result

    popen._handle_exitstatus = handle_exitstatus


def _watch_multiprocessing(agent: Agent, popen: Any) -> None:
    real, guard = popen.__dict__["poll"], agent.get_guard("children")

    @functools.wraps(real)
    def poll(self: Any, *args: object, **kwargs: object) -> object:
        before = self.returncode
        code = real(self, *args, **kwargs)
        # SIGTERM is how multiprocessing itself ends daemons and the ranks left over after a failure.
        if code and before is None and code != -signal.SIGTERM:
            guard.call_guarded(_report_exit, agent, self.pid, code)
        return code

    popen.poll = poll


def _look_at_popen(agent: Agent, child: Any) -> None:
    if child.returncode is not None and _is_rank(agent, child):
        _report_exit(agent, child.pid, child.returncode)


def _is_rank(agent: Agent, child: Any) -> bool:
    """True for a torch process of this run, or a launcher's Python child; not for a failed ``git`` or ``nvidia-smi``."""
    if (agent.run_dir / "hello" / f"{agent.host}-{child.pid}.json").exists():
        return True
    if not any(name in sys.modules for name in LAUNCHERS):
        return False
    command = child.args if isinstance(child.args, str) else " ".join(map(str, child.args[:1]))
    return "python" in command.rpartition("/")[2]


_held: list[ChildExit] = []  # with code 0, until another child ends badly: only then is it worth a word, and a file
_has_failed = threading.Event()  # one did: from then on code 0 is told as well, as it may be that of a restart


def _report_exit(agent: Agent, pid: int, code: int) -> None:
    event = ChildExit(t=time.time(), host=agent.host, pid=pid, code=code)
    if not code and not _has_failed.is_set():
        _held.extend([event] if len(_held) < MAX_HELD else [])
        return
    _has_failed.set()
    while _held:
        agent.emit_aside(_held.pop(0))
    agent.emit_aside(event)
