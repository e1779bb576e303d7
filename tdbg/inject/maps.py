"""The guard maps of the program's own files, made in a thread of their own: no step waits for them."""

import os
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Sequence
from pathlib import Path

from tdbg.core.guard import Guard
from tdbg.core.profiling import wait_while_recording
from tdbg.inject.console_level import PACKAGES
from tdbg.logs.guards.kept import tree_maps
from tdbg.logs.guards.link import GuardMap
from tdbg.logs.guards.program_files import map_of

OWN = os.path.join(Path(__file__).parents[1], "")


class Maps:
    """Answers which map a file has. Of a tree that nobody asked about before, the answer comes later.

    A whole tree is read at once, since who calls a function decides whether it is guarded. The maps are kept on disk
    until a file changes (`tdbg.logs.guards.kept`), and then only what changed is parsed again. Cost of an answer: a dict look-up.
    functions: those of the program that are asked for a flag by name. ready: called in the thread when all that was asked for is there.
    """

    def __init__(
        self, functions: Sequence[str], ready: Callable[[], None], failed: Callable[[str, BaseException], None]
    ) -> None:
        # by the name that code objects bear; None: nothing in that file is guarded
        self.known: dict[str, GuardMap | None] = {}
        self._functions = functions
        self._ready = ready
        self._guard = Guard("guards", failed)
        self._single: dict[str, GuardMap] = {}
        self.read_s = 0.0  # CPU time of the thread
        self.reset_after_fork()

    def reset_after_fork(self) -> None:
        """In a forked child: the thread stayed in the parent."""
        self._trees: dict[str, dict[str, GuardMap]] = {}
        self._waiting: list[str] = []
        self._lock = threading.RLock()  # a signal handler may log too
        self._thread: threading.Thread | None = None

    @property
    def busy(self) -> bool:
        """True while maps are being made."""
        return self._thread is not None

    def request_main_tree(self) -> None:
        """Begin with the tree of the program itself."""
        main = getattr(sys.modules.get("__main__"), "__file__", None)
        if main and is_of_the_program(os.path.abspath(main)):
            self._request_tree(root_of(os.path.abspath(main)))

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
        root = root_of(path)
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

    def wait_for_thread(self, seconds: float) -> None:
        """Give the thread some time to end."""
        thread = self._thread
        if thread is not None and thread.is_alive() and thread is not threading.current_thread():
            thread.join(seconds)

    def _request_tree(self, root: str) -> None:
        with self._lock:
            if root in self._trees or root in self._waiting:
                return
            self._waiting.append(root)
            if self._thread is None:
                self._thread = threading.Thread(target=self._build_trees, name="tdbg-guards", daemon=True)
                self._thread.start()

    def _build_trees(self) -> None:
        while True:
            begun = time.thread_time()
            tree = self._guard.call_guarded(tree_maps, self._waiting[0], self._functions, wait_while_recording) or {}
            self.read_s += time.thread_time() - begun
            with self._lock:
                self._trees[self._waiting.pop(0)] = tree
                if self._waiting:
                    continue
                self._thread = None
            self._single.clear()
            self._guard.call_guarded(self._ready)
            return


def is_of_the_program(path: str) -> bool:
    """True unless the file belongs to Python, an installed package or tdbg; the package that was started always counts."""
    if path.startswith(OWN):
        return False
    if not path.startswith(PACKAGES):
        return True
    spec = getattr(sys.modules.get("__main__"), "__spec__", None)
    package = str(spec.name).partition(".")[0] if spec is not None else ""
    return bool(package) and any(path.startswith(os.path.join(folder, package, "")) for folder in PACKAGES)


def root_of(path: str) -> str:
    """The tree a file belongs to: the current folder, the script's, or else its own package's (or itself)."""
    main = os.path.abspath(getattr(sys.modules.get("__main__"), "__file__", None) or "")
    for base in (os.getcwd(), os.path.dirname(main)):
        inside = os.path.join(base, "")
        if path.startswith(inside) and main.startswith(inside) and base not in too_wide():
            return base
    folder = os.path.dirname(path)
    if not os.path.exists(os.path.join(folder, "__init__.py")):
        return path if folder in too_wide() else folder
    while os.path.exists(os.path.join(os.path.dirname(folder), "__init__.py")):
        folder = os.path.dirname(folder)
    return folder


def too_wide() -> tuple[str, ...]:
    """Folders that hold more than one program."""
    return ("/", os.path.expanduser("~"), tempfile.gettempdir(), *(folder.rstrip(os.sep) for folder in PACKAGES))
