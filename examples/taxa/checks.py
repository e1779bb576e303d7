"""What a configuration must not be: two clear lines, what is wrong and what to do next, and exit code 2."""

import os
import sys
import time
from pathlib import Path
from typing import Any, NoReturn

from languages import RANKS
from yacs.config import CfgNode

FIRST_RANK_SPEAKS_S = 20.0
RANGES: dict[str, tuple[float, float]] = {
    "DATA.WORDS": (0, 1e9),
    "DATA.BATCH_SIZE": (1, 1e6),
    "DATA.WORKERS": (0, 256),
    "DATA.MAX_LETTERS": (3, 200),
    "META.MASK_PROB": (0, 1),
    "MODEL.LETTER_DIM": (1, 1e5),
    "MODEL.WIDTH": (1, 1e5),
    "MODEL.HEADS": (1, 1e3),
    "MODEL.DROPOUT": (0, 0.95),
    "TRAIN.EPOCHS": (1, 1e6),
    "TRAIN.MAX_STEPS": (0, 1e9),
    "TRAIN.LR": (1e-9, 1e3),
    "TRAIN.WARMUP": (0, 1e9),
    "TRAIN.WEIGHT_DECAY": (0, 1e3),
    "TRAIN.CLIP_NORM": (0, 1e9),
    "LOSS.SMOOTHING.MASS": (0, 0.99),
    "LOSS.SMOOTHING.BETA": (0, 100),
    "LOSS.NULL_MASKING.START": (0, 1),
    "LOSS.NULL_MASKING.END": (0, 1),
    "LOSS.NULL_MASKING.RAMP": (0, 1),
    "LOSS.CLASS_WEIGHTING.BETA": (0, 0.999999),
    "LOSS.GRADNORM.ALPHA": (0, 100),
    "LOSS.GRADNORM.LR": (0, 1e3),
    "LOSS.GRADNORM.INTERVAL": (1, 1e9),
    "AUGMENT.DROP": (0, 1),
    "AUGMENT.SWAP": (0, 1),
    "SCHEDULE.VALIDATION_STEPS": (0, 1e9),
    "SCHEDULE.VALIDATION_EPOCHS": (0, 1e9),
    "SCHEDULE.MASKED_STEPS": (0, 1e9),
    "SCHEDULE.MASKED_EPOCHS": (0, 1e9),
    "SCHEDULE.CHECKPOINT_STEPS": (0, 1e9),
    "SCHEDULE.CHECKPOINT_EPOCHS": (0, 1e9),
    "SCHEDULE.METRICS.STEP_INTERVAL": (1, 1e9),
    "SCHEDULE.METRICS.CONSOLE_INTERVAL": (0, 1e9),
    "SCHEDULE.METRICS.WANDB_INTERVAL": (1, 1e9),
    "EARLY_STOP.PATIENCE": (0, 1e9),
    "EARLY_STOP.MIN_DELTA": (0, 1e9),
}
CHOICES = {
    "TRAIN.AMP": ("off", "bf16", "fp16"),
    "TRAIN.DEVICE": ("auto", "cpu", "cuda"),
    "WANDB.MODE": ("offline", "online", "disabled"),
    "EARLY_STOP.METRIC": (
        *(f"val/{name}" for name in ("loss", "chain_accuracy", "partial_chain_accuracy")),
        *(f"val/{name}_{rank}" for name in ("loss", "acc1") for rank in RANKS),
    ),
}


def fail(what: str, next_step: str) -> NoReturn:
    """End the process: what is wrong, what to do next, exit code 2. Of several ranks of a machine one says it.

    A launcher ends all ranks when the first has failed. So the others wait for that, or it might be rank 0 that is
    ended before it has said anything; after a while they speak for themselves.
    """
    if os.environ.get("LOCAL_RANK", "0") != "0":
        time.sleep(FIRST_RANK_SPEAKS_S)
    print(f"taxa: {what}\ntaxa: {next_step}", file=sys.stderr, flush=True)
    raise SystemExit(2)


def check_config(config: CfgNode) -> None:
    """End the process if settings cannot be, or contradict each other."""
    for key, (low, high) in RANGES.items():
        if not low <= lookup(config, key) <= high:
            fail(f"{key} is {lookup(config, key):g}", f"it lies between {low:g} and {high:g}")
    for key, known in CHOICES.items():
        if lookup(config, key) not in known:
            fail(f"{key} is {lookup(config, key)!r}", f"it is one of {', '.join(known)}")
    _check_contradictions(config)
    _check_files(config)


def _check_contradictions(config: CfgNode) -> None:
    every, masking = config.SCHEDULE, config.LOSS.NULL_MASKING
    for name in ("VALIDATION", "MASKED", "CHECKPOINT"):
        steps, epochs = f"SCHEDULE.{name}_STEPS", f"SCHEDULE.{name}_EPOCHS"
        if every[f"{name}_STEPS"] and every[f"{name}_EPOCHS"]:
            fail(f"{steps} and {epochs} contradict each other", f"set one of them to 0, such as: --opts {epochs} 0 ...")
    if masking.END > masking.START:
        fail(
            f"LOSS.NULL_MASKING.END {masking.END:g} is above START {masking.START:g}",
            "masking begins high and lets null labels in later: exchange the two",
        )
    if config.MODEL.WIDTH % config.MODEL.HEADS:
        fail(
            f"MODEL.WIDTH {config.MODEL.WIDTH} is not a multiple of MODEL.HEADS {config.MODEL.HEADS}",
            f"each head gets an equal part: {config.MODEL.HEADS * max(config.MODEL.WIDTH // config.MODEL.HEADS, 1)} is",
        )
    metrics = every.METRICS
    if metrics.WANDB_INTERVAL % metrics.STEP_INTERVAL:
        fail(
            f"SCHEDULE.METRICS.WANDB_INTERVAL {metrics.WANDB_INTERVAL} is not a multiple of STEP_INTERVAL "
            f"{metrics.STEP_INTERVAL}",
            "what is not computed at a step cannot be sent: make one a multiple of the other",
        )
    if config.EARLY_STOP.PATIENCE and not (every.VALIDATION_STEPS or every.VALIDATION_EPOCHS):
        fail(
            "EARLY_STOP.PATIENCE is set, and nothing is ever validated",
            "set SCHEDULE.VALIDATION_EPOCHS (or _STEPS), or EARLY_STOP.PATIENCE 0",
        )
    if config.TRAIN.AMP == "fp16" and config.LOSS.GRADNORM.ENABLED:
        fail(
            "TRAIN.AMP fp16 and LOSS.GRADNORM contradict each other",
            "gradient norms of an unscaled fp16 loss are not to be trusted: use bf16, or off",
        )


def _check_files(config: CfgNode) -> None:
    resume, output = config.CHECKPOINT.RESUME, config.OUTPUT
    if resume and not Path(resume).is_file():
        fail(f"CHECKPOINT.RESUME: no file {resume}", "a run with OUTPUT DIR writes DIR/last.pt")
    if output and Path(output).exists() and not Path(output).is_dir():
        fail(f"OUTPUT {output} is a file", "name a folder; it is made if it is missing")


def lookup(config: CfgNode, key: str) -> Any:
    """The value of a dotted key."""
    node: Any = config
    for name in key.split("."):
        node = node[name]
    return node
