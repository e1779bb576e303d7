"""What the diagnostics of losses cost a step of a real program, examples/taxa: flags off, and on.

    python benchmarks/taxa.py [--rounds 60] [--steps 20] [--json]                outside of `tdbg run`
    tdbg run -- python benchmarks/taxa.py [--rounds 60] [--steps 20] [--json]    within it, without a flag of LOSS

One process trains one model, and takes turns between variants of its losses and GradNorm, all of whose techniques are
on: ``none`` is the program with every call of a diagnostic taken out of its source, arguments and all; ``again`` is the
same once more (A/A: what the method itself tells apart); ``off`` is the program as it is, with its flags off; ``on`` has
all flags below LOSS on. A round is a block of steps of each variant, in a random order, over the same batches with the
same random numbers; the learning rate is next to nothing, so that all blocks do the same work. A block holds a GradNorm
update every ten steps. The figure is the median over the rounds of the difference to ``none`` in the same round, with the
95 % interval of the median (by order statistics). Time is that of the thread, so that others count for little.
"""

import argparse
import ast
import contextlib
import importlib.util
import io
import json
import random
import statistics
import sys
import tempfile
import time
import types
from pathlib import Path
from typing import Any, NamedTuple

sys.path.insert(0, str(Path(__file__).parents[1] / "examples" / "taxa"))

import config as configuration
import data
import gradnorm
import losses
import torch
from languages import RANKS
from loss import compute_interval
from train import Training

import tdbg
from tdbg.core.flags import FLAGS
from tdbg.probes.loss import loss_report
from tdbg.runtime import run_context as host

TAXA = Path(losses.__file__).parent
LOSS_FLAGS = [flag.name for flag in FLAGS if flag.name.startswith("LOSS.")]
SETTINGS = (
    *("DATA.WORDS", "6000", "TRAIN.MAX_STEPS", "1000000000", "TRAIN.EPOCHS", "1000000", "TRAIN.LR", "1e-9"),
    *("TRAIN.DEVICE", "cpu", "SCHEDULE.METRICS.CONSOLE_INTERVAL", "0", "AUGMENT.ENABLED", "True"),
    *(word for name in ("SMOOTHING", "NULL_MASKING", "CLASS_WEIGHTING", "GRADNORM") for word in (f"LOSS.{name}.ENABLED", "True")),
)  # fmt: skip


class WithoutCalls(ast.NodeTransformer):
    """Takes the calls of `diagnostics` out of a program, and what stands on them."""

    def visit_Expr(self, node: ast.Expr) -> ast.stmt:
        match node.value:
            case ast.Call(func=ast.Attribute(value=ast.Name(id="diagnostics" | "memory"))):
                return ast.Pass()
        return node

    def visit_If(self, node: ast.If) -> ast.stmt:
        self.generic_visit(node)
        asked = node.test.values[0] if isinstance(node.test, ast.BoolOp) else node.test
        match asked:
            case ast.Call(func=ast.Attribute(value=ast.Name(id="diagnostics"))):
                return ast.Pass()
        return node

    def visit_With(self, node: ast.With) -> ast.stmt | list[ast.stmt]:
        self.generic_visit(node)
        match node.items[0].context_expr:
            case ast.Call(func=ast.Attribute(value=ast.Name(id="diagnostics"))):
                return node.body
        return node


def load_without_calls(name: str) -> types.ModuleType:
    """A module of the example, without its diagnostics."""
    source = (TAXA / f"{name}.py").read_text(encoding="utf-8")
    tree = ast.fix_missing_locations(WithoutCalls().visit(ast.parse(source)))
    assert not any(isinstance(node, ast.Name) and node.id in ("diagnostics", "memory") for node in ast.walk(tree))
    with tempfile.TemporaryDirectory() as folder:
        place = Path(folder, f"{name}_without_calls.py")
        place.write_text(ast.unparse(tree), encoding="utf-8")
        spec = importlib.util.spec_from_file_location(place.stem, place)
        assert spec is not None and spec.loader is not None
        made = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(made)
    return made


class Variant(NamedTuple):
    """The losses and the GradNorm of a variant, and whether its flags are on."""

    loss: Any
    gradnorm: Any
    on: bool


class Steps:
    """Training steps of the example, with the losses of one variant or another."""

    def __init__(self, steps: int) -> None:
        self.steps = steps
        self.config = configuration.load_config(["--opts", *SETTINGS])
        torch.set_num_threads(1)
        torch.manual_seed(0)
        self.training = Training(self.config)
        self.training.wrapped.train()
        loader = iter(self.training.train_loader)
        self.batches = [next(loader) for _ in range(steps)]
        bare = [(load_without_calls("losses"), load_without_calls("gradnorm")) for _ in range(2)]
        self.variants = {
            "none": self.make_variant(*bare[0]),
            "again": self.make_variant(*bare[1]),
            "off": self.make_variant(losses, gradnorm),
            "on": self.make_variant(losses, gradnorm, on=True),
        }

    def make_variant(self, own_losses: Any, own_gradnorm: Any, *, on: bool = False) -> Variant:
        training, settings = self.training, self.config.LOSS
        counts = training.train_loader.dataset.counts()
        loss = own_losses.TaxonomyLoss(data.classes(), counts, settings, training.total_steps, training.device)
        shared = training.model.backbone.shared.weight
        return Variant(loss, own_gradnorm.GradNorm(RANKS, shared, settings.GRADNORM), on)

    def __call__(self, name: str) -> float:
        """Microseconds of the thread a step."""
        chosen, training = self.variants[name], self.training
        training.loss, training.gradnorm = chosen.loss, chosen.gradnorm
        host.current.flags.update(dict.fromkeys(LOSS_FLAGS, chosen.on))
        torch.manual_seed(1)
        begun = time.thread_time_ns()
        for batch in self.batches:
            training.train_step(batch)
        took = time.thread_time_ns() - begun
        host.current.flags.update(dict.fromkeys(LOSS_FLAGS, False))
        return took / 1e3 / self.steps


def is_inside_run() -> bool:
    """True under `tdbg run`."""
    return bool(tdbg.get_debugging_status()["inside_run"])


def measure_variants(rounds: int, steps: int) -> dict[str, Any]:
    """Microseconds a step by variant; differences to ``none`` in microseconds and in percent."""
    run = Steps(steps)
    for name in ("none", "again", "off"):
        run(name)
    assert not loss_report.STATES, "a diagnostic was at work while its flag was off"
    run("on")
    assert loss_report.STATES, "no diagnostic was at work while its flag was on"
    took: dict[str, list[float]] = {name: [] for name in run.variants}
    for _ in range(rounds):
        order = list(run.variants)
        random.shuffle(order)
        for name in order:
            took[name].append(run(name))
    base = took["none"]
    found: dict[str, Any] = {"within_tdbg_run": is_inside_run(), "rounds": rounds, "steps": steps}
    found["none_us"] = statistics.median(base)
    for name in ("again", "off", "on"):
        gaps = [own - first for own, first in zip(took[name], base, strict=True)]
        parts = compute_interval([100 * gap / first for gap, first in zip(gaps, base, strict=True)])
        found[name] = compute_interval(gaps) | {key.replace("_us", "_pct"): value for key, value in parts.items()}
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=60)
    parser.add_argument("--steps", type=int, default=20)
    parser.add_argument("--json", action="store_true")
    args = parser.parse_args()
    with contextlib.redirect_stderr(io.StringIO()):
        found = measure_variants(args.rounds, args.steps)
    if args.json:
        print(json.dumps(found, indent=1))
        return
    where = "within `tdbg run`" if found["within_tdbg_run"] else "outside of `tdbg run`"
    print(f"{where}, {args.rounds} rounds of {args.steps} steps: {found['none_us']:.0f} us a step without a call")
    for name in ("again", "off", "on"):
        row = found[name]
        print(
            f"{name:6} {row['median_us']:+9.1f} us [{row['low_us']:+.1f}, {row['high_us']:+.1f}]"
            f"   {row['median_pct']:+.2f} % [{row['low_pct']:+.2f}, {row['high_pct']:+.2f}]"
        )


if __name__ == "__main__":
    main()
