"""The guard maps of the program's own files: read by a process beside the run, else slowly in a thread of the rank's."""

import os
import sys
import threading
import time
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path

from tdbg.core.guard import Guard
from tdbg.core.profiling import wait_while_recording
from tdbg.inject.console_level import PACKAGES
from tdbg.inject.source_roots import find_source_root
from tdbg.logs.guards.kept import find_kept_maps, take_turn, tree_maps
from tdbg.logs.guards.link import GuardMap
from tdbg.logs.guards.program_files import map_of

HEAD_START_S = 0.5  # the reader that `tdbg run` starts beside its command is given so long to begin
LOOK_EVERY_S = 0.2
PATIENCE_S = 120.0  # for another process that reads: it may be starved, or what it reads may not be kept
FREE_S = 0.25  # CPU time that the thread may take at once: a program of 10,000 lines
SHARE = 0.01  # and of the time after that
LONGEST_REST_S = 5.0

OWN = os.path.join(Path(__file__).parents[1], "")


class Maps:
    """Answers which map a file has. Of a tree that nobody asked about before, the answer comes later.

    A whole tree is read at once, since who calls a function decides whether it is guarded. The maps are kept on disk
    until a file changes (`tdbg.logs.guards.kept`), and then only what changed is parsed again. Cost of an answer: a dict look-up.
    functions: those of the program that are asked for a flag by name. ready: called in the thread when all that was asked
    for is there. waiting: called now and then in the thread until then. lock: whoever calls may hold it, or take it.
    """

    def __init__(
        self,
        functions: Sequence[str],
        ready: Callable[[], None],
        failed: Callable[[str, BaseException], None],
        waiting: Callable[[], object] = bool,
    ) -> None:
        # by the name that code objects bear; None: nothing in that file is guarded
        self.known: dict[str, GuardMap | None] = {}
        self._functions = functions
        self._ready, self._waits = ready, waiting
        self._guard = Guard("guards", failed)
        self._single: dict[str, GuardMap] = {}
        self._alone: set[str] = set()  # files whose answer is what they say by themselves
        self.read_s = 0.0  # CPU time of the thread
        self.reset_after_fork()

    def reset_after_fork(self) -> None:
        """In a forked child: the thread stayed in the parent."""
        self._trees: dict[str, dict[str, GuardMap]] = {}
        self._waiting: list[str] = []
        for file in self._alone:
            self.known.pop(file, None)
        self._alone.clear()
        self.lock = threading.RLock()  # a signal handler may log too
        self._thread: threading.Thread | None = None
        self._is_late = threading.Event()  # somebody waits for the thread

    @property
    def busy(self) -> bool:
        """True while maps are being made."""
        return self._thread is not None

    def request_main_tree(self) -> None:
        """Begin with the tree of the program itself."""
        main = getattr(sys.modules.get("__main__"), "__file__", None)
        if main and is_of_the_program(os.path.abspath(main)):
            self._request_tree(self._find_root(os.path.abspath(main)))

    def get_map(self, file: str) -> GuardMap | None:
        """The map of a file; None if nothing there is guarded. `is_pending` has to be asked first."""
        return self.known.get(file)

    def is_pending(self, file: str) -> bool:
        """True if the answer for this file is not there yet; the first to ask sets the thread to work."""
        if file in self.known:
            return False
        path = os.path.abspath(file)
        if not file.endswith(".py") or not is_of_the_program(path):
            self.known[file] = None
            return False
        root = self._find_root(path)
        tree = self._trees.get(root)
        if tree is None:
            self._request_tree(root)
            return True
        self.known[file] = tree.get(path)
        return False

    def get_single_map(self, file: str) -> GuardMap:
        """What the file says by itself, at once: for questions that cannot wait. Cost: 20 ms per 1,000 lines, once."""
        found = self._single.get(file)
        if found is None:
            found = self._single[file] = map_of(os.path.abspath(file), self._functions)
        return found

    def use_single_maps(self, files: Iterable[str]) -> None:
        """Let these files have the map of what each says by itself, until the tree is there: nobody can wait for it."""
        with self.lock:
            for file in filter(self.is_pending, set(files)):
                self.known[file] = self.get_single_map(file)
                self._alone.add(file)

    def wait_for_thread(self, seconds: float) -> None:
        """Give the thread some time to end."""
        thread = self._thread
        if thread is not None and thread.is_alive() and thread is not threading.current_thread():
            self._is_late.set()
            thread.join(seconds)

    @staticmethod
    def _find_root(path: str) -> str:
        main = os.path.abspath(getattr(sys.modules.get("__main__"), "__file__", None) or "")
        return find_source_root(path, main, os.getcwd())

    def _request_tree(self, root: str) -> None:
        with self.lock:
            if root in self._trees or root in self._waiting:
                return
            self._waiting.append(root)
            if self._thread is None:
                self._thread = threading.Thread(target=self._build_trees, name="tdbg-guards", daemon=True)
                self._thread.start()

    def _read_tree(self, root: str) -> dict[str, GuardMap]:
        """What another process has read; where none does, it is read here, by one rank of the machine."""
        found = find_kept_maps(root, self._functions, wait_while_recording)
        if found is not None:
            return found
        pace, until = _Pace(self._is_late, self._waits), time.monotonic() + PATIENCE_S
        self._is_late.wait(HEAD_START_S)
        while True:
            with take_turn(root, self._functions) as is_ours:
                if is_ours or self._is_late.is_set() or time.monotonic() > until:
                    return tree_maps(root, self._functions, pace.rest)
            self._is_late.wait(LOOK_EVERY_S)
            self._waits()

    def _build_trees(self) -> None:
        while True:
            begun = time.thread_time()
            tree = self._guard.call_guarded(self._read_tree, self._waiting[0]) or {}
            self.read_s += time.thread_time() - begun
            with self.lock:
                root = self._waiting.pop(0)
                self._trees[root] = tree
                for file in [file for file in self._alone if self._find_root(os.path.abspath(file)) == root]:
                    self._alone.remove(file)
                    self.known[file] = tree.get(os.path.abspath(file))
                if self._waiting:
                    continue
                self._thread = None
            self._single.clear()
            self._guard.call_guarded(self._ready)
            return


class _Pace:
    """Keeps what a thread takes of the CPU small: while it holds the interpreter, the training waits.

    is_late: no rest from now on, as somebody waits. meanwhile: called before each rest.
    """

    def __init__(self, is_late: threading.Event, meanwhile: Callable[[], object]) -> None:
        self._is_late, self._meanwhile = is_late, meanwhile
        self._begun_t, self._begun_cpu_s = time.monotonic(), time.thread_time()

    def rest(self) -> None:
        """Wait until the time since the start has earned what was taken."""
        wait_while_recording()
        owed_s = time.thread_time() - self._begun_cpu_s - FREE_S - SHARE * (time.monotonic() - self._begun_t)
        if owed_s > 0.0:
            self._meanwhile()
            self._is_late.wait(min(owed_s / SHARE, LONGEST_REST_S))


def is_of_the_program(path: str) -> bool:
    """True unless the file belongs to Python, an installed package or tdbg; the package that was started always counts."""
    if path.startswith(OWN):
        return False
    if not path.startswith(PACKAGES):
        return True
    spec = getattr(sys.modules.get("__main__"), "__spec__", None)
    package = str(spec.name).partition(".")[0] if spec is not None else ""
    return bool(package) and any(path.startswith(os.path.join(folder, package, "")) for folder in PACKAGES)
