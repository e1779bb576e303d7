"""Write docs/levels.md: each planted fault, the first step at which each level names it, and its healthy twin.

python -m tests.e2e.levels [--jobs N] [--keep DIR] [KIND ...]

All of them take half an hour on two cores. Kinds that are named replace their own rows alone, each as soon as it was run. ``--keep`` leaves the run
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

from tdbg.core.observations import Evidence
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
NOT_RUN = "not run"
WANDB = {"WANDB_MODE": "offline", "WANDB_SILENT": "true"}
OF_METRICS = "of metrics that the program logs, at the end of a run at every level; `tdbg metrics sanity` says it too"
OF_TRACES = "of a trace, by `tdbg trace advise` or `tdbg profile`: no level is compared"
NOT_PLANTED = {  # code -> why no level is compared, and where a test plants it
    "TD-C001": ("the program's own configuration refuses the flag, at every level", "tests/rules/test_config.py"),
    "TD-C002": ("the flag was not taken, at every level", "tests/e2e/test_losses.py"),
    "TD-C003": ("tdbg saw no training, at every level", "tests/e2e/test_programs.py"),
    "TD-C004": ("tdbg did not see the forward pass, at every level", "tests/rules/test_config.py"),
    "TD-C005": ("a part of tdbg failed, at every level", "tests/e2e/test_third_party.py"),
    "TD-C006": ("the disk is full or its budget used up, at every level", "tests/rules/test_unseen.py"),
    "TD-C020": ("a capture is not complete; needs `--capture`", "tests/e2e/test_capture_faults.py"),
    "TD-M003": ("needs a machine whose memory is nearly full", "tests/rules/test_memory_device_build.py"),
    **{f"TD-K{number:03}": (OF_METRICS, "tests/metrics/test_sanity.py") for number in (1, 2, *range(4, 12))},
    **{f"TD-P{number}": (OF_TRACES, "tests/traces/test_rules.py") for number in range(101, 118)},
    "TD-P001": ("needs an accelerator", "tests/rules/test_memory_device_build.py"),
    "TD-R004": ("a framework's own plan was not carried out, at every level", "tests/rules/test_ranks.py"),
    "TD-R006": ("named from basic on, after `DISTRIBUTED.hang_s`, 15 s", "tests/e2e/test_hangs.py"),
}
COSTS_MORE = "too expensive for the default budget of 1 %: `--level extreme`, or the flag of the part"
OF_FLAG = "no level wakes what sees it, the flag does"
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
gives the step at which the fault is named with the code of the row, and how certain the evidence is. "after X": X is
graver and stands before it in `report.json`; on the screen a cause comes first, and what follows from it is indented below.
`-`: not reported at this level; a code in brackets is reported instead. `{not_run}`: not run since the fault was added.
Made by `python -m tests.e2e.levels`.

- **Options in brackets behind the fault are given at every level, preflight included.** So are the flags of losses:
  most rows of TD-L... are found only under `-f LOSS`, or the flag below it that the row names, as no level wakes them.
- **"(one batch)"**: a fault that the trials of `tdbg run --preflight` find on the first batch. The other columns show
  what a live run says of it.
- **Evidence**, the surest first: {grades}.
- Codes that the default level does not give stand [below](#what-the-default-level-does-not-give), each with the reason, and
  so do those [without a row](#what-is-not-in-the-table).

| planted fault | code | off | basic (default) | advanced | extreme | preflight | healthy twin (basic, extreme, preflight) |
|---|---|---|---|---|---|---|---|
""".format(grades="; ".join(kind.value for kind in Evidence), not_run=NOT_RUN)
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
    return f"| {describe_options(fault)} | {fault.code} | {' | '.join(cells)} | {'; '.join(alarms) or 'silent'} |"


def index_rows(page: str) -> dict[str, str]:
    """The rows of a page, by kind."""
    table = page.partition("\n## ")[0]
    rows = [line for line in table.splitlines() if line.startswith("| ") and "| TD-" in line]
    return {line.split("|")[1].partition(" (`")[0].strip(): line for line in rows}


def list_reasons() -> dict[str, str]:
    """Why the default level does not give a code, of every such code; of those of a flag the options of a row."""
    faults = list(iter_planted())
    free = {fault.code for fault in faults if "--flag" not in fault.options}
    flags = {fault.code: find_flag(fault) for fault in reversed(faults) if fault.code not in free}
    return NOT_IN_BASIC | {code: f"{OF_FLAG}: `-f {flags[code]}`" for code in sorted(flags)}


def find_flag(fault: Planted) -> str:
    """The first flag that a fault is run with."""
    return fault.options[fault.options.index("--flag") + 1]


def build_rest() -> str:
    """The parts of the page that no run makes."""
    reasons = "".join(f"| {code} | {why} |\n" for code, why in list_reasons().items())
    unknown = "".join(f"| {bug} | {why} |\n" for bug, why in NO_CODE.items())
    others = "".join(f"| {code} | {why} | `{test}` |\n" for code, (why, test) in NOT_PLANTED.items())
    return REASONS + reasons + WITHOUT_CODE + unknown + REST + others


def describe_options(fault: Planted) -> str:
    """The first cell of a row: the kind, and the options that it is run with."""
    return fault.kind + (f" (`{' '.join(fault.options)}`)" if fault.options else "")


def build_page(rows: dict[str, str]) -> str:
    """The page: the rows by code, those of faults that have none say so."""
    faults = sorted(enumerate(iter_planted()), key=lambda pair: (pair[1].code, pair[0]))
    empty = " | ".join([NOT_RUN] * (len(MODES) + 1))
    lines = [
        rows.get(fault.kind, f"| {describe_options(fault)} | {fault.code} | {empty} |") + "\n" for _, fault in faults
    ]
    return HEAD + "".join(lines) + build_rest()


def main() -> None:
    """Run what is asked for, and write the page."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("kinds", nargs="*", metavar="KIND")
    parser.add_argument("--jobs", type=int, default=2)
    parser.add_argument("--keep", type=Path)
    args = parser.parse_args()
    rows = index_rows(PAGE.read_text()) if PAGE.exists() else {}
    wanted = [fault for fault in iter_planted() if not args.kinds or fault.kind in args.kinds]
    with ThreadPoolExecutor(args.jobs) as pool:
        for fault, row in zip(wanted, pool.map(lambda one: make_row(one, args.keep), wanted), strict=True):
            rows[fault.kind] = row
            PAGE.write_text(build_page(rows))
            print(row, flush=True)


if __name__ == "__main__":
    main()
