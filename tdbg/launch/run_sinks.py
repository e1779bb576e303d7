"""What a run holds, written to a sink: step records, findings and the report, from its files alone."""

import os
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from tdbg.core import run_files, sink_files
from tdbg.core.errors import TdbgError
from tdbg.core.host import host_name
from tdbg.core.lazy_pattern import lazy_pattern
from tdbg.core.redaction import redact_argv, redact_flags, redact_text
from tdbg.core.rundir import RunDir
from tdbg.core.tables import counted
from tdbg.metrics.rows.row import Row
from tdbg.metrics.sinks.base import MetricSink
from tdbg.rules.markdown_report import write_markdown
from tdbg.rules.verdict import Verdict
from tdbg.rules.view import read_info

SOURCES = ("tdbg", "metric")  # what the program logs elsewhere is there already
PREFIX = "tdbg/"
SUB_RUN = "tdbg"  # a folder of its own: TensorBoard leaves a file for good once a later one lies beside it
INIT_TIMEOUT_S = 20  # for W&B's server; then the run is kept offline
OF_ANOTHER_RUN = ("WANDB_RUN_ID", "WANDB_RESUME", "WANDB_SWEEP_ID", "WANDB_SWEEP_PARAM_PATH")  # meant for the program's
_TIME = lazy_pattern(r"\d{8}-\d{6}-(?=.)")  # before the name of a run


def make_report(run: RunDir, verdict: Verdict, notes: Sequence[str] = ()) -> dict[str, Any]:
    """The report as sinks take it: headline, findings, markdown."""
    return {
        "headline": redact_text(verdict.headline()),
        "findings": [finding.as_dict() for finding in verdict.findings],
        "markdown": "\n".join(write_markdown(verdict, read_info(run), notes)),
    }


def write_to_sink(run: RunDir, name: str, report: dict[str, Any]) -> str:
    """Write a run to a new run of this sink, or beside the program's own; returns what was written, and where to."""
    sink, where = _open_sink(run, name)
    if _is_disabled(sink):
        sink.close()
        return "nothing was sent: WANDB_MODE=disabled"
    steps = 0
    for row in _read_rows(run):
        sink.write(row)
        steps += 1
    for finding in report["findings"]:
        sink.add_finding(finding)
    sink.add_report(report["headline"], report["markdown"])
    place = where or _describe_wandb(sink)
    sink.close()
    findings = counted(len(report["findings"]), "finding")
    return f"wrote {counted(steps, 'step record')}, {findings} and the report to {place}"


def _read_rows(run: RunDir) -> Iterator[Row]:
    """What tdbg has seen of rank 0, under keys of its own."""
    from tdbg.metrics.rows.row_files import find_rows_files
    from tdbg.metrics.rows.row_reader import Reading

    try:
        files = find_rows_files(str(run.path), "0").files
    except TdbgError:  # level off, or no step: findings and report are there all the same
        return
    for _, line in Reading(files).lines():
        if line.source in SOURCES and line.values:
            values = {PREFIX + key: value for key, value in line.values.items()}
            yield Row(line.t, line.step, line.epoch, line.phase, values=values, source=line.source)


def _open_sink(run: RunDir, name: str) -> tuple[MetricSink, str]:
    """The sink, and where it writes to; "" where only the sink knows."""
    if name == sink_files.TENSORBOARD:
        from tdbg.metrics.sinks.tensorboard_ import TensorboardSink

        folder, suffix = find_folder(run), f".{run.path.name}.tdbg"
        for path in folder.glob(f"events.out.tfevents.*{suffix}"):  # of an earlier time: the same once more
            run_files.remove(path)
        return TensorboardSink(folder, suffix=suffix), str(folder)
    return _open_wandb(run), ""


def find_folder(run: RunDir) -> Path:
    """Below the folder of the program's own events, where it is on this machine; else in the run directory."""
    for own in _list_announced(run, sink_files.TENSORBOARD):
        folder = Path(str(own.get("folder")))
        if own.get("host") == host_name() and folder.is_dir():
            return folder / SUB_RUN
    return run.path / "tensorboard"


def _list_announced(run: RunDir, name: str) -> list[dict[str, Any]]:
    """The program's own runs; none where another user may have written what says where they are."""
    return [] if run_files.find_foreign(run.path) else sink_files.list_announced(run.path, name)


def _open_wandb(run: RunDir) -> MetricSink:
    """A new run. Its config names the run, its command, level and flags; W&B records nothing of the process or machine."""
    import wandb

    from tdbg.metrics.sinks.wandb_ import WandbSink

    settings: dict[str, Any] = {
        "init_timeout": INIT_TIMEOUT_S,
        "silent": True,
        "console": "off",
        "disable_git": True,
        "disable_code": True,
        "disable_job_creation": True,
        "x_disable_meta": True,
        "x_disable_stats": True,
        "x_disable_machine_info": True,
    }
    known = set(dir(wandb.Settings)) | set(getattr(wandb.Settings, "model_fields", ()))
    made = wandb.Settings(**{name: value for name, value in settings.items() if name in known})
    for variable in OF_ANOTHER_RUN:  # this process begins no other run
        os.environ.pop(variable, None)
    projects = [str(own["project"]) for own in _list_announced(run, sink_files.WANDB) if own.get("project")]
    sink = WandbSink(
        project=os.environ.get("WANDB_PROJECT") or (projects or [_TIME.sub("", run.path.name)])[-1],
        name=run.path.name,
        dir=os.environ.get("WANDB_DIR") or str(run.path),
        tags=["tdbg"],
        settings=made,
    )
    info = read_info(run)
    flags = info.get("flags")
    sink.config(
        {
            "tdbg/run": run.path.name,
            "tdbg/command": redact_argv([str(word) for word in info.get("command") or []]),
            "tdbg/level": info.get("level"),
            "tdbg/flags": redact_flags(flags) if isinstance(flags, dict) else {},
        }
    )
    return sink


def _is_disabled(sink: MetricSink) -> bool:
    """True for a run of W&B that goes nowhere: it has no folder either."""
    run = getattr(sink, "run", None)
    return run is not None and (getattr(run, "disabled", False) or run.settings.mode == "disabled")


def _describe_wandb(sink: Any) -> str:
    """The new run, and how to upload it if it is offline."""
    run = sink.run
    if run.url:  # the query of an anonymous run's URL may hold its API key
        return redact_text(str(run.url).partition("?")[0])
    return f"the offline run {Path(run.dir).parent}; upload it with `wandb sync {Path(run.dir).parent}`"
