"""OmegaConf: flags go into every config that has a debug section, as it is created, loaded or merged.

OmegaConf has no moment at which a config is final, so a flag without a place is in doubt until the first step.
"""

import functools
from types import ModuleType
from typing import Any

from tdbg.core.frames import without_own_frames
from tdbg.inject.foreign_patches import replace_function
from tdbg.inject.set_flags import set_flags
from tdbg.inject.take import guard_of

MAKERS = ("create", "load", "structured", "merge", "unsafe_merge")


class Omega:
    """A DictConfig, written although it may be read-only or in struct mode."""

    name = "omegaconf"
    mode = "hydra"

    def __init__(self, module: ModuleType) -> None:
        self._dict: Any = module.DictConfig
        self._override: Any = module.flag_override
        self._error: type[Exception] = module.errors.OmegaConfBaseException

    def list_keys(self, node: Any) -> list[str] | None:
        if not isinstance(node, self._dict) or node._is_none() or node._is_missing() or node._is_interpolation():
            return None
        return [key for key in node if isinstance(key, str)]

    def get_child(self, node: Any, key: str) -> object:
        child = node._get_node(key)
        if isinstance(child, self._dict):
            return child
        try:
            return node[key]
        except self._error:  # a missing value ("???") or an interpolation that leads nowhere: nothing to keep
            return None

    def set_value(self, node: Any, key: str, value: object) -> None:
        with self._override(node, ["readonly", "struct"], [False, False]):
            node[key] = value

    def build_section(self, node: object) -> object:
        return None  # outside struct mode anything may be added, so a misspelt flag would never be noticed


def arrive(module: ModuleType) -> None:
    """Patch the static methods of OmegaConf that make configs."""
    tree = Omega(module)
    for name in MAKERS:
        if hasattr(module.OmegaConf, name):
            _install_after_hook(module.OmegaConf, name, tree)


def _install_after_hook(owner: object, name: str, tree: Omega) -> None:
    real, guard = getattr(owner, name), guard_of("inject-omegaconf")

    @functools.wraps(real)
    @without_own_frames
    def call_and_set_flags(*args: object, **kwargs: object) -> object:
        config = real(*args, **kwargs)
        guard.call_guarded(set_flags, config, tree, unknown="doubt")
        return config

    replace_function("omegaconf", owner, name, staticmethod(call_and_set_flags))
