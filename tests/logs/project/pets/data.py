"""Batches, with words about them: the attribute style of flags."""

import logging

import torch

from pets.speak import log_once_per_rank, plain, record_truth

logger = logging.getLogger(__name__)


def iter_batches(cfg, steps):
    generator = torch.Generator().manual_seed(1)
    logger.info("dataset of %d batches", steps)
    for step in range(steps):
        images = torch.randn(4, 3, 8, 8, generator=generator)
        labels = torch.randint(-1, 5, (4,), generator=generator)
        if cfg.DEBUG.DATALOADER:
            logger.debug(
                f"[LOADER] batch {step}: {tuple(images.shape)}, range {images.min():.3f} to {images.max():.3f}"
            )
            record_truth(
                "DATALOADER",
                f"[LOADER] batch {step}: {tuple(images.shape)}, range {images.min():.3f} to {images.max():.3f}",
                logger,
                10,
            )
            log_labels(labels)
            log_once_per_rank("labels seen so far: %d", 4 * step + 4)
            record_truth("DATALOADER", f"labels seen so far: {4 * step + 4}", plain, 20)
        log_once_per_rank("batch %d is ready", step)
        yield images, labels


def log_labels(labels):
    """Called under a guard only."""
    logger.info("labels " + ", ".join(map(str, labels.tolist())))
    record_truth("DATALOADER", "labels " + ", ".join(map(str, labels.tolist())), logger, 20)
    log_histogram(labels)


def log_histogram(labels):
    counts = torch.bincount(labels.clamp(min=0), minlength=5)
    text = "histogram of labels\n" + "\n".join(f"  class {number}: {int(count)}" for number, count in enumerate(counts))
    logger.debug("histogram of labels\n%s", text.partition("\n")[2])
    record_truth("DATALOADER", text, logger, 10)
