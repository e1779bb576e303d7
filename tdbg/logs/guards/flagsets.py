"""Sets of flags that guard a line, and how they are joined.

A set says: the line is reached only while one of them is on. A flag in ``A or verbose`` is one way of several to get
there: it is kept as ``?A``, and counts only where it is known to be on. Names that begin with ``@`` stand for what
another function gives back (``@name()``) or is given (``@name:parameter``), until `link` knows it.
"""

import re
from collections.abc import Iterable, Sequence
from functools import cache

from tdbg.core.flags import FLAGS, canonical, covers

Flags = frozenset[str]
Pair = tuple[Flags, Flags]  # what is known where a test came out true, and where it came out false

NONE: Flags = frozenset()
CONFIGS = re.compile(r"(cfg|conf|config|args?|opts?|options|hparams|params|settings|flags|_?c)$", re.IGNORECASE)
METHODS = frozenset(dir(dict)) | {"freeze", "defrost", "clone", "dump", "merge", "is_frozen", "set_new_allowed"}


def resolve_flags(found: Iterable[str], on: Iterable[str] | None) -> Flags:
    """The plain names of a set of flags, without those that are only one way of several and not on."""
    known = None if on is None else tuple(on)
    return frozenset(
        name.removeprefix("?")
        for name in found
        if name[0] != "?" or known is None or any(covers(name[1:], other) or covers(other, name[1:]) for other in known)
    )


def merge_alternatives(*sides: Flags) -> Flags:
    """What is known where one of several conditions holds."""
    union = NONE.union(*sides)
    if all(side and not any(name[0] in "?@" for name in side) for side in sides):
        return union
    sure = sides[0].intersection(*sides[1:]) if sides else NONE
    return frozenset(name if name[0] in "?@" or name in sure else f"?{name}" for name in union)


@cache
def flag_name(text: str) -> str:
    """A flag as the table spells it; a name that is not in the table in upper case."""
    word = text.removeprefix("DEBUG.")
    name = canonical(word[len("debug_") :] if word.lower().startswith("debug_") else word)
    table = {flag.name: flag.name for flag in FLAGS}
    leaves = {flag.leaf: flag.name for flag in FLAGS} | {flag.name.replace(".", "_"): flag.name for flag in FLAGS}
    return table.get(name) or leaves.get(name, name)


def flag_of(words: Sequence[str]) -> Flags:
    """The flag that a dotted path asks for: ``cfg.DEBUG.LOSS.X``, ``args.debug_x``; none for other paths."""
    for place, word in enumerate(words[:-1]):
        if word == "DEBUG" or (word == "debug" and place and CONFIGS.search(words[place - 1])):
            below = words[place + 1 :]
            if all(part.isidentifier() and part not in METHODS for part in below):
                return frozenset({flag_name(".".join(below))})
            return NONE
    if len(words) > 1 and words[-1].startswith("debug_") and CONFIGS.search(words[-2]):
        return frozenset({flag_name(words[-1])})
    return NONE
