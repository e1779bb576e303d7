"""Functions that the compiler must not see: whichever way this version of torch has for that."""

import functools

import pytest
import torch
from torch import Tensor
from torch._dynamo import convert_frame

from tdbg.core import frames as frames_of_tdbg
from tdbg.runtime import compiler
from tdbg.runtime.compiler import hide_from_compiler


def _break_seen(x_N: Tensor) -> Tensor:
    torch._dynamo.graph_break()
    return x_N + 1


def _break_hidden(x_N: Tensor) -> Tensor:
    torch._dynamo.graph_break()
    return x_N + 1


def _break_in_program(x_N: Tensor) -> Tensor:
    torch._dynamo.graph_break()
    return x_N + 1


def test_no_frame_is_made_of_a_hidden_function(monkeypatch: pytest.MonkeyPatch) -> None:
    """After a graph break inside of it a function runs by itself: there the compiler looks at it once more."""
    assert compiler.skip_code is not None, "torch offers it by another name"
    monkeypatch.setattr(frames_of_tdbg, "disguised", {_break_hidden.__code__})  # as if it were tdbg's
    for function in (_break_seen, hide_from_compiler(_break_hidden)):
        torch.compile(lambda x_N, function=function: function(x_N) * 2, backend="eager")(torch.ones(2))
    frames = {ref() for ref in convert_frame.input_codes.seen}
    assert _break_seen.__code__ in frames and _break_hidden.__code__ not in frames


def test_what_the_program_had_wrapped_is_compiled_as_ever() -> None:
    wrapper = functools.wraps(_break_in_program)(lambda x_N: _break_in_program(x_N))
    partly = functools.wraps(functools.partial(_break_in_program))(lambda x_N: _break_in_program(x_N))
    for function in (hide_from_compiler(wrapper), hide_from_compiler(partly)):
        torch.compile(lambda x_N, function=function: function(x_N) * 2, backend="eager")(torch.ones(2))
    assert _break_in_program.__code__ in {ref() for ref in convert_frame.input_codes.seen}
