"""Root modules: found as they are built, and the only modules that carry hooks in normal running."""

import contextlib
import weakref
from collections.abc import Callable
from typing import Any, TypeVar

import torch
from torch import nn
from torch.utils.hooks import RemovableHandle

from tdbg.core.frames import drop_own_frames
from tdbg.core.guard import Guard, belongs_to_program, guarded
from tdbg.runtime.compiler import call_outside_compiler, hide_from_compiler
from tdbg.runtime.identity_keys import IdentityKeys
from tdbg.runtime.own_hooks import HookHandle, add_post_hook, add_pre_hook, can_hook, post_hooks_of, reserve_key
from tdbg.runtime.torch_compat import compiled_call_of, set_compiled_call
from tdbg.runtime.torch_hooks import hook_all
from tdbg.runtime.unhooked import repair_traceback

# Path components that wrappers add; users know their modules without them.
WRAPPER_PARTS = ("_orig_mod", "_fsdp_wrapped_module", "_checkpoint_wrapped_module")
# Scripted modules take no hooks; torch's encoder leaves its fused path when one of its layers has any.
UNHOOKED = (torch.jit.ScriptModule, nn.TransformerEncoderLayer, nn.TransformerEncoder)
# torch's own helpers, which live while it compiles or exports and which its compiler cannot see into when hooked.
HELPERS = ("torch._", "torch.export.")
Target = Callable[[nn.Module, Any, Any], None]
Raised = Callable[[nn.Module], None]
Skip = Callable[[nn.Module, Any, Any], bool]  # True: there is no more to do
Held = TypeVar("Held")
Alive = TypeVar("Alive")
WRAPPER_CLASSES = ("DistributedDataParallel", "DataParallel")
ROOT_KEY: Any = reserve_key("root")


def list_alive(those: "weakref.WeakKeyDictionary[Alive, Held]") -> list[Alive]:
    """The keys that are alive, in order, while other threads may add some: to go through a WeakSet would raise then."""
    return [one for one in (ref() for ref in those.keyrefs()) if one is not None]


class CallHook:
    """A hook that passes every call on to its target, while there is one.

    No copy or pickle of the module holds it (`own_hooks`). Where somebody pickles the hook itself, a bound method of the
    standard library stands for it that takes anything and does nothing.
    """

    def __init__(self, guard: Guard, *, after: bool = False) -> None:
        self.target: Callable[..., None] | None = None
        self.skip: Skip | None = None  # asked first
        self.raised: Raised | None = None  # called instead where the module's call has raised
        self.guard = guard
        self.skip_guard = Guard("fast-path")
        self._after = after

    def __call__(self, module: nn.Module, args: tuple[object, ...], more: object = None) -> None:
        if torch.compiler.is_compiling():  # inside a compiled region: be a constant nothing
            return
        if self.skip is not None:
            try:
                if self.skip(module, args, more):
                    return
            except BaseException as error:  # inline, as this runs at every call of a root
                if belongs_to_program(error):
                    raise
                self.skip = None
                self.skip_guard.handle_failure(error)
        if self._after and more is None and repair_traceback(module):
            self.on_call_raised(module)
            return
        if self.target is not None:
            call_outside_compiler(self.guard.call_guarded, self.target, module, args, more)

    def on_call_raised(self, module: nn.Module) -> None:
        """The module's call has raised."""
        if self.raised is not None:
            call_outside_compiler(self.guard.call_guarded, self.raised, module)

    def __deepcopy__(self, memo: dict[int, object]) -> "CallHook":
        return self

    def __reduce__(self) -> tuple[object, ...]:
        return getattr, (contextlib.nullcontext(), "__exit__")


hide_from_compiler(CallHook.__call__)


class Roots:
    """Keeps one pair of instance hooks on every root module, as roots come and go.

    A module becomes a root with its first parameter or child, and stops being one when another module
    takes it in. Nothing is hooked globally but the registration hooks, which run while a model is built.
    """

    def __init__(self, failed: Callable[[str, BaseException], None]) -> None:
        self._guard, forward = Guard("roots", failed), Guard("forward", failed)
        self._before = CallHook(forward)
        self._after = CallHook(forward, after=True)
        self._hooked: IdentityKeys[nn.Module, tuple[HookHandle, ...]] = IdentityKeys()
        self._children: IdentityKeys[nn.Module, None] = IdentityKeys()
        self._tops: IdentityKeys[nn.Module, None] = IdentityKeys()
        self._compiled: IdentityKeys[nn.Module, None] = IdentityKeys()  # by module.compile()
        self._watches: list[HookHandle | RemovableHandle] = []
        self._aimed: tuple[Target, Target, Raised | None] | None = None
        self._is_paused = False
        self._paused: IdentityKeys[nn.Module, None] = IdentityKeys()

    def attach(self, before: Target, after: Target, raised: Raised | None = None) -> None:
        """Start watching modules being built.

        before, after: called around each call of a root, with (module, args, kwargs or output).
        raised: called in the place of ``after`` where the call raised.
        """
        self._watches = [
            hook_all("parameter-registered", self._on_parameter),
            hook_all("child-registered", self._on_child),
        ]
        self.set_targets(before, after, raised)

    def set_targets(self, before: Target, after: Target, raised: Raised | None = None) -> None:
        """From now on these are called; nothing once all hooks are removed."""
        if self._watches:
            self._aimed = before, after, raised
            self._before.target, self._after.target, self._after.raised = before, after, raised

    def keep_only(self, before: Target | None, skip: Skip | None) -> None:
        """Call this alone before each call of a root, and nothing after it; with None all as it was aimed."""
        self._before.skip = skip
        if before is not None:
            self._before.target, self._after.target, self._after.raised = before, None, None
        elif self._aimed is not None:
            self.set_targets(*self._aimed)

    def detach(self) -> None:
        """Remove every hook."""
        for handle in self._watches:
            handle.remove()
        self._watches = []
        self._is_paused = False
        self._paused = IdentityKeys()
        for module in list(self._hooked):
            self._unhook_module(module)
        self._before.target = self._after.target = self._after.raised = None

    def _on_parameter(self, module: nn.Module, name: str, parameter: torch.Tensor) -> None:
        self._guard.call_guarded(self._register_module, module, None)

    def _on_child(self, parent: nn.Module, name: str, child: nn.Module | None) -> None:
        self._guard.call_guarded(self._register_module, parent, child)

    def _register_module(self, module: nn.Module, child: nn.Module | None) -> None:
        """A module got a parameter, or a child."""
        if not _can_be_kept(module):
            return
        if module not in self._children:
            self._hook_root(module)
        if child is not None and child is not module and _can_be_kept(child):
            self._children[child] = None
            self._tops.pop(child, None)
            self._unhook_module(child)

    def _hook_root(self, module: nn.Module) -> None:
        self._tops[module] = None
        self._hook_module(module)

    def _hook_module(self, module: nn.Module) -> None:
        if module in self._hooked or module in self._compiled or isinstance(module, UNHOOKED) or not can_hook(module):
            return
        kind = type(module)
        if kind.__module__.startswith(HELPERS) and kind.__name__ != "OptimizedModule":
            return
        if self._is_paused:
            self._paused[module] = None
            return
        self._hooked[module] = (
            add_pre_hook(module, self._before, key=ROOT_KEY, with_kwargs=True),
            add_post_hook(module, self._after, key=ROOT_KEY, always_call=True),
        )

    def before_compile(self, module: nn.Module) -> bool:
        """``module.compile()`` comes: hooks would be traced in and fall silent. True if the module had ours."""
        was_hooked = module in self._hooked or module in self._paused
        self._unhook_module(module)
        return was_hooked

    def after_compile(self, module: nn.Module) -> None:
        """``module.compile()`` has returned: stand around the compiled call instead of hooking the module."""
        compiled = compiled_call_of(module)
        if compiled is None:
            return
        before, after = self._before, self._after
        whose = weakref.ref(module)

        def call_compiled(*args: object, **kwargs: object) -> object:
            if torch.compiler.is_compiling():
                return compiled(*args, **kwargs)
            before(whose(), args, kwargs)  # type: ignore[arg-type]
            try:
                output = compiled(*args, **kwargs)
            except BaseException as error:
                after.on_call_raised(whose())  # type: ignore[arg-type]
                drop_own_frames(error)
                raise
            after(whose(), args, output)  # type: ignore[arg-type]
            return output

        set_compiled_call(module, hide_from_compiler(call_compiled))
        self._compiled[module] = None

    def _unhook_module(self, module: nn.Module) -> None:
        self._paused.pop(module, None)
        for handle in self._hooked.pop(module, ()):
            handle.remove()

    def list_roots(self) -> list[nn.Module]:
        """The root modules that are alive and hold parameters."""
        return [module for module in list(self._tops) if next(module.parameters(), None) is not None]

    def adopt_root(self, module: nn.Module) -> None:
        """Take in a module that was not built here (unpickled, say)."""
        self._hook_root(module)

    def take_in_copy(self, module: nn.Module) -> None:
        """A module was copied or unpickled, its parts before it: as if it had been built here, of these parts."""
        if not self._watches or isinstance(module, torch.jit.ScriptModule) or not _can_be_kept(module):
            return
        if ROOT_KEY in post_hooks_of(module):  # a shallow copy, which shares its tables with the original
            return
        for child in module._modules.values():
            self._register_module(module, child)
        if module._parameters and module not in self._children:
            self._hook_root(module)

    def hook_children(self, module: nn.Module) -> bool:
        """Hook the children of a root that is never called itself (Lightning calls ``training_step``).

        Of one that cannot be called (`nn.ModuleList`) its own children. Returns False where there are none left to
        descend to.
        """
        found = False
        for child in module.children():
            if next(child.parameters(), None) is None:
                continue
            if type(child).forward is nn.Module.forward:
                found = self.hook_children(child) or found
            else:
                self._hook_module(child)
                found = True
        return found

    def pause_hooks(self, off: bool) -> None:
        """Take the instance hooks away for a while, or put them back: also on modules built meanwhile."""
        if off == self._is_paused:
            return
        if off:
            hooked = list(self._hooked)
            for module in hooked:
                self._unhook_module(module)
            self._is_paused = True
            for module in hooked:
                self._paused[module] = None
        else:
            self._is_paused = False
            paused, self._paused = list(self._paused), IdentityKeys()
            for module in paused:
                self._hook_module(module)

    def count_hooked(self) -> int:
        """How many modules carry hooks."""
        return len(self._hooked)


def _can_be_kept(module: nn.Module) -> bool:
    """False for a module without a hash; one that is half built may not have it yet."""
    with guarded("the program's own __hash__ may raise anything", program_code=True):
        hash(module)
        return True
    return False


def clean_path(path: str) -> str:
    """A module or parameter path as the user wrote it, without the parts wrappers add."""
    return ".".join(part for part in path.split(".") if part not in WRAPPER_PARTS)


def unwrap_module(module: nn.Module) -> nn.Module:
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
        inner = [unwrap_module(root) for root in roots]
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
