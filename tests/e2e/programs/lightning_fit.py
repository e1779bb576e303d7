"""Lightning's Trainer, with clipping; ``--devices 2`` uses Lightning's own DDP launcher."""

import argparse
import logging
import warnings
from typing import Any

import lightning
import torch
from common import compute_grad_norm, make_regression, print_fact
from lightning.pytorch.profilers import PyTorchProfiler
from torch import Tensor, nn
from torch.utils.data import DataLoader

warnings.filterwarnings("ignore")
logging.getLogger("lightning.pytorch").setLevel(logging.ERROR)


class Net(lightning.LightningModule):
    """A perceptron whose training_step calls a submodule, never the root."""

    def __init__(self) -> None:
        super().__init__()
        self.body = nn.Sequential(nn.Linear(8, 16), nn.Tanh(), nn.Linear(16, 1))
        self.norm = 0.0

    def training_step(self, batch: list[Tensor], index: int) -> Tensor:
        x, y = batch
        return nn.functional.mse_loss(self.body(x), y)

    def validation_step(self, batch: list[Tensor], index: int) -> None:
        x, y = batch
        print_fact("val", rank=self.global_rank, loss=nn.functional.mse_loss(self.body(x), y).item())

    def on_before_optimizer_step(self, optimizer: Any) -> None:
        self.norm = compute_grad_norm(self.parameters())

    def on_train_batch_end(self, outputs: Any, batch: list[Tensor], index: int) -> None:
        print_fact(
            "step",
            rank=self.global_rank,
            step=self.global_step,
            epoch=self.current_epoch,
            loss=outputs["loss"].item(),
            norm=self.norm,
        )

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return torch.optim.SGD(self.parameters(), lr=0.05)


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--devices", type=int, default=1)
    parser.add_argument("--own-profiler", default="", metavar="FOLDER", help="Lightning's PyTorchProfiler writes there")
    args = parser.parse_args()
    lightning.seed_everything(0, verbose=False)
    trainer = lightning.Trainer(
        accelerator="cpu",
        devices=args.devices,
        strategy="ddp" if args.devices > 1 else "auto",
        max_epochs=2,
        gradient_clip_val=1.0,
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
        profiler=PyTorchProfiler(args.own_profiler, "own") if args.own_profiler else None,
    )
    train = DataLoader(make_regression(40), batch_size=8)
    val = DataLoader(make_regression(16, seed=1), batch_size=8)
    trainer.fit(Net(), train, val)
    print_fact("done", rank=trainer.global_rank, steps=trainer.global_step)


if __name__ == "__main__":
    main()
