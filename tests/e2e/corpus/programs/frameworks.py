"""Healthy trainings under frameworks.

usage: frameworks.py KIND
"""

import copy
import logging
import os
import warnings

os.environ |= {"HF_HUB_OFFLINE": "1", "TRANSFORMERS_OFFLINE": "1", "TOKENIZERS_PARALLELISM": "false"}

import parts
import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.utils.data import Dataset

warnings.filterwarnings("ignore")


class Sequences(Dataset[dict[str, Tensor]]):
    """Text for a causal language model."""

    def __init__(self, count: int, *, seed: int) -> None:
        self.data = parts.draw_text(count, 16, seed=seed)

    def __len__(self) -> int:
        return len(self.data)

    def __getitem__(self, index: int) -> dict[str, Tensor]:
        return {"input_ids": self.data[index], "labels": self.data[index]}


def hugging_face() -> None:
    """The Trainer: warm-up, accumulation, evaluation and saves every hundred steps, the best model loaded at the end."""
    from transformers import GPT2Config, GPT2LMHeadModel, Trainer, TrainingArguments, set_seed

    set_seed(0)
    config = GPT2Config(
        vocab_size=parts.VOCABULARY, n_positions=16, n_embd=32, n_layer=2, n_head=2, bos_token_id=0, eos_token_id=0
    )
    arguments = TrainingArguments(
        output_dir=str(parts.make_folder()),
        max_steps=300,
        per_device_train_batch_size=8,
        gradient_accumulation_steps=2,
        learning_rate=3e-3,
        warmup_steps=30,
        lr_scheduler_type="cosine",
        eval_strategy="steps",
        eval_steps=100,
        save_steps=100,
        save_total_limit=2,
        load_best_model_at_end=True,
        logging_steps=20,
        report_to=[],
        disable_tqdm=True,
        use_cpu=True,
    )
    trainer = Trainer(
        GPT2LMHeadModel(config), arguments, train_dataset=Sequences(1600, seed=1), eval_dataset=Sequences(64, seed=2)
    )
    trainer.train()
    print(trainer.evaluate())


def hugging_face_classifier() -> None:
    """The Trainer on a BERT classifier with padding and metrics."""
    from transformers import BertConfig, BertForSequenceClassification, Trainer, TrainingArguments, set_seed

    class Labelled(Sequences):
        def __getitem__(self, index: int) -> dict[str, Tensor]:
            row = self.data[index].clone()
            length = 8 + index % 9
            row[length:] = 0
            label = int((row[:length] < 12).float().mean() > 0.34)
            return {"input_ids": row, "attention_mask": (row != 0).long(), "labels": torch.tensor(label)}

    set_seed(0)
    config = BertConfig(
        vocab_size=parts.VOCABULARY, hidden_size=32, num_hidden_layers=2, num_attention_heads=2, intermediate_size=64,
        max_position_embeddings=16,
    )  # fmt: skip
    arguments = TrainingArguments(
        output_dir=str(parts.make_folder()),
        num_train_epochs=4,
        per_device_train_batch_size=16,
        learning_rate=1e-3,
        eval_strategy="epoch",
        save_strategy="no",
        report_to=[],
        disable_tqdm=True,
        use_cpu=True,
    )
    trainer = Trainer(
        BertForSequenceClassification(config),
        arguments,
        train_dataset=Labelled(1280, seed=1),
        eval_dataset=Labelled(128, seed=2),
        compute_metrics=lambda found: {"accuracy": float((found.predictions.argmax(-1) == found.label_ids).mean())},
    )
    trainer.train()


def lightning_fit() -> None:
    """Lightning with validation, a schedule, a checkpoint, accumulation and a clip."""
    import lightning

    logging.getLogger("lightning.pytorch").setLevel(logging.ERROR)

    class Classifier(lightning.LightningModule):
        def __init__(self) -> None:
            super().__init__()
            self.net = nn.Sequential(nn.Linear(parts.FEATURES, 32), nn.BatchNorm1d(32), nn.ReLU(), nn.Linear(32, 4))

        def forward(self, x: Tensor) -> Tensor:
            return self.net(x)

        def training_step(self, batch: list[Tensor], index: int) -> Tensor:
            x, y = batch
            loss = functional.cross_entropy(self(x), y)
            self.log("train_loss", loss)
            return loss

        def validation_step(self, batch: list[Tensor], index: int) -> None:
            x, y = batch
            self.log("val_loss", functional.cross_entropy(self(x), y))

        def configure_optimizers(self) -> dict:
            optimizer = torch.optim.AdamW(self.parameters(), lr=2e-3)
            schedule = torch.optim.lr_scheduler.OneCycleLR(
                optimizer, 5e-3, total_steps=int(self.trainer.estimated_stepping_batches)
            )
            return {"optimizer": optimizer, "lr_scheduler": {"scheduler": schedule, "interval": "step"}}

    lightning.seed_everything(0, verbose=False)
    train, validation = parts.load_split(parts.draw_classes, train=2560)
    trainer = lightning.Trainer(
        accelerator="cpu",
        max_epochs=8,
        gradient_clip_val=1.0,
        accumulate_grad_batches=2,
        default_root_dir=parts.make_folder(),
        logger=False,
        callbacks=[lightning.pytorch.callbacks.ModelCheckpoint(monitor="val_loss")],
        enable_progress_bar=False,
        enable_model_summary=False,
    )
    trainer.fit(Classifier(), train, validation)
    print(trainer.callback_metrics)


def accelerate_loop() -> None:
    """Accelerate with accumulation and a prepared schedule."""
    from accelerate import Accelerator

    accelerator = Accelerator(cpu=True, gradient_accumulation_steps=2)
    train, validation = parts.load_split(parts.draw_classes, train=2560)
    model = nn.Sequential(nn.Linear(parts.FEATURES, 32), nn.ReLU(), nn.Dropout(0.1), nn.Linear(32, parts.CLASSES))
    optimizer = torch.optim.AdamW(model.parameters(), lr=2e-3)
    schedule = torch.optim.lr_scheduler.LinearLR(optimizer, 1.0, 0.1, total_iters=320)
    model, optimizer, train, validation, schedule = accelerator.prepare(model, optimizer, train, validation, schedule)
    for epoch in range(8):
        model.train()
        for x, y in train:
            with accelerator.accumulate(model):
                loss = functional.cross_entropy(model(x), y)
                accelerator.backward(loss)
                if accelerator.sync_gradients:
                    accelerator.clip_grad_norm_(model.parameters(), 1.0)
                optimizer.step()
                schedule.step()
                optimizer.zero_grad()
        model.eval()
        with torch.no_grad():
            pairs = [accelerator.gather_for_metrics((model(x).argmax(1), y)) for x, y in validation]
        hits = sum(int((found == y).sum()) for found, y in pairs)
        accelerator.print(f"epoch {epoch}: {hits / 256:.3f}")
        accelerator.save_state(parts.make_folder() / f"epoch_{epoch}")


def ignite_loop() -> None:
    """Ignite's supervised trainer and evaluator."""
    from ignite.engine import Events, create_supervised_evaluator, create_supervised_trainer
    from ignite.metrics import Accuracy, Loss

    train, validation = parts.load_split(parts.draw_classes)
    model = nn.Sequential(nn.Linear(parts.FEATURES, 32), nn.ReLU(), nn.Dropout(0.1), nn.Linear(32, parts.CLASSES))
    criterion = nn.CrossEntropyLoss()
    trainer = create_supervised_trainer(model, torch.optim.Adam(model.parameters(), lr=2e-3), criterion)
    evaluator = create_supervised_evaluator(model, {"accuracy": Accuracy(), "nll": Loss(criterion)})

    @trainer.on(Events.EPOCH_COMPLETED)
    def log_results(engine) -> None:
        for name, loader in (("train", train), ("val", validation)):
            evaluator.run(loader)
            print(f"{name} epoch {engine.state.epoch} accuracy {evaluator.state.metrics['accuracy']:.3f}")

    trainer.run(train, max_epochs=8)


def diffusers_loop() -> None:
    """The training loop of diffusers' tutorial on a tiny U-Net."""
    from diffusers import DDPMScheduler, UNet2DModel
    from diffusers.optimization import get_cosine_schedule_with_warmup

    model = UNet2DModel(
        sample_size=8,
        layers_per_block=1,
        block_out_channels=(16, 16),
        norm_num_groups=4,
        down_block_types=("DownBlock2D", "DownBlock2D"),
        up_block_types=("UpBlock2D", "UpBlock2D"),
    )
    noise_scheduler, record = DDPMScheduler(num_train_timesteps=100), parts.Record()
    train, _ = parts.load_split(lambda count, *, seed: parts.draw_images(count, seed=seed, size=8), batch=8)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    schedule = get_cosine_schedule_with_warmup(optimizer, 30, 300)
    for _, (x, _) in parts.repeat_batches(train, 300):
        noise, time = torch.randn(x.shape), torch.randint(0, 100, (len(x),), dtype=torch.int64)
        found = model(noise_scheduler.add_noise(x, noise, time), time, return_dict=False)[0]
        loss = functional.mse_loss(found, noise)
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        schedule.step()
        optimizer.zero_grad()
        record.add_loss(loss)
    record.print_summary()


def make_language_model(positions: int):
    """A tiny causal language model and a tokenizer whose words are the numbers of the tokens."""
    from tokenizers import Tokenizer, models, pre_tokenizers
    from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast

    words = {"<pad>": 0, "<eos>": 1} | {str(token): token for token in range(2, parts.VOCABULARY)}
    splitter = Tokenizer(models.WordLevel(words, unk_token="<pad>"))
    splitter.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    config = LlamaConfig(
        vocab_size=parts.VOCABULARY, hidden_size=32, intermediate_size=64, num_hidden_layers=2, num_attention_heads=2,
        max_position_embeddings=positions, pad_token_id=0, eos_token_id=1, bos_token_id=1,
    )  # fmt: skip
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=splitter, pad_token="<pad>", eos_token="<eos>")
    return LlamaForCausalLM(config), tokenizer


def write_words(tokens: Tensor) -> list[str]:
    """A line of words for each row of tokens."""
    return [" ".join(map(str, row.tolist())) for row in tokens]


def trl_fine_tuning() -> None:
    """TRL's supervised trainer: texts of different lengths, evaluation, LoRA on a frozen model."""
    from datasets import Dataset as Table
    from peft import LoraConfig
    from transformers import set_seed
    from trl import SFTConfig, SFTTrainer

    set_seed(0)
    model, tokenizer = make_language_model(32)
    rows = [text[: 18 + 3 * (at % 7)].strip() for at, text in enumerate(write_words(parts.draw_text(1400, 16, seed=1)))]
    arguments = SFTConfig(
        output_dir=str(parts.make_folder()), max_steps=320, per_device_train_batch_size=8, learning_rate=1e-2,
        eval_strategy="steps", eval_steps=100, save_strategy="no", logging_steps=20, max_length=32, report_to=[],
        disable_tqdm=True, use_cpu=True, bf16=False, gradient_checkpointing=False,
    )  # fmt: skip
    trainer = SFTTrainer(
        model,
        arguments,
        train_dataset=Table.from_dict({"text": rows[:1300]}),
        eval_dataset=Table.from_dict({"text": rows[1300:]}),
        processing_class=tokenizer,
        peft_config=LoraConfig(
            r=4,
            target_modules=["q_proj", "v_proj", "down_proj"],
            modules_to_save=["lm_head"],
            task_type="CAUSAL_LM",
        ),
    )
    trainer.train()
    print(trainer.evaluate())


def trl_preferences() -> None:
    """TRL's preference trainer: a frozen copy of the model is the reference."""
    from datasets import Dataset as Table
    from transformers import set_seed
    from trl import DPOConfig, DPOTrainer

    set_seed(0)
    model, tokenizer = make_language_model(32)
    chain = parts.draw_text(1300, 16, seed=1)
    noise = torch.randint(2, parts.VOCABULARY, (1300, 8), generator=torch.Generator().manual_seed(3))
    columns = {"prompt": chain[:, :8], "chosen": chain[:, 8:], "rejected": noise}
    arguments = DPOConfig(
        output_dir=str(parts.make_folder()), max_steps=320, per_device_train_batch_size=4, learning_rate=1e-3,
        save_strategy="no", logging_steps=20, max_length=32, report_to=[], disable_tqdm=True, use_cpu=True, bf16=False,
        gradient_checkpointing=False,
    )  # fmt: skip
    trainer = DPOTrainer(
        model,
        copy.deepcopy(model),
        args=arguments,
        train_dataset=Table.from_dict({name: write_words(tokens) for name, tokens in columns.items()}),
        processing_class=tokenizer,
    )
    trainer.train()


KINDS = {
    "trl-fine-tuning": trl_fine_tuning,
    "trl-preferences": trl_preferences,
    "hugging-face": hugging_face,
    "hugging-face-classifier": hugging_face_classifier,
    "lightning": lightning_fit,
    "accelerate": accelerate_loop,
    "ignite": ignite_loop,
    "diffusers": diffusers_loop,
}

if __name__ == "__main__":
    parts.run_kind(KINDS)
