"""TD-C002: a debug flag that the program never read."""

from collections.abc import Iterable

from tdbg.core.events import Event, Finding, Injection, Observation
from tdbg.core.flags import FLAGS, covers
from tdbg.core.observations import Evidence
from tdbg.core.rule_base import Needs
from tdbg.core.rundir import ProcessDir
from tdbg.core.tables import join_limited
from tdbg.rules import RULES, Rule
from tdbg.rules.view import View


def _is_loss(flag: str) -> bool:
    """True for a flag of the diagnostics that a program calls itself, which torch.compile leaves out."""
    return covers("LOSS", flag)


@RULES.add
class FlagUntaken(Rule):
    """Names debug flags that were on and that nothing in the program ever read.

    What it does: At the end compares the flags that were on with those that reached a config (yacs, OmegaConf,
    argparse, jsonargparse) or were read through `tdbg.flag()`. Flags that tdbg itself acts on need not
    be read, nor those under LOSS once a loss of torch's was observed. Silent with `--inject none` and where no
    process reported at all (TD-C003).

    Why it matters: The program ran as if the flag were off; nothing else would tell.

    Example:
        TD-C002 warning: the program never read LOSS.NULL_MASKING and ran without it

    What to do: A program reads a flag from its own config, or with two words: `tdbg.flag("LOSS.NULL_MASKING")`.
    If it has the flag under another name, `tdbg run --flag NAME` takes that name.

    Thresholds: None.
    """

    code = "TD-C002"
    title = "debug flag that was never read"
    severity = "warning"
    grade = Evidence.LOCAL.grade_word
    listens = (Injection, Observation)
    needs = Needs()  # a process that took no flag may have written nothing at all

    def __init__(self) -> None:
        self._answered: set[str] = set()

    def feed(self, process: ProcessDir, event: Event) -> Iterable[Finding]:
        if isinstance(event, Injection) or (isinstance(event, Observation) and _is_loss(event.flag)):
            self._answered.add(event.flag)
        return ()

    def finish(self, view: View) -> Iterable[Finding]:
        settings = view.settings
        if settings.inject == "none" or not view.over or not (view.processes or view.run.read_hellos()):
            return ()
        alone = {flag.name for flag in FLAGS if flag.works_alone}
        on = [name for name, value in settings.flags.items() if value is not False]
        untaken = [name for name in on if name not in self._answered and name not in alone]
        losses = {flag.name for flag in FLAGS if _is_loss(flag.name)}
        if losses <= set(on) and self._answered & losses:  # `-f LOSS`: whatever of them there is
            untaken = [name for name in untaken if name not in losses]
        if not untaken:
            return ()
        return (
            self.make_finding(
                f"the program never read {join_limited(untaken, 6)} and ran without {'it' if len(untaken) == 1 else 'them'}",
                cause="the program's config has no such key, or the program ended before it was read"
                + ("; or its losses are called only inside torch.compile" if any(map(_is_loss, untaken)) else ""),
                try_next='`tdbg.flag("NAME")` reads a flag in any program; the functions of tdbg.probes.loss read those under LOSS.',
            ),
        )
