"""Reading what `Training.save_checkpoint` wrote."""

from pathlib import Path
from typing import Any

import torch
from checks import fail

KEYS = {"model", "step", "epoch", "batches", "random", "config"}


def read_checkpoint(path: Path, device: torch.device) -> dict[str, Any]:
    """The parts of a checkpoint; the process ends with 2 if the file is none."""
    try:
        state = torch.load(path, map_location=device, weights_only=True)
        if not isinstance(state, dict) or not set(state) >= KEYS:
            raise ValueError("it lacks what train.py saves")
    except Exception as error:  # a file of another kind fails in any way
        what = f"{type(error).__name__}: {' '.join(str(error).split())[:100]}"
        fail(f"{path} is no checkpoint of this program ({what})", "a run with --opts OUTPUT DIR writes DIR/last.pt")
    return state
