"""Checksums of weights on record per rank. Ranks are compared where their records are read: no collective."""

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from tdbg.core.observations.rank_weights import WeightChecksums
from tdbg.probes import PROBES
from tdbg.probes.forward import round_number
from tdbg.probes.updates import EveryUpdate
from tdbg.runtime import tensors
from tdbg.runtime.budget import ALWAYS_STEPS
from tdbg.runtime.checksums import checksum_pieces, join_pieces, read_values, sample_norms
from tdbg.runtime.rerun_alone import count_ranks
from tdbg.runtime.root_modules import clean_path, unwrap_module
from tdbg.runtime.sampling import select_evenly, view_sample

if TYPE_CHECKING:
    from torch.optim import Optimizer

    from tdbg.runtime.monitor import Monitor

ELEMENTS = 64  # of a parameter
MAX_PARAMETERS = 256
EVERY = 4  # opening steps from look to look, after the first
DRIFTING_HOOKS = ("local_sgd", "localsgd")  # in the name of a communication hook: ranks are averaged now and then


@PROBES.add
class RankWeights(EveryUpdate):
    """Checksums of a sample of each parameter, by which replicas that drift apart are found.

    Reads:  64 elements of at most 256 parameters of each DistributedDataParallel module, or without one of the trained
            roots, before an update: as the update before has left them, and whatever averages them after it.
    Emits:  WEIGHTS after each of the first eight steps, every fourth of the opening inspection, and after steps 64, 128,
            256 and so on.
    Cost:   10 us a parameter and look; on an accelerator the checksums come with the step's one copy.
    Limits: sharded, sparse and quantized parameters and those that DDP ignores are left out; one rank alone is not
            looked at, nor is a module whose communication hook averages weights now and then (local SGD). What the
            last update has done is not seen.
    """

    name = "rank-weights"
    levels = ("advanced", "extreme")
    presence_s = 2e-6
    observations = (WeightChecksums,)

    def __init__(self, monitor: "Monitor") -> None:
        super().__init__(monitor)
        self._is_hooked = False
        self._names: dict[int, list[str]] = {}  # by the place of the module: as they were told last

    def forked(self) -> None:
        self._names = {}

    def attach(self) -> None:
        """Hook updates once there are several ranks: a hook at each would cost one rank its fast path."""
        if count_ranks() > 1:
            self._hook_updates()
        else:
            self.patch_at("group-made", after=self._group_made)

    def _group_made(self, seconds: float, args: tuple[object, ...], kwargs: dict[str, object], result: object) -> None:
        if count_ranks() > 1 and not self._is_hooked:
            self._hook_updates()

    def _hook_updates(self) -> None:
        self._is_hooked = True
        super().attach()

    def before_update(self, optimizer: "Optimizer") -> None:
        step = self.monitor.step
        if self.monitor.is_main(optimizer) and step and is_look_due(self.monitor, step):
            with self.work():
                self._checksum_replicas(step)

    def _checksum_replicas(self, step: int) -> None:
        for place, (group, module, wrapper) in enumerate(list_replicas(self.monitor)):
            found = [
                (name, p, data)
                for name, p in _iter_replicated(module, wrapper)
                if (data := _sample_elements(p)) is not None
            ]
            found = select_evenly(found, MAX_PARAMETERS)
            if not found or len({data.device for _, _, data in found}) > 1:
                continue
            names = [f"{name} {list(p.shape)}" for name, p, _ in found]
            seen = WeightChecksums(group=group, wrapped=wrapper is not None, module=place)
            if names != self._names.get(place):
                seen.names = self._names[place] = names
            self._read_checksums([data for _, _, data in found], seen, step)

    def _read_checksums(self, samples: Sequence[Tensor], seen: WeightChecksums, step: int) -> None:
        count = len(samples)

        def emit_checksums(values: list[float]) -> None:
            seen.checksums = join_pieces(values[: 2 * count])
            seen.norms = [round_number(value) for value in values[2 * count :]]
            self.emit(seen, step=step)

        read_values(self.monitor, torch.cat([checksum_pieces(samples), sample_norms(samples)]), emit_checksums)


def is_look_due(monitor: "Monitor", step: int) -> bool:
    """True at steps that all ranks have in common, whatever a look costs one of them: there are some 20 in all."""
    in_opening = step <= ALWAYS_STEPS or (monitor.inspection.is_open and step % EVERY == 0)
    return in_opening or step.bit_count() == 1


def is_wrapper(module: nn.Module) -> bool:
    """True for a DistributedDataParallel module."""
    return isinstance(module, nn.parallel.DistributedDataParallel)


def group_of(wrapper: Any) -> list[int]:
    """The ranks among which a DistributedDataParallel module averages gradients."""
    return [int(rank) for rank in torch.distributed.get_process_group_ranks(wrapper.process_group)]


def list_replicas(monitor: "Monitor") -> Iterator[tuple[list[int], nn.Module, Any]]:
    """The modules that all ranks of a group may hold: group, module, and its DDP wrapper if it has one."""
    roots = monitor.trained_roots()
    wrappers = [module for root in roots for module in root.modules() if is_wrapper(module)]
    for wrapper in wrappers:
        if not _averages_weights(wrapper):
            yield group_of(wrapper), wrapper.module, wrapper  # type: ignore[misc]
    if not wrappers:
        world = list(range(count_ranks()))
        for root in roots:
            yield world, unwrap_module(root), None


def _averages_weights(wrapper: Any) -> bool:
    """True for a communication hook after which ranks may differ until their weights are averaged."""
    hooks = [hook for hook, _ in getattr(wrapper, "_comm_hooks", ())]
    names = [str(getattr(hook, "__name__", type(hook).__name__)).lower() for hook in hooks]
    return any(word in name for name in names for word in DRIFTING_HOOKS)


def _iter_replicated(module: nn.Module, wrapper: Any) -> Iterator[tuple[str, Tensor]]:
    """The parameters that every rank should hold alike, by name."""
    ignored = getattr(wrapper, "parameters_to_ignore", ())
    for path, parameter in module.named_parameters():
        if path not in ignored and "_flat_param" not in path:
            yield clean_path(path), parameter


def _sample_elements(parameter: Tensor) -> Tensor | None:
    """A view of its elements; None where it is sharded, or has none that can be read so."""
    if tensors.is_sharded(parameter) or parameter.layout != torch.strided or parameter.is_quantized:
        return None
    return view_sample(parameter, ELEMENTS)
