"""Run directories written event by event, as ranks would write them: the material of many tests."""

import socket
import time
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

from tdbg.core.config import Settings
from tdbg.core.events import ChildExit, End, Event, Finding, NonFinite, Params, Start, Step
from tdbg.core.rundir import EventWriter, ProcessDir, RunDir
from tdbg.rules.rule_engine import RuleEngine, judge_run
from tdbg.rules.verdict import Verdict

HOST = socket.gethostname()


class Stream:
    """A run in the making. Time runs by itself: every event is a millisecond after the one before."""

    def __init__(self, folder: Path, **settings: Any) -> None:
        self.settings = Settings(**settings)
        record = {"command": ["python", "x.py"], "settings": self.settings.as_dict(), "start": 1.0}
        self.run, _ = RunDir.create(folder, record)
        self.t = time.time()
        self.log: list[tuple[str, Event]] = []
        self._writers: dict[str, EventWriter] = {}

    def __del__(self) -> None:
        """A process that runs a thousand tests would run out of file descriptors."""
        for writer in self._writers.values():
            writer.close()

    def emit_events(self, folder: str, *found: Event) -> None:
        """Write events of the process whose folder this is, such as ``rank0001``."""
        if folder not in self._writers:
            self._writers[folder] = EventWriter(lambda: self.run.path / folder, 10**10, self._raise_trouble)
        for event in found:
            self.t += 0.001
            event.t = event.t or self.t
            self._writers[folder].emit(event)
            self.log.append((folder, event))

    @staticmethod
    def _raise_trouble(text: str) -> None:
        raise AssertionError(text)

    def begin_rank(self, rank: int = 0, world: int = 1, attempt: int = 0, **more: Any) -> str:
        """Begin a rank; returns its folder."""
        folder = f"rank{rank:04d}" + (f"/attempt{attempt}" if attempt else "")
        start: dict[str, Any] = {
            "host": HOST,
            "pid": 1000 + rank + 100 * attempt,
            "world_size": world,
            "attempt": attempt,
            **more,
        }
        self.emit_events(folder, Start(rank=rank, **start), Params(names=["w"], numel=[4], optimizers=["AdamW"]))
        return folder

    def emit_steps(
        self,
        folder: str,
        losses: Iterable[float | str],
        *,
        lr: float | Sequence[float] = 1e-3,
        norms: Sequence[float | str | None] | float = 1.0,
        first: int = 1,
        **more: Any,
    ) -> None:
        """One step record a loss."""
        for index, loss in enumerate(losses):
            norm = norms[index] if isinstance(norms, Sequence) else norms
            rate = lr[index] if isinstance(lr, Sequence) else lr
            good = not isinstance(loss, str) and not isinstance(norm, str)
            self.emit_events(
                folder, Step(step=first + index, loss=loss, lr=[rate], grad_norm=norm, finite=good, **more)
            )

    def end_process(self, folder: str, step: int = 0, reason: str = "exit") -> None:
        """The process ends in good order."""
        self.emit_events(folder, End(step=step, reason=reason))

    def record_child_exit(self, rank: int, code: int, parent: str = "other/launcher-1") -> None:
        """A launcher sees the end of the process of ``rank``."""
        self.emit_events(parent, ChildExit(host=HOST, pid=1000 + rank, code=code))

    def record_exit(self, code: int = 0) -> None:
        """The supervisor notes how the command ended."""
        self.run.update_info(
            end=self.t, exit={"code": code if code >= 0 else None, "signal": -code if code < 0 else None}
        )

    def judge_stream(self, code: int | None = 0) -> Verdict:
        """The verdict offline; the same rules fed live, in the order of writing, must agree with it."""
        if code is not None:
            self.record_exit(code)
        offline = judge_run(self.run)
        live = RuleEngine(self.run)
        for folder, event in self.log:
            live.feed(ProcessDir(self.run, self.run.path / folder), event)
        assert list_titles(live.finish().findings) == list_titles(offline.findings)
        assert not offline.trouble
        return offline

    def judge_codes(self, code: int | None = 0) -> list[str]:
        """The codes of the verdict, worst first."""
        return [finding.code for finding in self.judge_stream(code).findings]

    def list_live_findings(self) -> list[Finding]:
        """What was said while the events came, without the end."""
        judge, said = RuleEngine(self.run), []
        for folder, event in self.log:
            said += judge.feed(ProcessDir(self.run, self.run.path / folder), event)
        return said


def list_titles(findings: Iterable[Finding]) -> list[tuple[str, str]]:
    """What must be equal between two verdicts of one run."""
    return [(finding.severity, finding.title) for finding in findings]


def make_nonfinite(step: int = 3, origin: str = "here", **more: Any) -> NonFinite:
    """A located NaN in the backward of a module."""
    parts: dict[str, Any] = {
        "phase": "backward",
        "kind": "nan",
        "module": "blocks.2.act",
        "module_class": "Act",
        "tensor": "gradient of input 0",
        "how": "rerun",
        "count": 12,
        "numel": 4096,
        "shape": [4, 8, 128],
        "dtype": "float32",
        "weights": "intact",
        "bad_params": ["a", "b", "c"],
        "bad_param_count": 3,
        "last_good": {"step": step - 1, "loss": 2.3, "grad_norm": 1.2, "lr": [1e-3]},
        "batch": "batch_step00000003.safetensors",
    }
    return NonFinite(step=step, origin=origin, **{**parts, **more})
