"""What others rely on: commands, options, flags, codes, events, files of a run, names and signatures in Python.

``python -m tests.contract.surface`` prints what differs from ``surface.json``, which is never written again: what was
added since stands in ``additions.txt``, as ``surface path.to.the.key  # why``, and must stay as well.

``grown_surface.json`` holds the additions with all that is below them. It only grows: with ``--grow`` what was added since is
kept there, and nothing is where something of it is gone or has changed.
"""

import dataclasses
import inspect
import json
import sys
from collections.abc import Iterator
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any

import tdbg
import tdbg.api
from tdbg import cli
from tdbg.core import errors, events, rundir
from tdbg.core.flags import FLAGS, LEVELS, PRESETS
from tdbg.core.observations import Observed
from tdbg.debuggers import DEBUGGERS
from tdbg.debuggers.base import BaseDebugger
from tdbg.logs.formats import FORMATS, Format
from tdbg.metrics.rows.row import Row
from tdbg.metrics.sinks import SINKS
from tdbg.metrics.sinks.base import MetricSink, RunDescription
from tdbg.pages.export.exporter import ArchiveExporter, FileExporter
from tdbg.probes import PROBES, Probe
from tdbg.rules import RULES, ObservingRule, PerProcessRule, Rule
from tdbg.traces.rules import RULES as TRACE_RULES
from tdbg.traces.rules import Rule as TraceRule

KEPT = Path(__file__).parent / "surface.json"
GROWN = Path(__file__).parent / "grown_surface.json"
OVERRIDDEN = (  # what third parties derive from, and what they are given
    *(Probe, Observed, Rule, PerProcessRule, ObservingRule, TraceRule, BaseDebugger, Format),
    *(MetricSink, RunDescription, Row, FileExporter, ArchiveExporter),
)
RULE_GROUPS = (RULES.group, TRACE_RULES.group)  # the codes of the rules are "findings" and "advice"


def describe_surface() -> dict[str, Any]:
    """All of it, as a tree whose leaves are texts, numbers and lists."""
    return {
        "commands": {entry.name: _describe_parameters(cli.load_parser(entry)) for entry in cli.COMMANDS},
        "flags": {flag.name: _describe_flag(flag) for flag in FLAGS},
        "levels": list(LEVELS),
        "presets": {name: sorted(flags) for name, flags in PRESETS.items()},
        "exit_codes": {name: found.exit_code for name, found in _list_classes(errors) if issubclass(found, Exception)},
        "findings": {rule.code: rule.severity for rule in RULES},
        "advice": {rule.code: {"thresholds": rule.thresholds} for rule in TRACE_RULES},
        "events": {name: _describe_event(found) for name, found in events.EVENT_TYPES.items()},
        "observations": {probe.name: _key_by_name(probe.fields) for probe in PROBES},
        "files": {name: value for name, value in vars(rundir).items() if name.isupper() and isinstance(value, str)},
        "entry_points": {
            **{one.group: _key_by_name(_list_names(one)) for one in (PROBES, DEBUGGERS, FORMATS, SINKS)},
            **{group: {} for group in RULE_GROUPS},
        },
        "python": {name: _describe_value(getattr(tdbg, name)) for name in tdbg.API},
        "overridden": {f"{found.__module__}.{found.__name__}": _describe_members(found) for found in OVERRIDDEN},
    }


def _list_names(registry: Any) -> list[str]:
    return [one.name for one in registry]


def _key_by_name(found: Any) -> dict[str, str]:
    """Names as keys, so that one more is an addition and not another list."""
    return dict.fromkeys(sorted(found), "")


def _describe_parameters(command: Any) -> dict[str, Any]:
    if getattr(command, "commands", None):
        return {name: _describe_parameters(found) for name, found in command.commands.items()}
    found = {}
    for parameter in command.params:
        names = [*parameter.opts, *parameter.secondary_opts] if parameter.param_type_name == "option" else []
        about = {
            "many": parameter.multiple or parameter.nargs == -1,
            "flag": getattr(parameter, "is_flag", False),
            "default": _to_plain(parameter.default),
            "required": parameter.required,
        }
        found["/".join(sorted(names)) or parameter.metavar or parameter.name] = about
    return found


def _describe_flag(flag: Any) -> dict[str, Any]:
    return {
        "tag": flag.tag,
        "group": flag.group,
        "default": flag.default,
        "aliases": _key_by_name(flag.aliases),
        "thresholds": {found.name: found.default for found in flag.thresholds},
    }


def _list_classes(module: Any) -> list[tuple[str, type[Any]]]:
    return [
        (name, found)
        for name, found in vars(module).items()
        if inspect.isclass(found) and found.__module__ == module.__name__ and not name.startswith("_")
    ]


def _describe_event(found: Any) -> dict[str, Any]:
    fields = {one.name: _to_plain(getattr(found(), one.name)) for one in dataclasses.fields(found)}
    return {"class": found.__name__, "version": found.VERSION, "fields": fields}


def _describe_value(found: Any) -> Any:
    return _describe_members(found) if inspect.isclass(found) else _describe_signature(found)


def _describe_members(found: type[Any]) -> dict[str, Any]:
    told: dict[str, Any] = {}
    for name in dir(found):
        value = inspect.getattr_static(found, name)
        if (name.startswith("_") and name != "__init__") or (name == "__init__" and found.__init__ is object.__init__):
            continue
        function = value.__func__ if isinstance(value, classmethod | staticmethod) else value
        told[name] = _describe_signature(function) if inspect.isfunction(function) else type(value).__name__
    return told


def _describe_signature(function: Any) -> list[str]:
    """Each parameter by name, kind and default; what it is annotated with is free."""
    return [
        f"{one.kind.description} {one.name}{'' if one.default is one.empty else f' = {_to_plain(one.default)!r}'}"
        for one in inspect.signature(function).parameters.values()
    ]


def _to_plain(value: Any) -> Any:
    if isinstance(value, str | int | float | bool | None):
        return value
    if isinstance(value, tuple | list):
        return [_to_plain(one) for one in value]
    return value if value == {} else type(value).__name__


def list_differences() -> list[str]:
    """What differs from what was kept, and is no listed addition."""
    from tests.contract.questions import list_differences as compared

    then, now = json.loads(KEPT.read_text(encoding="utf-8")), json.loads(json.dumps(describe_surface()))
    _accept_many(then["commands"], now["commands"])
    return compared("surface", then, now)


def list_losses(now: dict[str, Any] | None = None) -> list[str]:
    """What is gone or has changed of all that was ever added. now: the surface; that of this tree if left out."""
    from tests.contract.questions import list_changes

    then = json.loads(GROWN.read_text(encoding="utf-8"))
    now = json.loads(json.dumps(describe_surface() if now is None else now))
    _accept_many(then["commands"], now["commands"])
    return [text for text in list_changes(then, now) if text[0] != "+"]


def list_missing_additions(now: dict[str, Any] | None = None) -> list[str]:
    """The paths in ``additions.txt`` that the surface does not have."""
    from tests.contract.questions import list_additions

    paths = set(_iter_paths(describe_surface() if now is None else now))
    return [path for path in list_additions("surface") if not any(fnmatchcase(one, path) for one in paths)]


def _iter_paths(found: dict[str, Any], above: str = "") -> Iterator[str]:
    """Every path in the tree."""
    for key, value in found.items():
        path = f"{above}.{key}".lstrip(".")
        yield path
        if isinstance(value, dict):
            yield from _iter_paths(value, path)


def grow_surface() -> None:
    """Keep what was added since; AssertionError where something is gone or has changed."""
    if GROWN.exists():
        assert list_losses() == []
    GROWN.write_text(json.dumps(describe_surface(), indent=1, sort_keys=True) + "\n", encoding="utf-8")


def _accept_many(then: dict[str, Any], now: dict[str, Any]) -> None:
    """What took one value and takes several serves all who gave it one: that is added, not changed."""
    for name, kept in then.items():
        if isinstance(kept, dict) and isinstance(now.get(name), dict):
            if kept.get("many") is False and now[name].get("many") is True:
                del kept["many"]
            _accept_many(kept, now[name])


if __name__ == "__main__":
    if not KEPT.exists():
        KEPT.write_text(json.dumps(describe_surface(), indent=1, sort_keys=True) + "\n", encoding="utf-8")
    if "--grow" in sys.argv[1:]:
        grow_surface()
    found = [*list_differences(), *list_losses(), *(f"- {path}" for path in list_missing_additions())]
    print(*found, sep="\n")
    sys.exit(bool(found))
