"""TD-C019: Weights & Biases could not be reached, or did not take what it was sent."""

import re
from collections.abc import Iterable

from tdbg.core.events import Event, Finding, Observation
from tdbg.core.observations import Evidence
from tdbg.core.observations.wandb_metrics import WandbCallFailed, WandbMessage
from tdbg.core.rundir import ProcessDir
from tdbg.rules import MAX_EVIDENCE, RULES, Rule
from tdbg.rules.text import clip_text

# Of what wandb prints as an error only this is about the run's data: it also prints the program's own errors.
OF_DATA = re.compile(r"sync|upload|network|connect|finishing run", re.IGNORECASE)
NAMES = {"init": "wandb.init", "login": "wandb.login", "log": "wandb.log", "finish": "the end of the wandb run"}


@RULES.add
class WandbFailed(Rule):
    """Says that the tracker failed: at login, at its start, while logging, or at the upload in the end.

    What it does: Speaks when ``wandb.login``, ``wandb.init``, ``Run.log`` or the end of a run raises or times out,
    and when wandb prints an error of its own about syncing or the network, even where it was told to be silent.

    Why it matters: Programs often go on without their tracker after a caught exception, and what is not uploaded
    at the end is missed days later.

    Example:
        TD-C019 warning: wandb.init failed: UsageError: No API key configured, at step 1, rank 0

    What to do: No key: `wandb login`, or WANDB_API_KEY in the environment of every rank. No network:
    WANDB_MODE=offline, and `wandb sync FOLDER` later; the run's folder holds everything. A timeout:
    `wandb.Settings(init_timeout=300)`.

    Thresholds: One failure.
    """

    code = "TD-C019"
    title = "wandb failed"
    severity = "warning"
    grade = Evidence.LOCAL.grade_word
    listens = (Observation,)
    observes = (WandbCallFailed, WandbMessage)

    def __init__(self) -> None:
        self._given: list[Finding] = []
        self._reported: set[str] = set()

    def feed(self, process: ProcessDir, event: Event) -> Iterable[Finding]:
        seen = WandbCallFailed.from_event(event) or WandbMessage.from_event(event)
        said = _describe_failure(seen)
        if seen is None or not said or said in self._reported:
            return ()
        self._reported.add(said)
        if self._given and self._given[0].rank == process.rank:
            if len(self._given[0].evidence) < MAX_EVIDENCE:
                self._given[0].evidence.append(f"{said}, at step {seen.step}")
            return ()
        new = self.make_finding(
            f"{clip_text(said, 150)}, at step {seen.step}, {process.display_name}",
            first_step=seen.step,
            rank=process.rank,
            evidence=[said] if len(said) > 150 else [],
            cause="no key, no network, or a server that did not answer in time",
            try_next="run `wandb login --verify`; without a network, set WANDB_MODE=offline and run `wandb sync` later",
        )
        return self.report_from(process, self._given, new)


def _describe_failure(seen: WandbCallFailed | WandbMessage | None) -> str:
    """What failed, in one line; empty if nothing did."""
    if isinstance(seen, WandbCallFailed):
        return f"{NAMES.get(seen.what, seen.what)} failed: {' '.join(seen.error.split())}"
    if seen is not None and seen.severity == "error" and OF_DATA.search(seen.message):
        return f"wandb says: {' '.join(seen.message.split())}"
    return ""
