"""The configuration: every setting with its default, and how files and the command line change them."""

import argparse
import ast
import difflib
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import yaml
from checks import check_config, fail, lookup
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
    "OUTPUT": "",  # folder of checkpoints and metrics; empty: no checkpoints, and metrics in ./metrics
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
        # These also take text: steps to look at (30:32), and `raise`; yacs changes the type of None alone.
        node[leaf] = None if flag in ("PROFILER", "AUTOGRAD_ANOMALY") else False
    return config


def load_config(words: Sequence[str] | None = None) -> CfgNode:
    """The configuration that a command line asks for; the process ends with 2 for a wrong one."""
    parser = argparse.ArgumentParser(description="Train a classifier of languages, branches and families from words.")
    parser.add_argument("--cfg", metavar="FILE", help="a YAML file of settings, such as base.yaml")
    parser.add_argument("--fault", default="", metavar="NAME", help="plant a fault (list: all there are)")
    parser.add_argument("--opts", nargs=argparse.REMAINDER, default=[], metavar="KEY VALUE", help="single settings")
    asked = parser.parse_args(words)
    config = defaults()
    if len(asked.opts) % 2:
        fail(f"--opts: {asked.opts[-1]!r} has no value", "--opts takes pairs of KEY VALUE, and comes last")
    chosen = list(zip(asked.opts[::2], asked.opts[1::2], strict=True))
    for key, value in _settings(asked.cfg) if asked.cfg else ():
        _set_option(config, key, value, asked.cfg)
    _plant_settings(config, asked.fault, dict(chosen).get("FAULT", config.FAULT))
    for key, value in chosen:
        _set_option(config, key, value, "--opts")
    config.freeze()
    check_config(config)
    return config


def _settings(path: str) -> Iterator[tuple[str, Any]]:
    """(dotted key, value) of all settings in a YAML file."""
    try:
        found = yaml.safe_load(Path(path).read_text(encoding="utf-8"))
    except FileNotFoundError:
        fail(f"--cfg {path}: there is no such file", "base.yaml beside train.py is one to copy")
    except (OSError, ValueError, yaml.YAMLError) as error:
        fail(f"--cfg {path} cannot be read: {' '.join(str(error).split())}", "base.yaml beside train.py is one to copy")
    if not isinstance(found, dict):
        fail(f"--cfg {path} holds no settings", "it is a YAML mapping, such as TRAIN: {LR: 0.003}; see base.yaml")
    yield from _leaves(found)


def _leaves(found: Mapping[Any, Any], above: str = "") -> Iterator[tuple[str, Any]]:
    for name, value in found.items():
        if isinstance(value, dict):
            yield from _leaves(value, f"{above}{name}.")
        else:
            yield f"{above}{name}", value


def _plant_settings(config: CfgNode, asked: str, named: str) -> None:
    """The settings that a fault needs to show; --opts come after them."""
    from faults import FAULTS

    if asked == "list":
        print("\n".join(f"{fault.name:24} {fault.flag:32} {fault.summary}" for fault in FAULTS.values()))
        raise SystemExit(0)
    if asked and named and asked != named:
        fail(f"--fault {asked} and FAULT {named} contradict each other", "plant one of them at a time")
    name = asked or named
    if not name:
        return
    if name not in FAULTS:
        near = difflib.get_close_matches(name, FAULTS, n=1)
        fail(f"no fault is called {name!r}", f"{f'did you mean {near[0]}? ' if near else ''}--fault list shows all")
    config.FAULT = name
    settings = FAULTS[name].settings
    for key, value in zip(settings[::2], settings[1::2], strict=True):
        _set_option(config, key, value, f"--fault {name}")


def _set_option(config: CfgNode, key: str, value: Any, where: str) -> None:
    """Set one value, of the type of its default; a whole number may stand for a fraction."""
    try:
        default = lookup(config, key)
    except (KeyError, TypeError):
        fail(f"{where}: there is no setting {key}", _meant(config, key))
    if isinstance(default, CfgNode):
        if value is None:
            return  # a heading of a file with nothing below it
        fail(f"{where}: {key} is no setting by itself", f"it has settings below it: {', '.join(default)}")
    above, _, leaf = key.rpartition(".")
    (lookup(config, above) if above else config)[leaf] = _typed(key, value, default, where)


def _typed(key: str, value: Any, default: Any, where: str) -> Any:
    given = value
    if isinstance(value, str) and not isinstance(default, str):
        value = _decoded(value)
    if default is None:
        return value
    if isinstance(default, float) and isinstance(value, int) and not isinstance(value, bool):
        return float(value)
    if isinstance(default, str) and isinstance(value, int | float) and not isinstance(value, bool):
        return str(value)
    if type(value) is not type(default):
        kinds = {bool: "True or False", int: "a whole number", float: "a number", str: "a text (put it into quotes)"}
        fail(f"{where}: {key} is {given!r}", f"it has to be {kinds[type(default)]}, such as {default!r}")
    return value


def _decoded(text: str) -> Any:
    """What a word of the command line stands for."""
    if text.lower() in ("true", "false"):
        return text.lower() == "true"
    try:
        return float(text) if text.lower().lstrip("+-") in ("nan", "inf") else ast.literal_eval(text)
    except (ValueError, SyntaxError):
        return text


def _meant(config: CfgNode, key: str) -> str:
    """What to do about a key that is none."""
    if key.startswith("-"):
        return "--cfg and --fault come before --opts"
    known = [name for name, _ in _leaves(config)]
    leaf = key.upper().rpartition(".")[2]
    near = [name for name in known if name.rpartition(".")[2] == leaf]
    near = near or difflib.get_close_matches(key.upper(), known, n=1, cutoff=0.75)
    return f"did you mean {' or '.join(near[:3])}?" if near else "config.py has all settings, with their defaults"
