"""Words for people: numbers, lists of ranks, plurals, all in one line."""

from collections.abc import Iterable, Sequence

from tdbg.core.tables import joined

KINDS = {"nan": "NaN", "inf": "Inf", "-inf": "-Inf", "nan+inf": "NaN and Inf"}

TRACEBACK = "traceback:"  # evidence: the lines of one follow


def figure(value: object) -> str:
    """A number of an event, four digits; NaN and Inf spelt as people do, nothing as a dash."""
    if isinstance(value, list | tuple):
        return ", ".join(dict.fromkeys(figure(item) for item in value[:4])) or "-"
    if isinstance(value, float):
        return f"{value:.4g}"
    return "-" if value is None else KINDS.get(str(value), str(value))


def loss_scale(value: object) -> str:
    """A loss scale, a power of two, in full."""
    return f"{value:,.0f}" if isinstance(value, int | float) and value >= 1 else figure(value)


def kind_name(kind: str) -> str:
    """``NaN`` for ``nan``."""
    return KINDS.get(kind, kind or "non-finite value")


def kept_in(folder: str, file: str) -> str:
    """Where a file of a process is, seen from the run directory."""
    return file if "/" in file else f"{folder}/{file}"


def clip(text: str, width: int) -> str:
    """One line of at most ``width`` characters."""
    line = " ".join(text.split()) if "\n" in text else text
    return line if len(line) <= width else f"{line[: width - 3]}..."


def named_modules(paths: Sequence[object], limit: int = 8) -> str:
    """``module "2"``, or ``modules "0", "2" and 5 more``; the root has no path."""
    if len(paths) == 1:
        return f'module "{paths[0]}"' if paths[0] else "the model"
    quoted = [f'"{path}"' for path in paths]
    return f"modules {joined(quoted, limit)}"


def ranges(ranks: Iterable[int]) -> str:
    """``rank 3``, or ``ranks 0-3, 7``."""
    found = sorted(ranks)
    spans: list[list[int]] = []
    for rank in found:
        if spans and rank == spans[-1][1] + 1:
            spans[-1][1] = rank
        else:
            spans.append([rank, rank])
    words = [f"{low}" if low == high else f"{low}-{high}" for low, high in spans]
    return f"rank{'' if len(found) == 1 else 's'} {joined(words, 8)}"
