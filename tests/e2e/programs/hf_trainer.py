"""Hugging Face Trainer with a tiny GPT-2 built from its config; prints the Trainer's own log.

usage: hf_trainer.py [ACCUMULATION [FOLDER [LEARNING_RATE]]], the folder for the state that the Trainer keeps.
"""

import os
import sys
import tempfile
from typing import Any

os.environ["HF_HUB_OFFLINE"] = "1"

from common import make_tokens, print_fact
from torch import Tensor
from torch.utils.data import Dataset
from transformers import GPT2Config, GPT2LMHeadModel, Trainer, TrainerCallback, TrainingArguments, set_seed
from transformers.trainer_callback import PrinterCallback


class Sequences(Dataset[dict[str, Tensor]]):
    """Counting sequences as a language-model data set."""

    def __init__(self, samples: int) -> None:
        self.data = make_tokens(samples, 16, 50)

    def __len__(self) -> int:
        return len(self.data)

    def __getitem__(self, index: int) -> dict[str, Tensor]:
        return {"input_ids": self.data[index], "labels": self.data[index]}


class Printer(TrainerCallback):
    """Prints what the Trainer logs each step, unrounded."""

    def on_log(self, args: Any, state: Any, control: Any, logs: dict[str, Any] | None = None, **kwargs: Any) -> None:
        if logs and "loss" in logs:
            print_fact(
                "step", step=state.global_step, loss=logs["loss"], norm=logs["grad_norm"], lr=logs["learning_rate"]
            )


def main() -> None:
    accumulation = int(sys.argv[1]) if len(sys.argv) > 1 else 1
    set_seed(0)
    config = GPT2Config(vocab_size=50, n_positions=16, n_embd=32, n_layer=2, n_head=2, bos_token_id=0, eos_token_id=0)
    with tempfile.TemporaryDirectory() as folder:
        arguments = TrainingArguments(
            output_dir=folder,
            max_steps=10,
            per_device_train_batch_size=4,
            gradient_accumulation_steps=accumulation,
            learning_rate=float(sys.argv[3]) if len(sys.argv) > 3 else 1e-3,
            logging_steps=1,
            save_strategy="no",
            report_to=[],
            disable_tqdm=True,
            use_cpu=True,
            seed=0,
        )
        data = Sequences(40 * accumulation)
        trainer = Trainer(model=GPT2LMHeadModel(config), args=arguments, train_dataset=data, callbacks=[Printer()])
        trainer.remove_callback(PrinterCallback)  # it would print run times
        done = trainer.train()
        if len(sys.argv) > 2:
            trainer.evaluate(data)
            trainer.args.output_dir = sys.argv[2]
            trainer.save_state()
    print_fact("done", steps=done.global_step)


if __name__ == "__main__":
    main()
