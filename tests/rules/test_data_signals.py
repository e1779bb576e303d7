"""TD-D010, TD-D011, TD-D013, TD-R008, TD-R009, TD-R011: what is concluded from ranges and checksums on record."""

from typing import Any

import pytest
from streams import Stream

from tdbg.core.events import Observation

RUNS = [2.0, 1.9, 1.8, 1.7, 1.6, 1.5]


def make_weights(step: int, *sums: str, **values: Any) -> Observation:
    parts = {"group": [0, 1], "wrapped": True, "module": 0, "names": [f"{one} [4]" for one in "abc"[: len(sums)]]}
    parts |= {"checksums": list(sums), "norms": [1.0] * len(sums), **values}
    return Observation(probe="rank-weights", part="WEIGHTS", step=step, text="", values=parts)


def make_batch(step: int, **values: Any) -> Observation:
    parts = {"group": [0, 1], "wrapped": True, "is_split": False, "names": ["0"], "checksums": ["x"], **values}
    return Observation(probe="rank-batches", part="BATCH", step=step, text="", values=parts)


def run_ranks(run: Stream, *events: list[Observation], world: int = 0) -> Stream:
    folders = [run.begin_rank(rank, world=world or len(events)) for rank in range(len(events))]
    for folder, found in zip(folders, events, strict=True):
        run.emit_steps(folder, RUNS)
        run.emit_events(folder, *found)
    for folder in folders:
        run.end_process(folder, len(RUNS))
    return run


def make_agreeing(*steps: int, **values: Any) -> list[Observation]:
    return [make_weights(step, f"a{step}", f"b{step}", **values) for step in steps]


def test_shards_that_two_ranks_hold_must_be_equal_from_the_first_look_on(make_stream: Any) -> None:
    one = [make_weights(step, f"a{step}", wrapped=False, hybrid=True) for step in (1, 2)]
    other = [make_weights(step, f"b{step}", wrapped=False, hybrid=True) for step in (1, 2)]
    (finding,) = run_ranks(make_stream(), one, other).judge_stream().findings
    assert finding.title.endswith("a differs between rank 0 and rank 1 from the first look on, after step 1")
    assert "fully_shard copies no weights" in finding.cause


@pytest.mark.parametrize(
    ("first", "cause"), [(1, "replicate() copies no weights"), (3, "that replicate() does not average")]
)
def test_what_replicate_keeps_on_each_rank_has_a_cause_of_its_own(make_stream: Any, first: int, cause: str) -> None:
    values = {"wrapped": False, "hybrid": True, "whole": True}
    found = [
        [*make_agreeing(*range(1, first), **values), *(make_weights(at, f"{rank}{at}", **values) for at in (3, 4))]
        for rank in "pq"
    ]
    (finding,) = run_ranks(make_stream(), *found).judge_stream().findings
    assert cause in finding.cause and "tensor" not in finding.cause


def test_replicas_that_drift_apart_are_named_with_the_steps(make_stream: Any) -> None:
    one = [*make_agreeing(1, 2), make_weights(3, "p", "b3"), make_weights(4, "q", "b4")]
    other = [*make_agreeing(1, 2), make_weights(3, "r", "b3"), make_weights(4, "s", "b4")]
    (finding,) = run_ranks(make_stream(), one, other).judge_stream().findings
    assert finding.code == "TD-R008" and finding.severity == "warning" and finding.grade == "from weights"
    assert finding.title == "replicas drift apart: a differs between rank 0 and rank 1 since step 3, equal until step 2"
    assert finding.first_step == 3 and "1 of 2 parameters differ" in finding.evidence[0]


@pytest.mark.parametrize(("rates", "named"), [((0.05, 0.01), True), ((0.05, 0.05), False)])
def test_learning_rates_that_differ_explain_replicas_that_do(make_stream: Any, rates: Any, named: bool) -> None:
    run = make_stream()
    folders = [run.begin_rank(rank, world=2) for rank in (0, 1)]
    for folder, rate, letter in zip(folders, rates, "pq", strict=True):
        run.emit_steps(folder, RUNS, lr=rate)
        run.emit_events(folder, make_weights(1, f"{letter}1", "b1"), make_weights(2, f"{letter}2", "b2"))
        run.end_process(folder, len(RUNS))
    (finding,) = run.judge_stream().findings
    said = "the ranks have different learning rates: 0.05 on rank 0, 0.01 on rank 1"
    assert finding.code == "TD-R008" and (finding.cause == said) == named


def test_the_odd_rank_stands_alone(make_stream: Any) -> None:
    group = {"group": [0, 1, 2]}
    usual = make_agreeing(1, 2, 3, **group)
    odd = [*make_agreeing(1, **group), make_weights(2, "p", "q", **group), make_weights(3, "r", "s", **group)]
    (finding,) = run_ranks(make_stream(), usual, odd, usual).judge_stream().findings
    assert "differ between ranks 0, 2 and rank 1 since step 2" in finding.title


def test_replicas_that_never_were_equal_are_named_under_a_wrapper(make_stream: Any) -> None:
    one, other = [make_weights(1, "p"), make_weights(2, "q")], [make_weights(1, "r"), make_weights(2, "s")]
    (finding,) = run_ranks(make_stream(), one, other).judge_stream().findings
    assert (
        "from the first look on, after step 1" in finding.title and "DistributedDataParallel was made" in finding.cause
    )


def test_names_are_kept_from_the_look_that_gave_them(make_stream: Any) -> None:
    one, other = (
        [make_weights(1, "p"), make_weights(2, "q", names=None)],
        [make_weights(1, "p"), make_weights(2, "r", names=None)],
    )
    for found in (one, other):
        del found[1].values["names"]
    assert "a differs" in run_ranks(make_stream(), one, other).judge_stream().findings[0].title


def make_part(step: int, part: int, one: str, *, wrapped: bool = True) -> Observation:
    """A look at one of three parts: its parameter has a name of its own."""
    return make_weights(step, one, names=[f"{'abc'[part]} [4]"], look_part=part, wrapped=wrapped)


@pytest.mark.parametrize("wrapped", [True, False])
def test_of_many_parameters_one_that_drifts_is_found_in_its_part(make_stream: Any, wrapped: bool) -> None:
    """Two checks of its part are needed, whatever those between say of the other parts."""
    found: list[list[Observation]] = []
    for rank in range(2):
        opening = [make_part(step, 0, f"o{step}", wrapped=wrapped) for step in range(1, 9)]
        later = [
            make_part(
                step, step // 4 % 3, f"{step}-{rank if step // 4 % 3 == 2 and step > 20 else ''}", wrapped=wrapped
            )
            for step in range(12, 50, 4)
        ]
        found.append([*opening, *later])
    (finding,) = run_ranks(make_stream(), *found).judge_stream().findings
    assert (
        finding.title == "replicas drift apart: c differs between rank 0 and rank 1 since step 32, equal until step 20"
    )


def test_all_parts_that_drift_are_found_at_the_second_look(make_stream: Any) -> None:
    found = [
        [*(make_part(step, 0, f"o{step}") for step in range(1, 9)), make_part(12, 1, rank), make_part(16, 2, rank)]
        for rank in "pq"
    ]
    (finding,) = run_ranks(make_stream(), *found).judge_stream().findings
    assert finding.title == "replicas drift apart: b differs between rank 0 and rank 1 since step 12 or before"
    assert "a rank does what others do not" in finding.cause


@pytest.mark.parametrize(("norms", "drifts"), [((1.0, 1.0009), False), ((1.0, 1.002), True), ((0.0, 1e-9), True)])
def test_what_a_mesh_replicates_may_differ_by_rounding(make_stream: Any, norms: Any, drifts: bool) -> None:
    values = {"wrapped": False, "replicated": True}
    found = [
        [*make_agreeing(1, **values), *(make_weights(step, f"{rank}", norms=[norm], **values) for step in (2, 3))]
        for rank, norm in enumerate(norms)
    ]
    findings = run_ranks(make_stream(), *found).judge_stream().findings
    assert [one.code for one in findings] == ["TD-R008"] * drifts
    assert all(one.cause.startswith("likely: with sequence parallelism") for one in findings)
    assert all("over the tensor-parallel group" in one.try_next for one in findings)


ALONE = {"wrapped": False}
DIFFER = (
    [make_weights(4, "p", "q", **ALONE), make_weights(5, "r", "s", **ALONE)],
    [
        make_weights(4, "t", "u", **ALONE),
        make_weights(5, "v", "w", **ALONE),
    ],
)


def test_without_a_wrapper_three_equal_looks_make_replicas(make_stream: Any) -> None:
    one, other = ([*make_agreeing(1, 2, 3, **ALONE), *differ] for differ in DIFFER)
    assert run_ranks(make_stream(), one, other).judge_codes() == ["TD-R008"]


def make_apart(rank: str, gradients: str = "g", head: str = "") -> list[Observation]:
    """Weights of a rank's own in three looks; gradients of the first parameter alone are equal unless told."""
    return [
        make_weights(step, f"{rank}{step}", f"h{rank}{step}", gradients=[f"{gradients}{step}", head], **ALONE)
        for step in (1, 2, 3)
    ]


def test_equal_gradients_of_weights_that_never_were_equal_make_replicas(make_stream: Any) -> None:
    (finding,) = run_ranks(make_stream(), make_apart("p"), make_apart("q")).judge_stream().findings
    assert (finding.code, finding.first_step) == ("TD-R008", 1)
    assert "a differs between rank 0 and rank 1 from the first look on" in finding.title, "b is each rank's own"
    assert "began with different weights" in finding.cause and "seed all ranks alike" in finding.try_next


HEALTHY: dict[str, tuple[list[Observation], ...]] = {
    "gradients of their own": (make_apart("p", "g"), make_apart("q", "r")),
    "gradients that never change": tuple(
        [make_weights(step, f"{rank}{step}", gradients=["0"], **ALONE) for step in (1, 2, 3, 4)] for rank in "pq"
    ),
    "gradients of a few values, most of them zero": tuple(
        [make_weights(step, f"{rank}{step}", gradients=[f"{step % 2:012}"], **ALONE) for step in range(1, 6)]
        for rank in "pq"
    ),
    "no gradients": tuple(
        [make_weights(step, f"{rank}{step}", gradients=[""], **ALONE) for step in (1, 2, 3, 4)] for rank in "pq"
    ),
    "equal gradients in two looks": tuple(
        [*make_apart(rank)[:2], *make_apart(rank, gradients=rank)[2:]] for rank in "pq"
    ),
    "equal": (make_agreeing(1, 2, 3), make_agreeing(1, 2, 3)),
    "actors without a wrapper": DIFFER,
    "equal once by chance": ([*make_agreeing(1, **ALONE), *DIFFER[0]], [*make_agreeing(1, **ALONE), *DIFFER[1]]),
    "equal while the rate is 0": tuple(
        [*(make_weights(step, "a", "b", **ALONE) for step in (1, 2, 3)), *differ] for differ in DIFFER
    ),
    "other shapes": ([make_weights(1, "p", names=["a [4]"])], [make_weights(1, "q", names=["a [5]"])]),
    "other groups": ([make_weights(1, "p", group=[0])], [make_weights(1, "q", group=[1])]),
    "steps that only one rank has on record": (
        [make_weights(1, "p"), make_weights(3, "p")],
        [make_weights(2, "q"), make_weights(4, "q")],
    ),
    "averaged between two looks": (
        [make_weights(1, "p"), *make_agreeing(2)],
        [make_weights(1, "q"), *make_agreeing(2)],
    ),
    "records without checksums": ([make_weights(1), make_weights(2)], [make_weights(1), make_weights(2)]),
}


@pytest.mark.parametrize("kind", HEALTHY)
def test_ranks_that_are_no_replicas_or_agree_are_no_finding(make_stream: Any, kind: str) -> None:
    assert run_ranks(make_stream(), *HEALTHY[kind]).judge_codes() == []


def test_a_restarted_attempt_is_not_compared_with_the_one_before(make_stream: Any) -> None:
    run = make_stream()
    for attempt, rank, found in ((0, 0, "p"), (1, 1, "q")):
        folder = run.begin_rank(rank, world=2, attempt=attempt)
        run.emit_steps(folder, RUNS)
        run.emit_events(folder, make_weights(1, found), make_weights(2, found))
        run.end_process(folder, len(RUNS))
    assert "TD-R008" not in run.judge_codes()


def make_same_batches(*steps: int, **values: Any) -> list[Observation]:
    return [make_batch(step, checksums=[f"x{step}"], **values) for step in steps]


def test_ranks_on_the_same_data_are_named(make_stream: Any) -> None:
    (finding,) = (
        run_ranks(make_stream(), make_same_batches(1, 2, 3), make_same_batches(1, 2, 3)).judge_stream().findings
    )
    assert (finding.code, finding.severity, finding.grade) == ("TD-R009", "warning", "local")
    assert finding.title == "ranks 0-1 train on the same data: 3 of 3 batches looked at were equal, from step 1 on"


def test_ranks_that_come_to_train_on_the_same_data_are_named(make_stream: Any) -> None:
    own = [[make_batch(step, checksums=[f"{rank}-{step}"]) for step in (1, 2, 3, 4)] for rank in (0, 1)]
    later = make_same_batches(104, 108, 112)
    (finding,) = run_ranks(make_stream(), own[0] + later, own[1] + later).judge_stream().findings
    assert finding.code == "TD-R009" and finding.severity == "warning" and finding.first_step == 104
    assert finding.title == "ranks 0-1 train on the same data: 3 of 3 batches looked at were equal, from step 104 on"


def test_under_fsdp_alone_the_same_data_is_a_note(make_stream: Any) -> None:
    """The ranks may hold parts of the sequence of one batch, over the group of all ranks."""
    batches = make_same_batches(1, 2, 3, sharded=True)
    (finding,) = run_ranks(make_stream(), batches, batches).judge_stream().findings
    assert (finding.code, finding.severity) == ("TD-R009", "info")
    assert finding.try_next.startswith("if each rank holds a part of the sequence, ignore this")


def test_an_input_that_becomes_equal_beside_one_that_differs_is_a_note(make_stream: Any) -> None:
    own = [
        [
            make_batch(
                step, names=["x", "noise"], checksums=[f"{rank}-{step}", f"n{step}" if step > 100 else f"{rank}{step}"]
            )
            for step in (1, 2, 3, 104, 108, 112)
        ]
        for rank in (0, 1)
    ]
    (finding,) = run_ranks(make_stream(), *own).judge_stream().findings
    assert finding.severity == "info" and "get the same noise, but other inputs differ" in finding.title


def test_ranks_that_are_equal_in_pairs_are_named(make_stream: Any) -> None:
    group = {"group": [0, 1, 2, 3]}
    own = [[make_batch(step, checksums=[f"{rank % 2}-{step}"], **group) for step in (1, 2, 3)] for rank in range(4)]
    (finding,) = run_ranks(make_stream(), *own).judge_stream().findings
    assert finding.code == "TD-R009" and finding.title.startswith("ranks 1, 3 train on the same data")


def test_ranks_that_become_equal_beside_others_that_always_kept_a_constant_input_are_named(make_stream: Any) -> None:
    def read_checksum(rank: int, step: int) -> str:
        return "1" if rank < 2 else f"s{step}" if step > 100 else f"{rank}-{step}"

    steps = (1, 2, 3, 104, 108, 112)
    own = [
        [make_batch(step, checksums=[read_checksum(rank, step)], group=[0, 1, 2, 3]) for step in steps]
        for rank in range(4)
    ]
    (finding,) = run_ranks(make_stream(), *own).judge_stream().findings
    assert finding.title.startswith("ranks 2-3 train on the same data: 3 of 3") and finding.first_step == 104


def test_one_equal_input_of_several_is_a_note(make_stream: Any) -> None:
    own = [
        [make_batch(step, names=["x", "noise"], checksums=[f"{rank}-{step}", f"n{step}"]) for step in (1, 2, 3)]
        for rank in (0, 1)
    ]
    (finding,) = run_ranks(make_stream(), *own).judge_stream().findings
    assert finding.severity == "info" and "get the same noise, but other inputs differ" in finding.title


DATA: dict[str, tuple[list[Observation], ...]] = {
    "own data": tuple([make_batch(step, checksums=[f"{rank}-{step}"]) for step in (1, 2, 3)] for rank in (0, 1)),
    "one batch over and over": ([make_batch(step) for step in (1, 2, 3)], [make_batch(step) for step in (1, 2, 3)]),
    "two looks": (make_same_batches(1, 2), make_same_batches(1, 2)),
    "equal twice by chance": (
        [*make_same_batches(1, 2), make_batch(3, checksums=["p"])],
        [*make_same_batches(1, 2), make_batch(3, checksums=["q"])],
    ),
    "equal twice, late": tuple(
        [make_batch(1, checksums=[f"{rank}-1"]), *make_same_batches(104, 108), make_batch(112, checksums=[f"{rank}-2"])]
        for rank in (0, 1)
    ),
    "a sharded model": (make_same_batches(1, 2, 3, is_split=True), make_same_batches(1, 2, 3, is_split=True)),
    "no wrapper": (make_same_batches(1, 2, 3, wrapped=False), make_same_batches(1, 2, 3, wrapped=False)),
    "other groups": (make_same_batches(1, 2, 3, group=[0]), make_same_batches(1, 2, 3, group=[1])),
    "a mask that two of four ranks keep": tuple(
        [
            make_batch(
                step,
                names=["x", "mask"],
                checksums=[f"{rank}-{step}", "1" if rank > 1 else f"m{rank}-{step}"],
                group=[0, 1, 2, 3],
            )
            for step in (1, 2, 3)
        ]
        for rank in range(4)
    ),
    "a constant mask beside own data": tuple(
        [make_batch(step, names=["x", "mask"], checksums=[f"{rank}-{step}", "1"]) for step in (1, 2, 3)]
        for rank in (0, 1)
    ),
}


@pytest.mark.parametrize("kind", DATA)
def test_ranks_that_may_share_their_data_are_no_finding(make_stream: Any, kind: str) -> None:
    assert run_ranks(make_stream(), *DATA[kind]).judge_codes() == []


def make_ranges(
    use: str, low: float, high: float, std: float, *, feed: int = 1, looks: int = 4, **values: Any
) -> Observation:
    middle = (low + high) / 2
    row = {"name": "0", "dtype": "float32", "looks": looks, "low": low, "high": high, "least_mean": middle}
    row |= {"most_mean": middle, "least_std": std * 0.9, "most_std": std}
    parts = {"dataset": "Images", "feed": feed, "use": use, "looks": looks, "loaded": [row], "given": [row], **values}
    return Observation(probe="data-splits", part="RANGES", step=5, text="", values=parts)


TRAINED, SCALED = make_ranges("training", -2.0, 2.0, 1.0), make_ranges("evaluation", 0.0, 255.0, 74.0)


@pytest.mark.parametrize("order", [[TRAINED, SCALED], [SCALED, TRAINED]])
def test_a_scale_of_evaluation_alone_is_named_in_whatever_order(one_rank: Any, order: list[Observation]) -> None:
    run, rank = one_rank
    run.emit_steps(rank, RUNS)
    run.emit_events(rank, *order)
    run.end_process(rank, len(RUNS))
    (finding,) = run.judge_stream().findings
    assert finding.code == "TD-D010" and "0 to 255 (deviation 74), in training -2 to 2 (deviation 1)" in finding.title


ALIKE: dict[str, list[Observation]] = {
    "a factor of 7": [TRAINED, make_ranges("evaluation", -14.0, 14.0, 7.0)],
    "one of two training sets is alike": [TRAINED, make_ranges("training", 0.0, 255.0, 70.0, feed=2), SCALED],
    "one batch of training": [make_ranges("training", -2.0, 2.0, 1.0, looks=1), SCALED],
    "no evaluation": [TRAINED],
    "the model gets what it is used to": [
        TRAINED,
        make_ranges("evaluation", 0.0, 255.0, 74.0, given=TRAINED.values["given"]),
    ],
    "nobody saw what the model gets": [TRAINED, make_ranges("evaluation", 0.0, 255.0, 74.0, given=[])],
    "constant": [make_ranges("training", 1.0, 1.0, 0.0), make_ranges("evaluation", 0.0, 0.0, 0.0)],
    "shifted by less than the spread": [TRAINED, make_ranges("evaluation", 3.0, 7.0, 1.0)],
    "not a number": [TRAINED, make_ranges("evaluation", 0.0, 255.0, float("nan"))],
}


@pytest.mark.parametrize("kind", ALIKE)
def test_ranges_that_may_differ_are_no_finding(one_rank: Any, kind: str) -> None:
    run, rank = one_rank
    run.emit_steps(rank, RUNS)
    run.emit_events(rank, *ALIKE[kind])
    run.end_process(rank, len(RUNS))
    assert "TD-D010" not in run.judge_codes()


def make_shared(samples: int = 64, found: int = 64, *, feed: int = 2, step: int = 5, **values: Any) -> Observation:
    parts = {"dataset": "Images", "trained": "Images", "feed": feed, "samples": samples, "shared": found}
    parts |= {"trained_samples": 100, "trained_length": 100, **values}
    return Observation(probe="data-splits", part="SHARED", step=step, text="", values=parts)


def judge_events(one: Any, *events: Observation) -> list[Any]:
    run, rank = one
    run.emit_steps(rank, RUNS)
    run.emit_events(rank, *events)
    run.end_process(rank, len(RUNS))
    found: list[Any] = run.judge_stream().findings
    return found


SHARED: dict[str, tuple[str, list[Observation]]] = {
    "most": ("warning", [make_shared(found=44)]),
    "most of what can be expected of training seen in part": ("warning", [make_shared(200, 14, trained_length=1000)]),
    "all": ("info", [make_shared()]),
    "as many as can be expected of training seen in part": ("info", [make_shared(200, 20, trained_length=1000)]),
    "by index": ("warning", [make_shared(0, 0, indices=64, shared_indices=40)]),
    "one dataset object": ("info", [make_shared(found=44, is_same=True)]),
    "a clean loader before": ("info", [make_shared(found=0, feed=3), make_shared(found=44)]),
    "a clean loader after": ("info", [make_shared(found=44), make_shared(found=0, feed=3)]),
}


@pytest.mark.parametrize("kind", SHARED)
def test_shared_samples_are_as_grave_as_they_are_certain(one_rank: Any, kind: str) -> None:
    severity, events = SHARED[kind]
    (finding,) = judge_events(one_rank, *events)
    assert (finding.code, finding.severity) == ("TD-D011", severity)


APART: dict[str, Observation] = {
    "none": make_shared(found=0),
    "half": make_shared(found=32),
    "too few to say": make_shared(12, 12),
    "fewer than can be expected": make_shared(200, 8, trained_length=1000),
    "subsets that share nothing": make_shared(indices=64, shared_indices=0),
    "nothing seen": make_shared(0, 0),
    "no field": Observation(probe="data-splits", part="SHARED", step=5, text="", values={}),
}


@pytest.mark.parametrize("kind", APART)
def test_splits_that_share_little_are_no_finding(one_rank: Any, kind: str) -> None:
    assert judge_events(one_rank, APART[kind]) == []


def test_the_order_of_labels_is_told_as_it_was_seen(one_rank: Any) -> None:
    values = {"dataset": "Images", "label": "1", "batches": 20, "samples": 640, "classes": 4, "is_sorted": True}
    (finding,) = judge_events(one_rank, Observation(probe="data-splits", part="ORDER", step=5, text="", values=values))
    assert (finding.code, finding.severity) == ("TD-D013", "warning")
    assert finding.title.endswith("20 batches in a row, 4 classes, sorted, rank 0")


def test_batches_with_fewer_rows_are_a_note_once_a_dataset(one_rank: Any) -> None:
    values = {"dataset": "Images", "collate": "keep_good", "batch": 8, "looked": 8, "count": 6, "fetched": 96}
    values |= {"held": 60, "shapes": ["0 float32[10, 3]"], "indices": [4, 2]}
    event = Observation(probe="dataloader", part="ROWS", step=5, text="", values=values)
    (finding,) = judge_events(one_rank, event, event)
    assert (finding.code, finding.severity) == (
        "TD-D015",
        "info",
    ) and "folded into others, by keep_good" in finding.cause
    assert (
        finding.title == "batches have fewer rows than samples fetched: 60 for 96 in 6 of 8 batches looked at, rank 0"
    )


@pytest.mark.parametrize(
    ("source", "has_init", "cause"),
    [("random", True, "worker_init_fn"), ("torch", False, "the dataset seeds"), ("dataset.rng", True, "copied into")],
)
def test_the_cause_of_equal_draws_follows_from_their_source(
    one_rank: Any, source: str, has_init: bool, cause: str
) -> None:
    values = {"dataset": "Images", "source": source, "workers": [0, 1, 3], "reported": 4, "has_init": has_init}
    (finding,) = judge_events(one_rank, Observation(probe="worker-states", part="SAME", step=5, text="", values=values))
    assert (finding.code, finding.severity) == ("TD-D012", "warning") and cause in finding.cause
    assert finding.title == f"workers 0, 1, 3 of Images draw the same random numbers from {source}, rank 0"


@pytest.mark.parametrize(
    ("seen", "named"),
    [
        (make_ranges("training", 0.0, 255.0, 74.0), True),
        (make_ranges("training", 0.0, 255.0, 74.0, looks=1), False),
        (make_ranges("training", 0.0, 255.0, 5.0), False),
        (make_ranges("training", -255.0, 255.0, 74.0), False),
        (make_ranges("training", 0.0, 300.0, 74.0), False),
        (make_ranges("training", 0.0, 1.0, 0.3), False),
        (make_ranges("evaluation", 0.0, 255.0, 74.0), False),
    ],
)
def test_inputs_with_the_values_of_bytes_are_a_note(one_rank: Any, seen: Observation, named: bool) -> None:
    run, rank = one_rank
    run.emit_steps(rank, RUNS)
    run.emit_events(rank, seen)
    run.end_process(rank, len(RUNS))
    found = [(one_rank.code, one_rank.severity) for one_rank in run.judge_stream().findings]
    assert found == ([("TD-D014", "info")] if named else [])


def make_drawn(*states: tuple[str, int, int]) -> Observation:
    values = {"dataset": "Images", "states": [list(state) for state in states]}
    return Observation(probe="worker-states", part="DRAWN", step=1, text="", values=values)


def make_own_batches(rank: int, **values: Any) -> list[Observation]:
    return [make_batch(step, checksums=[f"{rank}-{step}"], **values) for step in (1, 2, 3)]


SAME_DRAW, OWN_DRAW = ("torch", 1, 2), ("dataset.rng", 5, 6)


def test_ranks_that_draw_the_same_are_a_note(make_stream: Any) -> None:
    found = [[*make_own_batches(rank), make_drawn(SAME_DRAW, ("random", rank, rank + 7))] for rank in range(2)]
    (finding,) = run_ranks(make_stream(), *found).judge_stream().findings
    assert (finding.code, finding.severity, finding.rank, finding.first_step) == ("TD-R011", "info", 0, 1)
    assert finding.title == "ranks 0-1 draw the same random numbers from torch for their samples of Images"
    assert finding.cause.startswith("all ranks set the same seed")


def test_a_generator_of_the_dataset_is_told_as_such_and_the_other_rank_left_out(make_stream: Any) -> None:
    group = {"group": [0, 1, 2]}
    draws = [OWN_DRAW, ("dataset.rng", 5, 9), OWN_DRAW]
    found = [[*make_own_batches(rank, **group), make_drawn(draw)] for rank, draw in enumerate(draws)]
    (finding,) = run_ranks(make_stream(), *found).judge_stream().findings
    assert finding.title.startswith(
        "ranks 0, 2 draw the same random numbers from dataset.rng for their samples of Images"
    )
    assert finding.try_next == "add the rank to the seed of that generator"


NO_SHARED_DRAWS: dict[str, dict[str, Any]] = {
    "own seeds": {"draws": (("torch", 1, 2), ("torch", 3, 4))},
    "the same state, and other draws": {"draws": (("torch", 1, 2), ("torch", 1, 4))},
    "parts of one batch": {"is_split": True},
    "no wrapper": {"wrapped": False},
    "groups of one rank": {"group": [0]},
}


@pytest.mark.parametrize("kind", NO_SHARED_DRAWS)
def test_draws_that_may_be_alike_or_are_not_are_no_finding(make_stream: Any, kind: str) -> None:
    values = dict(NO_SHARED_DRAWS[kind])
    draws = values.pop("draws", (SAME_DRAW, SAME_DRAW))
    found = [[*make_own_batches(rank, **values), make_drawn(draw)] for rank, draw in enumerate(draws)]
    assert run_ranks(make_stream(), *found).judge_codes() == []


def test_the_same_draws_of_the_same_data_come_after_it(make_stream: Any) -> None:
    found = [[*make_same_batches(1, 2, 3), make_drawn(SAME_DRAW)] for _ in range(2)]
    assert run_ranks(make_stream(), *found).judge_codes() == ["TD-R009", "TD-R011"]
