"""The Python API: what a program may ask tdbg itself, inside a run and outside of one.

Every name of `tdbg.API` lives in a module of its own here, and is loaded when it is first asked for.
"""

from importlib import import_module

# Where each public name lives. No module here is named like a public name: importing one would hide it.
NAMES = {
    "flag": "flag_values",
    "log": "tagged_lines",
    "metric": "user_metrics",
    "region": "code_regions",
    "DebugLevel": "levels",
    "debug_context": "contexts",
    "enable_debugging": "switches",
    "disable_debugging": "switches",
    "get_debugging_status": "switches",
    "history": "switches",
    "clear_history": "switches",
    "TensorInfo": "debugger",
    "Validation": "debugger",
    "PyTorchDebugger": "debugger",
    "StepInfo": "training",
    "TrainingDebugger": "training",
    "DiffusionModelDebugger": "diffusion",
    "TrainingPhase": "asynchronous",
    "AsyncTrainingLogger": "asynchronous",
    "create_logger": "loggers",
    "profile_model_performance": "performance",
    "MetricsTracker": "tracking",
    "Metric": "tracking",
    "OpsSchedule": "tracking",
    "StepMetricsLogger": "tracking",
    "SubsetMetricWrapper": "tracking",
    "lr_dict": "tracking",
    "run_config": "tracking",
    "shared_run_id": "tracking",
    "View": "notebook_view",
}


def __getattr__(name: str) -> object:
    if name not in NAMES:
        raise AttributeError(f"module 'tdbg.api' has no attribute {name!r}")
    found: object = getattr(import_module(f"tdbg.api.{NAMES[name]}"), name)
    globals()[name] = found
    return found
