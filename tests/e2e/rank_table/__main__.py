"""Run the table of faults on several ranks, and print what is said of each.

python -m tests.e2e.rank_table [KIND...] [--ranks 2,4] [--by torchrun,spawn,fabric] [--hang-s S] [--interrupt] [--keep DIR]

--by also takes accelerate, of which the table has as many cases again.
Beside each stand the seconds of the whole run, and from the last step of the rank at fault to the live line; of a hang these
must be within the limit (--hang-s: 3, to save time; tdbg's own is 15) and one confirmation of 5 s. --interrupt: Ctrl-C a
second after each fault began instead, and of a hang also once it was told; everything must be gone within 15 s, and the
verdict complete.
Exits with 1 if fewer than 95 % of the faults are named exactly (rank, kind and line), a wrong rank is named, or a healthy
twin is not silent.
"""

import argparse
import json
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path

from tests.e2e.conftest import build_environment
from tests.e2e.rank_table.cases import FAULTS, HANG_S, HEALTHY, Case, list_cases, remove_cpu_groups
from tests.e2e.rank_table.interrupts import interrupt_case

PATIENCE_S = 120


def run_case(case: Case, folder: Path) -> tuple[str, str, float, float | None]:
    """What is wrong with the answer (empty: nothing), the first finding, the seconds it took, and those to the live line."""
    run = folder / f"{case.kind}-{case.ranks}-{case.by}"
    command = [sys.executable, "-m", "tdbg", "run", "--run-dir", str(run), *case.options, "--", *case.build_command()]
    begun = time.monotonic()
    try:
        subprocess.run(
            command, cwd=folder, env=build_environment({}), capture_output=True, timeout=PATIENCE_S, check=False
        )
    except subprocess.TimeoutExpired:
        return f"did not end in {PATIENCE_S} s", "", PATIENCE_S, None
    seconds, delay_s = time.monotonic() - begun, case.measure_delay(run)
    findings = json.loads((run / "report.json").read_text(encoding="utf-8"))["findings"]
    title = f"{findings[0]['code']} {findings[0]['severity']}: {findings[0]['title']}" if findings else "silent"
    said = case.judge_answer(findings) or case.judge_live(run) or case.judge_delay(delay_s)
    return said, title, seconds, delay_s


def print_row(case: Case, said: str, seconds: float, text: str) -> None:
    """One line of the table, and one more of what is wrong."""
    mark = "WRONG" if said else "right"
    print(f"{mark:<6}{case.kind:<13}{case.ranks:>2} {case.by:<9}{seconds:5.1f} s  {text}")
    if said:
        print(f"      rank {case.rank} is at fault; {said}" if case.kind in FAULTS else f"      {said}")
    sys.stdout.flush()


def run_table(cases: Sequence[Case], folder: Path) -> int:
    """Run the cases, one after the other; returns the exit code."""
    wrong: list[Case] = []
    for case in cases:
        said, title, seconds, delay_s = run_case(case, folder)
        print_row(case, said, seconds, title if delay_s is None else f"live after {delay_s:.1f} s: {title}")
        wrong += [case] if said else []
        remove_cpu_groups()
    faults = [case for case in cases if case.kind in FAULTS]
    missed = [case for case in wrong if case.kind in FAULTS]
    print(f"faults: {len(faults) - len(missed)} of {len(faults)} right; healthy: {len(wrong) - len(missed)} not silent")
    return 0 if len(missed) <= 0.05 * len(faults) and len(missed) == len(wrong) else 1


def interrupt_table(cases: Sequence[Case], folder: Path) -> int:
    """Press Ctrl-C in the middle of each case; returns the exit code."""
    for number in (
        signal.SIGINT,
        signal.SIGQUIT,
    ):  # behind a shell's `&` they are ignored, and so they would be in the runs
        signal.signal(number, signal.SIG_DFL)
    trials = [(case, is_early) for case in cases for is_early in ((True, False) if case.is_hang else (True,))]
    wrong = 0
    for case, is_early in trials:
        ending = interrupt_case(case, folder, is_early=is_early)
        print_row(case, ending.wrong, ending.seconds, f"{'early' if is_early else 'told '}: {ending.told}")
        wrong += bool(ending.wrong)
        remove_cpu_groups()
    print(f"interrupted: {len(trials) - wrong} of {len(trials)} ended as they should")
    return int(wrong > 0)


def choose_cases(args: argparse.Namespace) -> list[Case]:
    """The cases that were asked for, and can be run here."""
    ranks, launchers = [int(word) for word in args.ranks.split(",")], args.by.split(",")
    cases = [case for case in list_cases(args.hang_s) if case.ranks in ranks and case.by in launchers]
    cases = [case for case in cases if case.kind in args.kinds] if args.kinds else cases
    left_out = sorted({case.kind for case in cases if not case.can_run})
    if left_out:
        print(f"left out, since no CPU control group can be made here: {', '.join(left_out)}")
    return [case for case in cases if case.can_run and not (args.interrupt and case.kind in HEALTHY)]


def main() -> int:
    """Run the chosen cases."""
    parser = argparse.ArgumentParser(prog="python -m tests.e2e.rank_table")
    parser.add_argument("kinds", nargs="*", metavar="KIND")
    parser.add_argument("--ranks", default="2,4")
    parser.add_argument("--by", default="torchrun,spawn,fabric")
    parser.add_argument("--hang-s", type=float, default=HANG_S)
    parser.add_argument("--interrupt", action="store_true")
    parser.add_argument("--keep", type=Path, help="a new folder for the run directories")
    args = parser.parse_args()
    unknown = set(args.kinds) - {*FAULTS, *HEALTHY}
    if unknown:
        parser.error(f"no such kind: {', '.join(sorted(unknown))}; there are {', '.join((*FAULTS, *HEALTHY))}")
    run_cases = interrupt_table if args.interrupt else run_table
    if args.keep is not None:
        args.keep.mkdir(parents=True)
        return run_cases(choose_cases(args), args.keep.resolve())
    with tempfile.TemporaryDirectory(prefix="ranks") as folder:
        return run_cases(choose_cases(args), Path(folder))


if __name__ == "__main__":
    raise SystemExit(main())
