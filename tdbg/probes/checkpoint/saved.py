"""What goes into a checkpoint and comes out of it, as far as names, sizes and whole numbers tell. Nothing is opened."""

import os
from collections.abc import Mapping
from typing import Any

from torch import Tensor, nn

from tdbg.runtime.code_places import short_path

STEP_KEYS = ("step", "steps", "global_step", "iteration", "iter", "it", "num_updates", "epoch")
MAX_NAMES = 8
MAX_FILES = 1000  # of a distributed checkpoint whose sizes are added up
MAX_ITEMS = 10_000  # of a checkpoint that are looked at
MB = 1e6

# what the functions were given


def torch_save(result: object, args: tuple[object, ...], kwargs: dict[str, object]) -> tuple[object, object]:
    return _get_argument(args, kwargs, 1, "f"), _get_argument(args, kwargs, 0, "obj")


def torch_load(result: object, args: tuple[object, ...], kwargs: dict[str, object]) -> tuple[object, object]:
    return _get_argument(args, kwargs, 0, "f"), result


def safetensors_save(result: object, args: tuple[object, ...], kwargs: dict[str, object]) -> tuple[object, object]:
    what = args[0] if args else kwargs.get("tensors", kwargs.get("model"))
    return _get_argument(args, kwargs, 1, "filename"), what


def safetensors_load(result: object, args: tuple[object, ...], kwargs: dict[str, object]) -> tuple[object, object]:
    return _get_argument(args, kwargs, 0, "filename"), result


def safetensors_load_model(
    result: object, args: tuple[object, ...], kwargs: dict[str, object]
) -> tuple[object, object]:
    return _get_argument(args, kwargs, 1, "filename"), None


def distributed_arguments(result: object, args: tuple[object, ...], kwargs: dict[str, object]) -> tuple[object, object]:
    storage = kwargs.get("storage_writer") or kwargs.get("storage_reader")
    return kwargs.get("checkpoint_id") or getattr(storage, "path", None), _get_argument(args, kwargs, 0, "state_dict")


def lightning_save(result: object, args: tuple[object, ...], kwargs: dict[str, object]) -> tuple[object, object]:
    return _get_argument(args, kwargs, 2, "path"), _get_argument(args, kwargs, 1, "checkpoint")


def lightning_load(result: object, args: tuple[object, ...], kwargs: dict[str, object]) -> tuple[object, object]:
    return _get_argument(args, kwargs, 1, "path"), result


def _get_argument(args: tuple[object, ...], kwargs: dict[str, object], place: int, name: str) -> object:
    return args[place] if len(args) > place else kwargs.get(name)


# what is in them


def format_path(where: object) -> str:
    """A path as seen from the working directory; empty for something in memory."""
    if not isinstance(where, str | os.PathLike):
        where = getattr(where, "name", None)
    return short_path(os.fspath(where)) if isinstance(where, str | os.PathLike) else ""


def measure_size_mb(where: object) -> float | None:
    """The size of a file, of all files in a folder, or of what was written into a file object."""
    try:
        if not isinstance(where, str | os.PathLike):
            return round(where.tell() / MB, 3) if hasattr(where, "tell") else None
        if not os.path.isdir(where):
            return round(os.stat(where).st_size / MB, 3)
        with os.scandir(os.fspath(where)) as entries:
            files = [entry for entry, _ in zip(entries, range(MAX_FILES), strict=False) if entry.is_file()]
            return round(sum(entry.stat().st_size for entry in files) / MB, 3)
    except (OSError, ValueError):  # gone already, or a closed file object
        return None


def read_step_counters(what: object) -> dict[str, int]:
    """The counters at the top of a checkpoint: step, epoch and the like."""
    if not isinstance(what, Mapping):
        return {}
    found = {name: what.get(name) for name in STEP_KEYS if name in what}
    return {name: value for name, value in found.items() if isinstance(value, int) and not isinstance(value, bool)}


def count_tensors(what: object) -> int | None:
    """Tensors in a checkpoint, as far as they are looked for; a module's own. None for anything else."""
    if isinstance(what, nn.Module):
        return sum(1 for _ in what.parameters()) + sum(1 for _ in what.buffers())
    if not isinstance(what, Mapping | Tensor):
        return None
    todo: list[Any] = [what]
    found = looked = 0
    while todo and looked < MAX_ITEMS:
        item = todo.pop()
        looked += 1
        if isinstance(item, Tensor):
            found += 1
        elif isinstance(item, Mapping):
            todo += list(item.values())[:MAX_ITEMS]
        elif isinstance(item, list | tuple):
            todo += item[:MAX_ITEMS]
    return found


def list_entries(what: object) -> list[str] | None:
    if isinstance(what, Mapping):
        return [str(name) for name, _ in zip(what, range(MAX_NAMES), strict=False)]
    return [type(what).__name__] if what is not None else None


def is_optimizer_state(part: Mapping[object, object]) -> bool:
    return "param_groups" in part and "state" in part


def holds_averages(part: Mapping[object, object]) -> bool:
    """True for the state of an optimizer that keeps something of its parameters: without it nothing is lost."""
    return is_optimizer_state(part) and bool(part["state"])


def is_scheduler_state(part: Mapping[object, object]) -> bool:
    return isinstance(part.get("last_epoch"), int) and "param_groups" not in part


# words
