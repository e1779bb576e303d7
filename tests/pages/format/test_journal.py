"""The journal: what was written is what is read, and nothing behind the first byte that is wrong."""

import json
import os
import zlib
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tdbg.pages.format import disk, journal
from tdbg.pages.format.file_format import FRAME_LIMIT, decode_json, encode_json, unmark_value
from tdbg.pages.format.journal import HEAD, Frames, JournalFile, encode_frame, frame_body, iter_records

LEAVES = st.none() | st.booleans() | st.integers() | st.floats() | st.complex_numbers() | st.text() | st.binary()
NAMES = st.text() | st.sampled_from(["$float", "$dict", "$x", "t"])
VALUES = st.recursive(LEAVES, lambda inner: st.lists(inner) | st.dictionaries(NAMES, inner), max_leaves=20)
RECORDS = st.lists(st.dictionaries(st.text(max_size=5), VALUES, max_size=3), min_size=1, max_size=8)


def is_same(a: Any, b: Any) -> bool:
    """Equal, where NaN equals NaN and 1 is not 1.0."""
    return repr(a) == repr(b)


def scan_records(data: bytes) -> list[dict[str, Any]]:
    return [record for _, record in iter_records(data)]


@given(VALUES)
def test_any_value_comes_back_from_strict_json(value: Any) -> None:
    text = encode_json(value)
    json.loads(text, parse_constant=lambda word: pytest.fail(word))
    assert is_same(unmark_value(decode_json(text)), value)


def test_tuples_become_lists_names_that_are_no_text_become_text_and_0d_arrays_numbers() -> None:
    import numpy as np

    assert unmark_value(
        decode_json(encode_json({1: (2, 3), None: np.float32(1.5), ("a",): np.array(float("nan"))}))
    ) == {
        "1": [2, 3],
        "None": 1.5,
        "('a',)": pytest.approx(float("nan"), nan_ok=True),
    }


def test_names_that_are_no_unicode_survive() -> None:
    name = os.fsdecode(b"caf\xe9.png")
    assert decode_json(encode_json({name: float("inf")})) == {name: {"$float": "inf"}}


@pytest.mark.parametrize("value", [object(), {1, 2}, [b"x", object()], 1 << 20_000], ids=type)
def test_what_cannot_be_stored_is_an_error(value: Any) -> None:
    with pytest.raises((TypeError, ValueError)):
        encode_json(value)


def test_a_structure_that_holds_itself_is_an_error() -> None:
    loop: list[Any] = []
    loop.append(loop)
    with pytest.raises(ValueError):
        encode_json(loop)


@pytest.mark.parametrize(
    "text",
    [b"[" * 100_000, b'{"a":' * 100_000, b"NaN", b"[1,]", b"\xff", b"1 2", b"", b" ", b"1" * 10_000, b'{"$x":1}'],
)
def test_text_that_is_no_json_is_a_value_error(text: bytes) -> None:
    with pytest.raises(ValueError):
        unmark_value(decode_json(text))


@given(RECORDS)
def test_records_come_back_in_order(records: list[dict[str, Any]]) -> None:
    data = b"".join(encode_frame(record) for record in records)
    assert is_same(
        [unmark_value(record) for record in scan_records(data)],
        [unmark_value(decode_json(encode_json(r))) for r in records],
    )
    assert next(iter_records(data))[0] == 0


def test_every_cut_leaves_the_whole_records_before_it() -> None:
    frames = [encode_frame({"n": number, "text": "x" * number}) for number in range(6)]
    data = b"".join(frames)
    ends = [sum(map(len, frames[: number + 1])) for number in range(6)]
    for cut in range(len(data) + 1):
        assert [record["n"] for record in scan_records(data[:cut])] == [n for n, end in enumerate(ends) if end <= cut]


@settings(max_examples=200)
@given(st.integers(0, 10_000), st.integers(1, 255))
def test_a_changed_byte_ends_the_journal_before_its_record(place: int, change: int) -> None:
    frames = [encode_frame({"n": number, "text": "y" * 30}) for number in range(6)]
    data = bytearray(b"".join(frames))
    place %= len(data)
    data[place] ^= change
    assert [record["n"] for record in scan_records(bytes(data))] == list(range(place // len(frames[0])))


@pytest.mark.parametrize("block", [9, 40, 100, 1000])
def test_blocks_of_any_size_give_the_same_frames(block: int, monkeypatch: pytest.MonkeyPatch) -> None:
    data = b"".join(encode_frame({"t": "dp", "n": n, "text": "z" * (n * 7 % 150)}) for n in range(60)) + b"torn"
    monkeypatch.setattr(journal, "BLOCK_BYTES", block)
    assert [record["n"] for record in scan_records(data)] == list(range(60))
    frames = Frames(lambda offset, length: data[offset : offset + length], len(data))
    assert frames.left == 4
    assert [frames.read_record(n)["n"] for n in (59, 3, 58, 0)] == [59, 3, 58, 0]


def test_a_frame_that_claims_more_than_there_is_takes_no_memory() -> None:
    head = encode_frame({"n": 1})
    for length in (FRAME_LIMIT, FRAME_LIMIT + 1, 0xFFFFFFFF):
        asked: list[int] = []
        data = head + HEAD.pack(length, 0) + b"x" * 100
        frames = Frames(lambda at, size, a=asked, d=data: a.append(size) or d[at : at + size], len(data))  # type: ignore[misc]
        assert (len(frames), frames.left) == (1, 108)
        assert max(asked) <= journal.BLOCK_BYTES


def test_an_empty_body_and_a_hole_are_no_frames() -> None:
    assert scan_records(bytes(4096)) == []
    assert scan_records(HEAD.pack(0, zlib.crc32(b""))) == []
    assert scan_records(frame_body(b"[1]") + encode_frame({"n": 1})) == [{"n": 1}]  # whole, but no object: passed over


def test_a_record_above_the_limit_is_not_written() -> None:
    with pytest.raises(ValueError):
        frame_body(b" " * (FRAME_LIMIT + 1))


def test_a_path_is_read_too(tmp_path: Path) -> None:
    (tmp_path / "j").write_bytes(encode_frame({"n": 1}) + b"\0\0")
    assert list(iter_records(tmp_path / "j")) == [(0, {"n": 1})]


def test_after_half_a_frame_the_next_takes_its_place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = JournalFile(tmp_path / "j")
    file.append_frames(encode_frame({"n": 0}))
    real = disk.write_at

    def full(fd: int, pieces: Any, offset: int) -> int:
        real(fd, [pieces[0][: len(pieces[0]) // 2]], offset)
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(disk, "write_at", full)
    with pytest.raises(OSError):
        file.append_frames(encode_frame({"n": 1, "long": "x" * 200}))
    assert scan_records((tmp_path / "j").read_bytes()) == [{"n": 0}]  # a kill now is a torn end, and no more
    monkeypatch.setattr(disk, "write_at", real)
    file.append_frames(encode_frame({"n": 2}))
    assert (tmp_path / "j").read_bytes() == encode_frame({"n": 0}) + encode_frame({"n": 2})
    monkeypatch.setattr(disk, "write_at", full)
    with pytest.raises(OSError):
        file.append_frames(encode_frame({"n": 3}))
    file.close()
    assert (tmp_path / "j").read_bytes() == encode_frame({"n": 0}) + encode_frame({"n": 2})


def test_a_journal_is_never_overwritten(tmp_path: Path) -> None:
    JournalFile(tmp_path / "j").close()
    with pytest.raises(FileExistsError):
        JournalFile(tmp_path / "j")


def test_a_journal_that_grows_while_it_is_read_is_whole() -> None:
    data = b"".join(encode_frame({"t": "dp", "seq": seq}) for seq in range(10))
    found = Frames(lambda offset, length: data[offset : offset + length], len(data) // 2)
    assert len(found) == 10 and found.left == 0 and found.end == len(data)
