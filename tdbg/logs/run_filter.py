"""`tdbg filter-logs`: records as they were read, or one of the views of them."""

import os
import sys

from tdbg.core.errors import TdbgError
from tdbg.core.output import print_messages
from tdbg.logs import log_files, parallel
from tdbg.logs.filter_args import JSONL, STDOUT, FilterArgs, query_of, validate_args
from tdbg.logs.parallel import Output

TYPE_CHECKING = False  # what `typing` says, without its import
if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Sequence

    from tdbg.logs.formats import Format
    from tdbg.logs.log_files import Source
    from tdbg.logs.query import Query
    from tdbg.logs.records import Record
    from tdbg.logs.silent import Sign


def run_filter(args: FilterArgs) -> int:
    """Print the records that fit; returns the exit code: 1 where no record fits."""
    validate_args(args)
    job = Job(args)
    handle = open_output(args.output, [source.path for source in job.sources])
    try:
        taken = VIEWS.get(args.views[0] if args.views else "", _render_plain)(job, Output(handle), handle)
    finally:
        if handle > 2:
            os.close(handle)
    if not taken and not (args.count or args.diverge):
        print_messages("no record matches")
    if not taken and args.flag and not args.map and not _is_of_a_run(job):
        print_messages(
            "a program may log a flag in its own words: `tdbg flags scan SRC -o map.toml`, then add --map map.toml"
        )
    return 0 if taken else 1


def _is_of_a_run(job: "Job") -> bool:
    """True if tdbg's own records are read: their flags are known without a map."""
    return any(log_files.is_records(source.path) for source in job.sources)


class Job:
    """A command line with all that answers it: the query, the files, their formats."""

    def __init__(self, args: FilterArgs) -> None:
        self.args = args
        self.query: Query = query_of(args)
        self.known: type[Format] | None = _find_format(args.log_format)
        self.sources: list[Source] = self.find_sources()
        self._looked: dict[str, tuple[Source, type[Format]]] = {}

    def find_sources(self) -> "list[Source]":
        """The files there are now."""
        return log_files.find_sources(self.args.paths or [find_newest_run()], self.args.kind)

    def _inspect_source(self, source: "Source") -> "tuple[Source, type[Format]]":
        """A file and how it is written; looked at once."""
        if source.path not in self._looked:
            source, form = parallel.look_at(source, self.known)
            self._looked[source.path] = source, self.query.refine_format(form)
        return self._looked[source.path]

    def resolve_format(self, source: "Source") -> "type[Format]":
        """How a file is written."""
        return self._inspect_source(source)[1]

    def inspect_sources(self) -> "list[Source]":
        """The files, with what could be seen of how they are written."""
        return [self._inspect_source(source)[0] for source in self.sources]

    def open_logs(self, query: "Query | None" = None) -> "list[Iterator[Record]]":
        """The records of each log that the query takes, the command line's own if none is given."""
        from tdbg.logs.records import iter_records, logs_of

        return [iter_records(log, query or self.query, self.resolve_format) for log in logs_of(self.inspect_sources())]

    def iter_records(self) -> "Iterator[Record]":
        """The records of all logs, one log after the other."""
        for log in self.open_logs():
            yield from log

    def iter_ordered_records(self) -> "Iterator[Record]":
        """The records of all logs by time, or in turn where there are none."""
        from tdbg.logs.merge import by_time, in_turn

        timed = all("time" in self.resolve_format(source).header.groupindex for source in self.sources)
        return by_time(self.open_logs(), lambda record: record.time) if timed else in_turn(self.open_logs())


def _render_plain(job: Job, output: Output, handle: int) -> int:
    args = job.args
    if args.before or args.after or args.context:
        return _render_context(job, output)
    if any(log_files.is_records(source.path) for source in job.sources):
        return _render_records(job, job.iter_ordered_records(), output)
    if args.format == JSONL:
        return _render_records(job, job.iter_records(), output)
    return parallel.filter_files(job.sources, job.query, handle, args.jobs or os.cpu_count() or 1, job.known)


def _render_records(
    job: Job, records: "Iterable[Record]", output: Output, text: "Callable[[Record], bytes] | None" = None
) -> int:
    """Write records one by one, as text or as JSON."""
    from tdbg.logs.merge import ensure_newline

    if job.args.format == JSONL:
        text = as_json
    taken = 0
    for record in records:
        data = ensure_newline(format_record(record) if text is None else text(record))
        output.emit(memoryview(data))
        taken += 1
    output.flush()
    return taken


def format_record(record: "Record") -> bytes:
    """As it was read; what tdbg wrote down of the program's own records, as text."""
    if not log_files.is_records(record.source.path):
        return record.data
    from tdbg.logs.render import as_text

    return as_text(record.data)


def as_json(record: "Record") -> bytes:
    """The record as one JSON object: time, rank, level, step, tag and flag where known, file, text."""
    import json

    from tdbg.core import flags
    from tdbg.logs.log_counts import level_name

    if log_files.is_records(record.source.path):
        return _escape_json(record.data)
    tag = record.tag.decode("utf-8", "replace")
    row = {
        "time": record.time.decode("utf-8", "replace") or None,
        "rank": record.rank,
        "level": level_name(record.level),
        "step": record.step,
        "tag": tag or None,
        "flag": flags.owner(tag) if tag else None,
        "file": record.source.path,
        "text": record.data.decode("utf-8", "backslashreplace").rstrip("\n"),
    }
    return _escape_json(json.dumps({key: value for key, value in row.items() if value is not None}).encode() + b"\n")


def _escape_json(data: bytes) -> bytes:
    """JSON that means the same, without a character that a terminal obeys."""
    if data.isascii() and b"\x7f" not in data:
        return data
    from tdbg.core.escapes import escape_controls

    return escape_controls(data.decode("utf-8", "replace")).encode()


def _render_context(job: Job, output: Output) -> int:
    from tdbg.logs.context import BREAK, iter_with_context
    from tdbg.logs.query import Matcher, Query

    args = job.args
    matchers: dict[str, Matcher] = {}
    taken = 0

    def is_match(record: "Record") -> bool:
        nonlocal taken
        path = record.source.path
        if path not in matchers:
            matchers[path] = Matcher(job.query, job.resolve_format(record.source), record.source.rank)
        found = matchers[path].possible and matchers[path].accept(record.data, 0, len(record.data))
        taken += found
        return found

    before, after = args.before or args.context, args.after or args.context
    for log in job.open_logs(Query()):
        for record in iter_with_context(log, is_match, before, after):
            if record is not None:
                output.emit(memoryview(as_json(record) if args.format == JSONL else format_record(record)))
            elif args.format != JSONL:
                output.emit(memoryview(BREAK))
    output.flush()
    return taken


def _render_merged(job: Job, output: Output, handle: int) -> int:
    from tdbg.logs.merge import by_time, format_with_rank

    return _render_records(
        job, by_time(job.open_logs()), output, lambda record: format_with_rank(record, format_record(record))
    )


def _render_followed(job: Job, output: Output, handle: int) -> int:
    from tdbg.logs.log_follower import follow_logs
    from tdbg.logs.records import Record
    from tdbg.logs.render import as_text

    times: dict[str, bytes] = {}

    def emit_record(data: bytes, source: "Source") -> None:
        if job.args.format == JSONL:
            record = Record(data, source, job.resolve_format(source), times.get(source.path, b""))
            times[source.path] = record.time
            data = as_json(record)
        elif log_files.is_records(source.path):
            data = as_text(data)
        output.emit(memoryview(data))
        output.flush()

    follow_logs(job.find_sources, job.query, job.known, emit_record)
    return 1


def _render_collapsed(job: Job, output: Output, handle: int) -> int:
    from tdbg.logs.collapse import iter_groups

    taken = 0
    for group in iter_groups(job.iter_ordered_records(), _collect_ranks(job.sources)):
        output.emit(memoryview(group.format_with_ranks(format_record(group.first))))
        taken += 1
    output.flush()
    return taken


def _render_diverging(job: Job, output: Output, handle: int) -> int:
    from tdbg.logs.collapse import collect_ranks_by_kind, format_ranks, iter_diverging_groups, iter_groups

    if any(source.pipe for source in job.sources):
        raise TdbgError("--diverge reads its logs twice, which a pipe does not allow", "write it to a file first")
    seen, ranks = collect_ranks_by_kind(iter_groups(job.iter_ordered_records(), _collect_ranks(job.sources)))
    taken, steps, when = 0, set(), b""
    for group in iter_diverging_groups(iter_groups(job.iter_ordered_records(), ranks), seen, ranks):
        steps.add(group.first.step)
        when = when or group.first.time
        taken += 1
        output.emit(memoryview(group.format_with_ranks(format_record(group.first))))
    output.flush()
    if steps - {None}:
        print_messages(f"the first step in which ranks differ: {min(step for step in steps if step is not None)}")
    elif taken:
        print_messages(f"ranks first differ at {when.decode() or 'the first record above'}")
    else:
        alone = len(ranks) > 1 and any(len(said) == 1 for said in seen.values())
        print_messages(
            f"no difference between {format_ranks(ranks)}{', except messages only one rank writes' if alone else ''}"
        )
    return taken


def _render_silent_ranks(job: Job, output: Output, handle: int) -> int:
    from tdbg.core.ranges import format_ranges
    from tdbg.logs.log_counts import level_name
    from tdbg.logs.records import logs_of
    from tdbg.logs.silent import collect_signs, find_missing_rank_ranges

    found = collect_signs(logs_of(job.inspect_sources()), job.resolve_format, job.query)
    rows = []
    for sign in found:
        last = sign.last_record
        quiet = None if sign.quiet_s is None else round(sign.quiet_s, 3)
        time, level, text = (
            (last.time.decode(), level_name(last.level), last.title) if last else ("", None, "(no record)")
        )
        rows.append((sign.rank, time or None, quiet, sign.step, level, text))
    render_table(handle, ("rank", "last", "quiet_s", "step", "level", "text"), rows, job.args.format)
    gone = find_missing_rank_ranges({sign.rank for sign in found if sign.rank is not None}, world_size(job.sources))
    if gone and not job.query.ranks:
        print_messages(f"no log of rank {format_ranges(gone)}")
    alive = [sign for sign in found if sign.records]
    if len(alive) > 1:
        _report_first(alive)
    return len(rows)


def _report_first(found: "Sequence[Sign]") -> None:
    """Who went quiet first, if anybody stopped in the middle of what others went on with."""
    from tdbg.logs.collapse import format_ranks

    stopped = [sign for sign in found if sign.missed is not None]
    if not stopped:
        apart = max((sign.quiet_s for sign in found if sign.quiet_s is not None), default=None)
        within = "" if apart is None else f"; their last records are {apart:.3g} s apart{_describe_earliest(found)}"
        print_messages(f"no rank stopped while other ranks continued{within}")
        return
    first = stopped[0]
    same = [sign for sign in stopped if sign.step == first.step]
    ranks = format_ranks(-1 if sign.rank is None else sign.rank for sign in same)
    place = f" after step {first.step}" if first.step is not None else ""
    quiet = f", {first.quiet_s:.3g} s before the last record of any rank" if first.quiet_s else ""
    print_messages(f"{ranks} went quiet first{place}{quiet}")
    if first.missed is not None:
        print_messages(
            f"{format_ranks([-1 if first.missed.rank is None else first.missed.rank])} went on: {first.missed.title}"
        )


def _describe_earliest(found: "Sequence[Sign]") -> str:
    """Whose last record came first by the clock, where that was clearly before the others'."""
    from tdbg.logs.collapse import format_ranks
    from tdbg.logs.silent import CLEARLY_S

    timed = sorted((sign for sign in found if sign.t is not None), key=lambda sign: sign.t or 0.0)
    if len(timed) < len(found) or (timed[1].t or 0.0) - (timed[0].t or 0.0) <= CLEARLY_S:
        return ""
    return f", {format_ranks([-1 if timed[0].rank is None else timed[0].rank])}'s the earliest"


def _render_errors(job: Job, output: Output, handle: int) -> int:
    from tdbg.core.escapes import escape_line
    from tdbg.logs.collapse import format_ranks
    from tdbg.logs.first_errors import cluster_first_errors
    from tdbg.logs.merge import ensure_newline

    found = cluster_first_errors(job.iter_ordered_records())
    if job.args.format == JSONL:
        return _render_records(job, (record for cluster in found for record in cluster.records), output)
    for cluster in found:
        first = min(cluster.records, key=lambda record: record.time)
        ranks = format_ranks(-1 if record.rank is None else record.rank for record in cluster.records)
        note = " (usually a consequence of another rank's failure)" if cluster.consequence else ""
        head = f"== {ranks}: {escape_line(cluster.name)}{note}\n".encode()
        output.emit(memoryview(head + ensure_newline(format_record(first))))
    output.flush()
    return len(found)


def _render_count(job: Job, output: Output, handle: int) -> int:
    nowhere = os.open(os.devnull, os.O_WRONLY)
    jobs = job.args.jobs or os.cpu_count() or 1
    taken = parallel.filter_files(job.sources, job.query, nowhere, jobs, job.known, each=True)
    os.close(nowhere)
    os.write(handle, f"{taken}\n".encode())
    return taken


def _render_stats(job: Job, output: Output, handle: int) -> int:
    from tdbg.logs.log_counts import STATS_COLUMNS, count_records

    rows = count_records(job.iter_records())
    render_table(handle, STATS_COLUMNS, rows, job.args.format)
    return len(rows)


def _list_prefixes(job: Job, output: Output, handle: int) -> int:
    from tdbg.logs.log_counts import PREFIX_COLUMNS, count_prefixes

    rows = count_prefixes(job.iter_records())
    render_table(handle, PREFIX_COLUMNS, rows, job.args.format)
    return len(rows)


VIEWS: "dict[str, Callable[[Job, Output, int], int]]" = {
    "merge": _render_merged,
    "follow": _render_followed,
    "collapse": _render_collapsed,
    "diverge": _render_diverging,
    "silent": _render_silent_ranks,
    "errors": _render_errors,
    "count": _render_count,
    "stats": _render_stats,
    "list_prefixes": _list_prefixes,
}


def render_table(handle: int, columns: "Sequence[str]", rows: "Sequence[Sequence[object]]", form: str) -> None:
    """A table to a file descriptor: as `tdbg.core.tables.print_table` writes it, or a JSON object a row."""
    import contextlib
    import json

    from tdbg.core.tables import print_table

    with contextlib.ExitStack() as stack:
        if handle > 2:
            file = stack.enter_context(open(os.dup(handle), "w", encoding="utf-8"))
            stack.enter_context(contextlib.redirect_stdout(file))
        if form == JSONL:
            for row in rows:
                print(json.dumps(dict(zip(columns, row, strict=True))))
        else:
            print_table(columns, rows, digits=4)


def world_size(found: "Sequence[Source]") -> int | None:
    """How many ranks there were, where a run directory says so."""
    import pathlib

    from tdbg.core.files import read_json

    for folder in {parent for source in found for parent in pathlib.Path(source.path).parents[:3]}:
        try:
            run = read_json(folder / log_files.RUN_FILE)
            ranks = run.get("ranks") or {}
            sizes = [row.get("world_size") for row in ranks.values() if isinstance(row, dict)]
        except (OSError, ValueError, AttributeError):
            continue
        return max([size for size in sizes if isinstance(size, int)], default=None)
    return None


def _collect_ranks(found: "Sequence[Source]") -> set[int]:
    return {-1 if source.rank is None else source.rank for source in found}


def _find_format(name: str) -> "type[Format] | None":
    if not name:
        return None
    from tdbg.logs.formats import FORMATS

    return FORMATS[name]


def find_newest_run() -> str:
    """The newest run's directory."""
    from tdbg.core.rundir import RunDir

    return str(RunDir.open(None).path)


def open_output(name: str, inputs: "Sequence[str]") -> int:
    """The file descriptor to write to; never one of the inputs."""
    if name == STDOUT:
        sys.stdout.flush()
        return 1
    try:
        if any(os.path.exists(path) and os.path.exists(name) and os.path.samefile(path, name) for path in inputs):
            raise TdbgError(f"{name} is one of the logs that are read", "choose another file for --output")
        return os.open(name, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o644)
    except OSError as error:
        raise TdbgError(f"cannot write {name}: {error.strerror}", "choose another file for --output") from None
