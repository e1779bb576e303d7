"""What rules of all families share: the guard, the order, the catalog."""

import pytest

from tdbg.core.errors import TdbgError
from tdbg.core.rule_base import (
    RULE_CATALOG,
    Needs,
    RuleBase,
    Unarmed,
    evaluate_rules,
    following_codes,
    sort_causes_first,
)


class First(RuleBase[int]):
    """The page of the first."""

    code = "A"
    leads_to = ("B",)
    needs = Needs(fields=("x",))

    def check_armed(self, given: int) -> Unarmed | None:
        return Unarmed("it is too small", flag="X") if given < 3 else None


class Second(RuleBase[int]):
    code = "B"


class Third(RuleBase[int]):
    code = "C"
    causes = ("B",)


def test_a_rule_says_why_it_is_not_armed() -> None:
    rule = First()
    assert rule.name == "A" and rule.page() == "The page of the first."
    assert rule.is_armed(3) and rule.unarmed_reason(3) == ""
    assert not rule.is_armed(2) and rule.unarmed_reason(2) == "it is too small"


def test_a_rule_that_fails_is_reported_and_leaves_the_others_alone() -> None:
    failed = []

    def evaluate(number: int) -> list[float]:
        return [1 / number]

    rules = [("a", evaluate), ("b", lambda number: [number / 0]), ("c", lambda number: ()), ("d", evaluate)]
    assert evaluate_rules(rules, lambda name, error: failed.append((name, type(error))), 2) == [0.5, 0.5]
    assert failed == [("b", ZeroDivisionError)]


def test_what_follows_is_known_from_either_side_and_through_others() -> None:
    assert following_codes([First, Second, Third]) == {"A": {"B", "C"}, "B": {"C"}}


@pytest.mark.parametrize("given", ["ABC", "CBA", "BCA"])
def test_a_cause_comes_before_what_follows_however_grave_that_is(given: str) -> None:
    weights = {"A": 3, "B": 2, "C": 1, "D": 0, "E": 2}
    following = following_codes([First, Second, Third])

    def order(**more: object) -> str:
        found = sort_causes_first([*given, "D", "E"], str, lambda code: (weights[code],), following, **more)  # type: ignore[arg-type]
        return "".join(found)

    assert order() == "DABCE"
    assert order(is_cause=lambda code: code != "A") == "DBCEA"


def test_the_catalog_finds_rules_of_every_family_in_any_spelling() -> None:
    codes = [rule.code for rule in RULE_CATALOG]
    assert len(codes) == len(set(codes)) and {"TD-N001", "TD-K001", "TD-P101"} <= set(codes)
    assert [RULE_CATALOG.find(word).code for word in ("n001", "TDK001", "td-p101")] == ["TD-N001", "TD-K001", "TD-P101"]
    with pytest.raises(TdbgError, match="no finding has the code 'TD-N0'") as caught:
        RULE_CATALOG.find("TD-N0")
    assert "did you mean TD-N00" in caught.value.hint
    with pytest.raises(TdbgError) as caught:
        RULE_CATALOG.find("learning-rate spike")
    assert caught.value.hint == "try one of: TD-S001 (learning-rate spike)"
