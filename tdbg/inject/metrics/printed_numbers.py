"""Numbers that the program prints or logs as text (``val_acc 0.43``, ``loss=0.2``, a progress bar's postfix), as rows.

The thread that prints puts its text into a queue, at less than a microsecond a line. What waits is parsed with the first
text after `PAUSE_S`, and so seldom that parsing takes less than a 500th of the time. Of what comes too fast for that
lines are dropped of whose shape enough wait already: a score that is printed once an epoch stays.
"""

import re
import time
from collections import deque
from functools import lru_cache
from operator import itemgetter
from typing import TYPE_CHECKING

from tdbg.core.directions import EVALUATION_WORDS, TIMES, TRAINING_WORDS, direction_of, words_of
from tdbg.metrics.rows.row import READ_FROM_TEXT

if TYPE_CHECKING:
    from tdbg.inject.metrics import RowFeed

MAX_CHARS = 2000  # of a line; a longer one is a dump
MAX_WAITING = 64
MAX_SHAPES = 16  # of lines beyond these
KEPT = 12  # lines of each shape, the newest among them
MAX_BEYOND = 512  # texts that are told apart by their shape; of more, a burst, the last one alone is kept
SHAPE_CHARS = 300
NOT_SHAPE = b"0123456789.+- \t"  # what differs between lines of one shape
PAUSE_S = 0.2
DROPPED = "printed"  # why rows are left out
SHARE = 500  # the pause is so many times as long as the last parsing
NAME = r"[A-Za-z][\w@/.\-]*+"  # possessive: a text without a number costs what its length costs, not the square
# One or two words, a sign or a space, and a number: a plain one, a percentage or a fraction, not a time or a version.
# A name without a number is matched as well, without a key: the search goes on behind it, not at each of its parts.
PAIR = re.compile(
    rf"(?<![\w.])(?:(?P<key>(?:{NAME} )?{NAME})[\"']?(?:[ \t]*[:=][ \t]*|[ \t]+)"
    r"(?P<number>[-+]?(?:(?:\d++\.?\d*+|\.\d++)(?:[eE][-+]?\d++)?|(?i:nan|inf)))(?:/(?P<of>\d++))?(?![\w:/]|\.\d)"
    rf"|{NAME})"
)


class PrintedNumbers:
    """Finds results (losses, scores, errors) in lines of text and gives them to the feed, marked as read from text."""

    def __init__(self, feed: "RowFeed") -> None:
        self._feed = feed
        self._waiting: deque[tuple[str, int, str]] = deque()
        self._beyond: dict[bytes, list[tuple[str, int, str]]] = {}  # by shape, since so many wait
        self._dropped: dict[bytes, int] = {}  # of these
        self._unlike: deque[tuple[str, int, str]] = deque(maxlen=KEPT)  # of further shapes: the last ones
        self._unlike_count = 0  # how many of these came
        self._beyond_count = self._burst = 0  # how many texts came beyond, and beyond those
        self._latest: tuple[str, int, str] | None = None  # of the burst
        self._due = 0.0
        self._last: tuple[int, dict[str, float]] = (-1, {})

    def add_text(self, text: str, step: int, phase: str) -> None:
        """Queue a text of one or more lines, printed in ``phase`` (train, eval or nothing) after ``step`` steps."""
        waiting = self._waiting
        if text.startswith("\r"):
            self._drop_drawn_bar(waiting)
        if len(waiting) < MAX_WAITING:
            waiting.append((text[:MAX_CHARS], step, phase))
        elif self._beyond_count < MAX_BEYOND:
            self._add_beyond(text[:MAX_CHARS], step, phase)
        else:
            self._burst += 1
            self._latest = text[:MAX_CHARS], step, phase
        now = time.perf_counter()
        if now >= self._due and self._feed.is_listening:
            self.parse_waiting(now)

    @staticmethod
    def _drop_drawn_bar(waiting: deque[tuple[str, int, str]]) -> None:
        """A progress bar that is redrawn. Another thread may be parsing what waits."""
        try:
            last = waiting.pop()
        except IndexError:
            return
        if not last[0].startswith("\r"):
            waiting.append(last)

    def _add_beyond(self, text: str, step: int, phase: str) -> None:
        """Keep a few more lines of each shape, of one that is printed in each step and one that is printed seldom alike."""
        self._beyond_count += 1
        shape = _shape_of(text)
        known = self._beyond.get(shape)
        if known is not None and len(known) >= KEPT:
            known[-1] = text, step, phase
            self._dropped[shape] = self._dropped.get(shape, 0) + 1
        elif known is not None:
            known.append((text, step, phase))
        elif len(self._beyond) < MAX_SHAPES:
            self._beyond[shape] = [(text, step, phase)]
        else:
            self._unlike_count += 1
            self._unlike.append((text, step, phase))

    def _take_beyond(self) -> list[tuple[str, int, str]]:
        """What waits beyond the queue, by its step; nothing of it is left."""
        beyond, self._beyond = self._beyond, {}  # first: another thread may print meanwhile
        unlike, self._unlike = self._unlike, deque(maxlen=KEPT)
        found = [one for lines in list(beyond.values()) for one in list(lines)]
        found = sorted([*found, *list(unlike)], key=itemgetter(1))
        if self._latest is not None:
            found.append(self._latest)
        self._dropped, self._latest = {}, None
        self._beyond_count = self._burst = self._unlike_count = 0
        return found

    def reset_after_fork(self) -> None:
        """In a forked child: what waits is the parent's."""
        self._waiting.clear()
        self._take_beyond()

    def parse_waiting(self, begun: float | None = None) -> None:
        """Parse what waits, and book the time."""
        begun = time.perf_counter() if begun is None else begun
        self._waiting, waiting = deque(), self._waiting
        dropped, burst, latest = self._dropped, self._burst, self._latest
        unlike, unlike_count = self._unlike, self._unlike_count
        waiting.extend(self._take_beyond())
        self._count_unlike(unlike, unlike_count)
        while waiting:
            entry = text, step, phase = waiting.popleft()
            results = [find_results(line) for line in text.splitlines()]
            if dropped and any(results) and (count := dropped.pop(_shape_of(text), 0)):
                self._feed.leave_out(DROPPED, count)
            if entry is latest and burst > 1 and any(results):
                self._feed.leave_out(DROPPED, burst - 1)
            for found in results:
                self._record_results(found, step, phase)
        spent = time.perf_counter() - begun
        self._due = begun + max(PAUSE_S, SHARE * spent)
        self._feed.record_cost(spent)

    def _count_unlike(self, kept: deque[tuple[str, int, str]], count: int) -> None:
        """Count the results in lines of further shapes that were dropped: as many of them as of those that are kept."""
        if count > len(kept) > 0:
            with_results = sum(any(map(find_results, text.splitlines())) for text, _, _ in kept)
            if with_results:
                self._feed.leave_out(DROPPED, -(-(count - len(kept)) * with_results // len(kept)))

    def _record_results(self, found: dict[str, float], step: int, phase: str) -> None:
        """Give the results of a line to the feed, unless they are those of the line before (a bar that is redrawn)."""
        if not found or (step, found) == self._last:
            return
        self._last = step, found
        for name in ("train", "val"):
            values = {key: value for key, value in found.items() if (_phase_of(key) or _ROW_PHASES[phase]) == name}
            if values:
                self._feed.record_logged(READ_FROM_TEXT, values, step=step, phase=name)


def _shape_of(text: str) -> bytes:
    """What lines that are printed again and again have in common. Cost: 0.5 us."""
    if text.startswith("\r"):  # a bar is drawn with other signs each time
        return b"\r"
    return text[:SHAPE_CHARS].encode("utf-8", "replace").translate(None, NOT_SHAPE)


_ROW_PHASES = {"train": "train", "eval": "val", "": "train"}


def find_results(line: str) -> dict[str, float]:
    """The losses, scores and errors in a line, by name; a name without a phase gets that of the line ("Test set: ...")."""
    found: dict[str, float] = {}
    begin = -1
    for match in PAIR.finditer(line):
        key = _result_name(match["key"] or "")
        if not key:
            continue
        begin = match.start() if begin < 0 else begin
        value, of = float(match["number"]), float(match["of"] or 0)
        found[key] = value / of if of else value
    phase = words_of(line[:begin]) & EVALUATION_WORDS if begin > 0 else set()
    prefix = f"{min(phase)}/" if phase else ""
    return {key if _phase_of(key) else prefix + key: value for key, value in found.items()} if prefix else found


@lru_cache(1024)
def _phase_of(key: str) -> str:
    """``train`` or ``val`` where the name of a result says so."""
    words = words_of(key)
    return "val" if words & EVALUATION_WORDS else "train" if words & TRAINING_WORDS else ""


@lru_cache(1024)
def _result_name(text: str) -> str:
    """The key of a result: ``Average loss`` is average_loss. Empty for what is no result (an epoch, a rate, a time)."""
    first, _, last = text.rpartition(" ")
    names = [f"{first} {last}", last] if first else [last]
    for name in names:
        if direction_of(name) is None or words_of(name) & TIMES or direction_of(last) is None:
            continue
        return "_".join(name.split()).strip(".-/")
    return ""
