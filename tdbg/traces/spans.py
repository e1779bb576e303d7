"""What is told of the spans of a range of a trace. Without numpy: the viewer names these types when it starts."""

import msgspec


class Span(msgspec.Struct, array_like=True):
    """A span: number of its name and of its lane, how many others hold it, milliseconds from the start of the trace, and long."""

    name: int
    lane: int
    depth: int
    start_ms: float
    length_ms: float


class SpanRange(msgspec.Struct):
    """The longest spans of a range. names: with the letter of their kind before each. left_out: that begin in it, too."""

    lanes: list[str]
    names: list[str]
    spans: list[Span]
    left_out: int
