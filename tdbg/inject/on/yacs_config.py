"""yacs: flags go into a CfgNode when the program freezes it.

A config that is never frozen gets them after each merge and when ``cfg.DEBUG`` is read.
"""

import functools
from types import ModuleType
from typing import Any

from tdbg.inject.set_flags import set_flags
from tdbg.inject.take import guard_of, install_after_hook

MERGES = ("merge_from_file", "merge_from_other_cfg", "merge_from_list")


class Yacs:
    """A CfgNode is a dict; writing its items is what yacs does too, frozen or not."""

    name = "yacs"
    mode = "yacs"

    def list_keys(self, node: object) -> list[str] | None:
        return [key for key in node if isinstance(key, str)] if isinstance(node, dict) else None

    def get_child(self, node: Any, key: str) -> object:
        return node[key]

    def set_value(self, node: Any, key: str, value: object) -> None:
        node[key] = value

    def build_section(self, node: Any) -> object:
        return type(node)(new_allowed=True) if getattr(node, "is_new_allowed", bool)() else None


TREE = Yacs()


def arrive(module: ModuleType) -> None:
    """Patch CfgNode."""
    node = module.CfgNode
    _before_freeze(node)
    _before_read(node)
    for name in MERGES:
        install_after_hook(node, name, lambda self, _: set_flags(self, TREE, unknown="doubt"), "yacs")
    install_after_hook(node, "clone", lambda _, copy: set_flags(copy, TREE, unknown="doubt"), "yacs")


def _before_freeze(node: Any) -> None:
    real, guard = node.freeze, guard_of("inject-yacs")

    @functools.wraps(real)
    def freeze(self: object) -> object:
        guard.call_guarded(set_flags, self, TREE, unknown="refuse")
        return real(self)

    node.freeze = freeze


def _before_read(node: Any) -> None:
    """A config neither merged nor frozen: its first chance is the program asking for ``cfg.DEBUG``."""
    real, guard = node.__getattr__, guard_of("inject-yacs")

    def offer_thawed(config: Any) -> None:
        if not config.is_frozen():
            set_flags(config, TREE, unknown="ignore")

    @functools.wraps(real)
    def get_attribute(self: object, name: str) -> object:
        if name in ("DEBUG", "debug"):
            guard.call_guarded(offer_thawed, self)
        return real(self, name)

    node.__getattr__ = get_attribute
