"""Calls of modules whose root is never called itself, as in a Lightning module that calls its parts.

Nothing is hooked once something is compiled, as a graph would break at a hook.
"""

from collections import deque

from torch import nn

from tdbg.runtime.own_hooks import HookHandle, add_post_hook, add_pre_hook, can_hook
from tdbg.runtime.rerun import Call
from tdbg.runtime.root_search import modules_in_memory
from tdbg.runtime.torch_compat import unseen_by_subclasses

MAX_HOOKED = 2048
MAX_KEPT = 8


class OutermostCalls:
    """The last calls with gradients on of modules that no other module was running."""

    def __init__(self) -> None:
        self.calls: deque[Call] = deque(maxlen=MAX_KEPT)
        self._depth = 0
        self._is_over = False
        self._hooked: set[int] = set()
        self._handles: list[HookHandle] = []

    def hook_modules(self) -> None:
        """Hook every module in memory."""
        if self._is_over:
            return
        for top in modules_in_memory():
            for module in top.modules():
                if id(module) not in self._hooked and can_hook(module) and len(self._hooked) < MAX_HOOKED:
                    self._hooked.add(id(module))
                    self._handles.append(add_pre_hook(module, self._enter_call, first=True, with_kwargs=True))
                    self._handles.append(add_post_hook(module, self._leave_call))

    def remove_hooks(self) -> None:
        """Take the hooks away for good."""
        self._is_over = True
        for handle in self._handles:
            handle.remove()
        self._handles.clear()

    def backward_begins(self) -> None:
        """No forward is running, even if one was left by an exception."""
        self._depth = 0

    @unseen_by_subclasses
    def _enter_call(self, module: nn.Module, args: tuple[object, ...], kwargs: dict[str, object]) -> None:
        if not self._depth:
            call = Call.capture_call(module, args, kwargs)
            if call is not None and call.graded:
                self.calls.append(call)
        self._depth += 1

    @unseen_by_subclasses
    def _leave_call(self, module: nn.Module, args: object, output: object) -> None:
        self._depth = max(self._depth - 1, 0)
