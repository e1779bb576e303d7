"""Checksums of batches on record per rank. Ranks are compared where their records are read: no collective."""

from typing import TYPE_CHECKING

import torch
from torch import Tensor, nn

from tdbg.core.observations.rank_batches import BatchChecksums
from tdbg.probes import PROBES, Probe
from tdbg.probes.dataloader import batch_contents
from tdbg.probes.rank_weights import group_of, is_look_due, is_wrapper
from tdbg.runtime import tensors
from tdbg.runtime.checksums import checksum_pieces, join_pieces, read_values
from tdbg.runtime.listener import LATER_STEPS
from tdbg.runtime.rerun_alone import count_ranks
from tdbg.runtime.torch_compat import count_groups, list_parameters_of_fsdp2, smallest_group

if TYPE_CHECKING:
    from tdbg.runtime.monitor import Monitor
    from tdbg.runtime.rerun import Call

BATCH_ELEMENTS = 256  # of a tensor of a batch
LEAST_ELEMENTS = 16  # of such a tensor: smaller ones are steps, lengths, times
MAX_INPUTS = 4


@PROBES.add
class RankBatches(Probe):
    """Checksums of what the model is called with in training, by which ranks that train on the same data are found.

    Reads:  256 elements of the first four tensors of 16 elements or more of a step's first call of a trained root.
    Emits:  BATCH in the steps of the opening inspection that `rank-weights` looks at, where there are several ranks, and
            in three steps of each later look.
    Cost:   20 us a tensor and look; on an accelerator the checksums come with the step's one copy.
    Limits: one rank alone is not looked at.
    """

    name = "rank-batches"
    comes_back = LATER_STEPS
    observations = (BatchChecksums,)

    def __init__(self, monitor: "Monitor") -> None:
        super().__init__(monitor)
        self._looked = 0  # the step looked at last

    def forked(self) -> None:
        self._looked = 0

    def call_begins(self, module: nn.Module, call: "Call") -> None:
        step = self.monitor.step + 1
        if step == self._looked or not (call.graded and module.training) or count_ranks() < 2:
            return
        if not is_look_due(self.monitor, step):
            return
        self._looked = step
        with self.work():
            self._checksum_inputs(module, call, step)

    def _checksum_inputs(self, module: nn.Module, call: "Call", step: int) -> None:
        found = [(path, tensor) for path, tensor in tensors.iter_tensors((call.args, call.kwargs)) if _is_input(tensor)]
        found = found[:MAX_INPUTS]
        if not found or len({tensor.device for _, tensor in found}) > 1:
            return
        wrappers = [one for one in module.modules() if is_wrapper(one)]
        fully_sharded = not wrappers and _is_fully_sharded(module)
        seen = BatchChecksums(
            group=group_of(wrappers[0]) if wrappers else list(range(count_ranks())),
            wrapped=bool(wrappers) or fully_sharded,
            sharded=fully_sharded or None,
            is_split=_is_split(module, fully_sharded=fully_sharded),
            names=[path.partition(".")[2] or path for path, _ in found],
        )

        def emit_checksums(values: list[float]) -> None:
            seen.checksums = join_pieces(values)
            self.emit(seen, step=step)

        samples = [batch_contents.sample_elements(tensor, BATCH_ELEMENTS).to(torch.float32) for _, tensor in found]
        read_values(self.monitor, checksum_pieces(samples), emit_checksums)


def _is_input(tensor: Tensor) -> bool:
    plain = tensor.layout == torch.strided and not (tensor.is_quantized or tensor.is_complex() or tensor.is_nested)
    return plain and tensor.numel() >= LEAST_ELEMENTS and not tensors.has_no_data(tensor)


def _is_split(module: nn.Module, *, fully_sharded: bool) -> bool:
    """True where ranks may get the same batch on purpose: tensor or pipeline parallelism.

    fully_sharded: by FSDP over all ranks alone, which is data parallelism.
    """
    smallest = smallest_group()
    if smallest is None or smallest < count_ranks():
        return True
    return not fully_sharded and any(
        tensors.is_sharded(p) or "_flat_param" in path for path, p in module.named_parameters()
    )


def _is_fully_sharded(module: nn.Module) -> bool:
    """True where FSDP, 1 or 2, shards over all ranks, nothing else shards, and there is no other group of ranks.

    A group of all ranks may be for the parts of one sequence (context parallelism). A mesh of a tensor-parallel program
    looks as FSDP's does, so that each sharded parameter must be one that FSDP manages.
    """
    world = count_ranks()
    modules = list(module.modules())
    wrappers = [one for one in modules if type(one).__name__ == "FullyShardedDataParallel"]
    sharded = [p for p in module.parameters() if tensors.is_sharded(p)]
    if wrappers:
        groups = {len(torch.distributed.get_process_group_ranks(one.process_group)) for one in wrappers}  # type: ignore[arg-type]
        return not sharded and groups == {world} and (count_groups() or 0) <= 1
    managed = {id(p) for one in modules if hasattr(one, "_get_fsdp_state") for p in list_parameters_of_fsdp2(one)}
    is_over_all = all(p.device_mesh.ndim == 1 and p.device_mesh.size() == world for p in sharded)  # type: ignore[attr-defined]
    return bool(managed) and is_over_all and managed >= set(map(id, sharded)) and (count_groups() or 0) <= 1
