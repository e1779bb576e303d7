"""The programs that leave the same bits with tdbg as without, at every level; all of them as a command.

python -m tests.e2e.bit_identity [PROGRAM...]
"""

import re
import sys
import tempfile
from collections import Counter
from pathlib import Path

from tdbg.core.events import Observation, Step, Trigger
from tdbg.pages.read.page_set import PageSet
from tests.e2e.conftest import PROGRAMS, Result, run_command

LEVELS = ("off", "basic", "advanced", "extreme")
SINGLE: dict[str, tuple[str, ...]] = {
    "plain": (),
    "accumulate": (),
    "amp": (),
    "gan": (),
    "lbfgs": (),
    "hf_trainer": ("1",),
    "lightning_fit": (),
    "compiled": ("whole", "aot_eager"),
    "save_everything": ("saved",),
}
RANKS: dict[str, tuple[str, ...]] = {"ddp": (), "fsdp2": ()}
ENV = {"PYTHONHASHSEED": "0"}
GREETING = re.compile(r"\[Gloo\]|connected peer ranks")  # of torch 2.9, in pieces as ranks print at once
LOOK = ("--max-overhead", "100", "--capture", "**:output,input", "--when", "step == 3", "--then", "level=extreme for 4")


def build_command(name: str) -> list[str]:
    """The command that runs a program under the fingerprint."""
    rest = [str(PROGRAMS / "fingerprint.py"), name, *{**SINGLE, **RANKS}[name]]
    return ["torchrun", "--standalone", "--nproc-per-node=2", *rest] if name in RANKS else [sys.executable, *rest]


def run_bare(name: str, folder: Path) -> Result:
    """Without tdbg."""
    folder.mkdir(parents=True)
    return run_command(build_command(name), folder, ENV)


def run_watched(name: str, level: str, folder: Path) -> Result:
    """Under tdbg, which looks at all it can: into every module, with capture, and with an escalation at step 3."""
    folder.mkdir(parents=True)
    options = ["--run-dir", str(folder / "run"), "--level", level, *(LOOK if level != "off" else ())]
    result = run_command([sys.executable, "-m", "tdbg", "run", *options, "--", *build_command(name)], folder, ENV)
    result.folder = folder / "run"
    return result


def list_differences(result: Result, expected: Result, level: str) -> list[str]:
    """What is not as in the bare program; nothing if all is."""
    found = [] if result.code == expected.code == 0 else [f"exit code {result.code}, {expected.code} without"]
    ours, theirs = (
        {print_["rank"]: print_ for print_ in done.list_printed("fingerprint")} for done in (result, expected)
    )
    if not theirs or ours.keys() != theirs.keys():
        found.append(f"ranks {sorted(ours)}, {sorted(theirs)} without")
    for rank, print_ in theirs.items():
        found += [f"rank {rank}: {name}" for name, value in print_.items() if ours.get(rank, {}).get(name) != value]
    counted = level == "off"  # captured steps run uncompiled
    if _list_printed_lines(result, counted) != _list_printed_lines(expected, counted):
        found.append("stdout")
    return found


def _list_printed_lines(result: Result, counted: bool) -> list[str]:
    """What was printed, without gloo's greeting. counted: with how often the compiler was called."""
    lines = [line for line in result.stdout.splitlines() if not GREETING.search(line)]
    return sorted(line for line in lines if counted or not line.startswith('{"event": "compile"'))


def count_work(result: Result) -> dict[str, int]:
    """What tdbg did in the run, from the run's own events: of each kind how much, on all ranks."""
    events = [event for process in result.run_dir.list_processes() for event in process.iter_events()]
    looks = Counter(type(event) for event in events)
    escalations = [event for event in events if isinstance(event, Trigger)]
    passes = sum(1 for _ in PageSet.open(result.folder)) if list(result.folder.rglob("pages/*")) else 0
    return {"steps": looks[Step], "looks": looks[Observation], "pages": passes, "escalated": len(escalations)}


def main(names: list[str]) -> int:
    """Print the table; 1 if a bit differs, or tdbg did not do what it was to do."""
    bad = 0
    print(
        f"{'program':<16} {'level':<9} {'same':<5} {'steps':>6} {'looks':>6} {'pages':>6} {'escalated':>9} files",
        flush=True,
    )
    with tempfile.TemporaryDirectory() as root:
        for name in names or [*SINGLE, *RANKS]:
            expected = run_bare(name, Path(root) / "bare" / name)
            files = sum(len(print_["files"]) for print_ in expected.list_printed("fingerprint"))
            for level in LEVELS:
                result = run_watched(name, level, Path(root) / level / name)
                differ, work = list_differences(result, expected, level), count_work(result)
                idle = level != "off" and not all(work.values())
                bad += bool(differ) or idle
                row = " ".join(f"{work[key]:>{max(len(key), 6)}}" for key in work)
                print(f"{name:<16} {level:<9} {'no' if differ else 'yes':<5} {row} {files}", *differ, flush=True)
    return 1 if bad else 0


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
