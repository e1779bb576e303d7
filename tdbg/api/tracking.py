"""The parts of a program's own metrics: the state, one metric, the schedule, subsets, learning rates, the step logger.

They need no run of tdbg, and load no torch.
"""

from tdbg.metrics.logger import StepMetricsLogger
from tdbg.metrics.metric import Metric
from tdbg.metrics.run_config import run_config
from tdbg.metrics.run_ids import shared_run_id
from tdbg.metrics.schedule import OpsSchedule
from tdbg.metrics.stores import lr_dict
from tdbg.metrics.subsets import SubsetMetricWrapper
from tdbg.metrics.tracker import MetricsTracker

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
