"""The one place where the program meets tdbg: its diagnostics and its metrics, or, without it, what stands for them."""

import sys
from pathlib import Path
from typing import Any

from yacs.config import CfgNode

try:
    from tdbg import MetricsTracker, OpsSchedule, StepMetricsLogger, enable_debugging, get_debugging_status
    from tdbg.probes import loss as diagnostics
except ImportError:
    from plain import NO_DIAGNOSTICS as diagnostics  # type: ignore[no-redef]
    from plain import MetricsTracker, OpsSchedule, StepMetricsLogger  # type: ignore[assignment]

    enable_debugging = None  # type: ignore[assignment]

__all__ = [
    "MetricsTracker",
    "OpsSchedule",
    "StepMetricsLogger",
    "diagnostics",
    "metrics_folder",
    "sinks",
    "switch_on",
    "tell_idle",
]

SPEAKS_OF = {  # flag of tdbg -> the technique below LOSS
    "LOSS.TAXONOMY_SMOOTHING": "SMOOTHING",
    "LOSS.NULL_MASKING": "NULL_MASKING",
    "LOSS.CLASS_WEIGHTING": "CLASS_WEIGHTING",
    "LOSS.GRADNORM_MEMORY": "GRADNORM",
    "LOSS.GRADNORM_METRICS": "GRADNORM",
    "LOSS.VERBOSE_GRADNORM_LOGGING": "GRADNORM",
}


def switch_on(debug: CfgNode) -> None:
    """Outside of `tdbg run`, switch on the flags that the config has on; inside of it they are on already."""
    on = [flag for flag in _flags(debug) if enable_debugging is not None]
    if on and not get_debugging_status()["inside_run"]:
        enable_debugging(on)


def tell_idle(config: CfgNode) -> None:
    """A flag of a technique that is off has nothing to tell: say so."""
    on = _flags(config.DEBUG)
    for flag, technique in SPEAKS_OF.items():
        if flag in on and not config.LOSS[technique].ENABLED:
            print(f"taxa: {flag} has nothing to tell: LOSS.{technique}.ENABLED is off", file=sys.stderr, flush=True)


def metrics_folder(output: str, rank: int) -> Path | None:
    """Where the logger writes: into the run's own folder under `tdbg run`, else into OUTPUT."""
    inside = enable_debugging is not None and get_debugging_status()["inside_run"]
    return Path(output) / "metrics" / f"rank{rank:04d}" if output and not inside else None


def sinks(config: CfgNode, rank: int) -> list[Any]:
    """Where rows go beside the file and the console."""
    if not config.WANDB.ENABLED or rank or enable_debugging is None:
        return []
    from tdbg.metrics.sinks.wandb_ import WandbSink

    folder = config.OUTPUT or "."
    return [WandbSink(project=config.WANDB.PROJECT, mode=config.WANDB.MODE, dir=folder)]


def _flags(node: CfgNode, above: str = "") -> list[str]:
    found = []
    for name, value in node.items():
        path = f"{above}{name}"
        if isinstance(value, CfgNode):
            found += _flags(value, f"{path}.")
        elif value:
            found.append(path)
    return found
