"""tdbg debugs PyTorch training and evaluation runs, with no change to their code."""

TYPE_CHECKING = False  # what `typing` says, without its import: this file loads in every process of a run
if TYPE_CHECKING:
    from tdbg.api.asynchronous import AsyncTrainingLogger as AsyncTrainingLogger
    from tdbg.api.asynchronous import TrainingPhase as TrainingPhase
    from tdbg.api.code_regions import region as region
    from tdbg.api.contexts import debug_context as debug_context
    from tdbg.api.debugger import PyTorchDebugger as PyTorchDebugger
    from tdbg.api.debugger import TensorInfo as TensorInfo
    from tdbg.api.debugger import Validation as Validation
    from tdbg.api.diffusion import DiffusionModelDebugger as DiffusionModelDebugger
    from tdbg.api.flag_values import flag as flag
    from tdbg.api.levels import DebugLevel as DebugLevel
    from tdbg.api.loggers import create_logger as create_logger
    from tdbg.api.notebook_view import View as View
    from tdbg.api.performance import profile_model_performance as profile_model_performance
    from tdbg.api.switches import clear_history as clear_history
    from tdbg.api.switches import disable_debugging as disable_debugging
    from tdbg.api.switches import enable_debugging as enable_debugging
    from tdbg.api.switches import get_debugging_status as get_debugging_status
    from tdbg.api.switches import history as history
    from tdbg.api.tagged_lines import log as log
    from tdbg.api.tracking import Metric as Metric
    from tdbg.api.tracking import MetricsTracker as MetricsTracker
    from tdbg.api.tracking import OpsSchedule as OpsSchedule
    from tdbg.api.tracking import StepMetricsLogger as StepMetricsLogger
    from tdbg.api.tracking import SubsetMetricWrapper as SubsetMetricWrapper
    from tdbg.api.tracking import lr_dict as lr_dict
    from tdbg.api.tracking import run_config as run_config
    from tdbg.api.tracking import shared_run_id as shared_run_id
    from tdbg.api.training import StepInfo as StepInfo
    from tdbg.api.training import TrainingDebugger as TrainingDebugger
    from tdbg.api.user_metrics import metric as metric
    from tdbg.version import __version__ as __version__

API = (  # the names of tdbg.api; any other is a submodule or an error
    "flag",
    "log",
    "metric",
    "region",
    "DebugLevel",
    "debug_context",
    "enable_debugging",
    "disable_debugging",
    "get_debugging_status",
    "history",
    "clear_history",
    "TensorInfo",
    "Validation",
    "PyTorchDebugger",
    "StepInfo",
    "TrainingDebugger",
    "DiffusionModelDebugger",
    "TrainingPhase",
    "AsyncTrainingLogger",
    "create_logger",
    "profile_model_performance",
    "MetricsTracker",
    "Metric",
    "OpsSchedule",
    "StepMetricsLogger",
    "SubsetMetricWrapper",
    "lr_dict",
    "run_config",
    "shared_run_id",
    "View",
)


def __getattr__(name: str) -> object:
    """Load a name of the Python API on first use: ``import tdbg`` alone stays free of cost."""
    if name == "__version__":
        from tdbg.version import __version__

        return __version__
    if name not in API:
        raise AttributeError(f"module 'tdbg' has no attribute {name!r}")
    import tdbg.api

    found: object = getattr(tdbg.api, name)
    globals()[name] = found
    return found


def __dir__() -> list[str]:
    return sorted({*globals(), *API})
