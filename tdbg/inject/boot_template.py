"""The boot file of a run: it runs as ``sitecustomize`` in every Python process below `tdbg run`.

`tdbg.inject.boot_source` fills in the constants. The file is read by whatever interpreter the program
uses, tdbg's own or not, so it needs nothing but ``os`` and ``sys``, which are loaded anyway, and its
syntax is old: an interpreter too old for tdbg still has to get past it.

It wakes nothing up by itself. It waits for the modules in WATCH, hands each to its handler once it is
imported, and gives way to the user's own sitecustomize as though it were not there. Whatever goes wrong
here is noted in ``errors.log`` beside it and never reaches the program.
"""

import os
import sys

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Sequence
    from importlib.machinery import ModuleSpec
    from types import ModuleType

RUN_DIR = ""
IDS = (-1, -1)  # who started the run, and who owns its directory: two numbers for one user where ids are mapped
TDBG_PARENT = ""  # the folder that holds the package tdbg
WATCH: "dict[str, str]" = {}  # a module to wait for -> the module whose arrive() gets it


def _append_boot_file(name: str, text: bytes) -> None:
    """Add to a file in the boot folder; where even that fails, nothing is left to try."""
    try:
        folder = os.open(os.path.join(_run_dir(), "boot"), os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW)
        try:
            flags = os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_NOFOLLOW | os.O_NONBLOCK
            handle = os.open(name, flags, 0o600 | (os.fstat(folder).st_mode & 0o044), dir_fd=folder)
            try:
                os.write(handle, text)
            finally:
                os.close(handle)
        finally:
            os.close(folder)
    except OSError:
        pass


def _run_dir() -> str:
    return os.environ.get("TDBG_RUN_DIR") or RUN_DIR


def _is_foreign(run: str) -> bool:
    """True if a run directory is another user's: nothing is started from it, and nothing written to it."""
    try:
        owner, me = os.stat(run).st_uid, os.geteuid()
    except OSError:  # it is gone: whoever writes there will say so
        return False
    trusted = [os.path.realpath(part) for part in os.environ.get("TDBG_TRUST", "").split(os.pathsep) if part]
    real = os.path.realpath(run)
    if (
        owner == me
        or (me, owner) == IDS
        or any((real + os.sep).startswith(part.rstrip(os.sep) + os.sep) for part in trusted)
    ):
        return False
    text = "tdbg: the run directory " + run + " belongs to uid " + str(owner) + ", not to you: nothing is recorded\n"
    try:
        os.write(2, text.encode("utf-8", "backslashreplace"))
    except OSError:
        pass
    return True


def _log_error(what: str, error: Exception) -> None:
    line = "{} {}: {}: {}\n".format(os.getpid(), what, type(error).__name__, " ".join(str(error).split()))
    _append_boot_file("errors.log", line.encode("utf-8", "replace"))
    _end_preflight("{}: {}".format(type(error).__name__, " ".join(str(error).split())))


def _end_preflight(reason: str) -> None:
    """A program whose files are not redirected would write them: under --preflight it does not run without tdbg."""
    if "os" not in WATCH:
        return
    text = (
        "tdbg: preflight: process "
        + str(os.getpid())
        + " was stopped because tdbg failed to start in it: "
        + reason
        + "\n"
    )
    try:
        os.write(2, text.encode("utf-8", "backslashreplace"))
    finally:
        os._exit(125)


class Waker:
    """A finder that finds nothing itself: it sees watched modules come in, and knows where tdbg is.

    It stays in ``sys.meta_path`` when its work is done: taking it out while another thread walks that
    list would make that thread pass over a finder.
    """

    tdbg_boot = True  # how a second boot file (a run inside a run) knows that the process is awake

    def __init__(self, watch: "dict[str, str]") -> None:
        # a module -> who gets it: modules with an arrive(), by name, and functions added later
        self.wanted = {name: [handler] for name, handler in watch.items()}  # type: dict[str, list[object]]

    def find_spec(
        self, name: str, path: "Sequence[str] | None" = None, target: "ModuleType | None" = None
    ) -> "ModuleSpec | None":
        """What the finders behind this one say, with an ear on the loader of a watched module."""
        if name not in self.wanted and name != "tdbg":
            return None
        spec = self._ask_the_others(name, path, target)
        try:
            if name == "tdbg":
                return spec or _tdbg_spec()
            if spec is not None:
                self._shadow_exec_module(name, spec)
                if name == "torch":
                    _append_boot_file("importing", b"")
        except Exception as error:  # fail open: the program's import goes on
            _log_error(name, error)
        return spec

    def _ask_the_others(
        self, name: str, path: "Sequence[str] | None", target: "ModuleType | None"
    ) -> "ModuleSpec | None":
        try:
            behind = sys.meta_path.index(self) + 1
        except ValueError:  # the program took this finder out, or calls it from within one of its own
            return None
        for finder in sys.meta_path[behind:]:
            find = getattr(finder, "find_spec", None)
            spec: ModuleSpec | None = find(name, path, target) if find else None
            if spec is not None:
                return spec
        return None

    def _shadow_exec_module(self, name: str, spec: "ModuleSpec") -> None:
        """Shadow ``exec_module`` on this one loader until it has run; type and identity stay what they were."""
        loader = spec.loader
        if loader is None:
            return
        real = loader.exec_module

        def exec_module(module: "ModuleType") -> None:
            if module.__name__ != name:  # a loader shared by several modules, as in a zip file
                return real(module)
            loader.__dict__.pop("exec_module", None)
            real(module)
            return self.run_handlers(name, module)

        # Under this name Python leaves the frame out of tracebacks, with the import system's own.
        exec_module.__code__ = exec_module.__code__.replace(
            co_filename="<frozen importlib._bootstrap>", co_name="_call_with_frames_removed"
        )
        loader.exec_module = exec_module  # type: ignore[method-assign]

    def run_handlers(self, name: str, module: "ModuleType") -> None:
        """Hand a module to its handlers, once; also to those that come meanwhile, while Python still calls it loading."""
        for handler in self.wanted.get(name, ()):
            try:
                if callable(handler):
                    handler(module)
                else:
                    __import__(str(handler))
                    sys.modules[str(handler)].arrive(module)
            except Exception as error:  # fail open: the program has its module, tdbg does without
                _log_error(str(handler), error)
        self.wanted.pop(name, None)


def _tdbg_spec() -> "ModuleSpec | None":
    """The package tdbg, for a program whose environment does not have it."""
    from importlib.machinery import PathFinder

    return PathFinder.find_spec("tdbg", [TDBG_PARENT])


def _install_waker() -> None:
    if sys.version_info < (3, 11):  # noqa: UP036 - this file alone is read by any Python
        if not _is_foreign(_run_dir()):
            _append_boot_file("old-python", b"")
        _end_preflight("Python 3.11 or later is needed")
        return
    if any(getattr(finder, "tdbg_boot", False) for finder in sys.meta_path):
        return
    if _is_foreign(_run_dir()):
        _end_preflight("the run directory belongs to another user")
        return
    _append_boot_file("woke", b"")
    os.environ.setdefault("TDBG_RUN_DIR", RUN_DIR)  # some launchers pass PYTHONPATH on, but not TDBG_*
    waker = Waker(WATCH)
    sys.meta_path.insert(0, waker)
    for name in WATCH:
        if name in sys.modules:
            waker.run_handlers(name, sys.modules[name])


def _give_way() -> None:
    """Run the user's own sitecustomize; without one, raise the ImportError that Python expects then."""
    here = os.path.dirname(__file__)
    sys.path[:] = [entry for entry in sys.path if entry != here]
    sys.path_importer_cache.pop(here, None)
    sys.modules.pop("sitecustomize", None)
    __import__("sitecustomize")


def _boot_process() -> None:
    try:
        try:
            _install_waker()
        except Exception as error:  # fail open: the program starts as it always did
            _log_error("boot", error)
    finally:
        if __name__ == "sitecustomize":  # `tdbg hook` runs this file under another name
            _give_way()


if RUN_DIR:
    _boot_process()
