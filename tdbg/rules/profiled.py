"""What the profiler recorded, of all ranks together, in a line."""

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from tdbg.core.tables import counted

if TYPE_CHECKING:
    from tdbg.rules.view import Looks, ProcessView


def together(said: "Sequence[tuple[ProcessView, Looks]]") -> str:
    """The last lines of several processes as one: what all recorded, the step's time on the first, what is missing."""
    done = [(process, looks.values) for process, looks in said if _number(looks.values, "bytes")]
    if len(said) < 2 or not done:
        return said[0][1].text if said else ""
    steps = sorted({int(_number(values, "steps")) for _, values in done})
    what = counted(steps[0], "step") if len(steps) == 1 else f"{steps[0]} to {counted(steps[-1], 'step')}"
    traces = sum(
        int(_number(values, "windows", 1)) for _, values in done
    )  # of one that could not tell its end the last
    size_mb = sum(_number(values, "bytes") for _, values in done) / 1e6
    first, values = done[0]
    on = f"each of {counted(len(done), 'rank')}" if len(done) > 1 else first.who
    text = f"profiled {what} on {on}, in {counted(traces, 'trace')}, {size_mb:.1f} MB"
    inside_ms, outside_ms = _number(values, "inside_ms"), _number(values, "outside_ms")
    if inside_ms and outside_ms:
        text += f"; on {first.who} a step took {inside_ms:.4g} ms in it and {outside_ms:.4g} ms outside"
    missing = [f"{process.who}: {looks.values['missing']}" for process, looks in said if looks.values.get("missing")]
    return f"{text}; {missing[0]}" if missing else text


def _number(values: Mapping[str, Any], name: str, otherwise: float = 0) -> float:
    found = values.get(name, otherwise)
    return found if isinstance(found, int | float) else otherwise
