"""Train the classifier: python train.py [--cfg FILE] [--fault NAME] [--opts KEY VALUE ...], or under torchrun."""

import gc
import math
import os
import time
from pathlib import Path
from typing import Any

import checkpoints
import config as configuration
import data
import debugging
import faults
import losses
import torch
import torch.distributed as dist
from checks import fail
from debugging import MetricsTracker, OpsSchedule, StepMetricsLogger
from gradnorm import GradNorm
from languages import NULL_INDEX, RANKS
from model import Classifier
from stopping import EarlyStopping, mode_of
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, DistributedSampler
from yacs.config import CfgNode

Batch = dict[str, Tensor]
DTYPES = {"off": torch.float32, "bf16": torch.bfloat16, "fp16": torch.float16}


class Training:
    """A run: its parts, and the loop over them."""

    def __init__(self, config: CfgNode, rank: int = 0, world: int = 1) -> None:
        self.config, self.rank, self.world = config, rank, world
        self.device = device_of(config.TRAIN.DEVICE, rank)
        self.train_loader, self.val_loader = self.build_loaders()
        self.steps_per_epoch = len(self.train_loader)
        self.total_steps = config.TRAIN.MAX_STEPS or config.TRAIN.EPOCHS * self.steps_per_epoch
        self.step = self.epoch = self.batches_done = 0
        self.random: Tensor | None = None  # the state of random numbers that a resumed run goes on with
        self.model = self.build_model().to(self.device)
        self.wrapped: nn.Module = DistributedDataParallel(self.model) if world > 1 else self.model
        self.loss = self.build_loss()
        self.optimizer = self.build_optimizer()
        self.scheduler = self.build_scheduler()
        self.scaler = torch.amp.GradScaler(self.device.type, enabled=config.TRAIN.AMP == "fp16")
        gradnorm = config.LOSS.GRADNORM
        shared = self.model.backbone.shared.weight
        self.gradnorm = GradNorm(RANKS, shared, gradnorm) if gradnorm.ENABLED else None
        self.schedule = self.build_schedule()
        stop = config.EARLY_STOP
        better = {stop.METRIC.rpartition("/")[2]: mode_of(stop.METRIC)}
        self.tracker = MetricsTracker(hierarchy=RANKS, null_label=NULL_INDEX, best=stop.METRIC, directions=better)
        self.logger = self.build_logger()
        self.stopper = EarlyStopping(stop.METRIC, stop.PATIENCE, stop.MIN_DELTA, mode_of(stop.METRIC))
        self.results: dict[str, float] = {}
        if config.CHECKPOINT.RESUME:
            self.load_checkpoint(
                Path(config.CHECKPOINT.RESUME)
            )  # before the first row, with which the run of W&B begins
        self.logger.log_schedule_values(self.plan(), step=self.step, epoch=self.epoch)

    # the parts

    def build_loaders(self) -> tuple[DataLoader[Batch], ...]:
        train, val = data.loaders(self.config, self.rank, self.world)
        if not len(train):
            batch = self.config.DATA.BATCH_SIZE
            fail(
                f"{len(train.dataset)} words to train on give no batch of {batch} on {self.world} rank(s)",  # type: ignore[arg-type]
                "a larger DATA.WORDS (0: all), or a smaller DATA.BATCH_SIZE",
            )
        return train, val

    def build_model(self) -> Classifier:
        sizes = {rank: len(labels) for rank, labels in data.classes().items()}
        return Classifier(len(data.alphabet()), sizes, self.config.MODEL)

    def build_loss(self) -> losses.TaxonomyLoss:
        counts = self.train_loader.dataset.counts()  # type: ignore[attr-defined]
        return losses.TaxonomyLoss(data.classes(), counts, self.config.LOSS, self.total_steps, self.device)

    def build_optimizer(self) -> torch.optim.Optimizer:
        decayed = [p for p in self.model.parameters() if p.ndim > 1]
        others = [p for p in self.model.parameters() if p.ndim <= 1]
        groups = [{"params": decayed, "weight_decay": self.config.TRAIN.WEIGHT_DECAY}, {"params": others}]
        return torch.optim.AdamW(groups, lr=self.config.TRAIN.LR, weight_decay=0.0)

    def build_scheduler(self) -> torch.optim.lr_scheduler.LRScheduler:
        """Linear warm-up, then a cosine to zero at the last step."""
        warmup = min(self.config.TRAIN.WARMUP, self.total_steps // 2)
        rise = torch.optim.lr_scheduler.LinearLR(self.optimizer, 1 / max(warmup, 1), total_iters=max(warmup, 1))
        fall = torch.optim.lr_scheduler.CosineAnnealingLR(self.optimizer, max(self.total_steps - warmup, 1))
        return torch.optim.lr_scheduler.SequentialLR(self.optimizer, [rise, fall], [max(warmup, 1)])

    def build_schedule(self) -> OpsSchedule:
        every = self.config.SCHEDULE
        intervals: dict[str, Any] = {}
        for name in ("VALIDATION", "MASKED", "CHECKPOINT"):
            operation = {"MASKED": "masking"}.get(name, name.lower())
            intervals[operation] = {"steps": every[f"{name}_STEPS"], "epochs": every[f"{name}_EPOCHS"]}
        metrics = every.METRICS
        return OpsSchedule(
            total_steps=self.total_steps,
            steps_per_epoch=self.steps_per_epoch,
            step=metrics.STEP_INTERVAL,
            console={"steps": metrics.CONSOLE_INTERVAL},
            wandb={"steps": metrics.WANDB_INTERVAL},
            gradnorm={"steps": self.config.LOSS.GRADNORM.INTERVAL if self.config.LOSS.GRADNORM.ENABLED else 0},
            **intervals,
        )

    def build_logger(self) -> StepMetricsLogger:
        return StepMetricsLogger(
            self.tracker,
            self.schedule,
            rank=self.rank,
            folder=debugging.metrics_folder(self.config.OUTPUT, self.rank),
            run="taxa",
            config=self.config,
            sinks=debugging.sinks(self.config, self.rank),
        )

    def plan(self) -> dict[str, float]:
        """What the schedule resolved to, in steps; `tdbg metrics sanity` compares it with what came."""
        found: dict[str, float] = {"planned_steps": self.total_steps}
        for name in ("VALIDATION", "MASKED", "CHECKPOINT"):
            steps, epochs = (self.config.SCHEDULE[f"{name}_{unit}"] for unit in ("STEPS", "EPOCHS"))
            if every := steps or epochs * self.steps_per_epoch:
                found[f"{name.lower()}_every_steps"] = every
        return found

    # the loop

    def train_epochs(self) -> dict[str, float]:
        """Train to the end; returns the last values of validation."""
        began = time.perf_counter()
        while self.step < self.total_steps and not self.stopper.early_stop:
            self.train_epoch()
        self.logger.log_final_results()
        self.logger.close()
        if self.rank == 0:
            print(f"done: {self.step} steps in {time.perf_counter() - began:.1f} s", flush=True)
        return self.results

    def train_epoch(self) -> None:
        """One pass over the words; a resumed one goes on where it stopped."""
        assert isinstance(self.train_loader.sampler, DistributedSampler)
        self.train_loader.sampler.set_epoch(self.epoch)
        began = time.perf_counter()
        self.wrapped.train()
        batches = iter(self.train_loader)
        for _ in range(self.batches_done):
            next(batches)
        if self.random is not None:  # of the checkpoint: what was passed over has drawn numbers again
            torch.set_rng_state(self.random)
            self.random = None
        for batch in batches:
            self.train_step(self.moved(batch))
            self.batches_done += 1
            self.after_step()
            if self.step >= self.total_steps or self.stopper.early_stop:
                break
        self.epoch, self.batches_done = self.epoch + 1, 0
        self.tracker.finalize_train_epoch(
            self.epoch - 1, self.step, duration_sec=time.perf_counter() - began, reduce=self.world > 1
        )
        self.logger.log_epoch_summary(step=self.step, epoch=self.epoch - 1)
        if self.schedule.due_after_epoch("validation", self.epoch):
            self.validate()
        if self.schedule.due_after_epoch("masking", self.epoch):
            self.validate_masked()
        if self.schedule.due_after_epoch("checkpoint", self.epoch):
            self.save_checkpoint("last")

    def train_step(self, batch: Batch) -> None:
        """Forward, backward, update."""
        self.optimizer.zero_grad()
        task_losses = self.forward(self.wrapped, batch)
        loss = self.combine_losses(task_losses)
        self.scaler.scale(loss).backward()
        self.update()
        if self.gradnorm is not None and self.schedule.due("gradnorm", self.step):
            self.balance(batch)
        self.record(loss, task_losses, len(batch["labels"]))

    def update(self) -> None:
        """Move the weights, then the learning rate."""
        self.scaler.unscale_(self.optimizer)
        if self.config.TRAIN.CLIP_NORM:
            nn.utils.clip_grad_norm_(self.model.parameters(), self.config.TRAIN.CLIP_NORM)
        self.scaler.step(self.optimizer)
        self.scaler.update()
        self.scheduler.step()
        self.step += 1

    def forward(self, model: nn.Module, batch: Batch) -> dict[str, Tensor]:
        """The loss of each rank of the taxonomy, without weights."""
        meta, shown = data.hide(batch["meta"], self.config.META.MASK_PROB, self.hidden())
        with self.autocast():
            scores = model(batch["letters"], meta, shown)
        return self.loss(scores, batch["labels"], self.step)

    def combine_losses(self, task_losses: dict[str, Tensor]) -> Tensor:
        """The weighted mean over the ranks of the taxonomy."""
        weights = self.gradnorm.weights if self.gradnorm else dict.fromkeys(RANKS, 1.0)
        return torch.stack([weights[rank] * loss for rank, loss in task_losses.items()]).sum() / len(RANKS)

    def balance(self, batch: Batch) -> None:
        """A GradNorm update, from a second forward pass: the first one's graph is gone, and DDP's hooks stay out."""
        assert self.gradnorm is not None
        seen = self.gradnorm.update(lambda: self.forward(self.model, batch))
        self.logger.log_gradnorm_metrics(seen, step=self.step, epoch=self.epoch)

    def record(self, loss: Tensor, task_losses: dict[str, Tensor], samples: int) -> None:
        """Hand the numbers of a step to the tracker and the logger."""
        values = {"loss": loss.item()}
        tasks = {rank: {"loss": value.item()} for rank, value in task_losses.items()}
        self.tracker.update_train_batch(values, samples, tasks=tasks, epoch=self.epoch, step=self.step)
        self.logger.log_step_metrics(
            values, step=self.step, epoch=self.epoch, samples=samples, tasks=tasks, lr=self.optimizer
        )

    def after_step(self) -> None:
        """What the schedule asks for at a step."""
        if self.schedule.due("validation", self.step):
            self.validate()
        if self.schedule.due("masking", self.step):
            self.validate_masked()
        if self.schedule.due("checkpoint", self.step):
            self.save_checkpoint("last")

    # validation

    def validate(self) -> None:
        """The validation pass, and what early stopping makes of it."""
        self.results = self.validation_pass("val")
        stop = self.config.EARLY_STOP
        if stop.PATIENCE and self.stopper(self.results.get(stop.METRIC, math.nan)) and self.rank == 0:
            print(f"stopped early: {stop.METRIC} has not improved for {stop.PATIENCE} checks", flush=True)

    def validate_masked(self) -> None:
        """The same without the meta-features, and without each component of them: what does each of them give?"""
        if self.config.META.ENABLED:
            self.validation_pass("val_mask_meta", tuple(data.COMPONENTS))
            for component in data.COMPONENTS:
                self.validation_pass(f"val_mask_{component}", (component,))

    @torch.no_grad()
    def validation_pass(self, phase: str, hidden: tuple[str, ...] = ()) -> dict[str, float]:
        """One pass over the validation words with components hidden; returns its figures by key."""
        began = time.perf_counter()
        self.model.eval()
        self.tracker.start_val_phase(phase)
        for batch in self.val_loader:
            self.validation_batch(self.moved(batch), phase, hidden)
        self.model.train()
        found = self.tracker.finalize_val_phase(
            phase, self.epoch, self.step, duration_sec=time.perf_counter() - began, reduce=self.world > 1
        )
        self.logger.log_validation_summary(phase, step=self.step, epoch=self.epoch)
        return {str(key): value for key, value in found.items()}

    def validation_batch(self, batch: Batch, phase: str, hidden: tuple[str, ...]) -> None:
        """The loss is plain cross-entropy over labelled words, whatever training uses: runs can be compared."""
        meta, shown = data.hide(batch["meta"], components=self.hidden() or hidden)
        with self.autocast():
            scores = self.model(batch["letters"], meta, shown)
        labels = {rank: batch["labels"][:, at] for at, rank in enumerate(RANKS)}
        tasks, counts = {}, {}
        for rank in RANKS:
            known = labels[rank] != NULL_INDEX
            if counted := int(known.sum()):
                loss = nn.functional.cross_entropy(scores[rank][known].float(), labels[rank][known])
                tasks[rank], counts[rank] = {"loss": loss.item()}, counted
        mean = sum(values["loss"] for values in tasks.values()) / max(len(tasks), 1)
        self.tracker.update_val_metrics(
            {"loss": mean}, len(batch["labels"]), phase=phase, tasks=tasks, task_samples=counts
        )
        self.tracker.update_predictions(scores, labels, phase=phase)

    # helpers

    def hidden(self) -> tuple[str, ...]:
        return () if self.config.META.ENABLED else tuple(data.COMPONENTS)

    def autocast(self) -> torch.autocast:
        kind = self.config.TRAIN.AMP
        return torch.autocast(self.device.type, dtype=DTYPES[kind], enabled=kind != "off")

    def moved(self, batch: Batch) -> Batch:
        return {name: tensor.to(self.device, non_blocking=True) for name, tensor in batch.items()}

    # checkpoints

    def stateful(self) -> dict[str, Any]:
        """The parts that a checkpoint holds."""
        parts = {name: getattr(self, name) for name in ("optimizer", "scheduler", "scaler", "tracker", "logger")}
        parts |= {"stopper": self.stopper} | ({"gradnorm": self.gradnorm} if self.gradnorm else {})
        return parts

    def save_checkpoint(self, name: str) -> None:
        """Write OUTPUT/NAME.pt, whole or not at all; rank 0 alone."""
        if self.rank or not self.config.OUTPUT:
            return
        folder = Path(self.config.OUTPUT)
        folder.mkdir(parents=True, exist_ok=True)
        state = {key: part.state_dict() for key, part in self.stateful().items()}
        state |= {"model": self.weights(), "step": self.step, "epoch": self.epoch, "batches": self.batches_done}
        state |= {"random": torch.get_rng_state(), "config": self.config.dump()}
        torch.save(state, folder / f"{name}.tmp")
        (folder / f"{name}.tmp").replace(folder / f"{name}.pt")

    def weights(self) -> dict[str, Tensor]:
        return self.model.state_dict()

    def load_checkpoint(self, path: Path) -> None:
        """Go on from a checkpoint."""
        state = checkpoints.read_checkpoint(path, self.device)
        try:
            self.load_weights(state["model"])
        except RuntimeError as error:
            what = " ".join(str(error).split())[:200]
            fail(
                f"CHECKPOINT.RESUME {path} holds another model: {what}",
                "give MODEL the settings that it was saved with",
            )
        for key, part in self.stateful().items():
            if key in state:
                part.load_state_dict(state[key])
        self.step, self.epoch, self.batches_done = state["step"], state["epoch"], state["batches"]
        self.random = state["random"].cpu()

    def load_weights(self, weights: dict[str, Tensor]) -> None:
        self.model.load_state_dict(weights)


def device_of(asked: str, rank: int) -> torch.device:
    """Where the run computes."""
    if asked == "cpu" or (asked == "auto" and not torch.cuda.is_available()):
        return torch.device("cpu")
    if not torch.cuda.is_available():
        fail("TRAIN.DEVICE is cuda, and there is no such device here", "auto takes what there is")
    return torch.device("cuda", int(os.environ.get("LOCAL_RANK", rank)) % torch.cuda.device_count())


def main() -> None:
    config = configuration.load_config()
    rank, world = int(os.environ.get("RANK", 0)), int(os.environ.get("WORLD_SIZE", 1))
    torch.set_num_threads(int(os.environ.get("OMP_NUM_THREADS", 1)))  # more do not help so small a model
    if world > 1:
        device = device_of(config.TRAIN.DEVICE, rank)
        if device.type == "cuda":
            torch.cuda.set_device(device)
        dist.init_process_group("nccl" if device.type == "cuda" else "gloo")
    torch.manual_seed(config.SEED)  # the same weights everywhere; each rank has a sampler of its own
    debugging.switch_on(config.DEBUG)
    if rank == 0:
        debugging.tell_idle(config)
    faults.plant(config.FAULT, Training)
    training = Training(config, rank, world)
    torch.manual_seed(config.SEED + rank) if not config.CHECKPOINT.RESUME else None
    training.train_epochs()
    if world > 1:
        gc.collect()
        dist.barrier()
        time.sleep(0.3)  # torch 2.13 on gloo aborts now and then where Python ends right after DDP's last all-reduce
        dist.destroy_process_group()


if __name__ == "__main__":
    main()
