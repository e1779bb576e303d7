"""The program's source is read in a process beside the command, at the lowest priority, so that no rank has to.

Which flags guard which lines takes some 15 ms of CPU for each file that was never read before: in a rank's own thread the
training would wait for that, and on a machine with eight ranks eight times over. What was read is kept on disk, where
the ranks look for it (`tdbg.inject.maps`).
"""

import os
import signal
from collections.abc import Sequence

from tdbg.inject.source_roots import find_source_root
from tdbg.launch.orphans import KEPT, die_with, let_go_of_files
from tdbg.logs.guards.kept import forget_old_maps, take_turn, tree_maps, wait_until_settled

LOWEST_PRIORITY = 19


class SourceReader:
    """A forked process that reads the source tree of a command; none where no script is named.

    Start it while this process has one thread: it forks. functions: those of the program that are asked for a flag.
    """

    def __init__(self, words: Sequence[str], functions: Sequence[str]) -> None:
        self._pid = -1
        script = find_script(words)
        if script is None:
            return
        root = find_source_root(script, script, os.getcwd())
        parent = os.getpid()
        try:
            self._pid = os.fork()
        except OSError:  # no room for another process: a rank reads by itself
            return
        if self._pid == 0:
            _read_source(root, functions, parent)

    def end_reading(self) -> None:
        """End it, read or not."""
        if self._pid > 0:
            try:
                os.kill(self._pid, signal.SIGKILL)
                os.waitpid(self._pid, 0)
            except (ProcessLookupError, ChildProcessError):
                pass
            self._pid = -1


def find_script(words: Sequence[str]) -> str | None:
    """The script or module that a command runs, as an absolute path; None if it names no file that is there."""
    for place, word in enumerate(words):
        if word.endswith(".py") and os.path.isfile(word):
            return os.path.abspath(word)
        if word in ("-m", "--module") and place + 1 < len(words):
            path = os.path.abspath(os.path.join(*words[place + 1].split(".")))
            for file in (f"{path}.py", os.path.join(path, "__main__.py")):
                if os.path.isfile(file):
                    return file
    return None


def _read_source(root: str, functions: Sequence[str], parent: int) -> None:
    """The whole life of that process; never returns."""
    code = 1
    try:
        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT):
            signal.signal(number, signal.SIG_DFL)
        die_with(parent)
        let_go_of_files(KEPT)
        os.nice(LOWEST_PRIORITY)

        def check_parent() -> None:
            if os.getppid() != parent:
                os._exit(1)

        with take_turn(root, functions) as is_ours:
            if is_ours:
                wait_until_settled(root)
                tree_maps(root, functions, check_parent)
                forget_old_maps()
        code = 0
    finally:
        os._exit(code)
