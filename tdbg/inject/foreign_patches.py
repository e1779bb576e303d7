"""Every function of Python and of other packages than torch that tdbg stands in front of: what for, who does it, how it ends.

`torch_hooks` is the same for torch. What stands in `Patches` is taken away with the probe or feed that asked for it; what
stays for as long as the process does nothing once tdbg has switched itself off there (its guard), as the program may hold it.
"""

from typing import NamedTuple

STAYS = "until the process ends; passes calls through once tdbg is off"
WITH_PROBE = "with its probe"
WITH_FEED = "with the feed of metrics"
PREFLIGHT = "stays, under `--preflight` alone: the process ends after it"


class ForeignPatch(NamedTuple):
    """Functions that are the same moment of a program. paths: ``module:name``. file: below ``tdbg/``, where it is done."""

    why: str
    paths: tuple[str, ...]
    file: str
    undone: str


PATCHES: dict[str, ForeignPatch] = {
    # flags into the program's own configuration
    "argparse": ForeignPatch(
        "debug flags among parsed options",
        ("argparse:ArgumentParser.parse_known_args", "argparse:ArgumentParser.parse_known_intermixed_args"),
        "inject/on/argparse_.py",
        STAYS,
    ),
    "jsonargparse": ForeignPatch(
        "the same, in a tree",
        ("jsonargparse:ArgumentParser.parse_args", "jsonargparse:ArgumentParser.parse_object"),
        "inject/on/jsonargparse_.py",
        STAYS,
    ),
    "omegaconf": ForeignPatch(
        "debug flags in a config that is made",
        ("omegaconf:OmegaConf.create", "omegaconf:OmegaConf.load", "omegaconf:OmegaConf.merge"),
        "inject/on/omegaconf_.py",
        STAYS,
    ),
    "hydra": ForeignPatch(
        "the same, in one that Hydra composes",
        ("hydra._internal.config_loader_impl:ConfigLoaderImpl.load_configuration",),
        "inject/on/hydra_.py",
        STAYS,
    ),
    "yacs": ForeignPatch(
        "the same, before it is frozen, read or copied",
        ("yacs.config:CfgNode.freeze", "yacs.config:CfgNode.__getattr__", "yacs.config:CfgNode.clone"),
        "inject/on/yacs_config.py",
        STAYS,
    ),
    "trainers": ForeignPatch(
        "steps and epochs that a trainer plans",
        ("transformers.trainer_callback:CallbackHandler.on_train_begin", "lightning:_FitLoop.on_run_start"),
        "inject/on/trainers.py",
        STAYS,
    ),
    # the process, its children and what it says
    "children": ForeignPatch(
        "how a child process has ended",
        ("multiprocessing.popen_fork:Popen.poll", "subprocess:Popen._handle_exitstatus"),
        "inject/children.py",
        STAYS,
    ),
    "uncaught": ForeignPatch(
        "what a thread of the program raises",
        ("threading:excepthook", "logging:Logger.callHandlers"),
        "inject/tracebacks.py",
        STAYS,
    ),
    "log-records": ForeignPatch(
        "the program's own log records and warnings",
        ("logging:Logger.callHandlers", "logging:Logger.isEnabledFor", "warnings:_showwarnmsg"),
        "inject/log_recorder.py",
        STAYS,
    ),
    "console-level": ForeignPatch(
        "which records the console shows",
        ("logging:Logger.isEnabledFor", "logging:Logger.callHandlers"),
        "inject/console_level.py",
        STAYS,
    ),
    "uncaught-memory": ForeignPatch(
        "out of memory, before its traceback goes", ("sys:excepthook",), "probes/memory/__init__.py", WITH_PROBE
    ),
    "uncaught-build": ForeignPatch(
        "an error while the model is built", ("sys:excepthook",), "probes/model_build/__init__.py", WITH_PROBE
    ),
    # metrics
    "trainer-logs": ForeignPatch(
        "metrics of transformers and TRL",
        ("transformers.trainer_callback:CallbackHandler.on_log",),
        "inject/metrics/taps/hugging_face.py",
        WITH_FEED,
    ),
    "lightning-logs": ForeignPatch(
        "metrics of Lightning, and its sanity check",
        ("lightning:_LoggerConnector.log_metrics",),
        "inject/metrics/taps/lightning_.py",
        WITH_FEED,
    ),
    "summary-writer": ForeignPatch(
        "what is sent to TensorBoard",
        ("torch.utils.tensorboard:SummaryWriter.add_scalar", "torch.utils.tensorboard:SummaryWriter.add_scalars"),
        "inject/metrics/taps/summary_writer.py",
        WITH_FEED,
    ),
    "torchmetrics": ForeignPatch(
        "values that a metric computes",
        ("torchmetrics:Metric._wrap_compute", "torchmetrics:MetricCollection.compute"),
        "inject/metrics/taps/torchmetrics_.py",
        WITH_FEED,
    ),
    "wandb-rows": ForeignPatch(
        "what is sent to W&B", ("wandb:Run.log",), "inject/metrics/taps/wandb_log.py", WITH_FEED
    ),
    "wandb-steps": ForeignPatch(
        "the step that a row of tdbg's own must have",
        ("wandb:Run._log", "wandb:Run._finish"),
        "inject/metrics/own_wandb_run.py",
        WITH_FEED,
    ),
    "wandb-calls": ForeignPatch(
        "rows that W&B drops, and its failures",
        ("wandb:Run._log", "wandb:Run._on_finish", "wandb:init", "wandb:login", "wandb.errors.term:_log"),
        "probes/wandb_metrics.py",
        WITH_PROBE,
    ),
    # training
    "early-stopping": ForeignPatch(
        "the metric that early stopping uses",
        (
            "lightning.pytorch.callbacks.early_stopping:EarlyStopping._evaluate_stopping_criteria",
            "transformers.trainer_callback:EarlyStoppingCallback.on_evaluate",
            "ignite.handlers.early_stopping:EarlyStopping.__call__",
        ),
        "probes/early_stopping/__init__.py",
        WITH_PROBE,
    ),
    "checkpoint-files": ForeignPatch(
        "checkpoints that others than torch write",
        (
            "safetensors.torch:save_file",
            "safetensors.torch:load_file",
            "lightning.fabric.plugins.io.torch_io:TorchCheckpointIO.save_checkpoint",
        ),
        "probes/checkpoint/__init__.py",
        WITH_PROBE,
    ),
    "transforms": ForeignPatch(
        "transforms of samples",
        ("torchvision.transforms:Compose.__call__",),
        "probes/augmentation/transforms.py",
        WITH_PROBE,
    ),
    # files
    "preflight-files": ForeignPatch(
        "files that Python itself opens, removes or renames",
        ("builtins:open", "io:open", "os:open", "os:replace", "os:remove", "os:mkdir"),
        "inject/redirected_functions.py",
        PREFLIGHT,
    ),
    "preflight-libraries": ForeignPatch(
        "files that compiled code opens, and trackers",
        (
            *("sqlite3:connect", "safetensors.torch:save_file", "safetensors.torch:load_file", "safetensors:safe_open"),
            *("wandb:init", "torch:save", "torch:load"),
        ),
        "inject/redirects.py",
        PREFLIGHT,
    ),
}


def replace_function(patch: str, owner: object, name: str, new: object) -> None:
    """Put a function in the place of another one that `PATCHES` names. KeyError for a patch that it lacks."""
    _ = PATCHES[patch]
    setattr(owner, name, new)
