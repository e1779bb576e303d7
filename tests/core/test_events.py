"""Events: what is written is what is read, and a torn line is no event."""

import json
import math
from dataclasses import fields

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tdbg.core import events
from tdbg.core.events import EVENT_TYPES, Cost, NonFinite, Note, Observation, Params, Step, decode, encode


@pytest.mark.parametrize("cls", EVENT_TYPES.values(), ids=lambda cls: cls.TYPE)
def test_every_type_has_a_version_docs_and_a_round_trip(cls: type[events.Event]) -> None:
    assert cls.TYPE and cls.VERSION >= 1 and cls.__doc__
    assert all(item.metadata["doc"] for item in fields(cls))
    event = cls(t=12.5)
    line = encode(event)
    assert line.startswith(b'{"type":"%s","v":%d,"t":12.5' % (cls.TYPE.encode(), cls.VERSION))
    assert line.endswith(b"}\n") and line.count(b"\n") == 1
    assert decode(line) == event


numbers = st.floats() | st.none()


@given(st.integers(), numbers, numbers, st.lists(st.floats()), st.booleans())
def test_any_step_survives_the_round_trip(
    step: int, loss: float | None, norm: float | None, lr: list[float], skipped: bool
) -> None:
    line = encode(
        Step(t=1.0, step=step, loss=loss, grad_norm=norm, lr=[x for x in lr if math.isfinite(x)], skipped=skipped)
    )
    json.loads(line, parse_constant=lambda word: pytest.fail(f"{word} is no JSON"))
    back = decode(line)
    assert isinstance(back, Step)
    assert (back.step, back.skipped) == (step, skipped)
    for written, read in ((loss, back.loss), (norm, back.grad_norm)):
        value = events.as_float(read)
        assert value == written or (
            written is not None and math.isnan(written) and value is not None and math.isnan(value)
        )


@given(st.binary(max_size=200))
def test_no_bytes_make_the_reader_fall(line: bytes) -> None:
    decode(line)
    decode(b'{"type":"step"' + line)


def test_torn_foreign_and_newer_lines() -> None:
    line = encode(Step(t=1.0, step=3, loss=0.5))
    assert all(decode(line[:cut]) is None for cut in range(len(line) - 1))
    assert decode(b'{"type":"unheard-of","v":1,"t":1.0}\n') is None
    newer = line.replace(b'"v":1', b'"v":2').replace(b'"step":3', b'"step":3,"brand_new":[1]')
    assert decode(newer) == Step(t=1.0, step=3, loss=0.5)


def test_values_json_cannot_hold_are_tamed() -> None:
    event = NonFinite(t=1.0, last_good={"loss": math.nan, "x": object}, ring=[{"grad_norm": math.inf}])
    back = decode(encode(event))
    assert isinstance(back, NonFinite)
    assert back.last_good["loss"] == "nan" and "object" in back.last_good["x"]
    assert back.ring == [{"grad_norm": "inf"}]


def test_the_description_names_every_field() -> None:
    described = dict(events.describe())
    assert set(described) == set(EVENT_TYPES.values())
    assert {name for name, _, _ in described[Step]} == {item.name for item in fields(Step)}


SURROGATES = {
    "caf\udce9.py": "caf\ufffd.py",
    "\ud83d alone": "\ufffd alone",
    "\U0001f600, \udc00": "\U0001f600, \ufffd",
    "\\ud800": "\\ud800",
}


@pytest.mark.parametrize("text", SURROGATES)
def test_a_lone_surrogate_does_not_lose_the_line(text: str) -> None:
    """Python reads the name of a file that is no UTF-8 with lone surrogates in it, which JSON cannot carry."""
    whole = SURROGATES[text]
    assert decode(encode(Note(code="x", text=text))) == Note(code="x", text=whole)
    assert decode(encode(Params(names=[text], numel=[1]))) == Params(names=[whole], numel=[1])
    assert decode(encode(Observation(values={text: [text]}))) == Observation(values={whole: [whole]})


@pytest.mark.parametrize("stayed", [None, [], ["memory"]])
def test_a_list_that_may_be_unknown_is_told_from_an_empty_one(stayed: list[str] | None) -> None:
    assert decode(encode(Cost(stayed=stayed, inspected=[]))) == Cost(stayed=stayed)
    assert b"inspected" not in encode(Cost(stayed=stayed, inspected=[]))
