"""`--serve PORT`: the viewer of a run while it goes on, as a process of the supervisor's own.

It is `tdbg view` of that one run, outside of the run's environment: whatever breaks in it, no rank sees it.
"""

import contextlib
import functools
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator

from tdbg.core.errors import TdbgError
from tdbg.core.guard import describe_error, guarded
from tdbg.core.output import print_messages
from tdbg.core.rundir import RunDir
from tdbg.launch import orphans

PACKAGES = ("starlette", "uvicorn", "plotly")
LOOPBACK = "127.0.0.1"
GRACE_S = 3.0  # after it was told to end
PREFIX = "tdbg: "


def check_serving(port: int, *, replace: bool) -> None:
    """Everything that can be refused before the run begins. Raises TdbgError."""
    if replace:
        raise TdbgError("--serve needs tdbg to stay running, and --exec replaces it", "leave out --exec or --serve")
    import importlib.util
    import socket

    for package in PACKAGES:
        if importlib.util.find_spec(package) is None:
            raise TdbgError(f"--serve needs {package}", "install the extra: pip install 'tdbg[view]'")
    with socket.socket(socket.AF_INET, socket.SOCK_STREAM) as tried:
        tried.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            tried.bind((LOOPBACK, port))
        except (OSError, OverflowError) as error:
            why = error.strerror if isinstance(error, OSError) else error
            hint = "choose another --serve port; without one tdbg takes a free one"
            raise TdbgError(f"--serve: cannot listen on {LOOPBACK}:{port}: {why}", hint) from None


@contextlib.contextmanager
def serve_run(run: RunDir, port: int | None) -> "Iterator[RunViewer | None]":
    """The viewer of a run, until the block ends; None without a port, and where it cannot be started."""
    viewer = None
    if port is not None:
        with guarded("the run goes on without its viewer", _report_failure):
            viewer = RunViewer(run, port)
    try:
        yield viewer
    finally:
        if viewer is not None:
            with guarded("a viewer that does not end is no matter of the run's", _report_failure):
                viewer.stop()


def _report_failure(error: BaseException) -> None:
    print_messages(f"--serve: {describe_error(error)}", "the run is not affected; `tdbg view` shows it")


class RunViewer:
    """The process. It is made before any thread, and while signals still reach what is started."""

    def __init__(self, run: RunDir, port: int) -> None:
        import tempfile

        self._stopped = False
        self._stderr = tempfile.TemporaryFile()  # noqa: SIM115 - as long as the process
        self._process = subprocess.Popen(
            [sys.executable, "-P", "-m", "tdbg", "view", str(run.path.resolve()), "--port", str(port)],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=self._stderr,
            env={key: value for key, value in os.environ.items() if not key.startswith("TDBG_")},
            start_new_session=True,  # Ctrl-C is not for it
            preexec_fn=functools.partial(orphans.die_with, os.getpid()),
        )

    def start_thread(self) -> None:
        """Say its address as soon as there is one."""
        threading.Thread(target=self._announce, name="tdbg-serve", daemon=True).start()

    def _announce(self) -> None:
        with guarded("the run goes on without its viewer", _report_failure):
            assert self._process.stdout is not None
            address = self._process.stdout.readline().decode().strip()
            if address:
                print_messages(f"the viewer of this run: {address}")
            elif not self._stopped:
                print_messages(f"--serve: the viewer did not start: {self._read_error()}", "the run is not affected")

    def _read_error(self) -> str:
        self._stderr.seek(0)
        lines = self._stderr.read(10_000).decode(errors="replace").splitlines()
        return lines[0].removeprefix(PREFIX) if lines else "it ended without a message"

    def stop(self) -> None:
        """End it as Ctrl-C does, so that what it has started ends too."""
        self._stopped = True
        if self._process.poll() is None:
            self._process.send_signal(signal.SIGINT)
        try:
            self._process.wait(GRACE_S)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
