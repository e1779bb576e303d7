"""Curves of metrics as one HTML file that needs no network. Every name in it is text, never markup."""

from collections.abc import Sequence
from typing import IO, Any

from tdbg.core.tables import format_count, format_short, to_json_value
from tdbg.core.webpage import write_graphs

GRAPHS = 400  # of a page: a browser draws no more
LETTERS = 160  # of a name


def write_page(file: IO[bytes], curves: Sequence[dict[str, Any]], name: str) -> None:
    """Write the page; curves: as `tdbg metrics plot --json` tells them. Raises TdbgError without plotly, OSError."""
    by_key: dict[str, list[dict[str, object]]] = {}
    for one in curves:
        by_key.setdefault(one["key"], []).append(one)
    graphs = [
        {"key": format_short(key, LETTERS), "curves": [_build_curve(one) for one in those]}
        for key, those in by_key.items()
    ]
    notes = [format_count(len(graphs), "key")]
    if len(graphs) > GRAPHS:
        notes.append(f"the first {GRAPHS:,} are drawn")
    data = to_json_value({"graphs": graphs[:GRAPHS], "note": "; ".join(notes)})
    write_graphs(file, "tdbg.metrics", name, data, shared=("charts",))


def _build_curve(one: dict[str, Any]) -> dict[str, object]:
    source = f", {one['source']}" if one["source"] else ""
    bad = f" ({one['not_finite']:,} not finite)" if one["not_finite"] else ""
    name = format_short(f"rank {one['rank']}{source}{bad}", LETTERS)
    return {"name": name, **{key: one[key] for key in ("steps", "values", "gaps", "not_finite_spans")}}
