"""Root modules: found as they are built, and the only modules that carry hooks in normal running."""

import contextlib
import weakref
from collections.abc import Callable
from typing import Any, TypeVar

import torch
from torch import nn
from torch.nn.modules import module as module_registry

from tdbg.guard import Guard, belongs_to_program
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


class _Hook:
    """A hook that leaves no trace of tdbg in a copied or pickled module.

    A model may be saved whole (``torch.save(model)``) and loaded where there is no tdbg: the hook
    pickles as a bound method of the standard library that takes anything and does nothing.
    """

    def __init__(self, guard: Guard) -> None:
        self.target: Callable[..., None] | None = None
        self.guard = guard

    def __call__(self, module: nn.Module, args: Any, more: Any = None) -> None:
        if torch.compiler.is_compiling():  # inside a compiled region: be a constant nothing
            return
        if self.target is not None:
            unseen(self.guard.call, self.target, module, args, more)

    def __deepcopy__(self, memo: dict[int, Any]) -> "_Hook":
        return self

    def __reduce__(self) -> tuple[Any, ...]:
        return getattr, (contextlib.nullcontext(), "__exit__")


hide(_Hook.__call__)


class Roots:
    """Keeps one pair of instance hooks on every root module, as roots come and go.

    A module becomes a root with its first parameter or child, and stops being one when another module
    takes it in. Nothing is hooked globally but the registration hooks, which run while a model is built.
    """

    def __init__(self, failed: Callable[[str, BaseException], None]) -> None:
        self._guard, forward = Guard("roots", failed), Guard("forward", failed)
        self._before = _Hook(forward)
        self._after = _Hook(forward)
        self._hooked: weakref.WeakKeyDictionary[nn.Module, tuple[Any, Any]] = weakref.WeakKeyDictionary()
        self._children: weakref.WeakSet[nn.Module] = weakref.WeakSet()
        self._tops: weakref.WeakKeyDictionary[nn.Module, None] = weakref.WeakKeyDictionary()
        self._compiled: weakref.WeakSet[nn.Module] = weakref.WeakSet()  # by module.compile()
        self._watches: list[Any] = []
        self._paused: list[nn.Module] = []

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
        for module in alive(self._hooked):
            self._unhook(module)
        self._before.target = self._after.target = None

    def _on_parameter(self, module: nn.Module, name: str, parameter: Any) -> None:
        self._guard.call(self._meet, module, None)

    def _on_child(self, parent: nn.Module, name: str, child: nn.Module | None) -> None:
        self._guard.call(self._meet, parent, child)

    def _meet(self, module: nn.Module, child: nn.Module | None) -> None:
        """A module got a parameter, or a child."""
        if not _can_be_kept(module):
            return
        if module not in self._children:
            self._hook(module)
        if child is not None and child is not module and _can_be_kept(child):
            self._children.add(child)
            self._tops.pop(child, None)
            self._unhook(child)

    def _hook(self, module: nn.Module) -> None:
        self._tops[module] = None
        self._hook_instance(module)

    def _hook_instance(self, module: nn.Module) -> None:
        if module in self._hooked or module in self._compiled or isinstance(module, UNHOOKED):
            return
        self._hooked[module] = (
            module.register_forward_pre_hook(self._before, with_kwargs=True),
            module.register_forward_hook(self._after),
        )

    def before_compile(self, module: nn.Module) -> bool:
        """``module.compile()`` comes: hooks would be traced in and fall silent. True if the module had ours."""
        was_hooked = module in self._hooked
        self._unhook(module)
        return was_hooked

    def after_compile(self, module: nn.Module) -> None:
        """``module.compile()`` has returned: stand around the compiled call instead of hooking the module."""
        compiled = module._compiled_call_impl
        if compiled is None:
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
        for handle in self._hooked.pop(module, ()):
            handle.remove()
        for table in (module._forward_pre_hooks, module._forward_hooks):
            for key in [key for key, hook in table.items() if isinstance(hook, _Hook)]:
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
        """Take the instance hooks away for a while, or put them back."""
        if off:
            self._paused = alive(self._hooked)
            for module in self._paused:
                self._unhook(module)
        else:
            for module in self._paused:
                self._hook_instance(module)
            self._paused = []

    def count(self) -> int:
        """How many modules carry hooks."""
        return len(self._hooked)

    def strip(self, roots: list[nn.Module]) -> list[nn.Module]:
        """Take our hooks from these modules and all below them (torch.jit.script cannot compile them); returns those
        that had some."""
        held = []
        for module in (module for root in roots for module in root.modules()):
            if module in self._hooked:
                held.append(module)
            self._unhook(module)
        return held

    def put_back(self, modules: list[nn.Module]) -> None:
        """Hook the modules that `strip` returned."""
        for module in modules:
            self._hook_instance(module)


def _can_be_kept(module: nn.Module) -> bool:
    """False for a module without a hash; one that is half built may not have it yet."""
    try:
        hash(module)
    except BaseException as error:
        if belongs_to_program(error):
            raise
        return False
    return True


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
