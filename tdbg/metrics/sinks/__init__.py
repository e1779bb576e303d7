"""Sinks: where rows go. Each in a file of its own, which is all that a new one needs.

Other packages add theirs under the entry-point group ``tdbg.metric_sinks``.
"""

from tdbg.core.registry import Registry
from tdbg.metrics.sinks.base import MetricSink

SINKS: Registry[type[MetricSink]] = Registry("metric sink", package="tdbg.metrics.sinks", group="tdbg.metric_sinks")

__all__ = ["SINKS", "MetricSink"]
