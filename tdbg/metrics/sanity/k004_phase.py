"""TD-K004: one phase under two names."""

from collections.abc import Iterable

from tdbg.core.events import Finding
from tdbg.metrics.keys import CATEGORIES, CORE, MASKED, PHASES
from tdbg.metrics.rows.run_summary import RunSummary
from tdbg.metrics.sanity import RULES, Rule, source_text


@RULES.add
class UnknownPhase(Rule):
    """Says that the name of a phase is nearly that of another one, or a mask without its component.

    What it does: It compares the phases of all keys of one source. Names that differ by case, underscores or dashes
    alone (val_mask_meta, valMaskMeta) are one phase spelt twice; ``val_mask`` lacks the name of what is masked.

    Why it matters: What is logged under one name and looked up under another is never found: no final result, no
    best, no early stop. On a dashboard one curve becomes two halves.

    Example:
        TD-K004 warning: the phase val_mask_meta is also called valMaskMeta

    What to do: Spell a phase in one place. `Key.parse` and `str(key)` read and write keys; `MetricsTracker` refuses a
    phase that never had a value, with the nearest name.

    Thresholds: One key each.
    """

    code = "TD-K004"
    title = "one phase under two names"
    severity = "warning"
    lacks = "no key begins with a phase, as in val/loss"

    def has_signal(self, seen: RunSummary) -> bool:
        """True for a key with a phase."""
        return any(_phase_of(key) for key, _, _ in seen.tally.series)

    def evaluate(self, seen: RunSummary) -> Iterable[Finding]:
        phases: dict[str, dict[str, list[str]]] = {}
        for key, source, _ in sorted(seen.tally.series):
            phase = _phase_of(key)
            if phase:
                keys = phases.setdefault(source, {}).setdefault(phase, [])
                if key not in keys:
                    keys.append(key)
        for source, found in phases.items():
            yield from self._find_twins(source, found, seen.rank)
            bare = MASKED.rstrip("_")
            if bare in found and source in ("tracker", ""):
                masked = [phase for phase in found if phase.startswith(MASKED)]
                beside = f"; {masked[0]} has values too" if masked else ""
                yield self.make_finding(
                    f"the phase {bare} names no component{beside}",
                    found[bare],
                    rank=seen.rank,
                    phase=bare,
                    cause="a phase of masked validation is called val_mask_meta or val_mask_COMPONENT",
                    try_next=f"write {masked[0] if masked else 'val_mask_meta'}",
                )

    def _find_twins(self, source: str, found: dict[str, list[str]], rank: int) -> Iterable[Finding]:
        folded: dict[str, list[str]] = {}
        for phase in found:
            folded.setdefault(phase.lower().replace("_", "").replace("-", ""), []).append(phase)
        for names in folded.values():
            if len(names) < 2:
                continue
            first, *others = sorted(names, key=lambda name: (name not in PHASES, -len(found[name])))
            yield self.make_finding(
                f"the phase {first} is also called {', '.join(others)}{source_text(source)}",
                [f"{name}: {', '.join(found[name][:4])}" for name in (first, *others)],
                rank=rank,
                phase=first,
                cause="the name is spelt in two places",
                try_next=f"write {first} everywhere",
            )


def _phase_of(key: str) -> str:
    """The phase that a key begins with; empty for none."""
    phase, slash, _ = key.partition("/")
    return phase if slash and phase not in (*CATEGORIES, CORE) else ""
