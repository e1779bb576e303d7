"""A run whose captured tensors are known number by number: long ids, large maps, attention, pictures, text."""

import json
from pathlib import Path

import numpy as np

from tests.pages.arrays import make_noise, write_pages

FIRST_KEY = (1 << 60) + 1  # JavaScript rounds it
SAMPLES = 250
WORDS = ["the", "cat", "sat", "on", "the", "mat", "<b>", "."]
RAMP = np.arange(4 * 8 * 64 * 64, dtype=np.float32).reshape(4, 8, 64, 64)
WIDE = np.repeat(np.arange(3 * 100, dtype=np.float32), 64 * 64).reshape(3, 100, 64, 64)
WIDE[2, 0] = 128
ATTENTION = np.random.default_rng(3).random((3, 1500, 1500), dtype=np.float32)


def make_losses() -> list[float]:
    """The loss of each sample; one of them is nan."""
    losses = [float(one) for one in np.random.default_rng(7).permutation(SAMPLES)]
    losses[17] = float("nan")
    return losses


def write_made_run(folder: Path) -> Path:
    """Samples with a loss in two epochs on two ranks; datapoints "maps", "wide", "text" and "pictures"."""
    (folder / "rank0000").mkdir(parents=True)
    (folder / "run.json").write_text(
        json.dumps({"command": ["train"], "exit": {"code": 0, "signal": None}, "name": folder.name})
    )
    (folder / "rank0000" / "events.jsonl").write_text("")
    samples = [
        (FIRST_KEY + at, {"head": np.float32([at, -at]), "loss": loss}, {"epoch": at // 125, "phase": "train"})
        for at, loss in enumerate(make_losses())
    ]
    write_pages(folder / "rank0000" / "pages", samples, run="made")
    pixels = np.random.default_rng(5).integers(0, 256, (2, 24, 32, 3)).astype(np.uint8)
    others = [
        ("maps", {"layer:output": RAMP, "attn:attention": ATTENTION}, {"phase": "eval"}),
        ("wide", {"layer:output": WIDE}, {"phase": "eval"}),
        (
            "text",
            {
                "tokens": WORDS,
                "loss_per_token": [0.5 * at for at in range(8)],
                "attn:attention": np.full((2, 8, 8), 0.125, np.float32),
            },
            {"phase": "eval"},
        ),
        (
            "pictures",
            {"inputs.0": pixels, "gradcam:layer4/gradcam": np.abs(make_noise(2, 6, 8)), "head": np.float32([1, 2])},
            {"phase": "eval"},
        ),
    ]
    write_pages(folder / "rank0001" / "pages", others, run="made", rank=1, world_size=2)
    return folder
