"""The names of `tdbg.core.events`, under the module that probes and rules of third parties import."""

from tdbg.core.events import *  # noqa: F403
