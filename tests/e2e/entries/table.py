"""Where tdbg stands in a program, found from outside, and what happens when tdbg's code raises there.

``python -m tests.e2e.entries.table [NAME...]`` makes every body of every entry raise in turn, in the setups named (all of
them by default), and prints the table: entry, body, what was raised, whether it fired, whether the training was unharmed,
lines on stderr, findings in the report.
"""

import argparse
import json
import random
import subprocess
import sys
import tempfile
from collections.abc import Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path

from tests.e2e.conftest import build_environment

HERE = Path(__file__).parent
KNOWN = frozenset((HERE / "known.txt").read_text(encoding="utf-8").split("\n"))  # every entry that was looked at
KINDS = ("RuntimeError", "SystemExit", "KeyboardInterrupt", "GeneratorExit", "RecursionError")
FLAGS = (
    *("SCHEDULING", "CHECKPOINT", "DATALOADER", "AUGMENTATION", "OPTIMIZER", "DISTRIBUTED", "MODEL_BUILD"),
    *("TRAINING_LOOP", "MEMORY", "GRADIENTS", "FORWARD", "BACKWARD", "DEVICE", "AMP", "VALIDATION"),
    *("EARLY_STOPPING", "LR", "NULL_MASKING", "DUMP_METRICS", "AUTOGRAD_ANOMALY", "LOSS"),
)


@dataclass(frozen=True)
class Setup:
    """One way to run the program under tdbg."""

    name: str
    options: tuple[str, ...]
    parts: tuple[str, ...] = ()


SETUPS = {
    setup.name: setup
    for setup in (
        Setup("basic", ("--level", "basic")),
        Setup("advanced", ("--level", "advanced", "--max-overhead", "100"), ("raise",)),
        Setup(
            "extreme",
            ("--level", "extreme", "--max-overhead", "100", *(word for flag in FLAGS for word in ("-f", flag))),
        ),
        Setup("capture", ("--capture", "**:input,output,grad", "--baseline", "4")),
        Setup("profile", ("-f", "PROFILER", "--log-level", "DEBUG")),
        Setup("debuggers", ("--level", "basic"), ("debuggers",)),
        Setup("trackers", ("-f", "VALIDATION_METRICS", "--max-overhead", "100"), ("trackers",)),
        Setup("pair", ("--level", "basic"), ("pair",)),
        Setup("compile", ("--level", "advanced", "--max-overhead", "100"), ("compile",)),
    )
}


@dataclass
class Outcome:
    """One run of the program."""

    code: int
    stdout: str
    stderr: str
    folder: Path
    out: Path
    findings: list[dict[str, object]] = field(default_factory=list)

    def list_fired(self) -> list[str]:
        """Which injected exceptions were raised."""
        path = self.out / "fired.txt"
        return path.read_text().split() if path.exists() else []


def execute_program(setup: Setup | None, parts: Sequence[str], folder: Path, env: dict[str, str]) -> Outcome:
    """Run the program to its end, under tdbg unless ``setup`` is None."""
    folder.mkdir(parents=True)
    words = [sys.executable, str(HERE / "program.py"), *parts]
    if setup is not None:
        words = [sys.executable, "-m", "tdbg", "run", "--run-dir", str(folder / "run"), *setup.options, "--", *words]
    whole = build_environment({"ENTRIES_OUT": str(folder), **env})
    whole.pop("PYTHONDONTWRITEBYTECODE", None)
    done = subprocess.run(words, cwd=folder, env=whole, capture_output=True, text=True, timeout=300)
    return Outcome(done.returncode, done.stdout, done.stderr, folder / "run", folder)


def find_entries(bare: Outcome, watched: Outcome) -> dict[str, str]:
    """Entries of tdbg, each with the place where it was found: what differs, and what is registered."""
    without = json.loads((bare.out / "list.json").read_text())["attributes"]
    facts = json.loads((watched.out / "list.json").read_text())
    found = dict(facts["registered"])
    for path, (text, name) in facts["attributes"].items():
        before = without.get(path)
        ours = not name.rpartition(":")[0].startswith("/") and _is_ours(text)
        if (before is not None and before[0] != text) or (before is None and ours):
            found.setdefault(name, path)
    return {name: where for name, where in found.items() if not name.startswith("entries/")}  # the observer's own


def _is_ours(text: str) -> bool:
    return "/tdbg/" in text.partition(":")[0] and "/tests/" not in text


def find_bodies(setup: Setup, entries: Iterable[str], folder: Path) -> list[str]:
    """What each entry calls first below its guard: pairs ``entry | body``."""
    env = {"ENTRIES_MODE": "trace", "ENTRIES_NAMES": json.dumps(sorted(entries))}
    outcome = execute_program(setup, setup.parts, folder, env)
    found = sorted(set((folder / "trace.txt").read_text().splitlines()))
    assert outcome.code == (1 if "raise" in setup.parts else 0), outcome.stderr
    return found


@dataclass
class Row:
    """What became of one injected exception."""

    setup: str
    pair: str
    raises: str
    fired: bool
    unharmed: bool
    lines: int
    notes: int

    @property
    def is_fine(self) -> bool:
        """True if nothing is wrong."""
        return self.fired and self.unharmed and self.lines == 1 and self.notes == 1

    def __str__(self) -> str:
        yes = {True: "yes", False: "NO"}
        return (
            f"{self.setup:<9}{self.raises:<18}{yes[self.fired]:<4}{yes[self.unharmed]:<4}"
            f"{self.lines:>2} {self.notes:>2}  {self.pair}"
        )


HEAD = "setup    raises            fired unharmed lines notes  entry | body"


def inject_exceptions(
    setup: Setup, pairs: Sequence[str], entries: Iterable[str], bare: Outcome, folder: Path, seed: int
) -> tuple[list[Row], list[str]]:
    """One process in which each of ``pairs`` raises once. Returns the rows of those that were told, and the others."""
    choose = random.Random(f"{seed}{folder.name}")
    ids = {pair: f"injected-{number}x" for number, pair in enumerate(pairs)}
    plan = {pair: {"id": ids[pair], "raises": choose.choice(KINDS)} for pair in pairs}
    env = {
        "ENTRIES_MODE": "inject",
        "ENTRIES_NAMES": json.dumps(sorted(entries)),
        "ENTRIES_PLAN": json.dumps(plan),
    }
    outcome = execute_program(setup, setup.parts, folder, env)
    report = subprocess.run(
        [sys.executable, "-m", "tdbg", "report", str(outcome.folder), "--json"],
        capture_output=True,
        text=True,
        env=build_environment({}),
    )
    try:
        findings = json.loads(report.stdout)["data"]["findings"]
    except (ValueError, KeyError):
        findings = []
    fired = outcome.list_fired()
    unharmed = (outcome.code, _list_lines(outcome.stdout)) == (bare.code, _list_lines(bare.stdout))
    (folder / "result.txt").write_text(
        f"{outcome.code}\n{outcome.stdout}\n{outcome.stderr}\n{report.stdout}{report.stderr}"
    )
    rows, again = [], [pair for pair in pairs if ids[pair] not in fired]
    for pair in pairs:
        if ids[pair] in fired:
            while_running = outcome.stderr.partition("tdbg: verdict:")[0]  # the verdict lists all once more
            lines = [line for line in while_running.splitlines() if ids[pair] in line]
            notes = [found for found in findings if ids[pair] in str(found.get("title", ""))]
            ours = [line for line in lines if line.startswith("tdbg: ")]
            count = len(lines) if ours or not lines else 100 + len(lines)
            row = Row(setup.name, pair, plan[pair]["raises"], True, unharmed, count, len(notes))
            if (count, len(notes)) == (0, 0) and len(pairs) > 1:
                again.append(pair)  # a part is told once, and another pair of this process is of the same part
            else:
                rows.append(row)
    return rows, again


def _list_lines(stdout: str) -> list[str]:
    return [line for line in stdout.splitlines() if line]


def split_batches(pairs: Sequence[str], size: int, choose: random.Random) -> list[list[str]]:
    """Some pairs together, by chance: what does not fire, as its part is off already, comes again."""
    left = list(pairs)
    choose.shuffle(left)
    return [left[start : start + size] for start in range(0, len(left), size)]


def execute_bare(parts: Sequence[str], folder: Path) -> Outcome:
    """Run the program without tdbg, for what it has of its own."""
    return execute_program(None, parts, folder, {"ENTRIES_MODE": "list"})


def list_entries(setup: Setup, folder: Path, bare: Outcome | None = None) -> tuple[dict[str, str], Outcome]:
    """The entries that a setup adds to the program, found from outside, and the program's end without tdbg.

    bare: that end, where it is known.
    """
    bare = bare or execute_bare(setup.parts, folder / "bare")
    watched = execute_program(setup, setup.parts, folder / "list", {"ENTRIES_MODE": "list"})
    assert _list_lines(watched.stdout) == _list_lines(bare.stdout), watched.stderr
    return find_entries(bare, watched), bare


def list_unknown(entries: Iterable[str]) -> list[str]:
    """The entries that nobody has looked at yet."""
    return sorted(set(entries) - KNOWN)


def run_setup(
    setup: Setup, folder: Path, seed: int, *, limit: int | None = None, size: int = 14, jobs: int = 1
) -> tuple[dict[str, str], list[str], list[Row]]:
    """All of one setup: its entries, their bodies, and a row for each body (or for ``limit`` of them)."""
    entries, bare = list_entries(setup, folder)
    pairs = find_bodies(setup, entries, folder / "trace")
    choose = random.Random(seed)
    waiting = pairs if limit is None else choose.sample(pairs, min(limit, len(pairs)))
    rows: list[Row] = []
    for attempt in range(5):
        work = split_batches(waiting, (size, size, 4)[attempt] if attempt < 3 else 1, choose)
        with ThreadPoolExecutor(jobs) as pool:
            done = list(
                pool.map(
                    lambda item: inject_exceptions(setup, item[1], entries, bare, item[0], seed),
                    [(folder / f"{attempt}-{number}", batch) for number, batch in enumerate(work)],
                )
            )
        rows += [row for found, _ in done for row in found]
        print(f"{setup.name}: {len(rows)} of {len(waiting) + len(rows)} tried", file=sys.stderr, flush=True)
        waiting = [pair for _, rest in done for pair in rest]
        if not waiting:
            break
    rows += [Row(setup.name, pair, "", False, True, 0, 0) for pair in waiting]
    return entries, pairs, rows


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("setups", nargs="*", help="by default all")
    parser.add_argument("--seed", type=int, default=random.SystemRandom().randrange(1 << 30))
    parser.add_argument("--limit", type=int, help="so many bodies of each setup")
    parser.add_argument("--keep", type=Path, help="a folder for what the processes leave behind")
    parser.add_argument("--list", action="store_true", help="print the entries and their bodies alone")
    args = parser.parse_args()
    print(f"seed {args.seed}")
    bad = 0
    with tempfile.TemporaryDirectory() as scratch:
        for name in args.setups or SETUPS:
            folder = (args.keep or Path(scratch)) / name
            limit = 0 if args.list else args.limit
            entries, pairs, rows = run_setup(SETUPS[name], folder, args.seed, limit=limit)
            reached = {pair.partition(" | ")[0] for pair in pairs}
            print(f"\n{name}: {len(entries)} entries, {len(pairs)} bodies, {len(rows)} tried")
            for entry in sorted(set(entries) - reached):
                print(f"  calls nothing of tdbg's: {entry} ({entries[entry]})")
            for entry in list_unknown(entries):
                print(f"  not in known.txt: {entry} ({entries[entry]})")
                bad += 1
            if args.list:
                for pair in pairs:
                    print(f"  {pair}")
            print(HEAD)
            for row in sorted(rows, key=lambda row: row.pair):
                print(row, flush=True)
                bad += not row.is_fine
    print(f"\n{bad} rows or entries are not as they should be")
    return 1 if bad else 0


if __name__ == "__main__":
    sys.exit(main())
