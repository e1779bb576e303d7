"""The parts of a program's own metrics: the state, one metric, the schedule, subsets, learning rates.

They need no run of tdbg, and load no torch.
"""

from tdbg.metrics.metric import Metric as Metric
from tdbg.metrics.schedule import OpsSchedule as OpsSchedule
from tdbg.metrics.stores import lr_dict as lr_dict
from tdbg.metrics.subsets import SubsetMetricWrapper as SubsetMetricWrapper
from tdbg.metrics.tracker import MetricsTracker as MetricsTracker
