"""DEVICE: where tensors live, in which dtype, and what is copied or waited for inside the step."""

import glob
import os
import sys
import threading
from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from tdbg.core.observations.device import AcceleratorIdle, MixedDevices, MixedDtypes, StepPlaces
from tdbg.probes import PROBES, Probe
from tdbg.runtime import code_places
from tdbg.runtime.compiler import call_outside_compiler, hide_from_compiler
from tdbg.runtime.patches import Patches
from tdbg.runtime.root_modules import clean_path, unwrap_module
from tdbg.runtime.tensors import count_bytes, iter_tensors
from tdbg.runtime.torch_compat import compiler_count
from tdbg.runtime.torch_hooks import iter_targets

if TYPE_CHECKING:
    from types import FrameType

    from torch.optim import Optimizer

    from tdbg.runtime.monitor import Monitor
    from tdbg.runtime.rerun import Call
    from tdbg.runtime.torch_compat import BatchIterator

# What makes the host wait for an accelerator, and what may copy or convert.
SYNCS = ("item", "tolist", "numpy", "__bool__", "__float__", "__int__")
MOVES = ("to", "cpu", "cuda", "float", "double", "half", "bfloat16", "long", "int", "type")
PLACES_EVERY_STEPS = 200
MAX_WINDOWS = 200  # Python's method cache of a class wears out with the number of changes to it
MAX_COUNTED = 1000  # calls of one step
MAX_NAMES = 8
MAX_TENSORS = 20_000
IDLE_STEPS = 8
ODD_SHARE = 0.1  # so much of a model may be left behind; where it is more, it is meant


@dataclass(slots=True)
class Seen:
    """What one step did with its tensors."""

    step: int
    from_loader: bool  # a loader feeds it: it lasts until the next batch
    thread: int
    ended: bool = False
    syncs: Counter[str] = field(default_factory=Counter)  # "file:line .item()" -> calls
    copies: Counter[str] = field(default_factory=Counter)
    conversions: Counter[str] = field(default_factory=Counter)
    copied_bytes: int = 0
    counted: int = 0
    blind: bool = False  # nothing was counted, since torch's methods had to stay as they are


@PROBES.add
class Device(Probe):
    """Unlike devices and dtypes among parameters, buffers, inputs and loss; copies and waits inside a step.

    Reads:  device and dtype of every parameter and buffer once in 200 steps, of inputs, output and loss on sampled
            steps. On such a step `Tensor.item`, `.tolist`, `.numpy`, `.to`, `.cpu`, `.cuda`, the dtype casts and the
            conversions to Python numbers are stood in front of, and put back when it is over.
    Emits:  one line a sampled step; MIX_DEVICE, MIX_DTYPE and IDLE when there is cause.
    Cost:   some 50 us to set and take away, 3 us a counted call; at most 200 steps a run.
    Limits: on the CPU nothing waits: what is counted there would wait on an accelerator. Waits inside torch (a
            boolean mask, `nonzero`) are not seen, nor calls of other threads, nor programs with compiled parts.
    """

    name = "device"
    levels = ("extreme",)
    every = 16
    observations = (StepPlaces, MixedDtypes, MixedDevices, AcceleratorIdle)

    def __init__(self, monitor: "Monitor") -> None:
        super().__init__(monitor)
        self._compiles = False
        self._reset_state()

    def _reset_state(self) -> None:
        self._window: Seen | None = None
        self._windows = 0
        self._counting = Patches()
        self._places_due = 0
        self._places: dict[str, Any] = {}
        self._reported_places: dict[str, object] = {}
        self._inputs: list[str] = []
        self._output = self._loss = ""
        self._accelerator = False
        self._reported: set[str] = set()
        self._odd_buffers: tuple[list[str], str] | None = None

    def attach(self) -> None:
        self.patch_at("compile", before=self._will_compile)

    def _will_compile(self, args: tuple[object, ...], kwargs: dict[str, object]) -> None:
        """The program compiles: from now on torch's methods stay as they are."""
        self._compiles = True
        self._counting.restore()
        if self._window is not None:
            self._window.blind = True

    def switched_off(self) -> None:
        self._close_window()

    def detach(self) -> None:
        self._close_window()
        super().detach()

    def forked(self) -> None:
        self._close_window()
        self._reset_state()

    # where things are

    def call_begins(self, module: nn.Module, call: "Call") -> None:
        self._advance_window(from_loader=False)
        if not call.graded or self._window is None or self._window.ended:
            return
        self._inputs = [_format_kind(tensor) for _, tensor in iter_tensors((call.args, call.kwargs))][:MAX_NAMES]
        if self.monitor.step + 1 >= self._places_due:
            self._places_due = self.monitor.step + 1 + PLACES_EVERY_STEPS
            self._record_places(self.monitor.trained_roots() or [module])

    def call_ended(self, module: nn.Module, call: "Call", output: object) -> None:
        if call.graded and self._window is not None:
            self._output = next((_format_kind(tensor) for _, tensor in iter_tensors(output)), "")

    def backward_begins(self, loss: "Tensor | None") -> None:
        if loss is not None and self._window is not None:
            self._loss = _format_kind(loss)

    def _record_places(self, roots: list[nn.Module]) -> None:
        parameters: dict[str, Tensor] = {}
        buffers: dict[str, Tensor] = {}
        for root in map(unwrap_module, roots):
            parameters.update((clean_path(name), p) for name, p in root.named_parameters())
            buffers.update((clean_path(name), b) for name, b in root.named_buffers())
            if len(parameters) + len(buffers) > MAX_TENSORS:
                break
        self._accelerator = any(p.device.type not in ("cpu", "meta") for p in parameters.values())
        self._places = {
            "parameters": dict(Counter(map(_format_kind, parameters.values())).most_common(MAX_NAMES)),
            "buffers": dict(Counter(map(_format_kind, buffers.values())).most_common(MAX_NAMES)),
            "accelerator": self._accelerator,
            "accelerators": count_accelerators(),
        }
        offloaded = any(hasattr(module, "_hf_hook") for root in roots for module in root.modules())
        self._judge_devices(parameters, buffers, offloaded)
        self._judge_dtypes(parameters, buffers)

    def _judge_devices(self, parameters: dict[str, Tensor], buffers: dict[str, Tensor], offloaded: bool) -> None:
        """Tensors without data beside real ones; a few parameters left on the CPU by a model that moved."""
        everything = {**parameters, **buffers}
        common = _find_most_common(str(p.device) for p in parameters.values())
        odd = [name for name, tensor in everything.items() if tensor.is_meta]
        if not odd and self._accelerator and not offloaded:
            left = [name for name, p in parameters.items() if p.device.type == "cpu" and p.dim() > 0]
            odd = left if len(left) <= ODD_SHARE * len(parameters) else []
        if odd and len(odd) < len(everything):
            kinds = sorted({str(everything[name].device) for name in odd})
            self._emit_mixed_kinds("device", odd, ", ".join(kinds), common)

    def _judge_dtypes(self, parameters: dict[str, Tensor], buffers: dict[str, Tensor]) -> None:
        """float64 among narrower parameters; float64 buffers count only if they widened the output."""
        floating = {name: p for name, p in parameters.items() if p.is_floating_point()}
        common = _find_most_common(
            (_format_dtype(p) for p in floating.values()), (p.numel() for p in floating.values())
        )
        if not floating or common == "float64":
            return
        odd = [name for name, p in floating.items() if p.dtype == torch.float64]
        if odd:
            self._emit_mixed_kinds("dtype", odd, "float64", common)
            return
        wide = [name for name, buffer in buffers.items() if buffer.dtype == torch.float64 and buffer.numel() > 1]
        self._odd_buffers = (wide, common) if wide else None

    def _emit_mixed_kinds(self, what: str, names: list[str], odd: str, common: str, effect: str = "") -> None:
        if what in self._reported:
            return
        self._reported.add(what)
        kind = MixedDevices if what == "device" else MixedDtypes
        mixed = kind(odd=names[:MAX_NAMES], odd_count=len(names), odd_kind=odd, common_kind=common, effect=effect)
        self.emit(mixed)

    # what a step does

    def batch_taken(self, batch: object, wait_s: float, loader_iter: "BatchIterator") -> None:
        self._advance_window(from_loader=True)

    def _advance_window(self, *, from_loader: bool) -> None:
        """A batch or a root call: the end of the step that was counted, or the beginning of one to count."""
        window = self._window
        if window is not None and (window.ended or self.monitor.step >= window.step):
            self._close_window()
        if self._window is None and torch.is_grad_enabled() and self._windows < MAX_WINDOWS and self.should_sample():
            with self.work():
                self._open_window(from_loader)

    def _open_window(self, from_loader: bool) -> None:
        self._windows += 1
        self._window = Seen(self.monitor.step + 1, from_loader, threading.get_ident())
        if self._compiles or _has_compiled_code():
            self._window.blind = True
            self.unavailable("parts of the program are compiled: copies and waits inside the step are not counted")
            return
        for name in SYNCS + MOVES:
            for owner, _ in iter_targets("tensor-method", name=name):
                self._counting.wrap_attribute(owner, name, self._build_counter(name))

    def _build_counter(self, name: str) -> Any:
        """A maker of wrappers that count one method's calls; a wrapper somebody kept does nothing later."""
        probe, window = self, self._window

        def make_wrapper(original: Callable[..., object]) -> Callable[..., object]:
            def wrapper(tensor: Tensor, *args: object, **kwargs: object) -> object:
                result = original(tensor, *args, **kwargs)
                if not torch.compiler.is_compiling() and probe._window is window and not probe.monitor.rerunning:
                    caller = sys._getframe(1).f_back  # 1: of `Patches`
                    call_outside_compiler(
                        probe.guard.call_guarded, probe._run_timed, probe._count_call, name, tensor, result, caller
                    )
                return result

            return hide_from_compiler(wrapper)

        return make_wrapper

    def _count_call(self, name: str, tensor: Tensor, result: object, caller: "FrameType | None") -> None:
        window = self._window
        if window is None or window.thread != threading.get_ident() or caller is None or code_places.is_tdbg(caller):
            return
        far = tensor.device.type != "cpu"
        if not far and (self._accelerator or code_places.is_torch(caller)):
            moved = isinstance(result, Tensor) and result.device != tensor.device
            if not moved:
                return  # on the host, or in torch's own code: nobody waits
        window.counted += 1
        if window.counted >= MAX_COUNTED:
            self._counting.restore()
        line = f"{code_places.program_line(caller) or '?'} .{name}()"
        if not isinstance(result, Tensor):
            window.syncs[line] += 1
            return
        if result.device != tensor.device:
            window.copies[line] += 1
            window.copied_bytes += count_bytes(result)
            if result.device.type == "cpu":
                window.syncs[line] += 1
        if result.dtype != tensor.dtype:
            window.conversions[line] += 1

    def after_step(self, optimizer: "Optimizer") -> None:
        window = self._window
        if window is None or not self.monitor.is_main(optimizer):
            return
        window.ended = True
        if not window.from_loader:  # with a loader the step's last lines are still to come
            self._close_window()

    def _close_window(self) -> None:
        """The step is over: put torch's methods back and tell what was seen."""
        window, self._window = self._window, None
        self._counting.restore()
        if window is None or not window.ended:
            return
        places = StepPlaces(
            inputs=self._inputs,
            output=self._output,
            loss=self._loss,
            **({} if window.blind else self._summarize_counts(window)),
            **({} if self._places == self._reported_places else self._places),
            kinds=", ".join(f"{count} {kind}" for kind, count in self._places.get("parameters", {}).items()),
            waits=self._accelerator,
        )
        self._reported_places = self._places
        self.emit(places, step=window.step)
        self._judge_step(window)

    def _summarize_counts(self, window: Seen) -> dict[str, Any]:
        return {
            "syncs": window.syncs.total(),
            "copies": window.copies.total(),
            "copied_mb": round(window.copied_bytes / 1e6, 3),
            "conversions": window.conversions.total(),
            "lines": _format_lines(window, 1)[:MAX_NAMES],
            "over": _format_lines(window, self.threshold("syncs"))[:MAX_NAMES] if self._accelerator else [],
        }

    def _judge_step(self, window: Seen) -> None:
        widened = "float64" in self._output and not any("float64" in kind for kind in self._inputs)
        if self._odd_buffers is not None and widened:
            names, common = self._odd_buffers
            self._emit_mixed_kinds("dtype", names, "float64", common, "the output became float64")
        idle = self._places.get("accelerators", 0) if not self._accelerator else 0
        if idle and window.step >= IDLE_STEPS and "idle" not in self._reported:
            self._reported.add("idle")
            self.emit(AcceleratorIdle(accelerators=idle), step=window.step)


def count_accelerators() -> int:
    """How many accelerators this process could use, found without waking a driver (which would break a later fork)."""
    if torch.cuda.is_initialized():
        return torch.cuda.device_count()
    if torch.backends.cuda.is_built():
        wanted = os.environ.get("CUDA_VISIBLE_DEVICES")
        there = len(glob.glob("/dev/nvidia[0-9]*"))
        if wanted is None or not there:
            return there
        return min(there, len([word for word in wanted.split(",") if word.strip() not in ("", "-1", "none")]))
    return 1 if torch.backends.mps.is_available() else 0


def _has_compiled_code() -> bool:
    """True if something was compiled, perhaps before this probe was there to see it."""
    return compiler_count("frames", "total") > 0


def _format_lines(window: Seen, at_least: float) -> list[str]:
    """The lines that waited or copied, with how often, the most frequent first."""
    counts = window.syncs | window.copies
    return [f"{line} x{count}" for line, count in counts.most_common() if count >= at_least]


def _format_dtype(tensor: Tensor) -> str:
    return str(tensor.dtype).removeprefix("torch.")


def _format_kind(tensor: Tensor) -> str:
    return f"{_format_dtype(tensor)} on {tensor.device}"


def _find_most_common(kinds: Iterable[str], weights: Iterable[int] | None = None) -> str:
    """The most frequent kind, by number or by weight."""
    counts: Counter[str] = Counter()
    for kind, weight in zip(kinds, weights, strict=False) if weights is not None else ((kind, 1) for kind in kinds):
        counts[kind] += weight
    return counts.most_common(1)[0][0] if counts else ""
