"""Records around those that fit, as grep has lines around."""

from collections import deque
from collections.abc import Callable, Iterable, Iterator

from tdbg.logs.records import Record

BREAK = b"--\n"  # between parts that are not next to each other


def iter_with_context(
    records: Iterable[Record], fits: Callable[[Record], bool], before: int, after: int
) -> Iterator[Record | None]:
    """Each record that fits with so many before and after it; None where something was left out in between."""
    held: deque[Record] = deque(maxlen=before)
    left = 0  # records still to come after the last one that fits
    printed = skipped = False
    for record in records:
        if fits(record):
            if printed and skipped:
                yield None
            yield from held
            held.clear()
            yield record
            left, printed, skipped = after, True, False
        elif left:
            left -= 1
            yield record
        else:
            skipped = skipped or len(held) == before
            held.append(record)
