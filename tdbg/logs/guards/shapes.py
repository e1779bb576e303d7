"""The constant parts of a text, such as a log call's message."""

import re

Shape = tuple[str, ...]  # in order; something unknown stands between two of them

GAP: Shape = ("", "")
PERCENT = re.compile(r"%(?:\(\w+\))?[-#0 +]*(?:\d+|\*)?(?:\.(?:\d+|\*))?[hlL]?([diouxXeEfFgGcrsa%])")
BRACES = re.compile(r"\{\{|\}\}|\{[^{}]*\}")


def join_shapes(*shapes: Shape) -> Shape:
    """Shapes one after the other."""
    found: Shape = ("",)
    for shape in shapes:
        found = (*found[:-1], found[-1] + shape[0], *shape[1:])
    return found


def parse_percent_format(text: str) -> Shape:
    parts, start, tail = [], 0, ""
    for match in PERCENT.finditer(text):
        tail += text[start : match.start()]
        start = match.end()
        if match[1] == "%":
            tail += "%"
        else:
            parts.append(tail)
            tail = ""
    return (*parts, tail + text[start:])


def parse_brace_format(text: str) -> Shape:
    shape: Shape = ("",)
    start = 0
    for match in BRACES.finditer(text):
        part: Shape = (match[0][0],) if match[0] in ("{{", "}}") else GAP
        shape = join_shapes(shape, (text[start : match.start()],), part)
        start = match.end()
    return join_shapes(shape, (text[start:],))
