"""The commit, the branch and the cleanliness of a repository, found without running anything that it configures.

A repository's own files say which programs git runs for it: a file system monitor, hooks, filters, drivers of diffs, a
pager, helpers of remotes. So commit and branch are read from the files of ``.git``. Only whether tracked files differ
is asked of git: with each of those switched off, no network, and an environment of our own. git refuses by itself to
look at a repository that belongs to another user; its cleanliness then stays unknown.
"""

import os
import re
import shutil
import stat
import subprocess
import time
from collections.abc import Mapping, Sequence
from pathlib import Path

MAX_BYTES = 64_000_000  # of packed-refs
LINE_BYTES = 4096
COMMIT = re.compile(r"[0-9a-f]{40}(?:[0-9a-f]{24})?")
REF = re.compile(r"refs/[!-~]{1,250}")  # git allows no blanks and no control characters
# What may run something, whatever the repository says; the command line comes last and wins.
SAFE_CONFIG = (
    "core.fsmonitor=false",
    "core.untrackedCache=false",
    f"core.hooksPath={os.devnull}",
    "core.pager=cat",
    "core.sshCommand=false",
    "core.gitProxy=",
    "core.askPass=",
    "credential.helper=",
    "diff.external=",
    "diff.ignoreSubmodules=all",
    "submodule.recurse=false",
    "status.submoduleSummary=false",
    "log.showSignature=false",
    "gpg.program=false",
    "protocol.allow=never",
    "fetch.recurseSubmodules=false",
    "maintenance.auto=false",
    "gc.auto=0",
    "safe.bareRepository=explicit",
)
KEPT_VARIABLES = (
    "PATH",
    "HOME",
    "XDG_CONFIG_HOME",
    "TMPDIR",
    "LD_LIBRARY_PATH",
)  # the user's own safe.directory counts
FILTER_KEY = re.compile(rb"(?s)filter\.(.+)\.(?:clean|smudge|process|required)")


def read_state(start: Path, timeout_s: float) -> dict[str, object] | None:
    """Commit, branch and whether tracked files differ (None: unknown) at or above a folder; None outside a repository."""
    folder = find_repository(start)
    if folder is None:
        return None
    until = time.monotonic() + timeout_s
    commit, branch = read_head(folder)
    if commit is None:
        commit, branch = ask_head(start, until)
    if commit is None:
        return None
    return {"commit": commit, "branch": branch, "dirty": is_dirty(start, until)}


def find_repository(start: Path) -> Path | None:
    """The ``.git`` folder of the repository a folder is in; of a worktree or submodule its own folder of it."""
    for folder in (start, *start.parents):
        dot_git = folder / ".git"
        if dot_git.is_dir():
            return dot_git
        line = _first_line(dot_git)
        if line.startswith("gitdir:"):
            return folder / line.removeprefix("gitdir:").strip()
    return None


def read_head(folder: Path) -> tuple[str | None, str | None]:
    """Commit and branch that HEAD names; ``HEAD`` for a branch where there is none, as git says it."""
    line = _first_line(folder / "HEAD")
    if COMMIT.fullmatch(line):
        return line, "HEAD"
    ref = line.removeprefix("ref:").strip()
    if not line.startswith("ref:") or not REF.fullmatch(ref) or ".." in ref:
        return None, None
    common = _first_line(folder / "commondir")
    for place in (folder, folder / common) if common else (folder,):  # a worktree shares its branches
        commit = _first_line(place / ref)
        if not COMMIT.fullmatch(commit):
            commit = _packed_commit(place / "packed-refs", ref)
        if commit:
            return commit, ref.removeprefix("refs/heads/")
    return None, None


def _packed_commit(path: Path, ref: str) -> str:
    """The commit of a branch in packed-refs; "" if it is not there."""
    wanted = b" " + ref.encode()
    for line in _read_file(path, MAX_BYTES).splitlines():
        if line.endswith(wanted):
            commit = line[: -len(wanted)].decode("ascii", "replace")
            if COMMIT.fullmatch(commit):
                return commit
    return ""


def _first_line(path: Path) -> str:
    lines = _read_file(path, LINE_BYTES).decode("utf-8", "replace").splitlines()
    return lines[0].strip() if lines else ""


def _read_file(path: Path, limit: int) -> bytes:
    """What a regular file holds, as far as the limit; nothing where there is none."""
    try:
        handle = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
    except (OSError, ValueError):
        return b""
    with os.fdopen(handle, "rb") as file:
        try:
            return file.read(limit) if stat.S_ISREG(os.fstat(handle).st_mode) else b""
        except OSError:
            return b""


# what only git can tell


def is_dirty(start: Path, until: float) -> bool | None:
    """True if tracked files differ from the commit; None where that cannot be told safely.

    Filters are switched off, so that a file that a filter rewrites may look changed: then the answer is None, unless
    another file changed too. until: when to give up, on the monotonic clock.
    """
    git = find_git(os.environ.get("PATH", os.defpath))
    if git is None:
        return None
    off = _filters_off(git, start, until)
    if off is None:
        return None
    changed = _run_git(
        git,
        start,
        until,
        "status",
        "--porcelain",
        "-z",
        "--no-renames",
        "--untracked-files=no",
        "--ignore-submodules=all",
        config=off,
    )
    if changed is None:
        return None
    if not changed or not off:
        return bool(changed)
    paths = b"".join(entry[3:] + b"\0" for entry in changed.split(b"\0") if len(entry) > 3)
    found = _run_git(git, start, until, "check-attr", "-z", "--stdin", "filter", config=off, stdin=paths)
    if found is None:
        return None
    values = found.split(b"\0")[2::3]
    return True if any(value in (b"unspecified", b"unset") for value in values) else None


def ask_head(start: Path, until: float) -> tuple[str | None, str | None]:
    """Commit and branch as git tells them, for a repository that keeps its references otherwise (reftable)."""
    git = find_git(os.environ.get("PATH", os.defpath))
    found = _run_git(git, start, until, "rev-parse", "HEAD", "--abbrev-ref", "HEAD") if git else None
    words = (found or b"").decode("utf-8", "replace").split()
    return (words[0], words[1]) if len(words) == 2 and COMMIT.fullmatch(words[0]) else (None, None)


def find_git(search: str) -> str | None:
    """The git on PATH; a folder of PATH that hangs on where one stands is passed over."""
    folders = [part for part in search.split(os.pathsep) if os.path.isabs(part)]
    return shutil.which("git", path=os.pathsep.join(folders)) if folders else None


def _filters_off(git: str, start: Path, until: float) -> list[str] | None:
    """Settings that switch off every filter that any configuration names; None where git does not answer."""
    listed = _run_git(git, start, until, "config", "--list", "--name-only", "-z")
    if listed is None:
        return None
    names = {match[1] for key in listed.split(b"\0") if (match := FILTER_KEY.fullmatch(key))}
    found = []
    for name in sorted(os.fsdecode(name) for name in names):
        if "=" in name or "\n" in name:  # `-c` cannot spell it: do without the answer
            return None
        found += [f"filter.{name}.clean=", f"filter.{name}.smudge=", f"filter.{name}.process="]
        found.append(f"filter.{name}.required=false")
    return found


def _run_git(
    git: str, start: Path, until: float, *words: str, config: Sequence[str] = (), stdin: bytes = b""
) -> bytes | None:
    settings = [word for setting in (*SAFE_CONFIG, *config) for word in ("-c", setting)]
    command = [git, "--no-pager", "--no-optional-locks", *settings, *words]
    try:
        done = subprocess.run(
            command,
            cwd=start,
            env=clean_env(os.environ),
            input=stdin,
            capture_output=True,
            timeout=max(until - time.monotonic(), 0.01),
        )
    except (OSError, subprocess.SubprocessError, ValueError):
        return None
    return done.stdout if done.returncode == 0 else None


def clean_env(environ: Mapping[str, str]) -> dict[str, str]:
    """The environment that git gets: no GIT_* of the user's, no fetching of missing objects, nobody to ask."""
    kept = {name: environ[name] for name in KEPT_VARIABLES if name in environ}
    return kept | {
        "LC_ALL": "C",
        "GIT_OPTIONAL_LOCKS": "0",
        "GIT_TERMINAL_PROMPT": "0",
        "GIT_NO_LAZY_FETCH": "1",
        "GIT_ALLOW_PROTOCOL": "none",
        "GIT_ATTR_NOSYSTEM": "1",
    }
