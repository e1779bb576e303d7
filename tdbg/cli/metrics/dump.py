"""`tdbg metrics dump`: the state of the metrics at a step, every value, or the states that were kept."""

from typing import TYPE_CHECKING, Any

from tdbg.cli.on_stores import read_from_stores
from tdbg.core.command_spec import Command, Option, Options
from tdbg.metrics.metrics_options import ARGUMENT, SELECTION, Selected

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from tdbg.metrics.rows.row_files import Place
    from tdbg.metrics.rows.row_reader import Reading

HELP = """Write the state of the metrics at a step, or every value, as JSON, CSV or Parquet.

    The state has a row for each key, source and rank: latest value with step and epoch, best, least, most, count. With
    --series every value is a row. With --states the full states are printed that the flags DUMP_METRICS and
    VALIDATION_METRICS had kept at each validation; they hold partial sums and counts too. Two dumps can be compared by
    any tool for text.

    Examples:
        tdbg metrics dump --after-step 2000
        tdbg metrics dump tdbg_runs/20261121-031500-train --series --format parquet --out metrics.parquet
        tdbg metrics dump --states --phase val
    """
OPTIONS: Options = {
    **SELECTION,
    "step": Option(
        ("--after-step",),
        "N",
        "The state as it was after this step; that of the end if left out.",
        old_names=("--step", "--at"),
    ),
    "phase": Option(("--phase",), "PHASE", "Only rows of this phase, such as val.", takes_empty=True),
    "series": Option(("--series",), "", "Every value, not the state."),
    "states": Option(("--states",), "", "The states that DUMP_METRICS or VALIDATION_METRICS kept, as JSON."),
    "form": Option(("--format",), "FORMAT", "json, csv or parquet; json if left out."),
    "out": Option(("--out", "-o"), "FILE", "Write to this file; stdout if left out."),
    "force": Option(("--force",), "", "With --out: overwrite a file that is there."),
    "json": Option(("--json",), "", "The same as --format json."),
}
STATE = (
    *("key", "rank", "source", "phase", "unit", "value", "step", "epoch", "best", "best_step", "best_epoch"),
    *("least", "most", "count", "not_finite"),
)
SERIES = ("rank", "step", "epoch", "phase", "key", "value", "t", "source")
KEPT = "metrics_state"


class DumpArgs(Selected):
    """What `dump` can be asked."""

    step: str = ""
    phase: str = ""
    series: bool = False
    states: bool = False
    form: str = ""
    out: str = ""
    force: bool = False
    json: bool = False


def dump_metrics(args: DumpArgs) -> int:
    """Write it; 1 if there is nothing."""
    from tdbg.core.errors import TdbgError
    from tdbg.core.output import print_messages
    from tdbg.core.tables import format_count, safe
    from tdbg.metrics.metrics_options import find_place, key_filter, report_skipped_rows
    from tdbg.metrics.rows.table_files import WRITERS, write_table

    form = args.form or "json"
    if args.json and form != "json":
        raise TdbgError(f"--json and --format {form} exclude each other", "choose one")
    if form not in WRITERS:
        raise TdbgError(f"--format cannot be {form!r}", f"write one of: {', '.join(WRITERS)}")
    if args.series and args.states:
        raise TdbgError("--series and --states exclude each other", "choose one")
    until = _parse_step(args.step)
    if args.states:
        return _print_states(args, until)
    place = find_place(args)
    from tdbg.metrics.rows.row_reader import Reading

    reading = Reading(place.files)
    wanted = key_filter(list(args.key), copies=True)
    phased = _build_phase_filter(args.phase)
    about = {"run": place.name, "step": until}
    if args.series:
        rows = _iter_value_rows(reading, until, lambda key, phase: wanted(key) and phased(key, phase))
        count = write_table(form, args.out, args.force, about, SERIES, rows)
    else:
        state = _iter_state_rows(reading, until, lambda key, phase: wanted(key) and phased(key, phase))
        count = write_table(form, args.out, args.force, about, STATE, state)
    report_skipped_rows(place.name, reading.counts)
    if args.out:
        print_messages(safe(f"{args.out}: {format_count(count, 'row')}"))
    for line in () if count else _explain_no_rows(args, place, until):
        print_messages(safe(line))
    return int(not count)


def _explain_no_rows(args: DumpArgs, place: "Place", until: int | None) -> tuple[str, ...]:
    """Which of what was asked for is not there, and what is."""
    from tdbg.core.errors import TdbgError
    from tdbg.metrics.metrics_options import NO_ROWS, check_keys, suggest_keys
    from tdbg.metrics.rows.row_reader import Reading

    keys: set[str] = set()
    phases: set[str] = set()
    first: int | None = None
    for _, line in Reading(place.files).iter_lines():
        keys.update(line.values)
        phases.update([line.phase] if line.phase else [])
        first = line.step if first is None else min(first, line.step)
    if first is None:
        return (f"{place.name}: {NO_ROWS}",)
    if until is not None and first > until:
        return f"no row is as early as step {until:,}", f"the first is of step {first:,}"
    phases.update(key.partition("/")[0] for key in keys if "/" in key)
    if args.phase and args.phase not in phases:
        return f"no row is of phase {args.phase!r}", suggest_keys(args.phase, sorted(phases))
    try:
        check_keys(list(args.key), keys)
    except TdbgError as error:
        return str(error), error.hint
    return (
        f"{place.name}: no row matches all the options",
        "some rows match fewer of --key, --phase and --after-step",
    )


def _parse_step(text: str) -> int | None:
    from tdbg.core.errors import TdbgError

    if not text:
        return None
    if not text.isdecimal() or len(text) > 18:
        raise TdbgError(f"--after-step cannot be {text!r}", "write the number of a step, such as 2000")
    return int(text)


def _build_phase_filter(phase: str) -> "Callable[[str, str | None], bool]":
    """Rows of a phase: those that say so, or whose key begins with it."""
    if not phase:
        return lambda key, of: True
    return lambda key, of: of == phase or key.startswith((f"{phase}/", f"core/{phase}_"))


def _iter_state_rows(
    reading: "Reading", until: int | None, wanted: "Callable[[str, str | None], bool]"
) -> "Iterator[Sequence[object]]":
    from tdbg.metrics.rows.series import Point, build_tally

    nothing = Point(0.0, 0)
    found = build_tally(reading.iter_batches(), until)
    for (key, source, rank), one in sorted(found.series.items()):
        if wanted(key, one.phase):
            best = one.best or nothing
            best_values = (best.value, best.step, best.epoch) if one.best else (None, None, None)
            bounds = (one.least.value if one.least else None, one.most.value if one.most else None)
            now = one.last
            head = (key, rank, source, one.phase, one.unit or None, now.value, now.step, now.epoch)
            yield (*head, *best_values, *bounds, one.count, one.non_finite)


def _iter_value_rows(
    reading: "Reading", until: int | None, wanted: "Callable[[str, str | None], bool]"
) -> "Iterator[Sequence[object]]":
    for rank, line in reading.iter_lines():
        if until is None or line.step <= until:
            for key, value in line.values.items():
                if wanted(key, line.phase):
                    yield rank, line.step, line.epoch, line.phase, key, value, line.t, line.source


def _print_states(args: DumpArgs, until: int | None) -> int:
    """Print the states that were kept."""
    import json

    from tdbg.core.errors import TdbgError
    from tdbg.core.output import print_messages
    from tdbg.core.tables import safe, to_json_value
    from tdbg.metrics.metrics_options import find_place
    from tdbg.metrics.rows.table_files import resolve_table_path

    if args.form not in ("", "json"):
        raise TdbgError("states are printed as JSON alone", "leave --format out")
    place = find_place(args)
    every = [{"rank": rank, "file": name, **state} for rank, name, state in _iter_kept_states(place)]
    if not every:
        raise TdbgError(f"{place.name}: no states were kept", "`tdbg run -f DUMP_METRICS` keeps one at each validation")
    early = [state for state in every if until is None or int(state.get("step") or 0) <= until]
    kept = [one for state in early if (one := _select_state_part(state, list(args.key), args.phase)) is not None]
    if not kept:
        for line in _explain_no_states(args, every, early):
            print_messages(safe(line))
        return 1
    with resolve_table_path(args.out, args.force) as file:
        document = {"kind": "metrics-states", "version": 1, "data": {"run": place.name, "states": to_json_value(kept)}}
        file.write(json.dumps(document, indent=2, allow_nan=False) + "\n")
    return 0


def _explain_no_states(
    args: DumpArgs, every: "Sequence[dict[str, Any]]", early: "Sequence[dict[str, Any]]"
) -> tuple[str, str]:
    """What the states have not, and what they have."""
    from tdbg.metrics.metrics_options import suggest_keys

    if not early:
        first = min(int(state.get("step") or 0) for state in every)
        return f"no state is as early as step {args.step}", f"the first is of step {first:,}"
    parts = [part for state in early if isinstance(part := state.get("phases"), dict)]
    phases = {name: one for part in parts for name, one in part.items() if isinstance(one, dict)}
    names = {*phases, *(str(state["phase"]) for state in early if state.get("phase"))}
    if args.phase and args.phase not in names:
        return f"no state has a phase {args.phase!r}", suggest_keys(args.phase, sorted(names))
    keys = {key for one in phases.values() for key in one.get("metrics") or ()}
    keys.update(key for state in early for key in state.get("stores") or ())
    return f"no state has {' or '.join(args.key)}", suggest_keys(args.key[0] if args.key else "", sorted(keys))


def _select_state_part(state: dict[str, Any], globs: "Sequence[str]", phase: str) -> dict[str, object] | None:
    """A state with the phase and the metrics that were asked for alone; None if it has none of them."""
    from tdbg.metrics.metrics_options import key_filter

    if phase and state.get("phase") not in (None, phase):
        return None
    found = dict(state)
    wanted = key_filter(globs, copies=True)
    phases = state.get("phases")
    if isinstance(phases, dict):
        found["phases"] = {
            name: {**one, "metrics": {key: value for key, value in one["metrics"].items() if wanted(key)}}
            for name, one in phases.items()
            if (not phase or name == phase) and isinstance(one, dict) and isinstance(one.get("metrics"), dict)
        }
    if not globs:
        is_there = not phase or state.get("phase") == phase or found.get("phases")
        return found if is_there else None
    found["phases"] = {name: one for name, one in (found.get("phases") or {}).items() if one["metrics"]}
    stores = state.get("stores")
    found["stores"] = {key: value for key, value in stores.items() if wanted(key)} if isinstance(stores, dict) else {}
    return found if found["phases"] or found["stores"] else None


def _iter_kept_states(place: "Place") -> "Iterator[tuple[int | None, str, dict[str, Any]]]":

    from tdbg.core.files import read_json
    from tdbg.core.output import print_messages
    from tdbg.core.tables import safe

    for file in place.files:
        for path in sorted((file.path.parent / KEPT).glob("*.json")):
            try:
                found = read_json(path)
            except (OSError, ValueError) as error:
                print_messages(safe(f"{path}: cannot be read: {error}"))
                continue
            if isinstance(found, dict):
                yield file.rank, path.name, found


COMMAND = Command(read_from_stores(dump_metrics, "metrics"), DumpArgs, HELP, OPTIONS, ARGUMENT)
