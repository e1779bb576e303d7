"""Pipelines of transforms: finding them in a dataset, and measuring a few of their calls."""

import functools
import inspect
import math
import threading
import time
import types
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn

from tdbg.core.frames import without_own_frames
from tdbg.core.guard import belongs_to_program
from tdbg.probes.dataloader.batch_contents import sample_elements
from tdbg.runtime import tensors
from tdbg.runtime.compiler import hide_from_compiler
from tdbg.runtime.patches import Patches

MAX_STEPS = 16
MAX_PIPELINES = 4
MAX_OBJECTS = 200
MAX_DEPTH = 4
MAX_ITEMS = 16
SAMPLE = 1024
FULL_PASS = 4_000_000  # elements; of larger images only a sample is checked for NaN and Inf
IMAGE_KEYS = ("image", "img", "pixel_values", "images", "x", "input", "inputs", "video", "audio")
LIBRARIES = ("kornia.augmentation", "torchvision.transforms", "torchaudio.transforms")


@dataclass(slots=True)
class Pipeline:
    """An object that calls others one after the other."""

    owner: object
    name: str
    steps: list[object]
    names: list[str]
    chances: list[float | None]  # the probability a step says it has


def steps_of(item: Any) -> list[object]:
    """What a Compose-like object calls: its ``transforms``, or the children of a Sequential without weights."""
    if not callable(item) or isinstance(item, type):
        return []
    held = getattr(item, "__dict__", {})
    found = held.get("transforms")
    if isinstance(item, nn.Module) and found is None:
        found = item._modules.get("transforms")
        if isinstance(item, nn.Sequential) and next(item.parameters(), None) is None:
            found = list(item._modules.values())
    if isinstance(found, nn.ModuleList):
        found = list(found)
    if not isinstance(found, list | tuple) or not found or not all(callable(step) for step in found):
        return []
    return list(found)[:MAX_STEPS]


def build_pipeline(owner: object, steps: list[object]) -> Pipeline:
    """The pipeline of these steps."""
    chances = [_read_chance(step) for step in steps]
    return Pipeline(owner, type(owner).__name__, steps, [name_of(step) for step in steps], chances)


def name_of(step: object) -> str:
    """The class of a transform, or the name of a function; of a lambda its line."""
    if isinstance(step, functools.partial):
        return f"partial({name_of(step.func)})"
    code = getattr(step, "__code__", None)
    if isinstance(step, types.FunctionType) and code is not None and step.__name__ == "<lambda>":
        return f"lambda at line {code.co_firstlineno}"
    if isinstance(step, types.FunctionType | types.MethodType | types.BuiltinFunctionType):
        return step.__name__
    return type(step).__name__


def _read_chance(step: object) -> float | None:
    chance = getattr(step, "__dict__", {}).get("p")
    return float(chance) if isinstance(chance, int | float) and 0 <= chance <= 1 else None


def in_library(module: nn.Module) -> bool:
    """True for an augmentation of a known library, which a program may call in its own loop."""
    return any(cls.__module__.startswith(LIBRARIES) for cls in type(module).__mro__)


def find_pipelines(*places: object) -> list[Pipeline]:
    """The pipelines that hang on a dataset or a collate function.

    Looks through attributes, containers, wrapped datasets, and the globals and closures of functions; reads
    instance dictionaries alone, so that nothing of the program runs. Bounded in depth and number.
    """
    waiting: deque[tuple[object, int]] = deque((place, 0) for place in places if place is not None)
    seen: set[int] = set()
    found: list[Pipeline] = []
    while waiting and len(seen) < MAX_OBJECTS and len(found) < MAX_PIPELINES:
        item, depth = waiting.popleft()
        if id(item) in seen or isinstance(item, type | types.ModuleType | Tensor | str | bytes | int | float):
            continue
        seen.add(id(item))
        steps = steps_of(item)
        if steps:
            found.append(build_pipeline(item, steps))
        elif depth < MAX_DEPTH:
            waiting.extend((other, depth + 1) for other in _iter_inside(item))
    return found


def _iter_inside(item: object) -> Iterator[object]:
    if isinstance(item, functools.partial):
        yield from (item.func, *item.args, *item.keywords.values())
    elif isinstance(item, types.MethodType):
        yield from (item.__self__, item.__func__)
    elif isinstance(item, types.FunctionType):
        yield from _iter_references(item)
    elif isinstance(item, list | tuple):
        yield from item[:MAX_ITEMS]
    elif isinstance(item, dict):
        yield from list(item.values())[:MAX_ITEMS]
    elif not isinstance(item, nn.Module):
        yield from list(getattr(item, "__dict__", {}).values())[: 4 * MAX_ITEMS]
        for base in type(item).__mro__[:3]:
            if not base.__module__.startswith(("torch.", "builtins")):
                methods = (method for method in vars(base).values() if isinstance(method, types.FunctionType))
                for method in methods:
                    yield from (other for other in _iter_references(method) if steps_of(other))


def _iter_references(function: types.FunctionType) -> Iterator[object]:
    """What a function refers to: the globals it names, and its closure."""
    for name in function.__code__.co_names[: 4 * MAX_ITEMS]:
        if name in function.__globals__:
            yield function.__globals__[name]
    for cell in function.__closure__ or ():
        try:
            yield cell.cell_contents
        except ValueError:  # not filled yet
            continue


@dataclass(slots=True)
class Glimpse:
    """What one image, or whatever a transform takes, is like at one moment."""

    kind: str = ""  # its dtype, or the mode of a PIL image
    device: str = "cpu"
    shape: tuple[int, ...] = ()
    low: float | None = None
    high: float | None = None
    finite: bool | None = None
    print: int | None = None  # of a sample: other values give another one
    late: Tensor | None = None  # smallest and largest, still on an accelerator


def take_glimpse(value: object) -> Glimpse | None:
    """A look at the image in what a transform takes or gives; None if there is none. Cost: 20 to 100 us."""
    found = _find_image(value)
    if found is None:
        return None
    if isinstance(found, Tensor):
        return _glimpse_tensor(found)
    if type(found).__module__.startswith("PIL"):
        return _glimpse_pil(found)
    return _glimpse_array(found)


def _find_image(value: object) -> object:
    if _is_image(value):
        return value
    if isinstance(value, dict):
        named = [value[key] for key in IMAGE_KEYS if key in value]
        return next((item for item in (*named, *list(value.values())[:MAX_ITEMS]) if _is_image(item)), None)
    if isinstance(value, list | tuple):
        return next((item for item in value[:MAX_ITEMS] if _is_image(item)), None)
    return None


def _is_image(value: Any) -> bool:
    if isinstance(value, Tensor):
        return value.layout == torch.strided and not (value.is_complex() or value.is_quantized or value.is_nested)
    kind = type(value)
    if kind.__module__ == "numpy" and kind.__name__ == "ndarray":
        return bool(value.dtype.kind in "uifb" and value.size)
    return kind.__module__.startswith("PIL") and hasattr(value, "getextrema")


def _glimpse_tensor(tensor: Tensor) -> Glimpse:
    seen = Glimpse(str(tensor.dtype).removeprefix("torch."), str(tensor.device), tuple(tensor.shape))
    if tensor.numel() == 0 or tensor.is_meta:
        return seen
    sample = sample_elements(tensor, SAMPLE)
    if not tensors.on_host(tensor):
        seen.late = torch.stack([sample.amin(), sample.amax()]).to(torch.float32)
        return seen
    whole = tensor.detach() if tensor.is_floating_point() and tensor.numel() <= FULL_PASS else None
    return _fill_figures(seen, sample, whole)


def _glimpse_array(array: Any) -> Glimpse:
    seen = Glimpse(str(array.dtype), "cpu", tuple(map(int, array.shape)))
    step = max(math.ceil(array.size / SAMPLE), 1)
    while step > 1 and math.gcd(step, array.shape[-1]) > 1:
        step += 1
    try:
        sample = torch.from_numpy(array.flat[::step])  # a copy: nothing of the array is kept or written
        plain = array.flags.writeable and array.flags.c_contiguous
        wanted = array.dtype.kind == "f" and array.size <= FULL_PASS
        whole = torch.from_numpy(array if plain else array.copy()) if wanted else None
    except (TypeError, ValueError, RuntimeError):  # a dtype that torch has not, or torch without numpy
        return seen
    return _fill_figures(seen, sample, whole)


def _fill_figures(seen: Glimpse, sample: Tensor, whole: Tensor | None) -> Glimpse:
    wide = sample.to(torch.float64)
    good = wide.isfinite()
    seen.finite = bool(good.all())
    if whole is not None:
        total = float(whole.sum(dtype=torch.float64 if whole.dtype == torch.float64 else torch.float32))
        seen.finite = math.isfinite(total) or bool(torch.isfinite(whole).all())
    if bool(good.any()):
        low, high = torch.aminmax(wide[good])
        seen.low, seen.high = float(low), float(high)
    seen.print = hash(tuple(wide.nan_to_num(nan=0.5).tolist()))
    return seen


def _glimpse_pil(image: Any) -> Glimpse:
    seen = Glimpse(str(image.mode), "cpu", tuple(map(int, image.size)))
    held = getattr(image, "__dict__", {})
    if held.get("_im", held.get("im")) is None or image.mode == "P":
        return seen  # not decoded yet: that is the first transform's own work
    try:
        extremes = image.getextrema()
        small = image.resize((16, 16)).tobytes()
    except (ValueError, OSError):  # a mode that Pillow itself does little with
        return seen
    pairs = extremes if extremes and isinstance(extremes[0], tuple) else (extremes,)
    seen.low, seen.high = float(min(pair[0] for pair in pairs)), float(max(pair[1] for pair in pairs))
    seen.finite, seen.print = True, hash((image.size, image.mode, small))
    return seen


@dataclass(slots=True)
class Row:
    """One call of one step."""

    place: int
    seconds: float
    before: Glimpse | None
    after: Glimpse | None


@dataclass(slots=True)
class Run:
    """One call of a pipeline."""

    pipeline: Pipeline
    rows: list[Row] = field(default_factory=list)
    inside: bool = False  # a step runs
    done: set[int] = field(default_factory=set)
    last: tuple[Any, Glimpse | None] = (None, None)  # what the last step gave

    def find_place(self, step: object) -> int | None:
        """The place of a step that is called now; of one that stands there twice, the next place."""
        for place, known in enumerate(self.pipeline.steps):
            if known is step and place not in self.done:
                return place
        return None


def is_replaceable(kind: type) -> bool:
    """True for a class whose ``__call__`` is written in Python; functions and built-in callables have none."""
    return isinstance(inspect.getattr_static(kind, "__call__", None), types.FunctionType)


class Meter:
    """Stands in front of a few calls of pipelines and their steps, in the thread that armed it.

    Between `arm` and `disarm` the classes of the pipelines and of their steps carry a wrapper; plain functions
    in a list of transforms are wrapped for the length of one call of that list's owner. Nothing is left after.
    """

    def __init__(self, failed: Callable[[BaseException], None]) -> None:
        self.runs: list[Run] = []
        self.calls: dict[int, int] = {}  # id of the owner -> calls seen while armed
        self.spent_s = 0.0
        self._failed = failed
        self._patches = Patches()
        self._pipelines: dict[int, Pipeline] = {}
        self._left = 0
        self._thread = 0
        self._run: Run | None = None

    @property
    def is_armed(self) -> bool:
        """True between `arm` and `disarm`."""
        return bool(self._pipelines)

    def arm(self, pipelines: Iterable[Pipeline], samples: int) -> None:
        """Measure the next calls of these pipelines, ``samples`` in all."""
        self.runs, self.calls, self.spent_s = [], {}, 0.0
        self._left, self._thread = samples, threading.get_ident()
        self._pipelines = {id(found.owner): found for found in pipelines}
        for found in self._pipelines.values():
            for item in (found.owner, *found.steps):
                self._wrap_class(type(item))

    def begin_run(self, found: Pipeline) -> None:
        """Arm, with the pipeline's call already under way."""
        self.arm([found], samples=0)
        self._run = Run(found)

    def disarm(self) -> list[Run]:
        """Take everything away; returns what was measured."""
        if self._run is not None:
            self.runs.append(self._run)
        for run in self.runs:
            run.last = (None, None)  # the program's images are not ours to keep
        self._run = None
        self._pipelines = {}
        self._patches.restore()
        return self.runs

    def _wrap_class(self, kind: type) -> None:
        known = any(owner is kind for owner, *_ in self._patches._done)
        if known or not is_replaceable(kind):
            return
        try:
            self._patches.wrap_attribute(kind, "__call__", self._make_wrapper)
        except (TypeError, AttributeError):  # a class that lets nobody touch it: its calls are not measured
            pass

    def _make_wrapper(self, original: Callable[..., object]) -> Callable[..., object]:
        def __call__(item: object, *args: object, **kwargs: object) -> object:
            run = self._run
            if threading.get_ident() != self._thread or (run is not None and run.inside):
                return original(item, *args, **kwargs)
            if run is None:
                found = self._pipelines.get(id(item))
                if found is None or not self._is_wanted(item):
                    return original(item, *args, **kwargs)
                return self._measure_pipeline(found, original, item, args, kwargs)
            place = run.find_place(item)
            if place is None:
                return original(item, *args, **kwargs)
            return self._measure_step(run, place, functools.partial(original, item), args, kwargs)

        return hide_from_compiler(__call__)

    def _is_wanted(self, item: object) -> bool:
        self.calls[id(item)] = self.calls.get(id(item), 0) + 1
        self._left -= 1
        return self._left >= 0

    def _measure_pipeline(
        self,
        found: Pipeline,
        original: Callable[..., object],
        item: object,
        args: tuple[object, ...],
        kwargs: dict[str, object],
    ) -> object:
        run = self._run = Run(found)
        held = getattr(item, "__dict__", {})
        before = held.get("transforms")
        if isinstance(before, list | tuple):
            held["transforms"] = self._wrap_functions(run, before)
        try:
            result = original(item, *args, **kwargs)
            self.runs.append(run)
            return result
        finally:
            if isinstance(before, list | tuple):
                held["transforms"] = before
            self._run = None

    def _wrap_functions(self, run: Run, steps: Any) -> object:
        """The same list with its functions wrapped; itself if there are none."""
        wrapped = [
            self._wrap_function(run, place, step) if not is_replaceable(type(step)) else step
            for place, step in enumerate(steps)
        ]
        changed = any(new is not old for new, old in zip(wrapped, steps, strict=True))
        return type(steps)(wrapped) if changed and type(steps) in (list, tuple) else steps

    def _wrap_function(self, run: Run, place: int, step: Any) -> Callable[..., object]:
        def call_measured(*args: object, **kwargs: object) -> object:
            mine = self._run is run and threading.get_ident() == self._thread and not run.inside
            return self._measure_step(run, place, step, args, kwargs) if mine else step(*args, **kwargs)

        return (
            hide_from_compiler(functools.update_wrapper(without_own_frames(call_measured), step))
            if place < MAX_STEPS
            else step
        )

    def _measure_step(
        self, run: Run, place: int, call: Callable[..., object], args: tuple[object, ...], kwargs: dict[str, object]
    ) -> object:
        value = args[0] if args else kwargs
        before = self._take_glimpse(run, value)
        run.inside = True
        begun = time.perf_counter()
        try:
            result = call(*args, **kwargs)
        finally:
            seconds = time.perf_counter() - begun
            run.inside = False
        run.done.add(place)
        run.last = (None, None)
        after = self._take_glimpse(run, result)
        run.last = (_find_image(result), after)
        run.rows.append(Row(place, seconds, before, after))
        return result

    def _take_glimpse(self, run: Run, value: object) -> Glimpse | None:
        """A look that can never hurt the program."""
        begun = time.perf_counter()
        try:
            image = _find_image(value)
            if image is not None and image is run.last[0]:
                return run.last[1]
            return take_glimpse(image)
        except BaseException as error:  # an image of a kind nobody has thought of; inline: each step of each sample
            if belongs_to_program(error):
                raise
            self._failed(error)
            return None
        finally:
            self.spent_s += time.perf_counter() - begun
