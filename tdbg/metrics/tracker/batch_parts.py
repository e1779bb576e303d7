"""Check the parts of a batch (tasks and subsets) that a program passes, with the samples of each."""

import difflib
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from tdbg.core.errors import TdbgError
from tdbg.core.tables import format_count
from tdbg.metrics.tracker.metric_values import MetricValueError, as_count

Values = Mapping[str, Any]


def check_parts(
    kind: str,
    values: Mapping[str, Values] | None,
    samples: Mapping[str, object] | None,
    batch: int,
    *,
    sized: bool = False,
) -> list[tuple[str, int, Values]]:
    """(name, samples, metric -> mean) of each part. batch: samples of the whole batch, which no part has more of.

    sized: the samples of each must be said; they are those of the batch where left out otherwise. Raises
    MetricValueError for what is not sorted by part and then by metric, TdbgError for names and numbers that do not fit.
    """
    return list(_iter_parts(kind, values, samples, batch, sized)) if values or samples else []


def _iter_parts(kind: str, values: Any, samples: Any, batch: int, sized: bool) -> Iterator[tuple[str, int, Values]]:
    values, samples = ({} if given is None else given for given in (values, samples))
    for name, given in ((f"{kind}s", values), (f"{kind}_samples", samples)):
        if not isinstance(given, Mapping):
            raise MetricValueError(f"{name} is {type(given).__name__}, not a mapping", _format_hint(kind))
    for name, number in samples.items():
        if name not in values and as_count(number, f"{kind} {name}"):  # a part without a sample may lack its values
            raise TdbgError(f"{kind}_samples has {name!r}, and {kind}s does not", _suggest_name(str(name), values))
    for name, inner in values.items():
        if not isinstance(inner, Mapping):
            raise MetricValueError(
                f"{kind} {name!r} is {type(inner).__name__}, not a mapping of metric to mean", _format_hint(kind)
            )
        if sized and name not in samples:
            raise TdbgError(f"{kind} {name!r} has no number of samples", f"pass {kind}_samples")
        number = as_count(samples.get(name, batch), f"{kind} {name}")
        if number > batch:
            raise TdbgError(
                f"{kind} {name!r} has {format_count(number, 'sample')}, and its batch has {batch}",
                "a part cannot be larger than its batch",
            )
        yield name, number, inner


def format_names(names: Iterable[object], most: int = 8) -> str:
    """Names as an error has them."""
    found = [repr(name) for name in names]
    return f"{', '.join(found[:most])}{' ...' if len(found) > most else ''}" if found else "nothing"


def _format_hint(kind: str) -> str:
    return f'write {kind}s={{"NAME": {{"loss": 0.3}}}}, {kind}_samples={{"NAME": 12}}'


def _suggest_name(name: str, known: Mapping[str, object]) -> str:
    near = difflib.get_close_matches(name, [str(one) for one in known], n=1)
    return f"did you mean {near[0]!r}?" if near else f"there are: {format_names(known)}"
