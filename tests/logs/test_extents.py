"""Where a record begins and ends, in a log whose messages are known from a map."""

import io
import textwrap

import pytest

from tdbg.logs.engine import Filter, filter_bytes
from tdbg.logs.formats import FORMATS
from tdbg.logs.guards.link import link_facts
from tdbg.logs.guards.reader import parse_facts
from tdbg.logs.query import Matcher, Query, resolve_tag_family
from tdbg.logs.records import split_records
from tdbg.logs.tagmap import Spoken, TagMap, build_map
from tdbg.logs.untangle import Untangled

SOURCE = """
if cfg.DEBUG.AMP:
    log.info('the first line\\nloss: %s\\n\\nand the last', a)
    print('a table of values:')
    log.info('\\n=== report ===\\nof all values')
    log.info('all the losses:\\n%s\\nwere the losses', a)
    log.info('rows:\\n' + '\\n'.join(rows))
if cfg.DEBUG.LR:
    print(f'loss: {a}')
    log.info('\\n=== report ===\\nof the rate')
log.info('a plain line of %s', a)
log.info('a plain one\\nloss: %s', a)
print('the first line')
"""
HEAD = "2026-01-01 10:00:00 INFO "


def build_tag_map() -> TagMap:
    return build_map(link_facts({"a": parse_facts(SOURCE.encode())}).values())


def filter_text(flag: str, name: str, text: str, *, out: bool = False) -> str:
    """What the filter takes, or leaves out, for a flag."""
    spoken = Spoken(build_tag_map(), [flag])
    own = (resolve_tag_family(flag),)
    query = Query(excluded=own, spelled_out=spoken) if out else Query(families=own, spelled=spoken)
    return filter_bytes(textwrap.dedent(text).replace("T ", HEAD).encode(), Matcher(query, FORMATS[name])).decode()


LOGS = {
    "column 0": ("AMP", "lines", "a plain line of 3\n", "the first line\nloss: 2\n\nand the last\n", "loss: 3\n"),
    "another's text": ("LR", "lines", "the first line\nloss: 2\n\nand the last\n", "loss: 3\n", "loss\n"),
    "an unflagged one's text": ("LR", "lines", "a plain one\nloss: 2\n", "loss: 3\n", "a plain line of x\n"),
    "empty line first": ("AMP", "lines", "a plain line of 3\n\n", "=== report ===\nof all values\n", "x\n"),
    "by its second line": ("LR", "lines", "=== report ===\nof all values\n", "=== report ===\nof the rate\n", "x\n"),
    "empty message": ("AMP", "stamped", "T a plain line of 3\n", "T \n=== report ===\nof all values\n", "T x\n"),
    "a short one that begins alike": ("AMP", "lines", "the first line\nx\n", "the first line\nloss: 1\n\nand the last\n", "x\n"),
    "value of several lines": ("AMP", "lines", "x\n", "all the losses:\n[1,\n2]\nwere the losses\n", "were the losses\n"),
    "value at the end": ("AMP", "lines", "x\n", "rows:\nu\nv\nw\n", "a plain line of 3\n"),
    "few headers": ("AMP", "lines", "T x\n", "rows:\nu\nv\n", "T loss: 3\n"),
    "bare in a log with headers": ("AMP", "stamped", "T x\n", "a table of values:\n", "T y\n"),
    "bare after a bare one": ("LR", "stamped", "T x\na table of values:\n", "loss: 2\n", "a table of values:\nT y\n"),
    "a message that looks bare": ("LR", "stamped", "T the first line\nloss: 2\n\nand the last\n", "loss: 2\n", "T y\n"),
    "of a launcher": (
        "AMP", "lines", "[rank0]: a plain line of 3\n",
        "[rank0]: the first line\n[rank0]: loss: 2\n[rank0]: \n[rank0]: and the last\n", "[rank0]: loss: 3\n",
    ),
}  # fmt: skip


@pytest.mark.parametrize(("flag", "name", "before", "its", "after"), LOGS.values(), ids=LOGS.keys())
def test_records_of_a_flag(flag: str, name: str, before: str, its: str, after: str) -> None:
    assert filter_text(flag, name, before + its + after) == its.replace("T ", HEAD)
    assert filter_text(flag, name, its + after) == its.replace("T ", HEAD)
    assert filter_text(flag, name, before + its + after, out=True) == (before + after).replace("T ", HEAD)


@pytest.mark.parametrize("name", ["lines", "stamped"])
def test_a_line_with_tdbg_s_own_header_ends_a_message(name: str) -> None:
    own = "2026-11-20T03:06:40.000299 D r0003 s00020000 [DEBUG_LR] x\n    loss: 3\n"
    begun = "rows:\nu\nv\n" if name == "lines" else "T rows:\nu\nv\n"  # whatever follows is one of them
    text = f"T a plain line of 3\n{begun}{own}T x\n"
    assert filter_text("AMP", name, text) == begun.replace("T ", HEAD)
    assert filter_text("LR", name, text) == own


def test_any_size_of_blocks() -> None:
    text = b"".join(b"a plain line of %d\nthe first line\nloss: %d\n\nand the last\n" % (i, i) for i in range(200))
    matcher = Matcher(Query(spelled=Spoken(build_tag_map(), ["AMP"])), FORMATS["lines"])
    taken: list[bytes] = []
    Filter(matcher, lambda view: taken.append(bytes(view)), block_bytes=100).filter_stream(io.BytesIO(text))
    its = b"".join(taken)
    assert its == b"".join(line + b"\n" for line in text.split(b"\n")[:-1] if not line.startswith(b"a plain"))
    assert len(list(split_records(its, matcher.format))) == 200


def test_mixed_lines_of_ranks_are_put_together() -> None:
    text = b"[rank0]: the first line\n[rank1]: the first line\n[rank0]: loss: 1\n[rank1]: loss: 2\n"
    stream = Untangled(io.BytesIO(text), build_tag_map().refine_format(FORMATS["lines"]))
    view = bytearray(1000)
    its = view[: stream.readinto(memoryview(view))].split(b"\n")
    assert [line[:7] for line in its[:4]] == [b"[rank0]", b"[rank0]", b"[rank1]", b"[rank1]"]


def test_brackets_that_close_a_value_begin_no_record() -> None:
    assert [len(record) for record in split_records(b"Model(\n  (a): x\n)\nnext\n", FORMATS["lines"])] == [18, 5]
