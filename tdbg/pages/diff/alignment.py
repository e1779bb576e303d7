"""Align the tensors of two datapoints where layers were inserted, removed or moved. Standard library alone."""

import re
from collections import Counter
from collections.abc import Sequence
from difflib import SequenceMatcher
from typing import NamedTuple

ALIKE = 200_000  # pairs of tensors whose names differ in numbers alone: to align many more takes minutes
NUMBER = re.compile(r"\d+")


class TensorForm(NamedTuple):
    """A tensor, but for its values."""

    path: str
    dtype: str
    shape: tuple[int, ...]


class Alignment(NamedTuple):
    """pairs: of places in A and in B, in A's order. only_a, only_b: places without a partner."""

    pairs: list[tuple[int, int]]
    only_a: list[int]
    only_b: list[int]


def align_tensors(a: Sequence[TensorForm], b: Sequence[TensorForm]) -> Alignment:
    """Pair the tensors of two datapoints, both in the order they were captured in.

    By name; but where a layer was inserted, the numbers in the names behind it move on (``3.weight`` becomes
    ``4.weight``). So they are also aligned by name without numbers and shape, and if more tensors of one shape come
    together that way, it is taken; not where very many names are alike.
    """
    names_a, names_b = [form.path for form in a], [form.path for form in b]
    if names_a == names_b:
        return Alignment([(at, at) for at in range(len(a))], [], [])
    named = _merge_blocks(names_a, names_b, names_a, names_b)
    if len(named.pairs) == min(len(a), len(b)) == _count_equal_shapes(named, a, b):
        return named
    tokens_a, tokens_b = [_normalize_form(form) for form in a], [_normalize_form(form) for form in b]
    counts = Counter(tokens_b)
    if sum(counts[token] for token in tokens_a) > ALIKE:
        return named
    loose = _merge_blocks(tokens_a, tokens_b, names_a, names_b)
    return loose if _count_equal_shapes(loose, a, b) > _count_equal_shapes(named, a, b) else named


def _normalize_form(form: TensorForm) -> tuple[str, tuple[int, ...]]:
    return NUMBER.sub("#", form.path), form.shape


def _count_equal_shapes(found: Alignment, a: Sequence[TensorForm], b: Sequence[TensorForm]) -> int:
    return sum(a[i].shape == b[j].shape for i, j in found.pairs)


def _merge_blocks(
    tokens_a: Sequence[object], tokens_b: Sequence[object], names_a: list[str], names_b: list[str]
) -> Alignment:
    """The longest runs of equal tokens, in order; then those of one name that are left, wherever they stand."""
    blocks = SequenceMatcher(None, tokens_a, tokens_b, autojunk=False).get_matching_blocks()
    pairs = {block.a + at: block.b + at for block in blocks for at in range(block.size)}
    taken = set(pairs.values())
    left = {name: at for at, name in enumerate(names_b) if at not in taken}
    for at, name in enumerate(names_a):
        if at not in pairs and name in left:
            pairs[at] = left.pop(name)
    only_a = [at for at in range(len(names_a)) if at not in pairs]
    return Alignment(sorted(pairs.items()), only_a, sorted(left.values()))
