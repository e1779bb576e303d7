"""Faults to plant with --fault NAME, one or more for each flag of tdbg. Each changes one small thing of the program."""

import time
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import data
import gradnorm
import losses
import torch
from torch import Tensor, nn


class Fault(NamedTuple):
    """A mistake, the flag under which it shows, and the code of the finding that names it."""

    name: str
    flag: str  # of tdbg; empty if no flag is needed
    code: str
    summary: str
    plant: Callable[[Any], None]  # changes the class Training, or a module
    settings: tuple[Any, ...]  # without which there is nothing to see
    options: tuple[str, ...]  # of `tdbg run`
    ranks: int
    resumes: bool  # shows in a run that goes on from a checkpoint


FAULTS: dict[str, Fault] = {}
GRADNORM = ("LOSS.GRADNORM.ENABLED", True, "LOSS.GRADNORM.INTERVAL", 2)
EVERY_STEP = ("--max-overhead", "100")


def fault(
    name: str, flag: str, code: str, *, settings: tuple[Any, ...] = (), options: tuple[str, ...] = (), **more: Any
) -> Callable[[Callable[[Any], None]], Callable[[Any], None]]:
    """Enter a function that plants a fault; the first line of its docstring says what is wrong."""

    def enter(plant: Callable[[Any], None]) -> Callable[[Any], None]:
        summary = (plant.__doc__ or "").splitlines()[0]
        ranks, resumes = more.get("ranks", 1), more.get("resumes", False)
        FAULTS[name] = Fault(name, flag, code, summary, plant, settings, options, ranks, resumes)
        return plant

    return enter


def plant(name: str, training: Any) -> None:
    """Put a fault into the program."""
    if name:
        FAULTS[name].plant(training)


def wrap_function(owner: Any, name: str, then: Callable[..., Any]) -> None:
    """``then(result, *args)`` takes the place of the result of a function or method."""
    before = getattr(owner, name)
    setattr(owner, name, lambda *args, **more: then(before(*args, **more), *args))


def at_step(training: Any, step: int, do: Callable[[Any], None]) -> None:
    """Do something once, before the forward pass after so many updates."""
    before = training.train_step

    def train_step(self: Any, batch: Any) -> None:
        if self.step == step:
            do(self)
        before(self, batch)

    training.train_step = train_step


# The loss


@fault("smoothing-rows", "LOSS.TAXONOMY_SMOOTHING", "TD-L007", settings=("LOSS.SMOOTHING.ENABLED", True))
def smoothing_rows(training: Any) -> None:
    """Rows of the smoothing matrix do not sum to 1: the shares of the neighbours are not normalised."""
    wrap_function(losses, "smoothing_matrix", lambda found, *_: found + 0.5 * (found > 0) * (1 - torch.eye(len(found))))


@fault("smoothing-far", "LOSS.TAXONOMY_SMOOTHING", "TD-L008", settings=("LOSS.SMOOTHING.ENABLED", True))
def smoothing_far(training: Any) -> None:
    """Far classes get more of the mass than near ones: the sign of beta is wrong."""
    before = losses.smoothing_matrix
    losses.smoothing_matrix = lambda distance_CC, mass, beta: before(distance_CC, mass, -beta)


@fault("null-index", "LOSS.NULL_MASKING", "TD-L002", settings=("LOSS.NULL_MASKING.ENABLED", True))
def null_index(training: Any) -> None:
    """The index of the null class is off by one: real labels are masked, and nulls are trained on."""
    losses.NULL_INDEX = 1  # type: ignore[attr-defined]


@fault("null-unmasked", "LOSS.NULL_MASKING", "TD-L005", settings=("LOSS.NULL_MASKING.ENABLED", True))
def null_unmasked(training: Any) -> None:
    """The masking probability is worked out and never applied."""
    wrap_function(
        losses.NullMask, "keep", lambda found, *_: {rank: torch.ones_like(own) for rank, own in found.items()}
    )


@fault("weights-inverted", "LOSS.CLASS_WEIGHTING", "TD-L012", settings=("LOSS.CLASS_WEIGHTING.ENABLED", True))
def weights_inverted(training: Any) -> None:
    """Common classes weigh most: the weights were not inverted."""
    wrap_function(losses, "class_weights", lambda found, *_: torch.where(found > 0, 1.0 / found.clamp_min(1e-12), 0.0))


@fault("gradnorm-collapse", "LOSS.GRADNORM_METRICS", "TD-L014", settings=(*GRADNORM, "LOSS.GRADNORM.LR", 5.0))
def gradnorm_collapse(training: Any) -> None:
    """A task's weight falls to nothing: GradNorm's own learning rate is far too high, and no floor holds it."""
    gradnorm.LEAST = 1e-4


@fault("gradnorm-nan", "LOSS.VERBOSE_GRADNORM_LOGGING", "TD-L019", settings=GRADNORM)
def gradnorm_nan(training: Any) -> None:
    """The first losses come from a step that overflowed: targets are NaN, and the weights never move."""
    before = gradnorm.GradNorm.__init__

    def init_anew(self: Any, *args: Any) -> None:
        before(self, *args)
        self.first = dict.fromkeys(self.tasks, float("nan"))

    gradnorm.GradNorm.__init__ = init_anew  # type: ignore[assignment, method-assign]


@fault("gradnorm-graph", "LOSS.GRADNORM_MEMORY", "TD-L017", settings=GRADNORM)
def gradnorm_graph(training: Any) -> None:
    """The losses of GradNorm's second forward pass are kept, with their graphs."""
    kept: list[Any] = []
    before = training.balance

    def balance(self: Any, batch: Any) -> None:
        forward = self.forward

        def keeping(*args: Any) -> Any:
            kept.append(forward(*args))
            return kept[-1]

        self.forward = keeping
        before(self, batch)
        del self.forward

    training.balance = balance


# The data


@fault("sampler-epoch", "DATALOADER", "TD-D006", settings=("TRAIN.EPOCHS", 3))
def sampler_epoch(training: Any) -> None:
    """set_epoch is not called: each epoch has the same order."""
    torch.utils.data.DistributedSampler.set_epoch = lambda self, epoch: None  # type: ignore[method-assign]


@fault("slow-loader", "DATALOADER", "TD-P002", settings=("TRAIN.EPOCHS", 3))
def slow_loader(training: Any) -> None:
    """Each word is read from somewhere slow, in the loop's own process."""

    def read_slowly(found: Any, *_: Any) -> Any:
        time.sleep(0.002)
        return found

    wrap_function(data.Words, "__getitem__", read_slowly)


@fault(
    "augmentation-idle",
    "AUGMENTATION",
    "TD-D009",
    settings=("AUGMENT.ENABLED", True, "AUGMENT.DROP", 0.9, "AUGMENT.SWAP", 0.9, "TRAIN.EPOCHS", 4),
    options=EVERY_STEP,
)
def augmentation_idle(training: Any) -> None:
    """Letters are swapped in a copy, and the word is returned as it was."""
    data.SwapLetters.__call__ = lambda self, letters_L: letters_L  # type: ignore[method-assign]


@fault("augmentation-range", "AUGMENTATION", "TD-R003", settings=("AUGMENT.ENABLED", True))
def augmentation_range(training: Any) -> None:
    """A transform makes letters that the alphabet does not have, and the embedding fails."""
    wrap_function(
        data.SwapLetters, "__call__", lambda found, *_: torch.where(found > 0, found + len(data.alphabet()), found)
    )


# The model


@fault("unused-head", "MODEL_BUILD", "TD-C008")
def unused_head(training: Any) -> None:
    """A head for a further rank is built, and no forward pass calls it."""

    def add(model: Any, *_: Any) -> Any:
        model.spare = nn.Linear(model.backbone.shared.out_features, 10)
        return model

    wrap_function(training, "build_model", add)


@fault("dead-activation", "FORWARD", "TD-N005")
def dead_activation(training: Any) -> None:
    """A bias lies so far below zero that its activation is never on."""

    def kill(model: Any, *_: Any) -> Any:
        nn.init.constant_(model.backbone.far.bias, -50.0)
        return model

    wrap_function(training, "build_model", kill)


@fault("float64-parameter", "DEVICE", "TD-C007")
def float64_parameter(training: Any) -> None:
    """A temperature made from a double is a float64 parameter among float32 ones."""
    from model import Classifier

    before = Classifier.forward

    def forward(self: Any, *args: Any) -> dict[str, Tensor]:
        return {rank: scores / self.temperature for rank, scores in before(self, *args).items()}

    def add(model: Any, *_: Any) -> Any:
        model.temperature = nn.Parameter(torch.tensor(1.0, dtype=torch.float64))
        return model

    Classifier.forward = forward  # type: ignore[assignment, method-assign]
    wrap_function(training, "build_model", add)


@fault("detached-backbone", "BACKWARD", "TD-G005")
def detached_backbone(training: Any) -> None:
    """The features are detached before the heads: the backbone never learns."""
    from model import Backbone

    wrap_function(Backbone, "forward", lambda found, *_: found.detach().requires_grad_())


@fault("tiny-gradients", "GRADIENTS", "TD-G002")
def tiny_gradients(training: Any) -> None:
    """Features are scaled down a hundred million times, and their gradients with them."""
    from model import Backbone

    wrap_function(Backbone, "forward", lambda found, *_: found * 1e-8)


@fault("nan-weight", "", "TD-N001", options=EVERY_STEP)
def nan_weight(training: Any) -> None:
    """A weight becomes NaN before step 16."""

    def spoil(self: Any) -> None:
        with torch.no_grad():
            self.model.backbone.shared.weight[0, 0] = float("nan")

    at_step(training, 15, spoil)


@fault("nan-backward", "AUTOGRAD_ANOMALY", "TD-N001", options=EVERY_STEP)
def nan_backward(training: Any) -> None:
    """A penalty takes the square root of zero: fine forward, NaN backward, from step 16 on."""

    def penalise(loss: Tensor, self: Any, *_: Any) -> Tensor:
        weight = self.model.backbone.shared.weight
        shift = 1e-6 if self.step < 15 else 0.0
        return loss + torch.sqrt(weight * 0.0 + shift).sum() * 1e-6

    wrap_function(training, "combine_losses", penalise)


# The loop


@fault("no-zero-grad", "TRAINING_LOOP", "TD-C013")
def no_zero_grad(training: Any) -> None:
    """Gradients are never reset: each update uses the sum of all before it."""

    def spoil(optimizer: Any, *_: Any) -> Any:
        optimizer.zero_grad = lambda *_, **__: None
        return optimizer

    wrap_function(training, "build_optimizer", spoil)


@fault("head-left-out", "OPTIMIZER", "TD-S006")
def head_left_out(training: Any) -> None:
    """The optimizer is given the backbone and two heads: nobody updates the third."""

    def leave_out(optimizer: Any, self: Any) -> Any:
        left = {id(parameter) for parameter in self.model.heads["family"].parameters()}
        for group in optimizer.param_groups:
            group["params"] = [parameter for parameter in group["params"] if id(parameter) not in left]
        return optimizer

    wrap_function(training, "build_optimizer", leave_out)


@fault("scheduler-first", "LR", "TD-S003")
def scheduler_first(training: Any) -> None:
    """The scheduler steps before the optimizer: the first rate is never used."""
    before = training.update

    def update(self: Any) -> None:
        step, self.scheduler.step = self.scheduler.step, lambda: None
        step()
        before(self)
        self.scheduler.step = step

    training.update = update


@fault("lr-spike", "LR", "TD-S001", options=EVERY_STEP, settings=("TRAIN.MAX_STEPS", 80))
def lr_spike(training: Any) -> None:
    """The learning rate is multiplied by 1000 at step 40."""

    def raise_rate(self: Any) -> None:
        for group in self.optimizer.param_groups:
            group["lr"] *= 1000.0

    at_step(training, 40, raise_rate)


@fault("cosine-in-epochs", "SCHEDULING", "TD-S005", settings=("TRAIN.EPOCHS", 3))
def cosine_in_epochs(training: Any) -> None:
    """The cosine counts epochs, and is stepped after each batch."""

    def build_other(self: Any) -> Any:
        return torch.optim.lr_scheduler.CosineAnnealingLR(self.optimizer, self.config.TRAIN.EPOCHS)

    training.build_scheduler = build_other


@fault("fp16-unscaled", "AMP", "TD-A003", settings=("TRAIN.AMP", "fp16"))
def fp16_unscaled(training: Any) -> None:
    """fp16 without a GradScaler, and a loss that is divided by the letters of the batch as well."""
    before = training.__init__

    def init_anew(self: Any, *args: Any) -> None:
        before(self, *args)
        self.scaler = torch.amp.GradScaler(self.device.type, enabled=False)

    training.__init__ = init_anew
    wrap_function(training, "combine_losses", lambda loss, *_: loss / 1e5)


@fault("graph-kept", "MEMORY", "TD-M001", settings=("TRAIN.MAX_STEPS", 80, "TRAIN.EPOCHS", 80, "DATA.BATCH_SIZE", 128))
def graph_kept(training: Any) -> None:
    """The loss after each update is kept for a plot, with its graph."""
    history: list[Tensor] = []
    before = training.train_step

    def train_step(self: Any, batch: Any) -> None:
        before(self, batch)
        history.append(self.combine_losses(self.forward(self.model, batch)))

    training.train_step = train_step


@fault("too-short", "PROFILER", "TD-P004", settings=("TRAIN.MAX_STEPS", 20), options=("--flag", "PROFILER=30:32"))
def too_short(training: Any) -> None:
    """The run is over before the window that is to be profiled."""


# Validation, checkpoints, metrics


@fault("train-mode", "VALIDATION", "TD-C012")
def train_mode(training: Any) -> None:
    """Validation runs without eval(): dropout is on."""

    def spoil(model: Any, *_: Any) -> Any:
        model.eval = lambda: model
        return model

    wrap_function(training, "build_model", spoil)


# The first checks, while the validation loss still falls by 3 to 10 percent from one to the next, whatever the seed.
FALLING = ("DATA.WORDS", 4000, "DATA.BATCH_SIZE", 32, "TRAIN.EPOCHS", 3, "SCHEDULE.VALIDATION_STEPS", 30)


@fault(
    "stop-on-max",
    "EARLY_STOPPING",
    "TD-S009",
    settings=(*FALLING, "SCHEDULE.VALIDATION_EPOCHS", 0, "EARLY_STOP.PATIENCE", 4),
)
def stop_on_max(training: Any) -> None:
    """Early stopping waits for the validation loss to rise."""
    before = training.__init__

    def init_anew(self: Any, *args: Any) -> None:
        before(self, *args)
        self.stopper.mode = "max"

    training.__init__ = init_anew


@fault("checkpoint-keys", "CHECKPOINT", "TD-C010", resumes=True)
def checkpoint_keys(training: Any) -> None:
    """The weights were saved from DDP's wrapper, and are loaded with strict=False: no key fits."""

    def load_weights(self: Any, weights: dict[str, Tensor]) -> None:
        self.model.load_state_dict({f"module.{name}": tensor for name, tensor in weights.items()}, strict=False)

    training.load_weights = load_weights


@fault("never-validates", "VALIDATION_METRICS", "TD-K010", settings=("SCHEDULE.VALIDATION_EPOCHS", 50))
def never_validates(training: Any) -> None:
    """Validation is due every 50 epochs, and the run has fewer."""


@fault("accuracy-lost", "VALIDATION_METRICS", "TD-K003", settings=("TRAIN.EPOCHS", 3))
def accuracy_lost(training: Any) -> None:
    """After the first epoch accuracies are updated nowhere."""
    before = training.validation_batch

    def validation_batch(self: Any, *args: Any) -> None:
        if self.epoch > 1:
            self.tracker.update_predictions = lambda *_, **__: None
        before(self, *args)

    training.validation_batch = validation_batch


@fault("phase-twice", "DUMP_METRICS", "TD-K004", settings=("TRAIN.EPOCHS", 2))
def phase_twice(training: Any) -> None:
    """One masked pass has another spelling in every second epoch."""
    before = training.validation_pass

    def validation_pass(self: Any, phase: str, *args: Any) -> Any:
        return before(self, phase.lower() if self.epoch % 2 else phase, *args)

    training.validation_pass = validation_pass


@fault("wandb-clash", "WANDB_METRICS", "TD-C017", settings=("WANDB.ENABLED", True, "TRAIN.EPOCHS", 4))
def wandb_clash(training: Any) -> None:
    """A second place logs val/loss, with the epoch as its step: W&B drops it."""

    def log(found: Any, self: Any, *_: Any) -> None:
        import wandb

        wandb.log({"val/loss": self.results["val/loss"]}, step=self.epoch)

    wrap_function(training, "validate", log)


# Ranks


@fault(
    "rank-skew",
    "DISTRIBUTED",
    "TD-R006",
    ranks=2,
    options=("--threshold", "DISTRIBUTED.quiet_s=1"),
    settings=("TRAIN.MAX_STEPS", 12),
)
def rank_skew(training: Any) -> None:
    """Rank 1 stands still for three seconds at step 6, and the others wait for it."""
    at_step(training, 6, lambda self: time.sleep(3.0 * (self.rank == 1)))


def iter_names() -> Iterator[str]:
    """All faults."""
    return iter(FAULTS)
