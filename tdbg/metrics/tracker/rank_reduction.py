"""Sum metrics over the ranks of the user's process group; `tdbg.metrics.ranks` merges saved states."""

import json
from collections.abc import Iterable
from typing import Any

from tdbg.core.errors import TdbgError
from tdbg.metrics.tracker import saved_state
from tdbg.metrics.tracker.partial import Partial
from tdbg.metrics.tracker.phase import Phase


def reduce_phase(phase: Phase, group: Any = None) -> None:
    """Add up the sums of a phase's pass under way over a process group; every rank then holds the same.

    A collective: every rank of the group calls it for the same phase. A metric that a rank does not have counts there
    as no samples. Without a process group, or with one of one rank, nothing is sent. Cost: two all-gathers of a few
    kB. Raises TdbgError if this pass is reduced already, or if the ranks speak of different phases.
    """
    if phase.reduced:
        raise TdbgError(f"phase {phase.name!r} is already reduced over all ranks", "reduce each pass only once")
    states = _gather_states(_list_sums(phase), group)
    names = sorted({str(state["phase"]) for state in states})
    if len(names) > 1:
        raise TdbgError(
            f"ranks reduce different phases: {', '.join(names)}", "call it for the same phase on every rank"
        )
    check_units(phase.name, [(tuple(slot), unit) for state in states for slot, unit, _ in state["sums"]])
    phase.samples = phase.batches = 0
    for metric in phase.metrics.values():
        metric.partial = Partial()  # not `start`: what was left out is among everybody's
    for state in states:
        phase.samples += state["samples"]
        phase.batches += state["batches"]
        for (name, task, subset), unit, row in state["sums"]:
            own = phase.get_or_create_metric(name, task, subset)
            own.unit = own.unit or unit
            own.partial.merge_partial(saved_state.partial_of(row, f"{phase.name}/{name}"))
    phase.reduced = True


def _list_sums(phase: Phase) -> dict[str, Any]:
    return {
        "phase": phase.name,
        "samples": phase.samples,
        "batches": phase.batches,
        "sums": [(slot, metric.unit, metric.partial.state()) for slot, metric in phase.metrics.items()],
    }


def _gather_states(mine: dict[str, object], group: Any) -> list[dict[str, Any]]:
    """Everybody's, by rank: as JSON in byte tensors, since the collectives of objects would pickle them."""
    try:
        import torch
        import torch.distributed as dist
    except ImportError:
        return [mine]
    if not dist.is_available() or not dist.is_initialized() or dist.get_world_size(group) == 1:
        return [mine]
    device = _device_of(str(dist.get_backend(group)))
    data = torch.frombuffer(bytearray(json.dumps(mine).encode()), dtype=torch.uint8).to(device)
    sizes = [torch.zeros(1, dtype=torch.int64, device=device) for _ in range(dist.get_world_size(group))]
    dist.all_gather(sizes, torch.tensor([data.numel()], dtype=torch.int64, device=device), group=group)
    longest = max(int(size) for size in sizes)
    padded = torch.zeros(longest, dtype=torch.uint8, device=device)
    padded[: data.numel()] = data
    parts = [torch.empty(longest, dtype=torch.uint8, device=device) for _ in sizes]
    dist.all_gather(parts, padded, group=group)
    return [json.loads(bytes(part[: int(size)].tolist())) for part, size in zip(parts, sizes, strict=True)]


def _device_of(backend: str) -> Any:
    """Where a backend wants its tensors: on the host for gloo and MPI, else on this rank's accelerator."""
    import torch

    kind = torch.accelerator.current_accelerator()
    if kind is None or ("gloo" in backend and "nccl" not in backend) or "mpi" in backend:
        return torch.device("cpu")
    return torch.device(kind.type, getattr(torch, kind.type).current_device())


def check_units(phase: str, units: Iterable[tuple[tuple[str, ...], str]]) -> None:
    """A metric has one unit on all ranks; sums of two are never added. Raises TdbgError, naming both."""
    known: dict[tuple[str, ...], str] = {}
    for slot, unit in units:
        if unit and known.setdefault(slot, unit) != unit:
            both = " and ".join(sorted((known[slot], unit)))
            raise TdbgError(f"{phase}/{slot[0]} is in {both} on different ranks", "set the same units on every rank")
