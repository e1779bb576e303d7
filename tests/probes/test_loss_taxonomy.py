"""Taxonomy smoothing: a hierarchy worked out by hand, its distances and smoothing; each planted mistake is named."""

import math
from typing import Any

import pytest
import torch
from torch import Tensor

from tdbg.core.errors import TdbgError
from tdbg.probes.loss import taxonomy_distances, taxonomy_forward, taxonomy_hierarchy, taxonomy_matrix

pytestmark = pytest.mark.usefixtures("loss_flags")

# cats: lion 0, tiger 1; dogs: wolf 2, fox 3, all below carnivores; and an owl 4 below birds > owls
TREE = {
    "carnivores": None,
    "cats": "carnivores",
    "dogs": "carnivores",
    "lion": "cats",
    "tiger": "cats",
    "wolf": "dogs",
    "fox": "dogs",
    "birds": None,
    "owls": "birds",
    "owl": "owls",
}
NAMES = ["lion", "tiger", "wolf", "fox", "owl"]
# heights of the lowest common ancestor: species 0, family 1, order 2, none 3
HEIGHTS_CC = torch.tensor(
    [
        [0.0, 1.0, 2.0, 2.0, 3.0],
        [1.0, 0.0, 2.0, 2.0, 3.0],
        [2.0, 2.0, 0.0, 1.0, 3.0],
        [2.0, 2.0, 1.0, 0.0, 3.0],
        [3.0, 3.0, 3.0, 3.0, 0.0],
    ]
)


def make_smoothing(kept: float = 0.9) -> Tensor:
    """Mass by exp(-distance), the true class keeps its part."""
    near_CC = torch.exp(-HEIGHTS_CC).fill_diagonal_(0)
    return (1 - kept) * near_CC / near_CC.sum(1, keepdim=True) + kept * torch.eye(5)


def report_taxonomy(function: Any, *args: Any, **more: Any) -> Any:
    found = function(*args, always=True, **more)
    assert found is not None
    assert all(text for _, text in found.records()) and found.as_dict()["findings"] is not None
    return found


def list_codes(found: Any) -> list[str]:
    return [fault.code for fault in found.findings]


# the hierarchy


def test_a_hierarchy_by_name() -> None:
    found = report_taxonomy(taxonomy_hierarchy, TREE)
    assert (found.nodes, found.roots, found.leaves, found.depth) == (10, ["carnivores", "birds"], 5, 2)
    assert found.leaf_depths == {2: 5} and not found.findings
    assert found.metaclades == [
        {"root": "carnivores", "nodes": 7, "leaves": 4, "depth": 2},
        {"root": "birds", "nodes": 3, "leaves": 1, "depth": 2},
    ]


@pytest.mark.parametrize("kind", [list, torch.tensor])
def test_a_hierarchy_by_number(kind: Any) -> None:
    found = report_taxonomy(taxonomy_hierarchy, kind([-1, 0, 0, 1, -1]), names=["a", "b", "c", "d", "e"])
    assert found.roots == ["a", "e"] and found.depth == 2 and found.leaf_depths == {0: 1, 1: 1, 2: 1}
    assert found.metaclades[0] == {"root": "a", "nodes": 4, "leaves": 2, "depth": 2} and not found.findings


def test_a_long_chain_is_no_recursion() -> None:
    found = report_taxonomy(taxonomy_hierarchy, torch.arange(20_000) - 1)
    assert found.depth == 19_999 and found.metaclades[0]["nodes"] == 20_000


def test_an_orphan() -> None:
    found = report_taxonomy(taxonomy_hierarchy, {**TREE, "lynx": "felines", "bobcat": "lynx"})
    assert list_codes(found) == ["TD-L010"] and found.orphans == ["lynx (parent felines)"]
    assert found.nodes == 12 and sum(tree["nodes"] for tree in found.metaclades) == 10
    assert list_codes(report_taxonomy(taxonomy_hierarchy, [-1, 0, 7])) == ["TD-L010"]


def test_a_cycle() -> None:
    """A genus with the name of its family, as happens with animals."""
    found = report_taxonomy(taxonomy_hierarchy, {**TREE, "cats": "dogs", "dogs": "cats"})
    assert list_codes(found) == ["TD-L010"] and sorted(found.cycles[0]) == ["cats", "dogs"] and len(found.cycles) == 1
    assert report_taxonomy(taxonomy_hierarchy, [0, 0]).cycles == [["0"]]
    assert len(report_taxonomy(taxonomy_hierarchy, [1, 2, 0, 4, 3, 0]).cycles) == 2


# distances


def test_distances_of_a_tree() -> None:
    found = report_taxonomy(taxonomy_distances, HEIGHTS_CC, names=NAMES, largest=3.0)
    assert (found.least, found.largest, found.levels, found.middles) == (1.0, 3.0, [1.0, 2.0, 3.0], 5)
    assert found.is_ultrametric and not found.findings
    assert found.mean == pytest.approx((2 * 1 + 4 * 2 + 4 * 3) / 10)


@pytest.mark.parametrize("dtype", [torch.float16, torch.float64, torch.int64])
def test_any_dtype_of_distances(dtype: torch.dtype) -> None:
    assert not report_taxonomy(taxonomy_distances, HEIGHTS_CC.to(dtype)).findings


def change_heights(*entries: tuple[int, int, float], both: bool = True) -> Tensor:
    found = HEIGHTS_CC.clone()
    for a, b, value in entries:
        found[a, b] = value
        if both:
            found[b, a] = value
    return found


@pytest.mark.parametrize(
    ("distances_CC", "what", "words"),
    [
        (change_heights((0, 1, 1.5), both=False), "symmetry", "lion to tiger and back differ by 0.5"),
        (change_heights((0, 1, 9.0)), "triangle", "d(lion, tiger) exceeds d(lion, wolf) + d(wolf, tiger) by 5"),
        (change_heights((0, 4, 2.0)), "ultrametric", "d(tiger, owl) exceeds max(d(tiger, lion), d(lion, owl)) by 1"),
        (change_heights((0, 1, -1.0)), "range", "2 negative"),
        (change_heights((2, 2, 1.0)), "range", "1 on the diagonal"),
        (change_heights((0, 1, math.nan)), "range", "2 not finite"),
    ],
)
def test_distances_that_are_none(distances_CC: Tensor, what: str, words: str) -> None:
    found = report_taxonomy(taxonomy_distances, distances_CC, names=NAMES)
    faults = {fault.what: fault for fault in found.findings}
    assert set(list_codes(found)) == {"TD-L009"} and what in faults
    assert any(words in line for line in faults[what].evidence), faults[what].evidence


def test_a_largest_distance() -> None:
    assert list_codes(report_taxonomy(taxonomy_distances, HEIGHTS_CC, largest=2.0)) == ["TD-L009"]


def test_path_lengths_of_leaves_at_unlike_depths() -> None:
    """b and c hang together two steps below a's root: no ultrametric, and no fault if one says so."""
    path_CC = torch.tensor([[0.0, 3.0, 3.0], [3.0, 0.0, 2.0], [3.0, 2.0, 0.0]])
    path_CC[0, 1] = path_CC[1, 0] = 4.0
    assert list_codes(report_taxonomy(taxonomy_distances, path_CC)) == ["TD-L009"]
    assert not report_taxonomy(taxonomy_distances, path_CC, ultrametric=False).findings


def test_counts_of_broken_triangles_match_a_plain_loop() -> None:
    generator = torch.Generator().manual_seed(0)
    d_CC = torch.rand(12, 12, generator=generator)
    d_CC = (d_CC + d_CC.T).fill_diagonal_(0)
    found = report_taxonomy(taxonomy_distances, d_CC)
    triples = [(a, b, c) for a in range(12) for b in range(12) for c in range(12) if len({a, b, c}) == 3]
    assert found.broken_triangles == sum(d_CC[a, c] > d_CC[a, b] + d_CC[b, c] + 1e-5 for a, b, c in triples)
    assert found.broken_ultrametric == sum(d_CC[a, c] > max(d_CC[a, b], d_CC[b, c]) + 1e-5 for a, b, c in triples)


def test_many_classes_are_sampled_and_said_so() -> None:
    points_C = torch.arange(600.0)
    found = report_taxonomy(taxonomy_distances, (points_C[:, None] - points_C[None]).abs(), ultrametric=False)
    assert found.middles == 256 and "256 middle classes" in found.records()[0][1] and not found.findings


# the smoothing matrix


def test_a_smoothing_matrix() -> None:
    matrix_CC = make_smoothing()
    found = report_taxonomy(taxonomy_matrix, matrix_CC, distances=HEIGHTS_CC, kept=0.9, names=NAMES)
    assert found.row_error < 1e-6 and found.kept_least == pytest.approx(0.9) and not found.findings
    total = math.exp(-1) + 2 * math.exp(-2) + math.exp(-3)
    assert found.rows[0]["to"]["1"] == pytest.approx(0.1 * math.exp(-1) / total)
    assert found.by_distance[0] == {"distance": 0.0, "mass": pytest.approx(0.9), "pairs": 5}


@pytest.mark.parametrize("matrix_CC", [torch.eye(5), 0.9 * torch.eye(5) + 0.1 / 5, make_smoothing(0.5)])
def test_other_sound_matrices(matrix_CC: Tensor) -> None:
    """No smoothing; uniform smoothing (Szegedy et al. 2016); a strong one."""
    assert not report_taxonomy(taxonomy_matrix, matrix_CC, distances=HEIGHTS_CC, kept=0.5).findings
    assert not report_taxonomy(taxonomy_matrix, matrix_CC.half(), distances=HEIGHTS_CC, kept=0.5).findings


def test_rows_that_are_not_normalised() -> None:
    """TD-L007: divided by the sums of the columns, or by nothing."""
    raw_CC = torch.exp(-HEIGHTS_CC)
    assert list_codes(report_taxonomy(taxonomy_matrix, raw_CC / raw_CC.sum(0, keepdim=True))) == ["TD-L007"]
    found = report_taxonomy(taxonomy_matrix, raw_CC)
    assert list_codes(found) == ["TD-L007"] and found.bad_rows == 5
    negative_CC = torch.eye(5) + 0.1 * torch.eye(5).roll(1, 1) - 0.1 * torch.eye(5).roll(2, 1)
    assert list_codes(report_taxonomy(taxonomy_matrix, negative_CC)) == ["TD-L007"]


def test_mass_that_leaves_the_true_class() -> None:
    """TD-L008: distances where likenesses are meant; rows in another order; too little kept; far before near."""
    far_CC = HEIGHTS_CC / HEIGHTS_CC.sum(1, keepdim=True)
    found = report_taxonomy(taxonomy_matrix, far_CC, names=NAMES)
    assert list_codes(found) == ["TD-L008"] and found.moved_rows == 5
    assert list_codes(report_taxonomy(taxonomy_matrix, make_smoothing().roll(1, 0))) == ["TD-L008"]
    found = report_taxonomy(taxonomy_matrix, make_smoothing(0.6), kept=0.9, names=NAMES)
    assert list_codes(found) == ["TD-L008"] and "row lion keeps 0.6 of 0.9" in found.findings[0].evidence[0]
    turned_CC = 0.1 * far_CC + 0.9 * torch.eye(5)
    found = report_taxonomy(taxonomy_matrix, turned_CC, distances=HEIGHTS_CC, kept=0.9)
    assert list_codes(found) == ["TD-L008"] and found.inversions == 4  # the owl's neighbours are all as far
    assert not report_taxonomy(taxonomy_matrix, turned_CC, kept=0.9).findings, "without distances nobody knows"


# a batch


def test_losses_with_and_without_smoothing() -> None:
    """Against torch's own cross entropy, with class indices and with its own label smoothing."""
    generator = torch.Generator().manual_seed(0)
    logits_BC, targets_B = torch.randn(6, 5, generator=generator), torch.tensor([0, 1, 2, 3, 4, 0])
    soft_BC = (0.8 * torch.eye(5) + 0.2 / 5)[targets_B]
    found = report_taxonomy(taxonomy_forward, logits_BC, targets_B, soft_BC, names=NAMES, samples=2)
    cross = torch.nn.functional.cross_entropy
    assert found.loss == pytest.approx(float(cross(logits_BC, targets_B, label_smoothing=0.2)), rel=1e-6)
    assert found.plain_loss == pytest.approx(float(cross(logits_BC, targets_B)), rel=1e-6)
    assert found.samples == 6 and len(found.rows) == 2 and found.kept == pytest.approx(0.84)
    assert found.rows[0]["plain_loss"] == pytest.approx(float(cross(logits_BC[:1], targets_B[:1])), rel=1e-6)
    assert "sample 0: lion keeps 0.84; to tiger 0.04" in found.records()[0][1] and not found.findings


def test_masked_samples_are_left_out() -> None:
    logits_BC, targets_B = torch.zeros(3, 5), torch.tensor([0, -100, 7])
    found = report_taxonomy(taxonomy_forward, logits_BC, targets_B, make_smoothing()[targets_B.clamp(0, 4)])
    assert (found.samples, found.left_out) == (1, 2) and found.plain_loss == pytest.approx(math.log(5))
    assert math.isnan(report_taxonomy(taxonomy_forward, logits_BC, targets_B - 200, make_smoothing()[:3]).loss)


def test_targets_of_the_wrong_rows() -> None:
    targets_B = torch.tensor([0, 1, 2, 3])
    logits_BC = torch.zeros(4, 5)
    assert list_codes(report_taxonomy(taxonomy_forward, logits_BC, targets_B, make_smoothing()[targets_B + 1])) == [
        "TD-L008"
    ]
    assert list_codes(report_taxonomy(taxonomy_forward, logits_BC, targets_B, 2 * make_smoothing()[targets_B])) == [
        "TD-L007"
    ]


@pytest.mark.parametrize(
    ("function", "args"),
    [
        (taxonomy_distances, (torch.zeros(2, 3),)),
        (taxonomy_matrix, (torch.zeros(3),)),
        (taxonomy_forward, (torch.zeros(2, 3), torch.zeros(2), torch.zeros(2, 4))),
        (taxonomy_hierarchy, ([0.5, 1.0],)),
    ],
)
def test_what_does_not_fit_is_refused(function: Any, args: Any) -> None:
    with pytest.raises(TdbgError) as caught:
        function(*args, always=True)
    assert caught.value.hint
