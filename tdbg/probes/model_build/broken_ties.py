"""An embedding and an output layer that are to share one weight, and hold two."""

from collections.abc import Sequence
from itertools import islice
from typing import Any, NamedTuple

from torch import Tensor, nn

from tdbg.core.guard import guarded

MAX_PAIRS = 64
LEAST_NUMEL = 64  # of a weight: fewer elements may be equal by chance


class Pair(NamedTuple):
    """An embedding and an output layer with a weight each: the places of both, and their names.

    declared: the model's configuration ties them, and the model itself names these two.
    """

    embedding: int
    head: int
    names: tuple[str, str]
    declared: bool = False


def find_pairs(root: nn.Module, held: Sequence[Tensor], names: Sequence[str]) -> list[Pair]:
    """The pairs that may have been meant to share a weight: those that the model declares, and those of one shape.

    Copies of a layer are of one kind and in no pair. A weight that an embedding and another layer do share is in no pair
    either: a copy of such a model (a teacher, an average) holds equal weights on purpose.
    """
    declared = _find_declared(root, held)
    embeddings, heads = _find_weights(root, embed=True), _find_weights(root, embed=False)
    shared = embeddings & heads
    first = [at for at, one in enumerate(held) if id(one) in embeddings - shared and one.numel() >= LEAST_NUMEL]
    second = [at for at, one in enumerate(held) if id(one) in heads - shared]
    others = ((e, h) for e in first for h in second if held[e].shape == held[h].shape and (e, h) not in declared)
    found = [*declared, *islice(others, MAX_PAIRS)]
    return [Pair(e, h, (names[e], names[h]), declared=(e, h) in declared) for e, h in found]


def compare_pairs(pairs: Sequence[Pair], rows: Tensor) -> Tensor:
    """For each pair 1 where the samples of both weights are equal and not constant, else 0."""
    left, right = rows[[pair.embedding for pair in pairs]], rows[[pair.head for pair in pairs]]
    return ((left == right).all(1) & (left.std(1) > 0)).float()


def expects_tied_weights(root: nn.Module) -> bool:
    """True if the configuration of the model, as Hugging Face's have one, says that both share a weight."""
    return _read_tie_setting(root) is True


def _find_weights(root: nn.Module, *, embed: bool) -> set[int]:
    """The matrices named ``weight`` of embeddings, or those of all other layers, by identity."""
    weights = [(m, m._parameters.get("weight")) for m in root.modules()]
    return {id(one) for m, one in weights if one is not None and one.dim() == 2 and _is_embedding(m) == embed}


def _is_embedding(module: nn.Module) -> bool:
    """True for torch's own embeddings, and for layers of the program that are called so."""
    name = type(module).__name__.lower()
    return isinstance(module, nn.Embedding | nn.EmbeddingBag) or ("embed" in name and "unembed" not in name)


def _find_declared(root: nn.Module, held: Sequence[Tensor]) -> list[tuple[int, int]]:
    """The places of weights that a model in it ties by its configuration, and names by Hugging Face's two methods.

    A model inside another one may have a configuration of its own; both must say so.
    """
    places = {id(one): at for at, one in enumerate(held)}
    found: dict[tuple[int, int], bool] = {}
    for module in root.modules():
        setting = _read_tie_setting(module)
        pair = _read_declared(module, places) if setting is not None else None
        if pair is not None:
            found[pair] = found.get(pair, True) and setting is True
    return [pair for pair, is_tied in found.items() if is_tied]


def _read_tie_setting(module: nn.Module) -> bool | None:
    """What the configuration of a module says; None where it says nothing."""
    with guarded("a configuration of the program's may raise anything", program_code=True):
        setting = getattr(module.__dict__.get("config"), "tie_word_embeddings", None)
        return setting if isinstance(setting, bool) else None
    return None


def _read_declared(module: Any, places: dict[int, int]) -> tuple[int, int] | None:
    """The places of the two weights that a module names, if they are two."""
    with guarded("methods of the program's may raise anything", program_code=True):
        layers = module.get_input_embeddings(), module.get_output_embeddings()
        first, second = (places.get(id(getattr(layer, "weight", None))) for layer in layers)
        if first is not None and second is not None and first != second:
            return first, second
    return None
