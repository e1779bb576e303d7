"""The four modules that packages of others import stay where the documentation names them."""

import importlib
import inspect
import subprocess
import sys
import types

import pytest

from benchmarks.structure import RE_EXPORTS

# What probes, rules and programs of others have imported from each.
WANTED = {
    "errors": ("TdbgError", "LaunchError", "NotExecutableError", "CommandNotFoundError"),
    "events": (
        "Event",
        "Finding",
        "Observation",
        "Step",
        "Note",
        "Number",
        "EVENT_TYPES",
        "SEVERITIES",
        "as_float",
        "doc",
    ),
    "flags": ("FLAGS", "LEVELS", "PRESETS", "Flag", "tag"),
    "registry": ("Registry", "points_of"),
}


@pytest.mark.parametrize("name", WANTED)
def test_the_names_are_those_of_the_core(name: str) -> None:
    module, core = importlib.import_module(f"tdbg.{name}"), importlib.import_module(f"tdbg.core.{name}")
    for word in WANTED[name]:
        assert getattr(module, word) is getattr(core, word)
    for word, value in vars(core).items():
        if name == "errors" and not inspect.isclass(value):
            continue
        if not word.startswith("_") and inspect.getmodule(value) is core and not isinstance(value, types.ModuleType):
            assert getattr(module, word, None) is value, f"tdbg.{name} lacks {word}"


@pytest.mark.parametrize("name", WANTED)
def test_each_can_be_imported_first(name: str) -> None:
    code = f"import tdbg.{name}; from tdbg.{name} import {', '.join(WANTED[name])}"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert (done.returncode, done.stderr) == (0, "")


def test_these_are_all_of_them() -> None:
    assert {f"tdbg/{name}.py" for name in WANTED} == RE_EXPORTS
