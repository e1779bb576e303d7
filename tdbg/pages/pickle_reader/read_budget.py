"""The budget for reading a page, and the values that were refused in it.

Each opcode is charged for the memory it can make, and the time that has passed is compared with what was charged: a page
that means well takes a thousandth of its size and a tenth of the time.
"""

import time

from tdbg.pages.pickle_reader.byte_source import TruncatedError
from tdbg.pages.pickle_reader.parsed_values import Refused

COST_LIMIT = 512 << 20  # bytes of memory, estimated from above
COST_STEP = 1 << 14
PATIENCE_S, PATIENCE_S_PER_BYTE = 10.0, 2e-7


class BudgetExhausted(TruncatedError):
    """The page asks for more memory or time than any page needs."""


class ReadBudget:
    """What a page has cost so far, and what was refused in it."""

    def __init__(self, limit: int = COST_LIMIT, patience_s: float = PATIENCE_S) -> None:
        self.spent = 0
        self.due = COST_STEP
        self._limit, self._patience_s = limit, patience_s
        self._began = time.thread_time()
        self._refused: dict[str, int] = {}
        self.reasons: dict[str, None] = {}  # a set that keeps its order

    def charge(self, cost: int) -> None:
        """Raises BudgetExhausted when it is too much."""
        self.spent += cost
        if self.spent > self.due:
            self.check_limits()

    def check_limits(self) -> None:
        """Compare with the limits; done every few hundred opcodes."""
        self.due = self.spent + COST_STEP
        if self.spent > self._limit:
            raise BudgetExhausted(f"it makes more small values than fit into {self._limit >> 20} MiB")
        if time.thread_time() - self._began > self._patience_s + self.spent * PATIENCE_S_PER_BYTE:
            raise BudgetExhausted("it takes far longer to read than its size explains")

    def record_refused_name(self, refused: Refused) -> None:
        """A name that is not on the list was looked up."""
        self._refused.setdefault(refused.label, 0)

    def record_refused(self, refused: Refused) -> Refused:
        """Count a value that was not made."""
        self._refused[refused.label] = self._refused.get(refused.label, 0) + 1
        if refused.why and len(self.reasons) < 100:
            self.reasons[str(refused)] = None
        return refused

    @property
    def refused(self) -> dict[str, int]:
        """Name -> how many values; a name that was looked up and not called counts once."""
        return {name: max(1, count) for name, count in self._refused.items()}
