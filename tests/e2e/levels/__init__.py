"""Every fault that a test plants, with the code that names it: what the table in docs/levels.md is made of."""

import importlib
import re
import sys
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import NamedTuple

from tests.e2e.conftest import program, torchrun
from tests.e2e.symptoms import symptoms

ROOT = Path(__file__).parents[3]
FAULT, HEALTHY = "fault", "healthy"
EVERY_STEP = ("--max-overhead", "100")
# Test files that plant silent bugs: file -> (table of kinds in it, program, through torchrun).
SILENT = {
    "test_default_level": (("NAMED", "planted", False),),
    "test_default_level_model": (("NAMED", "planted_model", False),),
    "test_default_level_data": (("NAMED", "planted_data", False), ("RANKS", "planted_ranks", True)),
}
LOUD = {  # kinds of planted_loud.py: code, and options that its signal needs at the level that has it
    "skips": ("TD-A001", ()),
    "nan-under-scaler": ("TD-A002", ()),
    "bad-start": ("TD-C009", ()),
    "resume": ("TD-C011", ()),
    "late-clip": ("TD-C015", ()),
    "save-fails": ("TD-C016", ()),
    "chart-of-text": ("TD-C018", ()),
    "tracker": ("TD-C019", ()),
    "bad-sample": ("TD-D001", ()),
    "labels": ("TD-D004", ()),
    "worker": ("TD-D005", ()),
    "nan-transform": ("TD-D007", ()),
    "idle-transform": ("TD-D009", EVERY_STEP),
    "explosion": ("TD-G001", ()),
    "one-gradient": ("TD-G004", EVERY_STEP),
    "out-of-memory": ("TD-M002", ()),
    "dead-run": ("TD-N002", ()),
    "evaluation-nan": ("TD-N003", ()),
    "loss-jump": ("TD-N004", ()),
    "evaluation-graphs": ("TD-P003", ()),
    "rate-high": ("TD-S008", ()),
    "killed": ("TD-R002", ()),
    "uneven": ("TD-R001", ()),
    "left": ("TD-R007", ()),
}
RANKED = ("killed", "uneven", "left")
OF_TORCH = {"ignored": "TD-L004", "weights": "TD-L020", "inverted": "TD-L012", "rows": "TD-L007", "null": "TD-L021"}
NULLS = ("--threshold", "LOSS.NULL_MASKING.null_index=0")
COMPILED = {"recompile": "TD-P005", "break": "TD-P006"}


class Planted(NamedTuple):
    """One fault: its kind, its code, the commands of the program with it and without, and options for both."""

    kind: str
    code: str
    faulty: list[str]
    healthy: list[str]
    options: tuple[str, ...] = ()
    twin_options: tuple[str, ...] | None = None  # of the healthy one, where they are others


def planted() -> Iterator[Planted]:
    """Every fault, the silent ones first."""
    yield from _silent()
    for kind, (code, options) in LOUD.items():
        words = [*(torchrun if kind in RANKED else program)("planted_loud", kind)]
        yield Planted(kind, code, [*words, FAULT], [*words, HEALTHY], options)
    early = [*program("early")]
    yield Planted("exception", "TD-R003", [*early, "uncaught"], [*program("planted", "unused"), HEALTHY])
    for kind, code in COMPILED.items():
        words = [*program("compile_limits")]
        yield Planted(f"compile-{kind}", code, [*words, kind], [*words, "well"])
    for kind, code in OF_TORCH.items():
        words = [*program("losses_of_torch")]
        options = ("--flag", "LOSS", *(NULLS if kind == "null" else ()))
        yield Planted(f"loss-{kind}", code, [*words, "--fault", kind], words, options, ("--flag", "LOSS"))
    yield from _flagged()
    yield from _taxa()
    from tests.e2e.test_preflight import NAMED as TRIED

    for kind, (code, _) in TRIED.items():
        words = [*program("planted_preflight", kind)]
        yield Planted(f"{kind} (one batch)", code, [*words, FAULT], [*words, HEALTHY])
    faults = [*program("faults", "gpt")]
    yield Planted("backward-nan", "TD-N001", [*faults, "backward-nan"], [*faults, "harmless"])


def _silent() -> Iterator[Planted]:
    for file, tables in SILENT.items():
        module = importlib.import_module(f"tests.e2e.{file}")
        for table, name, ranked in tables:
            for kind, (code, _) in getattr(module, table).items():
                words = [*(torchrun if ranked else program)(name, kind)]
                yield Planted(kind, code, [*words, FAULT], [*words, HEALTHY])


def _flagged() -> Iterator[Planted]:
    """One program for each flag."""
    for one in symptoms():
        options = () if one.flag != "PROFILER" else one.run_options()
        name = f"flag {one.flag}"
        yield Planted(name, one.code, one.words(healthy=False), one.words(healthy=True), options)


@cache
def _faults_of_taxa() -> list[tuple[str, str, str, list[str]]]:
    """Those of the example whose code is of a loss: name, flag, code, settings."""
    sys.path.insert(0, str(ROOT / "examples" / "taxa"))
    try:
        faults = importlib.import_module("faults").FAULTS
    finally:
        sys.path.pop(0)
    rows = [(name, one.flag, one.code, [*map(str, one.settings)]) for name, one in faults.items()]
    return [row for row in rows if re.match("TD-L", row[2])]


def _taxa() -> Iterator[Planted]:
    from tests.e2e.test_taxa import HEALTHY as CALM
    from tests.e2e.test_taxa import train

    for name, flag, code, settings in _faults_of_taxa():
        calm = [*map(str, CALM.get(name, settings))]
        yield Planted(name, code, train(*settings, fault=name), train(*calm), ("--flag", flag))
