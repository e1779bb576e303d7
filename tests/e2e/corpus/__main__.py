"""Run the healthy programs under tdbg and list what watched them and what was found.

python -m tests.e2e.corpus [NAME...]                    the programs written by hand, at every level
python -m tests.e2e.corpus --generated 300 --seed 1     generated ones, at the default level

With --page what was run goes into docs/silence.md; cells of other programs and levels stay as they are.

Exits with 1 if a finding is above a note, a program failed, or it took fewer than 300 steps.
"""

import argparse
import json
import statistics
import tempfile
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path

from tests.e2e.corpus.generator import write_programs
from tests.e2e.corpus.runs import Outcome, Program, list_hand_programs, run_program
from tests.e2e.corpus.silence_page import LEVELS, summarize_generated, write_page


def read_count(text: str) -> int:
    """A number of programs."""
    if not text.isdecimal():
        raise argparse.ArgumentTypeError(f"give a number of programs, not {text!r}")
    return int(text)


def parse_arguments() -> argparse.Namespace:
    """The options of the command."""
    parser = argparse.ArgumentParser(prog="python -m tests.e2e.corpus")
    parser.add_argument("names", nargs="*", help="parts of names of programs written by hand; all of them without one")
    parser.add_argument("--generated", type=read_count, default=0, metavar="N", help="N generated programs instead")
    parser.add_argument("--seed", type=int, default=1, help="of the generator")
    parser.add_argument(
        "--levels",
        help=f"separated by commas (of those by hand {','.join(LEVELS)}; of others basic); preflight is one as well",
    )
    parser.add_argument("--jobs", type=int, default=1, help="programs that run at once")
    parser.add_argument("--keep", type=Path, metavar="DIR", help="keep programs, run directories and rows.jsonl there")
    parser.add_argument("--page", action="store_true", help="put what was run into docs/silence.md")
    return parser.parse_args()


def choose_programs(args: argparse.Namespace, folder: Path) -> list[Program]:
    """The programs that the options ask for."""
    if args.generated:
        return write_programs(args.generated, args.seed, folder / "programs")
    programs = list_hand_programs()
    return [one for one in programs if not args.names or any(part in one.name for part in args.names)]


def run_pair(pair: tuple[Program, str], folder: Path) -> Outcome:
    """Run one program at one level."""
    program, level = pair
    return run_program(program, level, folder / level / program.name.replace("/", "-"))


def print_outcome(outcome: Outcome) -> None:
    """One line of figures, and one for each finding above a note."""
    found = f"{len(outcome.above):>5} {','.join(outcome.notes) or '-'}"
    figures = f"{outcome.steps:>6} {outcome.step_ms:>8.2f} {outcome.armed:>4}/{outcome.rules:<4} {outcome.looks:>6}"
    print(f"{outcome.name:<36} {outcome.level:<9} {outcome.seconds:>6.1f} {figures} {found}", flush=True)
    if outcome.code:
        print(f"    exit code {outcome.code}", flush=True)
    for line in [*outcome.above, *outcome.trouble]:
        print(f"    {line}", flush=True)


def print_summary(outcomes: Sequence[Outcome]) -> None:
    """Each level's figures, and how often each code was found."""
    for level in dict.fromkeys(outcome.level for outcome in outcomes):
        rows = [outcome for outcome in outcomes if outcome.level == level]
        armed, looks = [row.armed for row in rows], [row.looks for row in rows]
        above = sum(len(row.above) for row in rows)
        print(
            f"{level}: {len(rows)} programs, armed rules {min(armed)} at least, {statistics.median(armed):g} at the median;"
            f" {sum(looks):,} looks ({min(looks)} at least, {statistics.median(looks):g} at the median);"
            f" {min(row.steps for row in rows)} steps at least; {above} findings above a note"
            f" in {sum(bool(row.above) for row in rows)} programs; {sum(not row.is_sound for row in rows)} unsound"
        )
        for name, codes in (
            ("above a note", Counter(line.split()[0] for row in rows for line in row.above)),
            ("notes", Counter(code for row in rows for code in row.notes)),
        ):
            print(f"  {name}: {', '.join(f'{code} x {count}' for code, count in codes.most_common()) or 'none'}")


def run_all(
    pairs: Iterable[tuple[Program, str]], folder: Path, jobs: int, keep: Callable[[Outcome], None]
) -> list[Outcome]:
    """Run programs, some at once, and print and keep each outcome as it comes."""
    outcomes = []
    with ThreadPoolExecutor(jobs) as pool, open(folder / "rows.jsonl", "a", encoding="utf-8") as rows:
        for outcome in pool.map(partial(run_pair, folder=folder), pairs):
            print_outcome(outcome)
            keep(outcome)
            rows.write(json.dumps(outcome.as_row()) + "\n")
            rows.flush()
            outcomes.append(outcome)
    return outcomes


def keep_on_page(outcome: Outcome) -> None:
    """Put an outcome into the page at once: all programs take an hour. Of generated ones a line is put there at the end."""
    write_page([outcome])


def main() -> int:
    """Run what was asked for; 1 if a program is not sound."""
    args = parse_arguments()
    levels = args.levels.split(",") if args.levels else LEVELS[: 1 if args.generated else None]
    print(
        f"{'program':<36} {'level':<9} {'s':>6} {'steps':>6} {'step ms':>8} {'armed':>9} {'looks':>6} {'above':>5} notes"
    )
    with tempfile.TemporaryDirectory(prefix="corpus") as temporary:
        folder = (args.keep or Path(temporary)).resolve()
        folder.mkdir(parents=True, exist_ok=True)
        programs = choose_programs(args, folder)
        if not programs:
            print(f"no program's name holds {' or '.join(args.names)}")
            return 2
        pairs = [(program, level) for level in levels for program in programs]
        outcomes = run_all(pairs, folder, args.jobs, keep_on_page if args.page else lambda outcome: None)
    print_summary(outcomes)
    if args.page and args.generated:
        write_page(generated=summarize_generated([one for one in outcomes if one.level == LEVELS[0]], args.seed))
    return 0 if all(outcome.is_sound for outcome in outcomes) else 1


if __name__ == "__main__":
    raise SystemExit(main())
