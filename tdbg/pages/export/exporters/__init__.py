"""Exporters: the formats of `tdbg inspect-pages export`. Each in a file of its own, which is all that a new one needs."""

from tdbg.core.registry import Registry
from tdbg.pages.export.exporter import Exporter

EXPORTERS: Registry[type[Exporter]] = Registry("exporter", package="tdbg.pages.export.exporters")
