"""Write docs/levels.md: each planted fault, the first step at which each level names it, and its healthy twin.

python -m tests.e2e.levels [--jobs N] [--keep DIR] [KIND ...]

All of them take half an hour on two cores. Kinds that are named replace their own rows alone. ``--keep`` leaves the run
directories of runs in which a part of tdbg failed.
"""

import argparse
import json
import shutil
import subprocess
import sys
import tempfile
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from tests.e2e.conftest import build_environment
from tests.e2e.levels import ROOT, Planted, iter_planted

PAGE = ROOT / "docs" / "levels.md"
MODES = {
    "off": ("--level", "off"),
    "basic": (),
    "advanced": ("--level", "advanced"),
    "extreme": ("--level", "extreme"),
    "preflight": ("--preflight",),
}
TWIN_MODES = ("basic", "extreme", "preflight")
PATIENCE_S = 300.0
OWN_FAILURE = "TD-C005"
WANDB = {"WANDB_MODE": "offline", "WANDB_SILENT": "true"}
OWN_LOSS = "of a loss that reports to tdbg itself, under its flag"
NOT_PLANTED = {  # code -> why no level is compared, and where a test plants it
    "TD-C001": ("the program's own configuration refuses the flag, at every level", "tests/rules/test_config.py"),
    "TD-C002": ("the flag was not taken, at every level", "tests/e2e/test_losses.py"),
    "TD-C003": ("tdbg saw no training, at every level", "tests/e2e/test_programs.py"),
    "TD-C004": ("tdbg did not see the forward pass, at every level", "tests/rules/test_config.py"),
    "TD-C005": ("a part of tdbg failed, at every level", "tests/e2e/test_third_party.py"),
    "TD-C006": ("the disk is full or its budget used up, at every level", "tests/rules/test_unseen.py"),
    "TD-C020": ("a capture is not complete; needs `--capture`", "tests/e2e/test_capture_faults.py"),
    "TD-L001": (OWN_LOSS, "tests/probes/test_loss_null_masking.py"),
    "TD-L003": (OWN_LOSS, "tests/probes/test_loss_null_masking.py"),
    "TD-L006": (OWN_LOSS, "tests/probes/test_loss_null_masking.py"),
    "TD-L009": (OWN_LOSS, "tests/probes/test_loss_taxonomy.py"),
    "TD-L010": (OWN_LOSS, "tests/probes/test_loss_taxonomy.py"),
    "TD-L011": (OWN_LOSS, "tests/probes/test_loss_class_weighting.py"),
    "TD-L013": (OWN_LOSS, "tests/probes/test_loss_class_weighting.py"),
    "TD-L015": (OWN_LOSS, "tests/probes/test_loss_gradnorm.py"),
    "TD-L016": (OWN_LOSS, "tests/probes/test_loss_gradnorm.py"),
    "TD-L018": (OWN_LOSS, "tests/probes/test_loss_gradnorm.py"),
    "TD-M003": ("needs a machine whose memory is nearly full", "tests/rules/test_memory_device_build.py"),
    "TD-P001": ("needs an accelerator", "tests/rules/test_memory_device_build.py"),
    "TD-R004": ("a framework's own plan was not carried out, at every level", "tests/rules/test_ranks.py"),
    "TD-R010": ("named from basic on, from the times on record of all ranks", "tests/e2e/test_slow_ranks.py"),
    "TD-R006": ("named from basic on, after `DISTRIBUTED.hang_s`, 15 s", "tests/e2e/test_hangs.py"),
}
COSTS_MORE = "too expensive for the default budget of 1 %: `--level extreme`, or the flag of the part"
TRIAL = (
    "a trial that a live run must not make: it runs the model once more on other inputs, or trains it (`--preflight`)"
)
NOT_IN_BASIC = {  # code -> why the default level does not give it
    "TD-A003": "gradients are counted element by element: `--level advanced`, or `-f AMP`",
    "TD-C007": COSTS_MORE,
    "TD-C017": COSTS_MORE,
    "TD-C018": COSTS_MORE,
    "TD-C019": COSTS_MORE,
    "TD-D007": COSTS_MORE,
    "TD-D008": COSTS_MORE,
    "TD-D009": COSTS_MORE,
    "TD-G004": "the norm of each parameter's gradient is needed at every look, from `--level advanced` on",
    "TD-R005": "every collective is numbered and hashed (`-f DISTRIBUTED`)",
    "TD-S009": "early stoppers are watched from `--level advanced` on",
    "TD-C029": TRIAL,
    "TD-C030": TRIAL,
    "TD-C031": TRIAL,
    "TD-C032": TRIAL,
    "TD-G006": TRIAL,
    "TD-L022": TRIAL,
}
NO_CODE = {  # silent bug -> why nothing that a run shows tells it from healthy code
    "a loss term added as a detached number (`loss + extra.item()`)": (
        "the graph of the loss has nothing of the number, as of any constant that is added on purpose (flooding, the"
        " constant of a likelihood, an auxiliary loss that is switched off). Parameters that only this term reaches get no"
        " gradient, which TD-C008 names"
    ),
    "layers that begin with equal weights by mistake": (
        "copies of one layer begin so on purpose: `nn.TransformerEncoder`, teachers, averages, experts. An embedding and an"
        " output layer alone are compared (TD-C027)"
    ),
}
HEAD = """# What each level finds

Each row is a small training with one fault, run under `tdbg run` at every level, and the same training without it. A cell
gives the step at which the fault is named with the code of the row, and how certain the evidence is. "after X": ranked
below X. `-`: not reported at this level; a code in brackets is reported instead. Made by `python -m tests.e2e.levels`.

| planted fault | code | off | basic (default) | advanced | extreme | preflight | healthy twin (basic, extreme, preflight) |
|---|---|---|---|---|---|---|---|
"""
REASONS = """
## What the default level does not give

| code | why |
|---|---|
"""
WITHOUT_CODE = """
## What no level names

| silent bug | why |
|---|---|
"""
REST = """
## What is not in the table

| code | why | planted in |
|---|---|---|
"""


def find_findings(words: list[str], options: tuple[str, ...], keep: Path | None = None) -> list[dict[str, Any]]:
    """The findings of one run as its verdict has them, the first one first."""
    with tempfile.TemporaryDirectory(prefix="tdbg-levels-") as folder:
        run_dir = Path(folder) / "run"
        command = [sys.executable, "-m", "tdbg", "run", "--quiet", "--run-dir", str(run_dir), *options, "--", *words]
        subprocess.run(
            command, cwd=folder, env=build_environment(WANDB), capture_output=True, timeout=PATIENCE_S, check=False
        )
        report = run_dir / "report.json"
        found: list[dict[str, Any]] = json.loads(report.read_text())["findings"] if report.exists() else []
        if keep and any(one["code"] == OWN_FAILURE for one in found):
            shutil.copytree(run_dir, keep / f"{abs(hash((*words, *options)))}")
    return found


def describe_fault(fault: Planted, found: list[dict[str, Any]]) -> str:
    """The cell of a level: the step, the grade, and what stands before the code that is looked for."""
    codes = [str(one["code"]) for one in found]
    if fault.code not in codes:
        return f"- ({', '.join(dict.fromkeys(codes))})" if codes else "-"
    at = codes.index(fault.code)
    step, grade = found[at].get("first_step"), found[at].get("grade")
    text = f"step {step}" if step is not None else "named"
    text += f", {grade}" if grade else ""
    return text + (f"; after {', '.join(dict.fromkeys(codes[:at]))}" if at else "")


def make_row(fault: Planted, keep: Path | None = None) -> str:
    """Run a fault and its twin at every level."""
    cells = [
        describe_fault(fault, find_findings(fault.faulty, (*options, *fault.options), keep))
        for options in MODES.values()
    ]
    alarms = []
    for mode in TWIN_MODES:
        options = fault.options if fault.twin_options is None else fault.twin_options
        found = find_findings(fault.healthy, (*MODES[mode], *options), keep)
        codes = [str(one["code"]) for one in found if one["severity"] != "info"]
        alarms += [f"{', '.join(codes)} at {mode}"] if codes else []
    with_options = f" (`{' '.join(fault.options)}`)" if fault.options else ""
    return f"| {fault.kind}{with_options} | {fault.code} | {' | '.join(cells)} | {'; '.join(alarms) or 'silent'} |"


def index_rows(page: str) -> dict[str, str]:
    """The rows of a page, by kind."""
    table = page.partition("\n## ")[0]
    rows = [line for line in table.splitlines() if line.startswith("| ") and "| TD-" in line]
    return {line.split("|")[1].partition(" (`")[0].strip(): line for line in rows}


def build_rest() -> str:
    """The parts of the page that no run makes."""
    reasons = "".join(f"| {code} | {why} |\n" for code, why in NOT_IN_BASIC.items())
    unknown = "".join(f"| {bug} | {why} |\n" for bug, why in NO_CODE.items())
    others = "".join(f"| {code} | {why} | `{test}` |\n" for code, (why, test) in NOT_PLANTED.items())
    return REASONS + reasons + WITHOUT_CODE + unknown + REST + others


def main() -> None:
    """Run what is asked for, and write the page."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("kinds", nargs="*", metavar="KIND")
    parser.add_argument("--jobs", type=int, default=2)
    parser.add_argument("--keep", type=Path)
    args = parser.parse_args()
    faults = list(iter_planted())
    rows = index_rows(PAGE.read_text()) if args.kinds and PAGE.exists() else {}
    wanted = [fault for fault in faults if not args.kinds or fault.kind in args.kinds]
    with ThreadPoolExecutor(args.jobs) as pool:
        for fault, row in zip(wanted, pool.map(lambda one: make_row(one, args.keep), wanted), strict=True):
            rows[fault.kind] = row
            print(row, flush=True)
    order = {fault.kind: (fault.code, at) for at, fault in enumerate(faults)}
    lines = [rows[kind] for kind in sorted(rows, key=lambda kind: order.get(kind, ("~", 0))) if kind in order]
    PAGE.write_text(HEAD + "\n".join(lines) + "\n" + build_rest())


if __name__ == "__main__":
    main()
