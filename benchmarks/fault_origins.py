"""Does the verdict name the origin of a NaN or Inf? Generated faults on DDP and FSDP2, at the default level and budget.

    python benchmarks/fault_origins.py [--runs N] [--seed N] [--jobs N] [--only N] [--keep DIR]

Each run plants one fault (a value in the batch, the forward pass of a module, the loss, the backward pass of a module,
the gradient of one parameter, a weight that is overwritten) at one step of one rank, or none, under `tdbg run` with no
option. It is right when `tdbg report --json` names exactly the step, the rank and the kind (the phase) that were
planted, once; of a healthy run, when it has no finding of the family TD-N. Anything else is wrong, silence too.
The seed is printed; the same seed makes the same runs. With ``--keep`` finished runs are kept, and a second start goes
on after them. Exit code 1 if a run is wrong.
"""

import argparse
import json
import os
import random
import secrets
import subprocess
import sys
import tempfile
import time
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict
from pathlib import Path
from typing import Any

from fault_program import Spec

PROGRAM = Path(__file__).with_name("fault_program.py")
PATIENCE_S = 240
HEALTHY_SHARE = 0.15
TWISTS = {
    "input": ("element", "all"),
    "forward": ("log", "element", "factor"),
    "loss": ("factor", "log"),
    "backward": ("sqrt", "norm", "function"),
    "gradient": ("element", "all"),
    "weights": ("data", "in place"),
    "none": ("plain", "high rate", "masked input", "masked sqrt"),
}
FOREIGN = (
    "PYTHONDONTWRITEBYTECODE",
    "TDBG_",
    "TORCHELASTIC_",
    "RANK",
    "LOCAL_RANK",
    "WORLD_SIZE",
    "MASTER_",
    "PYTHONPATH",
)


def generate_spec(seed: int, index: int) -> Spec:
    """The run with this number; the same numbers make the same run."""
    dice = random.Random(f"{seed}/{index}")
    kinds = [kind for kind in TWISTS if kind != "none"]
    kind = "none" if dice.random() < HEALTHY_SHARE else dice.choice(kinds)
    far = dice.random() < 0.2
    step = dice.randint(120, 500) if far else dice.randint(5, 120)
    step_ms = round(dice.uniform(1, 5) if far else min(dice.choice((1, 2, 5, 10, 20, 50)), 2500 / step), 1)
    world = 4 if dice.random() < 0.25 else 2
    parallel = dice.choice(("ddp", "ddp", "fsdp2"))
    twist = dice.choice(TWISTS[kind])
    model = dice.choice(("mlp", "residual", "conv")) if parallel == "ddp" else dice.choice(("mlp", "residual"))
    return Spec(
        kind=kind,
        twist=twist,
        value="nan" if (kind, twist) in (("backward", "sqrt"), ("backward", "norm")) else dice.choice(("nan", "inf")),
        parallel=parallel,
        world=world,
        rank=dice.randrange(world),
        step=step,
        steps=step + dice.randint(4, 25),
        step_ms=step_ms,
        slow_rank=dice.randrange(world),
        slow_ms=dice.choice((0.0, step_ms, min(4 * step_ms, 20.0))),
        model=model,
        block=dice.randrange(3),
        optimizer=dice.choice(("sgd", "momentum", "adamw")),
        clip=dice.random() < 0.3,
        micro=2 if dice.random() < 0.2 and parallel == "ddp" else 1,
        views=dice.random() < 0.25,
        keep_zeros=dice.random() < 0.25,
        seed=dice.randrange(1 << 30),
        launcher="torchrun" if dice.random() < 0.15 else "fork",
    )


def run_spec(spec: Spec, folder: Path) -> dict[str, Any]:
    """One run under `tdbg run` in ``folder``: what `tdbg report --json` says of it."""
    tdbg = [sys.executable, "-m", "tdbg"]
    words = [str(PROGRAM), json.dumps(asdict(spec))]
    command = [sys.executable, *words]
    if spec.launcher == "torchrun":
        command[1:1] = ["-m", "torch.distributed.run", "--standalone", f"--nproc-per-node={spec.world}"]
    done = subprocess.run(
        [*tdbg, "run", "--run-dir", str(folder), "--", *command],
        env=_build_environment(),
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=PATIENCE_S,
        check=False,
    )
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "printed.txt").write_text(done.stdout + done.stderr)
    if done.returncode:
        raise RuntimeError(f"exit code {done.returncode}: {done.stderr[-2000:]}")
    told = subprocess.run(
        [*tdbg, "report", str(folder), "--json"], env=_build_environment(), capture_output=True, check=False
    )
    verdict: dict[str, Any] = json.loads(told.stdout)["data"]
    verdict["printed"] = done.stdout
    return verdict


def _build_environment() -> dict[str, str]:
    kept = {name: value for name, value in os.environ.items() if not name.startswith(FOREIGN)}
    return {**kept, "OMP_NUM_THREADS": "1", "TERM": "dumb"}


def judge_verdict(spec: Spec, verdict: dict[str, Any]) -> str:
    """Empty if the verdict is right, else what it says instead."""
    named = [finding for finding in verdict["findings"] if finding["code"].startswith("TD-N")]
    planted = '"bad_parameters": 0' not in verdict["printed"] or spec.kind == "none"
    if not planted:
        return "the fault left the weights good: the generator is at fault"
    if spec.kind == "none":
        return "; ".join(f"{finding['code']} {finding['title']}" for finding in named)
    origins = [finding for finding in named if finding["code"] == "TD-N001"]
    if len(origins) != 1:
        return f"{len(origins)} findings TD-N001"
    (found,) = origins
    if (found["first_step"], found["rank"], found["phase"]) != (spec.step, spec.rank, spec.kind):
        return f"{found['title']} [{found['phase']}]; {' / '.join(found['evidence'])}"
    return ""


def _run_or_load(seed: int, index: int, keep: Path) -> dict[str, Any]:
    """Run number ``index``, or what is kept of it."""
    file = keep / f"run{index:04d}.json"
    if file.is_file():
        row: dict[str, Any] = json.loads(file.read_text())
        return row
    spec = generate_spec(seed, index)
    begun = time.monotonic()
    try:
        verdict = run_spec(spec, keep / f"run{index:04d}")
        wrong = judge_verdict(spec, verdict)
        cost = verdict["cost"].get("pct")
        codes = sorted({finding["code"] for finding in verdict["findings"]})
    except (RuntimeError, subprocess.TimeoutExpired, ValueError) as error:
        wrong, cost, codes = f"the run failed: {error}", None, []
    row = {"index": index, "spec": asdict(spec), "wrong": wrong, "cost_pct": cost, "codes": codes}
    row["seconds"] = round(time.monotonic() - begun, 1)
    file.write_text(json.dumps(row))
    return row


def _format_row(row: dict[str, Any]) -> str:
    spec = row["spec"]
    odd = [f"{spec['micro']} micro-batches"] if spec["micro"] > 1 else []
    odd += [name for name in ("clip", "views", "keep_zeros") if spec[name]]
    slow = f", rank {spec['slow_rank']} +{spec['slow_ms']:g}" if spec["slow_ms"] else ""
    where = f"step {spec['step']} rank {spec['rank']}" if spec["kind"] != "none" else f"{spec['steps']} steps"
    cost = f"{row['cost_pct']:.2f} %" if row["cost_pct"] is not None else "-"
    return (
        f"{'WRONG' if row['wrong'] else 'right'} {row['index']:3d} {spec['kind']}/{spec['twist']}/{spec['value']} {where}"
        f" | {spec['parallel']} x{spec['world']} {spec['model']} {spec['optimizer']} {spec['step_ms']:g} ms{slow}"
        f" {' '.join(odd)} {spec['launcher']} | tdbg {cost}, {row['seconds']} s {' '.join(row['codes'])}"
        + (f"\n      says: {row['wrong']}" if row["wrong"] else "")
    )


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--runs", type=int, default=200)
    parser.add_argument("--seed", type=int, help="of the generator (default: a fresh one)")
    parser.add_argument("--jobs", type=int, default=1, help="runs at a time")
    parser.add_argument("--only", type=int, action="append", help="the run with this number")
    parser.add_argument("--keep", type=Path, help="a folder for what the runs leave; go on from what is there")
    options = parser.parse_args()
    seed = secrets.randbelow(1 << 31) if options.seed is None else options.seed
    print(f"seed {seed}: {options.runs} runs", flush=True)
    with tempfile.TemporaryDirectory() as scratch, ThreadPoolExecutor(options.jobs) as pool:
        keep = options.keep or Path(scratch)
        keep.mkdir(parents=True, exist_ok=True)
        rows = []
        for row in pool.map(lambda index: _run_or_load(seed, index, keep), options.only or range(options.runs)):
            rows.append(row)
            print(_format_row(row), flush=True)
    kinds = Counter(row["spec"]["kind"] for row in rows)
    wrong = [row for row in rows if row["wrong"]]
    print(f"{len(rows)} runs ({', '.join(f'{count} {kind}' for kind, count in sorted(kinds.items()))}), seed {seed}")
    print(f"origin named right: {len(rows) - len(wrong)} of {len(rows)}")
    costs = sorted(row["cost_pct"] for row in rows if row["cost_pct"] is not None)
    if costs:
        print(f"tdbg's own cost, as it says: median {costs[len(costs) // 2]:.2f} %, largest {costs[-1]:.2f} %")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
