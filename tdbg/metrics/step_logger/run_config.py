"""The configuration of a run as flat plain values: the program's own, and facts about data and model."""

import sys
from argparse import Namespace
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import fields, is_dataclass
from itertools import islice
from typing import Any

MAX_VALUES = 5_000
MAX_LETTERS = 2_000  # of a value
MAX_DEPTH = 20
PLAIN = (str, int, float, bool, type(None))


def run_config(config: object = None, *, data: object = None, model: object = None) -> dict[str, object]:
    """One flat mapping: the config's values, ``data.*`` and ``model.*``.

    config: a CfgNode of yacs, a config of OmegaConf, a namespace of argparse, a dataclass or a mapping. data: a mapping,
    or a dataset or loader (or names of several): class and length. model: a mapping, or a module: class, number of
    parameters, and of those that are trained.
    """
    found = plain_config(config)
    found |= {f"data.{name}": value for name, value in _about_data(data).items()}
    return found | {f"model.{name}": value for name, value in _about_model(model).items()}


def plain_config(config: object) -> dict[str, object]:
    """A config of any kind, flat: ``{"SOLVER.LR": 0.1}``. What is no plain value is kept as its text."""
    found: dict[str, Any] = {}
    if config is not None:
        _flatten_config(config, "", found, 0)
    return found


def _flatten_config(value: object, path: str, found: dict[str, object], depth: int) -> None:
    if len(found) >= MAX_VALUES:
        return
    nested = _extract_mapping(value)
    if nested is not None and depth < MAX_DEPTH:
        for name, inner in nested.items():
            _flatten_config(inner, f"{path}.{name}" if path else str(name), found, depth + 1)
    elif path:
        found[path] = _to_plain(value)


def _extract_mapping(value: object) -> Mapping[Any, object] | None:
    """The names in it; None for a leaf."""
    conf = sys.modules.get("omegaconf")
    if conf is not None and conf.OmegaConf.is_dict(value):
        made = conf.OmegaConf.to_container(value, resolve=False)
        return made if isinstance(made, Mapping) else None
    if isinstance(value, Mapping):  # a CfgNode of yacs is one
        return value
    if isinstance(value, Namespace):
        return vars(value)
    if is_dataclass(value) and not isinstance(value, type):
        return {one.name: getattr(value, one.name) for one in fields(value)}
    return None


def _to_plain(value: object) -> object:
    if isinstance(value, PLAIN):
        return value[:MAX_LETTERS] if isinstance(value, str) else value
    if isinstance(value, list | tuple) and all(isinstance(one, PLAIN) for one in islice(value, MAX_VALUES)):
        return list(value[:MAX_VALUES])
    return str(value)[:MAX_LETTERS]


def _about_data(data: Any) -> dict[str, object]:
    if data is None:
        return {}
    if isinstance(data, Mapping):
        about = {name: _about_data(one) if _is_data(one) else one for name, one in data.items()}
        return plain_config(about)
    found: dict[str, Any] = {"class": type(data).__name__}
    with suppress(TypeError, NotImplementedError):  # a stream has none
        found["length"] = len(data)
    if (batch_size := getattr(data, "batch_size", None)) is not None:
        found["batch_size"] = batch_size
    inner = getattr(data, "dataset", None)
    return found | {f"dataset.{name}": value for name, value in _about_data(inner).items()}


def _is_data(value: object) -> bool:
    return (
        hasattr(value, "__getitem__")
        and hasattr(value, "__len__")
        and not isinstance(value, Mapping | list | tuple | str)
    ) or hasattr(value, "dataset")


def _about_model(model: object) -> dict[str, object]:
    if model is None:
        return {}
    if isinstance(model, Mapping) or not hasattr(model, "parameters"):
        return plain_config(model)
    sizes = [(one.numel(), one.requires_grad) for one in model.parameters()]
    trained = sum(size for size, is_trained in sizes if is_trained)
    return {
        "class": type(model).__name__,
        "parameters": sum(size for size, _ in sizes),
        "trained_parameters": trained,
    }
