"""A model as a tree of text: classes, parameter counts and where each module was built, in a bounded number of lines."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from torch import nn
from torch.nn.parameter import is_lazy

from tdbg.core.tables import format_count

MAX_DEPTH = 4
MAX_LINES = 40
INDENT = "  "


@dataclass(frozen=True, slots=True)
class Size:
    """What stands below a module; a shared parameter is counted once."""

    modules: int
    parameters: int
    trainable: int
    depth: int


def measure_size(module: nn.Module) -> Size:
    """Count what stands below a module, itself included. A parameter without a shape yet counts as nothing."""
    found = [p for p in module.parameters() if not is_lazy(p)]
    paths = [path for path, _ in module.named_modules()]
    return Size(
        modules=len(paths),
        parameters=sum(p.numel() for p in found),
        trainable=sum(p.numel() for p in found if p.requires_grad),
        depth=max(path.count(".") + 1 if path else 0 for path in paths),
    )


def render_tree(root: nn.Module, lines: Mapping[int, str]) -> list[str]:
    """The tree, a line a module: siblings alike are one line, and what is too deep or too much is counted.

    lines: where modules were built, by id.
    """
    text: list[str] = []
    for depth, label, module in _iter_tree(root, 1):
        if len(text) == MAX_LINES:
            text.append(f"{INDENT}... ({format_count(measure_size(root).modules, 'module')} in all)")
            break
        built = lines.get(id(module), "")
        text.append(f"{INDENT * depth}{label} {measure_size(module).parameters:,}" + (f"  {built}" if built else ""))
    return text


def _iter_tree(module: nn.Module, depth: int) -> Iterator[tuple[int, str, nn.Module]]:
    """Children before their siblings' children, alike ones together: ``0-3 Block``."""
    children = [(name, child) for name, child in module._modules.items() if child is not None]
    index = 0
    while index < len(children):
        name, child = children[index]
        last = index
        while name.isdigit() and last + 1 < len(children) and _is_alike(child, children[last + 1][1]):
            last += 1
        label = name if last == index else f"{name}-{children[last][0]}"
        more = f" x{last - index + 1}" if last > index else ""
        yield depth, f"{label} {type(child).__name__}{more}", child
        if depth < MAX_DEPTH:
            yield from _iter_tree(child, depth + 1)
        index = last + 1


def _is_alike(one: nn.Module, other: nn.Module) -> bool:
    """True for modules of one class with as many parameters and modules: layers of a stack."""
    return (
        type(one) is type(other) and bool(one._modules or one._parameters) and measure_size(one) == measure_size(other)
    )
