"""The verdict as Markdown, for an issue tracker: what was found, in what environment, and what tdbg cost.

Whatever a program, a person or another package wrote stands in code, where Markdown obeys nothing: no markup, HTML,
mention, reference or link in it takes effect.
"""

import re
import shlex
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from tdbg.core.redaction import redact_argv, redact_text
from tdbg.core.tables import format_count, safe
from tdbg.rules.cost_lines import list_baseline, list_costs
from tdbg.rules.finding_lines import Story, format_finding, format_follower
from tdbg.rules.text import clip_text, format_ranks
from tdbg.rules.verdict import Verdict

MAX_ROWS = 50
MAX_STORIES = 10
DETAIL_LINES = 40
COLUMNS = ("code", "severity", "step", "rank", "finding", "follows from")
OBEYED = re.compile(r"[^A-Za-z0-9 \-,;.=]|(?<=www)\.")  # by Markdown, HTML or the tracker; after www, a link begins


def write_markdown(verdict: Verdict, info: Mapping[str, Any], notes: Sequence[str] = ()) -> list[str]:
    """The report in lines. info: what run.json holds, as far as it can be read; notes: those of people."""
    lines = [
        f"### tdbg report of {format_code_span(Path(verdict.run).name)}",
        "",
        format_code_span(verdict.format_headline()),
    ]
    lines += _format_section("Findings", _write_table(verdict))
    stories = verdict.get_stories()
    shown = [line for story in stories[:MAX_STORIES] for line in [*_describe_story(story), ""]][:-1]
    if len(stories) > MAX_STORIES:
        shown += ["", f"... and {format_count(len(stories) - MAX_STORIES, 'more finding')}"]
    lines += _format_section("Evidence", format_code_block(shown))
    lines += _format_section(
        "Preflight" if verdict.is_preflight else "Watched", format_code_block(verdict.format_coverage())
    )
    lines += _format_section("Environment", format_code_block(_describe_environment(verdict, info)))
    lines += _format_section(
        "Cost of tdbg",
        format_code_block([*list_costs(verdict.cost, verdict.costliest), *list_baseline(verdict.baseline)]),
    )
    return lines + _format_section(
        "Notes", format_code_block([note.strip() for note in notes] + [f"trouble: {text}" for text in verdict.trouble])
    )


def _format_section(title: str, lines: Sequence[str]) -> list[str]:
    return ["", f"#### {title}", "", *lines] if lines else []


def _write_table(verdict: Verdict) -> list[str]:
    findings = verdict.findings
    if not findings:
        return []
    rows: list[Sequence[str]] = [COLUMNS, ["---"] * len(COLUMNS)]
    for finding, cause in list(zip(findings, verdict.list_causes(), strict=True))[:MAX_ROWS]:
        step, rank = ("" if number is None else str(number) for number in (finding.first_step, finding.rank))
        follows = format_code_span(cause.code, in_table=True) if cause is not None else ""
        title = format_code_span(clip_text(finding.title, 300), in_table=True)
        rows.append(
            [
                format_code_span(finding.code, in_table=True),
                format_code_span(finding.severity, in_table=True),
                step,
                rank,
                title,
                follows,
            ]
        )
    lines = [f"| {' | '.join(row)} |" for row in rows]
    return (
        [*lines, "", f"and {format_count(len(findings) - MAX_ROWS, 'more finding')}"]
        if len(findings) > MAX_ROWS
        else lines
    )


def _describe_story(story: Story) -> list[str]:
    return [
        *format_finding(story.first, DETAIL_LINES),
        *(f"  {format_follower(finding)}" for finding in story.followers),
    ]


def _describe_environment(verdict: Verdict, info: Mapping[str, Any]) -> list[str]:
    """Command, versions, devices, commit and settings; no host, no folder, no variable of the environment."""
    command, versions, git = (info.get(name) for name in ("command", "versions", "git"))
    lines = []
    if isinstance(command, list):
        lines.append(f"command: {shlex.join(redact_argv(list(map(str, command))))}")
    if isinstance(versions, dict):
        lines.append(f"versions: {', '.join(f'{name} {value}' for name, value in versions.items())}")
    lines += _describe_ranks(info.get("ranks"))
    if isinstance(git, dict) and git.get("commit"):
        lines.append(f"commit: {git['commit']}{', with changes' if git.get('dirty') else ''}")
    on = [
        f"{name}={value}" if value is not True else name for name, value in verdict.flags.items() if value is not False
    ]
    flags = f", flags {', '.join(on)}" if on else ""
    lines.append(f"tdbg: --level {verdict.level or 'basic'}{flags}")
    return lines


def _describe_ranks(ranks: object) -> list[str]:
    """``ranks 0-3: torch 2.13.0, cuda NVIDIA H100``: ranks of the same kind share a line."""
    groups: dict[str, list[int]] = {}
    for rank, row in ranks.items() if isinstance(ranks, dict) else ():
        if isinstance(row, dict) and str(rank).isdecimal():
            device = row.get("device")
            words = (
                [str(device.get(name) or "") for name in ("type", "name", "cuda")] if isinstance(device, dict) else []
            )
            groups.setdefault(f"torch {row.get('torch')}, {' '.join(filter(None, words))}", []).append(int(rank))
    return [f"{format_ranks(alike)}: {text}" for text, alike in groups.items()]


def format_code_span(text: str, *, in_table: bool = False) -> str:
    """The text as code within a line. A table splits its rows at each bar, in code too: there an entity stands for it."""
    text = safe(redact_text(" ".join(text.split()))) or "-"
    if in_table and ("|" in text or "\\" in text):
        return f"<code>{OBEYED.sub(lambda found: f'&#{ord(found[0])};', text)}</code>"
    ticks = "`" * (_measure_longest_run("`", text) + 1)
    pad = " " if text.startswith("`") or text.endswith("`") else ""
    return f"{ticks}{pad}{text}{pad}{ticks}"


def format_code_block(lines: Iterable[str]) -> list[str]:
    """Lines as a block of code; nothing where there are none."""
    shown = [safe(redact_text(line)) for text in lines for line in text.split("\n")]
    ticks = "`" * max(max((_measure_longest_run("`", line) for line in shown), default=0) + 1, 3)
    return [f"{ticks}text", *shown, ticks] if shown else []


def _measure_longest_run(sign: str, text: str) -> int:
    return max(map(len, re.findall(f"{re.escape(sign)}+", text)), default=0)
