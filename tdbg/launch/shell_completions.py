"""Completion scripts in a user's own folders: where each shell looks for them, and the lines that load them.

fish loads what lies in its folder. bash and zsh get two marked lines at the end of the file that they read at the start.
"""

import os
import re
from pathlib import Path
from typing import NamedTuple

from tdbg.core.errors import TdbgError, suggest_name

SHELLS = ("bash", "zsh", "fish")
BEGIN, END = "# >>> tdbg completions >>>", "# <<< tdbg completions <<<"
BLOCK = re.compile(rf"\n?^{re.escape(BEGIN)}\n.*?^{re.escape(END)}\n", re.MULTILINE | re.DOTALL)


class Target(NamedTuple):
    """Where the script of a shell is, and the start-up file with the lines that load it, if the shell needs them."""

    script: Path
    startup: Path | None = None
    lines: str = ""


def find_target(shell: str) -> Target:
    """Where a shell's script belongs."""
    home = Path.home()
    data = Path(os.environ.get("XDG_DATA_HOME") or home / ".local" / "share") / "tdbg" / "completions"
    if shell == "fish":
        config = Path(os.environ.get("XDG_CONFIG_HOME") or home / ".config")
        return Target(config / "fish" / "completions" / "tdbg.fish")
    if shell == "bash":
        script = data / "tdbg.bash"
        return Target(script, home / ".bashrc", f"[ -r {_quote_path(script)} ] && . {_quote_path(script)}")
    script = data / "_tdbg"
    needs = "(( $+functions[compdef] )) || { autoload -Uz compinit && compinit -i; }"
    startup = Path(os.environ.get("ZDOTDIR") or home) / ".zshrc"
    return Target(script, startup, f"[[ -r {_quote_path(script)} ]] && {{ {needs}; . {_quote_path(script)}; }}")


def detect_shell(name: str | None) -> str:
    """Return the shell that is named, or else that of ``$SHELL``."""
    shell = name or Path(os.environ.get("SHELL", "")).name
    if shell in SHELLS:
        return shell
    what = f"--shell cannot be {name!r}" if name else f"there are no completions for the shell {shell or 'unknown'!r}"
    known = f"name one with --shell: {', '.join(SHELLS)}"
    raise TdbgError(what, f"{suggest_name(shell, SHELLS, '')} {known}".lstrip())


def install_script(shell: str, script: str) -> list[Path]:
    """Write the script and the lines that load it; returns the files that changed."""
    target = find_target(shell)
    changed = [target.script] if _replace_text(target.script, script) else []
    if target.startup:
        old = _read_text(target.startup) or ""
        rest = BLOCK.sub("", old)
        joint = "" if not rest or rest.endswith("\n") else "\n"
        new = f"{rest}{joint}\n{BEGIN}\n{target.lines}\n{END}\n"
        if f"{BEGIN}\n{target.lines}\n{END}\n" not in old and _replace_text(target.startup, new):
            changed.append(target.startup)
    return changed


def remove_script(shell: str) -> list[Path]:
    """Remove the script and the lines that load it; returns the files that changed."""
    target = find_target(shell)
    changed = []
    try:
        target.script.unlink()
        changed.append(target.script)
    except FileNotFoundError:
        pass
    except OSError as error:
        raise _build_refused_error("remove", target.script, error) from None
    old = _read_text(target.startup) if target.startup else None
    if target.startup and old is not None and _replace_text(target.startup, BLOCK.sub("", old)):
        changed.append(target.startup)
    return changed


def _replace_text(path: Path, text: str) -> bool:
    """Write a text, through a link if the file is one; False if it is there already."""
    if _read_text(path) == text:
        return False
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8", errors="surrogateescape")
    except OSError as error:
        raise _build_refused_error("write", path, error) from None
    return True


def _read_text(path: Path) -> str | None:
    try:
        return path.read_text(encoding="utf-8", errors="surrogateescape")
    except FileNotFoundError:
        return None
    except OSError as error:
        raise _build_refused_error("read", path, error) from None


def _build_refused_error(verb: str, path: Path, error: OSError) -> TdbgError:
    return TdbgError(f"cannot {verb} {path}: {error.strerror or error}", "check its owner and its permissions")


def _quote_path(path: Path) -> str:
    return "'" + str(path).replace("'", "'\\''") + "'"
