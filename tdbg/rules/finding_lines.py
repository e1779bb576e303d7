"""A finding in lines, alone or in the story it belongs to."""

from collections.abc import Sequence
from typing import NamedTuple

from tdbg.core.events import Finding
from tdbg.core.observations import Evidence
from tdbg.core.tables import format_count
from tdbg.rules.text import TRACEBACK, clip_text

BLOCK_LINES = 6
UNSURE = (Evidence.AFTER_REDUCTION, Evidence.FROM_WEIGHTS, Evidence.STATISTICAL)


class Story(NamedTuple):
    """A finding, and what followed from it."""

    first: Finding
    followers: list[Finding]  # the earliest first


def group_stories(findings: Sequence[Finding], causes: Sequence[int | None]) -> list[Story]:
    """Each finding that follows from no other one with all that follow from it, directly or not, by the worst of each.

    causes: for each finding the place of the one that it follows from; findings without one stand alone.
    """
    members: dict[int, list[int]] = {}
    for place in range(len(findings)):
        first = _find_first_cause(place, causes)
        members.setdefault(first, [])
        if first != place:
            members[first].append(place)
    return [
        Story(
            findings[first],
            [findings[at] for at in sorted(followers, key=lambda at: _place_in_story(at, findings, causes))],
        )
        for first, followers in members.items()
    ]


def _find_first_cause(place: int, causes: Sequence[int | None]) -> int:
    for _ in causes:
        cause = causes[place] if place < len(causes) else None
        if cause is None:
            break
        place = cause
    return place


def _place_in_story(place: int, findings: Sequence[Finding], causes: Sequence[int | None]) -> tuple[float, int]:
    """The step of a finding, but never before that of its causes, and how many of these stand before it.

    What follows can be seen a step earlier than its cause: an exception carries the last step done, and another rank
    may be behind.
    """
    step, depth = _get_first_step(findings[place]), 0
    for _ in causes:
        cause = causes[place] if place < len(causes) else None
        if cause is None:
            break
        if cause < len(causes) and causes[cause] is not None:  # not the one that the story begins with
            step = max(step, _get_first_step(findings[cause]))
        place, depth = cause, depth + 1
    return step, depth


def _get_first_step(finding: Finding) -> float:
    return float("inf") if finding.first_step is None else finding.first_step


def list_stories(stories: Sequence[Story], room: int) -> list[str]:
    """A line each for causes and, indented, for what followed; at most ``room``. Causes are listed first of all."""
    count = sum(1 + len(story.followers) for story in stories)
    if count > room:
        room -= 1  # for the line that says so
    shown = stories[: max(room, 0)]
    spare = max(room, 0) - len(shown)
    lines: list[str] = []
    for story in shown:
        followers = story.followers[:spare]
        spare -= len(followers)
        lines += [f"  {format_title(story.first)}", *(f"    {format_follower(finding)}" for finding in followers)]
    left = count - len(lines)
    return [*lines, f"  ... and {format_count(left, 'more finding')}"] if left else lines


def format_title(finding: Finding) -> str:
    """``TD-N001 critical: first NaN at step 3, rank 1, ...``, with the attempt of a job that was restarted before."""
    attempt = f"attempt {finding.attempt}"
    ending = f" ({attempt})" if finding.attempt and attempt not in finding.title else ""  # names of ranks have it
    return clip_text(f"{finding.code} {finding.severity}: {finding.title}", 200 - len(ending)) + ending


def format_follower(finding: Finding) -> str:
    """``followed by: TD-N002 critical: loss is NaN or Inf since step 4``."""
    return f"followed by: {format_title(finding)}"


def list_grades(finding: Finding) -> list[str]:
    """How the evidence knows what it says, where that leaves a doubt."""
    return [f"  evidence is {kind.value}" for kind in UNSURE if kind.grade_word == finding.grade]


def format_finding(finding: Finding, limit: int = BLOCK_LINES) -> list[str]:
    """A finding with its evidence, its cause and what to try, at most ``limit`` lines, and one more if it is not sure."""
    tail, grades = list_advice(finding), list_grades(finding) if limit > 1 else []
    room = max(limit - 1 - len(tail), 0)
    return [format_title(finding), *list_evidence(finding, room), *grades, *tail][: limit + len(grades)]


def list_advice(finding: Finding) -> list[str]:
    """Its cause and what to try, as far as its rule says."""
    lines = [f"  cause: {finding.cause}"] if finding.cause else []
    return [*lines, f"  try: {finding.try_next}"] if finding.try_next else lines


def list_evidence(finding: Finding, room: int) -> list[str]:
    """Its evidence, at most ``room`` lines; a traceback whole or not at all, as the head of one says nothing."""
    shown = finding.evidence[:room]
    if len(shown) < len(finding.evidence) and TRACEBACK in shown:
        shown = shown[: shown.index(TRACEBACK)]
    return [clip_text(f"  {line}", 200) for line in shown]
