"""The configuration: every setting with its default, and one clear line for whatever is wrong with it."""

import argparse
import re
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NoReturn

import yaml
from yacs.config import CfgNode

# Every flag of tdbg's table. `tdbg run --flag LOSS.NULL_MASKING` sets DEBUG.LOSS.NULL_MASKING in the rank.
FLAGS = [
    "SCHEDULING",
    "CHECKPOINT",
    "DATALOADER",
    "AUGMENTATION",
    "OPTIMIZER",
    "DISTRIBUTED",
    "MODEL_BUILD",
    "TRAINING_LOOP",
    "VALIDATION_METRICS",
    "DUMP_METRICS",
    "WANDB_METRICS",
    "LOSS.TAXONOMY_SMOOTHING",
    "LOSS.NULL_MASKING",
    "LOSS.CLASS_WEIGHTING",
    "LOSS.GRADNORM_MEMORY",
    "LOSS.GRADNORM_METRICS",
    "LOSS.VERBOSE_GRADNORM_LOGGING",
    "AUTOGRAD_ANOMALY",
    "PROFILER",
    "MEMORY",
    "GRADIENTS",
    "FORWARD",
    "BACKWARD",
    "DEVICE",
    "AMP",
    "VALIDATION",
    "EARLY_STOPPING",
    "LR",
]

DEFAULTS: dict[str, Any] = {
    "SEED": 0,
    "OUTPUT": "",  # folder of checkpoints and metrics; empty: none are kept
    "DATA": {
        "WORDS": 0,  # so many of the words, chosen by their hash; 0: all
        "BATCH_SIZE": 128,  # on each rank
        "WORKERS": 0,  # processes that load and augment; 0: the loop itself
        "MAX_LETTERS": 20,  # longer words are cut
    },
    "META": {
        "ENABLED": True,
        "MASK_PROB": 0.2,  # how often training hides a component of a word
    },
    "MODEL": {"LETTER_DIM": 32, "WIDTH": 96, "HEADS": 4, "DROPOUT": 0.2},
    "TRAIN": {
        "EPOCHS": 8,
        "MAX_STEPS": 0,  # ends the run; 0: after the last epoch
        "LR": 3e-3,
        "WARMUP": 100,  # steps
        "WEIGHT_DECAY": 0.05,
        "CLIP_NORM": 1.0,  # 0: no clipping
        "AMP": "off",  # off, bf16 or fp16
        "DEVICE": "auto",  # auto, cpu or cuda
    },
    "LOSS": {
        "SMOOTHING": {"ENABLED": False, "MASS": 0.1, "BETA": 4.0},  # mass that leaves the true class; pull of near ones
        "NULL_MASKING": {
            "ENABLED": False,
            "START": 1.0,
            "END": 0.5,
            "RAMP": 0.5,
        },  # probability, over a part of the run
        "CLASS_WEIGHTING": {"ENABLED": False, "BETA": 0.99},
        "GRADNORM": {"ENABLED": False, "ALPHA": 1.0, "LR": 0.02, "INTERVAL": 10},
    },
    "AUGMENT": {"ENABLED": False, "DROP": 0.15, "SWAP": 0.1},  # chance that a word loses, or swaps, letters
    "SCHEDULE": {
        "VALIDATION_STEPS": 0,
        "VALIDATION_EPOCHS": 1,
        "MASKED_STEPS": 0,
        "MASKED_EPOCHS": 1,
        "CHECKPOINT_STEPS": 0,
        "CHECKPOINT_EPOCHS": 1,
        "METRICS": {"STEP_INTERVAL": 1, "CONSOLE_INTERVAL": 100, "WANDB_INTERVAL": 20},
    },
    "EARLY_STOP": {"METRIC": "val/loss", "PATIENCE": 0, "MIN_DELTA": 0.0},  # checks without a new best; 0: never
    "CHECKPOINT": {"RESUME": ""},  # a file to go on from
    "WANDB": {"ENABLED": False, "MODE": "offline", "PROJECT": "taxa"},
    "FAULT": "",  # a name of faults.py
    "DEBUG": {},
}


def defaults() -> CfgNode:
    """The whole tree, with a node under DEBUG for each flag."""
    config = CfgNode(DEFAULTS)
    for flag in FLAGS:
        *above, leaf = flag.split(".")
        node = config.DEBUG
        for name in above:
            node = node.setdefault(name, CfgNode())
        # PROFILER also takes the steps to look at, as text (30:32); yacs changes the type of None alone.
        node[leaf] = None if flag == "PROFILER" else False
    return config


def load(words: Sequence[str] | None = None) -> CfgNode:
    """The configuration that a command line asks for; the process ends with 2 for a wrong one."""
    parser = argparse.ArgumentParser(description="Train a classifier of languages, branches and families from words.")
    parser.add_argument("--cfg", metavar="FILE", help="a YAML file of settings, such as base.yaml")
    parser.add_argument("--fault", default="", metavar="NAME", help="plant a fault (list: all there are)")
    parser.add_argument("--opts", nargs=argparse.REMAINDER, default=[], metavar="KEY VALUE", help="single settings")
    asked = parser.parse_args(words)
    config = defaults()
    if asked.cfg:
        _tell(lambda: _merge_file(config, asked.cfg), asked.cfg)
    if asked.fault:
        config.FAULT = asked.fault
        _plant_settings(config)
    if len(asked.opts) % 2:
        fail(f"--opts takes pairs of KEY VALUE, and {asked.opts[-1]!r} has no value")
    for key, value in zip(asked.opts[::2], asked.opts[1::2], strict=True):
        _tell(lambda key=key, value=value: _set(config, key, value), f"--opts {key}")
    config.freeze()
    check(config)
    return config


def fail(message: str) -> NoReturn:
    """End the process: one line, exit code 2."""
    print(f"taxa: {message}", file=sys.stderr)
    raise SystemExit(2)


def check(config: CfgNode) -> None:
    """End the process if settings contradict each other or cannot be."""
    train, loss, every = config.TRAIN, config.LOSS, config.SCHEDULE
    for name in ("VALIDATION", "MASKED", "CHECKPOINT"):
        if every[f"{name}_STEPS"] and every[f"{name}_EPOCHS"]:
            fail(f"SCHEDULE.{name}_STEPS and SCHEDULE.{name}_EPOCHS contradict each other: set one of them to 0")
    for key, low, high in (
        ("DATA.BATCH_SIZE", 1, 1e6),
        ("DATA.WORKERS", 0, 256),
        ("DATA.MAX_LETTERS", 3, 200),
        ("META.MASK_PROB", 0, 1),
        ("MODEL.DROPOUT", 0, 0.95),
        ("TRAIN.EPOCHS", 1, 1e6),
        ("TRAIN.LR", 1e-9, 1e3),
        ("TRAIN.WARMUP", 0, 1e9),
        ("LOSS.SMOOTHING.MASS", 0, 0.99),
        ("LOSS.NULL_MASKING.START", 0, 1),
        ("LOSS.NULL_MASKING.END", 0, 1),
        ("LOSS.NULL_MASKING.RAMP", 0, 1),
        ("LOSS.CLASS_WEIGHTING.BETA", 0, 0.999999),
        ("LOSS.GRADNORM.INTERVAL", 1, 1e9),
        ("AUGMENT.DROP", 0, 1),
        ("AUGMENT.SWAP", 0, 1),
        ("EARLY_STOP.PATIENCE", 0, 1e9),
    ):
        value = lookup(config, key)
        if not low <= value <= high:
            fail(f"{key} is {value:g}, and lies between {low:g} and {high:g}")
    for key, known in (("TRAIN.AMP", ("off", "bf16", "fp16")), ("TRAIN.DEVICE", ("auto", "cpu", "cuda"))):
        if lookup(config, key) not in known:
            fail(f"{key} is {lookup(config, key)!r}, and is one of {', '.join(known)}")
    if loss.NULL_MASKING.END > loss.NULL_MASKING.START:
        fail("LOSS.NULL_MASKING.END is above START: masking begins high and lets null labels in later")
    if config.MODEL.WIDTH % config.MODEL.HEADS:
        fail(f"MODEL.WIDTH {config.MODEL.WIDTH} is not a multiple of MODEL.HEADS {config.MODEL.HEADS}")
    if every.METRICS.WANDB_INTERVAL % max(every.METRICS.STEP_INTERVAL, 1):
        fail("SCHEDULE.METRICS.WANDB_INTERVAL is not a multiple of STEP_INTERVAL")
    if config.CHECKPOINT.RESUME and not Path(config.CHECKPOINT.RESUME).is_file():
        fail(f"CHECKPOINT.RESUME: no file {config.CHECKPOINT.RESUME}")
    if train.AMP == "fp16" and train.DEVICE == "cpu" and loss.GRADNORM.ENABLED:
        fail("TRAIN.AMP fp16 and LOSS.GRADNORM contradict each other: norms of scaled gradients are not comparable")


def lookup(config: CfgNode, key: str) -> Any:
    """The value of a dotted key."""
    node: Any = config
    for name in key.split("."):
        node = node[name]
    return node


def _merge_file(config: CfgNode, path: str) -> None:
    with Path(path).open(encoding="utf-8") as file:
        found = yaml.safe_load(file)
    if not isinstance(found, dict):
        raise ValueError("it is no YAML mapping of settings")
    config.merge_from_other_cfg(CfgNode(found))


def _plant_settings(config: CfgNode) -> None:
    """The settings that a fault needs to show; --opts come after them."""
    from faults import FAULTS

    if config.FAULT == "list":
        print("\n".join(f"{fault.name:24} {fault.flag:32} {fault.summary}" for fault in FAULTS.values()))
        raise SystemExit(0)
    if config.FAULT not in FAULTS:
        fail(f"no fault is called {config.FAULT!r}; --fault list shows all")
    config.merge_from_list(list(FAULTS[config.FAULT].settings))


def _set(config: CfgNode, key: str, value: str) -> None:
    """Set one value, of the type of its default: a text stays a text, a whole number may stand for a fraction."""
    try:
        default = lookup(config, key)
    except (KeyError, TypeError):
        raise KeyError(f"there is no setting {key}") from None
    if isinstance(default, CfgNode):
        raise ValueError(f"{key} has settings below it: {', '.join(default)}")
    if isinstance(default, str):
        above, _, leaf = key.rpartition(".")
        (lookup(config, above) if above else config)[leaf] = value
    elif isinstance(default, float) and re.fullmatch(r"[+-]?\d+", value):
        config.merge_from_list([key, float(value)])
    else:
        config.merge_from_list([key, value])


def _tell(merge: Callable[[], None], where: str) -> None:
    try:
        merge()
    except FileNotFoundError:
        fail(f"{where}: there is no such file")
    except (OSError, yaml.YAMLError) as error:
        fail(f"{where}: {' '.join(str(error).split())}")
    except (KeyError, ValueError, AssertionError, AttributeError, TypeError) as error:
        said = " ".join(str(error.args[0] if error.args else error).split())
        fail(f"{where}: {said}")
