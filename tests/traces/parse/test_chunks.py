"""Bytes of a trace: packed or not, whole or torn."""

import gzip
import random
import sys
import zlib

import pytest

from tdbg.core.errors import TdbgError
from tdbg.traces.parse import chunks
from tdbg.traces.parse.chunks import Blocks

DATA = b"".join(b"%d," % number for number in range(200_000))  # 1.3 MB


@pytest.fixture(params=["isal", "zlib"], autouse=True)
def zlib_library(request, monkeypatch):
    if request.param == "zlib":
        monkeypatch.setitem(sys.modules, "isal", None)
        assert chunks._import_zlib() is zlib
    else:
        pytest.importorskip("isal")


def read_blocks(path, size=1 << 16):
    blocks = Blocks(path, size)
    return b"".join(blocks), blocks.torn


@pytest.mark.parametrize("name", ["a.json", "a.json.gz"])
def test_the_first_bytes_tell_what_is_packed_not_the_name(tmp_path, name):
    path = tmp_path / name
    path.write_bytes(DATA)
    assert read_blocks(path) == (DATA, "")
    path.write_bytes(gzip.compress(DATA))
    assert read_blocks(path) == (DATA, "")


def test_members_one_after_the_other_are_one_file(tmp_path):
    path = tmp_path / "a.gz"
    path.write_bytes(gzip.compress(DATA) + gzip.compress(b"") + gzip.compress(b"end"))
    assert read_blocks(path) == (DATA + b"end", "")


def test_zeros_behind_the_last_member_are_padding(tmp_path):
    path = tmp_path / "a.gz"
    path.write_bytes(gzip.compress(DATA) + b"\0" * 700)
    assert read_blocks(path) == (DATA, "")


def test_a_torn_file_gives_what_it_holds(tmp_path):
    path = tmp_path / "a.gz"
    whole = gzip.compress(DATA)
    path.write_bytes(whole[: len(whole) // 2])
    data, torn = read_blocks(path)
    assert len(data) > len(DATA) // 3 and DATA.startswith(data)
    assert torn == "the compressed data is truncated"


def test_a_damaged_file_gives_what_is_before_the_damage(tmp_path):
    path = tmp_path / "a.gz"
    whole = bytearray(gzip.compress(DATA))
    whole[len(whole) * 3 // 4 :] = b"\xff" * (len(whole) - len(whole) * 3 // 4)
    path.write_bytes(whole)
    data, torn = read_blocks(path)
    half = len(DATA) // 2  # behind the damaged place a little may be unpacked that means nothing
    assert data[:half] == DATA[:half]
    assert "damaged" in torn or "truncated" in torn


@pytest.mark.parametrize("place", [0.02, 0.5, 0.95])
def test_what_is_before_a_damaged_place_is_given_in_whole(tmp_path, place):
    """To a few bytes: a library that unpacks a block at a time has nothing to give of the one that it fails in."""
    path = tmp_path / "a.gz"
    text = random.Random(1).randbytes(300_000).hex().encode()
    whole = bytearray(gzip.compress(text))
    at = int(len(whole) * place)
    path.write_bytes(whole[:at] + b"\xff" * 64 + whole[at + 64 :])
    for size in (1 << 16, 1 << 20):
        data, torn = read_blocks(path, size)
        same = next((i for i, (one, other) in enumerate(zip(data, text, strict=False)) if one != other), len(data))
        assert same > len(text) * place * 0.97 - 2000 and torn.startswith("the compressed data is damaged")


def test_blocks_are_as_large_as_asked(tmp_path):
    path = tmp_path / "a.gz"
    path.write_bytes(gzip.compress(b"0" * 50_000_000))  # 48 kB: a bomb that must not be unpacked at once
    sizes = [len(block) for block in Blocks(path, 1 << 20)]
    assert sum(sizes) == 50_000_000 and max(sizes) < 2 << 20


def test_no_bytes_no_blocks(tmp_path):
    path = tmp_path / "a.json"
    path.write_bytes(b"")
    assert read_blocks(path) == (b"", "")


def test_what_cannot_be_opened_is_told(tmp_path):
    with pytest.raises(TdbgError, match="No such file"):
        list(Blocks(tmp_path / "none.json"))
    with pytest.raises(TdbgError, match="it is a folder"):
        list(Blocks(tmp_path))
