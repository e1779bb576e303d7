"""Rows for W&B: the only module that touches it. Rank 0 alone writes; offline works, and is what an unreachable server becomes."""

import copy
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any, ClassVar

from tdbg.core import run_files
from tdbg.core.errors import TdbgError
from tdbg.core.lazy_pattern import lazy_pattern
from tdbg.core.output import print_messages
from tdbg.core.redaction import redact_text
from tdbg.metrics.rows.row import Row
from tdbg.metrics.sinks import SINKS
from tdbg.metrics.sinks.base import MetricSink, RunDescription, SinkDisabled

STEP = "global_step"
INIT_TIMEOUT_S = 60
RUN_INIT_TIMEOUT_S = 20  # for W&B's server where `--to` makes a run; then it is kept offline
OF_ANOTHER_RUN = ("WANDB_RUN_ID", "WANDB_RESUME", "WANDB_SWEEP_ID", "WANDB_SWEEP_PARAM_PATH")  # meant for the program's
_TIME = lazy_pattern(r"\d{8}-\d{6}-(?=.)")  # before the name of a run
PREFIX = "tdbg/"  # of what tdbg adds to a run that a program may have keys in
REPORT = "tdbg/report.md"  # among the files of a run
ALERTS = {"critical": "ERROR", "error": "ERROR", "warning": "WARN"}  # severity -> level of an alert, else INFO
MAX_TITLE = 63  # W&B takes no longer title
MAX_TEXT = 4_000


@SINKS.add
class WandbSink(MetricSink):
    """One run of W&B. It is begun at the first row, or when its id is asked for.

    run_id: what `tdbg.metrics.step_logger.wandb_run_id` gave all ranks; resume: the id came from a checkpoint, and the run must be there.
    settings: more for ``wandb.init`` (project, entity, name, group, tags, dir, mode). Charts are drawn over
    ``global_step``: no row is dropped because a resumed run went back. Where the server cannot be reached or there are no
    credentials, the run is kept offline, for ``wandb sync``, and it is said so.
    """

    name: ClassVar[str] = "wandb"
    package: ClassVar[str] = "wandb"

    def __init__(self, *, run_id: str | None = None, resume: bool = False, **settings: object) -> None:
        self._id, self._resume, self._settings = run_id, resume, settings
        self._run: Any = None
        self._config: dict[str, object] = {}  # what came before the run was begun
        self._closed = False

    @classmethod
    def open_for_run(cls, run: RunDescription) -> "WandbSink":
        """A new run. Its config names the run, its command, level and flags; W&B records nothing of the process or machine."""
        for variable in OF_ANOTHER_RUN:  # this process begins no other run
            os.environ.pop(variable, None)
        projects = [str(own["project"]) for own in run.own_runs if own.get("project")]
        sink = cls(
            project=os.environ.get("WANDB_PROJECT") or (projects or [_TIME.sub("", run.name)])[-1],
            name=run.name,
            dir=os.environ.get("WANDB_DIR") or str(run.folder),
            tags=["tdbg"],
            settings=_make_quiet_settings(),
        )
        about = {"run": run.name, "command": list(run.command), "level": run.level or None, "flags": dict(run.flags)}
        sink.config({PREFIX + key: value for key, value in about.items()})
        if _is_disabled(sink.run):
            sink.close()
            raise SinkDisabled("WANDB_MODE=disabled")
        return sink

    def describe_place(self) -> str:
        """The run, and how to upload it if it is offline."""
        if self.run.url:  # the query of an anonymous run's URL may hold its API key
            return redact_text(str(self.run.url).partition("?")[0])
        folder = Path(self.run.dir).parent
        return f"the offline run {folder}; upload it with `wandb sync {folder}`"

    @property
    def run(self) -> Any:
        """The run of W&B. Raises TdbgError without the package."""
        if self._run is None:
            if self._closed:
                raise TdbgError("the W&B run is closed", "create a new sink")
            self._run = self._init_run()
            self._id = self._run.id
            self._run.define_metric(STEP)
            self._run.define_metric("*", step_metric=STEP)
            self._run.config.update({**self._config, "run_id": self._id}, allow_val_change=True)
        return self._run

    def _init_run(self) -> object:
        try:
            import wandb
        except ImportError:
            raise TdbgError("the wandb sink needs wandb", "install the extra: pip install 'tdbg[wandb]'") from None
        asked: dict[str, Any] = {"id": self._id, "resume": "must" if self._resume else None, **self._settings}
        asked.setdefault("settings", wandb.Settings(init_timeout=INIT_TIMEOUT_S))
        try:
            return wandb.init(**asked)
        except (wandb.errors.CommError, wandb.errors.AuthenticationError, wandb.errors.UsageError) as error:
            if asked.get("mode") == "offline":
                raise
            why = " ".join(str(error).split())[:200]
            print_messages(
                f"metrics: W&B cannot be reached ({why}); the run is kept offline, `wandb sync` sends it later"
            )
            offline = {"mode": "offline", "resume": None, "settings": _extend_init_timeout(asked["settings"])}
            return wandb.init(**{**asked, **offline})

    def write(self, row: Row) -> None:
        """Log one row: its values, text, and where the run is."""
        stamp: dict[str, object] = {STEP: row.step, "rank": row.rank}
        if row.epoch is not None:
            stamp["epoch"] = row.epoch
        if row.phase is not None:
            stamp["phase"] = row.phase
        self.run.log({**row.values, **row.text, **stamp})

    def config(self, values: Mapping[str, object]) -> None:
        """Add to the config of the run."""
        self._config |= values
        if self._run is not None:
            self._run.config.update(dict(values), allow_val_change=True)

    def add_finding(self, finding: Mapping[str, Any]) -> None:
        """An alert and a tag of the run."""
        send_finding(self.run, finding)

    def add_report(self, headline: str, markdown: str) -> None:
        """A file and a line in the summary of the run."""
        send_report(self.run, headline, markdown)

    def summary(self, values: Mapping[str, object]) -> None:
        """Add to the summary of the run."""
        self.run.summary.update(dict(values))

    def close(self) -> None:
        """Finish the run; wandb sends or writes the rest."""
        self._closed = True
        if self._run is not None:
            run, self._run = self._run, None
            run.finish()

    def state_dict(self) -> dict[str, object]:
        """The id of the run, for the checkpoint."""
        return {"run_id": self._id} if self._id else {}

    def load_state_dict(self, state: Mapping[str, object]) -> None:
        """Go on with the run of a checkpoint: it must be there."""
        saved = state.get("run_id")
        if self._run is None and saved:
            self._id, self._resume = str(saved), True
        elif saved and saved != self._id:
            print_messages(
                f"metrics: the W&B run is {self._id}, but the checkpoint has {saved}: load it before the first row"
            )


def send_finding(run: Any, finding: Mapping[str, Any]) -> None:
    """Send a finding as an alert, and tag the run with its code. Neither makes a row or moves the run's step."""
    title, text = describe_finding(finding)
    run.alert(title=title, text=text, level=ALERTS.get(str(finding.get("severity")), "INFO"))
    code = str(finding.get("code"))
    if code not in (run.tags or ()):
        run.tags = (*(run.tags or ()), code)


def describe_finding(finding: Mapping[str, Any]) -> tuple[str, str]:
    """The title of an alert, and its text in Markdown."""
    title = f"{finding.get('code')}: {finding.get('title')}"
    lines = [f"**{finding.get('severity')}** {finding.get('title')}"]
    lines += [f"- {line}" for line in finding.get("evidence") or []]
    lines += [f"{name}: {finding[key]}" for key, name in (("cause", "cause"), ("try_next", "try")) if finding.get(key)]
    return redact_text(title)[:MAX_TITLE], redact_text("\n\n".join(lines))[:MAX_TEXT]


def send_report(run: Any, headline: str, markdown: str) -> None:
    """Put the report beside the files of a run, and its first line into the summary."""
    path = Path(run.dir) / REPORT
    run_files.write_atomically(path, markdown.encode("utf-8", "backslashreplace"), makes=True)
    run.save(str(path), base_path=run.dir, policy="now")
    run.summary[f"{PREFIX}verdict"] = redact_text(headline)


def _make_quiet_settings() -> object:
    """Settings of a run that tdbg makes for itself."""
    import wandb

    settings: dict[str, Any] = {
        "init_timeout": RUN_INIT_TIMEOUT_S,
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
    return wandb.Settings(**{name: value for name, value in settings.items() if name in known})


def _is_disabled(run: Any) -> bool:
    """True for a run that goes nowhere: it has no folder either."""
    return bool(getattr(run, "disabled", False)) or run.settings.mode == "disabled"


def _extend_init_timeout(settings: Any) -> object:
    """Settings with time to begin offline: the time a program allows for its server may be too short for that."""
    if settings is None or isinstance(settings, Mapping):
        settings = dict(settings or {})
        return {**settings, "init_timeout": max(settings.get("init_timeout", 0), INIT_TIMEOUT_S)}
    settings = copy.copy(settings)
    settings.init_timeout = max(settings.init_timeout, INIT_TIMEOUT_S)
    return settings
