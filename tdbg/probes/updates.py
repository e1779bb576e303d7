"""Being told of every update of every optimizer: the monitor tells probes only of the steps it watches."""

from collections.abc import Callable
from typing import Any, cast

import torch
from torch.optim import Optimizer
from torch.optim import optimizer as optimizer_module

from tdbg.probes import Probe
from tdbg.probes.compiler import hide, unseen


class EveryUpdate(Probe):
    """A probe whose `before_update` and `after_update` run at every update, watched or not.

    When they run, the monitor has counted the step already: in `after_update` its ``step`` is the one that ended.
    Cost: 1 us a hook, booked on the probe. An update inside another's (a wrapping optimizer's) is told as well.
    """

    def attach(self) -> None:
        self._hooks = [
            optimizer_module.register_optimizer_step_pre_hook(self._hook(self.before_update)),
            optimizer_module.register_optimizer_step_post_hook(self._hook(self.after_update)),
        ]

    def detach(self) -> None:
        for handle in self.__dict__.pop("_hooks", ()):
            handle.remove()
        super().detach()

    def before_update(self, optimizer: Optimizer) -> None:
        """An optimizer is about to update."""

    def after_update(self, optimizer: Optimizer) -> None:
        """An optimizer has updated."""

    def _hook(self, method: Callable[[Optimizer], None]) -> Callable[[Any, Any, Any], None]:
        def hook(optimizer: Any, args: Any, kwargs: Any) -> None:
            if self.on and not torch.compiler.is_compiling() and not self.monitor.rerunning:
                unseen(self._guarded, method, optimizer)

        return cast("Callable[[Any, Any, Any], None]", hide(hook))
