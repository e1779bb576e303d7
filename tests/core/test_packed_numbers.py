"""Ranks of a group as ranges: what is packed comes back, in few letters."""

import random
import tracemalloc

import pytest

from tdbg.core.ranges import MAX_RANKS, pack_numbers, unpack_numbers


@pytest.mark.parametrize("seed", range(200))
def test_what_is_packed_comes_back(seed: int) -> None:
    draw = random.Random(seed)
    first, step = draw.randrange(50), draw.choice([1, 2, 8, 64])
    numbers = set(range(first, first + draw.randrange(300), step)) | {draw.randrange(400) for _ in range(seed % 7)}
    assert list(unpack_numbers(pack_numbers(numbers))) == sorted(numbers)


@pytest.mark.parametrize(
    ("numbers", "text"),
    [
        ([], ""),
        ([5], "5"),
        ([5, 6], "5,6"),
        (range(64), "0-63"),
        (range(0, 1024, 8), "0-1016:8"),
        ([*range(64), *range(128, 1017, 8)], "0-63,128-1016:8"),
    ],
)
def test_equal_distances_are_one_range(numbers: list[int], text: str) -> None:
    assert pack_numbers(numbers) == text


@pytest.mark.parametrize(
    ("text", "numbers"), [("x", ()), ("3-1", ()), ("1-3:0", (1, 2, 3)), ("-", ()), ("7,x,9", (7, 9)), ("1-3-5", ())]
)
def test_what_is_no_range_is_left_out(text: str, numbers: tuple[int, ...]) -> None:
    assert unpack_numbers(text) == numbers


@pytest.mark.parametrize("text", [",".join(["0-999999999"] * 1000), "7," * 1_000_000])
def test_a_text_that_claims_many_numbers_takes_little_memory(text: str) -> None:
    """Three thousand times a hundred thousand numbers would be gigabytes."""
    tracemalloc.start()
    try:
        assert len(unpack_numbers(text)) <= MAX_RANKS
        assert tracemalloc.get_traced_memory()[1] < 20e6
    finally:
        tracemalloc.stop()


def test_a_file_may_claim_any_number() -> None:
    assert len(unpack_numbers("0-999999999,5-999999999")) == MAX_RANKS
