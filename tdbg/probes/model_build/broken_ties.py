"""An embedding and an output layer that are to share one weight, and hold two."""

from collections.abc import Sequence
from itertools import islice
from typing import NamedTuple

from torch import Tensor, nn

MAX_PAIRS = 16
LEAST_NUMEL = 64  # of a weight: fewer elements may be equal by chance


class Pair(NamedTuple):
    """An embedding and a linear layer with weights of one shape: the places of both, and their names."""

    embedding: int
    head: int
    names: tuple[str, str]


def find_pairs(root: nn.Module, held: Sequence[Tensor], names: Sequence[str]) -> list[Pair]:
    """The pairs that may have been meant to share a weight.

    A weight that an embedding and a linear layer do share is in no pair: a copy of such a model (a teacher, an average)
    holds equal weights on purpose.
    """
    embeddings = {id(m.weight) for m in root.modules() if isinstance(m, nn.Embedding)}
    heads = {id(m.weight) for m in root.modules() if isinstance(m, nn.Linear)}
    shared = embeddings & heads
    first = [at for at, one in enumerate(held) if id(one) in embeddings - shared and one.numel() >= LEAST_NUMEL]
    second = [at for at, one in enumerate(held) if id(one) in heads - shared]
    pairs = (Pair(e, h, (names[e], names[h])) for e in first for h in second if held[e].shape == held[h].shape)
    return list(islice(pairs, MAX_PAIRS))


def compare_pairs(pairs: Sequence[Pair], rows: Tensor) -> Tensor:
    """For each pair 1 where the samples of both weights are equal and not constant, else 0."""
    left, right = rows[[pair.embedding for pair in pairs]], rows[[pair.head for pair in pairs]]
    return ((left == right).all(1) & (left.std(1) > 0)).float()


def expects_tied_weights(root: nn.Module) -> bool:
    """True if the configuration of the model, as Hugging Face's have one, says that both share a weight."""
    config = root.__dict__.get("config")
    return getattr(config, "tie_word_embeddings", False) is True
