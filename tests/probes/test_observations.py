"""What probes see: every class says its line from whatever it was read from, and comes back as it was written."""

import itertools
import json
import math
import types
import typing
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from streams import Stream

from tdbg.core.events import Observation, decode, encode
from tdbg.core.observations import Observed, field_lines
from tdbg.core.observations.memory import MemoryGrowth
from tdbg.core.rundir import ProcessDir
from tdbg.debuggers.run_capture import Capture
from tdbg.probes import PROBES
from tdbg.rules import RULES

CLASSES = [kind for probe in (*PROBES, Capture) for kind in probe.observations]
ODD = (None, "nan", "text", True, -1, 3, 2.5, [], ["a"], [1.0], {}, {"a": 1}, [None], [{"a": [1]}])


def make_event(kind: type[Observed], values: dict[str, Any]) -> Observation:
    return Observation(probe=kind.PROBE, part=kind.PART, step=7, values=values)


def test_every_observation_is_of_the_probe_that_emits_it_and_has_a_part_of_its_own() -> None:
    for probe in PROBES:
        assert all(probe.name == kind.PROBE for kind in probe.observations)
        assert len({kind.PART for kind in probe.observations}) == len(probe.observations)


@pytest.mark.parametrize("kind", CLASSES, ids=lambda kind: kind.__name__)
@pytest.mark.parametrize("odd", ODD, ids=json.dumps)
def test_a_value_of_any_kind_leaves_an_observation_that_can_be_told(kind: type[Observed], odd: Any) -> None:
    names = list(field_lines([kind]))
    for wrong in ([name] for name in [*names, ""]):
        seen = kind.from_event(make_event(kind, dict.fromkeys(wrong, odd)))
        assert seen is not None and seen.step == 7
        assert isinstance(seen.text(), str) and seen.level in "DSIWE"
    seen = kind.from_event(make_event(kind, dict.fromkeys(names, odd)))
    assert seen is not None and isinstance(seen.text(), str)


@pytest.mark.parametrize("kind", CLASSES, ids=lambda kind: kind.__name__)
def test_an_observation_is_read_as_it_was_written(kind: type[Observed]) -> None:
    first = kind.from_event(make_event(kind, {}))
    assert first is not None
    again = kind.from_event(make_event(kind, json.loads(json.dumps(first.as_values()))))
    assert again == first


def put_number(kind: Any, number: float) -> Iterator[Any]:
    """Values of a type with the number in each place where a float may stand."""
    origin, inner = typing.get_origin(kind), typing.get_args(kind)
    if kind is float:
        yield number
    elif origin in (typing.Union, types.UnionType) and str in inner:  # `Number`: the rules read the word themselves
        return
    elif origin in (typing.Union, types.UnionType):
        yield from itertools.chain.from_iterable(put_number(one, number) for one in inner)
    elif origin is list:
        yield from ([one, one] for one in put_number(inner[0], number))
    elif origin is dict:
        yield from ({"a": one} for one in put_number(inner[1], number))
    elif typing.is_typeddict(kind):
        parts = typing.get_type_hints(kind)
        whole = {name: FILLED.get(typing.get_origin(part) or part) for name, part in parts.items()}
        yield from ({**whole, name: one} for name, part in parts.items() for one in put_number(part, number))


FILLED = {str: "a", int: 1, float: 1.0, list: [], dict: {}, bool: True}
FLOATS = [
    (kind, name, number)
    for kind in CLASSES
    for name in field_lines([kind])
    for number in (math.nan, math.inf, -math.inf)
    if any(True for _ in put_number(typing.get_type_hints(kind)[name], number))
]


def test_there_are_floats_to_try() -> None:
    assert len(FLOATS) >= 3 * 140
    assert {"float", "list"} <= {type(next(put_number(hint_of(kind, name), 1.0))).__name__ for kind, name, _ in FLOATS}


def hint_of(kind: type[Observed], name: str) -> Any:
    return typing.get_type_hints(kind)[name]


@pytest.mark.parametrize(("kind", "name", "number"), FLOATS, ids=lambda value: getattr(value, "__name__", str(value)))
def test_a_number_that_is_not_finite_comes_back(kind: type[Observed], name: str, number: float) -> None:
    """It is a word in the file, as JSON has none for it; the default in its place would be a made-up measurement."""
    for value in put_number(hint_of(kind, name), number):
        first = kind(**{name: value}, step=7)
        line = encode(Observation(probe=kind.PROBE, part=kind.PART, step=7, values=first.as_values()))
        event = decode(line)
        assert event is not None
        again = kind.from_event(event)
        assert again is not None and repr(getattr(again, name)) == repr(value)
        assert isinstance(again.text(), str) and again.level in "DSIWE"


def test_no_rule_fails_at_a_number_that_is_not_finite(tmp_path: Path) -> None:
    run = Stream(tmp_path / "run")
    process = ProcessDir(run.run, run.run.path / run.begin_rank())
    events = [
        Observation(probe=kind.PROBE, part=kind.PART, step=7, values={name: value})
        for kind, name, number in FLOATS
        for value in put_number(hint_of(kind, name), number)
    ]
    for rule in RULES:
        watching = rule()
        for told in events:
            list(watching.feed(process, told))


def test_another_part_or_probe_is_no_observation_of_this_class() -> None:
    assert MemoryGrowth.from_event(Observation(probe="memory", part="OOM")) is None
    assert MemoryGrowth.from_event(Observation(probe="device", part="CREEP")) is None


def test_what_does_not_fit_its_field_is_left_at_the_default() -> None:
    values = {"grown_mb": 4, "steps": True, "growing": ["a", 1], "piled_up": True, "unknown": 3}
    seen = MemoryGrowth.from_event(make_event(MemoryGrowth, values))
    assert seen == MemoryGrowth(step=7, grown_mb=4, piled_up=True)


def test_a_field_that_no_observation_has_is_an_error() -> None:
    with pytest.raises(TypeError, match="MemoryGrowth has no field 'grown'"):
        MemoryGrowth(grown=4)  # type: ignore[call-arg]


def test_lists_are_an_observations_own() -> None:
    first, second = MemoryGrowth(), MemoryGrowth()
    first.growing.append("Tensor")
    assert second.growing == []


LASTING = {"names": [], "count": 3, "looks": 12, "since": 1}
ROWS = {"lasting": dict.fromkeys(("none", "zero", "vanishing", "jumped", "stuck"), LASTING)}


@pytest.mark.parametrize("odd", [*ODD, ROWS], ids=json.dumps)
def test_no_rule_fails_at_what_a_foreign_run_directory_says(odd: Any, tmp_path: Path) -> None:
    run = Stream(tmp_path / "run")
    process = ProcessDir(run.run, run.run.path / run.begin_rank())
    events = [make_event(kind, dict.fromkeys(field_lines([kind]), odd)) for kind in CLASSES]
    if odd is ROWS:
        events = [make_event(kind, ROWS) for kind in CLASSES if "lasting" in field_lines([kind])]
    events += [
        Observation(probe="loss", values={"faults": faults})
        for faults in (odd, [{"code": odd}], [{"code": "TD-L001", "title": odd}])
    ]
    for rule in RULES:
        watching = rule()
        for told in events:
            list(watching.feed(process, told))
