"""The command as the user wrote it: does it exist, and what is the run called after it?"""

import os
import re
import shutil
from collections.abc import Mapping, Sequence
from pathlib import Path

from tdbg.core.errors import CommandNotFoundError, NotExecutableError, TdbgError


def check_command(command: Sequence[str], environ: Mapping[str, str]) -> None:
    """TdbgError with a shell's exit code where the command cannot be started: 127, 126, or 2 for none at all."""
    if not command:
        raise TdbgError("there is no command to run", "write it after --, as in: tdbg run -- python train.py")
    name, path = command[0], environ.get("PATH", os.defpath)
    if shutil.which(name, path=path):
        return
    found = _lying_about(name, path)
    if found is None:
        raise CommandNotFoundError(f"command not found: {name}", _where_to_look(name))
    if found.is_dir():
        raise NotExecutableError(f"cannot execute {name}: it is a directory", "name a program")
    if name.endswith(".py"):
        hint = f"put an interpreter before it: tdbg run -- python {name}"
    else:
        hint = f"`chmod +x {found}` makes it executable"
    raise NotExecutableError(f"cannot execute {name}: permission denied", hint)


def _lying_about(name: str, path: str) -> Path | None:
    """A file of that name that is there but cannot be executed."""
    folders = [""] if os.sep in name else path.split(os.pathsep)
    for folder in folders:
        candidate = Path(folder, name)
        if candidate.exists():
            return candidate
    return None


def _where_to_look(name: str) -> str:
    if os.sep not in name and name.endswith(".py") and os.path.exists(name):
        return f"put an interpreter before it: tdbg run -- python {name}"
    if name.startswith("-"):
        return "tdbg's own options go before --, the command after it"
    return "check its spelling" + ("" if os.sep in name else " and PATH")


def short_name(command: Sequence[str]) -> str:
    """What to call the run: the script or module that is run, else the program."""
    words = list(command)
    for place, word in enumerate(words):
        if word in ("-m", "--module") and place + 1 < len(words) and place:
            module = words[place + 1]
            if module not in ("torch.distributed.run", "accelerate.commands.launch", "torch.distributed.launch"):
                return _sanitize_name(module.removesuffix(".__main__").rpartition(".")[2])
        if word.endswith((".py", ".sh")) and not word.startswith("-"):
            return _sanitize_name(Path(word).stem)
    return _sanitize_name(Path(words[0]).name) if words else "run"


def _sanitize_name(name: str) -> str:
    """A name that any file system and PYTHONPATH can carry."""
    return re.sub(r"[^A-Za-z0-9._-]+", "-", name).strip("-.")[:60] or "run"
