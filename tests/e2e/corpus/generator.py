"""Draws healthy programs: combinations of model, data, optimizer, schedule, precision, wrapping and style of loop.

Each is written out as a file that runs by itself. What does not go together is never drawn together (`list_conflicts`).
"""

import random
import sys
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from tests.e2e.corpus.program_text import write_program
from tests.e2e.corpus.runs import TORCHRUN, Program

MODELS = {  # of each kind of data
    "vector": ("mlp", "mlp-batchnorm", "mlp-residual"),
    "image": ("cnn", "cnn-batchnorm", "cnn-bias-batchnorm", "cnn-groupnorm", "patches"),
    "text": ("rnn", "lstm", "gru", "encoder", "bag", "sparse-bag", "text-cnn"),
    "stream": ("lstm-lm", "gru-lm", "causal", "causal-tied"),
}
TASKS = {  # what is learnt from it
    "vector": ("classes", "unbalanced", "binary", "multi-label", "regression", "autoencoder", "variational"),
    "image": ("classes", "unbalanced", "binary", "autoencoder"),
    "text": ("classes", "binary"),
    "stream": ("next-token",),
}
SUPPLIES = (
    *("tensors", "tensors", "dataset", "dataset", "workers", "iterable", "iterable-workers"),
    *("random-rows", "permutation", "batch-sampler", "batch-list"),
)
OPTIMIZERS = (
    *("sgd", "momentum", "momentum", "nesterov", "adam", "adam", "adamw", "adamw", "adamw-groups", "adamw-foreach"),
    *("adamw-fused", "rmsprop", "adagrad", "nadam", "radam", "adamax", "adafactor", "lbfgs", "muon", "two-adams"),
)
SCHEDULES = (
    *("none", "none", "cosine-step", "cosine-epoch", "step-epoch", "multi-step", "exponential", "warm-up-cosine"),
    *("warm-up-linear", "one-cycle", "plateau", "restarts", "cyclic", "polynomial", "by-hand"),
)
PRECISIONS = ("float32",) * 6 + (
    "bfloat16-autocast",
    "bfloat16-autocast",
    "float16-scaler",
    "bfloat16-weights",
    "float64",
)
WRAPPINGS = ("none",) * 12 + ("ddp-one", "compiled", "recomputed", "recomputed", "two-ranks")
CHOICES: dict[str, tuple[Any, ...]] = {
    "data": ("vector", "vector", "image", "image", "text", "stream"),
    "task": tuple(task for tasks in TASKS.values() for task in tasks),
    "model": tuple(model for models in MODELS.values() for model in models),
    "supply": SUPPLIES,
    "optimizer": OPTIMIZERS,
    "schedule": SCHEDULES,
    "precision": PRECISIONS,
    "wrapping": WRAPPINGS,
    "loop": ("epochs", "epochs", "epochs", "steps", "steps-evaluated"),
    "reset": ("first", "before-backward", "after-step", "keep-zeros", "model-first", "by-hand"),
    "extra": (
        *("none",) * 4,
        *("clip", "clip", "clip-value", "accumulate", "accumulate", "closure", "average", "frozen", "early-stopping"),
        *("checkpoints", "resume", "print-each", "moving-average", "log-norms"),
    ),
    "loss": ("functional", "module", "smoothed", "by-hand"),
    "activation": ("ReLU", "ReLU", "GELU", "SiLU", "Tanh", "LeakyReLU", "ELU"),
    "width": (8, 16, 16, 32, 64, 128),
    "batch": (8, 16, 16, 32, 32, 64, 128),
    "depth": (1, 2, 2, 3),
    "epochs": (3, 5, 6, 10, 15),
    "dropout": (0.0, 0.0, 0.1, 0.3),
    "pause_ms": (0.0, 0.0, 0.0, 0.0, 1.0, 3.0, 8.0, 20.0),  # of other work of the host in each step
}


@dataclass(frozen=True)
class Recipe:
    """What one program is made of."""

    seed: int
    data: str
    task: str
    model: str
    supply: str
    optimizer: str
    schedule: str
    precision: str
    wrapping: str
    loop: str
    reset: str
    extra: str
    loss: str
    activation: str
    width: int
    batch: int
    depth: int
    epochs: int
    dropout: float
    pause_ms: float

    def describe_choices(self) -> str:
        """All choices in one line."""
        return " ".join(f"{name}={value}" for name, value in asdict(self).items())


def list_conflicts(recipe: Recipe) -> Iterator[str]:
    """Why the choices of a recipe do not go together; nothing if they do."""
    recurrent = recipe.model in ("rnn", "lstm", "gru", "lstm-lm", "gru-lm")
    half = recipe.precision in ("float16-scaler", "bfloat16-autocast", "bfloat16-weights")
    looped = recipe.supply in ("random-rows", "permutation", "batch-list")
    if half and recurrent:
        yield "recurrent layers of the CPU in half precision"
    if recipe.optimizer == "lbfgs" and (half or recipe.extra not in ("none", "closure", "print-each", "frozen")):
        yield "L-BFGS beside what changes gradients between its calls, or in half precision"
    if recipe.optimizer == "lbfgs" and recipe.schedule not in ("none", "step-epoch", "exponential"):
        yield "L-BFGS with a schedule that nobody would give it"
    if recipe.optimizer == "lbfgs" and (recipe.dropout or recipe.task == "variational" or recipe.batch < 64):
        yield "L-BFGS on losses that differ from call to call"
    if recipe.optimizer == "lbfgs" and "batchnorm" in recipe.model:
        yield "L-BFGS on losses that differ from call to call"
    if recipe.optimizer in ("muon", "two-adams", "lbfgs") and recipe.precision == "float16-scaler":
        yield "a scaler for several optimizers is written otherwise"
    if recipe.optimizer in ("muon", "two-adams") and recipe.extra == "closure":
        yield "a closure for several optimizers"
    if recipe.model == "sparse-bag" and (recipe.optimizer not in ("sgd", "adagrad", "two-adams") or half):
        yield "an optimizer that takes no sparse gradients"
    if recipe.model == "sparse-bag" and recipe.extra in ("clip", "clip-value", "frozen", "log-norms", "resume"):
        yield "sparse gradients that cannot be clipped"
    if recipe.model == "sparse-bag" and (recipe.wrapping != "none" or recipe.precision == "float64"):
        yield "sparse gradients through a wrapper"
    if recipe.precision == "bfloat16-weights" and recipe.optimizer not in (
        "adam",
        "adamw",
        "adamw-foreach",
        "adamw-fused",
    ):
        yield "bfloat16 weights need updates large enough to move them"
    if recipe.precision == "bfloat16-weights" and recipe.schedule not in ("none", "plateau", "step-epoch"):
        yield "bfloat16 weights need updates large enough to move them"
    if recipe.precision == "bfloat16-weights" and recipe.task in ("autoencoder", "variational", "regression"):
        yield "bfloat16 weights for targets that need precision"
    if recipe.precision == "float16-scaler" and recipe.extra == "closure":
        yield "a scaler takes no closure"
    if recipe.extra == "closure" and recipe.schedule == "one-cycle":
        yield "too many updates for the cycle"
    if recipe.schedule in ("one-cycle", "cyclic") and recipe.optimizer in ("adafactor", "muon", "two-adams", "adagrad"):
        yield "a cycle of momentum that the optimizer does not have"
    if recipe.wrapping == "two-ranks" and (looped or "iterable" in recipe.supply or recipe.supply == "batch-sampler"):
        yield "ranks share samples by a distributed sampler"
    if recipe.wrapping in ("two-ranks", "ddp-one") and recipe.extra in (
        "resume",
        "closure",
        "average",
        "moving-average",
    ):
        yield "DDP around what replaces or copies the model"
    if recipe.wrapping in ("two-ranks", "ddp-one") and (recipe.optimizer == "lbfgs" or recipe.task == "variational"):
        yield "DDP calls the wrapper alone"
    if recipe.wrapping == "recomputed" and (recipe.task == "variational" or recipe.data == "text"):
        yield "no part to compute again"
    if recipe.wrapping == "compiled" and (recurrent or recipe.task == "variational" or recipe.optimizer == "lbfgs"):
        yield "compilation that is not cheap"
    if recipe.wrapping == "compiled" and (recipe.data in ("text", "stream") or recipe.extra in ("resume", "average")):
        yield "compilation that is not cheap"
    if recipe.task == "variational" and recipe.model != "mlp":
        yield "a variational model has its own layers"
    if recipe.task == "autoencoder" and recipe.data == "image" and recipe.model == "patches":
        yield "no decoder of patches"
    if recipe.extra == "frozen" and recipe.model in ("bag", "mlp-residual", "causal-tied"):
        yield "little would be left to learn"
    if recipe.extra == "frozen" and recipe.task in ("autoencoder", "variational"):
        yield "little would be left to learn"
    if recipe.loop != "epochs" and recipe.schedule in ("cosine-epoch", "step-epoch", "plateau", "multi-step"):
        yield "a schedule of epochs"
    if recipe.loop != "epochs" and recipe.extra in ("early-stopping", "resume", "checkpoints"):
        yield "what is done at the end of an epoch"
    if recipe.supply == "random-rows" and recipe.loop == "epochs":
        yield "rows drawn without end have no epochs"
    if recipe.schedule == "multi-step" and recipe.epochs < 5:
        yield "milestones after the end"
    if recipe.width * recipe.batch * recipe.depth > 16384 and recipe.data != "vector":
        yield "too slow"
    if recipe.data == "stream" and recipe.width > 64:
        yield "too slow"
    if recipe.optimizer == "lbfgs" and recipe.width * recipe.batch > 2048:
        yield "too slow"
    if recipe.wrapping == "two-ranks" and recipe.pause_ms > 8:
        yield "too slow"
    if recipe.reset in ("before-backward", "first", "model-first", "keep-zeros") and recipe.extra == "accumulate":
        yield "gradients that are to add up"


def draw_recipes(count: int, seed: int) -> list[Recipe]:
    """So many recipes, the same ones for the same seed; every choice comes once before any is asked for again."""
    chance = random.Random(seed)
    wanted = [(name, value) for name, values in CHOICES.items() for value in dict.fromkeys(values)]
    chance.shuffle(wanted)
    return [_draw_recipe_with(*wanted[number % len(wanted)], chance) for number in range(count)]


def _draw_recipe_with(name: str, value: object, chance: random.Random) -> Recipe:
    """A recipe that has one choice already."""
    while True:
        recipe = _draw_recipe(chance, {name: value})
        if recipe is not None and not any(list_conflicts(recipe)):
            return recipe


def _draw_recipe(chance: random.Random, given: dict[str, object]) -> Recipe | None:
    """Choices that may conflict; None if the model or the task given is none of this kind of data."""
    drawn = {name: chance.choice(values) for name, values in CHOICES.items() if name not in ("model", "task")}
    data = str(drawn["data"])
    drawn |= {"task": chance.choice(TASKS[data]), "model": chance.choice(MODELS[data]), **given}
    if drawn["task"] not in TASKS[str(drawn["data"])] or drawn["model"] not in MODELS[str(drawn["data"])]:
        return None
    return Recipe(seed=chance.randrange(10**6), **drawn)


def write_programs(count: int, seed: int, folder: Path) -> list[Program]:
    """Write so many programs into a folder."""
    folder.mkdir(parents=True, exist_ok=True)
    programs = []
    for number, recipe in enumerate(draw_recipes(count, seed), 1):
        path = folder / f"s{seed}_{number:03}.py"
        path.write_text(write_program(recipe), encoding="utf-8")
        start = TORCHRUN if recipe.wrapping == "two-ranks" else (sys.executable,)
        programs.append(Program(path.stem, (*start, str(path))))
    return programs
