"""Every entry point of tdbg, found from outside, has a guard: an exception below it harms nothing and is reported.

ENTRIES_ALL=1 makes every body of every setup raise, as ``python -m tests.e2e.entries.table`` does; without it a few
bodies of one setup, by a seed that is printed (ENTRIES_SEED=5 gives it, TDBG_TEST_RANDOM=1 draws one).
"""

import os
import random
from pathlib import Path

import pytest

from tests.chance import choose_seed
from tests.e2e.entries.table import HEAD, SETUPS, Outcome, execute_bare, list_entries, list_unknown, run_setup

ALL = bool(os.environ.get("ENTRIES_ALL"))
SEED = choose_seed("ENTRIES_SEED", "ENTRIES_ALL")
CHOSEN = sorted(SETUPS) if ALL else [random.Random(SEED).choice(["basic", "capture", "debuggers", "extreme"])]


@pytest.fixture(scope="module")
def bare(tmp_path_factory: pytest.TempPathFactory) -> Outcome:
    """The program with no part more, without tdbg."""
    return execute_bare((), tmp_path_factory.mktemp("bare") / "run")


# Together they hold every entry that the nine setups have.
@pytest.mark.parametrize("name", ["capture", "debuggers", "extreme", "pair", "profile", "trackers"])
def test_every_entry_is_known(bare: Outcome, tmp_path: Path, name: str) -> None:
    setup = SETUPS[name]
    entries, _ = list_entries(setup, tmp_path, None if setup.parts else bare)
    assert entries and not list_unknown(entries), "entries that tests/e2e/entries/known.txt does not list"


@pytest.mark.parametrize("name", CHOSEN if ALL else ["a setup"])
def test_entry_points(tmp_path: Path, name: str) -> None:
    setup = SETUPS[name if ALL else CHOSEN[0]]
    print(f"seed {SEED}, setup {setup.name}")
    rows = run_setup(setup, tmp_path, SEED, limit=None if ALL else 10)[2]
    table = "\n".join([HEAD, *map(str, rows)])
    print(table)
    assert rows and all(row.is_fine for row in rows), table
