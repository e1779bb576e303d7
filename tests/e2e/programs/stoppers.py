"""Early stopping of a library, on a loss that falls: prints what it decides.

The first word names the library: lightning, hf or ignite. ``--wrong`` tells it that larger is better.
"""

import logging
import os
import sys
import tempfile
import warnings
from typing import Any

os.environ["HF_HUB_OFFLINE"] = "1"

import torch
from common import make_regression, make_tokens, print_fact
from torch import Tensor, nn
from torch.utils.data import DataLoader, random_split

warnings.filterwarnings("ignore")
WRONG = "--wrong" in sys.argv
CHECKS = 6


def with_lightning() -> None:
    import lightning
    from lightning.pytorch.callbacks import EarlyStopping

    logging.getLogger("lightning.pytorch").setLevel(logging.ERROR)

    class Net(lightning.LightningModule):
        def __init__(self) -> None:
            super().__init__()
            self.body = nn.Linear(8, 1)

        def training_step(self, batch: list[Tensor], index: int) -> Tensor:
            return nn.functional.mse_loss(self.body(batch[0]), batch[1])

        def validation_step(self, batch: list[Tensor], index: int) -> None:
            self.log("val_loss", nn.functional.mse_loss(self.body(batch[0]), batch[1]))

        def configure_optimizers(self) -> torch.optim.Optimizer:
            return torch.optim.SGD(self.parameters(), lr=0.02)

    lightning.seed_everything(0, verbose=False)
    stopper = EarlyStopping("val_loss", patience=3, mode="max" if WRONG else "min")
    trainer = lightning.Trainer(
        accelerator="cpu",
        max_epochs=CHECKS,
        callbacks=[stopper],
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
        num_sanity_val_steps=0,
    )
    train, val = random_split(make_regression(128), [64, 64], torch.Generator().manual_seed(0))
    trainer.fit(Net(), DataLoader(train, batch_size=8), DataLoader(val, batch_size=8))
    print_fact("done", waited=stopper.wait_count, epochs=trainer.current_epoch)


def with_the_trainer() -> None:
    from transformers import EarlyStoppingCallback, GPT2Config, GPT2LMHeadModel, Trainer, TrainingArguments, set_seed
    from transformers.trainer_callback import PrinterCallback

    set_seed(0)
    data = [{"input_ids": row, "labels": row} for row in make_tokens(32, 8, 20)]
    config = GPT2Config(vocab_size=20, n_positions=8, n_embd=16, n_layer=1, n_head=2, bos_token_id=0, eos_token_id=0)
    with tempfile.TemporaryDirectory() as folder:
        arguments = TrainingArguments(
            output_dir=folder,
            max_steps=2 * CHECKS,
            per_device_train_batch_size=4,
            learning_rate=1e-2,
            eval_strategy="steps",
            eval_steps=2,
            save_steps=2,
            save_total_limit=1,
            load_best_model_at_end=True,
            metric_for_best_model="loss",
            greater_is_better=WRONG,
            report_to=[],
            disable_tqdm=True,
            use_cpu=True,
            seed=0,
        )
        stopper = EarlyStoppingCallback(early_stopping_patience=3)
        trainer = Trainer(
            model=GPT2LMHeadModel(config), args=arguments, train_dataset=data, eval_dataset=data, callbacks=[stopper]
        )
        trainer.remove_callback(PrinterCallback)
        steps = trainer.train().global_step
    print_fact("done", waited=stopper.early_stopping_patience_counter, steps=steps)


def with_ignite() -> None:
    from ignite.engine import Engine, Events
    from ignite.handlers import EarlyStopping

    torch.manual_seed(0)
    model = nn.Linear(8, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.02)
    loader = DataLoader(make_regression(64), batch_size=8)

    def update_model(engine: Any, batch: list[Tensor]) -> float:
        optimizer.zero_grad()
        loss = nn.functional.mse_loss(model(batch[0]), batch[1])
        loss.backward()
        optimizer.step()
        return loss.item()

    def validate_model(engine: Any, batch: list[Tensor]) -> None:
        with torch.no_grad():
            engine.state.loss = nn.functional.mse_loss(model(batch[0]), batch[1]).item()

    trainer, evaluator = Engine(update_model), Engine(validate_model)
    sign = 1.0 if WRONG else -1.0
    stopper = EarlyStopping(patience=3, score_function=lambda engine: sign * engine.state.loss, trainer=trainer)
    evaluator.add_event_handler(Events.COMPLETED, stopper)
    trainer.add_event_handler(Events.EPOCH_COMPLETED, lambda engine: evaluator.run(loader))
    trainer.run(loader, max_epochs=CHECKS)
    print_fact("done", waited=stopper.counter, epochs=trainer.state.epoch)


{"lightning": with_lightning, "hf": with_the_trainer, "ignite": with_ignite}[sys.argv[1]]()
