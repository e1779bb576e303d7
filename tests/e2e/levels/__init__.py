"""Every fault that a test plants, with the code that names it: what the table in docs/levels.md is made of."""

import importlib
import re
import sys
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import NamedTuple

from tests.e2e.conftest import build_program_command, build_torchrun_command
from tests.e2e.symptoms import iter_symptoms

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
OF_LOSSES = {  # kinds of planted_losses.py: code, and the flag below LOSS that its signal needs
    "nulls-unseen": ("TD-L001", "NULL_MASKING"),
    "rows-compared": ("TD-L003", "NULL_MASKING"),
    "validation-masks": ("TD-L006", "NULL_MASKING"),
    "distances": ("TD-L009", "TAXONOMY_SMOOTHING"),
    "hierarchy": ("TD-L010", "TAXONOMY_SMOOTHING"),
    "weights-extreme": ("TD-L011", "CLASS_WEIGHTING"),
    "weights-twice": ("TD-L013", "CLASS_WEIGHTING"),
    "weights-sum": ("TD-L015", "GRADNORM_METRICS"),
    "weight-negative": ("TD-L016", "GRADNORM_METRICS"),
    "head-detached": ("TD-L018", "GRADNORM_METRICS"),
}
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


def iter_planted() -> Iterator[Planted]:
    """Every fault, the silent ones first."""
    yield from _iter_silent()
    for kind, (code, options) in LOUD.items():
        words = [*(build_torchrun_command if kind in RANKED else build_program_command)("planted_loud", kind)]
        yield Planted(kind, code, [*words, FAULT], [*words, HEALTHY], options)
    early = [*build_program_command("early")]
    yield Planted("exception", "TD-R003", [*early, "uncaught"], [*build_program_command("planted", "unused"), HEALTHY])
    for kind, code in COMPILED.items():
        words = [*build_program_command("compile_limits")]
        yield Planted(f"compile-{kind}", code, [*words, kind], [*words, "well"])
    for kind, code in OF_TORCH.items():
        words = [*build_program_command("losses_of_torch")]
        options = ("--flag", "LOSS", *(NULLS if kind == "null" else ()))
        yield Planted(f"loss-{kind}", code, [*words, "--fault", kind], words, options, ("--flag", "LOSS"))
    for kind, (code, flag) in OF_LOSSES.items():
        words = [*build_program_command("planted_losses", kind)]
        yield Planted(kind, code, [*words, FAULT], [*words, HEALTHY], ("--flag", f"LOSS.{flag}"))
    yield from _iter_told()
    yield from _iter_flagged()
    yield from _iter_taxa()
    from tests.e2e.test_preflight import NAMED as TRIED

    for kind, (code, _) in TRIED.items():
        words = [*build_program_command("planted_preflight", kind)]
        yield Planted(f"{kind} (one batch)", code, [*words, FAULT], [*words, HEALTHY])
    faults = [*build_program_command("faults", "gpt")]
    yield Planted("backward-nan", "TD-N001", [*faults, "backward-nan"], [*faults, "harmless"])


def _iter_silent() -> Iterator[Planted]:
    for file, tables in SILENT.items():
        module = importlib.import_module(f"tests.e2e.{file}")
        for table, name, ranked in tables:
            for kind, (code, _) in getattr(module, table).items():
                words = [*(build_torchrun_command if ranked else build_program_command)(name, kind)]
                yield Planted(kind, code, [*words, FAULT], [*words, HEALTHY])


def _iter_told() -> Iterator[Planted]:
    """What is read from the text or the metrics of a program, and from the times of its ranks."""
    prints = [*build_program_command("prints", "print")]
    yield Planted("printed-accuracy", "TD-K012", [*prints, "--mislabelled"], prints)
    tracker = [*build_program_command("metrics_tracker")]
    yield Planted("phase-without-samples", "TD-K003", [*tracker, "--forget"], tracker)
    ranks = [*build_torchrun_command("slow_ranks")]
    yield Planted("slow-rank", "TD-R010", [*ranks, "forward"], [*ranks, "none"])


def _iter_flagged() -> Iterator[Planted]:
    """One program for each flag."""
    for one in iter_symptoms():
        options = () if one.flag != "PROFILER" else one.run_options()
        name = f"flag {one.flag}"
        yield Planted(name, one.code, one.build_command(healthy=False), one.build_command(healthy=True), options)


@cache
def _list_taxa_faults() -> list[tuple[str, str, str, list[str]]]:
    """Those of the example whose code is of a loss: name, flag, code, settings."""
    sys.path.insert(0, str(ROOT / "examples" / "taxa"))
    try:
        faults = importlib.import_module("faults").FAULTS
    finally:
        sys.path.pop(0)
    rows = [(name, one.flag, one.code, [*map(str, one.settings)]) for name, one in faults.items()]
    return [row for row in rows if re.match("TD-L", row[2])]


def _iter_taxa() -> Iterator[Planted]:
    from tests.e2e.test_taxa import HEALTHY as CALM
    from tests.e2e.test_taxa import build_train_command

    for name, flag, code, settings in _list_taxa_faults():
        calm = [*map(str, CALM.get(name, settings))]
        yield Planted(
            name, code, build_train_command(*settings, fault=name), build_train_command(*calm), ("--flag", flag)
        )
