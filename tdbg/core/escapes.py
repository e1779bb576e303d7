"""Text that somebody else wrote, made fit for a terminal: whatever a terminal obeys becomes an escape that it shows.

Standard library alone, and light: a rank writes with it too.
"""

from tdbg.core.lazy_pattern import lazy_pattern

TYPE_CHECKING = False  # what `typing` says, without its import
if TYPE_CHECKING:
    from re import Match

# C0 but for tab and line feed, DEL, C1; marks and overrides of the writing direction, line and paragraph separators,
# deprecated and tag characters that nobody sees, the byte order mark; halves of characters, which no encoding has.
_OBEYED = lazy_pattern(
    "[\x00-\x08\x0b-\x1f\x7f-\x9f\u061c\u200e\u200f\u2028-\u202e\u2066-\u206f\ufeff\ufff9-\ufffb"
    "\ud800-\udfff\U000e0000-\U000e007f]"
)


def escape_controls(text: str) -> str:
    """The text with each character that a terminal obeys written as ``\\uXXXX``; tabs and line feeds stay.

    The escapes are those of JSON, so a document of JSON stays one and means the same.
    """
    return _OBEYED.sub(_escape_match, text)


def _escape_match(found: "Match[str]") -> str:
    code = ord(found[0])
    if code < 0x10000:
        return f"\\u{code:04x}"
    code -= 0x10000
    return f"\\u{0xD800 + (code >> 10):04x}\\u{0xDC00 + (code & 0x3FF):04x}"


def escape_line(text: str) -> str:
    """A name for a cell or a line: nothing in it is obeyed by a terminal or breaks the line."""
    if text.isascii() and text.isprintable():
        return text
    return "".join(sign if sign.isprintable() else sign.encode("unicode_escape").decode() for sign in text)
