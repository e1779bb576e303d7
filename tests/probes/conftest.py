"""A monitor inside the test process, with its events in a list."""

import time
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from tdbg.core.config import Settings
from tdbg.core.control import Request
from tdbg.core.events import Event, NonFinite, Step
from tdbg.probes.catalog import CATALOG
from tdbg.runtime.monitor import Monitor


class Watch:
    """What a monitor wrote, and what went wrong inside it."""

    def __init__(self, settings: Settings) -> None:
        self.events: list[Event] = []
        self.failures: list[tuple[str, Exception]] = []
        self.notes: list[str] = []
        self.saved: list[tuple[int, dict[str, Any]]] = []
        self.kept: dict[str, Any] = {}
        self.requests: list[Request] = []
        self.claims = 0
        self.monitor = Monitor(
            settings,
            catalog=CATALOG,
            emit=self.events.append,
            become_rank=self._count_claim,
            save_batch=self._save_batch,
            failed=lambda name, error: self.failures.append((name, error)),
            note=lambda code, text: self.notes.append(code),
            started=time.perf_counter(),
            requests=lambda: self.requests,
            keep=self._keep_file,
        )
        self.monitor.attach(CATALOG.select_probes(settings.level, settings.flags))

    def _count_claim(self) -> None:
        self.claims += 1

    def _save_batch(self, step: int, parts: dict[str, Any]) -> str:
        self.saved.append((step, parts))
        return "batch"

    def _keep_file(self, name: str, data: Any) -> str:
        self.kept[name] = data
        return name

    @property
    def train_steps(self) -> list[Step]:
        return [event for event in self.events if isinstance(event, Step) and event.phase == "train"]

    @property
    def eval_steps(self) -> list[Step]:
        return [event for event in self.events if isinstance(event, Step) and event.phase == "eval"]

    @property
    def bad_values(self) -> list[NonFinite]:
        return [event for event in self.events if isinstance(event, NonFinite)]


@pytest.fixture
def start_watch() -> Iterator[Callable[..., Watch]]:
    """Start a monitor with the given settings; everything is taken away after the test."""
    running: list[Watch] = []

    def start_one(**settings: Any) -> Watch:
        running.append(Watch(Settings(**{"max_overhead": 50.0, **settings})))
        return running[-1]

    yield start_one
    for one in running:
        one.monitor.detach()
        assert one.monitor.hook_count() == 0
        assert not one.failures, one.failures


@pytest.fixture
def loss_flags() -> Iterator[dict[str, Any]]:
    """The flags that diagnostics of losses ask for, none at first; nobody watches."""
    from tdbg.probes import loss
    from tdbg.runtime import run_context

    before = run_context.current
    flags: dict[str, Any] = {}
    run_context.install_context(run_context.NullContext(flags))
    loss.forget()
    yield flags
    loss.forget()
    run_context.install_context(before)
