"""The parts of a program's own metrics: the state, one metric, the schedule, subsets, learning rates.

They need no run of tdbg, and load no torch.
"""

from tdbg.metrics.metric import Metric
from tdbg.metrics.schedule import OpsSchedule
from tdbg.metrics.stores import lr_dict
from tdbg.metrics.subsets import SubsetMetricWrapper
from tdbg.metrics.tracker import MetricsTracker

__all__ = ["Metric", "MetricsTracker", "OpsSchedule", "SubsetMetricWrapper", "lr_dict"]
