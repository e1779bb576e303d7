"""Which of the batches that loaders handed out a pass of the model works on."""

import weakref
from collections import deque
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor
from torch.multiprocessing.reductions import StorageWeakRef

from tdbg.runtime.tensors import iter_tensors

if TYPE_CHECKING:
    from tdbg.runtime.torch_compat import BatchIterator

KEPT = 64  # batches; Trainers that accumulate gradients fetch all of an update at once
HELD = 16  # of them whose contents are held at most, where somebody wants them
LOOKED_AT = 8  # tensors of a batch, and of a call
SAMPLED = 16  # elements that tell one tensor from another

Print = tuple[torch.Size, torch.dtype, bytes]


@dataclass(slots=True)
class _Source:
    """One iterator over a loader."""

    unused: int = 0  # batches handed out since the model was called last,
    since: object = None  # in that call
    ahead: bool = False  # a batch was fetched before the one that came earlier was used
    most: int = 0  # the most batches it handed out between two calls


class _Place:
    """Where a tensor lies; while this is held its storage's address is given to no other storage."""

    def __init__(self, tensor: Tensor) -> None:
        self.storage = StorageWeakRef(tensor.untyped_storage())
        self.begin, self.end = compute_address_range(tensor)

    def overlaps_tensor(self, tensor: Tensor) -> bool:
        """True if the tensor, which may be a view, has an element here."""
        begin, end = compute_address_range(tensor)
        return self.storage.cdata == tensor.untyped_storage()._cdata and begin < self.end and self.begin < end


@dataclass(slots=True)
class Batch:
    """One that was handed out. ids: of its samples, as far as they are known. padding: rows that another rank has too.

    content: what the loader gave, where it is wanted and not older than a call may still work on.
    """

    ids: list[Any]
    padding: list[int]
    source: _Source
    places: list[_Place]
    prints: set[Print]
    content: object = None


class Batches:
    """The last batches that were handed out, with the ids of their samples.

    Programs fetch ahead: Accelerate and the Hugging Face Trainer by a batch, or by an update's worth of them. So the
    batch handed out last is not always the one that a call works on. A call is known by its tensors: they lie in the
    memory of a batch (views too), or, where they were moved to a device, have its shape, type and elements at 16 places.
    Batches may be handed out in other threads than the one that calls the model, at any moment.
    Cost: some 30 us a batch; a call on tensors that were moved waits for the copies of 16 elements each.
    """

    def __init__(self) -> None:
        self._batches: deque[Batch] = deque(maxlen=KEPT)
        self._sources: weakref.WeakKeyDictionary[object, _Source] = weakref.WeakKeyDictionary()  # never iterated over
        self._call = object()  # the model's last one

    def record_batch(
        self,
        loader_iter: "BatchIterator",
        batch: object,
        ids: list[Any],
        padding: Sequence[int] = (),
        content: object = None,
    ) -> None:
        """A loader's iterator handed out a batch. content: what is to be held of it."""
        if loader_iter._num_yielded == 1:  # a new pass: what was seen before says nothing of it
            self._sources.pop(loader_iter, None)
        source, call = self._sources.setdefault(loader_iter, _Source()), self._call
        if source.since is not call:
            source.unused, source.since = 0, call
        source.unused += 1
        source.ahead = source.ahead or source.unused > 1
        source.most = max(source.most, source.unused)
        found = list(_iter_tensors(batch))
        self._batches.append(
            Batch(ids, [*padding], source, [_Place(tensor) for tensor in found], _fingerprint_tensors(found), content)
        )
        if content is not None:
            self._release_contents(source)

    def _release_contents(self, source: _Source) -> None:
        """Let go of what no call will work on any more: a loader is never further ahead than it was."""
        holding = [batch for batch in list(self._batches) if batch.content is not None]
        own = [batch for batch in holding if batch.source is source]
        for batch in own[: -source.most] + holding[:-HELD]:
            batch.content = None

    def record_call(self) -> None:
        """The model is called, on a batch that was handed out before."""
        self._call = object()

    def find_batch(self, call: object) -> Batch | None:
        """The batch that a call's arguments are; None where that is not certain.

        Tensors that were made from a batch (they lie elsewhere and have other values) are taken for those of the newest
        one, as long as its loader was not seen to be ahead of the model.
        """
        batches = list(self._batches)  # as they are now, in one operation: another thread may hand out the next one
        tensors = list(_iter_tensors(call))
        batch = _by_place(batches, tensors) or _by_values(batches, tensors)
        if batch is None and batches and not batches[-1].source.ahead:
            batch = batches[-1]
        return batch


def shares_tensors(value: object, call: object) -> bool:
    """True if one of the first tensors in a value is one of a call's: in its memory, or moved to another device."""
    own, given = list(_iter_tensors(value)), list(_iter_tensors(call))
    if any(_Place(tensor).overlaps_tensor(other) for tensor in own for other in given):
        return True
    kinds = {(tensor.shape, tensor.dtype) for tensor in given if not tensor.is_cpu}
    moved = _fingerprint_tensors([tensor for tensor in own if (tensor.shape, tensor.dtype) in kinds])
    return bool(moved & _fingerprint_tensors([tensor for tensor in given if not tensor.is_cpu]))


def _by_place(batches: list[Batch], tensors: list[Tensor]) -> Batch | None:
    for batch in reversed(batches):
        if any(place.overlaps_tensor(tensor) for place in batch.places for tensor in tensors):
            return batch
    return None


def _by_values(batches: list[Batch], tensors: list[Tensor]) -> Batch | None:
    """The batch that has most of these tensors; None if none has any, or others have as many."""
    kinds = {known[:2] for batch in batches for known in batch.prints}
    asked = _fingerprint_tensors([tensor for tensor in tensors if (tensor.shape, tensor.dtype) in kinds])
    common = [len(asked & batch.prints) for batch in batches]
    best = max(common, default=0)
    found = [batch for batch, count in zip(batches, common, strict=True) if count == best] if best else []
    return found[-1] if len({tuple(batch.ids) for batch in found}) == 1 else None


def compute_address_range(tensor: Tensor) -> tuple[int, int]:
    """The addresses of a tensor's first byte and of the one behind its last."""
    begin = tensor.data_ptr()
    if not tensor.numel():
        return begin, begin
    last = sum((size - 1) * stride for size, stride in zip(tensor.shape, tensor.stride(), strict=True))
    return begin, begin + (last + 1) * tensor.element_size()


def _iter_tensors(value: object) -> Iterator[Tensor]:
    """The first plain tensors in a structure."""
    found = (tensor for _, tensor in iter_tensors(value))
    for tensor, _ in zip(found, range(LOOKED_AT), strict=False):
        if type(tensor) is Tensor and tensor.layout is torch.strided and not tensor.is_meta and not tensor.is_quantized:
            yield tensor


def _fingerprint_tensors(tensors: list[Tensor]) -> set[Print]:
    """Shape, type and some elements of each tensor whose elements lie side by side."""
    return {
        (tensor.shape, tensor.dtype, _sample_bytes(tensor))
        for tensor in tensors
        if tensor.numel() and tensor.is_contiguous()
    }


def _sample_bytes(tensor: Tensor) -> bytes:
    step = max(tensor.numel() // SAMPLED, 1)
    some = tensor.detach().view(-1)[::step][:SAMPLED].resolve_conj().resolve_neg().contiguous()
    return bytes(some.cpu().view(torch.uint8).tolist())
