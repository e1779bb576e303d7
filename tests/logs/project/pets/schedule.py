"""The learning rate: early return, nested guards, a flag handed on as an argument."""

import logging

from pets.speak import record_truth

logger = logging.getLogger(__name__)


def after_step(cfg, optimizer, step):
    rate = optimizer.param_groups[0]["lr"]
    log_rate(step, rate, verbose=cfg.DEBUG.LR)
    if step == 3:
        optimizer.param_groups[0]["lr"] = rate / 2
        logger.info("rate halved")
    if not cfg.DEBUG.SCHEDULING:
        return
    logger.info("next: %s", "validation" if step % 3 == 1 else "training")
    record_truth("SCHEDULING", f"next: {'validation' if step % 3 == 1 else 'training'}", logger, 20)
    if cfg.DEBUG.LR:
        logger.info("schedule holds rate %.4f", rate)
        record_truth("SCHEDULING LR", f"schedule holds rate {rate:.4f}", logger, 20)


def log_rate(step, rate, verbose=False):
    if verbose:
        logger.debug("rate %.5f in step %d", rate, step)
        record_truth("LR", f"rate {rate:.5f} in step {step}", logger, 10)
