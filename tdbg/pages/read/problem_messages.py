"""Report problems of pages, and what their writers left out, on stderr."""

from tdbg.core.output import print_messages
from tdbg.core.tables import format_count, safe
from tdbg.pages.read.page_set import PageSet

MAX_NAMED = 20  # problems, before the rest is a number


def say_problems(pages: PageSet, *, drops: bool = True) -> None:
    """What the writers left out, and what is wrong with the files, on stderr."""
    for drop in pages.drops if drops else ():
        steps = "" if drop.first is None else f" (steps {drop.first} to {drop.last})"
        print_messages(
            f"rank {drop.rank} dropped {format_count(drop.datapoints, 'datapoint')}{steps}: {safe(drop.reason)}"
        )
    for problem in pages.problems[:MAX_NAMED]:
        print_messages(safe(str(problem)))
    if len(pages.problems) > MAX_NAMED:
        print_messages(f"and {len(pages.problems) - MAX_NAMED} more: `tdbg inspect-pages verify` lists them")
