"""What a run holds, written to a sink: step records, findings and the report, from its files alone."""

import importlib.util
from collections.abc import Iterator, Sequence
from typing import Any

from tdbg.core import run_files, sink_files
from tdbg.core.errors import TdbgError, suggest_name
from tdbg.core.guard import describe_error, guarded, undo_on_error
from tdbg.core.lazy_pattern import lazy_pattern
from tdbg.core.redaction import redact_argv, redact_flags, redact_text
from tdbg.core.registry import points_of
from tdbg.core.rundir import RunDir
from tdbg.core.tables import format_count
from tdbg.metrics.rows.row import Row
from tdbg.metrics.sinks import SINKS, MetricSink
from tdbg.metrics.sinks.base import RunDescription, SinkDisabled
from tdbg.rules.markdown_report import write_markdown
from tdbg.rules.verdict import Verdict
from tdbg.rules.view import read_info

SOURCES = ("tdbg", "metric")  # what the program logs elsewhere is there already
PREFIX = "tdbg/"
MAX_NAME = 60
_NAME = lazy_pattern(rf"[A-Za-z0-9_][A-Za-z0-9_.-]{{,{MAX_NAME - 1}}}")


def make_report(run: RunDir, verdict: Verdict, notes: Sequence[str] = ()) -> dict[str, Any]:
    """The report as sinks take it: headline, findings, markdown."""
    return {
        "headline": redact_text(verdict.format_headline()),
        "findings": [finding.as_dict() for finding in verdict.findings],
        "markdown": "\n".join(write_markdown(verdict, read_info(run), notes)),
    }


def find_sink(name: str) -> type[MetricSink]:
    """The sink that `--to` names. TdbgError: there is none, it takes no runs, or it or its package is not there."""
    is_own = name in SINKS
    if not is_own and is_sink_name(name):
        SINKS.load_third_party()
    if name not in SINKS or not is_sink_name(name):
        raise _describe_missing(name)
    found = SINKS[name]
    if not _takes_runs(found):
        raise TdbgError(
            f"--to {name}: this sink cannot receive runs", f"choose from: {', '.join(list_run_sink_names())}"
        )
    package = found.package
    if package and not _is_installed(package):
        raise TdbgError(
            f"--to {name}: the package {package} is not installed in tdbg's environment",
            f"install the extra: pip install 'tdbg[{package}]'" if is_own else f"install it: pip install {package}",
        )
    return found


def is_sink_name(name: str) -> bool:
    """True for what can be the name of a sink: it is part of file names in the run directory."""
    return _NAME.fullmatch(name) is not None


def list_run_sink_names() -> list[str]:
    """The sinks that `--to` takes, as far as they are loaded."""
    return [sink.name for sink in SINKS if _takes_runs(sink)]


def _takes_runs(sink: object) -> bool:
    return isinstance(sink, type) and issubclass(sink, MetricSink) and sink.takes_runs()


def _describe_missing(name: str) -> TdbgError:
    point = points_of(SINKS.group).get(name, "")
    if point in SINKS.broken:
        why = " ".join(redact_text(describe_error(SINKS.broken[point])).split())[:300]
        return TdbgError(
            f"--to {name}: the sink {point} cannot be loaded ({why})", f"repair its package, or leave out --to {name}"
        )
    names = list_run_sink_names()
    found = name if len(name) <= MAX_NAME else f"{name[:MAX_NAME]}..."
    if all(part.strip().lower() in names for part in name.split(",")):
        hint = f"repeat the option: {' '.join(f'--to {part.strip().lower()}' for part in name.split(','))}"
    else:
        hint = f"{suggest_name(found, names, '')} choose from: {', '.join(names)}".lstrip()
    return TdbgError(f"--to: unknown sink {found!r}", hint)


def _is_installed(package: str) -> bool:
    try:
        found = importlib.util.find_spec(package)
    except (ImportError, ValueError):  # of a package above it, or no name at all
        return False
    return found is not None and found.origin is not None  # a folder of that name, such as W&B's for its offline runs


def write_to_sink(run: RunDir, name: str, report: dict[str, Any]) -> str:
    """Write a run to a new run of this sink, or beside the program's own; returns what was written, and where to."""
    try:
        sink = find_sink(name).open_for_run(describe_run(run, name))
    except SinkDisabled as error:
        return f"nothing was sent: {error}"
    steps = 0

    def abandon() -> None:
        with guarded("the first failure is the one to name"):
            sink.close()

    with undo_on_error(abandon):
        for row in _read_rows(run):
            sink.write(row)
            steps += 1
        for finding in report["findings"]:
            sink.add_finding(finding)
        sink.add_report(report["headline"], report["markdown"])
        place = sink.describe_place()
    sink.close()
    findings = format_count(len(report["findings"]), "finding")
    return f"wrote {format_count(steps, 'step record')}, {findings} and the report to {place}"


def describe_run(run: RunDir, sink: str) -> RunDescription:
    """What the sink is told of the run."""
    info = read_info(run)
    settings = info.get("settings")
    settings = settings if isinstance(settings, dict) else {}
    flags = settings.get("flags")
    # None where another user may have written what says where the program's own runs are.
    own_runs = [] if run_files.describe_write_obstacle(run.path) else sink_files.list_announced(run.path, sink)
    return RunDescription(
        name=run.path.name,
        folder=run.path,
        command=redact_argv([str(word) for word in info.get("command") or []]),
        level=str(settings.get("level") or ""),
        flags=redact_flags(flags) if isinstance(flags, dict) else {},
        own_runs=own_runs,
    )


def _read_rows(run: RunDir) -> Iterator[Row]:
    """What tdbg has seen of rank 0, under keys of its own."""
    from tdbg.metrics.rows.row_files import find_rows_files
    from tdbg.metrics.rows.row_reader import Reading

    try:
        files = find_rows_files(str(run.path), "0").files
    except TdbgError:  # level off, or no step: findings and report are there all the same
        return
    for _, line in Reading(files).iter_lines():
        if line.source in SOURCES and line.values:
            values = {PREFIX + key: value for key, value in line.values.items()}
            yield Row(line.t, line.step, line.epoch, line.phase, values=values, source=line.source)
