"""Root modules: found as they are built, and the only modules that carry hooks in normal running."""

import contextlib
import weakref
from collections.abc import Callable, Iterator
from typing import Any, TypeVar

import torch
from torch import nn
from torch.nn.modules import module as module_registry

from tdbg.probes.compiler import hide, unseen

# Path components that wrappers add; users know their modules without them.
WRAPPER_PARTS = ("_orig_mod", "_fsdp_wrapped_module", "_checkpoint_wrapped_module")
# Scripted modules take no hooks; torch's encoder leaves its fused path when one of its layers has any.
UNHOOKED = (torch.jit.ScriptModule, nn.TransformerEncoderLayer, nn.TransformerEncoder)
Target = Callable[[nn.Module, Any, Any], None]
Alive = TypeVar("Alive")
WRAPPER_CLASSES = ("DistributedDataParallel", "DataParallel")


def alive(those: "weakref.WeakKeyDictionary[Alive, Any]") -> list[Alive]:
    """The keys that are alive, in order, while other threads may add some: to go through a WeakSet would raise then."""
    return [one for one in (ref() for ref in those.keyrefs()) if one is not None]


class CallHook:
    """A hook that leaves no trace of tdbg in a copied or pickled module.

    A model may be saved whole (``torch.save(model)``) and loaded where there is no tdbg: the hook
    pickles as a bound method of the standard library that takes anything and does nothing.
    """

    def __init__(self) -> None:
        self.target: Callable[..., None] | None = None

    def __call__(self, module: nn.Module, args: Any, more: Any = None) -> None:
        if torch.compiler.is_compiling():  # inside a compiled region: be a constant nothing
            return
        if self.target is not None:
            unseen(self.target, module, args, more)

    def __deepcopy__(self, memo: dict[int, Any]) -> "CallHook":
        return self

    def __reduce__(self) -> tuple[Any, ...]:
        return getattr, (contextlib.nullcontext(), "__exit__")


hide(CallHook.__call__)


class Roots:
    """Keeps one pair of instance hooks on every root module, as roots come and go.

    A module becomes a root with its first parameter or child, and stops being one when another module
    takes it in. Nothing is hooked globally but the registration hooks, which run while a model is built.
    """

    def __init__(self, failed: Callable[[str, Exception], None]) -> None:
        self._failed = failed
        self._before = CallHook()
        self._after = CallHook()
        self._hooked: weakref.WeakKeyDictionary[nn.Module, tuple[Any, Any]] = weakref.WeakKeyDictionary()
        self._children: weakref.WeakSet[nn.Module] = weakref.WeakSet()
        self._tops: weakref.WeakKeyDictionary[nn.Module, None] = weakref.WeakKeyDictionary()
        self._compiled: weakref.WeakSet[nn.Module] = weakref.WeakSet()  # by module.compile()
        self._watches: list[Any] = []
        self._is_paused = False
        self._paused: weakref.WeakKeyDictionary[nn.Module, None] = weakref.WeakKeyDictionary()

    def attach(self, before: Target, after: Target) -> None:
        """Start watching modules being built. before, after: called around each call of a root, with (module, args, kwargs or output)."""
        self._watches = [
            module_registry.register_module_parameter_registration_hook(self._on_parameter),
            module_registry.register_module_module_registration_hook(self._on_child),
        ]
        self.aim(before, after)

    def aim(self, before: Target, after: Target) -> None:
        """From now on these are called; nothing once all hooks are removed."""
        if self._watches:
            self._before.target, self._after.target = before, after

    def detach(self) -> None:
        """Remove every hook."""
        for handle in self._watches:
            handle.remove()
        self._watches = []
        self._is_paused = False
        self._paused = weakref.WeakKeyDictionary()
        for module in alive(self._hooked):
            self._unhook(module)
        self._before.target = self._after.target = None

    def _on_parameter(self, module: nn.Module, name: str, parameter: Any) -> None:
        try:
            if module not in self._children:
                self._hook(module)
        except Exception as error:  # guard: a half-built module may not even have a hash
            self._failed("roots", error)

    def _on_child(self, parent: nn.Module, name: str, child: nn.Module | None) -> None:
        try:
            if parent not in self._children:
                self._hook(parent)
            if child is not None and child is not parent:
                self._children.add(child)
                self._tops.pop(child, None)
                self._unhook(child)
        except Exception as error:  # guard: a half-built module may not even have a hash
            self._failed("roots", error)

    def _hook(self, module: nn.Module) -> None:
        self._tops[module] = None
        self._hook_instance(module)

    def _hook_instance(self, module: nn.Module) -> None:
        if module in self._hooked or module in self._compiled or isinstance(module, UNHOOKED):
            return
        if self._is_paused:
            self._paused[module] = None
            return
        self._hooked[module] = (
            module.register_forward_pre_hook(self._before, with_kwargs=True),
            module.register_forward_hook(self._after),
        )

    def compile(self, module: nn.Module, compile_it: Callable[[], None]) -> None:
        """``module.compile()``: hooks would be traced in and fall silent, so stand around the call instead."""
        was_hooked = module in self._hooked or module in self._paused
        self._unhook(module)
        compile_it()
        compiled = module._compiled_call_impl
        if compiled is None or not was_hooked:
            return
        before, after = self._before, self._after
        whose = weakref.ref(module)

        def call(*args: Any, **kwargs: Any) -> Any:
            if torch.compiler.is_compiling():
                return compiled(*args, **kwargs)
            before(whose(), args, kwargs)  # type: ignore[arg-type]
            output = compiled(*args, **kwargs)
            after(whose(), args, output)  # type: ignore[arg-type]
            return output

        module._compiled_call_impl = hide(call)
        self._compiled.add(module)

    def _unhook(self, module: nn.Module) -> None:
        """Remove our hooks, also those a copy of a hooked module was born with."""
        self._paused.pop(module, None)
        for handle in self._hooked.pop(module, ()):
            handle.remove()
        for table in (module._forward_pre_hooks, module._forward_hooks):
            for key in [key for key, hook in table.items() if isinstance(hook, CallHook)]:
                del table[key]
                module._forward_pre_hooks_with_kwargs.pop(key, None)

    def tops(self) -> list[nn.Module]:
        """The root modules that are alive and hold parameters."""
        return [module for module in alive(self._tops) if next(module.parameters(), None) is not None]

    def adopt(self, module: nn.Module) -> None:
        """Take in a module that was not built here (unpickled, say)."""
        self._hook(module)

    def descend(self, module: nn.Module) -> bool:
        """Hook the children of a root that is never called itself (Lightning calls ``training_step``).

        Returns False where there are none left to descend to.
        """
        found = False
        for child in module.children():
            if next(child.parameters(), None) is not None:
                self._hook_instance(child)
                found = True
        return found

    def pause(self, off: bool) -> None:
        """Take the instance hooks away for a while, or put them back: also on modules built meanwhile."""
        if off == self._is_paused:
            return
        if off:
            hooked = alive(self._hooked)
            for module in hooked:
                self._unhook(module)
            self._is_paused = True
            for module in hooked:
                self._paused[module] = None
        else:
            self._is_paused = False
            paused, self._paused = alive(self._paused), weakref.WeakKeyDictionary()
            for module in paused:
                self._hook_instance(module)

    def count(self) -> int:
        """How many modules carry hooks."""
        return len(self._hooked)

    @contextlib.contextmanager
    def bare(self, roots: list[nn.Module]) -> Iterator[None]:
        """The given modules without our hooks (torch.jit.script cannot compile them)."""
        held = []
        for module in (module for root in roots for module in root.modules()):
            if module in self._hooked or module in self._paused:
                held.append(module)
            self._unhook(module)
        try:
            yield
        finally:
            for module in held:
                self._hook_instance(module)


def clean_path(path: str) -> str:
    """A module or parameter path as the user wrote it, without the parts wrappers add."""
    return ".".join(part for part in path.split(".") if part not in WRAPPER_PARTS)


def unwrapped(module: nn.Module) -> nn.Module:
    """The user's module inside DDP, DataParallel and torch.compile wrappers."""
    while not isinstance(module, torch.jit.ScriptModule):  # it has no dict of modules, and no wrappers
        if type(module).__name__ in WRAPPER_CLASSES and isinstance(getattr(module, "module", None), nn.Module):
            module = module.module  # type: ignore[assignment]
        elif isinstance(module.__dict__.get("_modules", {}).get("_orig_mod"), nn.Module):
            module = module._modules["_orig_mod"]  # type: ignore[assignment]
        else:
            break
    return module


class Names:
    """Names of parameters and modules over all roots; prefixed by the root's class if there are several."""

    def __init__(self, roots: list[nn.Module]) -> None:
        self.parameters: dict[int, str] = {}
        self.modules: dict[int, str] = {}
        seen: dict[str, int] = {}
        inner = [unwrapped(root) for root in roots]
        for root in inner:
            prefix = ""
            if len(inner) > 1:
                label = type(root).__name__
                seen[label] = seen.get(label, 0) + 1
                prefix = f"{label}." if seen[label] == 1 else f"{label}#{seen[label]}."
            for path, module in root.named_modules():
                self.modules.setdefault(id(module), prefix + clean_path(path) if path else prefix.rstrip("."))
            for path, parameter in root.named_parameters():
                self.parameters.setdefault(id(parameter), prefix + clean_path(path))
