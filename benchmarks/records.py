"""What it costs the program that its log records are kept: a dropped call, a kept one, a print; with and without.

    python benchmarks/records.py

One process, which is a rank of a run directory under /tmp. The methods of `logging` that tdbg chains are put back and
set again in turn, so that both arms see the same machine; the figure is the median of the pairs, in us a call, and the
difference between the arms. A control compares the bare arm with itself.
"""

import importlib.util
import logging
import os
import statistics
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from types import ModuleType

import torch  # noqa: F401 - a rank has it

from tdbg.core.config import Settings
from tdbg.core.events import Start
from tdbg.inject import log_recorder
from tdbg.inject.agent import Agent

PAIRS = 40
CALLS = 1_000
PLAIN = """
import logging
log = logging.getLogger("bench")
def dropped(calls):
    for number in range(calls): log.debug("number %d", number)
def kept(calls):
    for number in range(calls): log.warning("number %d of many", number)
"""
GUARDED = (
    PLAIN
    + """
def behind_a_flag(calls, cfg):
    if cfg.DEBUG.MEMORY:
        for number in range(calls): log.debug("number %d", number)
def kept_behind_a_flag(calls, cfg):
    if cfg.DEBUG.MEMORY:
        for number in range(calls): log.warning("number %d of many", number)
"""
)


class Config:
    """A config with its flag on."""

    class DEBUG:
        """Its section."""

        MEMORY = True


def load_module(folder: Path, name: str, text: str) -> ModuleType:
    path = folder / f"{name}.py"
    path.write_text(text, encoding="utf-8")
    spec = importlib.util.spec_from_file_location(name, path)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def time_call(call: Callable[[int], None]) -> float:
    begun = time.perf_counter()
    call(CALLS)
    return (time.perf_counter() - begun) / CALLS * 1e6


def main() -> None:
    """Print the table."""
    with tempfile.TemporaryDirectory(prefix="tdbg-records-") as name:
        folder = Path(name)
        os.environ["XDG_CACHE_HOME"] = str(folder / "cache")
        (folder / "run").mkdir()
        settings = Settings(flags={"MEMORY": True}, disk_budget="100GB")
        agent = Agent(folder / "run", settings, speaks=False)
        before = {key: vars(logging.Logger)[key] for key in ("handle", "callHandlers", "isEnabledFor")}
        heard = log_recorder.install_recorder(agent)
        after = {key: vars(logging.Logger)[key] for key in before}
        agent.become_rank(0, lambda attempt: Start())
        plain, guarded = load_module(folder, "plain_words", PLAIN), load_module(folder, "guarded_words", GUARDED)
        file = logging.FileHandler(folder / "program.log")
        file.setFormatter(logging.Formatter("%(asctime)s %(levelname)s %(name)s: %(message)s"))
        logging.getLogger("bench").addHandler(file)
        logging.getLogger("bench").propagate = False
        cases: dict[str, Callable[[int], None]] = {
            "dropped, file without flags": plain.dropped,
            "dropped, file with flags": guarded.dropped,
            "dropped by a level, behind a flag": lambda calls: guarded.behind_a_flag(calls, Config),
            "kept, to a file of the program": plain.kept,
            "kept, behind a flag": lambda calls: guarded.kept_behind_a_flag(calls, Config),
        }

        def switch_methods(methods: dict[str, Callable[..., object]]) -> None:
            for key, method in methods.items():
                setattr(logging.Logger, key, method)

        switch_methods(after)
        for call in cases.values():
            call(10)
        heard.maps.wait_for_thread(30)
        print("call\twithout us\twith us\tmore us\tcontrol")
        for title, call in cases.items():
            times: dict[str, list[float]] = {"bare": [], "ours": [], "control": []}
            for pair in range(PAIRS):
                arms = ["bare", "ours", "control"]
                for arm in arms[pair % 3 :] + arms[: pair % 3]:
                    switch_methods(after if arm == "ours" else before)
                    times[arm].append(time_call(call))
            middle = {arm: statistics.median(found) for arm, found in times.items()}
            more = statistics.median(ours - bare for ours, bare in zip(times["ours"], times["bare"], strict=True))
            control = middle["control"] / middle["bare"]
            print(f"{title}\t{middle['bare']:.3f}\t{middle['ours']:.3f}\t{more:.3f}\tx{control:.2f}")
        written = (agent.folder or folder).glob(f"{log_recorder.NAME}*")
        flagged = sum(path.read_bytes().count(b'"flags": ["MEMORY"]') for path in written)
        assert flagged == 2 * (PAIRS * CALLS + 10), flagged  # the arm with tdbg did its work


if __name__ == "__main__":
    main()
