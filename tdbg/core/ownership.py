"""Who owns a file or folder and who else may write it: what of another user's may be more than data.

Standard library alone, and little of it: a rank asks too.
"""

import os
import stat
from collections.abc import Iterable, Mapping

TRUST = "TDBG_TRUST"  # paths, joined as in PATH: what is there or below is used whoever owns it


def is_exempt(path: str | os.PathLike[str], environ: Mapping[str, str] | None = None) -> bool:
    """True if TDBG_TRUST names this path or a folder above it: containers map user ids."""
    named = [part for part in (os.environ if environ is None else environ).get(TRUST, "").split(os.pathsep) if part]
    if not named:
        return False
    real = os.path.realpath(path)
    return any(is_below(real, os.path.realpath(part)) for part in named)


def is_below(path: str, folder: str) -> bool:
    """True if an absolute path is ``folder`` or below it."""
    return path == folder or path.startswith(folder.rstrip(os.sep) + os.sep)


def describe_risk(found: os.stat_result, owners: Iterable[int] = ()) -> str:
    """Why what was found cannot be relied on, in words; "" if only this user and root may change it.

    owners: users who may own it besides this user and root.
    """
    if found.st_uid not in (os.geteuid(), 0, *owners):
        return f"it belongs to {user_name(found.st_uid)}"
    return describe_writers(found)


def describe_writers(found: os.stat_result) -> str:
    """Who may write it besides its owner, in words; "" if nobody. In a sticky folder nobody replaces another's file."""
    if stat.S_ISDIR(found.st_mode) and found.st_mode & stat.S_ISVTX:
        return ""
    if found.st_mode & stat.S_IWOTH:
        return "every user can write to it"
    if found.st_mode & stat.S_IWGRP and not _is_private(found.st_gid, found.st_uid):
        return f"group {group_name(found.st_gid)} can write to it"
    return ""


def user_name(uid: int) -> str:
    """``user eve``, or ``uid 12345`` where the id has no name."""
    import pwd

    try:
        return f"user {pwd.getpwuid(uid).pw_name}"
    except KeyError:
        return f"uid {uid}"


def group_name(gid: int) -> str:
    """A group's name, or its number where it has none."""
    import grp

    try:
        return grp.getgrgid(gid).gr_name
    except KeyError:
        return str(gid)


def _is_private(gid: int, uid: int) -> bool:
    """True if a group has no member but the user whose name it bears; without names, if both have one number."""
    import grp
    import pwd

    try:
        group = grp.getgrgid(gid)
    except KeyError:
        return gid == uid
    try:
        user = pwd.getpwuid(uid)
    except KeyError:
        return False
    return user.pw_gid == gid and group.gr_name == user.pw_name and set(group.gr_mem) <= {user.pw_name}
