"""A process that answers `tdbg inspect-pages` command lines one after the other, in bounded memory and time."""

import contextlib
import io
import json
import os
import resource
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

ROOT = Path(__file__).parents[2]
SPACE_BYTES = 3 << 30  # of addresses: what would fill a machine ends in an error here
PATIENCE_S = 30


class Answer(NamedTuple):
    """Of one command line. code: its exit code; None if it took too long. grown_mb: by its peak memory."""

    code: int | None
    out: str
    said: str
    grown_mb: float
    seconds: float


class Limited:
    """Starts the process when it is first asked, and again after a crash."""

    def __init__(self) -> None:
        self._process: subprocess.Popen[str] | None = None

    def __call__(self, *words: object) -> Answer:
        process = self._process
        if process is None:
            env = {**os.environ, "OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1"}
            command = [sys.executable, "-m", "tests.pages.limited"]
            process = self._process = subprocess.Popen(
                command, cwd=ROOT, env=env, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
            )
        assert process.stdin is not None and process.stdout is not None
        process.stdin.write(json.dumps([str(word) for word in words]) + "\n")
        process.stdin.flush()
        line = process.stdout.readline()
        if not line:
            self._process = None
            raise AssertionError(f"crashed with {process.wait()}: {' '.join(map(str, words))}")
        return Answer(*json.loads(line))

    def close(self) -> None:
        """End it."""
        if self._process is not None:
            self._process.communicate()
            self._process = None


# in the process


class TooLong(BaseException):
    """Nothing in tdbg may take this for an error of a page."""


def _raise_too_long(*_: Any) -> None:
    raise TooLong


def reset_peak() -> None:
    """The peak of memory begins anew, where the system can do that."""
    with contextlib.suppress(OSError):
        Path("/proc/self/clear_refs").write_text("5")


def read_peak_mb() -> float:
    """The most memory that this process had, since it began or since `reset_peak`."""
    with open("/proc/self/status") as file:
        return next(int(line.split()[1]) for line in file if line.startswith("VmHWM")) / 1024


def _run_limited(words: Sequence[str]) -> Answer:
    from tdbg import cli

    reset_peak()
    out, said, before, begun = io.StringIO(), io.StringIO(), read_peak_mb(), time.process_time()
    signal.alarm(PATIENCE_S)
    try:
        with contextlib.redirect_stdout(out), contextlib.redirect_stderr(said):
            code: int | None = cli.main(["inspect-pages", *words])
    except TooLong:
        code = None
    finally:
        signal.alarm(0)
    seconds = time.process_time() - begun
    return Answer(code, out.getvalue()[:20_000], said.getvalue()[:20_000], read_peak_mb() - before, seconds)


def main() -> None:
    import numpy  # noqa: F401 - not what a command needs for a file

    from tdbg.cli.inspect_pages import COMMAND

    for name in COMMAND.names:
        COMMAND.load(name)
    resource.setrlimit(resource.RLIMIT_AS, (SPACE_BYTES, SPACE_BYTES))
    signal.signal(signal.SIGALRM, _raise_too_long)
    for line in sys.stdin:
        print(json.dumps(_run_limited(json.loads(line))), flush=True)


if __name__ == "__main__":
    main()
