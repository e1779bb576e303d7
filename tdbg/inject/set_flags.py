"""Setting debug flags in the program's own config: where each has its place, and what is said of one that has none."""

import difflib
from typing import Any

from tdbg.core.flags import Value
from tdbg.inject import program_flags
from tdbg.inject.take import (
    PREFIXES,
    Ledger,
    MisfitError,
    Tree,
    coerce_value,
    get_injection_log,
    iter_debug_config_entries,
    list_flag_paths,
    may_set,
    wants_config,
)


def set_flags(root: object, tree: Tree, *, unknown: str, final: bool = False) -> None:
    """Set every wanted flag that the config ``root`` has a place for, and report those it has on of itself.

    unknown: what a flag without a place means. "refuse": the program is about to use this config, so it
        is rejected. "doubt": a later merge may bring its key. "ignore": the config may be half defined.
    final: the program changes it no more; so it is with "refuse".
    """
    top = [key for key in tree.list_keys(root) or [] if key.lower().startswith(PREFIXES)]
    if not top:
        return  # some other config, or a part of one: it has no say
    if may_set(tree.mode):
        _set_all(root, tree, top, unknown)
    if final or unknown == "refuse":
        program_flags.report_flags_on(root, tree)
    else:
        program_flags.look_later(root, tree)


def _set_all(root: object, tree: Tree, top: list[str], unknown: str) -> None:
    book = get_injection_log()
    has_section = any(
        tree.list_keys(tree.get_child(root, key)) is not None for key in top if key.lower().startswith("debug")
    )
    missing = []
    for flag, value in book.agent.settings.flags.items():
        place = _find_place(root, tree, flag)
        if place is not None:
            _set_flag(book, tree, flag, value, place)
        elif has_section and value is not False and wants_config(flag):
            missing.append(flag)
    for flag in missing:
        hint = format_suggestion(flag, list_debug_keys(root, tree))
        if unknown == "refuse":
            book.record_rejected(flag, tree.name, hint)
        elif unknown == "doubt":
            book.record_pending(flag, tree.name, hint)


Place = tuple[Any, str, str]  # the node, the key in it, and the whole path


def _find_place(root: object, tree: Tree, flag: str) -> Place | None:
    for path in list_flag_paths(flag, get_injection_log().agent.settings.flag_names.get(flag, "")):
        found = _follow_path(root, tree, path)
        if found:
            return found
    return _create_place(root, tree, flag)


def _create_place(root: object, tree: Tree, flag: str) -> Place | None:
    """A new key for the flag, where the config allows new keys in its debug section."""
    key = next((key for key in tree.list_keys(root) or [] if key.lower() == "debug"), None)
    node = tree.get_child(root, key) if key else None
    path, *rest = [str(key), *flag.split(".")]
    for word in rest[:-1]:
        below = next((name for name in tree.list_keys(node) or [] if name.lower() == word.lower()), None)
        if below is None:
            empty = tree.build_section(node) if tree.list_keys(node) is not None else None
            if empty is None:
                return None
            tree.set_value(node, word, empty)
        node, path = tree.get_child(node, below or word), f"{path}.{below or word}"
    if tree.list_keys(node) is None or tree.build_section(node) is None:
        return None
    return node, rest[-1], f"{path}.{rest[-1]}"


def _follow_path(root: object, tree: Tree, path: tuple[str, ...]) -> Place | None:
    """Follow ``path`` whatever the case of the config's keys; the last step must be a value."""
    node, seen = root, []
    for depth, word in enumerate(path):
        key = next((key for key in tree.list_keys(node) or [] if key.lower() == word), None)
        if key is None:
            return None
        seen.append(key)
        child = tree.get_child(node, key)
        if depth == len(path) - 1:
            return (node, key, ".".join(seen)) if tree.list_keys(child) is None else None
        node = child
    return None


def _set_flag(book: Ledger, tree: Tree, flag: str, value: Value, place: Place) -> None:
    node, key, path = place
    old = tree.get_child(node, key) if key in (tree.list_keys(node) or []) else None
    where = f"{tree.name} {path}"
    try:
        new = coerce_value(value, old)
    except MisfitError as misfit:
        book.record_rejected(flag, where, str(misfit))
        return
    if not (type(new) is type(old) and new == old):
        tree.set_value(node, key, new)
    book.record_accepted(flag, where, old, new)


def list_debug_keys(root: object, tree: Tree) -> list[str]:
    """The values the config keeps under its debug keys, as dotted paths."""
    return [path for path, _ in iter_debug_config_entries(root, tree)]


def format_suggestion(flag: str, known: list[str]) -> str:
    """What to say of a flag the config does not have."""
    folded = {path.lower(): path for path in known}
    close = difflib.get_close_matches(f"debug.{flag.lower()}", folded, n=1, cutoff=0.7)
    if close:
        return f"did you mean {folded[close[0]]}?"
    shown = ", ".join(known[:5]) + (", ..." if len(known) > 5 else "")
    return f"the program's config has {shown}" if shown else "the program's config has an empty debug section"
