"""Every way tdbg fails, and the exit code of each."""

TYPE_CHECKING = False  # what `typing` says, without its import
if TYPE_CHECKING:
    from collections.abc import Iterable


class TdbgError(Exception):
    """A failure the user can act on: what went wrong, and what to do next."""

    exit_code = 2

    def __init__(self, what: str, hint: str = "") -> None:
        super().__init__(what)
        self.hint = hint
        if hint:
            self.add_note(hint)  # a Python traceback shows both lines; str() is the first alone


def suggest_name(word: str, known: "Iterable[str]", otherwise: str) -> str:
    """A hint: ``did you mean X?`` for the known word most like this one, in any case; ``otherwise`` if none is."""
    import difflib

    folded = {name.lower(): name for name in known}
    near = difflib.get_close_matches(word.lower(), folded, n=1)
    return f"did you mean {folded[near[0]]}?" if near else otherwise


class LaunchError(TdbgError):
    """tdbg could not start the command; the command itself has not run."""

    exit_code = 125


class NotExecutableError(TdbgError):
    """The command was found but may not be executed (a shell says 126 too)."""

    exit_code = 126


class CommandNotFoundError(TdbgError):
    """There is no such command (a shell says 127 too)."""

    exit_code = 127
