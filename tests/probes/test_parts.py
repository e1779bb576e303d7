"""Budget, late reads, patches and tensor helpers, each against a known answer."""

import math
from dataclasses import dataclass

import pytest
import torch

from tdbg.core.events import Step
from tdbg.core.flags import FLAGS
from tdbg.probes import PROBES
from tdbg.probes.catalog import CATALOG
from tdbg.runtime.baseline import Alternation
from tdbg.runtime.budget import Budget
from tdbg.runtime.deferred_reads import LateReads
from tdbg.runtime.patches import Patches
from tdbg.runtime.tensors import find_bad_values, first_bad, iter_tensors, name_argument


def test_the_budget_allows_what_fits_and_nothing_more() -> None:
    budget = Budget(1.0, now=0.0)
    budget.record_cost("full", 0.004)
    assert not budget.allows(("full",), now=0.3)
    assert budget.allows(("full",), now=0.5)
    budget.charge("x", 0.004)
    assert not budget.allows(("full",), now=0.7)
    assert budget.allows(("full",), now=0.9)


def test_a_simulated_run_stays_within_a_tenth_of_its_budget() -> None:
    for share, work in ((1.0, 0.0009), (0.3, 0.0009), (1.0, 0.02)):
        budget, now = Budget(share, now=0.0), 0.0
        budget.record_cost("full", work)
        for _ in range(2000):
            now += 0.02
            if budget.allows(("full",), now):
                budget.charge("full", work)
                now += work
        spent_pct = 100 * budget.own_s / now
        assert 0.8 * share <= spent_pct <= 1.1 * share


def test_the_stride_of_ranks_is_a_power_of_two() -> None:
    budget = Budget(1.0, now=0.0)
    budget.record_cost("full", 0.001)
    assert budget.compute_stride("full", step_s=0.2) == 1
    assert budget.compute_stride("full", step_s=0.04) == 4
    assert budget.compute_stride("full", step_s=0.03) == 4


def test_late_values_reach_those_who_asked_one_step_later() -> None:
    late = LateReads()
    got: list[tuple[list[float], Step | None]] = []
    late.request_read(torch.tensor([1.0, 2.0]), lambda values, record: got.append((values, record)))
    late.request_read(torch.tensor([3.0]), lambda values, record: got.append((values, record)))
    assert late.waiting
    late.start_copy()
    assert not late.waiting and got == []
    record = Step(step=4)
    late.deliver_values(record)
    assert got == [([1.0, 2.0], record), ([3.0], record)]
    late.deliver_values(record)
    assert len(got) == 2


def test_patches_restore_only_what_is_still_theirs() -> None:
    class Owner:
        def return_one(self) -> int:
            return 1

        def return_two(self) -> int:
            return 2

    one, two = Owner.return_one, Owner.return_two
    patches = Patches()
    patches.wrap_attribute(Owner, "return_one", lambda original: lambda self: original(self) + 10)
    patches.wrap_attribute(Owner, "return_two", lambda original: lambda self: original(self) + 10)
    patches.wrap_attribute(Owner, "absent", lambda original: original)
    assert (Owner().return_one(), Owner().return_two(), len(patches)) == (11, 12, 2)
    later = lambda self: 99  # noqa: E731 - somebody else patched on top
    Owner.return_two = later  # type: ignore[method-assign]
    patches.restore()
    assert Owner.return_one is one
    assert Owner.return_two is later and two is not later


def test_walk_finds_tensors_in_the_structures_of_real_batches() -> None:
    @dataclass
    class Out:
        loss: torch.Tensor
        parts: list[torch.Tensor]

    one, two, three = torch.ones(1), torch.ones(2), torch.ones(3)
    found = dict(iter_tensors({"a": (one, "text"), "out": Out(two, [three])}))
    assert found.keys() == {"a.0", "out.loss", "out.parts.0"}
    assert found["out.parts.0"] is three
    assert list(iter_tensors([[[[[[[[one]]]]]]]])) == [], "bounded in depth"


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16, torch.float64, torch.float8_e5m2])
def test_look_counts_exactly(dtype: torch.dtype) -> None:
    values = torch.tensor([1.0, math.nan, math.inf, -math.inf, 0.0]).to(dtype)
    bad = find_bad_values(values)
    assert bad is not None
    assert (bad.kind, bad.count, bad.numel, bad.only_minus_inf) == ("nan+inf", 3, 5, False)
    assert find_bad_values(torch.tensor([1.0, 60000.0]).to(torch.float32)) is None


def test_look_knows_masks_integers_and_empty_tensors() -> None:
    mask = find_bad_values(torch.tensor([0.0, -math.inf]))
    assert mask is not None and mask.only_minus_inf
    assert find_bad_values(torch.tensor([1, 2])) is None
    assert find_bad_values(torch.empty(0)) is None
    assert find_bad_values(torch.empty(3, device="meta")) is None
    complex_bad = find_bad_values(torch.tensor([complex(math.nan, 0.0)]))
    assert complex_bad is not None and complex_bad.kind == "nan"
    assert first_bad((torch.tensor([-math.inf]), torch.tensor([math.nan])))[0] == "1"  # type: ignore[index]


def test_the_interval_of_the_baseline_is_that_of_a_median() -> None:
    class Still:
        def is_main(self, optimizer: object) -> bool:
            return False

    alternation = Alternation(Still(), 5)  # type: ignore[arg-type]
    alternation.ratios = [1.0 + index / 100 for index in range(20)]
    found = alternation.build_result()
    assert (found.pairs, found.ratio) == (20, 1.095)
    assert found.low == 1.05 and found.high == 1.14  # order statistics 6 and 15 of 20: 95.9 %
    alternation.ratios = [1.0, 1.1]
    assert alternation.build_result().low is None


def test_the_default_level_loads_the_probes_it_has_and_no_others() -> None:
    wanted = {probe for probe in PROBES if "basic" in probe.levels}
    assert set(CATALOG.select_probes("basic", {})) == wanted
    assert not PROBES.broken


@pytest.mark.parametrize("flag", [flag.name for flag in FLAGS if flag.probe])
def test_a_flag_wakes_its_probe_from_the_file_of_its_name(flag: str) -> None:
    (probe,) = set(CATALOG.select_probes("basic", {flag: True})) - set(CATALOG.select_probes("basic", {}))
    assert probe.name == next(item.probe for item in FLAGS if item.name == flag)


def test_a_tensor_among_the_arguments_is_named_as_a_call_names_it() -> None:
    first, second, mask = torch.zeros(1), torch.zeros(1), torch.zeros(1)
    paths = [path for path, _ in iter_tensors(((first, {"ids": second}), {"mask": mask}))]
    assert list(map(name_argument, paths)) == ["0", "1.ids", "mask"]
