"""Parse source code of the program without showing Python's warnings about it."""

import ast
import re
import warnings

NAME = "<source read by tdbg>"  # what a warning about the text names as its module
_SILENCE = ("ignore", None, Warning, re.compile(re.escape(NAME)), 0)


def parse_source(source: bytes | str) -> ast.Module:
    """Return the syntax tree; raises SyntaxError, ValueError, RecursionError or MemoryError for invalid source.

    Invalid escapes and the like are the program's business. `warnings.catch_warnings` would silence them too, but it
    replaces the filters of the whole process and puts back what was there: in a thread it would undo what the program
    set meanwhile, and take the recording of a `catch_warnings` of the program's away. This filter concerns no other text.
    """
    filters = warnings.filters
    filters.insert(0, _SILENCE)  # type: ignore[attr-defined]  # typed as a Sequence, and a list
    try:
        return ast.parse(source, NAME)
    finally:
        if _SILENCE in filters:
            filters.remove(_SILENCE)  # type: ignore[attr-defined]
