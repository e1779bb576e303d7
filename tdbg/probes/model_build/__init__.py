"""MODEL_BUILD: the module tree as built, where and with what initial values, and what of it is never used."""

import re
import sys
import time
import weakref
from collections.abc import Iterator
from dataclasses import dataclass
from types import FrameType, TracebackType
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn
from torch.nn.parameter import is_lazy

from tdbg.core.events import Step, number
from tdbg.core.frames import get_line
from tdbg.core.guard import Guard
from tdbg.core.observations.model_build import (
    BrokenTie,
    FrozenStatistics,
    IdleStatistics,
    InitialWeights,
    ModuleTree,
    ShapeMismatch,
    StuckAtZero,
    UngradedParameters,
)
from tdbg.probes import PROBES, Probe
from tdbg.probes.forward import round_number
from tdbg.probes.memory.live_tensors import is_out_of_memory
from tdbg.probes.model_build import module_tree
from tdbg.probes.model_build.broken_ties import Pair, compare_pairs, expects_tied_weights, find_pairs
from tdbg.probes.model_build.idle_averages import (
    LEAST_STEPS,
    count_batches,
    find_frozen_norms,
    find_idle,
    find_norms,
    read_norms,
)
from tdbg.runtime import tensors
from tdbg.runtime.code_places import program_frame, short_path
from tdbg.runtime.identity_keys import IdentityKeys
from tdbg.runtime.root_modules import clean_path, unwrap_module
from tdbg.runtime.sampling import stack_samples
from tdbg.runtime.tensors import is_checkable, iter_tensors, to_local_part
from tdbg.runtime.torch_hooks import hook_all

if TYPE_CHECKING:
    from torch.optim import Optimizer

    from tdbg.runtime.monitor import Monitor
    from tdbg.runtime.rerun import Call

MAX_ROOTS = 4
MAX_BUILT = 50_000  # modules whose place is kept
MAX_WEIGHTS = 512  # of a model, whose initial values are looked at
FULL_NORM_NUMEL = 1 << 24  # larger weights are sampled only
MAX_NAMES = 8
FIGURES = ("mean", "std", "zero_share")  # of a sample of each weight
# Where the standard deviation of the weights should lie is known for these, and for no subclass of theirs.
PLAIN = (nn.Linear, nn.Conv1d, nn.Conv2d, nn.Conv3d)
BUILDING = ("__init__", "<listcomp>", "<genexpr>", "<dictcomp>", "<lambda>")  # frames between a model and who wants it
SHAPE_WORDS = re.compile(r"shape|size|dimension|channel|must match|out of range in self", re.IGNORECASE)


@dataclass(slots=True)
class Built:
    """Where and when a module was built, as far as its registrations tell."""

    first_s: float
    last_s: float
    place: tuple[str, int]  # file and line: where its parent took it in; of a root, where it was asked for


@dataclass(frozen=True, slots=True)
class Weight:
    """One weight whose initial values are looked at."""

    name: str
    shape: tuple[int, ...]
    numel: int
    trainable: bool
    he_std: float | None  # standard deviation by He et al. 2015; None where another may be right


@dataclass(frozen=True, slots=True)
class Initial:
    """What the initial values of all weights look like; the lists hold names."""

    rows: list[dict[str, float]]  # FIGURES of each weight
    ratio: dict[str, float]  # of the standard deviation to He's, where that applies
    bad: list[str]
    large: list[str]
    small: list[str]
    zero: list[str]  # matrices, not vectors

    @classmethod
    def from_values(cls, weights: list[Weight], values: list[float], bound: float) -> "Initial":
        """From the norms of all weights, followed by FIGURES of each. bound: so many times He's is too large."""
        count, width = len(weights), len(FIGURES)
        norms = values[:count]
        rows = [
            dict(zip(FIGURES, values[count + i * width : count + (i + 1) * width], strict=True)) for i in range(count)
        ]
        ratio = {w.name: row["std"] / w.he_std for w, row in zip(weights, rows, strict=True) if w.he_std}
        return cls(
            rows=rows,
            ratio=ratio,
            bad=[w.name for w, norm in zip(weights, norms, strict=True) if not abs(norm) < float("inf")],
            large=[w.name for w in weights if w.trainable and ratio.get(w.name, 0.0) >= bound],
            small=[name for name, value in ratio.items() if 0.0 < value <= 1.0 / bound],
            zero=[w.name for w, norm in zip(weights, norms, strict=True) if norm == 0.0 and len(w.shape) > 1],
        )

    def format_summary(self, weights: list[Weight]) -> str:
        """The line for the log."""
        text = f"{len(self.bad)} not finite, {len(self.large)} too large, {len(self.small)} small"
        text += f", {len(self.zero)} all zero"
        stds = [(row["std"], w.name) for w, row in zip(weights, self.rows, strict=True) if len(w.shape) > 1]
        stds = [pair for pair in stds if 0.0 < pair[0] < float("inf")]
        if stds:
            (low, first), (high, last) = min(stds), max(stds)
            text += f"; standard deviation {low:.3g} ({first}) to {high:.3g} ({last})"
        text += "".join(f"; {name} has {self.ratio[name]:.0f}x the Kaiming std" for name in self.large[:3])
        return text + "".join(f"; {name} is not finite" for name in self.bad[:3])


@PROBES.add
class ModelBuild(Probe):
    """The module tree, where each module was built, its initial values, and parameters that nothing uses.

    Reads:  registrations of parameters and children (the frame each comes from), the tree at the root's first call,
            a sample of 1,024 elements and the norm of every weight before the first update, the gradients' presence
            at the first updates; after 20 steps the running means of batch normalisation layers; the frames of an exception that ends the process inside a module.
    Emits:  TREE once a root, INIT once a root, TIE where an embedding and an output layer hold equal weights, or two that the configuration ties; UNUSED, STUCK, STATISTICS, FROZEN, SHAPE when there is cause.
    Cost:   3 us a registration while a model is built; 30 us a weight, once; nothing in later steps.
    Limits: initial values only where the first update is still to come; a checkpoint that was loaded before counts as
            initial. Modules made by unpickling have no place. A `SHAPE` is seen only if nobody catches the exception.
    Source: He et al. 2015, "Delving Deep into Rectifiers", equation 10: the standard deviation sqrt(2 / fan_in).
    """

    name = "model-build"  # does not come back in later looks: what was built is compared once, before the first updates
    levels = ("advanced", "extreme")
    observations = (
        ModuleTree,
        InitialWeights,
        UngradedParameters,
        StuckAtZero,
        BrokenTie,
        FrozenStatistics,
        IdleStatistics,
        ShapeMismatch,
    )

    def __init__(self, monitor: "Monitor") -> None:
        super().__init__(monitor)
        self._handles: list[Any] = []
        self._built: IdentityKeys[nn.Module, Built] = IdentityKeys()
        self._reset_state()

    def _reset_state(self) -> None:
        self._trouble: BaseException | None = None
        self._building = Guard(self.name, self._record_guard_failure)
        self._root_suffixes: IdentityKeys[nn.Module, str] = IdentityKeys()
        self._examined: IdentityKeys[nn.Module, None] = IdentityKeys()
        self._roots = 0
        self._updates = 0
        self._settled = self._knows_norms = False
        self._frozen_norms: list[tuple[str, weakref.ref[Any]]] = []
        self._frozen_counts: Tensor | None = None  # batches that these have seen, in the step before
        self._watched = 0  # trainable parameters of the main optimizer
        self._suspects: dict[int, weakref.ref[Tensor]] | None = None  # no gradient so far
        self._zero: dict[str, weakref.ref[Tensor]] = {}  # matrices that began at zero

    def attach(self) -> None:
        self._handles = [
            hook_all("parameter-registered", self._on_parameter),
            hook_all("child-registered", self._on_child),
        ]
        self.patch(sys, "excepthook", before=self._handle_uncaught_error)

    def detach(self) -> None:
        for handle in self._handles:
            handle.remove()
        self._handles = []
        super().detach()

    def forked(self) -> None:
        self._reset_state()

    # building

    def _on_parameter(self, module: nn.Module, name: str, parameter: Tensor) -> None:
        self._building.call_guarded(self._handle_registration, module, None)

    def _on_child(self, parent: nn.Module, name: str, child: nn.Module | None) -> None:
        self._building.call_guarded(self._handle_registration, parent, child)

    def _record_guard_failure(self, part: str, error: BaseException) -> None:
        """The guard's report: torch is in the middle of calling its hooks, and none may be taken away before a call."""
        self._trouble = error
        self.monitor.handle_failure(part, error)

    def _handle_registration(self, module: nn.Module, child: nn.Module | None) -> None:
        """Remember when and where."""
        if torch.compiler.is_compiling() or not self.on or self._trouble is not None:
            return
        if type(module).__hash__ is None or type(child).__hash__ is None:
            return  # nothing can be kept of it
        begun = time.perf_counter()
        self._record_origin(module, child, begun)
        self.monitor.budget.charge(self.name, time.perf_counter() - begun)

    def _record_origin(self, module: nn.Module, child: nn.Module | None, now: float) -> None:
        frame = program_frame(sys._getframe(4))  # behind the guard, and torch's own call of the hook
        known = self._built.get(module)
        if known is not None:
            known.last_s = now
        elif len(self._built) < MAX_BUILT:
            self._built[module] = Built(now, now, _locate_frame(_find_building_frame(frame)))
        if child is not None and (below := self._built.get(child)) is not None:
            below.place = _locate_frame(frame)
        elif child is not None and len(self._built) < MAX_BUILT:
            self._built[child] = Built(now, now, _locate_frame(frame))  # an activation, which registers nothing itself

    # the tree and the initial values

    def call_begins(self, module: nn.Module, call: "Call") -> None:
        if self._trouble is not None:
            raise self._trouble
        self._report_first_call(module, train=call.graded)

    def _report_first_call(self, root: nn.Module, *, train: bool) -> None:
        """The first call of a root: tell of it; and of its values, at the first call that is to train it."""
        new = root not in self._root_suffixes
        fresh = train and self.monitor.updates == 0 and root not in self._examined
        if not (new or fresh) or (new and self._roots >= MAX_ROOTS) or not self.should_sample():
            return
        with self.work():
            if new:
                self._roots += 1
                self._root_suffixes[root] = f"_{self._roots}" if self._roots > 1 else ""
                self._report_tree(unwrap_module(root), self._root_suffixes[root])
            if fresh:
                self._examined[root] = None
                self._look_at_weights(unwrap_module(root), self._root_suffixes[root])

    def _report_tree(self, root: nn.Module, suffix: str) -> None:
        found = module_tree.measure_size(root)
        known = {id(module): self._built[module] for module in root.modules() if module in self._built}
        lines = {module: _format_place(built.place) for module, built in known.items() if module != id(root)}
        children = [(clean_path(name), child) for name, child in root.named_children()][:MAX_NAMES]
        tree = ModuleTree(
            suffix=suffix,
            root=type(root).__name__,
            modules=found.modules,
            depth=found.depth,
            parameters=found.parameters,
            trainable=found.trainable,
            buffers=sum(buffer.numel() for buffer in root.buffers()),
            children=[name for name, _ in children],
            child_parameters=[module_tree.measure_size(child).parameters for _, child in children],
            built_at=_format_place(known[id(root)].place) if id(root) in known else "",
            build_ms=_build_ms(list(known.values())),
            shared=_find_shared_parameters(root)[:MAX_NAMES],
            lazy=[name for name, p in root.named_parameters() if is_lazy(p)][:MAX_NAMES],
            drawn=tuple(module_tree.render_tree(root, lines)),
        )
        self.emit(tree)

    def _look_at_weights(self, root: nn.Module, suffix: str) -> None:
        weights: list[Weight] = []
        held: list[Tensor] = []
        for path, module in root.named_modules():
            for name, parameter in module._parameters.items():
                if (
                    parameter is None
                    or is_lazy(parameter)
                    or not is_checkable(parameter)
                    or len(weights) >= MAX_WEIGHTS
                ):
                    continue
                if not to_local_part(parameter).numel():  # this rank's shard is empty
                    continue
                full = clean_path(f"{path}.{name}" if path else name)
                weights.append(_build_weight(full, name, module, parameter))
                held.append(parameter)
        if not held:
            return
        data = [to_local_part(parameter.detach()) for parameter in held]
        device = tensors.common_device(data)
        rows = torch.cat([stack_samples([one]).to(device, non_blocking=True) for one in data])
        norms = tensors.compute_norms(
            [one if one.numel() <= FULL_NORM_NUMEL else row for one, row in zip(data, rows, strict=True)]
        )
        shares = (rows == 0).float().mean(1)
        values = torch.cat([norms, torch.stack([rows.mean(1), rows.std(1), shares], dim=1).flatten()])
        pairs = find_pairs(root, held, [weight.name for weight in weights])
        if pairs:
            values = torch.cat([values, compare_pairs(pairs, rows)])
        read = _Read(
            self,
            weights,
            [weakref.ref(parameter) for parameter in held],
            suffix,
            self.monitor.step + 1,
            pairs,
            is_meant=expects_tied_weights(root),
        )
        if tensors.on_host(values):
            read(values.tolist(), None)
        else:
            self.monitor.read_late(values, read)

    def report_initial(
        self, weights: list[Weight], refs: list["weakref.ref[Tensor]"], values: list[float], suffix: str, step: int
    ) -> None:
        """Tell of the initial values, as they were read."""
        first = Initial.from_values(weights, values, self.threshold("init_ratio"))
        self._zero.update(
            (w.name, ref) for w, ref in zip(weights, refs, strict=True) if w.trainable and w.name in first.zero
        )
        figures: dict[str, Any] = {name: [round_number(row[name]) for row in first.rows] for name in FIGURES}
        seen = InitialWeights(
            suffix=suffix,
            names=[weight.name for weight in weights],
            **figures,
            not_finite=first.bad[:MAX_NAMES],
            too_large=first.large[:MAX_NAMES],
            ratios=[number(round(first.ratio[name], 1)) for name in first.large[:MAX_NAMES]],
            too_small=first.small[:MAX_NAMES],
            zero=first.zero[:MAX_NAMES],
            described=first.format_summary(weights),
        )
        self.emit(seen, step=step)

    def report_ties(self, pairs: list[Pair], equal: list[bool], suffix: str, step: int, *, is_meant: bool) -> None:
        """Tell of an embedding and an output layer with equal weights of their own, or that were to share one."""
        pairs_to_report = [
            (pair, is_equal) for pair, is_equal in zip(pairs, equal, strict=True) if is_equal or pair.declared
        ]
        for place, (pair, is_equal) in enumerate(pairs_to_report):
            embedding, head = pair.names
            tie = BrokenTie(embedding=embedding, head=head, meant=is_meant or pair.declared, equal=is_equal)
            tie.suffix = f"{suffix or '_1'}_{place}" if place else suffix
            self.emit(tie, step=step)

    # the first updates

    def update_begins(self, optimizer: "Optimizer") -> None:
        if not self.monitor.is_main(optimizer):
            return
        if self._frozen_counts is not None:
            self._compare_frozen_norms(self._frozen_counts)
        if not self._knows_norms and self.monitor.step >= LEAST_STEPS:
            self._knows_norms = self._look_at_norms()
        if self._settled:
            return
        for root in [] if self._roots else self.monitor.trained_roots():
            self._report_first_call(root, train=True)  # a model that is never called as such
        if self._suspects is None:
            held = [p for group in optimizer.param_groups for p in group["params"]]
            wanted = [p for p in held if p.requires_grad and p.numel()]  # FSDP gives an empty shard no gradient
            self._watched = len(wanted)
            self._suspects = {id(p): weakref.ref(p) for p in wanted}
        self._suspects = {
            key: ref for key, ref in self._suspects.items() if (p := ref()) is not None and p.grad is None
        }
        self._updates += 1
        if self._updates >= self.threshold("unused_steps"):
            self._settled = True
            self._report_params_without_grad()
            self._look_at_zero()

    def _report_params_without_grad(self) -> None:
        gradients = self.monitor.find_probe("gradient-norms")
        if not self._suspects or gradients is None:
            return
        if len(self._suspects) == self._watched:
            self.unavailable("no parameter of the optimizer has a gradient: they are kept elsewhere")
            return
        known = gradients.model_names.parameters
        names = [known[key] for key in self._suspects if key in known]
        if names:
            unused = UngradedParameters(
                unused=names[:MAX_NAMES], unused_count=len(names), updates=self._updates, watched=self._watched
            )
            self.emit(unused)

    def _look_at_norms(self) -> bool:
        """Batch normalisation layers that see batches, and whose statistics stay where they began; or are frozen.

        False: there are some, and this step has no time for them; a later one has.
        """
        if not self.should_sample():
            return False
        found = find_norms(self.monitor.trained_roots())
        if not found:
            return True
        frozen = find_frozen_norms(found)
        self._frozen_norms = [(name, weakref.ref(layer)) for name, layer in frozen]
        with self.work():
            self._frozen_counts = count_batches(layer for _, layer in frozen) if frozen else None
            values = read_norms([layer for _, layer in found])
        names, momenta = [name for name, _ in found], [layer.momentum for _, layer in found]
        step = self.monitor.step

        def emit_idle_norms(values: list[float], record: Step | None) -> None:
            idle = find_idle(values)
            if not idle:
                return
            seen = IdleStatistics(
                layers=[names[at] for at in idle[:MAX_NAMES]],
                layer_count=len(idle),
                momentum=momenta[idle[0]],
                batches=int(values[len(names) + idle[0]]),
            )
            self.emit(seen, step=step)

        if tensors.on_host(values):
            emit_idle_norms(values.tolist(), None)
        else:
            self.monitor.read_late(values, emit_idle_norms)
        return True

    def _compare_frozen_norms(self, before: Tensor) -> None:
        """Frozen layers that have seen another batch in train mode since the step before."""
        self._frozen_counts = None
        names, layers = [name for name, _ in self._frozen_norms], [ref() for _, ref in self._frozen_norms]
        if any(layer is None or layer.num_batches_tracked is None for layer in layers):
            return
        moved, step = count_batches(layers) - before, self.monitor.step

        def emit_moved(values: list[float], record: Step | None) -> None:
            found = [name for name, value in zip(names, values, strict=True) if value > 0]
            if found:
                self.emit(FrozenStatistics(layers=found[:MAX_NAMES], layer_count=len(found)), step=step)

        if tensors.on_host(moved):
            emit_moved(moved.tolist(), None)
        else:
            self.monitor.read_late(moved, emit_moved)

    def _look_at_zero(self) -> None:
        """Weights that began at zero, are zero still and whose gradient is zero: they will stay so."""
        found = [(name, p) for name, ref in self._zero.items() if (p := ref()) is not None and p.grad is not None]
        self._zero = {}
        if not found:
            return
        values = tensors.compute_norms([t for _, p in found for t in (p, p.grad) if t is not None])
        names, step = [name for name, _ in found], self.monitor.step + 1
        if tensors.on_host(values):
            self._report_stuck(names, values.tolist(), step)
        else:
            self.monitor.read_late(values, lambda values, record: self._report_stuck(names, values, step))

    def _report_stuck(self, names: list[str], values: list[float], step: int) -> None:
        stuck = [name for i, name in enumerate(names) if values[2 * i] == 0.0 and values[2 * i + 1] == 0.0]
        if stuck:
            self.emit(StuckAtZero(stuck=stuck[:MAX_NAMES], updates=self._updates), step=step)

    # a forward pass that fails

    def _handle_uncaught_error(self, args: tuple[object, ...], kwargs: dict[str, object]) -> None:
        error = args[1] if len(args) > 1 else None
        if not isinstance(error, RuntimeError | ValueError | IndexError) or is_out_of_memory(error):
            return
        frames = _list_frames(error.__traceback__)
        inside = [(frame, module) for frame in frames if (module := _module_of(frame)) is not None]
        if not inside or not SHAPE_WORDS.search(str(error)):
            return
        root, (frame, module) = unwrap_module(inside[0][1]), inside[-1]
        own = [frame for frame in frames if program_frame(frame) is frame]
        weights = {name: list(p.shape) for name, p in module._parameters.items() if p is not None and not is_lazy(p)}
        mismatch = ShapeMismatch(
            module=next((clean_path(name) for name, one in root.named_modules() if one is module), ""),
            module_class=type(module).__name__,
            inputs=_collect_shapes({name: frame.f_locals.get(name) for name in _iter_argument_names(frame)}),
            weights=dict(list(weights.items())[:MAX_NAMES]),
            line=_format_place(_locate_frame(own[-1])) if own else "",
            first=self.monitor.step == 0,
            error=f"{type(error).__name__}: {error}"[:300],
        )
        self.monitor.become_rank_now()
        self.emit(mismatch, step=self.monitor.step + 1)


class _Read:
    """What to do with the figures of the initial weights, read at once or a step later."""

    def __init__(
        self,
        probe: ModelBuild,
        weights: list[Weight],
        refs: list["weakref.ref[Tensor]"],
        suffix: str,
        step: int,
        pairs: list[Pair],
        *,
        is_meant: bool,
    ) -> None:
        self.probe, self.weights, self.refs, self.suffix, self.step = probe, weights, refs, suffix, step
        self.pairs, self.is_meant = pairs, is_meant

    def __call__(self, values: list[float], record: Step | None) -> None:
        self.probe.report_initial(self.weights, self.refs, values, self.suffix, self.step)
        if self.pairs:
            equal = [value > 0.0 for value in values[-len(self.pairs) :]]
            self.probe.report_ties(self.pairs, equal, self.suffix, self.step, is_meant=self.is_meant)


def _build_weight(full: str, name: str, module: nn.Module, parameter: Tensor) -> Weight:
    he_std = None
    if type(module) in PLAIN and name == "weight" and parameter.shape[0] > 0:
        he_std = (2.0 / (parameter.numel() / parameter.shape[0])) ** 0.5
    return Weight(full, tuple(parameter.shape), parameter.numel(), parameter.requires_grad, he_std)


def _build_ms(built: list[Built]) -> float:
    """From the first registration to the last."""
    if not built:
        return 0.0
    return round(1e3 * (max(one.last_s for one in built) - min(one.first_s for one in built)), 2)


def _find_shared_parameters(root: nn.Module) -> list[str]:
    """Parameters that stand under two names."""
    first: dict[int, str] = {}
    pairs = []
    for name, parameter in root.named_parameters(remove_duplicate=False):
        known = first.setdefault(id(parameter), name)
        if known != name:
            pairs.append(f"{clean_path(known)} = {clean_path(name)}")
    return pairs


def _find_building_frame(frame: FrameType | None) -> FrameType | None:
    """The frame that wanted the model: outwards past the constructors."""
    while frame is not None and frame.f_code.co_name in BUILDING and frame.f_back is not None:
        frame = program_frame(frame.f_back)
    return frame


def _locate_frame(frame: FrameType | None) -> tuple[str, int]:
    return (frame.f_code.co_filename, get_line(frame)) if frame is not None else ("", 0)


def _format_place(place: tuple[str, int]) -> str:
    return f"{short_path(place[0])}:{place[1]}" if place[0] else ""


def _list_frames(tb: TracebackType | None) -> list[FrameType]:
    found = []
    while tb is not None:
        found.append(tb.tb_frame)
        tb = tb.tb_next
    return found


def _module_of(frame: FrameType) -> nn.Module | None:
    """The module whose method runs in a frame."""
    if frame.f_code.co_argcount == 0:
        return None
    found = frame.f_locals.get(frame.f_code.co_varnames[0])
    return found if isinstance(found, nn.Module) else None


def _iter_argument_names(frame: FrameType) -> Iterator[str]:
    code = frame.f_code
    yield from code.co_varnames[1 : code.co_argcount + code.co_kwonlyargcount]


def _collect_shapes(values: dict[str, object]) -> dict[str, list[int]]:
    return {name: list(tensor.shape) for name, tensor in list(iter_tensors(values))[:MAX_NAMES]}
