"""The loss: aliases, early returns, several flags at once."""

import logging

import torch

from pets.speak import record_truth

logger = logging.getLogger(__name__)
PREFIX = "[NULL]"


def compute_total(cfg, logits, labels, step):
    null_masking = cfg.DEBUG.LOSS.NULL_MASKING
    weighting = getattr(cfg.DEBUG["LOSS"], "CLASS_WEIGHTING", False)
    known = labels >= 0
    if null_masking:
        logger.debug(f"{PREFIX} {int((~known).sum())} of {len(labels)} without a label")
        record_truth("LOSS.NULL_MASKING", f"[NULL] {int((~known).sum())} of {len(labels)} without a label", logger, 10)
        logger.stats("[DEBUG_NULL_MASKING_INPUT] step %d", step)
        record_truth("LOSS.NULL_MASKING", f"[DEBUG_NULL_MASKING_INPUT] step {step}", logger, 15)
    if null_masking or weighting:
        logger.info("classes present: %s", sorted(set(labels.tolist())))
        record_truth(
            "LOSS.NULL_MASKING LOSS.CLASS_WEIGHTING", f"classes present: {sorted(set(labels.tolist()))}", logger, 20
        )
    if known.any() and null_masking and step % 2 == 0:
        logger.warning("masked positions %s", (~known).nonzero().flatten().tolist())
        record_truth("LOSS.NULL_MASKING", f"masked positions {(~known).nonzero().flatten().tolist()}", logger, 30)
    weights = class_weights(cfg, labels)
    if not known.any():
        logger.warning("no labels in this batch")
        return logits.sum() * 0.0
    return torch.nn.functional.cross_entropy(logits[known], labels[known], weights)


def class_weights(cfg, labels):
    weights = torch.ones(5)
    if not cfg.DEBUG.LOSS.CLASS_WEIGHTING:
        return weights
    logger.info("weights: {}".format(weights.tolist()))  # noqa: UP032 - a style that must be understood
    record_truth("LOSS.CLASS_WEIGHTING", f"weights: {weights.tolist()}", logger, 20)
    for number, weight in enumerate(weights.tolist()):
        if weight == 0:
            continue
        logger.debug("class %d weighs %.2f", number, weight)
        record_truth("LOSS.CLASS_WEIGHTING", f"class {number} weighs {weight:.2f}", logger, 10)
    return weights
