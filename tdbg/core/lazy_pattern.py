"""Expressions that are compiled when they are first needed: a module with many of them loads in no time."""

import re

TYPE_CHECKING = False  # what `typing` says, without its import
if TYPE_CHECKING:
    from re import Pattern
    from typing import Any, AnyStr

METHODS = ("search", "match", "fullmatch", "sub", "subn", "split", "findall", "finditer", "groupindex", "pattern")


class _Lazy:
    """Stands for an expression; after the first use its methods are those of the compiled one."""

    def __init__(self, pattern: "Any", flags: int) -> None:
        self._asked = pattern, flags

    def __getattr__(self, name: str) -> "Any":
        if name.startswith("__") or name not in METHODS:
            raise AttributeError(name)
        compiled = re.compile(*self._asked)
        for method in METHODS:
            setattr(self, method, getattr(compiled, method))
        return getattr(compiled, name)


def lazy_pattern(pattern: "AnyStr", flags: int = 0) -> "Pattern[AnyStr]":
    """As `re.compile`; what is wrong with the expression shows at its first use."""
    found: Any = _Lazy(pattern, flags)
    return found  # type: ignore[no-any-return]
