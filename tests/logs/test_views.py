"""Merge, context, collapse, diverge, silent, errors, tables: on files as programs write them."""

import json
import os
import random
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tdbg.core.errors import TdbgError
from tdbg.logs import collapse, log_files, log_follower, silent
from tdbg.logs.collapse import format_ranks
from tdbg.logs.context import iter_with_context
from tdbg.logs.filter_args import FilterArgs
from tdbg.logs.formats import Stamped, Tdbg, detect_format
from tdbg.logs.log_files import Source
from tdbg.logs.query import Query
from tdbg.logs.records import Record, normalize_time, parse_seconds, split_records
from tdbg.logs.run_filter import run_filter

Ask = Callable[..., tuple[int, str, str]]


@pytest.fixture
def run_question(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]) -> Ask:
    """Ask a question in a folder of its own: exit code, stdout, stderr."""
    monkeypatch.chdir(tmp_path)

    def call_filter(**given_: object) -> tuple[int, str, str]:
        code = run_filter(FilterArgs(**given_))
        out, err = capfd.readouterr()
        return code, out, err

    return call_filter


def stamp_line(t: float, text: str, level: str = "INFO") -> str:
    whole = time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(1_790_000_000 + t))
    return f"{whole},{int(t * 1000) % 1000:03d} {level} train: {text}\n"


def write_log(name: str, *lines: str) -> Path:
    path = Path(name)
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("".join(lines))
    return path


def test_merge_is_by_time_with_the_rank_in_front(run_question: Ask) -> None:
    write_log("rank0.log", stamp_line(1, "a"), stamp_line(3, "c\nmore of c"))
    write_log("rank1.log.1", stamp_line(0.5, "before"))
    write_log("rank1.log", stamp_line(2, "b"), stamp_line(4, "d"))
    code, out, _ = run_question(paths=["."], merge=True)
    texts = [line.rpartition("train: ")[2] for line in out.splitlines()]
    assert code == 0 and texts == ["before", "a", "b", "c", "more of c", "d"]
    assert [line[:7] for line in out.splitlines() if "train" in line] == [f"[rank{r}]" for r in (1, 0, 1, 0, 1)]


def test_what_was_merged_can_be_filtered_by_rank_again(run_question: Ask) -> None:
    write_log("rank0.log", stamp_line(1, "a"), stamp_line(3, "c"))
    write_log("rank12.log", stamp_line(2, "b"))
    _, merged, _ = run_question(paths=["."], merge=True)
    Path("all.log").write_text(merged)
    _, out, _ = run_question(paths=["all.log"], ranks="12")
    assert out == f"[rank12]: {stamp_line(2, 'b')}"


def test_logs_without_times_cannot_be_merged_and_say_so(run_question: Ask) -> None:
    write_log("rank0.log", "[DEBUG_LR] a\n")
    write_log("rank1.log", "[DEBUG_LR] b\n")
    with pytest.raises(TdbgError, match="has no timestamps"):
        run_question(paths=["."], merge=True)


@settings(max_examples=60, deadline=None)
@given(st.lists(st.lists(st.integers(0, 30), max_size=8).map(sorted), min_size=1, max_size=4))
def test_merging_loses_nothing_and_orders_everything(times: list[list[int]]) -> None:
    from tdbg.logs.merge import by_time

    def log(rank: int) -> Iterator[Record]:
        for number, t in enumerate(times[rank]):
            yield Record(stamp_line(t, f"r{rank} n{number}").encode(), Source(f"rank{rank}.log", rank), Stamped, b"")

    found = list(by_time([log(rank) for rank in range(len(times))]))
    assert [record.time for record in found] == sorted(record.time for record in found)
    assert len(found) == sum(map(len, times))
    for rank in range(len(times)):
        mine = [record.data for record in found if record.rank == rank]
        assert mine == [record.data for record in log(rank)]


@settings(max_examples=200, deadline=None)
@given(st.text("x.", max_size=30), st.integers(0, 4), st.integers(0, 4))
def test_context_is_that_of_grep(marks: str, before: int, after: int) -> None:
    import subprocess

    text = "".join(f"{number}{mark}\n" for number, mark in enumerate(marks))
    records = [Record(line.encode(), Source("x"), Tdbg, b"") for line in text.splitlines(keepends=True)]
    found = iter_with_context(records, lambda record: b"x" in record.data, before, after)
    ours = b"".join(b"--\n" if record is None else record.data for record in found)
    grep = subprocess.run(["grep", "-B", str(before), "-A", str(after), "x"], input=text.encode(), capture_output=True)
    assert ours == grep.stdout


def test_context_on_the_command_line(run_question: Ask) -> None:
    write_log("a.log", *(stamp_line(n, f"line {n}\ntail of {n}") for n in range(10)))
    code, out, _ = run_question(paths=["a.log"], regex="line [27]$", context=1)
    assert code == 0 and [line.split()[-1] for line in out.splitlines() if "line" in line] == list("123678")
    assert out.count("tail of") == 6 and out.count("--\n") == 1


def write_rank_logs(count: int, lines: Callable[[int], list[str]]) -> None:
    for rank in range(count):
        write_log(f"rank{rank}.log", *lines(rank))


def test_what_all_say_is_said_once(run_question: Ask) -> None:
    def make_rank_lines(rank: int) -> list[str]:
        own = [stamp_line(2 + rank / 100, "only here")] if rank == 5 else []
        return [
            stamp_line(
                1 + rank / 100,
                f"rank {rank} on host=gpu-{rank} pid {4000 + rank} at 10.0.0.{rank}:29500 <0x7f{rank:010x}>",
            ),
            *own,
            stamp_line(3 + rank / 100, "step 1 loss 0.5\n    of two lines"),
        ]

    write_rank_logs(12, make_rank_lines)
    code, out, _ = run_question(paths=["."], collapse=True)
    heads = [line.partition("]")[0] + "]" for line in out.splitlines() if line.startswith("[r")]
    assert code == 0 and heads == ["[r0-11]", "[r5]", "[r0-11]"] and out.count("of two lines") == 1


def test_equal_lines_of_one_rank_stay_apart(run_question: Ask) -> None:
    write_rank_logs(2, lambda rank: [stamp_line(n, "again") for n in range(3 - rank)])
    _, out, _ = run_question(paths=["."], collapse=True)
    assert [line.partition("]")[0] for line in out.splitlines()] == ["[r0-1", "[r0-1", "[r0"]


@settings(max_examples=50, deadline=None)
@given(st.integers(1, 5), st.lists(st.sampled_from("abc"), max_size=12), st.randoms())
def test_collapsing_keeps_every_record_of_every_rank(count: int, texts: list[str], chance: random.Random) -> None:
    said = [[text for text in texts if chance.random() < 0.7] for _ in range(count)]
    records = [
        Record(stamp_line(number, text).encode(), Source(f"rank{rank}.log", rank), Stamped, b"")
        for rank in range(count)
        for number, text in enumerate(said[rank])
    ]
    found = list(collapse.iter_groups(records, set(range(count))))
    for rank in range(count):
        mine = sorted(group.text for group in found if rank in group.ranks)
        assert mine == sorted(collapse.normalize_record(record) for record in records if record.rank == rank)


def test_the_window_bounds_what_waits(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(collapse, "WINDOW", 8)
    records = (Record(stamp_line(n, f"n{n}").encode(), Source("rank0.log", 0), Stamped, b"") for n in range(100))
    seen = 0
    for number, _ in enumerate(collapse.iter_groups(iter(records), {0, 1})):
        seen = number + 1
    assert seen == 100


def test_only_what_differs_and_the_first_such_step(run_question: Ask) -> None:
    def make_rank_lines(rank: int) -> list[str]:
        bad = 0.125 if rank == 2 else 0.0
        steps = [
            stamp_line(n + rank / 100, f"step {n} loss {1 / n + (bad if n >= 7 else 0):.4f}") for n in range(1, 10)
        ]
        return [*steps, *([stamp_line(20, "checkpoint saved"), stamp_line(21, "uploaded to /x")] if rank == 0 else [])]

    write_rank_logs(4, make_rank_lines)
    code, out, err = run_question(paths=["."], diverge=True)
    assert code == 0 and err == "tdbg: the first step in which ranks differ: 7\n"
    assert {line.partition("]")[0] for line in out.splitlines()} == {"[r0-1,3", "[r2"}
    assert len(out.splitlines()) == 6 and "checkpoint" not in out  # only rank 0 ever writes that


def test_no_difference(run_question: Ask) -> None:
    write_rank_logs(3, lambda rank: [stamp_line(n + rank / 100, f"step {n}") for n in range(5)])
    assert run_question(paths=["."], diverge=True) == (1, "", "tdbg: no difference between r0-2\n")


@pytest.mark.parametrize(("one", "other", "same"), [
    ("worker 3 died", "worker 4 died", True),
    ("process failed", "process done", False),
    ("took 12:00:01", "took 12:00:09", True),
    ("loss 0.5", "loss 0.6", False),
    ("on cuda:0", "on cuda:1", True),
    ("gpu1:77:78 [0] NCCL INFO x", "gpu2:99:12 [3] NCCL INFO x", True),
    ("hostname: a1", "hostname: b2", True),
    ("operand 3", "operand 4", False),
])  # fmt: skip
def test_what_counts_as_alike(one: str, other: str, same: bool) -> None:
    texts = [Record(stamp_line(1, text).encode(), Source("x"), Stamped, b"") for text in (one, other)]
    first, second = (collapse._NATURE.sub(collapse._mask_match, text.encode()) for text in (one, other))
    assert (first == second) is same
    if "gpu1" not in one:  # NCCL writes no time in front
        assert (collapse.normalize_record(texts[0]) == collapse.normalize_record(texts[1])) is same


def test_json_logs_collapse_too(run_question: Ask) -> None:
    write_rank_logs(
        2, lambda rank: [json.dumps({"time": 17e8 + rank, "rank": rank, "level": "INFO", "message": "hello"}) + "\n"]
    )
    _, out, _ = run_question(paths=["."], collapse=True)
    assert out.startswith("[r0-1] {") and len(out.splitlines()) == 1


def test_spans() -> None:
    assert (
        format_ranks({0, 1, 2, 5, 7, 8}) == "r0-2,5,7-8"
        and format_ranks({3}) == "r3"
        and format_ranks({-1, 0}) == "r?,0"
    )


def test_who_went_quiet_first(run_question: Ask) -> None:
    write_rank_logs(4, lambda rank: [stamp_line(n / 10, f"step {n}") for n in range(30 if rank == 2 else 100)])
    write_log("rank5.log", "")
    code, out, err = run_question(paths=["."], silent=True)
    rows = [line.split("\t") for line in out.splitlines()]
    assert code == 0 and rows[0][0] == "rank" and rows[1][0] == "2" and rows[1][2] == "7"
    assert (
        "tdbg: r2 went quiet first after step 29, 7 s before the last record of any rank\ntdbg: r0 went on: step 30"
        in err
    )
    assert "tdbg: no log of rank 4" in err and rows[-1][0] == "5" and rows[-1][-1] == "(no record)"


def test_a_slower_rank_that_goes_on_is_not_the_quiet_one(run_question: Ask) -> None:
    """r0 dies in step 10; r1, which was in step 8, goes on to write for a minute and more."""
    late = [stamp_line(60 + n, "waiting for r0", "WARNING") for n in range(30)]
    write_rank_logs(
        2, lambda rank: [stamp_line(n, f"step {n}") for n in range(8 if rank else 11)] + (late if rank else [])
    )
    code, out, err = run_question(paths=["."], silent=True)
    quiet = max(out.splitlines()[1:], key=lambda line: float(line.split("\t")[2]))
    assert code == 0 and quiet.startswith("0\t") and out.splitlines()[1] == quiet
    assert "r1 went quiet" not in err and "79 s apart, r0's the earliest" in err, err


def test_a_task_of_one_rank_accuses_nobody(run_question: Ask) -> None:
    after = [stamp_line(200, "evaluation 0.7"), stamp_line(300, "checkpoint saved")]
    write_rank_logs(
        3, lambda rank: [*(stamp_line(n + rank / 100, f"step {n}") for n in range(20)), *(after if rank == 0 else [])]
    )
    _, _, err = run_question(paths=["."], silent=True)
    assert err.startswith("tdbg: no rank stopped while other ranks continued")


def test_the_silent_view_is_filtered_like_the_others(run_question: Ask) -> None:
    write_rank_logs(3, lambda rank: [stamp_line(n, f"step {n}") for n in range(20)])
    _, out, _ = run_question(paths=["."], silent=True, ranks="0,1", steps=":7")
    assert [line.split("\t")[::3] for line in out.splitlines()[1:]] == [["0", "7"], ["1", "7"]]


def test_without_times_the_steps_tell(run_question: Ask) -> None:
    lines = [f"[rank{rank}]: step {n} done\n" for n in range(20) for rank in range(4) if rank != 3 or n < 14]
    write_log("all.log", *lines)
    _, out, err = run_question(paths=["all.log"], silent=True)
    assert err.startswith("tdbg: r3 went quiet first after step 13\n") and len(out.splitlines()) == 5


TANGLED = (
    "[rank3]: 2026-11-20 03:06:40,100 INFO t: step 1\n",
    "[rank0]: 2026-11-20 03:06:40,101 INFO t: step 1\n",
    "[rank3]: Traceback (most recent call last):\n",
    "[rank0]: 2026-11-20 03:06:40,102 INFO t: step 2\n",
    '[rank3]:   File "t.py", line 3, in <module>\n',
    "[rank1]: 2026-11-20 03:06:41,102 ERROR t: Connection closed by peer\n",
    "[rank3]: KeyError: 'a'\n",
    "[rank0]: 2026-11-20 03:06:42,102 INFO t: step 3\n",
)


@pytest.mark.parametrize("timed", [True, False])
def test_mixed_lines_of_ranks_are_put_together(run_question: Ask, timed: bool) -> None:
    import re

    lines = TANGLED if timed else tuple(re.sub(r"2026\S+ \S+ ", "", line) for line in TANGLED)
    write_log("all.log", *lines)
    assert run_question(paths=["all.log"])[1] == "".join(lines)  # nothing is asked: as it is
    _, out, _ = run_question(paths=["all.log"], ranks="3")
    assert out == "".join(line for line in lines if line.startswith("[rank3]"))
    _, out, _ = run_question(paths=["all.log"], regex="KeyError", ranks="3")
    assert out.endswith("KeyError: 'a'\n") and "Traceback" in out and "rank0" not in out
    _, out, _ = run_question(paths=["all.log"], errors=True)
    heads = [line for line in out.splitlines() if line.startswith("==")]
    assert heads[0] == "== r3: KeyError: 'a'" and heads[1].startswith("== r1: the connection")


@settings(max_examples=80, deadline=None)
@given(
    st.lists(st.tuples(st.integers(0, 3), st.sampled_from(["2026-11-20 03:06:40 INFO a", "  more", "x"])), max_size=30)
)
def test_putting_together_loses_no_line_and_keeps_each_ranks_order(said: list[tuple[int, str]]) -> None:
    import io

    from tdbg.logs.untangle import Untangled

    lines = [f"[rank{rank}]: {text} {number}\n".encode() for number, (rank, text) in enumerate(said)]
    stream, into = Untangled(io.BytesIO(b"".join(lines)), Stamped), memoryview(bytearray(37))
    out = b""
    while got := stream.readinto(into):
        out += bytes(into[:got])
    found = out.splitlines(keepends=True)
    assert sorted(found) == sorted(lines)
    for rank in range(4):
        mark = f"[rank{rank}]".encode()
        assert [line for line in found if line.startswith(mark)] == [line for line in lines if line.startswith(mark)]


@pytest.mark.parametrize(
    ("since", "until", "count"),
    [
        ("2026-11-20 03:00:04,200", "", 2),
        ("", "2026-11-20 03:00:04,200", 3),
        ("03:00:04.100", "03:00:04.200", 2),
        ("2026-11-20T03:00", "2026-11-20", 4),
    ],
)
def test_times_as_the_log_writes_them(run_question: Ask, since: str, until: str, count: int) -> None:
    write_log("a.log", *(f"2026-11-20 03:00:04,{n}00 INFO t: {n}\n" for n in range(4)))
    assert run_question(paths=["a.log"], since=since, until=until)[1].count("\n") == count


@pytest.mark.parametrize("text", ["yesterday", "2026-13-45", "25", "03", "25:61", "2026-11-20 24:30"])
def test_what_is_no_time(run_question: Ask, text: str) -> None:
    write_log("a.log", stamp_line(1, "a"))
    with pytest.raises(TdbgError, match="--since cannot be"):
        run_question(paths=["a.log"], since=text)


def test_steps_that_only_the_text_tells(run_question: Ask) -> None:
    texts = ["step 5 loss=nan", "Step: 6/100", "global_step=7", "iteration 8/ 100", "[step 9]", "no number"]
    write_log("a.log", *(stamp_line(n, text) for n, text in enumerate(texts)))
    assert run_question(paths=["a.log"], steps="6:8")[1].count("\n") == 3


def test_a_folder_that_also_holds_runs(run_question: Ask) -> None:
    write_log("train.log", stamp_line(1, "mine"))
    write_log("tdbg_runs/a/run.json", "{}")
    write_log("tdbg_runs/a/rank0000/debug_log_rank0.txt", "2026-11-20T03:06:40.000299 D r0000 s00000001 [DEBUG_LR] x\n")
    assert run_question(paths=["."])[1] == stamp_line(1, "mine")
    for path in ("tdbg_runs", "tdbg_runs/a", "tdbg_runs/a/rank0000"):
        assert "[DEBUG_LR] x" in run_question(paths=[path])[1]


def test_a_traceback_that_nobody_logged_is_an_error(run_question: Ask) -> None:
    write_log(
        "stderr.log",
        "[rank0]: Traceback (most recent call last):\n[rank0]:   File x\n[rank0]: ValueError: y\n",
        "fine\n",
    )
    assert "ValueError" in run_question(paths=["stderr.log"], level="ERROR")[1]


def test_a_file_without_a_last_newline_does_not_run_into_the_next(run_question: Ask) -> None:
    write_log("a.log", stamp_line(1, "a").rstrip("\n"))
    write_log("b.log", stamp_line(2, "b"))
    assert run_question(paths=["a.log", "b.log"])[1] == stamp_line(1, "a") + stamp_line(2, "b")


def test_warnings_of_one_rank_are_a_difference(run_question: Ask) -> None:
    write_rank_logs(
        4, lambda rank: [stamp_line(1, "x"), *([stamp_line(2, "overflow", "WARNING")] if rank == 1 else [])]
    )
    assert "overflow" in run_question(paths=["."], diverge=True)[1]


def test_what_one_rank_never_says_is_a_difference(run_question: Ask) -> None:
    write_rank_logs(
        4,
        lambda rank: [
            line
            for n in range(3)
            for line in ([stamp_line(n, f"step {n}")] + ([stamp_line(n, f"step {n} reduced")] if rank != 2 else []))
        ],
    )
    _, out, _ = run_question(paths=["."], diverge=True)
    assert out.count("[r0-1,3]") == 3


def test_nobody_is_quiet_where_all_end_together(run_question: Ask) -> None:
    write_rank_logs(3, lambda rank: [stamp_line(n + rank / 1000, f"step {n}") for n in range(50)])
    _, _, err = run_question(paths=["."], silent=True)
    assert err == "tdbg: no rank stopped while other ranks continued; their last records are 0.002 s apart\n"


def test_only_the_end_of_a_large_log_is_read(run_question: Ask, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(silent, "TAIL_BYTES", 400)
    write_rank_logs(2, lambda rank: [stamp_line(n, f"step {n}") for n in range(1000)])
    _, out, _ = run_question(paths=["."], silent=True)
    assert out.count("step 999") == 2


def test_first_errors_causes_before_what_they_caused(run_question: Ask) -> None:
    trace = (
        'failed\nTraceback (most recent call last):\n  File "train.py", line 3, in <module>\nValueError: bad batch 17'
    )
    for rank in range(4):
        told = (
            stamp_line(9, trace, "ERROR")
            if rank == 2
            else stamp_line(5 + rank, f"Connection closed by peer [10.0.0.{rank}]:29500", "ERROR")
        )
        write_log(f"rank{rank}.log", stamp_line(1, "fine"), told, stamp_line(30, "later", "ERROR"))
    code, out, _ = run_question(paths=["."], errors=True)
    heads = [line for line in out.splitlines() if line.startswith("==")]
    assert code == 0 and heads[0] == "== r2: ValueError: bad batch #"
    assert heads[1].startswith("== r0-1,3: the connection to another rank broke (usually a consequence of")
    assert "  File" in out and "later" not in out


def test_a_healthy_log_has_no_errors(run_question: Ask) -> None:
    write_rank_logs(2, lambda rank: [stamp_line(n, "fine") for n in range(5)])
    assert run_question(paths=["."], errors=True) == (1, "", "tdbg: no record matches\n")


def test_tables(run_question: Ask) -> None:
    write_log(
        "rank0.log",
        stamp_line(1, "[DEBUG_GRADIENTS_X] a"),
        stamp_line(2, "[DEBUG_GRADIENTS_X] b"),
        stamp_line(3, "[OURS] c", "DEBUG"),
    )
    _, out, _ = run_question(paths=["rank0.log"], stats=True)
    assert out.splitlines()[1].split("\t")[:5] == ["[DEBUG_GRADIENTS_X]", "GRADIENTS", "0", "INFO", "2"]
    _, out, _ = run_question(paths=["rank0.log"], list_prefixes=True)
    assert [line.split("\t")[:3] for line in out.splitlines()[1:]] == [
        ["[DEBUG_GRADIENTS_X]", "GRADIENTS", "2"],
        ["[OURS]", "-", "1"],
    ]
    _, out, _ = run_question(paths=["rank0.log"], list_prefixes=True, format="jsonl")
    assert json.loads(out.splitlines()[1]) == {
        "tag": "[OURS]",
        "flag": None,
        "records": 1,
        "bytes": len(stamp_line(3, "[OURS] c", "DEBUG")),
    }


def test_records_as_json(run_question: Ask) -> None:
    write_log("rank3.log", stamp_line(1, "[DEBUG_LR] a\nb"), "")
    _, out, _ = run_question(paths=["rank3.log"], format="jsonl")
    row = json.loads(out)
    assert (row["rank"], row["level"], row["tag"], row["flag"]) == (3, "INFO", "[DEBUG_LR]", "SCHEDULING") or row[
        "flag"
    ] is not None
    assert row["text"].endswith("a\nb") and row["time"].startswith("20")


def test_tdbg_s_own_lines_in_a_log_of_another_kind(run_question: Ask) -> None:
    own = "2026-11-20T03:06:40.000299 W r0003 s00020000 [DEBUG_LR] a\n    b\n"
    write_log("out.log", *[stamp_line(at, "[DEBUG_AMP] x\nmore") for at in range(40)], own, stamp_line(41, "end"))
    code, out, _ = run_question(paths=["out.log"], flag=["LR"], format="jsonl")
    row = json.loads(out)
    assert code == 0
    assert (row["time"], row["level"], row["rank"], row["step"]) == ("2026-11-20T03:06:40.000299", "WARNING", 3, 20000)
    assert (row["tag"], row["text"]) == ("[DEBUG_LR]", own.rstrip())
    assert run_question(paths=["out.log"], flag=["LR"])[:2] == (0, own)
    assert run_question(paths=["out.log"], flag=["LR"], context=1)[1].splitlines()[1:5] == [
        "more",
        *own.splitlines(),
        stamp_line(41, "end")[:-1],
    ]
    assert run_question(paths=["out.log"], level="WARNING")[:2] == (0, own)


def test_a_table_into_a_file(run_question: Ask) -> None:
    write_log("rank0.log", stamp_line(1, "[OURS] c"))
    assert run_question(paths=["rank0.log"], list_prefixes=True, output="out.tsv") == (0, "", "")
    assert Path("out.tsv").read_text().splitlines()[1].startswith("[OURS]\t")


@pytest.mark.parametrize("text", ["2026-11-21 03:06:40,123", "2026/11/21T03:06:40.123456789", "2026-11-21T03:06:40Z", "1795000000.25", "1121 03:06:40.000299"])  # fmt: skip
def test_times_in_seconds(text: str) -> None:
    assert parse_seconds(normalize_time(text.encode())) is not None


def test_no_date_is_no_time() -> None:
    assert parse_seconds(b"") is None and parse_seconds(b"tomorrow") is None


def test_splitting_is_lossless() -> None:
    data = b"before any header\n" + "".join(stamp_line(n, f"{n}\n  more") for n in range(5)).encode() + b"no newline"
    assert b"".join(split_records(data, detect_format(data))) == data


class Following:
    """A `follow` at work in a thread, and what it emitted."""

    def __init__(self, folder: Path, query: Query) -> None:
        self.seen: list[bytes] = []
        self._end = threading.Event()
        find = lambda: log_files.find_sources([str(folder)])  # noqa: E731
        emit = lambda data, source: self.seen.append(data)  # noqa: E731
        self._thread = threading.Thread(
            target=log_follower.follow_logs, args=(find, query, None, emit, self._end.is_set)
        )
        self._thread.start()

    def wait_for_count(self, count: int) -> list[bytes]:
        end = time.monotonic() + 20
        while len(self.seen) < count and time.monotonic() < end:
            time.sleep(0.02)
        return self.seen

    def stop_following(self) -> list[bytes]:
        self._end.set()
        self._thread.join(20)
        return self.seen


def test_following_growth_rotation_truncation_and_new_ranks(tmp_path: Path) -> None:
    log = tmp_path / "rank0.log"
    lines = [stamp_line(n, f"line {n}\n    more of {n}").encode() for n in range(12)]
    lines[6] = stamp_line(6, "line 6").encode()  # shorter than what was there: that it was cut can be seen at any time
    log.write_bytes(lines[0])
    following = Following(tmp_path, Query())
    try:
        assert following.wait_for_count(1) == lines[:1]
        with log.open("ab", buffering=0) as file:
            file.write(lines[1])
            file.write(lines[2][:20])  # half a line
            time.sleep(0.5)
            file.write(lines[2][20:])
        assert following.wait_for_count(3) == lines[:3]
        with log.open("ab", buffering=0) as file:  # the last words before it is rotated, and the first after
            file.write(lines[3])
            log.rename(tmp_path / "rank0.log.1")
            file.write(lines[4])
            log.write_bytes(lines[5])
        assert following.wait_for_count(6) == lines[:6]
        log.write_bytes(lines[6])  # cut short, and written anew
        assert following.wait_for_count(7) == lines[:7]
        (tmp_path / "rank1.log").write_bytes(lines[7])
        assert following.wait_for_count(8) == lines[:8]
        (tmp_path / "rank0.log.1").unlink()
        log.rename(tmp_path / "rank0.log.1")
        log.write_bytes(lines[8])  # perhaps with the inode of the deleted one
        assert following.wait_for_count(9) == lines[:9]
    finally:
        assert following.stop_following() == lines[:9]


def test_following_filters_whole_records(tmp_path: Path) -> None:
    import re

    log = tmp_path / "rank0.log"
    log.write_bytes(b"")
    following = Following(tmp_path, Query(pattern=re.compile(b"wanted")))
    with log.open("ab", buffering=0) as file:
        for n in range(30):
            file.write(stamp_line(n, f"{'wanted' if n % 10 == 0 else 'other'} {n}\n    tail {n}").encode())
            time.sleep(0.005)
    assert len(following.wait_for_count(3)) == 3
    assert all(b"wanted" in data and b"    tail" in data for data in following.stop_following())


def test_following_stdin_ends_with_it(tmp_path: Path) -> None:
    import subprocess
    import sys

    words = [sys.executable, "-m", "tdbg", "filter-logs", "-", "--follow", "-e", "b"]
    process = subprocess.Popen(words, stdin=subprocess.PIPE, stdout=subprocess.PIPE, cwd=tmp_path)
    assert process.stdin is not None and process.stdout is not None
    process.stdin.write(stamp_line(1, "a").encode() + stamp_line(2, "b").encode())
    process.stdin.flush()
    assert process.stdout.readline() == stamp_line(2, "b").encode()  # while the pipe is open
    process.stdin.close()
    assert process.wait(20) == 0


def test_ctrl_c_ends_following(tmp_path: Path) -> None:
    import signal
    import subprocess
    import sys

    (tmp_path / "a.log").write_text(stamp_line(1, "a"))
    words = [sys.executable, "-m", "tdbg", "filter-logs", "a.log", "--follow"]
    process = subprocess.Popen(words, stdout=subprocess.PIPE, stderr=subprocess.PIPE, cwd=tmp_path)
    assert process.stdout is not None and process.stdout.readline()
    os.kill(process.pid, signal.SIGINT)
    assert process.communicate(timeout=20) == (b"", b"") and process.returncode == 130


def test_a_rank_beyond_all_numbers_is_a_range(run_question: Ask) -> None:
    write_log("x.log", "2026-11-20 03:06:40,000 ERROR [rank3] a\n", "2026-11-20 03:06:41,000 ERROR [rank9999999] b\n")
    _, _, err = run_question(paths=["x.log"], silent=True)
    assert "tdbg: no log of rank 0-2, 4-9999998\n" in err, err[:500]
