"""Print what torchtest2, torch-audit and guardtower say of each training of programs.py, and what `tdbg run` says.

python -m tests.e2e.peers [KIND ...]        needs the three packages (pip install torchtest2 torch-audit guardtower)

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

PROGRAM = Path(__file__).with_name("programs.py")
MODES: dict[str, tuple[str, ...]] = {"run": (), "preflight": ("--preflight",)}


class Case(NamedTuple):
    """A documented check: of which tools, and the codes with which tdbg may answer; none where it is silent on purpose."""

    checks: str
    codes: tuple[str, ...]


CASES = {
    "wrong-shape": Case("torchtest2 forward", ("TD-C009", "TD-R003")),
    "nan-output": Case("torchtest2 output_finite, guardtower NAN-001, torch-audit TA305", ("TD-N001",)),
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
    "large-gradient": Case("torchtest2 gradient_magnitude, guardtower GRAD-002, torch-audit TA102", ()),
    "tiny-gradient": Case("guardtower GRAD-003", ()),
    "rate-of-zero": Case("torchtest2 params_change", ("TD-S010", "TD-S002")),
    "ignored-input": Case("torchtest2 input_dependency, guardtower INPUT-001", ("TD-C032",)),
    "batch-as-time": Case("torchtest2 batch_independence", ("TD-C029",)),
    "softmax-over-batch": Case("torchtest2 batch_independence", ("TD-C023", "TD-C029")),
    "cannot-overfit": Case("torchtest2 overfit_batch", ()),  # a rate of 1e-7 may be a warm-up
    "wrong-derivative": Case("torchtest2 gradcheck", ("TD-G006",)),
    "bytes-as-floats": Case("torch-audit TA301", ()),
    "constant-input": Case("torch-audit TA302", ("TD-D002", "TD-L022")),
    "channels-last": Case("torch-audit TA303", ()),
    "dead-units": Case("torch-audit TA103, TA105, guardtower RELU-001", ("TD-N005",)),
    "dead-filters": Case("torch-audit TA405", ()),
    "frozen-in-optimizer": Case("guardtower OPT-002", ()),
    "adapter-left-out": Case("guardtower LORA-003", ("TD-S006", "TD-N005")),
    "adapter-frozen": Case("guardtower LORA-002", ()),
    "base-not-frozen": Case("guardtower LORA-001", ()),
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


def main() -> int:
    """Ask all of them of all cases."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("kinds", nargs="*", metavar="KIND")
    kinds = parser.parse_args().kinds or list(CASES)
    print(
        f"| training | documented check | {' | '.join(PEERS)} | tdbg run | tdbg run --preflight | of the healthy twin |"
    )
    print("|" + "---|" * (5 + len(PEERS)))
    wrong = 0
    for kind in kinds:
        peers = [ask_peer(name, kind, faulty=True) for name in PEERS]
        alarms = {name: ask_peer(name, kind, faulty=False) for name in PEERS}
        ours = {mode: ask_tdbg(kind, options, faulty=True) for mode, options in MODES.items()}
        calm = {mode: ask_tdbg(kind, options, faulty=False) for mode, options in MODES.items()}
        said = [f"{name}: {text}" for name, text in alarms.items() if text != "-"]
        said += [f"tdbg {mode}: {', '.join(codes)}" for mode, codes in calm.items() if codes]
        cells = [kind, CASES[kind].checks, *peers, *(", ".join(codes) or "-" for codes in ours.values())]
        print(f"| {' | '.join(cells)} | {'; '.join(said) or 'silent'} |", flush=True)
        named = {code.partition(" ")[0] for codes in ours.values() for code in codes}
        wrong += any(calm.values()) or bool(CASES[kind].codes and not named & set(CASES[kind].codes))
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
