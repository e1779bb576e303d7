"""The parts of a program's own metrics: the state, one metric, the schedule, subsets, learning rates, the step logger.

They need no run of tdbg, and load no torch.
"""

from tdbg.metrics.step_logger.ops_schedule import OpsSchedule
from tdbg.metrics.step_logger.run_config import run_config
from tdbg.metrics.step_logger.step_metrics_logger import StepMetricsLogger
from tdbg.metrics.step_logger.wandb_run_id import shared_run_id
from tdbg.metrics.tracker.last_values import lr_dict
from tdbg.metrics.tracker.metric import Metric
from tdbg.metrics.tracker.metrics_tracker import MetricsTracker
from tdbg.metrics.tracker.subset_metrics import SubsetMetricWrapper

__all__ = [
    "Metric",
    "MetricsTracker",
    "OpsSchedule",
    "StepMetricsLogger",
    "SubsetMetricWrapper",
    "lr_dict",
    "run_config",
    "shared_run_id",
]
