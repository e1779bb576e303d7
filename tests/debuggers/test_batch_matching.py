"""Which samples a call works on, whatever was fetched ahead of it: with real loaders."""

import sys
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from types import FrameType
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.utils.data import DataLoader, Dataset

from tdbg.debuggers import batch_matching as module
from tdbg.debuggers.batch_matching import Batches, compute_address_range

Batch = tuple[Tensor, Tensor]


class Numbers(Dataset[Batch]):
    """Sample n is full of n."""

    def __init__(self, like: Tensor) -> None:
        self.like = like

    def __len__(self) -> int:
        return 12

    def __getitem__(self, index: int) -> Batch:
        return torch.full_like(self.like, index), torch.zeros(1)


def iter_batches(batches: Batches, like: Tensor | None = None) -> Iterator[Batch]:
    """Batches of three, told to ``batches`` as they come; their ids are 100 and up."""
    loader = DataLoader(Numbers(torch.zeros(6) if like is None else like), batch_size=3)
    iterator = iter(loader)
    for number, batch in enumerate(iterator):
        batches.record_batch(iterator, batch, [100 + 3 * number + row for row in range(3)])
        yield batch


def list_ids(number: int) -> list[int]:
    return [100 + 3 * number + row for row in range(3)]


def find_ids(batches: Batches, call: Any) -> list[Any] | None:
    found = batches.find_batch(call)
    return found.ids if found is not None else None


def move_tensor(tensor: Tensor) -> Tensor:
    """What a device would get: other memory, the same values."""
    return tensor.clone()


@pytest.mark.parametrize("move", [lambda x: x, move_tensor, lambda x: x[:, :-1], lambda x: x.view(3, 2, 3)])
def test_a_batch_is_known_however_many_were_fetched_before_it_is_used(move: Any) -> None:
    batches = Batches()
    waiting = list(iter_batches(batches))
    for number, (x, y) in enumerate(waiting):
        batches.record_call()
        assert find_ids(
            batches, ((), {"x": move(x), "y": y if move is not move_tensor else move_tensor(y)})
        ) == list_ids(number)


@pytest.mark.parametrize(
    "dtype", [torch.int64, torch.uint8, torch.bfloat16, torch.float64, torch.complex64, torch.bool]
)
def test_values_of_every_type_tell(dtype: torch.dtype) -> None:
    batches = Batches()
    first, second, *_ = iter_batches(batches, torch.zeros(6, dtype=dtype))
    assert find_ids(batches, move_tensor(first[0])) == list_ids(0)
    same = torch.equal(first[0], second[0])
    assert not same and (dtype == torch.bool or find_ids(batches, move_tensor(second[0])) == list_ids(1))


def test_nan_does_not_hide_a_batch() -> None:
    batches = Batches()
    list(iter_batches(batches))
    iterator = iter(DataLoader(Numbers(torch.zeros(2)), batch_size=3))
    next(iterator)
    batches.record_batch(iterator, torch.full((3, 2), float("nan")), [7, 8, 9])
    assert find_ids(batches, torch.full((3, 2), float("nan"))) == [7, 8, 9]


def test_what_two_batches_have_alike_tells_nothing() -> None:
    batches = Batches()
    (_, y), *_ = iter_batches(batches)
    assert find_ids(batches, move_tensor(y)) is None, "the zeros of every batch"


def test_values_made_from_a_batch_are_those_of_the_newest_if_none_was_fetched_ahead() -> None:
    batches = Batches()
    for number, (x, _) in enumerate(iter_batches(batches)):
        batches.record_call()
        assert find_ids(batches, (x * 2 + 0.5,)) == list_ids(number)


def test_values_made_from_a_batch_that_was_fetched_ahead_are_nobodys() -> None:
    batches = Batches()
    source = iter_batches(batches)
    ahead, _ = next(source), next(source)
    batches.record_call()
    assert find_ids(batches, (ahead[0] * 2 + 0.5,)) is None


def test_a_loader_is_judged_by_itself_and_anew_in_each_pass() -> None:
    batches = Batches()
    training, validation = iter_batches(batches), iter_batches(batches)
    next(training), next(training)  # ahead
    batches.record_call()
    x, _ = next(validation)
    assert find_ids(batches, (x * 2 + 0.5,)) == list_ids(0)
    x, _ = next(training)
    assert find_ids(batches, (x * 2 + 0.5,)) is None
    x, _ = next(iter_batches(batches))
    assert find_ids(batches, (x * 2 + 0.5,)) == list_ids(0)


def test_pieces_of_one_large_tensor_are_told_apart() -> None:
    batches = Batches()
    large = torch.zeros(12, 4)
    iterator = iter(DataLoader(Numbers(torch.zeros(2)), batch_size=3))
    next(iterator)
    for number in range(4):
        batches.record_batch(iterator, large[3 * number : 3 * number + 3], list_ids(number))
    assert [find_ids(batches, large[3 * n : 3 * n + 3]) for n in range(4)] == [list_ids(n) for n in range(4)]


def test_memory_that_was_freed_and_given_to_another_is_not_taken_for_the_old() -> None:
    batches = Batches()
    for _ in iter_batches(batches):
        pass
    assert not any(place.overlaps_tensor(torch.ones(3, 6)) for batch in batches._batches for place in batch.places)


def test_extent_of_strided_and_empty_tensors() -> None:
    x = torch.zeros(4, 6)
    assert [end - begin for begin, end in map(compute_address_range, (x, x.t(), x[1:3, 2:4], x[:0], x[0, 0]))] == [
        96,
        96,
        32,
        0,
        4,
    ]


def run_interrupted(act: Callable[[], Any], after: int, other: Callable[[], Any]) -> tuple[Any, bool]:
    """What ``act`` returns if ``other`` runs in between, behind so many operations in the module; whether it ran at all."""
    left = after

    def trace_opcodes(frame: FrameType, event: str, arg: Any) -> Any:
        nonlocal left
        if frame.f_code.co_filename != module.__file__:
            return None
        frame.f_trace_opcodes = True
        if event == "opcode":
            left -= 1
            if left == -1:
                other()
        return trace_opcodes

    before = sys.gettrace()
    sys.settrace(trace_opcodes)
    try:
        return act(), left < 0
    finally:
        sys.settrace(before)


@pytest.mark.parametrize(
    ("move", "right"),
    [
        (lambda x: x, [list_ids(0)]),
        (move_tensor, [list_ids(0)]),
        (lambda x: x * 2 + 0.5, [list_ids(0), list_ids(1), None]),
    ],
    ids=["in place", "moved", "made from it"],
)
def test_another_thread_may_hand_out_a_batch_at_any_moment(move: Any, right: list[Any]) -> None:
    """As one that fetches ahead does: between any two operations of the call, from a loader that is new or not.

    What was made from a batch is taken for the newest: which one that is depends on the moment.
    """
    loaders = [DataLoader(Numbers(torch.zeros(size)), batch_size=3) for size in (6, 5)]
    with ThreadPoolExecutor(1) as thread:
        after, reached = 0, True
        while reached:
            batches = Batches()
            iterators = [iter(loader) for loader in loaders]
            x, y = next(iterators[0])
            batches.record_batch(iterators[0], (x, y), list_ids(0))

            def hand_out(batches: Batches = batches, iterators: list[Any] = iterators) -> None:
                for iterator in iterators:
                    batches.record_batch(iterator, next(iterator), list_ids(1))

            given = (move(x), y.clone())

            def record_and_find_ids(batches: Batches = batches, given: Any = given) -> list[Any] | None:
                batches.record_call()
                return find_ids(batches, given)

            found, reached = run_interrupted(
                record_and_find_ids, after, lambda hand=hand_out: thread.submit(hand).result()
            )
            after += 1
            assert found in right, after
    assert after > 50


def count_held(batches: Batches) -> int:
    return sum(batch.content is not None for batch in batches._batches)


@pytest.mark.parametrize(("ahead", "expected"), [(1, 1), (2, 2), (4, 4), (40, module.HELD)])
def test_no_more_batches_are_held_than_the_loader_is_ahead(ahead: int, expected: int) -> None:
    batches = Batches()
    iterator = iter(DataLoader(Numbers(torch.zeros(6)), batch_size=3))
    for _ in range(6):
        for _ in range(ahead):
            batches.record_batch(iterator, [torch.zeros(1)], [], content="batch")
        batches.record_call()
        assert count_held(batches) == expected


def test_a_piece_of_a_batch_is_known_in_the_memory_of_an_argument() -> None:
    x, y = torch.zeros(6, 2), torch.ones(6)
    assert module.shares_tensors({"x": x}, [x[2:4].view(-1)]) and not module.shares_tensors(y, [x])
    assert not module.shares_tensors(x, [x.clone()]), "on the host equal values are no proof"
