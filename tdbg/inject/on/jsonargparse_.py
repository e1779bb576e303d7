"""jsonargparse (and LightningCLI): flags go into the parsed namespace, nested as the program declares it."""

import functools
from types import ModuleType
from typing import Any

from tdbg.inject.set_flags import set_flags
from tdbg.inject.take import install_after_hook

DEEPEST = 3  # fit.model.init_args.debug_x
PARSERS = ("parse_args", "parse_object", "parse_string", "parse_path", "parse_env")


class Json:
    """A jsonargparse Namespace: nested attributes; options that hold a dict count as sections too."""

    mode = "argparse"

    def __init__(self, module: ModuleType, below: str = "") -> None:
        self.module = module
        self.name = f"jsonargparse {below}".rstrip()
        self._namespace: Any = module.Namespace

    def list_sections(self, node: object) -> list[str]:
        """The keys below ``node`` that hold namespaces of their own, such as ``model`` or a subcommand."""
        return [key for key, child in vars(node).items() if isinstance(child, self._namespace)]

    def list_keys(self, node: object) -> list[str] | None:
        if isinstance(node, self._namespace):
            node = vars(node)
        return [key for key in node if isinstance(key, str)] if isinstance(node, dict) else None

    def get_child(self, node: object, key: str) -> Any:
        return node[key] if isinstance(node, dict) else getattr(node, key)

    def set_value(self, node: object, key: str, value: object) -> None:
        if isinstance(node, dict):
            node[key] = value
        else:
            setattr(node, key, value)

    def build_section(self, node: object) -> object:
        return None


def arrive(module: ModuleType) -> None:
    """Patch the parser's methods that return a whole config."""
    tree = Json(module)
    for name in PARSERS:
        if hasattr(module.ArgumentParser, name):
            then = functools.partial(_handle_parsed_config, tree, name == "parse_args")
            install_after_hook(module.ArgumentParser, name, then, "jsonargparse")


def _handle_parsed_config(tree: Json, final: bool, _: object, config: object) -> None:
    _apply_flags(config, tree, final=final)


def _apply_flags(config: object, tree: Json, path: str = "", *, final: bool) -> None:
    """Also below: an argument of LightningCLI's model is ``model.debug_x``, of a subcommand ``fit.model.debug_x``."""
    if not hasattr(config, "__dict__") or path.count(".") > DEEPEST:
        return
    set_flags(config, tree, unknown="doubt", final=final)
    for key in tree.list_sections(config):
        if not key.lower().startswith("debug"):
            below = f"{path}.{key}" if path else key
            _apply_flags(getattr(config, key), Json(tree.module, f"{below}:"), below, final=final)
