"""Telling datasets apart, without keeping them alive, and without asking them."""

import weakref
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from tdbg.runtime.torch_compat import BatchIterator

Source = Any  # a weak reference to a dataset, of which there is one each, or an id; None: no dataset


def source_of(loader_iter: "BatchIterator") -> Source:
    """What tells the dataset of a loader's iterator from others. Of one that takes no reference (a list) its id."""
    dataset = loader_iter._dataset
    try:
        return weakref.ref(dataset)
    except TypeError:
        return id(dataset)


def is_same(one: Source, other: Source) -> bool:
    """True if both are the same dataset."""
    return one is other or (isinstance(one, int) and isinstance(other, int) and one == other)
