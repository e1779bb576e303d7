"""TD-G002..4, TD-S003..8, TD-A002..3: what the observations of gradients, optimizer, schedule and AMP mean."""

from typing import Any

import pytest

from tdbg.core.events import Cost, Observation, Plan, ProbeOff, Step, Switch

LASTING = {"names": ["head.weight", "head.bias"], "count": 2, "looks": 10, "since": 3, "norm": 2e-9}


def make_observation(probe: str, part: str = "", step: int = 20, **values: Any) -> Observation:
    return Observation(probe=probe, part=part, step=step, text="as seen", values=values)


BUILT = make_observation("schedule", "BUILT", 1, scheduler="StepLR", which=0, own_step=False, rates=[0.1])

FAULTS = {
    "TD-G002": make_observation(
        "gradient-report", lasting={"vanishing": LASTING}, largest=0.4, largest_name="out.weight"
    ),
    "TD-G003": make_observation("gradient-report", lasting={"none": LASTING}),
    "TD-G004": make_observation("gradient-report", lasting={"jumped": LASTING}, total=300.0),
    "TD-S003": make_observation("schedule", "ORDER", scheduler="StepLR", skipped_rate=0.1, updates=1),
    "TD-S004": make_observation("schedule", "IDLE", kind="never", scheduler="StepLR", epochs=3),
    "TD-S005": make_observation(
        "schedule", "PLAN", kind="epoch", scheduler="CosineAnnealingLR", planned=10, updates=12, rates=[0.1]
    ),
    "TD-S006": make_observation(
        "optimizer", "COVERAGE", forgotten=True, left_out=["a.w"], left_out_count=1, trainable=9
    ),
    "TD-S007": make_observation("optimizer", lasting={"stuck": {**LASTING, "dtype": "bfloat16", "lr": 1e-4}}),
    "TD-S008": make_observation("schedule", "HIGH", rates=[3, 0.1], optimizer="AdamW", above=1.0),
    "TD-A002": make_observation("amp", "SKIP", real="loss", loss="nan", scale=65536.0, streak=1),
    "TD-A003": make_observation(
        "amp", lost_looks=6, lost_since=2, zero_share=0.4, faint_share=0.5, scaler=False, elements=512
    ),
}


@pytest.mark.parametrize("code", FAULTS)
def test_each_is_told_once_with_its_step_and_rank(one_rank: Any, code: str) -> None:
    run, rank = one_rank
    run.emit_events(rank, FAULTS[code], FAULTS[code])
    (finding,) = run.judge_stream().findings
    assert finding.code == code and finding.title.endswith(", rank 0") and finding.severity == "warning"
    assert finding.first_step is not None and finding.evidence and finding.cause and finding.try_next


@pytest.mark.parametrize("code", FAULTS)
def test_a_second_rank_is_added_to_the_evidence_in_any_order(make_stream: Any, code: str) -> None:
    run = make_stream()
    ranks = [run.begin_rank(rank, world=2) for rank in (0, 1)]
    for rank in reversed(ranks):
        run.emit_events(rank, FAULTS[code])
    (finding,) = [finding for finding in run.judge_stream().findings if finding.code == code]
    assert any(line.startswith("also on rank") for line in finding.evidence)


NEARLY = [
    make_observation("gradient-report", lasting={"vanishing": {**LASTING, "count": 1}}, largest=0.4),
    make_observation("gradient-report", vanishing=["a"], vanishing_count=1, none=["b"], none_count=1, exploding=["c"]),
    make_observation("optimizer", "COVERAGE", forgotten=False, left_out=["a.w"], left_out_count=8, trainable=9),
    make_observation("optimizer", without_gradient=["a"], without_gradient_count=1, unmoved_share=0.9),
    make_observation("amp", lost_looks=5, lost_since=2, zero_share=0.4, faint_share=0.5, scaler=False),
    make_observation("amp", "SKIP", loss=2.0, scale=65536.0, streak=4),
    make_observation("schedule", "STEP", scheduler="StepLR", which=0, advanced=1),
    make_observation("another", lasting={"vanishing": LASTING, "none": LASTING}, real="loss", lost_looks=99),
]


@pytest.mark.parametrize("event", NEARLY, ids=str)
def test_nearly_is_not_enough(one_rank: Any, event: Observation) -> None:
    run, rank = one_rank
    run.emit_events(rank, event)
    assert run.judge_codes() == []


def test_what_the_titles_say(one_rank: Any) -> None:
    run, rank = one_rank
    run.emit_events(rank, *FAULTS.values())
    titles = {finding.code: finding.title for finding in run.judge_stream().findings}
    assert titles["TD-G002"] == "gradients vanish in 2 parameters (2e-09 at head.weight, 0.4 at out.weight), rank 0"
    assert titles["TD-G003"] == "2 parameters got no gradient in 10 sampled steps: head.weight, head.bias, rank 0"
    assert titles["TD-S008"] == "learning rate 3 with AdamW at step 20, rank 0"
    assert titles["TD-A003"].startswith("fp16 loses the gradient: 40 % of its elements are zero, 50 % below")
    assert titles["TD-A002"] == "GradScaler skipped step 20 at scale 65,536, but the loss itself is NaN, rank 0"


@pytest.mark.parametrize("loss", [0.0, 0.5])
def test_gradients_of_zeros_are_those_of_a_loss_of_zero(one_rank: Any, loss: float) -> None:
    run, rank = one_rank
    run.emit_steps(rank, [loss] * 12)
    run.emit_events(rank, make_observation("gradient-report", lasting={"zero": LASTING}))
    finding = next(one for one in run.judge_stream().findings if one.code == "TD-G003")
    assert finding.title.startswith("2 weight matrices got a gradient of zeros in 10 sampled steps: ")
    assert finding.cause.startswith("the loss is exactly 0" if loss == 0.0 else "dead units")


def test_both_flags_know_a_missing_gradient_and_it_is_told_once(one_rank: Any) -> None:
    run, rank = one_rank
    run.emit_events(
        rank,
        make_observation("optimizer", lasting={"none": LASTING}),
        make_observation("gradient-report", lasting={"none": LASTING}),
    )
    assert run.judge_codes() == ["TD-G003"]


@pytest.mark.parametrize(
    ("unused", "count", "more", "codes"),
    [
        (["head.bias", "head.weight"], 2, {}, ["TD-C008"]),
        (["head.weight"], 1, {}, ["TD-C008", "TD-G003"]),  # another lost its gradient on the way
        (["head.bias", "head.weight"], 9, {}, ["TD-C008", "TD-G003"]),
        (["head.bias", "head.weight"], 2, {"other": "Net"}, ["TD-C008", "TD-G003"]),  # and it knows why
    ],
)
def test_what_the_model_build_says_of_unused_parameters_is_said_once(
    one_rank: Any, unused: list[str], count: int, more: dict[str, str], codes: list[str]
) -> None:
    run, rank = one_rank
    run.emit_events(rank, make_observation("model-build", "UNUSED", 8, unused=unused, unused_count=count, updates=8))
    run.emit_events(rank, make_observation("gradient-report", lasting={"none": {**LASTING, **more}}))
    assert run.judge_codes() == codes


def emit_steps(run: Any, rank: str, count: int, epoch: int | None = None) -> None:
    for step in range(1, count + 1):
        run.emit_events(rank, Step(step=step, loss=2.0, lr=[0.1], epoch=epoch))


@pytest.mark.parametrize(
    ("count", "epoch", "events", "told"),
    [
        (40, None, [BUILT], True),
        (40, 1, [BUILT], True),
        (40, 0, [BUILT], False),  # in its first epoch it may have to wait
        (19, None, [BUILT], False),
        (40, None, [BUILT, make_observation("schedule", "STEP", which=0)], False),
        (40, None, [BUILT, make_observation("schedule", "STEP", which=1)], True),
        (40, None, [BUILT, make_observation("schedule", "RATE", rates=[0.2], before=[0.1])], False),
        (40, None, [BUILT, make_observation("schedule", "RATE", rates=[0.1])], True),
        (40, None, [BUILT, Switch(step=9, level="basic")], False),
        (40, None, [BUILT, ProbeOff(probe="schedule", error="x")], False),
        (40, None, [BUILT, Cost(step=30, level="basic", stayed=["rank-weights"])], False),  # it did not stay
        (40, None, [BUILT, Cost(step=30, level="basic", stayed=["schedule"])], True),
        (40, None, [BUILT, Cost(step=1, level="basic")], True),
    ],
)
def test_a_scheduler_that_never_stepped(
    one_rank: Any, count: int, epoch: int | None, events: list[Any], told: bool
) -> None:
    run, rank = one_rank
    run.emit_events(rank, *events)
    emit_steps(run, rank, count, epoch)
    run.end_process(rank, count)
    assert ("TD-S004" in run.judge_codes()) == told


def test_a_run_that_was_cut_off_may_have_been_about_to_step(one_rank: Any) -> None:
    run, rank = one_rank
    run.emit_events(rank, BUILT)
    emit_steps(run, rank, 40)
    run.end_process(rank, 40, reason="exception")
    assert "TD-S004" not in run.judge_codes(code=1)


@pytest.mark.parametrize(
    ("planned", "advanced", "count", "told"),
    [(100, 5, 100, True), (100, 11, 100, False), (100, 5, 60, False), (10, 1, 10, False), (100, 5, 500, False)],
)
def test_a_schedule_that_has_barely_begun(one_rank: Any, planned: int, advanced: int, count: int, told: bool) -> None:
    run, rank = one_rank
    run.emit_events(
        rank,
        make_observation("schedule", "STEP", scheduler="OneCycleLR", planned=planned, advanced=advanced, updates=count),
    )
    emit_steps(run, rank, count)
    run.end_process(rank, count)
    assert ("TD-S005" in run.judge_codes()) == told


def test_a_schedule_that_was_seen_only_at_first_has_gone_on(one_rank: Any) -> None:
    run, rank = one_rank
    run.emit_events(
        rank, make_observation("schedule", "STEP", scheduler="OneCycleLR", planned=100, advanced=5, updates=5)
    )
    emit_steps(run, rank, 100)
    run.end_process(rank, 100)
    assert "TD-S005" not in run.judge_codes()


@pytest.mark.parametrize(
    ("planned", "advanced", "told"), [(100, 3, True), (100, 2, False), (100, 9, False), (300, 3, False)]
)
def test_a_trainers_plan_tells_it_early(one_rank: Any, planned: int, advanced: int, told: bool) -> None:
    run, rank = one_rank
    run.emit_events(rank, Plan(steps=100, source="Trainer"))
    run.emit_events(
        rank,
        make_observation("schedule", "STEP", scheduler="OneCycleLR", planned=planned, advanced=advanced, updates=45),
    )
    assert ("TD-S005" in [finding.code for finding in run.list_live_findings()]) == told


@pytest.mark.parametrize(("first", "told"), [(0.0, "multiplies by 0"), (1e-12, "saturating")])
def test_a_gradient_of_exactly_zero_is_not_blamed_on_saturation_alone(one_rank: Any, first: float, told: str) -> None:
    run, rank = one_rank
    flow = {"first": first, "last": 0.2, "first_module": "enc.0", "last_module": "head", "vanishes": True}
    run.emit_events(rank, *(make_observation("backward", step=step, **flow) for step in range(1, 7)))
    (finding,) = run.judge_stream().findings
    assert finding.code == "TD-G005" and told in finding.cause
