"""`--capture batch`: what a loader gave for a pass, as the inputs and labels of a datapoint."""

import inspect
from collections.abc import Callable, Iterator, Mapping
from dataclasses import fields, is_dataclass
from typing import TYPE_CHECKING, Any

from torch import nn

from tdbg.debuggers.batch_matching import shares_tensors
from tdbg.runtime.root_modules import unwrap_module

if TYPE_CHECKING:
    from tdbg.runtime.rerun import Call

LABELS = frozenset(("labels", "label", "targets", "target", "y"))
META = "meta_info"
MAX_DEPTH = 8
IsInput = Callable[[object], bool]


def copy_structure(value: object, depth: int = 0) -> Any:
    """The same tensors in containers of their own: programs take fields out of a batch, and replace others."""
    if depth >= MAX_DEPTH:
        return value
    if isinstance(value, Mapping):
        return {key: copy_structure(item, depth + 1) for key, item in value.items()}
    if isinstance(value, tuple) and hasattr(value, "_asdict"):
        return {key: copy_structure(item, depth + 1) for key, item in value._asdict().items()}
    if isinstance(value, list | tuple):
        return [copy_structure(item, depth + 1) for item in value]
    if is_dataclass(value) and not isinstance(value, type):
        return {item.name: copy_structure(getattr(value, item.name, None), depth + 1) for item in fields(value)}
    return value


def find_parts(content: object, module: nn.Module, call: "Call") -> dict[str, object]:
    """``inputs``, and ``labels`` and ``meta_info`` if there are any. content: of the batch; None where it is not known.

    Labels are what is named so, else what the model was not given. Without a batch these are the call's arguments.
    """
    arguments = name_arguments(module, call)
    if content is None:
        only = next(iter(arguments.values())) if len(arguments) == 1 else None
        return split_batch(only, is_input=_is_given) if isinstance(only, Mapping) else _split_arguments(arguments)
    given = [value for name, value in arguments.items() if name.lower() not in LABELS]
    return split_batch(content, lambda value: shares_tensors(value, given))


def _is_given(value: object) -> bool:
    """Of what the model was given, every piece is an input but those that are named as labels."""
    return True


def name_arguments(module: nn.Module, call: "Call") -> dict[str, object]:
    """The arguments of a call by the names that the model's ``forward`` has for them, or by their places."""
    try:
        bound = inspect.signature(unwrap_module(module).forward).bind(*call.args, **call.kwargs)
    except (TypeError, ValueError):
        return {**{str(place): value for place, value in enumerate(call.args)}, **call.kwargs}
    return dict(_iter_arguments(bound))


def _iter_arguments(bound: inspect.BoundArguments) -> Iterator[tuple[str, object]]:
    """Each by its name; those of ``*args`` by their places, of ``**kwargs`` by their own names."""
    for name, value in bound.arguments.items():
        kind = bound.signature.parameters[name].kind
        if kind is inspect.Parameter.VAR_KEYWORD:
            yield from value.items()
        elif kind is inspect.Parameter.VAR_POSITIONAL:
            yield from ((str(place), item) for place, item in enumerate(value))
        else:
            yield name, value


def split_batch(content: Any, is_input: IsInput) -> dict[str, object]:
    """The parts of a batch. is_input: True for a piece of it that the model was given."""
    if isinstance(content, Mapping):
        return _split_mapping(content, is_input)
    if isinstance(content, list) and len(content) > 1:
        return _split_items(content, is_input)
    return {"inputs": content}


def _split_mapping(content: Mapping[Any, object], is_input: IsInput) -> dict[str, object]:
    fields_of = {name: value for name, value in content.items() if name != META}
    labels = [name for name in fields_of if isinstance(name, str) and name.lower() in LABELS]
    if not labels:
        given = [name for name, value in fields_of.items() if is_input(value)]
        labels = [name for name in fields_of if given and name not in given]
    inputs = {name: value for name, value in fields_of.items() if name not in labels}
    found: dict[str, object] = {"inputs": inputs["inputs"] if list(inputs) == ["inputs"] else inputs}
    if labels:
        found["labels"] = content[labels[0]] if len(labels) == 1 else {name: content[name] for name in labels}
    return {**found, META: content[META]} if META in content else found


def _split_items(content: list[object], is_input: IsInput) -> dict[str, object]:
    given = [place for place, value in enumerate(content) if is_input(value)]
    if len(given) == len(content):
        return {"inputs": content}
    given = given or list(range(len(content) - 1))
    rest = [value for place, value in enumerate(content) if place not in given]
    return {"inputs": _unwrap_single([content[place] for place in given]), "labels": _unwrap_single(rest)}


def _split_arguments(arguments: Mapping[str, object]) -> dict[str, object]:
    labels = {name: value for name, value in arguments.items() if name.lower() in LABELS and value is not None}
    inputs = {name: value for name, value in arguments.items() if name not in labels}
    found: dict[str, object] = {"inputs": next(iter(inputs.values())) if len(inputs) == 1 else inputs}
    return {**found, "labels": _unwrap_single(list(labels.values()))} if labels else found


def _unwrap_single(values: list[object]) -> object:
    return values[0] if len(values) == 1 else values
