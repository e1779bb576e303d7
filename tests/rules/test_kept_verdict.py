"""The verdict of a large run is kept, and counts only while it is that of its files."""

import json
from collections.abc import Callable
from typing import Any

import pytest
from streams import Stream

from tdbg.cli import main
from tdbg.core.events import Step
from tdbg.rules import RULES, kept_verdict
from tdbg.rules.kept_verdict import FILE, load_verdict, save_verdict
from tdbg.rules.rule_engine import judge_run

Change = Callable[[Stream, pytest.MonkeyPatch], object]


@pytest.fixture
def judged(make_stream: Any, monkeypatch: pytest.MonkeyPatch) -> Stream:
    """A run with a finding, over, and its verdict kept."""
    monkeypatch.setattr(kept_verdict, "LARGE_BYTES", 0)
    run: Stream = make_stream()
    for rank in range(2):
        folder = run.begin_rank(rank, 2)
        run.emit_steps(folder, [2.5, 2.4, *["nan"] * 30])
        run.end_process(folder, 32)
    run.record_exit(1)
    save_verdict(run.run, judge_run(run.run))
    return run


def test_it_comes_back_as_it_was(judged: Stream) -> None:
    found, fresh = load_verdict(judged.run), judge_run(judged.run)
    assert found is not None and found.findings
    assert found.as_dict() == fresh.as_dict()
    assert found.format_screen() == fresh.format_screen() and found.format_page() == fresh.format_page()


def append_step(run: Stream, monkeypatch: pytest.MonkeyPatch) -> None:
    run.emit_events("rank0001", Step(step=33, loss=1.0))


def begin_another_rank(run: Stream, monkeypatch: pytest.MonkeyPatch) -> None:
    run.begin_rank(2, 3)


def cut_file(run: Stream, monkeypatch: pytest.MonkeyPatch) -> None:
    path = run.run.path / FILE
    path.write_bytes(path.read_bytes()[:-40])


def write_nonsense(run: Stream, monkeypatch: pytest.MonkeyPatch) -> None:
    path = run.run.path / FILE
    kept = json.loads(path.read_text())
    path.write_text(json.dumps({**kept, "verdict": {"run": 5}}))


CHANGES: dict[str, Change] = {
    "an event more": append_step,
    "a rank more": begin_another_rank,
    "another end": lambda run, monkeypatch: run.record_exit(0),
    "other rules": lambda run, monkeypatch: monkeypatch.setattr(kept_verdict, "stamp_sources", lambda: {"x": [1, 2]}),
    "another tdbg": lambda run, monkeypatch: monkeypatch.setattr(kept_verdict, "__version__", "9"),
    "rules of others": lambda run, monkeypatch: monkeypatch.setattr(RULES, "list_third_party", lambda: [object()]),
    "a file cut short": cut_file,
    "nonsense": write_nonsense,
    "no file": lambda run, monkeypatch: (run.run.path / FILE).unlink(),
}


@pytest.mark.parametrize("change", CHANGES)
def test_it_counts_no_longer_after(judged: Stream, monkeypatch: pytest.MonkeyPatch, change: str) -> None:
    assert load_verdict(judged.run) is not None
    CHANGES[change](judged, monkeypatch)
    assert load_verdict(judged.run) is None


def test_a_small_run_has_none(make_stream: Any) -> None:
    run: Stream = make_stream()
    run.emit_steps(run.begin_rank(), [2.5, 2.4])
    run.record_exit(0)
    save_verdict(run.run, judge_run(run.run))
    assert not (run.run.path / FILE).exists()


def test_the_report_prints_it(judged: Stream, capsys: pytest.CaptureFixture[str]) -> None:
    path = judged.run.path / FILE
    path.write_text(path.read_text().replace("first NaN at step 3", "as it was kept"))
    assert main(["report", str(judged.run.path)]) == 0
    assert "as it was kept" in capsys.readouterr().out
