"""Which operation inside a module made the first NaN or Inf, and on which line of the program it stands.

Used once a fault has been located in a module: the kept batch runs one more time, and only that module is
looked at operation by operation.
"""

import contextlib
import linecache
import sys
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import nn

from tdbg.core.frames import OWN_FOLDER, get_line
from tdbg.runtime.code_places import TORCH, program_frame
from tdbg.runtime.own_hooks import add_node_hook, add_post_hook, add_pre_hook
from tdbg.runtime.rerun import Call, Operation, as_before, output_pairs
from tdbg.runtime.root_modules import Names, unwrap_module
from tdbg.runtime.tensors import is_checkable, iter_tensors, to_local_part
from tdbg.runtime.torch_compat import DispatchMode, unseen_by_subclasses

MAX_NODES = 20_000


def forward_operation(calls: list[Call], names: Names, module_path: str) -> Operation | None:
    """The first operation in the module whose output is not finite although its inputs are; None if none is seen."""
    for call, root, module in _with_module(calls, names, module_path):
        watch = _Operations()
        with as_before(call, root), _watch_module(module, watch), torch.set_grad_enabled(call.graded):
            root(*call.args, **call.kwargs)
        if watch.found is not None:
            return watch.found
    return None


def backward_operation(calls: list[Call], names: Names, module_path: str) -> Operation | None:
    """The first autograd node of the module that turns a finite gradient into one that is not; None if none is seen."""
    for call, root, module in _with_module(calls, names, module_path):
        watch = _Nodes()
        parameters = [parameter for parameter in root.parameters() if parameter.requires_grad]
        with as_before(call, root), torch.enable_grad(), _keep_lines():
            with _watch_module(module, watch):
                output = root(*call.args, **call.kwargs)
            pairs = output_pairs(call, output)
            if pairs:
                ends, grads = [tensor for tensor, _ in pairs], [grad for _, grad in pairs]
                torch.autograd.grad(ends, parameters, grads, allow_unused=True)
        if watch.found is not None:
            return watch.found
    return None


def _with_module(calls: list[Call], names: Names, path: str) -> Iterator[tuple[Call, nn.Module, nn.Module]]:
    for call in calls:
        root = call.module()
        inner = unwrap_module(root) if root is not None else None
        for module in inner.modules() if inner is not None else ():
            if names.modules.get(id(module)) == path and inner is not None:
                yield call, inner, module
                break


@contextlib.contextmanager
def _watch_module(module: nn.Module, watch: "_Operations | _Nodes") -> Iterator[None]:
    """Have ``watch`` see each call of one module."""
    first = add_pre_hook(module, watch.enter_module, first=True, with_kwargs=True)
    last = add_post_hook(module, watch.leave_module)
    try:
        yield
    finally:
        first.remove()
        last.remove()
        watch.release_mode()


@contextlib.contextmanager
def _keep_lines() -> Iterator[None]:
    """Have autograd keep with each node where the program made it; without raising at a NaN."""
    with torch.autograd.set_detect_anomaly(True, check_nan=False):
        yield


class _Operations(DispatchMode):
    """Looks at every operation while the module runs."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.found: Operation | None = None
        self._depth = 0

    def enter_module(self, module: nn.Module, args: tuple[object, ...], kwargs: dict[str, object]) -> None:
        if self._depth == 0:
            self.__enter__()  # type: ignore[no-untyped-call]
        self._depth += 1

    def leave_module(self, module: nn.Module, args: tuple[object, ...], output: object) -> None:
        self._depth -= 1
        if self._depth == 0:
            self.__exit__(None, None, None)  # type: ignore[no-untyped-call]

    def release_mode(self) -> None:
        """The module raised: leave the mode all the same."""
        if self._depth > 0:
            self._depth = 0
            self.__exit__(None, None, None)  # type: ignore[no-untyped-call]

    def __torch_dispatch__(
        self, func: Any, types: object, args: tuple[object, ...] = (), kwargs: dict[str, object] | None = None
    ) -> object:
        result = func(*args, **(kwargs or {}))
        if self.found is None and _has_bad_values(result) and not _has_bad_values((args, kwargs or {})):
            where, code = _line_of_stack()
            self.found = Operation(f"aten.{func.overloadpacket.__name__}", where, code)
        return result


class _Nodes:
    """Looks at the autograd nodes that the module's forward made."""

    def __init__(self) -> None:
        self.found: Operation | None = None
        self._borders: list[set[object]] = []
        self._seen: set[object] = set()

    @unseen_by_subclasses
    def enter_module(self, module: nn.Module, args: tuple[object, ...], kwargs: dict[str, object]) -> None:
        self._borders.append(
            {tensor.grad_fn for _, tensor in iter_tensors((args, kwargs)) if tensor.grad_fn is not None}
        )

    @unseen_by_subclasses
    def leave_module(self, module: nn.Module, args: tuple[object, ...], output: object) -> None:
        border = self._borders.pop() if self._borders else set()
        waiting = [tensor.grad_fn for _, tensor in iter_tensors(output) if tensor.grad_fn is not None]
        while waiting and len(self._seen) < MAX_NODES:
            node = waiting.pop()
            if node is None or node in border or node in self._seen:
                continue
            self._seen.add(node)
            add_node_hook(node, self._build_node_hook(node))
            waiting += [following for following, _ in node.next_functions if following is not None]

    def release_mode(self) -> None:
        """Nothing stays behind: the graph dies with the run."""

    def _build_node_hook(self, node: Any) -> Callable[..., object]:
        name, lines = node.name(), (node.metadata or {}).get("traceback_")

        def check_gradients(grad_inputs: object, grad_outputs: object) -> None:
            if self.found is None and _has_bad_values(grad_inputs) and not _has_bad_values(grad_outputs):
                self.found = Operation(name, *_line_of_text(lines or []))

        return check_gradients


@unseen_by_subclasses
def _has_bad_values(value: object) -> bool:
    """True if a tensor in it is not finite."""
    for _, tensor in iter_tensors(value):
        if is_checkable(tensor) and not bool(torch.isfinite(to_local_part(tensor.detach())).all()):
            return True
    return False


def _line_of_stack() -> tuple[str, str]:
    """The innermost line of the program's own, outside torch and tdbg."""
    frame = program_frame(sys._getframe(1))
    if frame is None:
        return "", ""
    name = frame.f_code.co_filename
    line = get_line(frame)
    return f"{name}:{line}", linecache.getline(name, line).strip()[:200]


def _line_of_text(lines: list[str]) -> tuple[str, str]:
    """The same from a traceback in text form, the innermost frame last."""
    for text in reversed(lines):
        head, _, rest = text.partition("\n")
        words = head.strip().split('"')
        if len(words) >= 3 and not words[1].startswith((TORCH, OWN_FOLDER, "<")):
            number = words[2].split(",")[1].split()[-1] if "," in words[2] else ""
            return f"{words[1]}:{number}", rest.strip().partition("\n")[0][:200]
    return "", ""
