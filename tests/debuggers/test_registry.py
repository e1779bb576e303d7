"""The list of debuggers."""

import subprocess
import sys

import pytest

import tdbg.debuggers
from tdbg.core.errors import TdbgError
from tdbg.debuggers import DEBUGGERS
from tdbg.debuggers.base import BaseDebugger
from tdbg.debuggers.feature_map import FeatureMap

NAMES = {
    "feature-map": "FeatureMap",
    "attention": "Attention",
    "activation-stats": "ActivationStats",
    "layer-output": "LayerOutput",
    "gradcam": "GradCAM",
    "gradients": "Gradients",
    "inputs": "Inputs",
    "outputs": "Outputs",
    "labels": "Labels",
}


def test_the_shipped_ones():
    assert not DEBUGGERS.broken and set(NAMES) <= set(DEBUGGERS.names())
    for name, class_name in NAMES.items():
        assert DEBUGGERS[name].__name__ == class_name and issubclass(DEBUGGERS[name], BaseDebugger)
        assert getattr(tdbg.debuggers, class_name) is DEBUGGERS[name]
    assert tdbg.debuggers.FeatureMap is FeatureMap


def test_unknown_names():
    with pytest.raises(TdbgError) as caught:
        DEBUGGERS["feature-maps"]
    assert caught.value.hint == "did you mean feature-map?"
    with pytest.raises(AttributeError, match="no attribute 'Nothing'"):
        tdbg.debuggers.Nothing  # noqa: B018
    with pytest.raises(ImportError):
        from tdbg.debuggers import torch  # noqa: F401, what a file imports is not of the package


def test_third_parties(monkeypatch, tmp_path):
    (tmp_path / "their_debugger.py").write_text(
        "from tdbg.debuggers import BaseDebugger\n"
        "class Theirs(BaseDebugger):\n"
        "    name = 'theirs'\n"
        "    def __call__(self, datapoint, model): return {'n': 1}\n"
    )
    folder = tmp_path / "their-1.0.dist-info"
    folder.mkdir()
    (folder / "METADATA").write_text("Metadata-Version: 2.1\nName: their\nVersion: 1.0\n")
    (folder / "entry_points.txt").write_text("[tdbg.debuggers]\ntheirs = their_debugger:Theirs\n")
    code = "from tdbg.debuggers import DEBUGGERS; print(DEBUGGERS['theirs']()({}, None))"
    monkeypatch.setenv("PYTHONPATH", f"{tmp_path}:{tdbg.debuggers.__path__[0]}/../..")
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.stdout == "{'n': 1}\n", done.stderr


def test_the_package_alone_does_not_load_torch():
    code = "import tdbg.debuggers, sys; print('torch' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "False\n"
