"""What a verdict could not see: a full disk, a run directory that was removed."""

import shutil

import pytest
from streams import HOST, Stream

from tdbg.core.rundir import ProcessDir
from tdbg.rules.rule_engine import RuleEngine


def finish_live(run: Stream, code: int):
    """The verdict of the supervisor, which has read all events as they came."""
    judge = RuleEngine(run.run)
    for folder, event in run.log:
        judge.feed(ProcessDir(run.run, run.run.path / folder), event)
    return judge.finish(code)


@pytest.mark.parametrize("code", [0, 1, -9])
def test_a_run_directory_that_was_removed(make_stream, code):
    run = make_stream()
    run.emit_steps(run.begin_rank(), [2.0] * 9)
    shutil.rmtree(run.run.path)
    verdict = finish_live(run, code)
    found = [finding.title for finding in verdict.findings if finding.code == "TD-C006"]
    assert found == ["nothing was seen of rank 0 after step 9: the run directory was removed"]
    assert "no problem found" not in verdict.format_headline()


def test_events_that_could_not_be_written(make_stream):
    run = make_stream()
    for rank, steps in ((0, 9), (1, 6)):
        run.emit_steps(run.begin_rank(rank, world=2), [2.0] * steps)
        (run.run.path / "unwritten").mkdir(exist_ok=True)
        (run.run.path / "unwritten" / f"{HOST}-{1000 + rank}").touch()
    run.record_exit(0)
    found = [finding.title for finding in finish_live(run, 0).findings if finding.code == "TD-C006"]
    assert found == ["nothing was seen of rank 1 after step 6 (and of 1 other rank): its events could not be written"]


def test_a_program_that_leaves_at_once_is_no_matter_of_the_disk(make_stream):
    """os._exit: no end was written, and the run directory is in order."""
    run = make_stream()
    run.emit_steps(run.begin_rank(), [2.0] * 9)
    assert run.judge_codes() == []
