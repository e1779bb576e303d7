"""Loss criteria: modules that judge a model's output. They are called beside the model, and are no root."""

import re
from collections.abc import Iterable, Mapping

from torch import Tensor, nn

from tdbg.runtime.identity_keys import IdentityKeys
from tdbg.runtime.torch_compat import LOSSES

NAMED = re.compile(r"(loss|criterion)(es|s|a)?$", re.IGNORECASE)
DEEPEST = 4
_known: IdentityKeys[nn.Module, bool] = IdentityKeys()


def is_criterion(module: nn.Module, args: Iterable[object], kwargs: Mapping[str, object]) -> bool:
    """True if a module that is called is a loss, rather than a model or a model wrapped together with its loss.

    One that is called so and holds layers of its own is a loss if it is given what a model computed: a wrapper is given
    the batch. Cost: 0.3 us, and once a look at the module.
    """
    known = _known.get(module)
    if known is None:
        known = _by_structure(module)
        if known is None:  # only a call with gradients can tell
            known = any(_is_computed(value) for value in (*args, *kwargs.values()))
            if not known:
                return False
        _known[module] = known
    return known


def _by_structure(module: nn.Module, depth: int = 0) -> bool | None:
    """What the module itself tells: True, False, or None where it does not."""
    if isinstance(module, LOSSES):
        return True
    children = list(module.children())
    if NAMED.search(type(module).__name__):
        return None if any(next(child.parameters(), None) is not None for child in children) else True
    own = next(module.parameters(recurse=False), None) is not None
    return bool(
        children and not own and depth < DEEPEST and all(_by_structure(child, depth + 1) is True for child in children)
    )


def _is_computed(value: object) -> bool:
    if isinstance(value, dict):
        return any(map(_is_computed, value.values()))
    if isinstance(value, list | tuple):
        return any(map(_is_computed, value))
    return isinstance(value, Tensor) and value.grad_fn is not None
