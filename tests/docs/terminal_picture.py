"""Draw the picture of README.md, docs/assets/demo.svg, from a real run of `tdbg demo --fault backward-nan`.

    python -m tests.docs.terminal_picture            write it
    python -m tests.docs.terminal_picture --check    run the demo again; exit code 1 if the picture says something else

The check compares the stable parts: the finding, where it was, its cause and what to try. Times, costs and losses
differ from one machine to the next, so numbers other than the step are left out of the comparison.
"""

import os
import re
import subprocess
import sys
import tempfile
from html import escape
from pathlib import Path

PICTURE = Path(__file__).parents[2] / "docs" / "assets" / "demo.svg"
COMMAND = "tdbg demo --fault backward-nan"
COLUMNS = 100
STABLE = ("TD-", "made by", "cause:", "try:", "followed by:")
COLOR = re.compile(r"\x1b\[([\d;]*)m")
PROGRESS = re.compile(r"tdbg: (step \d+, |command: )")
INK = {"1;31": "#ff7b72", "31": "#ff7b72", "33": "#e3b341", "1;33": "#e3b341"}
PAPER, PLAIN, QUIET = "#0d1117", "#e6edf3", "#8b949e"
CHAR, LINE, EDGE = 8.43, 19, 18  # pixels of a character and a row, and of the margin


def run_demo(columns: int) -> list[str]:
    """Run the demo as in a terminal of that width; returns what tdbg says, without progress lines."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith("TDBG_")}
    env = {**kept, "COLUMNS": str(columns), "PYTHONPATH": str(PICTURE.parents[2])}
    words = [sys.executable, "-m", *COMMAND.split(), "--color", "always"]
    with tempfile.TemporaryDirectory() as folder:
        done = subprocess.run(words, cwd=folder, env=env, capture_output=True, text=True, timeout=600, check=True)
    return drop_progress(done.stderr.splitlines())


def drop_progress(lines: list[str]) -> list[str]:
    """Drop progress lines and the line of the command, with the rows into which they were wrapped."""
    kept, dropping = [], False
    for line in lines:
        dropping = bool(PROGRESS.match(line)) or (dropping and line.startswith("tdbg:     "))
        if not dropping:
            kept.append(line)
    return kept


def draw_svg(lines: list[str]) -> str:
    """Draw the rows as an SVG that loads nothing from elsewhere."""
    rows = [f"$ {COMMAND}", *lines]
    width, height = round(COLUMNS * CHAR + 2 * EDGE), (len(rows) + 1) * LINE + 2 * EDGE
    head = (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" role="img" '
        f'aria-label="What tdbg prints for {COMMAND}">\n'
        f'<rect width="{width}" height="{height}" rx="8" fill="{PAPER}"/>\n'
        f"<g font-family=\"ui-monospace, SFMono-Regular, Menlo, Consolas, 'DejaVu Sans Mono', monospace\" "
        f'font-size="14" fill="{PLAIN}">\n'
    )
    texts = [draw_row(row, EDGE + (number + 1) * LINE) for number, row in enumerate(rows)]
    return head + "".join(texts) + "</g>\n</svg>\n"


def draw_row(row: str, y: int) -> str:
    """Draw one row: its colours become spans, its length is fixed whatever the font."""
    spans, color = [], ""
    for place, part in enumerate(COLOR.split(row)):
        if place % 2:
            color = INK.get(part, "")
        elif part:
            text = escape(part).replace(" ", "&#160;")  # a plain space may be collapsed
            marked = re.sub(r"^tdbg:", lambda found: f'<tspan fill="{QUIET}">{found[0]}</tspan>', text)
            spans.append(f'<tspan fill="{color}" font-weight="bold">{marked}</tspan>' if color else marked)
    length = len(COLOR.sub("", row)) * CHAR
    return (
        f'<text x="{EDGE}" y="{y}" textLength="{length:.0f}" lengthAdjust="spacingAndGlyphs">{"".join(spans)}</text>\n'
    )


def normalize_text(text: str) -> str:
    """Join wrapped rows and leave out numbers, but for the step of a finding and codes."""
    joined = " ".join(re.sub(r"^tdbg:", "", row.strip()).strip() for row in text.splitlines())
    joined = re.sub(r"(?<![\w.-])(?<!at step )(?<!since step )\d[\d,.]*", "#", joined)
    return re.sub(r"\s+", " ", joined)


def extract_text(svg: str) -> str:
    """Return the text that the picture shows, a row a line."""
    from html import unescape

    rows = re.findall(r"<text [^>]*>(.*?)</text>", svg)
    return "\n".join(unescape(re.sub(r"<[^>]+>", "", row)).replace("\xa0", " ") for row in rows)


def list_missing_lines(svg: str, lines: list[str]) -> list[str]:
    """Return the stable lines of a run that the picture does not show."""
    shown = normalize_text(extract_text(svg))
    plain = [re.sub(r"^tdbg:", "", COLOR.sub("", line)).strip() for line in lines]
    return [line for line in plain if line.startswith(STABLE) and normalize_text(line) not in shown]


def main(words: list[str]) -> int:
    """Write the picture, or check it."""
    if words == ["--check"]:
        missing = list_missing_lines(PICTURE.read_text(encoding="utf-8"), run_demo(2000))
        for line in missing:
            print(f"not in {PICTURE.name}: {line}")
        return 1 if missing else 0
    PICTURE.parent.mkdir(parents=True, exist_ok=True)
    PICTURE.write_text(draw_svg(run_demo(COLUMNS)), encoding="utf-8")
    print(f"written: {PICTURE}")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
