"""Commands that read a run take one that lies on a store as well: a URL, or a folder that was copied from one."""

import os

from tdbg.core.command_spec import Args
from tdbg.core.run_files import PIECES_MARKER

TYPE_CHECKING = False  # what `typing` says, without its import
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import TypeVar

    A = TypeVar("A", bound=Args)


def read_from_stores(run: "Callable[[A], int]", wanted: str, *, local: str = "") -> "Callable[[A], int]":
    """The command, with the runs on stores that it is given copied to a temporary folder first.

    wanted: what it needs of a run, a key of `tdbg.launch.run_copies.WANTED`. local: options, by their fields, that need
    a run directory on this machine.
    """

    def run_on_copies(args: "A") -> int:
        named = getattr(args, "run", None)
        words = [*args.paths, *([named] if named else [])]
        if not any("://" in word or os.path.isfile(os.path.join(word, PIECES_MARKER)) for word in words):
            return run(args)
        from tdbg.launch.run_copies import RunCopies

        _check_local(args, local.split())
        with RunCopies(wanted) as copies:
            args.paths = copies.replace_urls(args.paths)
            if named:
                (args.run,) = copies.replace_urls([named])  # type: ignore[attr-defined]
            return run(args)

    return run_on_copies


def _check_local(args: Args, fields: list[str]) -> None:
    """TdbgError for an option that writes to a run, or waits for what it writes."""
    from tdbg.core.errors import TdbgError

    for field in fields:
        if getattr(args, field):
            option = f"--{field.replace('_', '-')}"
            raise TdbgError(f"{option} needs a run directory on this machine", f"leave out {option}")
