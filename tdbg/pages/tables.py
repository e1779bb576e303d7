"""What a terminal shows of pages, beside what it shows of anything (`tdbg.tables`)."""

from tdbg.output import say
from tdbg.tables import cell, counted, finite, print_rows, safe, shape, short, size, width

TYPE_CHECKING = False  # what `typing` says, without its import
if TYPE_CHECKING:
    from tdbg.pages.reader import PageSet

__all__ = ["cell", "counted", "finite", "print_rows", "safe", "shape", "short", "size", "tell", "width"]
TOLD = 20  # problems, before the rest is a number


def tell(pages: "PageSet", *, drops: bool = True) -> None:
    """What the writers left out, and what is wrong with the files, on stderr."""
    for drop in pages.drops if drops else ():
        steps = "" if drop.first is None else f" (steps {drop.first} to {drop.last})"
        say(f"rank {drop.rank} dropped {counted(drop.datapoints, 'datapoint')}{steps}: {safe(drop.reason)}")
    for problem in pages.problems[:TOLD]:
        say(safe(str(problem)))
    if len(pages.problems) > TOLD:
        say(f"and {len(pages.problems) - TOLD} more: `tdbg inspect-pages verify` lists them")
