"""Print what torchtest2, torch-audit and guardtower say of each training of programs.py, and what `tdbg run` says.

python -m tests.e2e.peers [--page] [KIND ...]   needs the three packages (pip install torchtest2 torch-audit guardtower)

With --page the rows go into docs/peers.md; those of other kinds stay as they are.

They are given model, batch, loss and optimizer in code; tdbg is given the command. Exits with 1 if tdbg names a healthy
twin or leaves a fault without a finding that EXPECTED says it gives.
"""

import argparse
import contextlib
import io
import json
import sys
import tempfile
import warnings
from pathlib import Path
from subprocess import run
from typing import Any, NamedTuple

from tests.e2e.conftest import build_environment
from tests.e2e.peers.programs import Setup, build_setup

PAGE = Path(__file__).parents[3] / "docs" / "peers.md"
PROGRAM = Path(__file__).with_name("programs.py")
MODES: dict[str, tuple[str, ...]] = {"run": (), "preflight": ("--preflight",)}


class Case(NamedTuple):
    """A documented check: of which tools, and the codes with which tdbg may answer; none where it is silent, and why."""

    checks: str
    codes: tuple[str, ...]
    why: str = ""


CASES = {
    "wrong-shape": Case("torchtest2 forward", ("TD-C009", "TD-R003")),
    "nan-output": Case("torchtest2 output_finite, guardtower NAN-001", ("TD-N001",)),
    "constant-output": Case(
        "torchtest2 output_varies, guardtower INPUT-001", ("TD-G003", "TD-G005", "TD-N005", "TD-C032")
    ),
    "dropout-in-evaluation": Case("torchtest2 eval_determinism", ("TD-C022",)),
    "detached-loss": Case("torchtest2 loss, guardtower LOSS-001", ("TD-R003",)),
    "loss-per-sample": Case("torchtest2 loss, guardtower LOSS-002", ("TD-R003",)),
    "confident-start": Case("torchtest2 initial_loss", ("TD-C009",)),
    "swapped-head": Case("torchtest2 optimizer_coverage, guardtower OPT-001", ("TD-S006",)),
    "cut-graph": Case("torchtest2 gradient_flow", ("TD-G005", "TD-G003")),
    "unused-layer": Case("torchtest2 gradient_flow, guardtower GRAD-001, torch-audit TA500", ("TD-C008",)),
    "nan-gradient": Case("torchtest2 gradient_magnitude, guardtower NAN-002, torch-audit TA100", ("TD-N001",)),
    "zero-gradient": Case("torchtest2 gradient_flow, guardtower GRAD-004", ("TD-G003",)),
    "loss-of-another-parameter": Case("torch-audit TA104, guardtower INPUT-001", ("TD-C008", "TD-G003", "TD-G005")),
    "negative-tokens": Case("torch-audit TA305", ("TD-R003",)),
    "tiny-batch-norm": Case(
        "torch-audit TA304",
        (),
        "detection and segmentation train with few samples a batch, and batch norm has many pixels",
    ),
    "norm-called-twice": Case(
        "torch-audit TA501", (), "sharing a layer is a design; statistics that do not move are named (TD-C025)"
    ),
    "large-gradient": Case(
        "torchtest2 gradient_magnitude, guardtower GRAD-002, torch-audit TA102",
        (),
        "a loss may be scaled by any constant, and Adam divides it out again; what changes against the steps before is named (TD-G001)",
    ),
    "tiny-gradient": Case(
        "guardtower GRAD-003",
        (),
        "a loss may be scaled by any constant, and Adam divides it out again; weights that do not move are named (TD-S007)",
    ),
    "rate-of-zero": Case("torchtest2 params_change", ("TD-S010", "TD-S002")),
    "ignored-input": Case("torchtest2 input_dependency, guardtower INPUT-001", ("TD-C032",)),
    "batch-as-time": Case("torchtest2 batch_independence", ("TD-C029",)),
    "softmax-over-batch": Case("torchtest2 batch_independence", ("TD-C023", "TD-C029")),
    "cannot-overfit": Case(
        "torchtest2 overfit_batch",
        (),
        "a rate of 1e-7 may be the first step of a warm-up; a long run that learns nothing is named (TD-S012)",
    ),
    "wrong-derivative": Case("torchtest2 gradcheck", ("TD-G006",)),
    "bytes-as-floats": Case(
        "torch-audit TA301",
        (),
        "floats up to 255 may be any quantity; bytes are told from others where a loader gives them (TD-D014)",
    ),
    "constant-input": Case("torch-audit TA302", ("TD-D002", "TD-L022")),
    "channels-last": Case(
        "torch-audit TA303", (), "a shape of (32, 8, 8, 3) that the model accepts may be what it is made for"
    ),
    "dead-units": Case("torch-audit TA103, TA105, guardtower RELU-001", ("TD-N005",)),
    "dead-filters": Case(
        "torch-audit TA405", (), "filters of zeros get gradients and learn; those that stay dead are named (TD-N005)"
    ),
    "frozen-in-optimizer": Case(
        "guardtower OPT-002",
        (),
        "a frozen parameter in the optimizer costs nothing and may be thawed later; one that is all of them is named (TD-S011)",
    ),
    "adapter-left-out": Case("guardtower LORA-003", ("TD-S006", "TD-N005")),
    "adapter-frozen": Case(
        "guardtower LORA-002", (), "the head learns; which parameters are to learn is known to the program alone"
    ),
    "base-not-frozen": Case(
        "guardtower LORA-001",
        (),
        "training all parameters is what most programs mean; which are adapters, a name says and not the run",
    ),
}


ONLY_TRIED = "the batches of a run do not show it: it takes the same batch with other values, which preflight tries"
NOT_PLANTED = {  # documented checks without a training of their own -> why
    "torchtest2 output_shape, output_range, frozen_params, gpu": "the caller says what is expected; `tdbg run` is told nothing",
    "torch-audit TA300, TA202": "two devices; a run that mixes them ends with torch's own error (TD-R003), slow copies are TD-C007",
    "torch-audit TA200, TA201, TA203, TA400 to TA404": "advice on speed and style that holds for many healthy models",
    "torch-audit TA500": "as unused-layer",
    "guardtower TIE-001, LORA-004": "of severity info there: tied weights, and the first step of an adapter, are as they should be",
    "guardtower LORA-005": "as base-not-frozen, by the share of trainable parameters",
    "guardtower DDP-001": "needs ranks; torch raises at the next step, and TD-R003 names it (TD-C008 names the parameter)",
    "guardtower DDP-002": "needs ranks; statistics of each rank are a choice, and split ones in evaluation are TD-R008",
    "guardtower DDP-003": "needs ranks; replicas that drift apart are TD-R008 (row past-wrapper of what each level finds)",
}


STYLE = ("TA200", "TA201", "TA202", "TA203", "TA400", "TA401", "TA402", "TA403", "TA404")  # advice given of any model


def ask_torchtest2(setup: Setup) -> list[str]:
    import torchtest2

    inputs = setup.inputs if len(setup.inputs) > 1 else setup.inputs[0]
    report = torchtest2.check_model(
        setup.model, inputs, setup.targets, loss_fn=setup.loss, optimizer=setup.optimizer, gradcheck=True
    )
    return [str(one.name) for one in report.results if one.status.name in ("FAIL", "WARN")]


def ask_guardtower(setup: Setup) -> list[str]:
    import guardtower

    report = guardtower.audit(
        setup.model,
        lambda: setup.loss(setup.model(*setup.inputs), setup.targets),
        optimizer=setup.optimizer,
        inputs=setup.inputs,
    )
    return [str(one.catalog_id or one.check) for one in (*report.errors, *report.warnings)]


def ask_torch_audit(setup: Setup) -> list[str]:
    from torch_audit import autopatch

    optimizer = setup.optimizer
    assert optimizer is not None
    auditor = autopatch(setup.model, optimizer=optimizer, every_n_steps=1, run_static=True, run_init=True)
    for _ in range(3):
        optimizer.zero_grad()
        setup.loss(setup.model(*setup.inputs), setup.targets).backward()
        optimizer.step()
    result = auditor.finish(report=False)
    found = {str(one.rule_id) for one in result.findings if str(one.severity).rpartition(".")[2] != "INFO"}
    return sorted(found - {*STYLE})


PEERS = {"torchtest2": ask_torchtest2, "torch-audit": ask_torch_audit, "guardtower": ask_guardtower}


def ask_peer(name: str, kind: str, *, faulty: bool) -> str:
    """What one tool says, or the exception that it ends with."""
    with contextlib.redirect_stdout(io.StringIO()), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            return ", ".join(PEERS[name](build_setup(kind, faulty=faulty))) or "-"
        except Exception as error:  # its own affair; the table says so
            return f"raises {type(error).__name__}"


def ask_tdbg(kind: str, options: tuple[str, ...], *, faulty: bool) -> list[str]:
    """The codes of a run's findings in order; without `info` if the program is healthy."""
    with tempfile.TemporaryDirectory(prefix="tdbg-peers-") as folder:
        where = Path(folder, "run")
        words = [sys.executable, "-m", "tdbg", "run", "--quiet", "--run-dir", str(where), *options, "--"]
        words += [sys.executable, str(PROGRAM), kind, *([] if faulty else ["healthy"])]
        run(words, cwd=folder, env=build_environment({}), capture_output=True, timeout=300, check=False)
        found: list[dict[str, Any]] = json.loads((where / "report.json").read_text())["findings"]
    return [
        str(one["code"]) + " (note)" * (one["severity"] == "info")
        for one in found
        if faulty or one["severity"] != "info"
    ]


NOT_RUN = "not run"
HEAD = """# Beside checks in code

torchtest2 0.1.0, torch-audit 0.3.0 and guardtower 0.1.0 are given model, batch, loss and optimizer in code, and look at one
batch. Each row is a training with a fault that one of them documents a check for: what they say of it, what `tdbg run` says
of the command at the default level, and what `tdbg run --preflight` says. `-`: nothing. "(note)": of severity `info`. The
healthy twin is the same training without the fault: who complains of it all the same. Made by
`python -m tests.e2e.peers --page`.

| training | documented check | torchtest2 | torch-audit | guardtower | tdbg run | preflight | healthy twin | why tdbg run is silent |
|---|---|---|---|---|---|---|---|---|
"""
REST = """
## Checks without a training here

| documented check | why |
|---|---|
"""


def explain_silence(kind: str, cell: str) -> str:
    """Why `tdbg run` says nothing of a fault; nothing where it does."""
    return CASES[kind].why or (ONLY_TRIED if cell == "-" else "")


def make_row(kind: str) -> tuple[list[str], bool]:
    """The cells of a training, and whether they are as they should be."""
    peers = [ask_peer(name, kind, faulty=True) for name in PEERS]
    alarms = {name: ask_peer(name, kind, faulty=False) for name in PEERS}
    ours = {mode: ask_tdbg(kind, options, faulty=True) for mode, options in MODES.items()}
    calm = {mode: ask_tdbg(kind, options, faulty=False) for mode, options in MODES.items()}
    said = [f"{name}: {text}" for name, text in alarms.items() if text != "-"]
    said += [f"tdbg {mode}: {', '.join(codes)}" for mode, codes in calm.items() if codes]
    cells = [*peers, *(", ".join(codes) or "-" for codes in ours.values()), "; ".join(said) or "silent"]
    named = {code.partition(" ")[0] for codes in ours.values() for code in codes}
    wanted = set(CASES[kind].codes)
    return cells, not any(calm.values()) and bool(named & wanted or not wanted)


def read_rows(page: str) -> dict[str, list[str]]:
    """The cells that a run has made, by training."""
    rows = [line.strip("|").split("|") for line in page.partition(REST)[0].splitlines() if line.startswith("| ")]
    return {row[0].strip(): [cell.strip() for cell in row[2:8]] for row in rows}


def build_page(rows: dict[str, list[str]]) -> str:
    """The page: a row for each training, and the checks that have none."""
    lines = []
    for kind, case in CASES.items():
        cells = rows.get(kind, [NOT_RUN] * 6)
        lines.append(f"| {' | '.join([kind, case.checks, *cells, explain_silence(kind, cells[3])])} |\n")
    return HEAD + "".join(lines) + REST + "".join(f"| {check} | {why} |\n" for check, why in NOT_PLANTED.items())


def main() -> int:
    """Ask all of them of all cases."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("kinds", nargs="*", metavar="KIND")
    parser.add_argument("--page", action="store_true", help="put the rows into docs/peers.md")
    args = parser.parse_args()
    rows = read_rows(PAGE.read_text(encoding="utf-8")) if PAGE.exists() else {}
    wrong = 0
    for kind in args.kinds or CASES:
        rows[kind], is_right = make_row(kind)
        wrong += not is_right
        print(
            f"| {' | '.join([kind, CASES[kind].checks, *rows[kind]])} |{'' if is_right else '  <- wrong'}", flush=True
        )
        if args.page:
            PAGE.write_text(build_page(rows), encoding="utf-8")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
