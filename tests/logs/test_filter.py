"""The filter's engine: whole records, the same bytes whatever the blocks and workers."""

import io
import os
import re
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tdbg.logs import engine, parallel
from tdbg.logs.engine import Filter, Workspace
from tdbg.logs.formats import FORMATS, Lines, Stamped, Tdbg, detect_format
from tdbg.logs.log_files import Source, find_sources, rank_of
from tdbg.logs.query import Matcher, Query, resolve_tag_family
from tdbg.logs.textlog import format_line

TAGS = ("[DEBUG_FORWARD]", "[DEBUG_LR_STEP]", "[DEBUG_VALIDATION_METRICS]", "[DEBUG_VALIDATION]", "[monitor]")


def make_records(count: int, rank: int = 0) -> list[bytes]:
    """Records of tdbg's own log; each seventh has three lines, one of which looks like a tag."""
    texts = ("loss 0.25", "[DEBUG_LR] in the message is no tag", "tensor:\n[DEBUG_FORWARD]\n 2.5, nan")
    return [
        format_line(
            1.76e9 + i, "DSIWEC"[i % 6], rank, i, TAGS[i % 5], texts[2] if i % 7 == 0 else texts[i % 2]
        ).encode()
        for i in range(count)
    ]


def filter_data(data: bytes, query: Query, **options: int) -> bytes:
    """What the filter lets through."""
    out: list[bytes] = []
    found = Filter(Matcher(query, detect_format(data)), lambda view: out.append(bytes(view)), **options)
    found.filter_stream(io.BytesIO(data))  # type: ignore[arg-type]
    return b"".join(out)


def filter_by_hand(found: list[bytes], wanted: "re.Pattern[bytes]") -> bytes:
    return b"".join(record for record in found if wanted.search(record))


HEAD = rb"^\S+ . r\d+ s\d+ "
ASKED = [
    (Query(families=(resolve_tag_family("FORWARD"),)), HEAD + rb"\[DEBUG_FORWARD\]"),
    (Query(families=(resolve_tag_family("LR"),)), HEAD + rb"\[DEBUG_LR_STEP\]"),
    (Query(families=(resolve_tag_family("VALIDATION"),)), HEAD + rb"\[DEBUG_VALIDATION\]"),
    (
        Query(families=(resolve_tag_family("LR"), resolve_tag_family("VALIDATION_METRICS"))),
        HEAD + rb"\[DEBUG_(LR_STEP|VALIDATION_METRICS)\]",
    ),
    (Query(excluded=(resolve_tag_family("FORWARD"),)), HEAD + rb"\[(?!DEBUG_FORWARD\])"),
    (Query(prefixes=(b"[mon",)), HEAD + rb"\[mon"),
    (Query(level=30), rb"^\S+ [WEC] "),
    (Query(steps=((3, 5), (40, 40))), rb"^\S+ . r\d+ s0*(3|4|5|40) "),
    (Query(pattern=re.compile(rb"nan")), rb"nan"),
    (Query(families=(resolve_tag_family("FORWARD"),), level=40), rb"^\S+ [EC] r\d+ s\d+ \[DEBUG_FORWARD\]"),
]


@pytest.mark.parametrize(("query", "wanted"), ASKED)
@pytest.mark.parametrize("block", [300, 4096, engine.BLOCK_BYTES])
def test_whole_records_whatever_the_block(
    query: Query, wanted: bytes, block: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(engine, "BLOCK_BYTES", block)
    found = make_records(400)
    assert filter_data(b"".join(found), query) == filter_by_hand(found, re.compile(wanted))
    left = filter_data(b"".join(found), query._replace(invert=True))
    assert left == b"".join(r for r in found if not re.search(wanted, r))


@pytest.mark.parametrize("cut", [1, 100, 5000, 20_000])
def test_a_record_belongs_to_the_unit_it_starts_in(cut: int) -> None:
    data, query = b"".join(make_records(400)), Query(level=20)
    whole = filter_data(data, query)
    parts = [
        _filter_unit(data, query, begin, min(begin + cut, len(data)))
        for begin in range(0, len(data), cut)
        if cut > 1 or begin < 300
    ]
    joined = b"".join(parts)
    assert joined == (whole if cut > 1 else whole[: len(joined)])


def _filter_unit(data: bytes, query: Query, begin: int, end: int) -> bytes:
    out: list[bytes] = []
    stream = io.BytesIO(data)
    stream.seek(max(begin - 1, 0))
    last = None if end == len(data) else end
    Filter(Matcher(query, Tdbg), lambda view: out.append(bytes(view)), begin=begin, end=last).filter_stream(stream)  # type: ignore[arg-type]
    return b"".join(out)


class Dense(Workspace):
    """Every block is one for numpy."""

    dense = True


class Crowded(Dense):
    """And has a look at every line."""

    crowded = True


class Sparse(Workspace):
    """Every block is one for the C library's search."""

    sparse = True


LINES = st.sampled_from(
    [
        *(format_line(1.76e9, "D", 3, 7, tag, "text").encode() for tag in TAGS),
        format_line(1.76e9, "D", 12_345, 7, TAGS[0], "a rank of five digits").encode(),
        format_line(1.76e9, "W", 3, 7, "[DEBUG_FORWARD_X]", "of the family").encode(),
        format_line(1.76e9, "I", 3, 7, "[monitor]", "[DEBUG_FORWARD] in the message").encode(),
        b"[rank1]:" + format_line(1.76e9, "D", 3, 7, TAGS[0], "after a launcher's prefix").encode(),
        b"    indented [DEBUG_FORWARD]\n",
        b"\n",
        b"not indented\n",
        b"2026-11-20T[DEBUG_FORWARD]\n",
        b"2026-11-20T03:06:40\n" + b"x" * 25 + b"[DEBUG_FORWARD] where a tag would be\n",
        b"2026-11-20T03:06:40.000299 D r0003 s0000007 [DEBUG_FORWARD] a byte too early\n",
        b"2026-",
        b"[DEBUG_FORWARD]",
    ]
)
FAMILIES = st.sampled_from(
    [
        Query(families=(resolve_tag_family("FORWARD"),)),
        Query(families=(resolve_tag_family("FORWARD"), resolve_tag_family("VALIDATION"))),
        Query(prefixes=(b"[DEBUG_V", b"[m")),
        Query(families=(resolve_tag_family("LR"),), prefixes=(b"[DEBUG_LR",)),
    ]
)


@settings(max_examples=300, deadline=None)
@given(st.lists(LINES, max_size=60), FAMILIES, st.integers(min_value=300, max_value=4000), st.integers(0, 40))
def test_dense_and_sparse_blocks_give_the_same_bytes(
    parts: list[bytes], query: Query, block: int, ordinary: int
) -> None:
    data = b"".join([*make_records(ordinary), *parts, *make_records(ordinary)])

    def filtered(space: Workspace) -> tuple[bytes, int]:
        out: list[bytes] = []
        found = Filter(Matcher(query, Tdbg), lambda view: out.append(bytes(view)), space=space)
        return b"".join(out), found.filter_stream(io.BytesIO(data))  # type: ignore[arg-type]

    expected = filtered(Workspace(block))
    assert filtered(Dense(block)) == expected
    assert filtered(Crowded(block)) == expected
    assert filtered(Sparse(block)) == expected


def test_a_workspace_is_used_again(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(engine, "LARGEST_BYTES", 4000)
    long = format_line(1e9, "E", 0, 1, "[DEBUG_LR]", "\n".join("x" * 100 for _ in range(20))).encode()
    query = Query(families=(resolve_tag_family("LR"),))
    for kind in (Workspace, Dense, Crowded, Sparse):
        space = kind(1000)
        for data in (b"".join(make_records(40)), long + b"".join(make_records(40)), b"", b"".join(make_records(40))):
            out: list[bytes] = []
            Filter(Matcher(query, Tdbg), lambda view, out=out: out.append(bytes(view)), space=space).filter_stream(  # type: ignore[misc]
                io.BytesIO(data)  # type: ignore[arg-type]
            )
            assert b"".join(out) == filter_data(data, query)


def test_numpy_and_the_c_library_are_for_many_blocks_alone() -> None:
    space, size = Workspace(), engine.BLOCK_BYTES
    for _ in range(engine.DENSE_BLOCKS):
        assert not space.dense
        space.record_hit_density(10_000, size)
    assert space.dense and not space.sparse
    space.record_hit_density(10_000, 100)
    assert space.dense
    space.record_hit_density(3, size)
    assert not space.dense
    for _ in range(engine.SPARSE_BLOCKS - 1):
        assert not space.sparse
        space.record_hit_density(3, size)
    assert space.sparse
    space.record_hit_density(1000, size)
    assert not space.sparse


@settings(max_examples=60, deadline=None)
@given(st.binary(max_size=3000), st.integers(min_value=64, max_value=700))
def test_everything_in_is_everything_out(data: bytes, block: int) -> None:
    before, engine.BLOCK_BYTES = engine.BLOCK_BYTES, block
    try:
        assert filter_data(data, Query()) == data
        for form in FORMATS:
            matcher = Matcher(Query(level=30, pattern=re.compile(rb"e")), form)
            Filter(matcher, lambda view: None).filter_stream(io.BytesIO(data))  # type: ignore[arg-type]
    finally:
        engine.BLOCK_BYTES = before


def test_a_record_too_long_for_any_buffer_is_judged_by_its_beginning(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(engine, "BLOCK_BYTES", 1000)
    monkeypatch.setattr(engine, "LARGEST_BYTES", 4000)
    long = format_line(1e9, "E", 0, 1, "[DEBUG_LR]", "\n".join("x" * 100 for _ in range(200))).encode()
    other = format_line(1e9, "I", 0, 2, "[DEBUG_LR]", "short").encode()
    assert filter_data(other + long + other, Query(level=40)) == long
    assert filter_data(other + long + other, Query(level=20)) == other + long + other
    assert filter_data(long + other, Query(families=(resolve_tag_family("FORWARD"),))) == b""


def test_workers_write_the_same_bytes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(parallel, "UNIT_BYTES", 3000)
    monkeypatch.setattr(parallel, "SMALL_BYTES", 0)
    for rank in (0, 1, 10):
        (tmp_path / f"debug_log_rank{rank}.txt").write_bytes(b"".join(make_records(300, rank)))
    sources = find_sources([str(tmp_path)])
    assert [source.rank for source in sources] == [0, 1, 10]
    expected = b"".join(filter_by_hand(make_records(300, rank), re.compile(rb"^\S+ [IWEC] ")) for rank in (0, 1, 10))
    for jobs in (1, 2, 5):
        target = tmp_path / f"out{jobs}"
        handle = os.open(target, os.O_WRONLY | os.O_CREAT)
        taken = parallel.filter_files(sources, Query(level=20), handle, jobs)
        os.close(handle)
        assert (target.read_bytes(), taken) == (expected, 600)


def test_rotated_parts_come_oldest_first_and_ranks_by_number(tmp_path: Path) -> None:
    names = ["train.log", "train.log.1", "train.log.2", "train.log.10", "rank2.log", "rank10.log.gz", "notes.md"]
    for name in names:
        (tmp_path / name).write_bytes(b"x\n")
    found = [os.path.basename(source.path) for source in find_sources([str(tmp_path)])]
    assert found == ["rank2.log", "rank10.log.gz", "train.log.10", "train.log.2", "train.log.1", "train.log"]


@pytest.mark.parametrize(
    ("path", "rank"),
    [
        ("run/rank0003/debug_log_rank3.txt.2", 3),
        ("logs/rank12.log", 12),
        ("logs/attempt_0/3/stdout.log", 3),
        ("slurm-123_task7.out", 7),
        ("train.log", None),
        ("logs/frank1.log", None),
    ],
)
def test_the_rank_is_in_the_path(path: str, rank: int | None) -> None:
    assert rank_of(path) == rank


def test_formats_are_recognised() -> None:
    stamped = b"2026-11-20 03:06:40,123 - root - WARNING - [DEBUG_LR] low\nTraceback (most recent call last):\n  x\n"
    assert detect_format(stamped) is Stamped
    assert filter_data(stamped * 3, Query(level=30)) == stamped * 3
    assert filter_data(stamped * 3, Query(families=(resolve_tag_family("LR"),))) == stamped * 3
    assert filter_data(stamped * 3, Query(families=(resolve_tag_family("FORWARD"),))) == b""
    assert detect_format(b"".join(make_records(5))) is Tdbg
    assert detect_format(b"step 1 loss 2\nstep 2 loss nan\n") is Lines
    prefixed = b"[rank3]: 2026-11-20 03:06:40 ERROR bad\n"
    assert filter_data(prefixed, Query(level=40)) == prefixed
    assert isinstance(find_sources([os.devnull])[0], Source)
