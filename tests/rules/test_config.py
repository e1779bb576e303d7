"""TD-C...: flags, and what tdbg itself could not see."""

import json

from streams import Stream

from tdbg.core.events import Cost, Injection, Note, ProbeOff


def judge_only(run: Stream, code: int = 0):
    (finding,) = run.judge_stream(code).findings
    return finding


def test_a_rejected_flag_is_told_once_for_all_ranks(make_stream):
    run = make_stream(flags={"LOSS.NUL": True})
    for rank in (0, 1):
        folder = run.begin_rank(rank)
        run.emit_steps(folder, [2.0])
        run.emit_events(
            f"other/h-{rank}",
            Injection(
                flag="LOSS.NUL", status="rejected", where="yacs", hint="did you mean LOSS.NULL_MASKING?", rank=rank
            ),
        )
    finding = judge_only(run)
    assert finding.code == "TD-C001" and finding.evidence == ["did you mean LOSS.NULL_MASKING?"]


def test_a_flag_nobody_took(make_stream):
    run = make_stream(flags={"LOSS.NULL_MASKING": True, "SCHEDULING": True, "CHECKPOINT": False})
    run.emit_steps(run.begin_rank(), [2.0])
    run.emit_events("other/h-1", Injection(flag="SCHEDULING", status="set", where="yacs"))
    assert judge_only(run).title == "the program never read LOSS.NULL_MASKING and ran without it"


def test_with_inject_none_nobody_is_meant_to(make_stream):
    run = make_stream(flags={"LOSS.NULL_MASKING": True}, inject="none")
    run.emit_steps(run.begin_rank(), [2.0])
    assert run.judge_codes() == []


def test_nothing_instrumented_names_the_cause(make_stream):
    run = make_stream()
    assert judge_only(run).code == "TD-C003" and "PYTHONPATH" in judge_only(run).title
    (run.run.path / "boot").mkdir()
    (run.run.path / "boot" / "old-python").touch()
    assert "older than 3.11" in judge_only(run).title
    (run.run.path / "boot" / "woke").touch()
    assert "none of it imported torch" in judge_only(run).title
    (run.run.path / "hello").mkdir()
    (run.run.path / "hello" / "h-1.json").write_text(json.dumps({"pid": 1}))
    assert (judge_only(run).severity, judge_only(run).title[:15]) == ("info", "1 torch process")
    (run.run.path / "hello" / "h-2.json").write_text(json.dumps({"pid": 2}))
    assert judge_only(run).title.startswith("2 torch processes reported")


def test_a_boot_that_failed_says_how(make_stream):
    run = make_stream()
    (run.run.path / "boot").mkdir()
    (run.run.path / "boot" / "errors.log").write_text("7 boot: ValueError: " + "x" * 500 + "\n8 second\n")
    finding = next(found for found in run.judge_stream().findings if found.code == "TD-C003")
    assert "could not start in it: 7 boot: ValueError: xxx" in finding.title and len(finding.title) < 200
    assert finding.try_next == "see boot/errors.log in the run directory"


def test_a_process_without_torch_reported(make_stream):
    run = make_stream()
    run.record_child_exit(1, 1)
    assert judge_only(run, 1).title.startswith("no torch process reported, and no optimizer step")


def test_a_command_that_never_started_is_not_asked_for_torch(make_stream):
    assert make_stream().judge_codes(127) == []


def test_level_off_sees_nothing_on_purpose(make_stream):
    assert make_stream(level="off").judge_codes() == []


def test_forward_unseen(one_rank):
    run, rank = one_rank
    run.emit_steps(rank, [2.0])
    run.emit_events(
        rank, Note(code="forward-unseen", text="no module's forward was seen"), Note(code="other", text="x")
    )
    assert judge_only(run).code == "TD-C004"
    assert "x (rank 0)" in run.judge_stream().notes


def test_a_forward_unseen_in_a_process_without_a_rank_names_the_process(make_stream):
    run = make_stream()
    run.emit_events("other/h-1", Note(code="forward-unseen", text="no module's forward was seen"))
    assert [found.title for found in run.judge_stream().findings if found.code == "TD-C004"] == [
        "process h-1: no module's forward was seen"
    ]


def test_a_model_of_plain_tensors_is_a_note(one_rank):
    run, rank = one_rank
    run.emit_steps(rank, [2.0])
    run.emit_events(
        rank,
        Note(
            code="forward-of-tensors", text="the parameters belong to no nn.Module, so forward passes cannot be watched"
        ),
    )
    assert judge_only(run).severity == "info"


def test_a_part_that_switched_itself_off(one_rank):
    run, rank = one_rank
    run.emit_steps(rank, [2.0])
    run.emit_events(rank, ProbeOff(probe="grad-norm", error="TypeError: x"), ProbeOff(probe="grad-norm", error="again"))
    assert judge_only(run).title == "tdbg's grad-norm switched itself off on rank 0: TypeError: x"
    assert judge_only(run).first_step == 1


def test_failures_while_waking_up(one_rank):
    run, rank = one_rank
    run.emit_steps(rank, [2.0])
    (run.run.path / "boot").mkdir()
    (run.run.path / "boot" / "errors.log").write_text("boot: ValueError: x\n")
    assert judge_only(run).title == "tdbg could not start in a process: boot: ValueError: x"


def test_disk_notes_and_losses(one_rank):
    run, rank = one_rank
    run.emit_steps(rank, [2.0])
    run.emit_events(rank, Note(code="disk-vectors", text="half the disk budget is used", step=9))
    assert judge_only(run).severity == "info"
    run.emit_events(rank, Cost(step=9, own_ms=1.0, wall_ms=100.0, dropped=12))
    assert run.judge_stream().findings[0].title == "12 events could not be written (rank 0)"
