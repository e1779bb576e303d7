"""Records counted: by tag, rank and level; and which flag owns a tag."""

from collections import Counter
from collections.abc import Iterable

from tdbg.core import flags
from tdbg.logs.records import Record

NAMES = {5: "TRACE", 10: "DEBUG", 15: "STATS", 20: "INFO", 30: "WARNING", 40: "ERROR", 50: "CRITICAL"}
STATS_COLUMNS = ("tag", "flag", "rank", "level", "records", "bytes")
PREFIX_COLUMNS = ("tag", "flag", "records", "bytes")


def count_records(records: Iterable[Record]) -> list[tuple[object, ...]]:
    """Rows of `STATS_COLUMNS`, the most bytes first."""
    count: Counter[tuple[bytes, int | None, int]] = Counter()
    size: Counter[tuple[bytes, int | None, int]] = Counter()
    for record in records:
        key = record.tag, record.rank, record.level
        count[key] += 1
        size[key] += len(record.data)
    return [
        (
            _decode_tag(tag) or None,
            flags.owner(_decode_tag(tag)),
            rank,
            level_name(level),
            count[tag, rank, level],
            bytes_,
        )
        for (tag, rank, level), bytes_ in size.most_common()
    ]


def count_prefixes(records: Iterable[Record]) -> list[tuple[object, ...]]:
    """Rows of `PREFIX_COLUMNS`, by tag; tags that no flag owns have none."""
    count: Counter[bytes] = Counter()
    size: Counter[bytes] = Counter()
    for record in records:
        if record.tag:
            count[record.tag] += 1
            size[record.tag] += len(record.data)
    return [(_decode_tag(tag), flags.owner(_decode_tag(tag)), count[tag], size[tag]) for tag in sorted(count)]


def level_name(level: int) -> str | None:
    """A level's word; None for none."""
    return NAMES.get(level, str(level)) if level else None


def _decode_tag(tag: bytes) -> str:
    return tag.decode("utf-8", "replace")
