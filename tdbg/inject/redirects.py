"""`--preflight`: what the program saves goes into a temporary folder of the run directory, which is removed at the end.

Covered are `torch.save` and `torch.load` with a path, safetensors' `save_file` and the event files of torch's
SummaryWriter; W&B is off by its environment variable, and where the program asks for another mode. Files that the program
opens itself are written as ever.
"""

import atexit
import os
import shutil
from pathlib import Path
from types import ModuleType
from typing import Any

from tdbg.core import run_files
from tdbg.inject.agent import Agent
from tdbg.inject.imports import when_imported

FOLDER = "preflight"
_moved: dict[str, str] = {}  # where the program wrote -> where it stands
_folders: list[Path] = []


def install(me: Agent) -> None:
    """Stand in front of what writes, as soon as the program has it. torch is imported."""
    from tdbg.runtime.patches import Patches
    from tdbg.runtime.torch_hooks import targets

    guard, patches = me.guard("redirects"), Patches()
    folder = me.run_dir / FOLDER / f"{me.host}-{os.getpid()}"
    _folders.append(folder)
    atexit.register(remove_files)

    def moved(path: str) -> str:
        if path not in _moved:
            run_files.make_folder(folder)
            _moved[path] = str(folder / f"{len(_moved)}-{Path(path).name}")
            me.note_once(FOLDER, "what the program saves is redirected and discarded; W&B is off")
        return _moved[path]

    def redirect(owner: object, name: str, at: int, word: str, *, reads: bool = False) -> None:
        """Give the function another path in the place of its argument number ``at``, by the name ``word``."""

        def make(original: Any) -> Any:
            def function(*args: Any, **kwargs: Any) -> object:
                given = args[at] if at < len(args) else kwargs.get(word)
                if isinstance(given, str | os.PathLike):
                    path = os.path.abspath(os.fspath(given))
                    other = _moved.get(path) if reads else guard.call(moved, str(path))
                    if other is not None and at < len(args):
                        args = (*args[:at], other, *args[at + 1 :])
                    elif other is not None:
                        kwargs = {**kwargs, word: other}
                return original(*args, **kwargs)

            return function

        patches.wrap(owner, name, make)

    for owner, name in targets("save"):
        redirect(owner, name, 1, "f")
    for owner, name in targets("load"):
        redirect(owner, name, 0, "f", reads=True)

    def safetensors_loaded(module: ModuleType) -> None:
        redirect(module, "save_file", 1, "filename")
        redirect(module, "load_file", 0, "filename", reads=True)

    def board_loaded(module: ModuleType) -> None:
        redirect(module.FileWriter, "__init__", 1, "log_dir")

    def wandb_loaded(module: ModuleType) -> None:
        def make(original: Any) -> Any:
            def init(*args: Any, **kwargs: Any) -> object:
                return original(*args, **{**kwargs, "mode": "disabled"})

            return init

        patches.wrap(module, "init", make)

    for module, then in (
        ("safetensors.torch", safetensors_loaded),
        ("torch.utils.tensorboard.writer", board_loaded),
        ("wandb", wandb_loaded),
    ):
        when_imported(module, lambda loaded, then=then: guard.call(then, loaded))  # type: ignore[misc]


def remove_files() -> None:
    """The process ends: what was redirected goes with it."""
    for folder in _folders:
        shutil.rmtree(folder, ignore_errors=True)
    _folders.clear()
