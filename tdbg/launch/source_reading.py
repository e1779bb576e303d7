"""The program's source is read in a process beside the command, at the lowest priority, so that no rank has to.

Which flags guard which lines takes some 15 ms of CPU for each file that was never read before: in a rank's own thread the
training would wait for that, and on a machine with eight ranks eight times over. What was read is kept on disk, where
the ranks look for it (`tdbg.inject.maps`).
"""

import os
import signal
from collections.abc import Callable, Iterator, Sequence

from tdbg.launch.orphans import KEPT, die_with, let_go_of_files

LOWEST_PRIORITY = 19
ATTEMPTS = 3  # nothing is kept where a file changes meanwhile


class SourceReader:
    """A forked process that reads the source tree of a command; none where no script is named.

    Start it while this process has one thread: it forks. functions: those of the program that are asked for a flag.
    """

    def __init__(self, words: Sequence[str], functions: Sequence[str]) -> None:
        self._pid = -1
        if not any(map(os.path.isfile, iter_named_files(words))):
            return
        parent = os.getpid()
        try:
            self._pid = os.fork()
        except OSError:  # no room for another process: a rank reads by itself
            return
        if self._pid == 0:
            _read_source(words, functions, parent)

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
    """The script or module that a command runs, as an absolute path; None if it names no file of a program's."""
    from tdbg.inject.console_level import PACKAGES

    named = filter(os.path.isfile, iter_named_files(words))
    return next((file for file in named if not file.startswith(PACKAGES)), None)


def iter_named_files(words: Sequence[str]) -> Iterator[str]:
    """The files that the words of a command may stand for, there or not."""
    for place, word in enumerate(words):
        yield from _list_files(word, words[place + 1 : place + 2])


def _list_files(word: str, following: Sequence[str]) -> list[str]:
    """The files that a word of a command may stand for."""
    if word.endswith(".py"):
        return [os.path.abspath(word)]
    if word not in ("-m", "--module") or not following:
        return []
    path = os.path.abspath(os.path.join(*following[0].split(".")))
    return [f"{path}.py", os.path.join(path, "__main__.py")]


def _read_source(words: Sequence[str], functions: Sequence[str], parent: int) -> None:
    """The whole life of that process; never returns. What it needs is loaded here: the command does not wait for that."""
    code = 1
    try:
        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT):
            if signal.getsignal(number) != signal.SIG_IGN:  # as under nohup
                signal.signal(number, signal.SIG_DFL)
        die_with(parent)
        let_go_of_files(KEPT)
        os.nice(LOWEST_PRIORITY)

        def check_parent() -> None:
            if os.getppid() != parent:
                os._exit(1)

        script = find_script(words)
        if script is not None:
            _keep_maps(script, functions, check_parent)
        code = 0
    finally:
        os._exit(code)


def _keep_maps(script: str, functions: Sequence[str], check_parent: Callable[[], None]) -> None:
    from tdbg.inject.source_roots import find_source_root
    from tdbg.logs.guards.kept import find_kept_maps, forget_old_maps, take_turn, tree_maps, wait_until_settled

    root = find_source_root(script, script, os.getcwd())
    with take_turn(root, functions) as is_ours:
        if is_ours:
            for _ in range(ATTEMPTS):
                wait_until_settled(root)
                tree_maps(root, functions, check_parent)
                if find_kept_maps(root, functions, check_parent) is not None:
                    break
            forget_old_maps()
