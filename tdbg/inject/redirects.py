"""`--preflight`: nothing of the program's is written. Files are redirected into the run directory, trackers are off.

`file_overlay` has what Python itself opens. Here stand functions that leave that to compiled code (`torch.save`,
safetensors, sqlite3) and trackers that send: W&B is off by its environment variable, and where the program asks for
another mode. The supervisor removes the folder at the end.
"""

import functools
import os
from collections.abc import Callable
from types import ModuleType
from typing import Any

from tdbg.core.host import host_name
from tdbg.core.rundir import PREFLIGHT_FOLDER, PREFLIGHT_START
from tdbg.inject.agent import get_agent
from tdbg.inject.file_overlay import FileOverlay
from tdbg.inject.foreign_patches import replace_function
from tdbg.inject.imports import when_imported
from tdbg.inject.redirected_functions import install_overlay

_overlay: FileOverlay | None = None


def arrive(module: ModuleType) -> None:
    """Python itself is there: the process has just begun."""
    global _overlay
    me = get_agent()
    folder = str(me.run_dir / PREFLIGHT_FOLDER / host_name())
    _overlay = FileOverlay(folder, str(me.run_dir), os.environ.get(PREFLIGHT_START, ""))
    os.environ[PREFLIGHT_START] = _overlay.start  # for the processes that this one starts
    install_overlay(_overlay)
    when_imported("sqlite3.dbapi2", lambda loaded: _redirect_function(loaded, "connect", 0, "database"))
    when_imported("sqlite3", lambda loaded: _redirect_function(loaded, "connect", 0, "database"))
    when_imported("safetensors.torch", _safetensors_loaded)
    when_imported("safetensors.numpy", _safetensors_loaded)
    when_imported("safetensors", lambda loaded: _redirect_function(loaded, "safe_open", 0, "filename", writes=False))
    when_imported("wandb", _wandb_loaded)


def install_torch_redirects() -> None:
    """The same for torch, which is imported. What fails here ends the process: see the boot file."""
    from tdbg.runtime.torch_hooks import iter_targets

    for place, at, word, writes in (("save", 1, "f", True), ("load", 0, "f", False), ("script-saved", 1, "f", True)):
        found = list(iter_targets(place))
        if not found and place == "save":
            raise RuntimeError("torch.save is not where tdbg expects it and cannot be redirected")
        for owner, name in found:
            _redirect_function(owner, name, at, word, writes=writes)
    for owner, name in iter_targets("mapped"):
        _redirect_mapping(owner, name)


def _redirect_function(owner: Any, name: str, at: int, word: str, *, writes: bool = True) -> None:
    """Give a function another path in the place of its argument number ``at``, by the name ``word``."""
    original = getattr(owner, name, None)
    if original is not None:
        replace_function("preflight-libraries", owner, name, _with_other_path(original, at, word, writes=writes))


def _with_other_path(original: Callable[..., Any], at: int, word: str, *, writes: bool) -> Callable[..., Any]:
    @functools.wraps(original)
    def call_with_other_path(*args: Any, **kwargs: Any) -> Any:
        given = args[at] if at < len(args) else kwargs.get(word)
        found = _overlay.find_path(given, writes=writes) if _overlay is not None else None
        if found is not None and at < len(args):
            args = (*args[:at], found, *args[at + 1 :])
        elif found is not None:
            kwargs = {**kwargs, word: found}
        return original(*args, **kwargs)

    return call_with_other_path


def _redirect_mapping(owner: Any, name: str) -> None:
    """``from_file(filename, shared=True)`` writes through to the file: a copy is mapped."""
    original = getattr(owner, name)

    @functools.wraps(original)
    def from_file(filename: Any, *args: Any, **kwargs: Any) -> Any:
        writes = bool(kwargs.get("shared", args[0] if args else False))
        found = _overlay.find_path(filename, writes=writes, with_content=True) if _overlay is not None else None
        return original(found or filename, *args, **kwargs)

    replaced = staticmethod(from_file) if isinstance(owner, type) else from_file
    replace_function("preflight-libraries", owner, name, replaced)


def _safetensors_loaded(module: ModuleType) -> None:
    _redirect_function(module, "save_file", 1, "filename")
    _redirect_function(module, "load_file", 0, "filename", writes=False)


def _wandb_loaded(module: ModuleType) -> None:
    original: Any = module.init

    @functools.wraps(original)
    def init_disabled(*args: Any, **kwargs: Any) -> object:
        return original(*args, **{**kwargs, "mode": "disabled"})

    replace_function("preflight-libraries", module, "init", init_disabled)
