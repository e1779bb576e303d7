"""Where tdbg stands in torch: one table, which nothing of tdbg's passes by, and of which nothing is left."""

import ast
import importlib
import random
import sys
import types
from pathlib import Path
from typing import Any

import pytest

import tdbg
from tdbg.core.config import Settings
from tdbg.core.flags import FLAGS
from tdbg.debuggers.attention_calls import TAPS
from tdbg.runtime.torch_hooks import ANY, PLACES, TABLES, global_hooks, hook_all, iter_targets, modules_of
from tests.probes.conftest import Watch

ROOT = Path(tdbg.__file__).parent
ASKS = {"patch_at", "for_each_function", "iter_targets"}  # how a place is asked for


def _list_calls(source: str) -> list[tuple[str, ast.Call]]:
    found = [node for node in ast.walk(ast.parse(source)) if isinstance(node, ast.Call)]
    names = [node.func.attr if isinstance(node.func, ast.Attribute) else getattr(node.func, "id", "") for node in found]
    return list(zip(names, found, strict=True))


def _read_sources() -> dict[str, str]:
    return {str(path.relative_to(ROOT)): path.read_text(encoding="utf-8") for path in ROOT.rglob("*.py")}


def _list_strings(source: str) -> set[str]:
    return {
        node.value
        for node in ast.walk(ast.parse(source))
        if isinstance(node, ast.Constant) and isinstance(node.value, str)
    }


def test_every_place_is_asked_for_and_every_place_asked_for_is_there() -> None:
    table = "runtime/torch_hooks.py"
    asked = {
        node.args[0].value
        for file, source in _read_sources().items()
        if file != table
        for name, node in _list_calls(source)
        if name in ASKS and node.args and isinstance(node.args[0], ast.Constant) and isinstance(node.args[0].value, str)
    }
    named = set().union(*(_list_strings(source) for file, source in _read_sources().items() if file != table))
    assert asked <= PLACES.keys()
    assert PLACES.keys() <= named, "a place that nobody asks for"
    assert TABLES.keys() <= named and global_hooks.keys() == TABLES.keys()


@pytest.mark.parametrize("place", PLACES)
def test_this_torch_has_every_place(place: str) -> None:
    for module in modules_of(place):
        importlib.import_module(module)
    asked = PLACES[place]
    found = list(iter_targets(place, name="all_reduce" if "collective" in place else "item"))
    assert len(found) >= max(len(asked.paths), 1)
    assert asked.why
    if not any(ANY in path for path in asked.paths):
        for module in modules_of(place):  # one at a time is how a late import is met
            assert set(iter_targets(place, module)) <= set(found)


def _is_of_torch(owner: Any) -> bool:
    name = owner.__name__ if isinstance(owner, types.ModuleType) else getattr(owner, "__module__", "")
    return str(name).partition(".")[0] == "torch"


def _snapshot_torch() -> dict[tuple[str, str], Any]:
    """What stands at all places now."""
    found = {}
    for place in PLACES:
        for owner, name in iter_targets(place, name="all_reduce" if "collective" in place else "item"):
            where = owner.__name__ if isinstance(owner, types.ModuleType) else f"{owner.__module__}.{owner.__name__}"
            found[where, name] = getattr(owner, name)
    return found


def test_nothing_else_of_torch_is_replaced_and_nothing_is_left() -> None:
    for place in PLACES:
        for module in modules_of(place):
            importlib.import_module(module)
    before, hooks = _snapshot_torch(), {name: list(table) for name, table in global_hooks.items()}
    seen = Watch(Settings(level="extreme", flags={flag.name: True for flag in FLAGS if flag.probe}))
    ear = TAPS.add_listener(types.SimpleNamespace(wants=lambda call: False))  # type: ignore[arg-type]
    probes = seen.monitor.dispatcher.probes
    patches = [seen.monitor.hooks.patches, TAPS._patches, *(probe.patches for probe in probes)]
    names = {kind.name for kind in _list_collectives()}
    known = {target for place in PLACES for target in iter_targets(place)}
    known |= {target for place in PLACES for name in names for target in iter_targets(place, name=name)}
    done = [(owner, name) for one in patches for owner, name, *_ in one._done if _is_of_torch(owner)]
    assert len(done) > 60 and set(done) <= known
    assert {(where, name) for (where, name), held in _snapshot_torch().items() if held is not before[where, name]}
    random.Random(0).shuffle(probes)
    for probe in list(probes):
        probe.detach()
    ear.remove()
    seen.monitor.detach()
    assert _snapshot_torch() == before
    assert {name: list(table) for name, table in global_hooks.items()} == hooks
    assert not seen.failures


def _list_collectives() -> list[Any]:
    from tdbg.probes.distributed.collectives import COLLECTIVES, FUNCTIONAL

    return [*COLLECTIVES, *FUNCTIONAL]


def test_no_other_file_replaces_a_part_of_torch() -> None:
    """An argument that names torch where something is put in its place, or a hook of torch's registered by its function."""
    found = []
    for file, source in _read_sources().items():
        if file in ("runtime/torch_hooks.py", "runtime/own_hooks.py") or file.endswith("demo_train.py"):
            continue
        of_torch = {"torch"}
        for node in ast.walk(ast.parse(source)):
            if isinstance(node, ast.ImportFrom) and (node.module or "").partition(".")[0] == "torch":
                of_torch |= {alias.asname or alias.name for alias in node.names}
        for name, call in _list_calls(source):
            first = call.args[0] if call.args else None
            while isinstance(first, ast.Attribute):
                first = first.value
            puts = name in ("wrap_attribute", "patch", "patch_at", "setattr", "set_value", "replace") and isinstance(
                first, ast.Name
            )
            if (puts and first.id in of_torch) or (name.startswith("register_") and name.endswith("_hook")):
                found.append(f"{file}:{call.lineno} {name}")
    assert found == []


def test_a_module_that_comes_later_is_met() -> None:
    """Only what is in the module that came, and only while the probe is there."""
    seen = Watch(Settings(level="basic"))
    waiting: list[Any] = []
    seen.monitor._when_imported = lambda name, then: waiting.append((name, then))
    probe = seen.monitor.dispatcher.probes[0]
    stood: list[tuple[Any, str]] = []
    probe.for_each_function("sharded-save", lambda owner, name: stood.append((owner, name)))
    assert [name for name, _ in waiting] == modules_of("sharded-save") and not stood
    module = importlib.import_module("torch.distributed.checkpoint.state_dict_saver")
    waiting[1][1](module)
    assert stood == [(module, "save"), (module, "async_save")]
    seen.monitor.detach()
    waiting[0][1](sys.modules["torch.distributed.checkpoint"])
    assert len(stood) == 2


@pytest.mark.parametrize("table", TABLES)
def test_where_torch_has_no_such_table_its_own_function_is_used(table: str, monkeypatch: pytest.MonkeyPatch) -> None:
    held = global_hooks[table]
    before = list(held)
    ours = hook_all(table, lambda *args: None)
    monkeypatch.setitem(global_hooks, table, None)
    registered = hook_all(table, lambda *args: None)
    assert len(held) == len(before) + 2
    ours.remove()
    registered.remove()
    assert list(held) == before
