"""A loop with a MetricsTracker of its own, a validation an epoch.

``--forget``: nothing is added to acc1. ``--wild``: acc1 is NaN. ``--logger``: a StepMetricsLogger writes steps and summaries.
"""

import sys

import torch
from common import make_regression, print_fact
from torch import nn
from torch.utils.data import DataLoader

from tdbg.metrics.step_logger.ops_schedule import OpsSchedule
from tdbg.metrics.step_logger.step_metrics_logger import StepMetricsLogger
from tdbg.metrics.tracker.metrics_tracker import MetricsTracker


def main() -> None:
    torch.manual_seed(0)
    train, val = DataLoader(make_regression(48), batch_size=8), DataLoader(make_regression(20, seed=1), batch_size=8)
    model = nn.Linear(8, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    tracker = MetricsTracker()
    logger = None
    if "--logger" in sys.argv:
        logger = StepMetricsLogger(tracker, OpsSchedule(total_steps=12, step=1, wandb=1), console=False)
    step = 0
    for epoch in range(2):
        for x, y in train:
            loss = nn.functional.mse_loss(model(x), y)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            step += 1
            tracker.update_train_batch({"loss": loss}, len(x), epoch=epoch, step=step)
            print_fact("step", step=step, loss=loss.item())
            if logger is not None:
                logger.log_step_metrics({"loss": loss}, step=step, epoch=epoch, samples=len(x))
        tracker.finalize_train_epoch(epoch, step)
        tracker.start_val_phase("val")
        with torch.no_grad():
            for x, y in val:
                error = (model(x) - y).abs()
                values = {"loss": nn.functional.mse_loss(model(x), y)}
                if epoch == 0 or "--forget" not in sys.argv:
                    values["acc1"] = (error < 1.0).float().mean()
                if "--wild" in sys.argv:
                    values["acc1"] = torch.tensor(float("nan"))
                tracker.update_val_metrics(values, len(x), epoch=epoch, step=step)
        found = tracker.finalize_val_phase("val", epoch, step)
        if logger is not None:
            logger.log_validation_summary("val", step=step, epoch=epoch)
        print_fact("val", step=step, **{str(key).replace("/", "_"): value for key, value in found.items()})
    print_fact("done", steps=step)


if __name__ == "__main__":
    main()
