"""The names of `tdbg.core.flags`, under the module that probes and rules of third parties import."""

from tdbg.core.flags import *  # noqa: F403
