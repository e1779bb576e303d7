"""Last values that are never averaged: learning rates, schedule, pipeline, GradNorm, task weights."""

from collections import deque
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from tdbg.metrics.keys import Key, KeyGrammarError, build_key
from tdbg.metrics.tracker.metric import HISTORY
from tdbg.metrics.tracker.metric_values import MetricValueError, as_float

STORES = {  # name of the store -> prefix of its keys
    "lr": "lr",
    "schedule": "schedule",
    "pipeline": "pipeline",
    "gradnorm": "gradnorm",
    "task_weights": "gradnorm",
}
Stamped = tuple[float | str, int | float | None, int | None]  # value, epoch, step


class LastValues:
    """The last values of one category, each with its epoch and step, and those before them."""

    def __init__(self, prefix: str, history: int = HISTORY) -> None:
        self.prefix = prefix
        self.size = history
        self.history: dict[Key, deque[Stamped]] = {}

    def update(self, values: Mapping[str, object], epoch: int | float | None, step: int | None) -> None:
        """Take new values: numbers, texts, and mappings of task to number. All of them are taken, or none.

        Raises MetricValueError for what is neither, KeyGrammarError for a name that the grammar does not have.
        """
        for key, value in list(self._parse_values(values)):
            self.history.setdefault(key, deque(maxlen=self.size)).append((value, epoch, step))

    def _parse_values(self, values: Mapping[str, object]) -> Iterator[tuple[Key, float | str]]:
        for name, value in values.items():
            if isinstance(value, Mapping):
                for task, inner in value.items():
                    yield Key(self.prefix, name, task), as_float(inner, f"{self.prefix}/{name}_{task}")
            elif isinstance(value, str):
                yield build_key(self.prefix, name if name.endswith("_str") else f"{name}_str"), value
            else:
                yield self._of_number(name), as_float(value, f"{self.prefix}/{name}")

    def _of_number(self, name: str) -> Key:
        key = build_key(self.prefix, name)
        if key.text:
            raise KeyGrammarError(f"{str(key)!r} is a number, but its suffix _str marks a text")
        return key

    def __iter__(self) -> Iterator[tuple[Key, Stamped]]:
        return ((key, values[-1]) for key, values in self.history.items())

    def get_last(self, name: str) -> float | str:
        """The last value under a name; a KeyError if there is none."""
        return self.history[build_key(self.prefix, name)][-1][0]

    def select_numbers(self) -> dict[Key, float]:
        """The last values that are numbers."""
        return {key: value for key, (value, _, _) in self if not isinstance(value, str)}

    def select_texts(self) -> dict[Key, str]:
        """The last values that are not."""
        return {key: value for key, (value, _, _) in self if isinstance(value, str)}

    def by_name(self) -> dict[str, Any]:
        """The last values by the names they came under; those by task as a mapping."""
        found: dict[str, Any] = {}
        for key, (value, _, _) in self:
            name = str(key).removeprefix(f"{self.prefix}/")
            if isinstance(value, str):
                found[name.removesuffix("_str")] = value
            elif key.task and isinstance(inner := found.setdefault(key.metric, {}), dict):
                inner[key.task] = value
            else:
                found[name] = value
        return found

    def state(self) -> dict[str, list[list[object]]]:
        """All of it as plain data."""
        return {str(key): [list(stamped) for stamped in values] for key, values in sorted(self.history.items())}


def lr_dict(source: object) -> dict[str, float]:
    """Learning rates by parameter group: of an optimizer, a scheduler, a mapping, a sequence or one number.

    A group is named by its ``name``, else ``group0``, ``group1``, ... Raises MetricValueError for anything else.
    """
    if isinstance(source, Mapping):
        return {str(name): as_float(value, f"lr/{name}") for name, value in source.items()}
    if hasattr(source, "get_last_lr"):  # a scheduler: what it has set, by the groups of its optimizer
        rates, source = source.get_last_lr(), getattr(source, "optimizer", None)
        names = _group_names(source) or [f"group{at}" for at in range(len(rates))]
        return _build_rate_dict(names, rates)
    if groups := getattr(source, "param_groups", None):
        return _build_rate_dict(_group_names(source), [group["lr"] for group in groups])
    if isinstance(source, Iterable) and not isinstance(source, str | bytes) and getattr(source, "shape", None) != ():
        rates = list(source)
        return _build_rate_dict([f"group{at}" for at in range(len(rates))], rates)
    if source is None or isinstance(source, str | bytes):
        raise MetricValueError("no learning rate was given", "pass the optimizer, its scheduler or a mapping")
    return _build_rate_dict(["group0"], [source])


def _group_names(optimizer: object) -> list[str]:
    """The names of an optimizer's groups, each one once."""
    found: list[str] = []
    for at, group in enumerate(getattr(optimizer, "param_groups", ())):
        name = str(group.get("name") or f"group{at}").replace(" ", "_").replace("/", ".")
        found.append(name if name not in found else f"{name}.{at}")
    return found


def _build_rate_dict(names: Iterable[str], rates: Iterable[object]) -> dict[str, float]:
    return {name: as_float(rate, f"lr/{name}") for name, rate in zip(names, rates, strict=True)}
