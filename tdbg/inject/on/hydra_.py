"""Hydra: flags go into the config it has composed, overrides and all, before the program sees it."""

import sys
from types import ModuleType

from tdbg.inject.on.omegaconf_ import Omega
from tdbg.inject.set_flags import set_flags
from tdbg.inject.take import install_after_hook


class Hydra(Omega):
    """The same tree; only the name in the report differs."""

    name = "hydra"


def arrive(module: ModuleType) -> None:
    """Patch the one method that ``@hydra.main``, ``compose()`` and sweeps all go through."""
    tree = Hydra(sys.modules["omegaconf"])
    install_after_hook(
        module.ConfigLoaderImpl,
        "load_configuration",
        lambda _, config: set_flags(config, tree, unknown="refuse"),
        "hydra",
    )
