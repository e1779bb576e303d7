"""Bases that leave something to those below them: half a one is refused when it is made, not when it is called."""

import importlib

import pytest

BASES = {
    "tdbg.debuggers.recording_thread:Job": ["write_pages"],
    "tdbg.logs.log_files:_Unpacked": ["piece_into"],
    "tdbg.pages.read.page_sources:Source": ["iter_containing", "with_bodies"],
    "tdbg.rules:PerProcessRule": ["evaluate"],
    "tdbg.rules:ObservingRule": ["evaluate"],
    "tdbg.rules._kinds:KindsRule": ["evaluate"],
    "tdbg.traces.rules:Rule": ["evaluate"],
}


@pytest.mark.parametrize("base", BASES)
def test_half_a_class_cannot_be_made(base: str) -> None:
    module, _, name = base.partition(":")
    found = getattr(importlib.import_module(module), name)
    half = type("Half", (found,), {"__doc__": "It does nothing."})
    with pytest.raises(TypeError, match=f"abstract.*{', '.join(BASES[base])}"):
        half()
