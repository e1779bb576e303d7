"""Which group a datapoint is in, as `--group-by` and `--scores` ask for it."""

from typing import TYPE_CHECKING, Any

from tdbg.core.errors import TdbgError
from tdbg.core.output import say
from tdbg.core.tables import counted, safe
from tdbg.pages.selection import group_scores
from tdbg.pages.selection.datapoint_numbers import Known
from tdbg.pages.selection.iteration import samples
from tdbg.pages.selection.locations import Grouped, chosen

if TYPE_CHECKING:
    from tdbg.pages.read.datapoint import Datapoint
    from tdbg.pages.read.page_set import PageSet

NAMED = 20  # numbers that an error names


class Members:
    """The group of each datapoint, or row of a batch, that has a score; how many have none is told.

    Raises TdbgError where none has one, and for scores that cannot be read. Memory: some 200 bytes a sample.
    """

    def __init__(self, pages: "PageSet", question: Grouped) -> None:
        if question.group_by and question.scores:
            raise TdbgError("--group-by and --scores do not go together", "leave one of them out")
        self._groups = group_scores.split(_scores(pages, question))
        found = list(self._groups.values())
        sizes = {group: found.count(group) for group in sorted(set(found))}
        say(", ".join(f"{safe(group)}: {counted(size, 'datapoint')}" for group, size in sizes.items()))

    def group(self, datapoint: "Datapoint") -> str | None:
        """Of one; None of those without a score."""
        return self._groups.get(_identity(datapoint))


def _scores(pages: "PageSet", question: Grouped) -> dict[tuple[object, ...], group_scores.Score]:
    numbers = Known(pages)
    look = (
        group_scores.score_of(question.scores) if question.scores else group_scores.value_of(question.group_by, numbers)
    )
    name = safe(question.scores or question.group_by)
    found: dict[tuple[Any, ...], group_scores.Score] = {}
    missing = 0
    for datapoint in (one for whole in chosen(pages, question) for one in samples(whole)):
        score = look(datapoint)
        if score is None:
            missing += 1
        else:
            found[_identity(datapoint)] = score
    if not found:
        fields = f"what they have: {safe(', '.join([*group_scores.PLACES, *numbers.names][:NAMED]))}"
        hint = fields if question.group_by else "are the keys those of `ls --datapoints`?"
        raise TdbgError(f"no datapoint has a {name}", hint)
    if missing:
        say(f"{counted(missing, 'datapoint')} without {name}: left out")
    return found


def _identity(datapoint: "Datapoint") -> tuple[object, ...]:
    return datapoint.rank, datapoint.writer, datapoint.seq, datapoint.row
