"""Where one process stands in its run: what the monitor, its parts and the probes read of each other."""

import weakref
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from threading import RLock

import torch
from torch import nn
from torch.optim import Optimizer

from tdbg.runtime.compiler import hide_from_compiler
from tdbg.runtime.identity_keys import IdentityKeys


class State:
    """Steps and calls so far, and what is going on now.

    The monitor is one, so that probes and hooks read these fields from it directly: a look-up, in every call of a
    root. Its parts are given it as this and know no more of it.
    """

    world_size = 1  # as far as it is known: from the first record on
    suspects: Callable[[float], bool] | None = None  # is a loss between samples worth a record?

    def reset_state(self) -> None:
        """A new process, in which nothing was seen yet."""
        self.step = 0
        self.attended = 0  # the last step that was more than counted: the weights that its loss depends on were good
        self.skipped_in_a_row = 0  # updates that GradScaler skipped one after the other
        self.last_skipped_step = 0
        self.updates = 0  # of any optimizer
        self.eval_calls = 0
        self.sampled = 0
        self.active = True
        self.off_at = 0.0  # when it was switched off
        self.rerunning = False  # a pass of tdbg's own runs, in any thread: autograd calls hooks from threads of its own
        self._own_passes: set[object] = set()  # those that run
        self._turn = RLock()  # of whoever changes the two
        self.quiet = False  # torch.profiler records: tdbg's own looks must not stand in the trace
        self.hushed_at = 0  # the last step known to have been recorded so
        self.glances = 0  # losses of the running step that were sent backward between samples
        self.bad_seen = False
        self.bad_at = 0  # the step of the last report of a value that is not finite
        self.clipped_badly = 0  # so many gradients have just been clipped by a norm that is not finite
        self.scaling = False  # a GradScaler scaled a loss in this step
        self.last_full = True  # all gradients of the last step were looked at
        self._in_update: weakref.ref[Optimizer] | None = None
        self.update_thread = 0  # the thread that began it
        self.trained_roots_in_train_mode: IdentityKeys[nn.Module, None] = IdentityKeys()  # as far as a probe has seen
        self.places_of_losses: IdentityKeys[nn.Module, str | None] = IdentityKeys()  # in what a root returns, likewise
        self.sent_backward: object = None  # what backward was called with, while it is told that it begins
        self.inspected: list[str] = []  # the probes that the opening inspection added
        self.stayed: list[str] | None = (
            None  # those of them that were kept when it was over; None: it is not, or never was
        )
        self.ending = False  # a step's record is being made
        self.owes_after_stretch = False  # skipping steps has not paid what was overspent
        self.reviews_until = 0  # up to this step none is skipped, as what a step costs is measured
        self.wants_pass = False  # a probe asks that the next evaluation pass is looked at as the first is
        self.inspects_pass = False  # the first evaluation pass is looked at, and the updates that follow it

    @property
    @hide_from_compiler
    def in_update(self) -> Optimizer | None:
        """The optimizer whose step has begun and not ended: it runs, or has raised."""
        return None if self._in_update is None else self._in_update()

    @in_update.setter
    @hide_from_compiler
    def in_update(self, optimizer: Optimizer | None) -> None:
        self._in_update = None if optimizer is None else weakref.ref(optimizer)

    @contextmanager
    def own_pass(self) -> Iterator[None]:
        """A pass of tdbg's own: no step, no evaluation call, nothing that probes look at, in any thread."""
        this = object()
        with self._turn:
            self._own_passes.add(this)
            self.rerunning = True
        try:
            yield
        finally:
            with self._turn:
                self._own_passes.discard(this)  # of a forked child's own there may be none
                self.rerunning = bool(self._own_passes)

    @property
    def running_step(self) -> int:
        """The step that is running; while its record is made, and in evaluation, the last one done."""
        return self.step if self.ending or not torch.is_grad_enabled() else self.step + 1
