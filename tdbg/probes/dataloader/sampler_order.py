"""Which samples a batch is made of, told afterwards by the sampler's own iterator: nothing is recorded meanwhile."""

from types import GeneratorType
from typing import TYPE_CHECKING, Any

from torch.utils.data import BatchSampler, RandomSampler, SequentialSampler
from torch.utils.data.distributed import DistributedSampler

if TYPE_CHECKING:
    from collections.abc import Sequence

    from tdbg.runtime.torch_compat import BatchIterator

ITERATORS = (type(iter([0])), type(iter(range(0))))


def read_batch_indices(loader_iter: "BatchIterator") -> list[int]:
    """The dataset's indices in the batch that was handed out last; empty where they are not known for certain.

    Known are the batches of torch's own samplers, over a fixed order of all samples, until the sampler is used up: workers
    are ahead of the program, so not in the last batches of a pass. Cost: some 10 us, and the order's own length.
    """
    sampler: Any = loader_iter._index_sampler
    if type(sampler) is not BatchSampler or not getattr(loader_iter, "_in_order", True):
        return []
    order = _read_order(loader_iter._sampler_iter, sampler.sampler)
    end = loader_iter._num_yielded * sampler.batch_size
    found = [int(index) for index in order[end - sampler.batch_size : end]] if end else []
    return found if all(type(index) is int for index in found) else []


def _read_order(batches: object, sampler: Any) -> "Sequence[int]":
    """The order that a sampler gives in this pass, from the iterator of the batches made of it."""
    if type(batches) is not GeneratorType or batches.gi_frame is None:
        return []
    indices: Any = batches.gi_frame.f_locals.get("sampler_iter")
    if type(sampler) is RandomSampler:
        if sampler.replacement or type(indices) is not GeneratorType:
            return []
        indices = indices.gi_yieldfrom  # a list of all samples in an order drawn at random
    elif type(sampler) not in (SequentialSampler, DistributedSampler):
        return []
    if type(indices) not in ITERATORS:
        return []
    order: Sequence[int] = indices.__reduce__()[1][0]
    return order if len(order) == len(sampler) else []
