"""Layers by name: one by its path, many by a pattern."""

import difflib
import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any

import torch
from torch import nn

from tdbg.core.errors import TdbgError
from tdbg.runtime.root_modules import WRAPPER_PARTS, clean_path, unwrap_module

SHOWN = 8  # names that an error lists


def unwrap_all(module: nn.Module) -> nn.Module:
    """The user's module inside DDP, DataParallel, FSDP, torch.compile and checkpoint wrappers."""
    while not isinstance(module, torch.jit.ScriptModule):
        found = unwrap_module(module)
        children = found.__dict__.get("_modules", {})
        found = next((children[part] for part in WRAPPER_PARTS if isinstance(children.get(part), nn.Module)), found)
        if found is module:
            break
        module = found
    return module


def get_layer_by_name(model: nn.Module, name: str) -> nn.Module:
    """The module at a dotted path (``layers.4.attn``), as the user wrote it: wrappers are seen through.

    A number indexes a Sequential, ModuleList or list, also one with named children, from its end if negative. An
    empty path is the model itself. A path that state_dict spells with ``module.`` or ``_orig_mod.`` is understood.
    Raises TdbgError where there is no such module: a parameter, a buffer or a method is none.
    """
    current: Any = unwrap_all(model)
    parts = [part for part in clean_path(name).split(".") if part]
    if parts and parts[0] == "module" and _find_child(current, "module") is None:
        parts = parts[1:]
    for depth, part in enumerate(parts):
        found = _find_child(current, part)
        last = depth == len(parts) - 1
        if not isinstance(found, nn.Module) and (last or not isinstance(found, list | tuple | Mapping)):
            raise _not_found(model, name, ".".join(parts[:depth]), current, part, found)
        current = unwrap_all(found) if isinstance(found, nn.Module) else found
    module: nn.Module = current
    return module


def _find_child(current: object, part: str) -> object:
    """What stands under this name or number; None if nothing does."""
    if isinstance(current, nn.Module):
        if part in current._modules:
            return current._modules[part]
        found = getattr(current, part, None)
        if found is not None or not isinstance(current, nn.Sequential | nn.ModuleList):
            return found
    elif isinstance(current, Mapping):
        return current.get(part)
    return _get_item_by_index(current, part)


def _get_item_by_index(current: Any, part: str) -> object:
    if not re.fullmatch(r"-?\d+", part):
        return None
    try:
        return current[int(part)]
    except IndexError:
        return None


def _not_found(model: nn.Module, name: str, path: str, current: object, part: str, found: object) -> TdbgError:
    where = path or "the model"
    if found is not None:
        return TdbgError(
            f"no layer is named {name!r}: {part!r} of {where} is a {type(found).__name__}", _suggest_names(model, name)
        )
    children = list(current._modules) if isinstance(current, nn.Module) else []
    holds = f"it holds {_format_names(children)}" if children else "it holds no layers"
    return TdbgError(
        f"no layer is named {name!r}: {where} ({type(current).__name__}) has no {part!r}; {holds}",
        _suggest_names(model, name),
    )


def _suggest_names(model: nn.Module, name: str) -> str:
    """The names most like this one, as a hint."""
    paths = [path for path, _ in layers_of(model) if path]
    near = difflib.get_close_matches(name, paths, n=3, cutoff=0.5)
    if near:
        return f"did you mean {' or '.join(near)}?"
    return f"layers: {_format_names(paths)}"


def _format_names(names: list[str]) -> str:
    more = f", ... ({len(names)} in all)" if len(names) > SHOWN else ""
    return ", ".join(names[:SHOWN]) + more


def layers_of(model: nn.Module) -> Iterator[tuple[str, nn.Module]]:
    """Every module with its path, the model itself first (its path is empty); wrappers are seen through.

    A module that stands at several places comes with each of its paths.
    """
    yield from _iter_modules("", model, ())


def place_of(module: nn.Module, tops: Iterable[nn.Module]) -> tuple[nn.Module, str]:
    """The model that holds a module which is called by itself, and its path there; itself and an empty path if none."""
    wanted = unwrap_all(module)
    for top in tops:
        for path, found in layers_of(top):
            if found is wanted:
                return (top, path) if path else (module, "")
    return module, ""


def has_forward(module: nn.Module) -> bool:
    """False for a module that only holds others (ModuleList, ModuleDict): it cannot be called and has no output."""
    found = getattr(type(module), "forward", None)
    return "forward" in module.__dict__ or found is not nn.Module.forward


def is_plain_sequence(module: nn.Module) -> bool:
    """True for a Sequential that inherits its forward: many programs call only its parts, one by one."""
    return isinstance(module, nn.Sequential) and type(module).forward is nn.Sequential.forward


def scripted_parts(model: nn.Module) -> set[str]:
    """Paths of the modules inside scripted ones: they run as compiled code, past all hooks."""
    tops = [path for path, module in layers_of(model) if isinstance(module, torch.jit.ScriptModule)]
    return {path for path in tops if any(path != top and (not top or path.startswith(f"{top}.")) for top in tops)}


def _iter_modules(path: str, module: nn.Module, around: tuple[int, ...]) -> Iterator[tuple[str, nn.Module]]:
    module = unwrap_all(module)
    yield path, module
    if id(module) in around:  # a circle
        return
    for name, child in module._modules.items():
        if child is not None:
            yield from _iter_modules(f"{path}.{name}" if path else name, child, (*around, id(module)))


def select(model: nn.Module, pattern: str) -> dict[str, nn.Module]:
    """The modules whose path matches a pattern, by path, in the order in which the model holds them.

    pattern: a path in which ``*`` and ``?`` stand for letters of one part, ``[abc]`` for one of these, and a part
        ``**`` for any number of parts, none included; or ``re:`` and a regular expression for the whole path.
    A module that stands at several places is given once, under the first path that matches.
    Raises TdbgError if nothing matches, with the nearest names, or if the expression is not one.
    """
    matches = _build_matcher(pattern)
    found: dict[int, tuple[str, nn.Module]] = {}
    for path, module in layers_of(model):
        if matches(path) and id(module) not in found:
            found[id(module)] = path, module
    if not found:
        raise TdbgError(f"no layer matches {pattern!r}", _suggest_names(model, re.sub(r"[*?]+\.?", "", pattern)))
    return dict(found.values())


def places_below(model: nn.Module, pattern: str) -> dict[str, dict[str, nn.Module]]:
    """Where a pattern would match if a part of the model were the model: path of the part -> the modules, by whole path.

    The model itself is no such part: that is what `select` looks at.
    """
    matches = _build_matcher(pattern)
    places: dict[str, dict[int, tuple[str, nn.Module]]] = {}
    for path, module in layers_of(model):
        parts = path.split(".")
        for cut in range(1, len(parts)):
            if matches(".".join(parts[cut:])):
                places.setdefault(".".join(parts[:cut]), {}).setdefault(id(module), (path, module))
    return {place: dict(found.values()) for place, found in places.items()}


def _build_matcher(pattern: str) -> Callable[[str], object]:
    """What tells whether a path matches."""
    if pattern.startswith("re:"):
        try:
            return re.compile(pattern[3:]).fullmatch
        except re.error as error:
            raise TdbgError(f"{pattern[3:]!r} is not a regular expression: {error}", "see Python's re syntax") from None
    parts = [part for part in clean_path(pattern).split(".") if part]
    # Each part brings the dot before it, so that `**` can be nothing at all.
    whole = re.compile("".join(r"(?:\.[^.]+)*" if part == "**" else rf"\.{_translate_part(part)}" for part in parts))
    return lambda path: whole.fullmatch(f".{path}" if path else "")


def _translate_part(part: str) -> str:
    """The regular expression for one part of a pattern."""
    kinds = {"*": "[^.]*", "?": "[^.]"}
    words = re.split(r"(\*|\?|\[[^\]]+\])", part)
    return "".join(
        kinds.get(word) or (_translate_set(word) if word[:1] == "[" != word else re.escape(word)) for word in words
    )


def _translate_set(word: str) -> str:
    """``[abc]``, ``[0-3]`` or ``[!a]`` of a pattern."""
    inside = word[1:-1].replace("\\", r"\\").replace("^", r"\^")
    return f"[^.{inside[1:]}]" if inside.startswith("!") else f"[{inside}]"
