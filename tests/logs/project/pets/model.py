"""The model: flags kept in attributes of an object, and a property."""

import logging

import torch

from pets.speak import record_truth

logger = logging.getLogger(__name__)


class Net(torch.nn.Module):
    def __init__(self, cfg):
        super().__init__()
        self.cfg = cfg
        self.talks = cfg.DEBUG.MODEL_BUILD
        self.body = torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Linear(192, 16), torch.nn.ReLU())
        self.head = torch.nn.Linear(16, 5)
        if self.talks:
            for name, module in self.named_children():
                logger.info("built %s (%s)", name, type(module).__name__)
                record_truth("MODEL_BUILD", f"built {name} ({type(module).__name__})", logger, 20)
        logger.info("%d parameters", sum(p.numel() for p in self.parameters()))

    @property
    def own_thing(self):
        return self.cfg.DEBUG.OWN_THING

    def forward(self, x):
        features = self.body(x)
        if self.own_thing and self.training:
            logger.debug("features: mean %.5f", features.mean().item())
            record_truth("OWN_THING", f"features: mean {features.mean().item():.5f}", logger, 10)
        if self.talks:
            self.say_shape(features)
        return self.head(features)

    def say_shape(self, features):
        logger.debug("[SHAPE] %s", tuple(features.shape))
        record_truth("MODEL_BUILD", f"[SHAPE] {tuple(features.shape)}", logger, 10)
