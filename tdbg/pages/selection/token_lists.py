"""The text of a datapoint as tokens, and a number for each of them where there is one."""

import re
from collections.abc import Iterator
from itertools import islice
from typing import Any

from tdbg.core.errors import TdbgError
from tdbg.pages.read.datapoint import Datapoint, Tensor
from tdbg.pages.read.tensor_slices import flat_parts
from tdbg.pages.read.tensor_values import to_real, value_count

TOKENS = 16_384
TOKEN = 40  # characters
IDS = re.compile(r"(^|[/.:_])(ids|tokens|input_ids)($|[/.:])")
MAX_LISTS = 8
MAX_VALUES = 24  # numbers of a token
MAX_ATTENTION_BYTES = 256 << 20  # of all that one answer sums
MAX_ATTENTION_TOKENS = 4096


def token_lists(datapoint: Datapoint) -> Iterator[tuple[str, list[str]]]:
    """What may stand at the axes of attention: lists of texts among the scalars, and tensors of ids."""
    lists: dict[str, list[Any]] = {}
    for path, value in datapoint.scalars.items():
        if isinstance(value, list):
            lists[path] = value
        elif isinstance(value, str) and path.rpartition("/")[2].isdecimal():
            lists.setdefault(path.rpartition("/")[0], []).append(value)
    for path, found in lists.items():
        if 1 < len(found) <= TOKENS and all(isinstance(word, str) for word in found):
            yield path, [word[:TOKEN] for word in found]
    for path, tensor in datapoint.tensors.items():
        count = value_count(tensor.dtype, tensor.shape)
        if (
            IDS.search(path)
            and tensor.dtype.kind in ("int", "uint")
            and 1 < count <= TOKENS
            and max(tensor.shape) == count
        ):
            try:
                yield path, [str(number) for number in tensor.numbers()]
            except TdbgError:
                continue


def describe_tokens(datapoint: Datapoint) -> list[dict[str, Any]]:
    """The first few lists of tokens, as the pages take them."""
    return [{"path": path, "words": words} for path, words in islice(token_lists(datapoint), MAX_LISTS)]


def describe_token_values(datapoint: Datapoint) -> list[dict[str, Any]]:
    """Each list of tokens with numbers of them: what was captured in that length, and the sums of attention."""
    lists = describe_tokens(datapoint)
    by_count: dict[int, list[dict[str, Any]]] = {}
    budget = ReadBudget(MAX_ATTENTION_BYTES)
    for one in lists:
        count = len(one["words"])
        if count not in by_count:
            found = islice(_iter_values(datapoint, count, budget), MAX_VALUES)
            by_count[count] = [{"name": name, "values": values} for name, values in found]
        one["values"] = by_count[count]
    return lists


class ReadBudget:
    """Bytes of attention that one answer still reads."""

    def __init__(self, left: int) -> None:
        self.left = left

    def reserve_bytes(self, nbytes: int) -> bool:
        """True if there was room for so many."""
        if nbytes > self.left:
            return False
        self.left -= nbytes
        return True


def _iter_values(datapoint: Datapoint, count: int, budget: ReadBudget) -> Iterator[tuple[str, list[float]]]:
    for path, value in datapoint.scalars.items():
        if isinstance(value, list) and len(value) == count and all(isinstance(one, int | float) for one in value):
            yield path, [to_real(one) or 0.0 for one in value]
    for path, tensor in datapoint.tensors.items():
        if tensor.dtype.kind != "float":
            continue
        try:
            if value_count(tensor.dtype, tensor.shape) == count == max(tensor.shape, default=0):
                yield path, tensor.array().reshape(-1).astype("f8").tolist()
            elif (
                tensor.shape[-2:] == (count, count)
                and count <= MAX_ATTENTION_TOKENS
                and budget.reserve_bytes(tensor.nbytes)
            ):
                yield from _sum_attention(path, tensor, count)
        except TdbgError:  # damaged: the tensor itself tells
            continue


def _sum_attention(path: str, tensor: Tensor, count: int) -> Iterator[tuple[str, list[float]]]:
    """Means over all heads of what each token receives and gives."""
    import numpy

    gives, receives = numpy.zeros(count), numpy.zeros(count)
    at = 0
    for part in flat_parts(tensor, count * tensor.dtype.size * max((4 << 20) // (count * tensor.dtype.size), 1)):
        rows = part.astype("f8").reshape(-1, count)
        receives += rows.sum(0)
        numpy.add.at(gives, (at + numpy.arange(len(rows))) % count, rows.sum(1))
        at += len(rows)
    planes = max(at // count, 1)
    yield f"{path}, sum of columns (attention received)", (receives / planes).tolist()
    yield f"{path}, sum of rows", (gives / planes).tolist()
