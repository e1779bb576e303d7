"""How much of a terminal lines take, and a choice of them that fits on one screen."""

from collections.abc import Iterable, Sequence

from tdbg.core.escapes import escape_controls
from tdbg.core.tables import format_count, measure_width
from tdbg.core.terminal import DEFAULT_COLUMNS, DEFAULT_ROWS, HANG
from tdbg.rules.finding_lines import Story, format_follower, format_title, list_advice, list_evidence

ROWS, COLUMNS = DEFAULT_ROWS, DEFAULT_COLUMNS


def count_rows(lines: Iterable[str], columns: int = COLUMNS) -> int:
    """How many rows lines take as they are shown: they wrap between words, and the rest of a line is indented."""
    return sum(_count_line_rows(escape_controls(line), columns) for line in lines)


def _count_line_rows(line: str, columns: int) -> int:
    words = line.lstrip(" ")
    room = columns - (len(line) - len(words))
    if measure_width(words) <= room:
        return 1
    rows, used = 1, 0
    for word in words.split(" "):
        long = measure_width(word)
        if used and used + 1 + long > room:
            rows, used, room = rows + 1, 0, columns - (len(line) - len(words)) - HANG
        elif used:
            used += 1
        while long > room:  # a word wider than a row is broken
            rows, long, room = rows + 1, long - room, columns - (len(line) - len(words)) - HANG
        used += long
    return rows


def cut_rows(lines: Sequence[str], rows: int, columns: int = COLUMNS) -> list[str]:
    """The first lines that fit; the very first stays, however long it is."""
    kept = list(lines)
    while len(kept) > 1 and count_rows(kept, columns) > rows:
        kept.pop()
    return kept


def fit_stories(stories: Sequence[Story], rows: int, columns: int = COLUMNS) -> list[str]:
    """Stories in at most ``rows`` rows: titles before consequences, and details of the first before those of others."""
    kept = _fit_titles(stories, rows, columns)
    left = sum(1 + len(story.followers) for story in stories) - sum(1 + len(story.followers) for story in kept)
    closing = [f"... and {format_count(left, 'more finding')}"] if left else []
    rows -= count_rows([*map(format_title, (story.first for story in kept)), *closing], columns)
    rows -= count_rows([f"  {format_follower(finding)}" for story in kept for finding in story.followers], columns)
    lines: list[str] = []
    for story in kept:
        details = _fit_details(story, rows, columns)
        rows -= count_rows(details, columns)
        lines += [format_title(story.first), *details, *(f"  {format_follower(one)}" for one in story.followers)]
    return [*lines, *closing]


def _fit_titles(stories: Sequence[Story], rows: int, columns: int) -> list[Story]:
    """The stories, and of each the consequences, whose titles fit. The first title stays, however little room there is."""
    count = sum(1 + len(story.followers) for story in stories)
    kept: list[Story] = []
    for story in stories:
        needed = count_rows([format_title(story.first)], columns)
        closing = len(kept) + 1 < count
        if kept and needed + closing > rows:
            break
        rows -= needed
        kept.append(Story(story.first, []))
    for story, whole in zip(kept, stories, strict=False):
        for finding in whole.followers:
            needed = count_rows([f"  {format_follower(finding)}"], columns)
            if needed + 1 > rows:
                return kept
            rows -= needed
            story.followers.append(finding)
    return kept


def _fit_details(story: Story, rows: int, columns: int) -> list[str]:
    """As much evidence as fits beside the cause and what to try."""
    advice: list[str] = []
    for line in list_advice(story.first):
        if count_rows([*advice, line], columns) <= rows:
            advice.append(line)
    for room in range(len(story.first.evidence), -1, -1):
        lines = [*list_evidence(story.first, room), *advice]
        if count_rows(lines, columns) <= rows:
            return lines
    return []
