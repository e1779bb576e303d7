"""The names of the API: loaded when asked for, all documented, nowhere else."""

import ast
import inspect
import subprocess
import sys
from pathlib import Path

import pytest

import tdbg
from tdbg.api import NAMES

ROOT = Path(tdbg.__file__).parent


def test_the_tables_agree():
    tree = ast.parse((ROOT / "__init__.py").read_text())
    typed = {
        (name.name, node.module)
        for node in ast.walk(tree)
        if isinstance(node, ast.ImportFrom) and node.module and node.module.startswith("tdbg.api.")
        for name in node.names
    }
    assert typed == {(name, f"tdbg.api.{module}") for name, module in NAMES.items()}
    assert tuple(NAMES) == tdbg.API
    assert set(tdbg.API) <= set(dir(tdbg))


def test_no_module_hides_a_name():
    """A submodule becomes an attribute of its package when it is imported."""
    modules = {path.stem for path in (ROOT / "api").glob("*.py")} | {path.stem for path in ROOT.glob("*.py")}
    assert not modules & set(tdbg.API)


@pytest.mark.parametrize("name", tdbg.API)
def test_every_name_is_there_and_documented(name):
    found = getattr(tdbg, name)
    text = inspect.getdoc(found) or ""
    assert text.split("\n")[0].endswith((".", "``")) and len(text) > 40, name
    for method_name, method in vars(found).items() if inspect.isclass(found) else ():
        if not method_name.startswith("_") and callable(method):
            assert inspect.getdoc(method), f"{name}.{method_name}"


def test_an_unknown_name_is_an_attribute_error():
    with pytest.raises(AttributeError, match="nonsense"):
        _ = tdbg.nonsense
    with pytest.raises(AttributeError, match="nonsense"):
        _ = tdbg.api.nonsense


@pytest.mark.parametrize(
    "code",
    [
        "tdbg",
        "tdbg.flag('MEMORY')",
        "tdbg.log('MEMORY', 'x')",
        "tdbg.metric('a', 1)",
        "tdbg.history()",
        "tdbg.get_debugging_status()",
        "tdbg.disable_debugging()",
        "tdbg.region('a').__enter__().__exit__(None, None, None)",
        "tdbg.DebugLevel.BASIC",
        "tdbg.MetricsTracker().update_train_batch({'loss': 1.0}, 4)",
        "tdbg.OpsSchedule(total_steps=10).due('console', 5)",
    ],
)
def test_what_looks_at_no_tensor_loads_no_torch(code):
    done = subprocess.run(
        [sys.executable, "-c", f"import tdbg, sys; {code}; print('torch' in sys.modules)"],
        capture_output=True,
        text=True,
        check=True,
    )
    assert done.stdout == "False\n"
