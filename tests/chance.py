"""What random tests begin with: the same numbers at every call, so that a change is judged by what it changes.

TDBG_TEST_RANDOM=1: others at every call, for every such test; what is needed to see a failure again is printed with it.
TDBG_TEST_ALL=1: every row of the tables of programs, of which a call has a share otherwise.
TDBG_TEST_FUZZ_S=600 and TDBG_TEST_PAGE_KILLS=300 (longer runs by hand) have other numbers too.
"""

import os
import random
from collections.abc import Iterable
from typing import TypeVar

Row = TypeVar("Row")

RANDOM = os.environ.get("TDBG_TEST_RANDOM", "") not in ("", "0")
ALL = os.environ.get("TDBG_TEST_ALL", "") not in ("", "0")
FIXED = 20_261_122


def choose_seed(variable: str, longer: str = "") -> int:
    """The seed that an environment variable gives; else a random one, if that or a longer run is asked for; else always the same.

    variable: of the seed. longer: the variable that asks for a longer run, where there is one.
    """
    given = int(os.environ.get(variable, "0"))
    return given or (random.randrange(1, 1 << 30) if RANDOM or longer in os.environ else FIXED)


def pick_share(rows: Iterable[Row], every: int) -> list[Row]:
    """Every second, third, ... row of a table whose rows take the same way through tdbg; all with TDBG_TEST_ALL=1."""
    return list(rows)[:: 1 if ALL else every]
