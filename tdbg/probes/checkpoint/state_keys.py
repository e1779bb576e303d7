"""Keys of a model against keys of a state dict: prefixes, renamings, other shapes. Names and shapes alone are kept."""

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from torch import Tensor, nn
from torch.nn.parameter import is_lazy

Shape = tuple[int, ...]
Shapes = dict[str, Shape]

MAX_KEYS = 50_000
MAX_PARTS = 12  # of a dotted name
FEW = 2  # so many keys under one prefix are no accident


@dataclass(slots=True)
class Difference:
    """What tells two sets of keys apart. ``wanted``: the model's (or the later) ones, ``given``: the others."""

    wanted: int = 0
    given: int = 0
    missing: list[str] = field(default_factory=list)  # wanted and not given
    unexpected: list[str] = field(default_factory=list)  # given and not wanted
    resized: list[str] = field(default_factory=list)  # in both, with another shape: "name [3] to [4]"
    prefix: str = ""  # that given keys carry, and wanted ones do not
    lacks: str = ""  # that given keys lack
    prefixed: int = 0  # keys that are equal but for it
    renamed: list[str] = field(default_factory=list)  # "given -> wanted": same ending and shape, one of a kind

    @property
    def placed_count(self) -> int:
        """Given keys that have their place."""
        return self.given - len(self.unexpected)


def collect_shapes(mapping: Mapping[object, object]) -> Shapes:
    """The shapes of the tensors in a flat mapping, by name."""
    return {
        str(name): tuple(value.shape)
        for name, value in list(mapping.items())[:MAX_KEYS]
        if isinstance(value, Tensor) and isinstance(name, str)
    }


def collect_module_shapes(module: nn.Module) -> Shapes:
    """The shapes of what a module's state dict holds. ``state_dict`` is not called: its hooks may communicate."""
    found = {name: tuple(p.shape) for name, p in module.named_parameters(remove_duplicate=False) if not is_lazy(p)}
    for path, owner in module.named_modules(remove_duplicate=False):
        for name, buffer in owner._buffers.items():
            if buffer is not None and not is_lazy(buffer) and name not in owner._non_persistent_buffers_set:
                found[f"{path}.{name}" if path else name] = tuple(buffer.shape)
    return found


def list_absent_names(these: Shapes, those: Shapes) -> list[str]:
    """The names that only the first has, in their order."""
    return [name for name in these if name not in those]


def compare_keys(wanted: Shapes, given: Shapes, missing: Iterable[str], unexpected: Iterable[str]) -> Difference:
    """Explain missing and unexpected keys. Cost: some us a key that is either."""
    found = Difference(len(wanted), len(given), list(missing), list(unexpected))
    found.resized = [
        f"{name} {list(given[name])} to {list(shape)}"
        for name, shape in wanted.items()
        if name in given and given[name] != shape
    ]
    carrying = _count_prefixes(found.unexpected, given, set(found.missing), wanted)
    lacking = _count_prefixes(found.missing, wanted, set(found.unexpected), given)
    (prefix, carried), (lacks, lacked) = _most_common_prefix(carrying), _most_common_prefix(lacking)
    if carried >= max(lacked, FEW):
        found.prefix, found.prefixed = prefix, sum(name.startswith(prefix) for name in found.unexpected)
    elif lacked >= FEW:
        found.lacks, found.prefixed = lacks, sum(name.startswith(lacks) for name in found.missing)
    if not found.prefixed:
        found.renamed = _find_renamed_keys(found, wanted, given)
    return found


def _count_prefixes(longer: list[str], shapes: Shapes, shorter: set[str], other: Shapes) -> Counter[str]:
    """The beginnings that, taken off, turn a longer name into a shorter one of the same shape."""
    found: Counter[str] = Counter()
    if not shorter:
        return found
    for name in longer:
        at = name.find(".")
        for _ in range(MAX_PARTS):
            if at < 0:
                break
            rest = name[at + 1 :]
            if rest in shorter and shapes.get(name) == other.get(rest):
                found[name[: at + 1]] += 1
            at = name.find(".", at + 1)
    return found


def _most_common_prefix(found: Counter[str]) -> tuple[str, int]:
    return found.most_common(1)[0] if found else ("", 0)


def _find_renamed_keys(found: Difference, wanted: Shapes, given: Shapes) -> list[str]:
    """Pairs with the same last part and shape, where there is one such key on either side."""
    free: dict[tuple[str, Shape], list[str]] = {}
    for name in found.unexpected:
        if name in given:
            free.setdefault((name.rpartition(".")[2], given[name]), []).append(name)
    sought: dict[tuple[str, Shape], list[str]] = {}
    for name in found.missing:
        if name in wanted:
            sought.setdefault((name.rpartition(".")[2], wanted[name]), []).append(name)
    return [
        f"{free[key][0]} -> {names[0]}"
        for key, names in sought.items()
        if len(names) == 1 and key in free and len(free[key]) == 1
    ]
