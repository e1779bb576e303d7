"""Makes the recordings: runs of one version of tdbg, packed so that every later version is asked about them.

``python -m tests.contract.record BIN FOLDER`` with BIN the folder of the programs of an environment that holds that
version. The recordings in the repository were made so at ade8d88, with torch 2.13.0, and are not made again: what a
later version writes is recorded beside them, under another name.
"""

import io
import os
import shutil
import signal
import subprocess
import sys
import tarfile
import tempfile
import time
from pathlib import Path

HERE = Path(__file__).parent
RUNS = {
    "single": "tdbg run --run-dir single -f LOSS.NULL_MASKING -- python program.py --nan-at 25",
    "two_ranks": "tdbg run --run-dir two_ranks --level advanced -- "
    "torchrun --nproc-per-node=2 program.py --nan-at 12 --bad-rank 1",
    "rank_killed": "tdbg run --run-dir rank_killed -- torchrun --nproc-per-node=2 program.py --kill-at 15 --bad-rank 1",
    "killed": "tdbg run --run-dir killed -- python program.py --steps 60 --pause-at 50",
    "first": "tdbg run --run-dir first -- python program.py --save state.pt --steps 20",
    "resumed": "tdbg run --run-dir resumed -- python program.py --resume state.pt --steps 20",
    "captured": "tdbg run --run-dir captured --capture **:output,grad -- python program.py --steps 10",
    "profiled": "tdbg profile --run-dir profiled -- python program.py",
    "second": "tdbg profile --run-dir second -- python program.py --steps 20",
}


def record_runs(programs: Path, target: Path) -> None:
    """Make every recording below ``target``, one archive each."""
    ask = [programs / "python", "-c", "import tdbg, pathlib; print(pathlib.Path(tdbg.__file__).parents[1])"]
    source = subprocess.run(ask, cwd=programs, capture_output=True, text=True, check=True).stdout.strip()
    with tempfile.TemporaryDirectory() as made:
        folder = Path(made)
        shutil.copy(HERE / "program.py", folder)
        for name, line in RUNS.items():
            _run_command(line.split(), folder, programs, kill=name == "killed")
            names = {str(folder): "/home/u/job", str(programs.parent): "/opt/venv", source: "/opt/tdbg"}
            names[os.uname().nodename] = "node1"
            _pack_run(folder / name, target / f"{name}.tar.gz", names)


def _run_command(command: list[str], folder: Path, programs: Path, kill: bool) -> None:
    env = {"PATH": f"{programs}:{os.environ['PATH']}", "OMP_NUM_THREADS": "1", "HOME": str(folder)}
    started = subprocess.Popen(command, cwd=folder, env=env, start_new_session=True)
    if kill:
        until = time.monotonic() + 60
        while not (folder / "paused").exists() and time.monotonic() < until:
            time.sleep(0.05)
        time.sleep(1)  # until what was read late is written
        os.killpg(started.pid, signal.SIGKILL)
    started.wait()


def _pack_run(run: Path, target: Path, names: dict[str, str]) -> None:
    """Write a run as an archive that says nothing of the machine it was made on."""
    with tarfile.open(target, "w:gz") as archive:
        for path in sorted(run.rglob("*")):
            if path.is_dir() or "__pycache__" in path.parts:
                continue
            content = path.read_bytes()
            if path.suffix in (".json", ".jsonl", ".txt", ".py"):
                content = _replace_names(content.decode(), names).encode()
            about = tarfile.TarInfo(f"{run.name}/{_replace_names(str(path.relative_to(run)), names)}")
            about.size, about.mtime, about.mode = len(content), int(path.stat().st_mtime), 0o600
            archive.addfile(about, io.BytesIO(content))


def _replace_names(text: str, names: dict[str, str]) -> str:
    for old, new in names.items():
        # The name of a host may be a word of the text too.
        ends = [("", "")] if old.startswith("/") else [('"', '"'), ("", "-"), (".", ".")]
        for before, after in ends:
            text = text.replace(f"{before}{old}{after}", f"{before}{new}{after}")
    return text


if __name__ == "__main__":
    record_runs(Path(sys.argv[1]).absolute(), Path(sys.argv[2]).absolute())
