"""Lightning with logged values of steps and epochs, a torchmetrics metric, and no logger at all."""

import logging
import warnings

import lightning
import torch
from common import make_regression, print_fact
from torch import Tensor, nn
from torch.utils.data import DataLoader
from torchmetrics import MeanSquaredError

warnings.filterwarnings("ignore")
logging.getLogger("lightning.pytorch").setLevel(logging.ERROR)


class Net(lightning.LightningModule):
    """A perceptron that logs."""

    def __init__(self) -> None:
        super().__init__()
        self.body = nn.Sequential(nn.Linear(8, 16), nn.Tanh(), nn.Linear(16, 1))
        self.val_mse = MeanSquaredError()

    def training_step(self, batch: list[Tensor], index: int) -> Tensor:
        x, y = batch
        loss = nn.functional.mse_loss(self.body(x), y)
        self.log("train/loss", loss, on_step=True, on_epoch=True)
        print_fact("step", step=self.global_step + 1, loss=loss.item())
        return loss

    def validation_step(self, batch: list[Tensor], index: int) -> None:
        x, y = batch
        self.val_mse.update(self.body(x), y)
        self.log("val/mse", self.val_mse)

    def on_validation_epoch_end(self) -> None:
        if not self.trainer.sanity_checking:
            print_fact("val", step=self.global_step, mse=self.val_mse.compute().item())

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return torch.optim.SGD(self.parameters(), lr=0.05)


def main() -> None:
    lightning.seed_everything(0, verbose=False)
    trainer = lightning.Trainer(
        accelerator="cpu",
        devices=1,
        max_epochs=2,
        log_every_n_steps=2,
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
    )
    net = Net()
    trainer.fit(
        net, DataLoader(make_regression(40), batch_size=8), DataLoader(make_regression(20, seed=1), batch_size=8)
    )
    print_fact("done", steps=trainer.global_step)


if __name__ == "__main__":
    main()
