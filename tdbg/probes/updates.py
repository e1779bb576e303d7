"""Being told of every update of every optimizer: the monitor tells probes only of the steps it watches."""

import atexit
from collections.abc import Callable
from typing import Any

from torch.optim import Optimizer

from tdbg.probes import Probe


class EveryUpdate(Probe):
    """A probe whose `before_update` and `after_update` run at every update, watched or not.

    When they run, the monitor has counted the step already: in `after_update` its ``step`` is the one that ended.
    Cost: 1 us a hook, booked on the probe. An update inside another's (a wrapping optimizer's) is told as well.
    """

    _awaited = False

    def attach(self) -> None:
        hooks = self.monitor.hooks
        self._update_ears = [
            (hooks.before_each, self._ear(self.before_update)),
            (hooks.after_each, self._ear(self.after_update)),
        ]
        for listeners, tell in self._update_ears:
            listeners.append(tell)

    def await_end(self) -> None:
        """Have `run_ends` called when the process leaves. Registered this late, it comes before tdbg's own end."""
        if not self._awaited:
            self._awaited = True
            atexit.register(self._at_exit)

    def _at_exit(self) -> None:
        if self.on:
            self._guarded(self.run_ends)

    def run_ends(self) -> None:
        """The process leaves in good order."""

    def detach(self) -> None:
        atexit.unregister(self._at_exit)
        for listeners, tell in self.__dict__.pop("_update_ears", ()):
            listeners.remove(tell)
        super().detach()

    def before_update(self, optimizer: Optimizer) -> None:
        """An optimizer is about to update."""

    def after_update(self, optimizer: Optimizer) -> None:
        """An optimizer has updated."""

    def _ear(self, method: Callable[[Optimizer], None]) -> Callable[[Any], None]:
        def tell(optimizer: Any) -> None:
            if self.on and not self.monitor.rerunning:
                self._guarded(method, optimizer)

        return tell
