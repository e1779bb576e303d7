"""Try tdbg where tests cannot: two hosts as network namespaces, a real SLURM, pods, and launchers that take their time.

python -m tests.e2e.places [namespaces] [slurm] [ray] [kubernetes] [accelerate] [fabric] [spawn]

Says the date and the versions first, then a line for each trial: what was asked, and whether the answer names the rank.
Exits with 1 if one is wrong. It must be root for namespaces, kubernetes and slurm (slurmctld, slurmd and munged are
started with one node); ray needs ray[train] in this environment.
"""

import argparse
import datetime
import importlib.metadata
import importlib.util
import os
import shutil
import tempfile
from collections.abc import Callable
from pathlib import Path

from tests.e2e.places.answers import run_quietly
from tests.e2e.places.hosts import try_namespaces
from tests.e2e.places.launchers import try_accelerate, try_fabric, try_ray, try_spawn
from tests.e2e.places.pods import try_kubernetes
from tests.e2e.places.slurm import try_slurm

TRIALS: dict[str, Callable[[Path], list[bool]]] = {
    "namespaces": try_namespaces,
    "slurm": try_slurm,
    "ray": try_ray,
    "kubernetes": try_kubernetes,
    "accelerate": try_accelerate,
    "fabric": try_fabric,
    "spawn": try_spawn,
}
PACKAGES = ("tdbg", "torch", "ray", "accelerate", "lightning")


def list_versions() -> str:
    found = [f"{name} {importlib.metadata.version(name)}" for name in PACKAGES if importlib.util.find_spec(name)]
    if shutil.which("slurmctld"):
        found.append(run_quietly("slurmctld", "-V").stdout.strip())
    return ", ".join([*found, f"kernel {os.uname().release}"])


def main() -> int:
    """Run the chosen trials, one after another."""
    parser = argparse.ArgumentParser(prog="python -m tests.e2e.places")
    parser.add_argument("places", nargs="*", choices=[*TRIALS, []])
    args = parser.parse_args()
    print(f"{datetime.datetime.now(datetime.UTC):%Y-%m-%d %H:%M} UTC: {list_versions()}")
    right: list[bool] = []
    for place in args.places or TRIALS:
        with tempfile.TemporaryDirectory(prefix=f"tdbg-{place}-", ignore_cleanup_errors=True) as folder:
            right += TRIALS[place](Path(folder))
    print(f"{sum(right)} of {len(right)} right")
    return 0 if all(right) else 1


if __name__ == "__main__":
    raise SystemExit(main())
