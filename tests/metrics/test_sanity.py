"""Rules on metrics: each speaks of a run with its fault, and is silent on the same run in health."""

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tdbg.cli.metrics import sanity
from tdbg.core.errors import TdbgError
from tdbg.core.events import Finding
from tdbg.metrics.rows.row import FILE, Row
from tdbg.metrics.rows.row_files import find_rows_files
from tdbg.metrics.rows.run_summary import summarize_run
from tdbg.metrics.sanity import RULES, evaluate_metrics, list_unarmed
from tdbg.metrics.sinks.jsonl import RowFile

Say = Callable[[int], Iterator[Row]]


def judge_rows(tmp_path: Path, *ranks: list[Row]) -> list[Finding]:
    """What is found in files of these rows, a rank each."""
    for rank, rows in enumerate(ranks):
        file = RowFile(lambda rank=rank: tmp_path / f"rank{rank:04d}" / FILE, rank=rank, on_trouble=pytest.fail)
        for row in rows:
            row.rank = rank
            assert file.write_row(row)
        file.close()
    seen = summarize_run(find_rows_files(str(tmp_path)))[0]
    found, trouble = evaluate_metrics(seen)
    assert not trouble
    unarmed = {rule.code for rule, why in list_unarmed(seen) if why.reason}
    assert not [one for rule in RULES if rule.code in unarmed for one in rule().evaluate(seen)], "it had what it needs"
    return found


def make_epoch_rows(count: int = 12, source: str = "tracker", **series: Callable[[int], float]) -> list[Row]:
    """A row an epoch, of 100 steps each; keys with two underscores for the slash."""
    return [
        Row(
            1e9 + epoch,
            100 * (epoch + 1),
            epoch,
            "val",
            values={key.replace("__", "/"): value(epoch) for key, value in series.items()},
            source=source,
        )
        for epoch in range(count)
    ]


def falling_value(epoch: int) -> float:
    return 2.0 / (epoch + 1)


def rising_value(epoch: int) -> float:
    return 1.0 - 0.9 / (epoch + 1)


def overflowing_value(epoch: int) -> float:
    return float("inf") if not epoch else 2.0


# code, rows with the fault, the same in health, a word of the title
CASES: dict[str, tuple[str, Callable[[], list[Row]], Callable[[], list[Row]], str]] = {
    "a constant accuracy": (
        "TD-K001",
        lambda: make_epoch_rows(train__acc1_genus=lambda e: 0.0, train__loss=falling_value),
        lambda: make_epoch_rows(train__acc1_genus=rising_value, train__loss=falling_value),
        "train/acc1_genus was 0 all 12 times",
    ),
    "a constant rate is none": (
        "TD-K001",
        lambda: make_epoch_rows(val__loss=lambda e: 0.7),
        lambda: make_epoch_rows(
            lr__group0=lambda e: 0.1, schedule__mixup=lambda e: 0.2, pipeline__step_ms=lambda e: 3.0
        ),
        "val/loss was 0.7",
    ),
    "a perfect score": (
        "TD-K001",
        lambda: make_epoch_rows(val__acc1=lambda e: 0.5),
        lambda: make_epoch_rows(val__acc1=lambda e: 100.0),
        "val/acc1 was 0.5",
    ),
    "a best of 0 for a loss": (
        "TD-K002",
        lambda: make_epoch_rows(val__best_loss=lambda e: 0.0, val__loss=falling_value),
        lambda: make_epoch_rows(val__best_loss=falling_value, val__loss=falling_value),
        "val/best_loss stayed 0 while val/loss came down to 0.166667",
    ),
    "a best that other values beat": (
        "TD-K002",
        lambda: make_epoch_rows(val__best_acc1=lambda e: 0.1, val__acc1=rising_value),
        lambda: make_epoch_rows(val__best_acc1=lambda e: 0.1, val__acc1=lambda e: 0.1 - 0.01 * e),
        "val/best_acc1 stayed 0.1 while val/acc1 reached 0.925",
    ),
    "a best of -inf": (
        "TD-K002",
        lambda: make_epoch_rows(val__best_acc1=lambda e: float("-inf"), val__acc1=rising_value),
        lambda: make_epoch_rows(val__best_acc1=rising_value, val__acc1=rising_value),
        "stayed -inf",
    ),
    "count 0": (
        "TD-K003",
        lambda: [
            *make_epoch_rows(val__loss=falling_value),
            Row(1.0, 1300, 12, "val", text={"val/count_0_str": "val/acc1"}, source="tdbg"),
        ],
        lambda: [
            *make_epoch_rows(val__loss=falling_value),
            Row(1.0, 1300, 12, "val", text={"val/word_str": "val/acc1"}, source="tdbg"),
        ],
        "val was finalised with count 0 at step 1300: val/acc1",
    ),
    "a phase spelt twice": (
        "TD-K004",
        lambda: make_epoch_rows(val_mask_meta__loss=falling_value, valMaskMeta__acc1=rising_value),
        lambda: make_epoch_rows(val_mask_meta__loss=falling_value, val_mask_SPATIAL__acc1=rising_value),
        "the phase val_mask_meta is also called valMaskMeta",
    ),
    "a mask of nothing": (
        "TD-K004",
        lambda: make_epoch_rows(val_mask__loss=falling_value, val_mask_meta__loss=falling_value),
        lambda: make_epoch_rows(val__loss=falling_value, val_mask_meta__loss=falling_value),
        "the phase val_mask names no component",
    ),
    "percent beside fractions": (
        "TD-K005",
        lambda: make_epoch_rows(val__acc1=lambda e: 90 * rising_value(e), val__chain_accuracy=rising_value),
        lambda: make_epoch_rows(
            val__acc1=lambda e: 90 * rising_value(e), val__chain_acc_frac=rising_value, val__loss=falling_value
        ),
        "val/acc1 goes up to 83.25, val/chain_accuracy to 0.925",
    ),
    "a stale epoch": (
        "TD-K006",
        lambda: [
            row
            for e in range(6)
            for row in (make_tdbg_row(e), Row(1.0, 100 * e + 100, 0, "val", values={"val/loss": falling_value(e)}))
        ],
        lambda: [
            row
            for e in range(6)
            for row in (make_tdbg_row(e), Row(1.0, 100 * e + 100, e, "val", values={"val/loss": falling_value(e)}))
        ],
        "rows still say epoch 0 at step 600, where tdbg counts epoch 5",
    ),
    "an epoch that goes back": (
        "TD-K006",
        lambda: [*make_epoch_rows(5, val__loss=falling_value), Row(1.0, 600, 0, "val", values={"val/loss": 0.1})],
        lambda: [*make_epoch_rows(5, val__loss=falling_value), Row(1.0, 600, 4, "val", values={"val/loss": 0.1})],
        "the epoch goes back from 4 to 0 at step 600",
    ),
    "a step that goes back": (
        "TD-K007",
        lambda: [*make_epoch_rows(5, val__loss=falling_value), Row(1.0, 12, 5, "val", values={"val/loss": 0.1})],
        lambda: [*make_epoch_rows(5, val__loss=falling_value), Row(1.0, 500, 5, "val", values={"val/loss": 0.1})],
        "the step goes back from 500 to 12",
    ),
    "keys outside the grammar": (
        "TD-K008",
        lambda: make_epoch_rows(gradnorm__gradnorm__loss=falling_value, lossTotal=falling_value),
        lambda: make_epoch_rows(gradnorm__loss=falling_value, train__lossTotal=falling_value),
        "2 keys are outside the grammar: gradnorm/gradnorm/loss, lossTotal",
    ),
    "what is sent elsewhere has no grammar": (
        "TD-K008",
        lambda: make_epoch_rows(source="", lossTotal=falling_value),
        lambda: make_epoch_rows(source="wandb", lossTotal=falling_value),
        "a key is outside the grammar: lossTotal",
    ),
    "more epochs than planned": (
        "TD-K009",
        lambda: [Row(1.0, 0, values={"schedule/planned_epochs": 4.0}, source="tdbg"), *map(make_tdbg_row, range(6))],
        lambda: [Row(1.0, 0, values={"schedule/planned_epochs": 6.0}, source="tdbg"), *map(make_tdbg_row, range(6))],
        "6 epochs were run, and 4 were planned",
    ),
    "more steps than planned": (
        "TD-K009",
        lambda: [Row(1.0, 0, values={"schedule/planned_steps": 500.0}), *map(make_tdbg_row, range(6))],
        lambda: [Row(1.0, 0, values={"schedule/planned_steps": 600.0}), *map(make_tdbg_row, range(6))],
        "600 steps were run, and 500 were planned",
    ),
    "more passes over a loader that validates too": (
        "TD-K009",
        lambda: [
            Row(1.0, 0, values={"schedule/planned_steps": 500.0, "schedule/planned_epochs": 2.0}, source="tdbg"),
            *map(make_tdbg_row, range(6)),
        ],
        lambda: [
            Row(1.0, 0, values={"schedule/planned_steps": 600.0, "schedule/planned_epochs": 2.0}, source="tdbg"),
            *map(make_tdbg_row, range(6)),
        ],
        "600 steps were run, and 500 were planned",
    ),
    "a loss that is NaN": (
        "TD-K011",
        lambda: make_epoch_rows(
            val__loss=lambda e: float("nan") if e in (4, 7) else falling_value(e), val__acc1=rising_value
        ),
        lambda: make_epoch_rows(val__loss=falling_value, val__acc1=rising_value),
        "val/loss was not finite 2 of 12 times, first nan at step 500",
    ),
    "samples that a mean left out": (
        "TD-K011",
        lambda: [
            *make_epoch_rows(5, val__loss=falling_value),
            Row(1.0, 600, 5, "val", values={"val/not_finite_loss": 3.0}),
        ],
        lambda: [*make_epoch_rows(5, val__loss=falling_value), Row(1.0, 600, 5, "val", values={"val/loss": 0.1})],
        "val/loss had samples that were not finite, first at step 600",
    ),
    "accuracy near chance while the loss falls": (
        "TD-K012",
        lambda: make_epoch_rows(val__acc1=lambda e: 0.07 + e % 3 / 100, train__loss=falling_value),
        lambda: make_epoch_rows(val__acc1=lambda e: 0.05 + 0.02 * e, train__loss=falling_value),
        "val/acc1 stays between 0.07 and 0.09 in 12 evaluations while train/loss falls from 2 to 0.167",
    ),
    "accuracy near chance is no news before the loss falls": (
        "TD-K012",
        lambda: make_epoch_rows(val__acc1=lambda e: 10.0 - e / 2, train__loss=falling_value),
        lambda: make_epoch_rows(val__acc1=lambda e: 7.0 + e % 2, train__loss=lambda e: 2.3 - 0.05 * e),
        "val/acc1 stays between 4.5 and 10 in 12 evaluations",
    ),
    "a gradient that overflows, without a loss scale": (
        "TD-K011",
        lambda: make_epoch_rows(source="tdbg", train__grad_norm=overflowing_value),
        lambda: make_epoch_rows(source="tdbg", train__grad_norm=overflowing_value, train__loss_scale=lambda e: 65536.0),
        "train/grad_norm was not finite 1 of 12 times, first inf at step 100, as tdbg saw it",
    ),
    "what Hugging Face logs with its losses stands still by right": (
        "TD-K001",
        lambda: make_epoch_rows(source="hf", loss=lambda e: 0.7),
        lambda: make_epoch_rows(
            source="hf",
            **{
                name: lambda e: 5e-5
                for name in ("learning_rate", "epoch", "total_flos", "batch_size", "momentum", "train/learning_rate")
            },
        ),
        "loss was 0.7 all 12 times",
    ),
    "a best of a score that nobody knows": (
        "TD-K002",
        lambda: make_epoch_rows(source="hf", Loss__best_train=lambda e: 0.0, Loss__train=falling_value),
        lambda: make_epoch_rows(source="hf", val__best_temperature=lambda e: 0.0, val__temperature=falling_value),
        "Loss/best_train stayed 0",
    ),
    "validation after the end of the run": (
        "TD-K010",
        lambda: [make_plan_row(validation=601.0, checkpoint=100.0), *map(make_tdbg_row, range(6))],
        lambda: [make_plan_row(validation=600.0, checkpoint=0.0), *map(make_tdbg_row, range(6))],
        "validation is due every 601 steps, but the run has only 600",
    ),
}


def make_plan_row(**every: float) -> Row:
    """A schedule of 600 steps, as a program writes what it resolved to."""
    found = {f"schedule/{name}_every_steps": value for name, value in every.items()}
    return Row(1.0, 0, values={"schedule/planned_steps": 600.0, **found})


def make_tdbg_row(epoch: int) -> Row:
    """The last step of an epoch, as the feed writes it."""
    return Row(1.0, 100 * epoch + 100, epoch, "train", values={"train/loss": falling_value(epoch)}, source="tdbg")


@pytest.mark.parametrize("case", CASES)
def test_a_fault_is_found(case: str, tmp_path: Path) -> None:
    code, fault, _, title = CASES[case]
    (one,) = judge_rows(tmp_path, fault())
    assert one.code == code and title in one.title
    assert one.rank == 0 and one.cause and one.try_next


@pytest.mark.parametrize("case", CASES)
def test_the_same_in_health_is_not(case: str, tmp_path: Path) -> None:
    assert judge_rows(tmp_path, CASES[case][2]()) == []


def test_every_rule_has_a_case() -> None:
    assert {case[0] for case in CASES.values()} == set(RULES.names())


def test_a_loss_that_tdbg_saw_itself_is_left_to_other_rules(tmp_path: Path) -> None:
    assert judge_rows(tmp_path, make_epoch_rows(source="tdbg", train__loss=lambda e: 0.7)) == []
    assert judge_rows(tmp_path / "wandb", make_epoch_rows(source="wandb", train__loss=lambda e: 0.7)) != []


def test_units_that_rows_state(tmp_path: Path) -> None:
    rows = make_epoch_rows(val__acc1=rising_value, test__acc1=rising_value)
    rows[0].units = {"val/acc1": "frac", "test/acc1": "pct"}
    (one,) = judge_rows(tmp_path, rows)
    assert one.code == "TD-K005" and one.title == "acc1 is in two units: frac and pct"
    rows[0].units = {"val/acc1": "frac", "test/acc1": "frac"}
    assert judge_rows(tmp_path / "well", rows) == []


def test_a_summary_names_the_metrics_that_nobody_fed(tmp_path: Path) -> None:
    """Also of a program that runs without `tdbg run`: seen, an update that was called nowhere was logged as 0."""
    from tdbg.metrics.step_logger.step_metrics_logger import StepMetricsLogger

    with StepMetricsLogger(folder=tmp_path, rank=0, console=False) as log:
        for epoch, values in enumerate([{"loss": 1.0, "acc1": 0.5}, {"loss": 0.5}]):
            log.tracker.update_val_metrics(values, 4)
            log.tracker.finalize_val_phase("val", epoch, 10 * epoch + 10)
            log.log_validation_summary()
    (one,) = evaluate_metrics(summarize_run(find_rows_files(str(tmp_path)))[0])[0]
    assert (one.code, one.title) == ("TD-K003", "val was finalised with count 0 at step 20: val/acc1")
    assert one.evidence == ["step 20, rank 0, val: val/acc1"]


def test_ranks_are_told_apart(tmp_path: Path) -> None:
    well, ill = make_epoch_rows(5, val__loss=falling_value), make_epoch_rows(5, val__loss=falling_value)
    ill.append(Row(1.0, 12, 5, "val", values={"val/loss": 0.1}))
    (one,) = judge_rows(tmp_path, well, ill)
    assert (one.code, one.rank) == ("TD-K007", 1)


def test_a_constant_on_one_rank_alone_is_not_told(tmp_path: Path) -> None:
    """Each rank has its own data: what changes anywhere is fed."""
    assert judge_rows(tmp_path, make_epoch_rows(val__acc1=rising_value), make_epoch_rows(val__acc1=lambda e: 0.0)) == []


def test_a_resumed_run_goes_back_rightly(tmp_path: Path) -> None:
    path = tmp_path / FILE
    for start in (0, 3):  # the process was killed in epoch 6, and went on from the checkpoint of epoch 3
        from tdbg.metrics.sinks import jsonl

        jsonl._begun.clear()  # another process
        file = RowFile(lambda: path, on_trouble=pytest.fail)
        if start:
            file.record_resumption(300, "tracker")
        for row in make_epoch_rows(6 if not start else 12, val__loss=falling_value)[start:]:
            assert file.write_row(row)
        file.close()
    found, _ = evaluate_metrics(summarize_run(find_rows_files(str(path)))[0])
    assert found == []


def run_sanity(words: list[str], **options: Any) -> int:
    return sanity.check_metrics(sanity.SanityArgs(paths=words, **options))


def test_the_command(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    judge_rows(tmp_path, CASES["a constant accuracy"][1]())
    assert run_sanity([str(tmp_path)]) == 0
    out = capsys.readouterr().out
    assert out.startswith("TD-K001 warning: train/acc1_genus was 0 all 12 times, rank 0\n") and "\n    try: " in out
    assert run_sanity([str(tmp_path)], fail_on="warning") == 1 and run_sanity([str(tmp_path)], fail_on="error") == 0
    capsys.readouterr()
    assert run_sanity([str(tmp_path)], json=True) == 0
    document = json.loads(capsys.readouterr().out)
    assert document["kind"] == "metrics-sanity" and document["data"]["findings"][0]["code"] == "TD-K001"
    with pytest.raises(TdbgError, match="--fail-on cannot be 'loud'"):
        run_sanity([str(tmp_path)], fail_on="loud")


def test_the_command_on_a_file_that_a_kill_tore(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    judge_rows(tmp_path, make_epoch_rows(val__loss=falling_value))
    path = tmp_path / "rank0000" / FILE
    path.write_bytes(path.read_bytes()[:-20])
    assert run_sanity([str(path)]) == 0
    said = capsys.readouterr()
    first, second, *missing = said.out.splitlines()
    assert (first, second) == ("no problem found in 11 rows", "not checked, because these rows are missing:")
    assert [line.split()[0] for line in missing] == ["TD-K002", "TD-K005", "TD-K009", "TD-K010", "TD-K012"]
    assert "1 line skipped" in said.err


def test_explain_knows_them(capsys: pytest.CaptureFixture[str]) -> None:
    from tdbg.cli.explain import describe_rule
    from tdbg.core.rule_base import RULE_CATALOG

    for code in RULES.names():
        page = describe_rule(RULE_CATALOG.find(code.lower().replace("td-", "")))
        assert page["code"] == code and "What to do:" in page["page"] and "Thresholds:" in page["page"]


@pytest.mark.parametrize("source", ["tracker", "text"])
def test_what_is_read_from_text_is_a_note_and_no_more(tmp_path: Path, source: str) -> None:
    rows = make_epoch_rows(source=source, val_acc=lambda e: 0.07, train_loss=falling_value)
    (finding,) = [one for one in judge_rows(tmp_path, rows) if one.code == "TD-K012"]
    assert finding.severity == ("info" if source == "text" else "warning")
    assert ("read from what the program printed" in finding.evidence[0]) == (source == "text")


@pytest.mark.parametrize(("first_epoch", "speaks"), [(1, True), (7, False)])
def test_a_score_that_began_late_is_compared_with_the_loss_since_then(
    tmp_path: Path, first_epoch: int, speaks: bool
) -> None:
    """A busy machine can miss the first printed scores; the loss of 2 / epoch halves before epoch 7, not after it."""
    rows = make_epoch_rows(train__loss=falling_value)
    scores = make_epoch_rows(val__acc1=lambda e: 0.07)
    rows += [row for row in scores if row.epoch is not None and row.epoch >= first_epoch]
    found = judge_rows(tmp_path, sorted(rows, key=lambda row: row.step))
    assert ("TD-K012" in [one.code for one in found]) == speaks


def test_other_rules_do_not_look_at_what_is_read_from_text(tmp_path: Path) -> None:
    """A constant, a NaN and a best of 0: each is told of what a tracker logs, and may be a misread word in a text."""
    faults = {"train_acc": lambda e: 0.0, "val_loss": lambda e: float("nan"), "best_loss": lambda e: 0.0}
    assert {one.code for one in judge_rows(tmp_path / "logged", make_epoch_rows(**faults))} >= {"TD-K001", "TD-K011"}
    assert judge_rows(tmp_path / "text", make_epoch_rows(source="text", **faults)) == []


def list_unarmed_codes(tmp_path: Path, rows: list[Row]) -> set[str]:
    judge_rows(tmp_path, rows)
    return {rule.code for rule, _ in list_unarmed(summarize_run(find_rows_files(str(tmp_path)))[0])}


def make_full_rows(count: int = 12) -> list[Row]:
    """Rows in which each rule finds what it judges, and nothing wrong."""
    rows = make_epoch_rows(
        count,
        val__acc=lambda epoch: rising_value(epoch) - 0.001,
        val__f1=rising_value,
        val__loss=falling_value,
        val__best_loss=falling_value,
        train__loss=falling_value,
    )
    plan = Row(1e9, 1, 0, "train", values={"schedule/planned_steps": 5000.0, "schedule/every_val": 100.0})
    return [plan, *rows]


def test_a_run_in_which_every_rule_is_armed_names_none(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert list_unarmed_codes(tmp_path, make_full_rows()) == set()
    assert run_sanity([str(tmp_path)]) == 0
    assert capsys.readouterr().out == "no problem found in 13 rows\n"


def test_a_run_in_which_none_is_armed_names_all(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    rows = [Row(1e9, 1, None, None, values={"core/x": 1.0}, source="wandb")]
    assert list_unarmed_codes(tmp_path, rows) == {rule.code for rule in RULES}
    assert run_sanity([str(tmp_path)], json=True) == 0
    told = json.loads(capsys.readouterr().out)["data"]["not_watched"]
    assert [one["codes"] for one in told] == [[rule.code] for rule in RULES] and all(one["reason"] for one in told)


@pytest.mark.parametrize(
    ("left_out", "codes"),
    [
        ("val/best_loss", {"TD-K002"}),
        ("schedule/planned_steps", {"TD-K009", "TD-K010"}),
        ("train/loss", {"TD-K012"}),
        ("val/acc", {"TD-K005", "TD-K012"}),
        ("val/f1", {"TD-K005"}),
    ],
)
@pytest.mark.parametrize("count", [10, 40])
def test_what_is_left_out_is_named(tmp_path: Path, left_out: str, codes: set[str], count: int) -> None:
    rows = make_full_rows(count)
    for row in rows:
        row.values.pop(left_out, None)
    assert list_unarmed_codes(tmp_path, rows) == codes
