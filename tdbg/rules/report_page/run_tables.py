"""The tables of the report page: how ranks ended, flags, what was not watched, environment without secrets, cost."""

import time
from collections.abc import Iterable, Mapping, Sequence
from typing import TypedDict

from tdbg.core.redaction import redact_argv, redact_env, redact_text, redact_value
from tdbg.core.rundir import allowed_env
from tdbg.core.tables import format_cell, format_count, format_short, join_limited
from tdbg.rules.cost_lines import INCLUDED
from tdbg.rules.flag_lines import format_flags
from tdbg.rules.rank_lines import RankRow
from tdbg.rules.verdict import Verdict

MAX_ROWS = 400  # of a table
LETTERS = 400  # of a cell
DEFAULT = "default"


class Table(TypedDict):
    """A table of the page; cells are texts or numbers."""

    id: str
    title: str
    note: str
    columns: list[str]
    rows: list[list[object]]


def make_table(
    name: str, title: str, columns: Sequence[str], rows: Iterable[Sequence[object]], note: str = ""
) -> Table:
    """A table whose texts are cut and free of secrets, and whose rows are not too many."""
    cells = [[_as_cell(value) for value in row] for row in rows]
    if len(cells) > MAX_ROWS:
        note = f"{note} The first {MAX_ROWS:,} of {len(cells):,}.".strip()
    return {"id": name, "title": title, "note": note, "columns": list(columns), "rows": cells[:MAX_ROWS]}


def _as_cell(value: object) -> object:
    if value is None or type(value) in (int, float):
        return value
    return format_short(redact_text(value if isinstance(value, str) else format_cell(value)), LETTERS)


def list_tables(verdict: Verdict, info: Mapping[str, object], notes: Sequence[Mapping[str, object]]) -> list[Table]:
    """Every table that has a row, in the order of the page."""
    found = [
        make_table("ranks", _title_ranks(verdict), RANK_COLUMNS, _list_rank_rows(verdict)),
        make_table(
            "triggers", "Conditions that came true", ("step", "rank", "condition", "done"), _list_trigger_rows(verdict)
        ),
        make_table("flags", "Flags", ("flag", "value", "observations"), _list_flag_rows(verdict)),
        make_table(
            "injections",
            "Flags in the program's configuration",
            ("result",),
            _list_line_rows(format_flags(verdict.injections)),
        ),
        make_table("not_watched", "Not watched", ("findings", "why"), _list_unwatched_rows(verdict)),
        make_table("cost", "Cost of tdbg", ("what", "value"), _list_cost_rows(verdict), f"The share is {INCLUDED}."),
        make_table(
            "cost_ranks",
            "Cost of tdbg by process",
            ("rank", "own ms", "wall ms", "%"),
            _list_cost_ranks(verdict),
            "As above; that of the run is of all wall time together.",
        ),
        make_table("environment", "Environment", ("what", "value"), _list_environment_rows(info)),
        make_table(
            "settings", "Settings other than the defaults", ("setting", "value", "from"), _list_setting_rows(info)
        ),
        make_table("notes", "Notes", ("note",), _list_line_rows((*verdict.notes, *verdict.trouble))),
        make_table("people", "Notes by people", ("note",), _list_line_rows(str(one.get("text", "")) for one in notes)),
        make_table("files", "Files", ("file",), _list_line_rows(verdict.files)),
    ]
    return [table for table in found if table["rows"]]


def _title_ranks(verdict: Verdict) -> str:
    is_over = all(row["ended"] != "running" for row in verdict.ranks)
    return "How each rank ended" if is_over else "Each rank so far"


RANK_COLUMNS = ("rank", "host", "pid", "steps", "of", "evaluation calls", "skipped", "last loss", "ended", "code")


def _list_rank_rows(verdict: Verdict) -> list[list[object]]:
    beside = [_list_rank_cells(row["folder"], row) for row in verdict.others]
    return [
        *(_list_rank_cells(row["folder"] if row["rank"] is None else row["rank"], row) for row in verdict.ranks),
        *beside,
    ]


def _list_rank_cells(name: object, row: RankRow) -> list[object]:
    restarts = f", after {format_count(row['attempts'] - 1, 'restart')}" if row["attempts"] > 1 else ""
    return [
        name,
        row["host"],
        None if row["pid"] is None else str(row["pid"]),
        row["steps"],
        row["planned"],
        row["evals"],
        row["skipped"],
        row["loss"],
        f"{row['ended']}{restarts}",
        row["code"],
    ]


def _list_line_rows(lines: Iterable[str]) -> list[list[str]]:
    return [[line] for line in lines]


def _list_trigger_rows(verdict: Verdict) -> list[list[object]]:
    return [[row["step"], row["rank"], row["condition"], row["action"] or "noted"] for row in verdict.triggers]


def _list_flag_rows(verdict: Verdict) -> list[list[object]]:
    names = dict.fromkeys((*verdict.flags, *verdict.observations_by_flag))
    return [
        [
            name,
            redact_value(name, format_cell(verdict.flags[name]))
            if name in verdict.flags
            else f"by level {verdict.level}",
            verdict.observations_by_flag[name]["text"] if name in verdict.observations_by_flag else "-",
        ]
        for name in names
    ]


def _list_unwatched_rows(verdict: Verdict) -> list[list[object]]:
    return [[join_limited(row["codes"], 12), row["reason"]] for row in verdict.not_watched]


def _list_cost_rows(verdict: Verdict) -> list[list[object]]:
    cost = verdict.cost
    if cost.get("pct") is None:
        return []
    rows: list[list[object]] = [
        ["share of the wall time", f"{cost['pct']:.2f} %"],
        ["budget", f"{cost['budget_pct']:g} %"],
        ["start-up", f"{cost['startup_ms']:.0f} ms"],
    ]
    if cost.get("allowance_ms"):
        used = f"{cost['inspection_ms'] / 1000:.2f} s of {cost['allowance_ms'] / 1000:g} s"
        rows.append(["opening inspection, of its allowance", used])
    for what, share in (
        ("checks of each rank's gradients", cost["checks_pct"]),
        ("capturing", cost["capture_pct"]),
        ("diagnostics that the program calls", cost["diagnostics_pct"]),
        ("log records", cost["records_pct"]),
        ("time without module hooks", cost["away_pct"]),
    ):
        rows += [[what, f"{share:.2f} %"]] if share else []
    rows += [["exceptions inside tdbg", cost["errors"]]] if cost["errors"] else []
    rows += [["events not written", cost["dropped"]]] if cost["dropped"] else []
    baseline = verdict.baseline
    if baseline and baseline["low"] is not None and baseline["ratio"] is not None and baseline["high"] is not None:
        spread = f"95 %: {baseline['low']:.4g} to {baseline['high']:.4g}, {baseline['pairs']} pairs"
        rows.append(["time of a step with tdbg on, against off", f"x{baseline['ratio']:.4f} ({spread})"])
    return rows


def _list_cost_ranks(verdict: Verdict) -> list[list[object]]:
    rows = verdict.cost.get("ranks", [])
    own_ms = [round(row["pct"] * row["wall_ms"] / 100, 3) for row in rows]  # without the opening inspection
    found = zip(rows, own_ms, strict=True)
    return [[row["rank"], own, row["wall_ms"], round(row["pct"], 4)] for row, own in found] if len(rows) > 1 else []


def _list_environment_rows(info: Mapping[str, object]) -> list[list[object]]:
    command = info.get("command")
    rows: list[list[object]] = []
    if isinstance(command, list):
        rows.append(["command", " ".join(redact_argv([str(word) for word in command]))])
    for name in ("cwd", "host"):
        rows += [[name, info[name]]] if isinstance(info.get(name), str) else []
    for name in ("versions", "git"):
        table = info.get(name)
        if isinstance(table, dict):
            rows += [[f"{name}: {key}", value] for key, value in table.items() if _is_plain(value)]
    rows += [[name, " ".join(values)] for name, values in _collect_devices(info).items()]
    environ = info.get("env")
    if isinstance(environ, dict):
        texts = {str(name): str(value) for name, value in environ.items()}
        rows += [[name, value] for name, value in redact_env(allowed_env(texts)).items()]
    for name in ("start", "end"):
        rows += [[name, format_time(info[name])]] if isinstance(info.get(name), int | float) else []
    return rows


def _collect_devices(info: Mapping[str, object]) -> dict[str, list[str]]:
    """Python, torch and device of the ranks, each once."""
    found: dict[str, dict[str, None]] = {}
    ranks = info.get("ranks")
    for row in ranks.values() if isinstance(ranks, dict) else ():
        if not isinstance(row, dict):
            continue
        device = row.get("device")
        if isinstance(device, dict):
            text = ", ".join(f"{key} {value}" for key, value in device.items() if _is_plain(value))
            found.setdefault("device", {})[text] = None
        if isinstance(row.get("torch"), str):
            found.setdefault("torch", {})[row["torch"]] = None
    return {name: list(values)[:8] for name, values in found.items()}


def _list_setting_rows(info: Mapping[str, object]) -> list[list[object]]:
    settings, origin = info.get("settings"), info.get("origin")
    if not isinstance(settings, dict) or not isinstance(origin, dict):
        return []
    return [
        [name, redact_value(str(name), format_cell(_flatten_value(value))), origin.get(name)]
        for name, value in settings.items()
        if origin.get(name, DEFAULT) != DEFAULT
    ]


def _flatten_value(value: object) -> object:
    return [f"{key}={item}" for key, item in value.items()] if isinstance(value, dict) else value


def _is_plain(value: object) -> bool:
    return isinstance(value, str | int | float) and value != ""


def format_time(moment: object) -> str:
    """The local time with its zone; a dash for what is none."""
    try:
        return time.strftime("%Y-%m-%d %H:%M:%S %Z", time.localtime(float(str(moment))))
    except (OverflowError, ValueError, OSError):
        return "-"
