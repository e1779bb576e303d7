"""How long tdbg takes to answer, in units of ``python -c pass`` of the same moment.

    python benchmarks/startup.py [--rounds N] [--only TEXT] [--check]

Every command runs once a round, in an order shuffled anew; ``python -c pass`` runs twice as an A/A control.
A ratio is the median, over the rounds, of a command's time by the bare interpreter's of the same round; the
interval holds the middle 95 % of the medians of resampled rounds. A ratio within the control's interval
means nothing. ``--check`` exits 1 if a target is missed.
"""

import argparse
import os
import platform
import random
import statistics
import subprocess
import sys
import tarfile
import tempfile
import time
from pathlib import Path

from intervals import bootstrap_interval

ROOT = Path(__file__).resolve().parents[1]
# The targets: answered by the thin front; any other help page; a small log filtered; a small run read, or started.
FRONT, PAGE, FILTER, RUN = 5.0, 8.0, 2.5, 8.0
# A process of a run that never imports torch; and where the boot file's bytecode could not be written.
BOOT, BOOT_COMPILED = 1.3, 1.5
BARE = [sys.executable, "-c", "pass"]


def build_tdbg_command(*words: str) -> list[str]:
    """A command line of the tdbg installed beside this Python: its console script, as a user calls it."""
    script = Path(sys.executable).with_name("tdbg")
    return [str(script), *words] if script.exists() else [sys.executable, "-m", "tdbg", *words]


def build_commands(folder: Path) -> dict[str, tuple[list[str], float | None]]:
    """What is measured: name -> (command line, target). folder: where a small log and a small run are laid down."""
    from tdbg.cli import generate

    with tarfile.open(ROOT / "tests" / "contract" / "runs" / "single.tar.gz") as archive:
        archive.extractall(folder, filter="data")
    log, run = folder / "train.log", str(folder / "single")
    log.write_text("".join(f"2026-11-20 03:06:{n:02d},123 INFO train: [DEBUG_LR] step {n}\n" for n in range(60)))

    found: dict[str, tuple[list[str], float | None]] = {
        "python -c pass (A/A)": (BARE, None),
        "python -c 'import typer'": ([sys.executable, "-c", "import typer"], None),
        "tdbg --version": (build_tdbg_command("--version"), FRONT),
        "tdbg --help": (build_tdbg_command("--help"), FRONT),
        "tdbg filter-logs FILE": (build_tdbg_command("filter-logs", str(log)), FILTER),
        "tdbg filter-logs FILE -f LR": (build_tdbg_command("filter-logs", str(log), "-f", "LR"), FILTER),
        "tdbg report RUN": (build_tdbg_command("report", run), RUN),
        "tdbg status RUN": (build_tdbg_command("status", run), RUN),
        "tdbg run -- true": (build_tdbg_command("run", "--", "true"), RUN),
    }
    for page in generate.all_pages()[1:]:
        found[f"{page.path} --help"] = (build_tdbg_command(*page.words[1:], "--help"), PAGE)
    return found


def make_boot_environments(folder: Path) -> dict[str, tuple[dict[str, str], float]]:
    """The environments that a process of a run starts with, and their targets: with the boot file's bytecode and without."""
    from tdbg.core.config import Settings, flags_to_env
    from tdbg.core.rundir import RunDir
    from tdbg.inject import boot_source, watch_table
    from tdbg.launch.bytecode import precompile_boot_file

    settings = Settings(flags={"LOSS.NULL_MASKING": True}, log_level="DEBUG")
    found = {}
    for name, target in (("in a run", BOOT), ("in a run, boot file compiled anew", BOOT_COMPILED)):
        run = folder / name.replace(" ", "-")
        RunDir.create(run, {"settings": settings.as_dict(), "command": []})
        (run / "boot").mkdir()
        boot_file = run / "boot" / "sitecustomize.py"
        boot_file.write_text(boot_source(str(run), str(ROOT), watch_table(settings)), encoding="utf-8")
        if target == BOOT:
            precompile_boot_file(str(boot_file))
        env = {
            "PYTHONPATH": str(boot_file.parent),
            "TDBG_RUN_DIR": str(run),
            "TDBG_FLAGS": flags_to_env(settings.flags),
            "PYTHONDONTWRITEBYTECODE": "1",
        }
        found[f"python -c pass, {name}"] = env, target
    return found


def time_command(command: list[str], folder: str, env: dict[str, str] | None = None) -> float:
    """Wall time of one run."""
    start = time.perf_counter()
    subprocess.run(
        command,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        check=True,
        cwd=folder,
        env={**os.environ, **(env or {})},
    )
    return time.perf_counter() - start


def measure_ratios(
    lines: dict[str, list[str]], rounds: int, folder: str, env: dict[str, dict[str, str]]
) -> dict[str, list[float]]:
    """The ratios to the bare interpreter, one per round; the first round warms the disk's cache and is left out."""
    ratios: dict[str, list[float]] = {name: [] for name in lines}
    for number in range(rounds + 1):
        order = ["", *lines]
        random.shuffle(order)
        took = {name: time_command(lines[name] if name else BARE, folder, env.get(name)) for name in order}
        if number:
            for name in lines:
                ratios[name].append(took[name] / took[""])
    return ratios


def main() -> int:
    """Measure and print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=30)
    parser.add_argument("--only", default="", metavar="TEXT", help="only command lines with this text")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--check", action="store_true", help="exit 1 if a target is missed")
    options = parser.parse_args()
    random.seed(options.seed)
    os.environ.pop("PYTHONDONTWRITEBYTECODE", None)  # an installed package has its bytecode
    with tempfile.TemporaryDirectory() as folder:
        found = build_commands(Path(folder))
        boot = make_boot_environments(Path(folder))
        found |= {name: (BARE, target) for name, (_env, target) in boot.items()}
        wanted = {name: row for name, row in found.items() if options.only in name}
        lines = {name: line for name, (line, _target) in wanted.items()}
        ratios = measure_ratios(lines, options.rounds, folder, {name: env for name, (env, _target) in boot.items()})
    print(
        f"# {platform.python_implementation()} {platform.python_version()}, {os.cpu_count()} CPUs, {options.rounds} rounds"
    )
    print("command\tratio\t95% interval\ttarget\tmet")
    missed = 0
    for name, (_line, target) in wanted.items():
        ratio, (low, high) = statistics.median(ratios[name]), bootstrap_interval(ratios[name])
        met = target is None or ratio <= target
        missed += not met
        goal = "-\t-" if target is None else f"<= {target:g}\t{'yes' if met else 'NO'}"
        print(f"{name}\t{ratio:.2f}\t{low:.2f}-{high:.2f}\t{goal}")
    return 1 if missed and options.check else 0


if __name__ == "__main__":
    sys.exit(main())
