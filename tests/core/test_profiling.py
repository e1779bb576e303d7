"""Which steps a profiler records, worked out one by one and held against torch's own schedule."""

import pytest
from torch.profiler import ProfilerAction, schedule

from tdbg.core.config import check_setting, resolve_settings
from tdbg.core.errors import TdbgError
from tdbg.core.profiling import MAX_STEPS, Span, Windows, is_trace_name, parse_windows, trace_name

CYCLES = [(1, 1, 3, 1, 0), (0, 0, 1, 1, 0), (2, 1, 2, 3, 4), (1, 0, 2, 0, 0), (0, 2, 1, 0, 3)]


@pytest.mark.filterwarnings("ignore:Profiler won't be using warmup")
@pytest.mark.parametrize("cycle", CYCLES)
def test_cycles_are_those_of_torch(cycle: tuple[int, int, int, int, int]) -> None:
    wait, warmup, active, repeat, skip_first = cycle
    windows = Windows(*cycle)
    theirs = schedule(wait=wait, warmup=warmup, active=active, repeat=repeat, skip_first=skip_first)
    for step in range(1, 40):
        action, span = theirs(step - 1), windows.find_window(step)
        if action is ProfilerAction.NONE:
            assert span is None
        elif action is ProfilerAction.WARMUP:
            assert span is not None and step < span.first
        else:
            assert span is not None and span.first <= step <= span.last
            assert span.step_count == active and (step == span.last) == (action is ProfilerAction.RECORD_AND_SAVE)


@pytest.mark.parametrize("windows", [*(Windows(*cycle) for cycle in CYCLES), Windows(ranges=(Span(4, 6), Span(9, 9)))])
def test_the_next_window_is_the_first_that_is_not_over(windows: Windows) -> None:
    spans = sorted({span for step in range(1, 80) if (span := windows.find_window(step)) is not None})
    for step in range(1, 40):
        assert windows.find_next_window(step) == next((span for span in spans if span.last >= step), None)


def test_named_windows_have_a_warm_up() -> None:
    windows = Windows(warmup=2, ranges=parse_windows("9,4:6"))
    found = [windows.find_window(step) for step in range(1, 11)]
    first, second = Span(4, 6), Span(9, 9)
    assert found == [None, first, first, first, first, first, second, second, second, None]
    assert Windows(warmup=2, ranges=(Span(1, 1),)).find_window(1) == Span(1, 1)


@pytest.mark.parametrize("text", ["5:", "0:3", f"1:{MAX_STEPS + 1}", "1:5,4:8", "a", "7:3"])
def test_a_window_that_cannot_be(text: str) -> None:
    with pytest.raises(TdbgError, match="--window"):
        check_setting("profile_window", text, "--window")


@pytest.mark.parametrize(
    ("typed", "part"),
    [
        ({"profile_kind": "lite"}, "light"),
        ({"profile_kind": "lite"}, "--kind cannot be"),
        ({"profile_window": "0"}, "write 1:1"),
        ({"flags": ["PROFILER"], "steps": "4"}, "--window 4:6"),
        ({"flags": ["PROFILER"], "every": 2}, "--every selects steps for"),
        ({"profile_active": MAX_STEPS + 1}, str(MAX_STEPS)),
        ({"profile_active": 0}, "1"),
        ({"profile_window": "5:7", "profile_active": 2}, "leave one of them out"),
        ({"flags": ["PROFILER"], "level": "off"}, "leave out --level off"),
        ({"flags": ["PROFILER=often"]}, "3:5"),
    ],
)
def test_what_cannot_be_is_said_before_anything_starts(typed: dict[str, object], part: str) -> None:
    with pytest.raises(TdbgError) as caught:
        resolve_settings(typed, environ={})
    assert part in f"{caught.value}\n{caught.value.hint}"


def test_the_flag_can_name_the_window() -> None:
    settings, _ = resolve_settings({"flags": ["PROFILER=30:31"]}, environ={})
    assert Windows.from_settings(settings).ranges == (Span(30, 31),)


def test_a_trace_has_the_name_that_tensorboard_looks_for() -> None:
    name = trace_name("rank0003", 1700000000000000000)
    assert name == "rank0003.1700000000000000000.pt.trace.json"
    assert is_trace_name(name) and is_trace_name(f"{name}.gz") and not is_trace_name(f".{name}.part")
