"""What has gone on for so long, in consecutive sampled steps, that it is no accident."""

from typing import NotRequired, TypedDict

from tdbg.core.events import Number


class Lasting(TypedDict):
    """Parameters that have been in one state in consecutive sampled steps."""

    names: list[str]  # at most eight
    count: int
    looks: int
    since: int  # the step of the first of these looks
    norm: NotRequired[Number | None]  # of the first one's gradient
    dtype: NotRequired[str]
    lr: NotRequired[Number | None]
    other: NotRequired[str]  # class of a model that has gradients which no optimizer uses, with the same shapes


def lasting_row(rows: dict[str, Lasting] | None, kind: str) -> Lasting | None:
    """Who has been in a state in consecutive sampled steps; None where nobody is named."""
    found = (rows or {}).get(kind)
    return found if found is not None and found["names"] else None
