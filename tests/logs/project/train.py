"""Trains a small classifier: the program whose records the tests of flags are about.

It logs as programs do: some calls behind a flag carry its name, most do not, some are dropped by a level, and many
belong to no flag. Beside each call behind a flag stands `told`, which writes the truth: flag and text.
"""

import argparse
import gc
import logging
import os
import time

import torch
import torch.distributed as dist
from pets import data, losses, schedule
from pets.config import get_config
from pets.model import Net
from pets.speak import get_rank, quiet_package, record_truth, set_up
from pets.validate import Validator

logger = logging.getLogger("train")


def check_debug_flag(cfg, name):
    """The value of a flag, wherever it stands in the config."""
    node = cfg
    for word in name.split("."):
        node = node[word]
    return bool(node)


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--steps", type=int, default=6)
    parser.add_argument("opts", nargs="*", default=[])
    args = parser.parse_args()
    if "RANK" in os.environ:
        dist.init_process_group("gloo")
    cfg = get_config(args.opts)
    set_up("out")
    torch.manual_seed(get_rank())
    logger.info("training for %d steps", args.steps)
    net = Net(cfg)
    model = torch.nn.parallel.DistributedDataParallel(net) if dist.is_initialized() else net
    optimizer = torch.optim.SGD(model.parameters(), lr=cfg.LR)
    debug_gradients = check_debug_flag(cfg, "DEBUG.GRADIENTS")
    validator = Validator(cfg)
    for step, (images, labels) in enumerate(data.iter_batches(cfg, args.steps)):
        optimizer.zero_grad()
        loss = losses.compute_total(cfg, model(images), labels, step)
        loss.backward()
        if debug_gradients:
            norm = float(sum(p.grad.square().sum() for p in model.parameters()).sqrt())
            logger.debug("total norm %.6f at step %d", norm, step)
            record_truth("GRADIENTS", f"total norm {norm:.6f} at step {step}", logger, 10)
            for name, parameter in model.named_parameters():
                text = f"{name}: {tuple(parameter.shape)}"
                logger.info(
                    "gradient of %s",
                    text,
                )
                record_truth("GRADIENTS", f"gradient of {text}", logger, 20)
        optimizer.step()
        schedule.after_step(cfg, optimizer, step)
        logger.info("step %d: loss %.4f", step, loss.item())
        if step % 3 == 2:
            with quiet_package():  # as many programs do around validation
                validator.run_validation(net, step)
    logger.info("done")
    print("trained")
    if dist.is_initialized():
        gc.collect()
        dist.barrier()
        time.sleep(0.3)  # without it, DDP on gloo aborts on the way out now and then
        dist.destroy_process_group()


if __name__ == "__main__":
    main()
