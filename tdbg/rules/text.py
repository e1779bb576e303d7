"""Words for people: numbers, lists of ranks, plurals, all in one line."""

from collections.abc import Iterable, Sequence

from tdbg.core.tables import join_limited

KINDS = {"nan": "NaN", "inf": "Inf", "-inf": "-Inf", "nan+inf": "NaN and Inf"}

TRACEBACK = "traceback:"  # evidence: the lines of one follow


def format_figure(value: object) -> str:
    """A number of an event, four digits; NaN and Inf spelt as people do, nothing as a dash."""
    if isinstance(value, list | tuple):
        return ", ".join(dict.fromkeys(format_figure(item) for item in value[:4])) or "-"
    if isinstance(value, float):
        return f"{value:.4g}"
    return "-" if value is None else KINDS.get(str(value), str(value))


def format_loss_scale(value: object) -> str:
    """A loss scale, a power of two, in full."""
    return f"{value:,.0f}" if isinstance(value, int | float) and value >= 1 else format_figure(value)


def format_kind(kind: str) -> str:
    """``NaN`` for ``nan``."""
    return KINDS.get(kind, kind or "non-finite value")


def get_kept_path(folder: str, file: str) -> str:
    """Where a file of a process is, seen from the run directory."""
    return file if "/" in file else f"{folder}/{file}"


def clip_text(text: str, width: int) -> str:
    """One line of at most ``width`` characters."""
    line = " ".join(text.split()) if "\n" in text else text
    return line if len(line) <= width else f"{line[: width - 3]}..."


def format_modules(paths: Sequence[object], limit: int = 8) -> str:
    """``module "2"``, or ``modules "0", "2" and 5 more``; the root has no path."""
    if len(paths) == 1:
        return f'module "{paths[0]}"' if paths[0] else "the model"
    quoted = [f'"{path}"' for path in paths]
    return f"modules {join_limited(quoted, limit)}"


def format_ranks(ranks: Iterable[int]) -> str:
    """``rank 3``, or ``ranks 0-3, 7``."""
    found = sorted(ranks)
    spans: list[list[int]] = []
    for rank in found:
        if spans and rank == spans[-1][1] + 1:
            spans[-1][1] = rank
        else:
            spans.append([rank, rank])
    words = [f"{low}" if low == high else f"{low}-{high}" for low, high in spans]
    return f"rank{'' if len(found) == 1 else 's'} {join_limited(words, 8)}"
