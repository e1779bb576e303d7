"""Run the table of faults on several ranks, and print what is said of each.

python -m tests.e2e.rank_table [KIND...] [--ranks 2,4] [--by torchrun,spawn,fabric]

Beside each stand the seconds of the whole run, and from the last step of the rank at fault to the live line.
Exits with 1 if fewer than 95 % of the faults are named exactly, a wrong rank is named, or a healthy twin is not silent.
"""

import argparse
import json
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from tests.e2e.conftest import build_environment
from tests.e2e.rank_table.cases import FAULTS, Case, list_cases

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
    findings = json.loads((run / "report.json").read_text(encoding="utf-8"))["findings"]
    title = f"{findings[0]['code']} {findings[0]['severity']}: {findings[0]['title']}" if findings else "silent"
    return case.judge_answer(findings), title, time.monotonic() - begun, case.measure_delay(run)


def main() -> int:
    """Run the chosen cases, one after the other."""
    parser = argparse.ArgumentParser(prog="python -m tests.e2e.rank_table")
    parser.add_argument("kinds", nargs="*")
    parser.add_argument("--ranks", default="2,4")
    parser.add_argument("--by", default="torchrun,spawn,fabric")
    args = parser.parse_args()
    ranks, launchers = [int(word) for word in args.ranks.split(",")], args.by.split(",")
    cases = [case for case in list_cases() if case.ranks in ranks and case.by in launchers]
    cases = [case for case in cases if not args.kinds or case.kind in args.kinds]
    wrong: list[Case] = []
    with tempfile.TemporaryDirectory(prefix="ranks") as folder:
        for case in cases:
            said, title, seconds, delay_s = run_case(case, Path(folder))
            live = "" if delay_s is None else f"live after {delay_s:.1f} s: "
            wrong += [case] if said else []
            print(
                f"{'WRONG' if said else 'right':<6}{case.kind:<13}{case.ranks:>2} {case.by:<9}{seconds:5.1f} s  {live}{title}"
            )
            if said:
                print(f"      rank {case.rank} is at fault; {said}")
            sys.stdout.flush()
    faults = [case for case in cases if case.kind in FAULTS]
    missed = [case for case in wrong if case.kind in FAULTS]
    print(f"faults: {len(faults) - len(missed)} of {len(faults)} right; healthy: {len(wrong) - len(missed)} not silent")
    return 0 if len(missed) <= 0.05 * len(faults) and len(missed) == len(wrong) else 1


if __name__ == "__main__":
    raise SystemExit(main())
