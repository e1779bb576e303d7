"""Sinks: where rows go. Each in a file of its own, which is all that a new one needs.

Other packages add theirs under the entry-point group ``tdbg.metric_sinks``.
"""

from tdbg.metrics.sinks.base import MetricSink
from tdbg.registry import Registry

SINKS: Registry[type[MetricSink]] = Registry("metric sink", package="tdbg.metrics.sinks", group="tdbg.metric_sinks")

__all__ = ["SINKS", "MetricSink"]
