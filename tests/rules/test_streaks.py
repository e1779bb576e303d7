"""Looks in a row, where a look may hold only the modules whose turn it is."""

import pytest

from tdbg.core.events import Observation
from tdbg.core.observations.forward import ModuleOutputs
from tdbg.rules._streaks import Streaks

TURNS = {1: ["first", "a", "2"], 2: ["first", "b"]}


def make_observation(
    step: int, turn: int, dead: list[str], *, probe: str = "forward", named: bool = False
) -> Observation:
    values = {"turn": turn, "turns": 2, "zero_share": [0.0, 1.0], "dead": dead, "unreached": dead}
    return Observation(probe=probe, step=step, text="-", values=values | ({"modules": TURNS[turn]} if named else {}))


def play_looks(*dead: list[str]) -> Streaks:
    """Looks at steps 1, 2, ..., each in its turn."""
    streaks = Streaks()
    for step, found in enumerate(dead, 1):
        seen = ModuleOutputs.from_event(make_observation(step, 2 - step % 2, found, named=step <= 2))
        assert seen is not None
        streaks.add_sample(seen, found)
    return streaks


def test_a_look_in_which_a_module_has_no_turn_says_nothing_of_it():
    streaks = play_looks(["a"], [], ["a"], ["b"], ["a"])
    assert streaks.looks == {"a": 3, "b": 1}
    assert streaks.since == {"a": 1, "b": 4}
    assert streaks.find_lasting(3, ["a", "b"]) == ["a"]


def test_a_module_that_is_in_every_look_counts_in_every_look():
    assert play_looks(["first"], ["first"], ["first"]).looks == {"first": 3}


def test_a_look_of_its_own_without_it_ends_the_row():
    streaks = play_looks(["a", "first"], ["first"], [], ["b"], ["a"], ["first"])
    assert streaks.looks == {"a": 1, "first": 1}
    assert (streaks.since["a"], streaks.since["first"]) == (5, 6)


@pytest.mark.parametrize(("probe", "code"), [("forward", "TD-N005"), ("backward", "TD-G005")])
@pytest.mark.parametrize("healthy", [False, True])
def test_the_rules_count_own_turns(one_rank, probe, code, healthy):
    run, rank = one_rank
    run.emit_steps(rank, [2.0] * 30)
    for step in range(11, 23):
        dead = ["a"] if step % 2 and not (healthy and step in (15, 21)) else []
        run.emit_events(rank, make_observation(step, 2 - step % 2, dead, probe=probe, named=step <= 12))
    assert run.judge_codes() == ([] if healthy else [code])


@pytest.mark.parametrize("probe", ["forward", "backward"])
def test_a_module_named_by_a_number_is_quoted(one_rank, probe):
    run, rank = one_rank
    run.emit_steps(rank, [2.0] * 30)
    for step in range(11, 21):
        run.emit_events(
            rank, make_observation(step, 2 - step % 2, ["2"] if step % 2 else [], probe=probe, named=step <= 12)
        )
    (finding,) = run.judge_stream().findings
    assert 'module "2"' in finding.title and finding.module == "2"
