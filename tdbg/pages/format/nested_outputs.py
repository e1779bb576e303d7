"""Rebuild nested outputs from what pages store: leaves by path, and notes. Standard library alone.

``FeatureMap/stats/mean`` is a step for each dict, list or tuple on the way to it. What the steps do not tell stands in
a note of the container's path: ``{"list": ""}``, ``{"tuple": NAME}``, ``{"set": ""}``, ``{"dict": ""}`` of an empty dict,
``{"dict": {STEP: KEY}}`` of keys that are no text. ``{"refused": NAME}``: its parts are left out.
"""

from collections import Counter
from collections.abc import Iterable, Mapping
from typing import Any

from tdbg.core.tables import format_short

CONTAINERS = ("list", "tuple", "set", "dict", "sparse")
Notes = Mapping[str, Mapping[str, Any]]
_NONE: Mapping[str, object] = {}
_NOTHING: Notes = {}
_KEYS = (str, int, float, bool, type(None))  # that a note can hold


def build_path_steps(keys: Iterable[object]) -> dict[str, object]:
    """The keys of a dict, each by its step of a path. Two that would have one step are told apart by ``~2``."""
    found: dict[str, Any] = {}
    counts: Counter[str] = Counter()
    for key in keys:
        name = step = format_short(key).replace("/", "\\x2f")
        while step in found:
            counts[name] += 1
            step = f"{name}~{counts[name] + 1}"
        found[step] = key
    return found


def dict_note(found: Mapping[str, object]) -> dict[str, object]:
    """The note of a dict of these `steps`: that there are none, and keys that are written otherwise."""
    if not found:
        return {"dict": ""}
    odd = {step: key for step, key in found.items() if step != key and isinstance(key, _KEYS)}
    return {"dict": odd} if odd else {}


class _Node:
    """A step of a path: what lies at it, and below it."""

    __slots__ = ("below", "has_leaf", "leaf")

    def __init__(self) -> None:
        self.below: dict[str, _Node] = {}
        self.leaf: object = None
        self.has_leaf = False

    def ensure_path(self, path: str) -> "_Node":
        """The node of a path below this one; made where it is not there."""
        node = self
        for step in path.split("/") if path else ():
            node = node.below.setdefault(step, _Node())
        return node


def rebuild_nested(leaves: Iterable[tuple[str, object]], notes: Notes = _NOTHING) -> dict[Any, object]:
    """Nested dicts, lists and tuples. Where something lies at a path and below it too, it is found under ``""``."""
    root = _Node()
    for path, value in leaves:
        node = root.ensure_path(path)
        node.leaf, node.has_leaf = value, True
    for path, note in notes.items():
        if any(kind in note for kind in CONTAINERS):
            root.ensure_path(path)
    found = _build_node(root, "", notes)
    return found if isinstance(found, dict) else {"": found}


def _build_node(node: _Node, path: str, notes: Notes) -> object:
    note = notes.get(path, _NONE)
    if node.has_leaf and (not node.below or "refused" in note):
        return tuple(node.leaf) if "tuple" in note and isinstance(node.leaf, list) else node.leaf
    below = {step: _build_node(one, f"{path}/{step}" if path else step, notes) for step, one in node.below.items()}
    if node.has_leaf:
        return {"": node.leaf, **below}
    if not any(kind in note for kind in ("list", "tuple", "set")) or not all(step.isdecimal() for step in below):
        names = note.get("dict")
        return {names.get(step, step): value for step, value in below.items()} if isinstance(names, dict) else below
    items = [below[step] for step in sorted(below, key=int)]
    return items if "list" in note else tuple(items) if "tuple" in note else frozenset(items)
