"""Being told of every update of every optimizer: the monitor tells probes only of the steps it watches."""

from collections.abc import Callable
from typing import Any

from torch.optim import Optimizer

from tdbg.probes import Probe


class EveryUpdate(Probe):
    """A probe whose `before_update` and `after_update` run at every update, watched or not.

    When they run, the monitor has counted the step already: in `after_update` its ``step`` is the one that ended.
    Cost: 1 us a hook, booked on the probe. An update inside another's (a wrapping optimizer's) is told as well.
    """

    def attach(self) -> None:
        self.hook_updates()

    def hook_updates(self) -> None:
        """Be told of every update from now on."""
        self.is_told_of_updates = True
        hooks = self.monitor.hooks
        self._update_ears = [
            (hooks.before_each, self._build_listener(self.before_update)),
            (hooks.after_each, self._build_listener(self.after_update)),
        ]
        for listeners, tell in self._update_ears:
            listeners.append(tell)

    def detach(self) -> None:
        self.unhook_updates()
        super().detach()

    def unhook_updates(self) -> None:
        """Be told of none, at no cost an update."""
        self.is_told_of_updates = False
        for listeners, tell in self.__dict__.pop("_update_ears", ()):
            listeners.remove(tell)

    def before_update(self, optimizer: Optimizer) -> None:
        """An optimizer is about to update."""

    def after_update(self, optimizer: Optimizer) -> None:
        """An optimizer has updated."""

    def _build_listener(self, method: Callable[[Optimizer], None]) -> Callable[[Any], None]:
        def notify_method(optimizer: Optimizer) -> None:
            if self.on and not self.monitor.rerunning:
                self.guard.call_guarded(self._run_timed, method, optimizer)

        return notify_method
