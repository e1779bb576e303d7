"""Two runs side by side: status, verdict, and the settings that differ. Their curves come from each run's own address."""

from collections.abc import Iterator, Mapping
from typing import Any

import msgspec

from tdbg.core.rundir import RunDir
from tdbg.core.tables import to_json_value
from tdbg.launch.run_list import RunEntry, describe_run_entry
from tdbg.rules.view import read_info
from tdbg.viewer.routes import API, route
from tdbg.viewer.run_library import Served

COMPARED = ("command", "cwd", "settings", "env", "versions", "git", "host")
OF_A_RANK = ("torch", "device", "world_size")
PLACES = ("settings.run_dir", "settings.name")  # they always differ, and say nothing
MAX_DEPTH = 4


class CompareQuery(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    """The names of the two runs."""

    first: str
    second: str


class ComparedRun(msgspec.Struct, kw_only=True):
    """A run of the two, and its verdict in a sentence."""

    entry: RunEntry
    headline: str


class Difference(msgspec.Struct, kw_only=True):
    """A setting that is not the same. None: the run does not have it."""

    name: str
    first: Any
    second: Any


class Comparison(msgspec.Struct, kw_only=True):
    """Both runs, and what was set differently. same: how many settings are equal."""

    runs: list[ComparedRun]
    differences: list[Difference]
    same: int


@route("GET", f"{API}/compare")
def compare_runs(served: Served, query: CompareQuery) -> Comparison:
    """Two runs side by side: status, verdict, and the settings, versions and environment that differ."""
    both = [served.runs.open_run(name) for name in (query.first, query.second)]
    first, second = (dict(iter_settings(read_info(run))) for run in both)
    names = list(dict.fromkeys([*first, *second]))
    differing = [name for name in names if first.get(name) != second.get(name)]
    return Comparison(
        runs=[_describe_run(served, run) for run in both],
        differences=[Difference(name=name, first=first.get(name), second=second.get(name)) for name in differing],
        same=len(names) - len(differing),
    )


def _describe_run(served: Served, run: RunDir) -> ComparedRun:
    headline = str(served.drawings.get_drawing(run).report.get("headline", "")).removeprefix("verdict: ")
    return ComparedRun(entry=describe_run_entry(run), headline=headline)


def iter_settings(info: Mapping[str, Any]) -> Iterator[tuple[str, Any]]:
    """Name and value of each setting of a run.json: ``settings.level``, ``versions.python``."""
    for key in COMPARED:
        yield from _iter_values(key, info.get(key))
    ranks = info.get("ranks")
    if not isinstance(ranks, Mapping) or not ranks:
        return
    yield "ranks", len(ranks)
    first = next(iter(ranks.values()))
    for key in OF_A_RANK:
        yield from _iter_values(key, first.get(key) if isinstance(first, Mapping) else None)


def _iter_values(name: str, value: object, depth: int = 0) -> Iterator[tuple[str, Any]]:
    if isinstance(value, Mapping) and depth < MAX_DEPTH:
        for key, part in value.items():
            yield from _iter_values(f"{name}.{key}", part, depth + 1)
    elif value not in (None, "", [], {}) and name not in PLACES:
        yield name, to_json_value(value)
