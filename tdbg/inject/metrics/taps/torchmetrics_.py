"""What torchmetrics compute: the value of each ``compute()``, not those of single batches."""

import threading
import weakref
from collections.abc import Callable, Mapping
from types import ModuleType
from typing import Any

from tdbg.inject.metrics.taps import Tap

MAX_NAMES = 1000


def arrive(module: ModuleType, tap: Tap) -> None:
    """The program has imported torchmetrics; its metrics and its collections come one after the other."""
    metric = getattr(module, "Metric", None)
    if metric is not None and metric.__module__ == module.__name__:
        _tap_metrics(metric, tap)
    if hasattr(module, "MetricCollection"):
        _tap_collections(module.MetricCollection, tap)


class _Depth(threading.local):
    """In a collection, whose members' values come with its own, or in a metric that computes others."""

    inside = 0


_depth = _Depth()


def _tap_metrics(metric: object, tap: Tap) -> None:
    """Each instance wraps its ``compute`` as it is made; what it wraps is heard."""
    names = _Names(tap)

    def build_wrapper(original: Callable[..., object]) -> Callable[..., object]:
        def _wrap_compute(self: object, compute: object) -> object:
            wrapped = original(self, compute)
            return tap.feed.guard.call_guarded(_listen_to_compute, self, wrapped, names, tap) or wrapped

        return _wrap_compute

    tap.patches.wrap_attribute(metric, "_wrap_compute", build_wrapper)


def _listen_to_compute(metric: Any, wrapped: Any, names: "_Names", tap: Tap) -> Callable[..., object]:
    import functools

    import torch

    from tdbg.runtime.compiler import hide_from_compiler

    ref, is_compiling = weakref.ref(metric), torch.compiler.is_compiling

    def record_value(args: tuple[object, ...], kwargs: dict[str, object], value: object) -> None:
        owner = ref()
        if owner is None or _depth.inside or not getattr(owner, "_should_unsync", True):  # False: of a single batch
            return
        name = names.get_name(owner)
        data = {f"{name}.{key}": item for key, item in value.items()} if isinstance(value, Mapping) else {name: value}
        tap.feed.record_logged("torchmetrics", data)

    ours = tap.wrap_function(wrapped, after=record_value)

    def compute(*args: object, **kwargs: object) -> object:
        if is_compiling():
            return wrapped(*args, **kwargs)
        owner = ref()
        known = owner is not None and owner._computed is not None  # it says again what it has said
        return wrapped(*args, **kwargs) if known else ours(*args, **kwargs)

    return functools.wraps(wrapped)(hide_from_compiler(compute))


def _tap_collections(collection: object, tap: Tap) -> None:
    """A collection names its values itself."""

    def build_wrapper(original: Callable[..., object]) -> Callable[..., object]:
        def compute_muted(self: object, *args: object, **kwargs: object) -> object:
            _depth.inside += 1
            try:
                return original(self, *args, **kwargs)
            finally:
                _depth.inside -= 1

        def record_values(args: tuple[object, ...], kwargs: dict[str, object], value: object) -> None:
            if not _depth.inside and isinstance(value, Mapping):
                tap.feed.record_logged("torchmetrics", value)

        return tap.wrap_function(compute_muted, after=record_values)

    tap.patches.wrap_attribute(collection, "compute", build_wrapper)


class _Names:
    """What metrics are called: as the model that holds them calls them, else by their class and a number."""

    def __init__(self, tap: Tap) -> None:
        self._tap = tap
        self._known: dict[int, tuple[weakref.ref[object], str]] = {}
        self._numbers: dict[str, int] = {}

    def get_name(self, metric: object) -> str:
        """Its name, the same each time."""
        known = self._known.get(id(metric))
        if known is not None and known[0]() is metric:
            return known[1]
        name = self._in_model(metric) or self._number_name(type(metric).__name__)
        if len(self._known) >= MAX_NAMES:
            self._known.clear()
        self._known[id(metric)] = weakref.ref(metric), name
        return name

    def _in_model(self, metric: object) -> str:
        """The path in the model; a search of all its modules, once a metric."""
        roots = self._tap.feed.monitor.roots.list_roots()
        found = (path for root in roots for path, module in root.named_modules() if module is metric)
        return next(found, "")

    def _number_name(self, name: str) -> str:
        number = self._numbers[name] = self._numbers.get(name, 0) + 1
        return name if number == 1 else f"{name}_{number}"
