"""What torch.compile makes of a training is the same under tdbg as without: each kind alone, at every level, as a command.

python -m tests.e2e.compile_counts [--sample N] [--seed S] [--levels basic,extreme] [--options WORDS] [KIND...]

The kinds are those of `programs/compile_kinds.py`: each part that may be compiled, with no, one and two variations, and
a backend. Each is compared in a process of its own: Dynamo's counters, what it compiled and recompiled, and the losses.
Exits with 1 if anything differs. The kinds of the test run one after another in a few processes.
"""

import argparse
import itertools
import random
import sys
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path

from tests.e2e.conftest import Result, build_program_command, build_torchrun_command, run_command

LEVELS = ("basic", "advanced", "extreme")  # `off` is one as well
PROGRAM = "compile_kinds"
PARTS = ("whole", "method", "submodule", "submethod", "forward", "loss", "optimizer", "step", "evaluation")
VARIATIONS = (
    *("dynamic", "break", "fullgraph", "late", "evaluated", "accumulated"),
    *("clipped", "autocast", "checkpointed", "adam"),
)
BACKENDS = ("", "aot_eager")


def build_command(kinds: Sequence[str], ranks: int = 1) -> list[str]:
    """The command that trains the kinds one after another."""
    return build_torchrun_command(PROGRAM, *kinds) if ranks > 1 else build_program_command(PROGRAM, *kinds)


def list_differences(result: Result, expected: Result) -> list[str]:
    """What is not as without tdbg, one line each: the kind, the figure, and both values."""
    found = [] if result.code == expected.code == 0 else [f"exit code {result.code}, {expected.code} without"]
    ours, theirs = (
        {(fact["kind"], fact["rank"]): fact for fact in done.list_printed("kind")} for done in (result, expected)
    )
    if not theirs or ours.keys() != theirs.keys():
        found.append(f"kinds {sorted(ours)}, {sorted(theirs)} without")
    for key in theirs.keys() & ours.keys():
        found += [
            f"{key[0]} of rank {key[1]}: {name}: {ours[key].get(name)}, {theirs[key].get(name)} without"
            for name in sorted(theirs[key].keys() | ours[key].keys())
            if ours[key].get(name) != theirs[key].get(name)
        ]
    return found


def iter_kinds() -> Iterator[str]:
    """Every part with no, one or two variations, and each backend."""
    for part, backend in itertools.product(PARTS, BACKENDS):
        for count in range(3):
            for chosen in itertools.combinations(VARIATIONS, count):
                yield ".".join([part, *chosen, *([backend] if backend else [])])


def compare_kind(kind: str, levels: Sequence[str], options: Sequence[str], folder: Path) -> int:
    """Run one kind bare and at each level, and print what differs; returns at how many levels."""
    words, bad = build_command([kind]), 0
    folder.mkdir()
    expected = run_command(words, folder)
    for level in levels:
        run = ["--run-dir", str(folder / level), "--level", level, *options]
        result = run_command([sys.executable, "-m", "tdbg", "run", *run, "--", *words], folder)
        differences = list_differences(result, expected)
        bad += bool(differences)
        print(f"{kind:<40} {level:<9} {'differs' if differences else 'same'}", flush=True)
        for line in differences:
            print(f"    {line}", flush=True)
    return bad


def main() -> int:
    """Compare the kinds."""
    parser = argparse.ArgumentParser(prog="python -m tests.e2e.compile_counts")
    parser.add_argument("kinds", nargs="*", metavar="KIND", help="the kinds; all of them without one")
    parser.add_argument("--sample", type=int, default=0, metavar="N", help="N kinds, drawn by chance")
    parser.add_argument("--seed", type=int, default=0, help="of the draw")
    parser.add_argument("--levels", default=",".join(LEVELS), help="separated by commas")
    parser.add_argument("--options", default="", help="options of tdbg run, separated by spaces")
    args = parser.parse_args()
    kinds = args.kinds or list(iter_kinds())
    if args.sample:
        kinds = random.Random(args.seed).sample(kinds, args.sample)
    with tempfile.TemporaryDirectory(prefix="tdbg-compile-") as root:
        bad = sum(
            compare_kind(kind, args.levels.split(","), args.options.split(), Path(root, str(number)))
            for number, kind in enumerate(kinds)
        )
    print(f"{len(kinds)} kinds at {args.levels}: {bad} differ")
    return 1 if bad else 0


if __name__ == "__main__":
    raise SystemExit(main())
