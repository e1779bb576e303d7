"""The names of `tdbg.core.registry`, under the module that probes and rules of third parties import."""

from tdbg.core.registry import *  # noqa: F403
