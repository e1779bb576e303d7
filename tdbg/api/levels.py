"""`DebugLevel`: how much is looked at."""

from enum import StrEnum

from tdbg.core.errors import TdbgError


class DebugLevel(StrEnum):
    """The levels of `tdbg run --level`, with the same meaning and the same text.

    OFF looks at nothing. BASIC: step records, gradient norms, the first NaN or Inf; for production and tests.
    ADVANCED adds sampled statistics of modules, weights and gradients, some in each look, and memory; for tests and
    development. EXTREME looks at every module, keeps a bounded history, and full error context; for development.
    """

    OFF = "off"
    BASIC = "basic"
    ADVANCED = "advanced"
    EXTREME = "extreme"

    @classmethod
    def of(cls, level: "DebugLevel | str") -> "DebugLevel":
        """The level of that name, in any case; TdbgError (a message that names them) for another word."""
        try:
            return cls(str(level).lower())
        except ValueError:
            known = ", ".join(cls)
            raise TdbgError(f"no level is named {level!r}; choose from: {known}", f"choose from: {known}") from None

    def reaches(self, other: "DebugLevel") -> bool:
        """True if this level looks at what ``other`` looks at."""
        order = list(DebugLevel)
        return order.index(self) >= order.index(other)
