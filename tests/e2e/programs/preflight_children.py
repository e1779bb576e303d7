"""Changes files, then starts processes in every usual way, each of which reads, writes and deletes files.

usage: preflight_children.py KIND ..., in a folder that holds changed.txt, deleted.txt, a folder `sub` and, for each kind,
victim-KIND.txt. Each process prints a line: its kind and what it sees; so does the program, of what the process did.
"""

import concurrent.futures
import json
import multiprocessing
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

ME = str(Path(__file__).resolve())
HERE = Path(os.environ.setdefault("OF_THE_TEST", os.getcwd()))
PYTHON = sys.executable


def read_file(name: str) -> str:
    path = HERE / name
    return path.read_text(encoding="utf-8") if path.exists() else ""


def work(kind: str) -> None:
    """What each process does."""
    names = ("changed.txt", "new.txt", "deleted.txt")
    seen = {name: read_file(name) for name in names} | {"listed": sorted({*names} & {*os.listdir(HERE)})}
    print(json.dumps({"kind": kind, **seen}), flush=True)
    (HERE / f"by-{kind}.txt").write_text(kind, encoding="utf-8")
    os.remove(HERE / f"victim-{kind}.txt")


class Data:
    """A dataset whose workers do it."""

    def __init__(self, kind: str) -> None:
        self.kind = kind

    def __len__(self) -> int:
        return 1

    def __getitem__(self, at: int) -> int:
        work(self.kind)
        return at


def load_in_worker(kind: str, context: str) -> None:
    from torch.utils.data import DataLoader

    list(DataLoader(Data(kind), num_workers=1, batch_size=None, multiprocessing_context=context))  # type: ignore[arg-type]


def start(kind: str, context: str) -> None:
    process: Any = multiprocessing.get_context(context).Process(target=work, args=(kind,))  # type: ignore[attr-defined]
    process.start()
    process.join()


def fork(then: Callable[[], object]) -> None:
    child = os.fork()
    if not child:
        then()
        os._exit(0)
    os.waitpid(child, 0)


def start_pool(pool: Any, kind: str) -> None:
    with pool:
        list(pool.map(work, [kind]))


def elsewhere(kind: str) -> None:
    os.makedirs("made", exist_ok=True)
    os.chdir("made")
    start(kind, "spawn")
    os.chdir("..")


def run_command(*words: str, **how: Any) -> None:
    subprocess.run(words, check=True, **how)


WITHOUT = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
KINDS: dict[str, Callable[[str], object]] = {
    "subprocess": lambda kind: run_command(PYTHON, "-u", ME, "work", kind),
    "subfolder": lambda kind: run_command(PYTHON, ME, "work", kind, cwd="sub"),
    "posix-spawn": lambda kind: os.waitpid(os.posix_spawn(PYTHON, [PYTHON, ME, "work", kind], os.environ), 0),
    "exec": lambda kind: fork(lambda: os.execv(PYTHON, [PYTHON, ME, "work", kind])),
    "fork": lambda kind: fork(lambda: work(kind)),
    "process-fork": lambda kind: start(kind, "fork"),
    "process-spawn": lambda kind: start(kind, "spawn"),
    "process-forkserver": lambda kind: start(kind, "forkserver"),
    "pool-spawn": lambda kind: start_pool(multiprocessing.get_context("spawn").Pool(1), kind),
    "executor": lambda kind: start_pool(concurrent.futures.ProcessPoolExecutor(1), kind),
    "made-folder": elsewhere,
    "loader-fork": lambda kind: load_in_worker(kind, "fork"),
    "loader-spawn": lambda kind: load_in_worker(kind, "spawn"),
    "shell-python": lambda kind: os.system(f"{PYTHON} {ME} work {kind}"),
    "isolated": lambda kind: run_command(PYTHON, "-I", ME, "work", kind),
    "no-environment": lambda kind: run_command(PYTHON, "-E", ME, "work", kind),
    "no-site": lambda kind: run_command(PYTHON, "-S", ME, "work", kind),
    "other-path": lambda kind: run_command(PYTHON, ME, "work", kind, env=WITHOUT),
    "shell": lambda kind: run_command("sh", "-c", f"cat changed.txt > by-{kind}.txt && rm victim-{kind}.txt"),
}

if __name__ == "__main__" and sys.argv[1] == "work":
    work(sys.argv[2])
elif __name__ == "__main__":
    for name, text in (("changed.txt", "changed"), ("new.txt", "new")):
        Path(name).write_text(text, encoding="utf-8")
    os.remove("deleted.txt")
    for one in sys.argv[1:]:
        KINDS[one](one)
        facts = {"of": one, "wrote": read_file(f"by-{one}.txt"), "victim": (HERE / f"victim-{one}.txt").exists()}
        print(json.dumps(facts), flush=True)
