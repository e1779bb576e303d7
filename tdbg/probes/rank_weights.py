"""Checksums of weights on record per rank. Ranks are compared where their records are read: no collective."""

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

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
from tdbg.runtime.sampling import view_sample
from tdbg.runtime.torch_compat import list_parameters_of_fsdp2

if TYPE_CHECKING:
    from torch.optim import Optimizer

    from tdbg.runtime.monitor import Monitor

ELEMENTS = 64  # of a parameter
MAX_PARAMETERS = 256
LAST_OPENING_LOOK = 50  # step; later ones come at doubling intervals
EVERY = 4  # opening steps from look to look, after the first
DRIFTING_HOOKS = ("local_sgd", "localsgd")  # in the name of a communication hook: ranks are averaged now and then


@PROBES.add
class RankWeights(EveryUpdate):
    """Checksums of a sample of each parameter, by which replicas that drift apart are found.

    Reads:  64 elements of at most 256 parameters of each DistributedDataParallel module, or without one of the trained
            roots, before an update: as the update before has left them, and whatever averages them after it. Of FSDP2
            with a mesh of two dimensions (HSDP) this rank's shards, which other ranks hold as well; and what any other
            dimension of a mesh replicates, as tensor parallelism does with normalisation layers. Of more than 256
            parameters another part at each look after the first eight.
            Without a wrapper also the same elements of the gradients: ranks that average them by hand have equal ones.
    Emits:  WEIGHTS after each of the first eight steps, every fourth of the opening inspection, and after steps 64, 128,
            256 and so on.
    Cost:   10 us a parameter and look; on an accelerator the checksums come with the step's one copy.
    Limits: parameters that every dimension of their mesh shards, sparse and quantized parameters and those that DDP ignores are left out; one rank alone is not
            looked at, nor is a module whose communication hook averages weights now and then (local SGD). What the
            last update has done is not seen.
    """

    name = "rank-weights"
    levels = ("advanced", "extreme")
    presence_s = 2e-6
    can_be_removed = False  # weights can begin to differ late in a run, and no record tells
    observations = (WeightChecksums,)

    def __init__(self, monitor: "Monitor") -> None:
        super().__init__(monitor)
        self._is_hooked = False
        self._names: dict[tuple[int, int], list[str]] = {}  # by the place of the module, and part: as told last

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
        for place, replicas in enumerate(list_replicas(self.monitor)):
            found = [
                (name, p, data)
                for name, p in replicas.parameters
                if (data := _sample_elements(p, local=replicas.hybrid or replicas.replicated)) is not None
            ]
            parts = -(-len(found) // MAX_PARAMETERS)
            part = choose_part(step, parts)
            found = found[part::parts] if parts > 1 else found
            if not found or len({data.device for _, _, data in found}) > 1:
                continue
            names = [f"{name} {list(p.shape)}" for name, p, _ in found]
            group, wrapped, hybrid = list(replicas.group), replicas.wrapped, replicas.hybrid
            seen = WeightChecksums(group=group, wrapped=wrapped, hybrid=hybrid, module=place)
            seen.replicated, seen.look_part = replicas.replicated or None, part or None
            seen.whole = replicas.whole or None
            if names != self._names.get((place, part)):
                seen.names = self._names[place, part] = names
            is_kept_equal = wrapped or hybrid or replicas.replicated
            gradients = [] if is_kept_equal else [_sample_gradient(p, data) for _, p, data in found]
            self._read_checksums([data for _, _, data in found], gradients, seen, step)

    def _read_checksums(
        self, samples: Sequence[Tensor], gradients: Sequence[Tensor | None], seen: WeightChecksums, step: int
    ) -> None:
        count = len(samples)
        given = [gradient for gradient in gradients if gradient is not None]

        def emit_checksums(values: list[float]) -> None:
            seen.checksums = join_pieces(values[: 2 * count])
            seen.norms = [round_number(value) for value in values[2 * count : 3 * count]]
            if given:
                found = iter(join_pieces(values[3 * count :]))
                seen.gradients = ["" if gradient is None else next(found) for gradient in gradients]
            self.emit(seen, step=step)

        parts = [checksum_pieces(samples), sample_norms(samples), *([checksum_pieces(given)] if given else [])]
        read_values(self.monitor, torch.cat(parts), emit_checksums)


def is_look_due(monitor: "Monitor", step: int) -> bool:
    """True at steps that all ranks have in common, whatever a look costs one of them: there are some 20 in all."""
    in_opening = step <= ALWAYS_STEPS or (monitor.inspection.is_open and step % EVERY == 0)
    return in_opening or step.bit_count() == 1


def choose_part(step: int, parts: int) -> int:
    """Which part of more parameters than a look may read is looked at after this step: the same one on every rank.

    The first looks are of one part: without a wrapper they tell whether ranks are replicas at all.
    """
    if step <= ALWAYS_STEPS or parts < 2:
        return 0
    return (step.bit_length() if step.bit_count() == 1 and step > LAST_OPENING_LOOK else step // EVERY) % parts


def is_wrapper(module: nn.Module) -> bool:
    """True for a DistributedDataParallel module."""
    return isinstance(module, nn.parallel.DistributedDataParallel)


def group_of(wrapper: Any) -> list[int]:
    """The ranks among which a DistributedDataParallel module averages gradients."""
    return [int(rank) for rank in torch.distributed.get_process_group_ranks(wrapper.process_group)]


class Replicas(NamedTuple):
    """Parameters that all ranks of a group should hold alike."""

    group: Sequence[int]
    parameters: list[tuple[str, Tensor]]
    wrapped: bool = False  # those of a DistributedDataParallel module
    hybrid: bool = False  # the same shards of each, which FSDP2 keeps on several ranks
    replicated: bool = False  # what another dimension of a mesh replicates
    whole: bool = False  # hybrid, and whole parameters: those of `replicate()`


def list_replicas(monitor: "Monitor") -> Iterator[Replicas]:
    """What all ranks of a group may hold: in the same order on each of them."""
    roots = monitor.trained_roots()
    wrappers = [module for root in roots for module in root.modules() if is_wrapper(module)]
    for wrapper in wrappers:
        if not _averages_weights(wrapper):
            yield Replicas(group_of(wrapper), list(_iter_replicated(wrapper.module, wrapper)), wrapped=True)  # type: ignore[arg-type]
    if not wrappers:
        world = list(range(count_ranks()))
        for root in roots:
            yield Replicas(world, list(_iter_replicated(unwrap_module(root), None)))
    for root in roots:
        yield from _list_on_meshes(unwrap_module(root))


def _list_on_meshes(root: nn.Module) -> Iterator[Replicas]:
    """What the dimensions of device meshes replicate: the mesh says on which ranks.

    Shards that FSDP2 keeps on several ranks (HSDP) and parameters of `replicate()`, which both keep equal to the bit,
    and what tensor parallelism leaves whole.
    """
    named = [(path, parameter) for path, parameter in root.named_parameters() if tensors.is_sharded(parameter)]
    if not named:
        return
    whole = {
        id(p)
        for module in root.modules()
        if _has_base(module, "ReplicateModule")
        for p in list_parameters_of_fsdp2(module)
    }
    has_fsdp = any(_has_base(module, "FSDPModule") for module in root.modules())
    # By the mesh and not its id: tensors on one mesh may hold equal ones that torch has kept of other operations.
    by_dimension: dict[tuple[Any, int, bool, bool], list[tuple[str, Tensor]]] = {}
    for path, parameter in named:
        mesh: Any = parameter.device_mesh  # type: ignore[attr-defined]
        places: Any = parameter.placements  # type: ignore[attr-defined]
        for dimension, place in enumerate(places):
            if place.is_replicate():
                is_whole = dimension == 0 and id(parameter) in whole
                # The shards of one that tensor parallelism has split are _StridedShard, which is no Shard.
                is_sharded = len(places) > 1 and not places[1].is_replicate()
                is_hybrid = is_whole or (has_fsdp and dimension == 0 and is_sharded)
                alike = by_dimension.setdefault((mesh, dimension, is_hybrid, is_whole), [])
                alike.append((clean_path(path), parameter))
    for (mesh, dimension, is_hybrid, is_whole), parameters in by_dimension.items():
        group = _list_along_dimension(mesh, dimension)
        if len(group) > 1:
            yield Replicas(group, parameters, hybrid=is_hybrid, replicated=not is_hybrid, whole=is_whole)


def _has_base(module: nn.Module, name: str) -> bool:
    return any(one.__name__ == name for one in type(module).__mro__)


def _list_along_dimension(mesh: Any, dimension: int) -> tuple[int, ...]:
    """The ranks that differ from this one in one dimension of a mesh alone; none where it is not in the mesh."""
    at = mesh.get_coordinate()
    if at is None:
        return ()
    return tuple(mesh.mesh[(*at[:dimension], slice(None), *at[dimension + 1 :])].tolist())


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


TELLING_ELEMENTS = 16  # fewer are equal by chance: under an absolute error a bias has one of few gradients


def _sample_gradient(parameter: Tensor, data: Tensor) -> Tensor | None:
    """The elements of its gradient that belong to those of the parameter; None without one, or where it is elsewhere."""
    gradient = parameter.grad
    if gradient is None or gradient.device != data.device:
        return None
    found = _sample_elements(gradient)
    return found if found is not None and found.numel() >= TELLING_ELEMENTS else None


def _sample_elements(parameter: Tensor, *, local: bool = False) -> Tensor | None:
    """A view of its elements; None where it is sharded, or has none that can be read so. local: of this rank's shard."""
    if tensors.is_sharded(parameter) and local:
        parameter = tensors.to_local_part(parameter.detach())
    if tensors.is_sharded(parameter) or parameter.layout != torch.strided or parameter.is_quantized:
        return None
    return view_sample(parameter, ELEMENTS) if parameter.numel() else None
