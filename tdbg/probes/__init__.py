"""Probes: what looks at a training program from inside, each in a file of its own."""

from typing import TYPE_CHECKING, Any

from tdbg.events import Step
from tdbg.registry import Registry

if TYPE_CHECKING:
    from torch import Tensor, nn
    from torch.optim import Optimizer

    from tdbg.probes.monitor import Monitor
    from tdbg.probes.rerun import Call


class Probe:
    """One thing that watches. Every method is optional; the monitor calls only those a probe overrides.

    Cost is booked by the monitor. An exception switches the probe off, is recorded once, and never
    reaches the program. A method must not issue a collective and must not synchronise a device.
    """

    name = ""
    levels: tuple[str, ...] = ()  # levels it belongs to without being asked for by a flag

    def __init__(self, monitor: "Monitor") -> None:
        self.monitor = monitor

    def attach(self) -> None:
        """Set up patches (through ``monitor.patches``, which restores them)."""

    def batch_taken(self, batch: Any, wait_s: float, loader_iter: Any) -> None:
        """A DataLoader handed out a batch."""

    def call_begins(self, module: "nn.Module", call: "Call") -> None:
        """A root module is about to run."""

    def call_ended(self, module: "nn.Module", call: "Call", output: Any) -> None:
        """A root module returned."""

    def backward_begins(self, loss: "Tensor | None") -> None:
        """Backward is about to run from ``loss`` (None if it is no scalar)."""

    def backward_ended(self) -> None:
        """Backward returned; gradients are there, reduced over ranks under DDP."""

    def update_begins(self, optimizer: "Optimizer") -> None:
        """An optimizer is about to update, its weights still intact."""

    def clip_begins(self, parameters: "list[Tensor]") -> None:
        """Gradients are about to be clipped."""

    def clip_ended(self, total: Any) -> None:
        """Gradients have been clipped; ``total`` is the norm before, as the program was told."""

    def step_ended(self, record: Step, optimizer: "Optimizer") -> None:
        """A step ended: fill in the record. Only on steps whose record is written."""

    def after_step(self, optimizer: "Optimizer") -> None:
        """A step ended, recorded or not: forget what belongs to it."""

    def forked(self) -> None:
        """This is a new process: forget everything."""


PROBES: Registry[type[Probe]] = Registry("probe", package="tdbg.probes", group="tdbg.probes")
