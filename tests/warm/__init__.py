"""A Python that has torch loaded already, for tests whose subject is neither start-up nor injection.

Importing torch and what its optimizers load takes most of the time of a short program. One process of each test worker
(`server.py`) imports them once and forks for every program; the command that the tests start (`client.py`, written
into a folder as ``python`` and ``torchrun``) hands its arguments, environment, folder and open files over, forwards
signals, and ends as the program ends. In the fork ``sitecustomize`` runs as in a fresh interpreter, so `tdbg run` wakes
up there as it does behind a program's own ``sitecustomize`` that imports torch.

What a fork cannot show stays with a fresh interpreter: start-up, the order of imports, terminals, limits of the process
set by a shell, options of the interpreter. Tests of these are marked ``cold``.
"""

import atexit
import contextlib
import os
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path

HERE = Path(__file__).parent


class WarmPython:
    """The server, and a folder with the executables ``python`` and ``torchrun`` that go to it."""

    def __init__(self, env: Mapping[str, str]) -> None:
        self.folder = Path(tempfile.mkdtemp(prefix="warm"))
        self.python = self.folder / "python"
        self.torchrun = self.folder / "torchrun"
        self.address = self.folder / "socket"
        client = (HERE / "client.py").read_text(encoding="utf-8")
        for path, before in ((self.python, []), (self.torchrun, [str(Path(sys.executable).parent / "torchrun")])):
            text = client.replace('SOCKET = ""', f"SOCKET = {str(self.address)!r}")
            text = text.replace('PYTHON = ""', f"PYTHON = {sys.executable!r}")
            text = text.replace("BEFORE: list[str] = []", f"BEFORE = {before!r}")
            path.write_text(f"#!{sys.executable} -IS\n{text}", encoding="utf-8")
            path.chmod(0o755)
        self.server = subprocess.Popen(
            [sys.executable, str(HERE / "server.py"), str(self.address), str(self.python)],
            env=dict(env),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            cwd="/",
        )
        assert self.server.stdout is not None
        self.server.stdout.readline()  # it listens

    def translate_command(self, words: Sequence[str]) -> list[str]:
        """The same command, with the loaded Python where it names this one or torchrun."""
        chosen = {sys.executable: str(self.python), "torchrun": str(self.torchrun)}
        return [chosen.get(word, word) for word in words]

    def close(self) -> None:
        """End the server; its programs have ended before, or end now."""
        if self.server.stdin is not None:
            self.server.stdin.close()
        self.server.wait()
        for path in (self.python, self.torchrun, self.address):
            with contextlib.suppress(FileNotFoundError):
                path.unlink()
        os.rmdir(self.folder)


class Warmth:
    """Whether programs of the test that runs now go to the loaded Python; its server starts with the first."""

    def __init__(self) -> None:
        self.wanted = True
        self._warm: WarmPython | None = None

    def translate_command(self, words: Sequence[str], env: Mapping[str, str]) -> list[str]:
        """The command to start: the same one for a test marked ``cold``."""
        if not self.wanted or sys.platform != "linux":
            return list(words)
        if self._warm is None:
            self._warm = WarmPython(env)
            atexit.register(self._warm.close)
        return self._warm.translate_command(words)


WARMTH = Warmth()
