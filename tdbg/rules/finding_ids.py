"""Names of findings in addresses: a place in a list changes as others are found, and these do not."""

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

from tdbg.core.redaction import redact_text
from tdbg.core.tables import format_short

MAX_MODULE = 120


def build_finding_ids(findings: Sequence[Mapping[str, Any]]) -> list[str]:
    """The name of each finding, as ``TD-N001-step13-rank1-layers.0``: code, and what is known of step, rank and module.

    Those that are alike in all of this are numbered by their titles, so that the order of the list does not matter.
    """
    names = [_build_name(finding) for finding in findings]
    seen: Counter[str] = Counter()
    found = list(names)
    for at in sorted(range(len(names)), key=lambda at: str(findings[at]["title"])):
        seen[names[at]] += 1
        if seen[names[at]] > 1:
            found[at] = f"{names[at]}~{seen[names[at]]}"
    return found


def _build_name(finding: Mapping[str, Any]) -> str:
    step, rank, module = finding["first_step"], finding["rank"], str(finding["module"])
    parts = [
        format_short(str(finding["code"]), 40),
        "" if step is None else f"step{step}",
        "" if rank is None else f"rank{rank}",
        format_short(redact_text(module[: 4 * MAX_MODULE]), MAX_MODULE),
    ]
    return "-".join(filter(None, parts))
