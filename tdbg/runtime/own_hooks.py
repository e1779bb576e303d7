"""Hooks of tdbg on the program's modules and tensors, which no copy, pickle or export of these ever holds.

Whatever serializes a Python object, `pickle` and all that is built on it (``torch.save``, multiprocessing, cloudpickle)
as well as ``copy.deepcopy``, asks `copyreg` how to take an `OrderedDict` apart, the type of torch's tables of hooks. Our
entries have keys that nobody else uses, and are left out there. So it does not matter which class the module is of, or
which of ``__getstate__``, ``__reduce__`` and ``__deepcopy__`` it defines.

torch numbers the hooks that it registers, and a saved module holds the numbers of the program's own. So ours take none.
"""

import copyreg
from collections import OrderedDict
from collections.abc import Callable, Iterable, Sequence
from itertools import count
from typing import Any

from torch import Tensor, nn
from torch.utils.hooks import RemovableHandle

from tdbg.runtime.compiler import hide_hook
from tdbg.runtime.torch_compat import without_subclass

Table = Any  # an OrderedDict that torch declares with numbers as keys
Entry = tuple[Table, str, Any, bool]  # a table, our key in it, what stood there, and whether it stood first
_own_keys: set[str] = set()
_reduce_before: Callable[[object], Any] | None = None


class HookHandle:
    """Takes one hook away; a second time there is nothing left to do."""

    __slots__ = ("_key", "_tables")

    def __init__(self, key: str, *tables: Table) -> None:
        self._key, self._tables = key, tables

    def remove(self) -> None:
        """Take the hook away."""
        for table in self._tables:
            table.pop(self._key, None)


def reserve_key(purpose: str) -> str:
    """A key for hooks of one purpose, of which a table holds one at most."""
    if not _own_keys:
        _leave_own_hooks_out()
    key = f"<tdbg {purpose}>"
    _own_keys.add(key)
    return key


def add_pre_hook(
    module: nn.Module, hook: Callable[..., object], *, key: str = "", with_kwargs: bool = False, first: bool = False
) -> HookHandle:
    """Have ``hook`` called before the module, as ``register_forward_pre_hook`` does."""
    table, noted = _require_ordered_dict(module._forward_pre_hooks), module._forward_pre_hooks_with_kwargs
    key = _insert_hook(table, hook, key, first=first)
    if with_kwargs:
        noted[key] = True  # type: ignore[index]
    return HookHandle(key, table, noted)


def add_post_hook(
    module: nn.Module, hook: Callable[..., object], *, key: str = "", always_call: bool = False
) -> HookHandle:
    """Have ``hook`` called after the module, as ``register_forward_hook`` does."""
    table, noted = _require_ordered_dict(module._forward_hooks), module._forward_hooks_always_called
    key = _insert_hook(table, hook, key)
    if always_call:
        noted[key] = True  # type: ignore[index]
    return HookHandle(key, table, noted)


def add_global_hook(table: Table, hook: Callable[..., object]) -> HookHandle:
    """Have ``hook`` called as the others in one of torch's tables for all modules or optimizers."""
    return HookHandle(_insert_hook(table, hook, ""), table)


def add_gradient_hook(tensor: Tensor, hook: Callable[[Tensor | None], object], *, purpose: str = "") -> HookHandle:
    """Have ``hook`` called with the gradient of a tensor, as ``Tensor.register_hook`` does.

    It gets None where a node has several outputs (chunk, a recurrent layer on CUDA) and only others of them were used.

    purpose: on a tensor that stays, such as a parameter that a module returns, it replaces the last hook of its purpose.
    """
    with without_subclass():
        table: Table = tensor._backward_hooks
        if table is None:
            table = tensor._backward_hooks = OrderedDict()
            if tensor.grad_fn is not None:
                tensor.grad_fn._register_hook_dict(tensor)
        key = _insert_hook(table, hook, reserve_key(purpose) if purpose and tensor.is_leaf else "")
    held: Any = getattr(hook, "__func__", hook)  # a method takes no attribute
    if not hasattr(held, "__torch_unserializable__"):  # or saving the tensor warns of it
        held.__torch_unserializable__ = True
    return HookHandle(key, table)


def add_accumulation_hook(parameter: Tensor, hook: Callable[[Tensor], object]) -> HookHandle:
    """Have ``hook`` called with a parameter whose gradient is there, as ``register_post_accumulate_grad_hook`` does."""
    table: Table = parameter._post_accumulate_grad_hooks
    if table is None:
        table = parameter._post_accumulate_grad_hooks = OrderedDict()
    return HookHandle(_insert_hook(table, hook, ""), table)


def add_node_hook(node: Any, hook: Callable[..., object]) -> None:
    """Have ``hook`` called after a node of a graph that is tdbg's own, as ``Node.register_hook`` does."""
    number = RemovableHandle.next_id
    node.register_hook(hook)
    RemovableHandle.next_id = number


def take_away(modules: Iterable[nn.Module]) -> list[Entry]:
    """The modules without any hook of ours: what takes them apart (torch.jit) cannot handle them. For `put_back`."""
    removed: list[Entry] = []
    for module in modules:
        for table in _tables_of(module):
            first = next(iter(table), None)
            removed += [(table, key, table.pop(key), key == first) for key in _own_keys & table.keys()]
    return removed


def put_back(removed: Sequence[Entry]) -> None:
    """The hooks stand where they stood."""
    for table, key, value, stood_first in reversed(removed):
        table[key] = value
        if stood_first:
            table.move_to_end(key, last=False)


def _tables_of(module: nn.Module) -> list[Table]:
    held = vars(module)
    names = ("_forward_pre_hooks", "_forward_pre_hooks_with_kwargs", "_forward_hooks", "_forward_hooks_always_called")
    return [held[name] for name in names if type(held.get(name)) is OrderedDict]


def can_hook(module: nn.Module) -> bool:
    """True if the module keeps its hooks as torch does: in other tables ours would be saved with the module."""
    held = vars(module)
    return type(held.get("_forward_pre_hooks")) is OrderedDict is type(held.get("_forward_hooks"))


def post_hooks_of(module: nn.Module) -> Table:
    """The table of what is called after the module; only for one that `can_hook`."""
    return module._forward_hooks


def pre_hooks_of(module: nn.Module) -> tuple[Table, Table]:
    """The table of what is called before the module, and that of those which also get its keyword arguments."""
    return module._forward_pre_hooks, module._forward_pre_hooks_with_kwargs


def has_foreign_hooks(module: nn.Module) -> bool:
    """True if a hook that is not of tdbg runs when the module is called."""
    tables = (module._forward_pre_hooks, module._forward_hooks, module._backward_pre_hooks, module._backward_hooks)
    return any(table.keys() - _own_keys for table in tables)


def _require_ordered_dict(table: Table) -> Table:
    if type(table) is not OrderedDict:
        raise TypeError(
            f"the module keeps its hooks in a {type(table).__name__}: one of tdbg there would be saved with it"
        )
    return table


def _insert_hook(table: Table, hook: Callable[..., object], key: str, *, first: bool = False) -> str:
    if not key:
        key = next(name for name in map(str, count()) if f"<tdbg {name}>" not in table)
        key = reserve_key(key)
    hide_hook(hook)
    table[key] = hook
    if first:
        table.move_to_end(key, last=False)
    return key


def _leave_own_hooks_out() -> None:
    global _reduce_before
    _reduce_before = copyreg.dispatch_table.get(OrderedDict)
    copyreg.pickle(OrderedDict, _reduce_without_own)


def _reduce_without_own(table: "OrderedDict[object, object]") -> Any:
    """What ``OrderedDict.__reduce__`` says, without our entries."""
    reduced = table.__reduce__() if _reduce_before is None else _reduce_before(table)
    if not any(
        key in table for key in tuple(_own_keys)
    ):  # the program's own keys are not touched: they may be anything
        return reduced
    kept = [(key, value) for key, value in table.items() if key not in _own_keys]
    return (*reduced[:4], iter(kept), *reduced[5:])
