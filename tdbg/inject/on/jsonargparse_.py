"""jsonargparse (and LightningCLI): flags go into the parsed namespace, nested as the program declares it."""

from types import ModuleType
from typing import Any

from tdbg.inject.take import after, offer

PARSERS = ("parse_args", "parse_object", "parse_string", "parse_path", "parse_env")


class Json:
    """A jsonargparse Namespace: nested attributes; options that hold a dict count as sections too."""

    name = "jsonargparse"

    def __init__(self, module: ModuleType) -> None:
        self._namespace: Any = module.Namespace

    def keys(self, node: Any) -> list[str] | None:
        if isinstance(node, self._namespace):
            node = vars(node)
        return [key for key in node if isinstance(key, str)] if isinstance(node, dict) else None

    def get(self, node: Any, key: str) -> Any:
        return node[key] if isinstance(node, dict) else getattr(node, key)

    def put(self, node: Any, key: str, value: Any) -> None:
        if isinstance(node, dict):
            node[key] = value
        else:
            setattr(node, key, value)

    def section(self, node: Any) -> Any:
        return None


def arrive(module: ModuleType) -> None:
    """Patch the parser's methods that return a whole config."""
    tree = Json(module)
    for name in PARSERS:
        if hasattr(module.ArgumentParser, name):
            after(module.ArgumentParser, name, lambda _, config: _offer(config, tree), "inject-jsonargparse")


def _offer(config: Any, tree: Json) -> None:
    offer(config, tree, unknown="doubt")
    command = getattr(config, "subcommand", None)
    if isinstance(command, str) and hasattr(config, command):
        offer(getattr(config, command), tree, unknown="doubt")
