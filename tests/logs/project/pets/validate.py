"""Validation, during which the package's loggers are set to WARNING: what its flags say is dropped by that level."""

import logging

import torch

from pets.speak import record_truth

logger = logging.getLogger(__name__)


class Validator:
    def __init__(self, cfg):
        self.cfg = cfg
        self.log = logging.LoggerAdapter(logger, {})

    def run_validation(self, net, step):
        net.eval()
        with torch.no_grad():
            out = net(torch.ones(2, 3, 8, 8))
        net.train()
        logger.info("validated")
        if self.cfg.DEBUG.VALIDATION:
            logger.debug("outputs %s", out.argmax(1).tolist())
            record_truth("VALIDATION", f"outputs {out.argmax(1).tolist()}", logger, 10)
            self.log.info("[VAL] step %d", step)
            record_truth("VALIDATION", f"[VAL] step {step}", logger, 20)
            logger.stats("[VAL_STATS] %.4f", out.mean().item())
            record_truth("VALIDATION", f"[VAL_STATS] {out.mean().item():.4f}", logger, 15)
            logger.warning("validated with care")
            record_truth("VALIDATION", "validated with care", logger, 30)
