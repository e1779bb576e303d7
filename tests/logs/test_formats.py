"""Each kind of log that people have: where its records begin, and what their headers say."""

import io
import re
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tdbg.core.errors import TdbgError
from tdbg.logs.engine import filter_bytes
from tdbg.logs.formats import FORMATS, SNIFF_LINES, Format, detect_format, normalize_time
from tdbg.logs.log_files import Source
from tdbg.logs.query import Matcher, Query, resolve_tag_family
from tdbg.logs.records import Record

TRACEBACK = b'Traceback (most recent call last):\n  File "t.py", line 3, in f\n    x\nValueError: bad\n'
GREEN, BOLD, OFF = b"\x1b[32m", b"\x1b[1m", b"\x1b[0m"
# name of the kind -> format, records, and of the last one: level, rank, tag
KINDS: dict[str, tuple[str, list[bytes], tuple[int | None, int | None, bytes | None]]] = {
    "tdbg": (
        "tdbg",
        [
            b"2026-11-21T03:06:40.000299 D r0003 s00000012 [DEBUG_LR] two\n    lines\n",
            b"2026-11-21T03:06:40.000299 W r0003 s00000012 [DEBUG_LR] one\n",
        ],
        (30, 3, b"[DEBUG_LR]"),
    ),
    "basicConfig": (
        "leveled",
        [b"INFO:root:a\n", b"WARNING:pkg.mod:[DEBUG_LR] b\n" + TRACEBACK],
        (30, None, b"[DEBUG_LR]"),
    ),
    "asctime levelname": (
        "stamped",
        [b"2026-11-21 03:06:40,123 INFO a\n", b"2026-11-21 03:06:40,123 ERROR [DEBUG_LR] b\n" + TRACEBACK],
        (40, None, b"[DEBUG_LR]"),
    ),
    "[rank] asctime levelname": (
        "stamped",
        [
            b"[rank0] 2026-11-21 03:06:40,123 INFO a\n  more of it\n",
            b"[rank3] 2026-11-21 03:06:40,123 ERROR [DEBUG_LR] b\n" + TRACEBACK,
        ],
        (40, 3, b"[DEBUG_LR]"),
    ),
    "[Rank] - levelname": (
        "leveled",
        [b"[Rank 0] - INFO:root:a\n", b"[Rank 3] - WARNING:pkg.mod:[DEBUG_LR] b\n" + TRACEBACK],
        (30, 3, b"[DEBUG_LR]"),
    ),
    "asctime - name - levelname": (
        "stamped",
        [
            b"2026-11-21 03:06:40,123 - root - INFO - see [DEBUG_LR]\n",
            b"2026-11-21 03:06:40,123 - a.b - DEBUG - [DEBUG_LR] b\n",
        ],
        (10, None, b"[DEBUG_LR]"),
    ),
    "levelname name:": (
        "stamped",
        [b"2026-11-21 03:06:40,123 INFO a\n", b"2026-11-21 03:06:40,123 [INFO] train.loop: [DEBUG_LR] b\n"],
        (20, None, b"[DEBUG_LR]"),
    ),
    "loguru": (
        "stamped",
        [
            b"2026-11-21 03:06:40.123 | SUCCESS  | mod:fn:12 - a\n",
            b"2026-11-21 03:06:40.123 | INFO     | mod:fn:12 - [DEBUG_LR] msg\n" + TRACEBACK,
        ],
        (20, None, b"[DEBUG_LR]"),
    ),
    "loguru in colours": (
        "stamped",
        [
            GREEN
            + b"2026-11-21 03:06:40.123"
            + OFF
            + b" | "
            + BOLD
            + b"WARNING "
            + OFF
            + b" | "
            + GREEN
            + b"mod"
            + OFF
            + b":"
            + GREEN
            + b"fn"
            + OFF
            + b":"
            + GREEN
            + b"12"
            + OFF
            + b" - "
            + BOLD
            + b"[DEBUG_LR] msg"
            + OFF
            + b"\n",
        ],
        (30, None, b"[DEBUG_LR]"),
    ),
    "glog": (
        "glog",
        [b"I1121 03:06:40.123000 140123 file.py:12] a\n", b"W1121 03:06:40.123000 140123 file.py:12] [DEBUG_LR] b\n"],
        (30, None, b"[DEBUG_LR]"),
    ),
    "torchrun": (
        "glog",
        [
            b"W1121 03:06:40.123000 1234 torch/distributed/run.py:792] \n",
            b"E1121 03:06:41.000000 1234 torch/x.py:1] failed\n",
        ],
        (40, None, None),
    ),
    "torch's C++": (
        "glog",
        [b"[rank1]:[W1121 03:06:40.123456789 ProcessGroupNCCL.cpp:12] Warning: x (function y)\n"],
        (30, 1, None),
    ),
    "old torchrun": (
        "stamped",
        [b"[2026-11-21 03:06:40,123] torch.distributed.run: [WARNING] *****\n"],
        (30, None, None),
    ),
    "nccl": (
        "nccl",
        [
            b"node-1:1234:1301 [0] NCCL INFO Bootstrap : Using eth0\n",
            b"node-1:1234:1301 [1] 12.5 NCCL WARN Cuda failure\n",
        ],
        (30, None, None),
    ),
    "HF Trainer": (
        "lines",
        [
            b"{'loss': 0.5, 'learning_rate': 5e-05, 'epoch': 0.1}\n",
            TRACEBACK.replace(b"T", b"x\nT", 1),
            b"{'loss': nan}\n",
        ],
        (None, None, None),
    ),
    "transformers": (
        "transformers",
        [b"[INFO|trainer.py:2134] 2026-11-21 03:06:40,123 >> ***** Running training *****\n"],
        (20, None, None),
    ),
    "accelerate's examples": (
        "stamped",
        [
            b"11/21/2026 03:06:40 - INFO - __main__ - ***** Running training *****\n",
            b"11/21/2026 03:06:40 - ERROR - a.b - x\n",
        ],
        (40, None, None),
    ),
    "DeepSpeed": (
        "stamped",
        [
            b"[2026-11-21 03:06:40,123] [INFO] [comm.py:637:init] cdb=None\n",
            b"[2026-11-21 03:06:40,123] [WARNING] [engine.py:12:fn] [Rank 7] [DEBUG_LR] msg\n",
        ],
        (30, 7, b"[DEBUG_LR]"),
    ),
    "detectron2": (
        "detectron2",
        [
            GREEN + b"[11/21 03:06:40 d2.engine]: " + OFF + b"Starting\n",
            b"\x1b[5m\x1b[31mWARNING" + OFF + b" " + GREEN + b"[11/21 03:06:40 d2.engine]: " + OFF + b"[DEBUG_LR] b\n",
        ],
        (30, None, b"[DEBUG_LR]"),
    ),
    "detectron2's file": ("stamped", [b"[11/21/2026 03:06:40] d2.engine INFO: a\n"], (20, None, None)),
    "vLLM": ("leveled", [b"INFO 11-21 03:06:40 [core.py:12] [DEBUG_LR] x\n"], (20, None, b"[DEBUG_LR]")),
    "structlog": (
        "json",
        [
            b'{"event": "a", "level": "info"}\n',
            b'{"level": "warning", "rank": 2, "event": "[DEBUG_LR] b", "timestamp": "2026-11-21T03:06:40Z"}\n',
        ],
        (30, 2, b"[DEBUG_LR]"),
    ),
    "records.jsonl": (
        "json",
        [
            b'{"time": 1.7e9, "level": "DEBUG", "rank": 2, "step": 7, "flags": ["OTHER"], "message": "[DEBUG_FORWARD] x"}\n',
            b'{"time": 1.7e9, "level": "INFO", "rank": 2, "step": 7, "flags": ["LR"], "message": "no prefix at all"}\n',
        ],
        (20, 2, b"[DEBUG_LR]"),
    ),
    "tqdm": (
        "lines",
        [b"Epoch 0:   0%|          | 0/10\rEpoch 0: 100%|####| 10/10 [00:01<00:00]\n", b"`Trainer.fit` stopped\n"],
        (None, None, None),
    ),
    "rank prefix": (
        "stamped",
        [b"[rank3]: 2026-11-21 03:06:40 ERROR bad\n[rank3]:   indented\n", b"[rank12]: 2026-11-21 03:06:40 INFO x\n"],
        (20, 12, None),
    ),
    "local rank prefix": ("stamped", [b"[default3]:2026-11-21 03:06:40 ERROR bad\n"], (40, 3, None)),
    "local rank prefix and a field": (
        "tdbg",
        [b"[default1]:2026-11-21T03:06:40.000299 W r0009 s00000012 [DEBUG_LR] x\n[default1]:    more\n"],
        (30, 9, b"[DEBUG_LR]"),
    ),
    "srun -l": ("stamped", [b" 3: ".lstrip() + b"2026-11-21 03:06:40 ERROR bad\n"], (40, 3, None)),
}


def split_records(data: bytes, form: type[Format]) -> list[bytes]:
    """The records, told by what starts one."""
    lines = io.BytesIO(data).readlines()
    found: list[bytes] = []
    for line in lines:
        if form.start.match(line) or not found:
            found.append(line)
        else:
            found[-1] += line
    return found


@pytest.mark.parametrize("kind", KINDS)
def test_each_kind_of_log_is_known_and_split_into_records(kind: str) -> None:
    name, records, (level, rank, tag) = KINDS[kind]
    data = b"".join(line for line in records * 3)
    form = detect_format(data)
    assert form.name == name
    assert split_records(data, form) == records * 3
    found = form.header.match(records[-1])
    assert found is not None
    assert (form.level(found), form.rank(found), next(iter(form.tags(found)), None)) == (level, rank, tag)


@pytest.mark.parametrize("kind", [kind for kind, (_, _, (_, _, tag)) in KINDS.items() if tag])
def test_a_flag_takes_the_records_of_each_kind_that_have_its_tag(kind: str) -> None:
    name, records, _ = KINDS[kind]
    wanted = [record for record in records if record is records[-1] or name == "tdbg"]
    matcher = Matcher(Query(families=(resolve_tag_family("LR"),)), FORMATS[name])
    assert filter_bytes(b"".join(records * 2), matcher) == b"".join(wanted * 2)
    other = Matcher(Query(families=(resolve_tag_family("MEMORY"),)), FORMATS[name])
    assert filter_bytes(b"".join(records * 2), other) == b""


@pytest.mark.parametrize("kind", [kind for kind, (_, _, (level, _, _)) in KINDS.items() if level and level >= 30])
def test_a_level_takes_the_records_of_each_kind_that_have_it(kind: str) -> None:
    name, records, _ = KINDS[kind]
    form = FORMATS[name]
    wanted = [record for record in records if (form.level(form.header.match(record)) or 0) >= 30]  # type: ignore[arg-type]
    assert wanted and filter_bytes(b"".join(records), Matcher(Query(level=30), form)) == b"".join(wanted)


def test_a_tag_in_a_message_or_a_traceback_is_none() -> None:
    record = (
        b"2026-11-21 03:06:40,123 - a - INFO - the loss of [DEBUG_LR] is 1\n"
        b'Traceback (most recent call last):\n[DEBUG_LR]\n  "[DEBUG_LR]"\nValueError: [DEBUG_LR]\n'
    )
    assert filter_bytes(record * 2, Matcher(Query(families=(resolve_tag_family("LR"),)), detect_format(record))) == b""
    own = b"2026-11-21T03:06:40.000299 D r0003 s00000012 [DEBUG_FORWARD] x\n    " + b" " * 41 + b"[DEBUG_LR] y\n"
    assert filter_bytes(own * 2, Matcher(Query(families=(resolve_tag_family("LR"),)), detect_format(own))) == b""


def test_a_wide_rank_or_step_moves_the_tag() -> None:
    wide = b"2026-11-21T03:06:40.000299 D r12345 s123456789 [DEBUG_LR] x\n"
    usual = b"2026-11-21T03:06:40.000299 D r0003 s00000012 [DEBUG_LR] x\n    more\n"
    matcher = Matcher(Query(families=(resolve_tag_family("LR"),)), detect_format(usual))
    assert filter_bytes(usual + wide + usual, matcher) == usual + wide + usual


def test_times_sort_as_text() -> None:
    assert normalize_time(b"11/21/2026 03:06:40") == b"2026-11-21T03:06:40"
    assert normalize_time(b"2026/11/21 03:06:40,5") == b"2026-11-21T03:06:40.5"
    query = Query(since=b"2026-11-21T03:06:41", until=b"2026-11-21T03:07")
    lines = [b"11/21/2026 03:06:4%d - INFO - a - x\n" % second for second in range(4)]
    assert filter_bytes(b"".join(lines), Matcher(query, detect_format(lines[0]))) == b"".join(lines[1:])


def test_a_format_of_another_package_is_found_by_its_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "strange_logs.py").write_text(
        textwrap.dedent(
            """
            import re
            from tdbg.logs.formats import Format

            class Strange(Format):
                name = "strange"
                header = re.compile(rb"<<(?P<tag>\\[[A-Z_]+\\])?")
            """
        )
    )
    info = tmp_path / "strange_logs-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: strange-logs\nVersion: 1.0\n")
    (info / "entry_points.txt").write_text("[tdbg.log_formats]\nstrange = strange_logs:Strange\n")
    code = (
        "import sys; from tdbg.logs.formats import FORMATS; from tdbg.logs.engine import filter_bytes\n"
        "from tdbg.logs.query import Matcher, Query\n"
        "FORMATS['lines']; assert 'strange_logs' not in sys.modules\n"
        "data = b'<<[DEBUG_LR] a\\nb\\n<<[DEBUG_FORWARD] c\\n'\n"
        "sys.stdout.buffer.write(filter_bytes(data, Matcher(Query(families=('DEBUG_LR',)), FORMATS['strange'])))"
    )
    root = str(Path(__file__).parents[2])
    done = subprocess.run(
        [sys.executable, "-c", code],
        env={"PYTHONPATH": f"{tmp_path}:{root}"},
        capture_output=True,
        timeout=60,
        check=False,
    )
    assert (done.stdout, done.stderr) == (b"<<[DEBUG_LR] a\nb\n", b"")
    with pytest.raises(TdbgError, match="no log format is named 'stamp'") as caught:
        FORMATS["stamp"]
    assert "did you mean stamped?" in caught.value.hint


def test_a_rank_is_that_of_the_path_then_of_the_launcher_then_of_the_header() -> None:
    def make_line(prefix: bytes) -> bytes:
        return prefix + b"2026-11-21T03:06:40.000299 W r0009 s00000012 [DEBUG_LR] x\n"

    kinds = {b"": 9, b"[rank3]: ": 3, b"3: ": 3, b"[default3]:": 9}
    for prefix, rank in kinds.items():
        data = make_line(prefix)
        for wanted in (3, 9):
            matcher = Matcher(Query(ranks=((wanted, wanted),)), FORMATS["tdbg"])
            assert filter_bytes(data, matcher) == (data if wanted == rank else b"")
    for rank, kept in ((5, True), (9, False)):
        matcher = Matcher(Query(ranks=((rank, rank),)), FORMATS["tdbg"], 5)
        assert matcher.possible is kept and filter_bytes(make_line(b"[rank9]: "), matcher) == (
            make_line(b"[rank9]: ") if kept else b""
        )


STAMPED = (
    b"2026-11-20 03:06:40,123", b"11/20/2026 03:06:40", b"[", b"(", b"]", b" ", b"-", b":", b"INFO", b"[INFO]", b"a.b",
    b"[rank3]:", b"\x1b[32m", b"[DEBUG_LR]", b"x.py:5", b"Z", b"+01:00", b"\n", b"\xff", b"2026-11-20T03:06:40.5",
)  # fmt: skip


def test_no_expression_has_a_possessive_group() -> None:
    """Before Python 3.11.5 a possessive group whose last try fails takes a byte too many; an atomic one is right."""
    group = re.compile(rb"\)(?:[*+?]|\{\d*,?\d*\})\+")
    for form in FORMATS:
        for pattern in (form.header.pattern, form.start.pattern, form.record(form.header.pattern)):
            assert not group.search(pattern), (form.name, group.search(pattern))


@settings(max_examples=300, deadline=None)
@given(st.lists(st.sampled_from(STAMPED), max_size=8).map(b"".join))
def test_a_sure_start_is_a_header(line: bytes) -> None:
    for form in FORMATS:
        if form.sure_start and form.start.match(line):
            assert form.header.match(line), form.name


OWN = [
    b"2026-11-20T03:06:40.000299 D r0003 s00020000 [DEBUG_NULL_MASKING_INPUT] 128 targets\n    more of it\n",
    b"2026-11-20T03:06:40.000299 E r0003 s00020000 [DEBUG_NULL_MASKING] 17 without a label\n",
]
FOREIGN = [kind for kind, (name, _, _) in KINDS.items() if name != "tdbg"]


def mix_records(kind: str, often: int) -> list[bytes]:
    """Records of a kind, so many times, then two of tdbg's own, and that three times."""
    return [*KINDS[kind][1] * often, *OWN] * 3


@pytest.mark.parametrize("often", [1, 30])
@pytest.mark.parametrize("kind", FOREIGN)
def test_tdbg_s_own_lines_are_records_in_a_log_of_another_kind(kind: str, often: int) -> None:
    records = mix_records(kind, often)
    data = b"".join(records)
    form = detect_format(data)
    found = split_records(data, form)
    assert [record for record in found if record in OWN] == OWN * 3

    def filter_data(query: Query) -> bytes:
        return filter_bytes(data, Matcher(query, form))

    assert filter_data(Query(families=(resolve_tag_family("NULL_MASKING"),))) == b"".join(OWN * 3)
    assert filter_data(Query(families=(resolve_tag_family("NULL_MASKING"),), level=40)) == OWN[1] * 3
    assert filter_data(Query(prefixes=(b"[DEBUG_NULL",))) == b"".join(OWN * 3)
    assert filter_data(Query(steps=((20000, 20000),))) == b"".join(OWN * 3)
    assert filter_data(
        Query(ranks=((3, 3),), since=b"2026-11-20T03:06:40.0002", until=b"2026-11-20T03:06:41")
    ).endswith(OWN[1])
    assert OWN[1] in filter_data(Query(level=40)) and OWN[0] not in filter_data(Query(level=40))
    assert not any(own in filter_data(Query(excluded=(resolve_tag_family("NULL_MASKING"),))) for own in OWN)


@pytest.mark.parametrize("often", [1, 30])
@pytest.mark.parametrize("kind", [kind for kind in FOREIGN if KINDS[kind][2][2]])
def test_the_others_are_what_they_are_without_them(kind: str, often: int) -> None:
    records = mix_records(kind, often)
    data, others = b"".join(records), b"".join(record for record in records if record not in OWN)
    for query in (Query(families=(resolve_tag_family("LR"),)), Query(excluded=(resolve_tag_family("NULL_MASKING"),))):
        assert (
            filter_bytes(data, Matcher(query, detect_format(data)))
            == filter_bytes(others, Matcher(query, detect_format(others)))
            != b""
        )


def test_a_record_of_tdbg_s_own_says_what_it_is_in_any_log() -> None:
    for kind in FOREIGN:
        found = Record(OWN[0], Source("x"), FORMATS[KINDS[kind][0]], b"")
        said = found.time, found.level, found.rank, found.step, found.tag
        assert said == (b"2026-11-20T03:06:40.000299", 10, 3, 20000, b"[DEBUG_NULL_MASKING_INPUT]"), kind
        assert found.text == b"[DEBUG_NULL_MASKING_INPUT] 128 targets\n    more of it\n"


def test_a_launcher_s_prefix_stands_before_tdbg_s_own_lines_too() -> None:
    data = b"".join([b"INFO:root:a\n" * 30, b"[rank3]: " + OWN[1], b"INFO:root:a\n"])
    query = Query(families=(resolve_tag_family("NULL_MASKING"),), ranks=((3, 3),))
    assert filter_bytes(data, Matcher(query, detect_format(data))) == b"[rank3]: " + OWN[1]


def test_own_lines_that_come_long_after_the_beginning_are_found() -> None:
    data = b"2026-11-21 03:06:40,123 INFO a\n" * 9000 + OWN[0] + b"2026-11-21 03:06:40,123 INFO a\n"
    assert len(data) > 4 * SNIFF_LINES
    assert (
        filter_bytes(
            data, Matcher(Query(families=(resolve_tag_family("NULL_MASKING"),)), detect_format(data[: 1 << 16]))
        )
        == OWN[0]
    )


def test_a_format_of_another_package_with_flags_in_its_expression_is_joined_with_tdbg_s_own() -> None:
    class Loud(Format):
        name = "loud"
        header = re.compile(rb"(?i)loud (?P<tag>\[[A-Z_]+\])?")

    data = b"LOUD [DEBUG_LR] a\nmore\n" + OWN[0] + b"loud b\n"
    assert split_records(data, Loud) == [b"LOUD [DEBUG_LR] a\nmore\n", OWN[0], b"loud b\n"]
    assert (
        filter_bytes(data, Matcher(Query(families=(resolve_tag_family("LR"),)), Loud)) == b"LOUD [DEBUG_LR] a\nmore\n"
    )
    assert filter_bytes(data, Matcher(Query(steps=((20000, 20000),)), Loud)) == OWN[0]
