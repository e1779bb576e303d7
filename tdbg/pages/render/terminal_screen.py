"""What stdout can display: colors, half blocks, pixels, or plain letters without a terminal."""

import os
import sys

from tdbg.core.errors import TdbgError
from tdbg.pages.render import pixels

TYPE_CHECKING = False  # what `typing` says, without its import
if TYPE_CHECKING:
    from collections.abc import Sequence

    from tdbg.pages.render.pixels import Pixels

IMAGES = ("auto", "never", "kitty", "iterm", "sixel")
BARS, PLAIN_BARS = " ▁▂▃▄▅▆▇█", " .:-=+*%#"
SHADES = " .:-=+*#%@"
WITH_SIXEL = ("foot", "mlterm", "yaft", "contour")


class Screen:
    """Asked once a command. protocol: how pictures are sent, or empty. image: the option of that name."""

    def __init__(self, image: str = "auto") -> None:
        if image not in IMAGES:
            raise TdbgError(f"--image cannot be {image!r}", f"write --image {', '.join(IMAGES[:-1])} or {IMAGES[-1]}")
        terminal = sys.stdout.isatty()
        name = os.environ.get("TERM", "")
        self.unicode = (sys.stdout.encoding or "").lower().replace("-", "").startswith("utf")
        self.colour = terminal and self.unicode and name != "dumb" and not os.environ.get("NO_COLOR")
        self.deep = os.environ.get("COLORTERM", "").lower() in ("truecolor", "24bit")
        self.protocol = "" if image == "never" else image
        if image == "auto":
            self.protocol = _detect_protocol(name) if terminal else ""
        self.columns, self.lines = _detect_size() if terminal else (80, 50)

    def format_histogram(self, counts: "Sequence[float]") -> str:
        """A histogram in one line: what is there at all has a bar."""
        signs = BARS if self.unicode else PLAIN_BARS
        top = max(counts, default=0) or 1
        return "".join(signs[0 if not count else max(1, round(count / top * 8))] for count in counts)

    def render_pixels(self, picture: "Pixels") -> list[str]:
        """Pixels as lines of text, two rows of them in one; needs `colour`."""
        lines = []
        for start in range(0, len(picture), 2):
            below = picture[start + 1] if start + 1 < len(picture) else None
            text, before = [], ""
            for at, top in enumerate(picture[start]):
                code = f"\x1b[38;{self._format_color_code(top)}m"
                code += f"\x1b[48;{self._format_color_code(below[at])}m" if below else "\x1b[49m"
                text.append(("" if code == before else code) + "▀")
                before = code
            lines.append("".join(text) + "\x1b[0m")
        return lines

    def format_cell(self, pixel: "tuple[int, int, int]", text: str = "  ") -> str:
        """Letters on a ground of this colour; needs `colour`."""
        return f"\x1b[48;{self._format_color_code(pixel)}m{text}\x1b[0m"

    def encode_picture(self, picture: "Pixels") -> str:
        """A picture in the terminal's own protocol."""
        return {"kitty": pixels.encode_kitty, "iterm": pixels.encode_iterm, "sixel": pixels.encode_sixel}[
            self.protocol
        ](picture)

    def _format_color_code(self, pixel: "tuple[int, int, int]") -> str:
        if self.deep:
            return f"2;{pixel[0]};{pixel[1]};{pixel[2]}"
        return f"5;{16 + pixels.quantize_color(pixel)}"


def pick_shade(value: float, low: float, high: float) -> str:
    """One letter for a value: darker is larger; ? for what is no number, ! for what is not finite."""
    if value != value:
        return "?"
    if value in (float("inf"), float("-inf")):
        return "!"
    share = (value - low) / (high - low) if high > low else 0.0
    return SHADES[min(max(int(share * len(SHADES)), 0), len(SHADES) - 1)]


def _detect_protocol(name: str) -> str:
    """How this terminal takes pictures, as far as its environment says; not through a multiplexer."""
    program = os.environ.get("TERM_PROGRAM", "")
    if name.startswith(("screen", "tmux")) or os.environ.get("TMUX"):
        return ""
    if name in ("xterm-kitty", "xterm-ghostty") or os.environ.get("KITTY_WINDOW_ID") or program == "ghostty":
        return "kitty"
    if program in ("iTerm.app", "WezTerm", "mintty"):
        return "iterm"
    return "sixel" if "sixel" in name or name.split("-")[0] in WITH_SIXEL else ""


def _detect_size() -> tuple[int, int]:
    try:
        found = os.get_terminal_size(sys.stdout.fileno())
    except (OSError, ValueError):
        return 80, 50
    return max(found.columns or 80, 20), max(found.lines or 50, 10)
