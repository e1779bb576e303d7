"""Which root modules are trained, and the search for them where none was seen being called."""

import gc
from collections.abc import Callable

from torch import Tensor, nn

from tdbg.runtime.optimizers import Optimizers
from tdbg.runtime.root_modules import Roots, unwrap_module
from tdbg.runtime.torch_compat import compiler_count

MAX_SEARCHES = 4


class RootSearch:
    """Finds the forward pass of a program whose model is called in an unusual way. note: (code, text)."""

    def __init__(self, roots: Roots, optimizers: Optimizers, note: Callable[[str, str], None]) -> None:
        self.over = False  # a root was called, or the search is given up
        self.count = 0
        self._roots = roots
        self._optimizers = optimizers
        self._note = note

    def search_roots(self) -> None:
        """No hooked root has been called before a backward: look one level down, or among unpickled models."""
        tops = self._roots.list_roots()
        if not tops:
            self._adopt_unpickled()
        for root in tops:
            self._roots.hook_children(root)
        self.count += 1
        if self.count >= MAX_SEARCHES:
            self.over = True
            if is_anything_compiled():
                self._note(
                    "forward-compiled", "the model runs inside a compiled function: its forward pass is not seen"
                )
            elif self._holds_parameters_of_modules():
                self._note("forward-unseen", "no module's forward was seen: is the model called through .forward()?")
            else:
                self._note(
                    "forward-of-tensors", "the parameters belong to no nn.Module, so forward passes cannot be watched"
                )

    def _holds_parameters_of_modules(self) -> bool:
        """False where what the optimizers update are tensors of their own."""
        held = self._optimizers.collect_held_ids()
        return any(id(p) in held for root in self._roots.list_roots() for p in root.parameters())

    def trained_roots(self) -> list[nn.Module]:
        """The roots whose parameters an optimizer holds; all roots where none does (evaluation)."""
        tops = self._roots.list_roots()
        held = self._optimizers.collect_held_ids()
        return [root for root in tops if any(id(p) in held for p in root.parameters())] or tops

    def _adopt_unpickled(self) -> None:
        held = self._optimizers.collect_held_ids()
        for module in modules_in_memory():
            if any(id(p) in held for p in module.parameters()):
                self._roots.adopt_root(module)

    def trained_instead(self) -> str:
        """The class of a model with gradients that no optimizer uses, while held parameters of its shapes have none.

        It says why they get none: the optimizer was built on another instance of the model (which a deep copy is, that
        no hook has seen), or before some parameters were replaced. Empty without one. Cost: a walk over all objects in
        memory where no root is one; once.
        """
        held = self._optimizers.collect_held_ids()
        groups = [group for optimizer in self._optimizers for group in optimizer.param_groups]
        missing = [p for group in groups for p in group["params"] if p.grad is None and p.requires_grad]
        for roots in (self._roots.list_roots, modules_in_memory):
            found = next((root for root in roots() if _has_unused_gradients(root, held, missing)), None)
            if found is not None:
                return type(unwrap_module(found)).__name__
        return ""


def modules_in_memory() -> list[nn.Module]:
    """Every module that is no part of another."""
    # type(), not isinstance(): the latter asks every object in memory for its __class__, and some warn
    modules = [item for item in gc.get_objects() if issubclass(type(item), nn.Module)]
    children = {id(child) for module in modules for child in module.children()}
    return [module for module in modules if id(module) not in children]


def _has_unused_gradients(root: nn.Module, held: set[int], missing: list[Tensor]) -> bool:
    parameters = {id(p): p for p in root.parameters()}
    unused = {p.shape for p in parameters.values() if p.grad is not None and id(p) not in held}
    return any(p.shape in unused and id(p) not in parameters for p in missing)


def is_anything_compiled() -> bool:
    """True once torch.compile has made a graph."""
    return compiler_count("stats", "unique_graphs") > 0
