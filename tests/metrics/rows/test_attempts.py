"""A run that was killed and resumed reads as one: no gap, no double."""

from metrics.rows_of import Header, list_lines, make_row, run_program, write_rows

from tdbg.metrics.rows.row import FILE
from tdbg.metrics.rows.row_files import find_rows_files
from tdbg.metrics.rows.row_reader import Reading
from tdbg.metrics.sinks.jsonl import JsonlSink, RowFile, headers_in


def list_steps(path):
    return [(line.source, line.step, line.values["train/loss"]) for line in list_lines(path)]


def make_rows(first, last, value, **more):
    return [make_row(step, {"train/loss": value}, **more) for step in range(first, last + 1)]


def test_rows_behind_the_checkpoint_are_made_again(tmp_path):
    path = write_rows(tmp_path / FILE, Header(), *make_rows(1, 7, 0.0, source="tracker"))
    write_rows(path, Header(attempt=1, resumed_after={"tracker": 4}), *make_rows(5, 9, 1.0, source="tracker"))
    assert list_steps(path) == [("tracker", s, 0.0) for s in range(1, 5)] + [("tracker", s, 1.0) for s in range(5, 10)]


def test_a_checkpoint_counts_even_if_no_row_followed_at_its_steps(tmp_path):
    path = write_rows(tmp_path / FILE, Header(), *make_rows(1, 7, 0.0))
    write_rows(path, Header(attempt=1, resumed_after={"tracker": 4}), *make_rows(7, 8, 1.0))
    assert [step for _, step, _ in list_steps(path)] == [1, 2, 3, 4, 7, 8]


def test_without_word_of_a_checkpoint_the_first_step_tells(tmp_path):
    path = write_rows(tmp_path / FILE, Header(), *make_rows(1, 7, 0.0), *make_rows(1, 3, 9.0, source="wandb"))
    write_rows(path, Header(attempt=1), *make_rows(5, 6, 1.0))
    reading = Reading(find_rows_files(str(path)).files)
    kept = [(line.source, line.step) for _, line in reading.iter_lines()]
    assert kept == [("tracker", s) for s in range(1, 5)] + [("wandb", s) for s in (1, 2, 3)] + [
        ("tracker", 5),
        ("tracker", 6),
    ]
    assert reading.counts.again == 3


def test_of_three_attempts_the_earliest_beginning_holds(tmp_path):
    path = write_rows(tmp_path / FILE, Header(), *make_rows(1, 20, 0.0))
    write_rows(path, Header(attempt=1, resumed_after={"tracker": 10}), *make_rows(11, 15, 1.0))
    write_rows(path, Header(attempt=2, resumed_after={"tracker": 12}), *make_rows(13, 14, 2.0))
    values = [value for _, _, value in list_steps(path)]
    assert values == [0.0] * 10 + [1.0] * 2 + [2.0] * 2


def test_attempts_in_folders_of_their_own(tmp_path):
    write_rows(tmp_path / "rank0000" / FILE, Header(), *make_rows(1, 6, 0.0))
    write_rows(tmp_path / "rank0000" / "attempt1" / FILE, Header(attempt=1), *make_rows(4, 8, 1.0))
    write_rows(tmp_path / "rank0001" / FILE, Header(rank=1), *make_rows(1, 6, 5.0, rank=1))
    found = [
        (rank, line.step, line.values["train/loss"])
        for rank, line in Reading(find_rows_files(str(tmp_path)).files).iter_lines()
    ]
    ours = [(s, v) for rank, s, v in found if rank == 0]
    assert ours == [(s, 0.0) for s in (1, 2, 3)] + [(s, 1.0) for s in range(4, 9)]
    assert [s for rank, s, _ in found if rank == 1] == list(range(1, 7))


def test_ranks_that_share_a_file_are_kept_apart(tmp_path):
    path = write_rows(tmp_path / FILE, Header(rank=0), Header(rank=1))
    for step in (1, 2):
        write_rows(path, *(make_row(step, {"train/loss": float(rank)}, rank=rank) for rank in (0, 1)))
    write_rows(path, Header(rank=1, attempt=1), make_row(2, {"train/loss": 7.0}, rank=1))
    found = sorted(
        (rank, line.step, line.values["train/loss"])
        for rank, line in Reading(find_rows_files(str(path)).files).iter_lines()
    )
    assert found == [(0, 1, 0.0), (0, 2, 0.0), (1, 1, 1.0), (1, 2, 7.0)]


def test_torn_lines_and_strangers_are_counted_not_read(tmp_path):
    path = write_rows(tmp_path / FILE, Header(), make_row(1, {"train/loss": 1.0}))
    with path.open("ab") as file:
        file.write(b'{"loss": 3}\nplain text\n\xff\xfe\n')
    write_rows(path, make_row(2, {"train/loss": 2.0}))
    with path.open("ab") as file:
        file.write(b'{"t":1,"step":3,"rank":0,"source":"tracker","values":{"train/lo')
    reading = Reading(find_rows_files(str(path)).files)
    assert [line.step for _, line in reading.iter_lines()] == [1, 2]
    assert (reading.counts.rows, reading.counts.broken) == (2, 4)


def test_a_last_line_that_lacks_its_end_alone_counts(tmp_path):
    path = write_rows(tmp_path / FILE, Header(), *make_rows(1, 2, 0.0))
    path.write_bytes(path.read_bytes()[:-1])
    assert [step for _, step, _ in list_steps(path)] == [1, 2]


def test_headers_are_found_across_blocks(tmp_path, monkeypatch):
    path = tmp_path / FILE
    for attempt in range(5):
        write_rows(path, Header(attempt=attempt), *make_rows(10 * attempt, 10 * attempt + 9, float(attempt)))
    whole = list_steps(path)
    assert [step for _, step, _ in whole] == list(range(50))
    for block in (17, 64, 1000):
        monkeypatch.setattr("tdbg.metrics.rows.attempts.BLOCK", block)
        monkeypatch.setattr("tdbg.metrics.rows.row_reader.BLOCK", block)
        monkeypatch.setattr("tdbg.metrics.sinks.jsonl.BLOCK", block)
        assert list_steps(path) == whole and headers_in(path) == 5


WRITER = """
import sys
from tdbg.metrics.rows.row import Row
from tdbg.metrics.sinks.jsonl import JsonlSink
sink = JsonlSink(sys.argv[1])
if len(sys.argv) > 4: sink.resumed(int(sys.argv[4]))
for step in range(int(sys.argv[2]), int(sys.argv[3]) + 1):
    sink.write(Row(0.0, step, None, "train", 0, {"train/loss": float(step)}))
"""


def test_a_process_that_appends_says_so_and_joins_no_torn_line(tmp_path):
    path = tmp_path / "deep" / FILE
    assert run_program(WRITER, path, 1, 6).returncode == 0
    path.write_bytes(path.read_bytes()[:-9])  # a kill amid the last line
    assert run_program(WRITER, path, 4, 8, 3).returncode == 0
    assert [step for _, step, _ in list_steps(path)] == list(range(1, 9))
    assert (
        headers_in(path) == 2
        and b'"attempt":1' in path.read_bytes()
        and b'"resumed_after":{"tracker":3}' in path.read_bytes()
    )


def test_a_forked_child_leaves_the_file_alone(tmp_path):
    code = """
import os, sys
from tdbg.metrics.rows.row import Row
from tdbg.metrics.sinks.jsonl import JsonlSink
sink = JsonlSink(sys.argv[1])
sink.write(Row(0.0, 1, values={"train/loss": 1.0}))
pid = os.fork()
if not pid:
    try: sink.write(Row(0.0, 2, values={"train/loss": 2.0}))
    except OSError: os._exit(0 if sink.file.dropped == 1 else 4)
    os._exit(3)
status = os.waitpid(pid, 0)[1]
sink.write(Row(0.0, 3, values={"train/loss": 3.0}))
sys.exit(status >> 8)
"""
    path = tmp_path / FILE
    done = run_program(code, path)
    assert done.returncode == 0, done.stderr
    assert [step for _, step, _ in list_steps(path)] == [1, 3] and headers_in(path) == 1


def test_sinks_of_one_process_share_a_file(tmp_path):
    path = tmp_path / FILE
    one, other = JsonlSink(path), JsonlSink(path, source="mine")
    for step in (1, 2):
        one.write(make_row(step, {"train/loss": 1.0}))
        other.write(make_row(step, {"train/loss": 2.0}, source="mine"))
    assert headers_in(path) == 1 and len(list_lines(path)) == 4


def test_a_logger_that_resumes_in_a_file_that_is_open_speaks_for_itself_alone(tmp_path):
    """Under `tdbg run` the feed writes the same file already."""
    path = write_rows(tmp_path / FILE, Header(), *make_rows(1, 9, 0.0))
    feed = RowFile(lambda: path, on_trouble=print)
    for step in (1, 2):
        feed.write_row(make_row(step, {"train/loss": 7.0}, source="tdbg"))
    sink = JsonlSink(path)
    sink.resumed(4)
    sink.write(make_row(5, {"train/loss": 1.0}))
    feed.write_row(make_row(2, {"val/loss": 7.0}, source="tdbg"))
    found = [(line.source, line.step) for line in list_lines(path)]
    assert found == [("tracker", s) for s in (1, 2, 3, 4)] + [("tdbg", 1), ("tdbg", 2), ("tracker", 5), ("tdbg", 2)]
    sink.resumed(2)  # an earlier checkpoint, in the same process
    sink.write(make_row(3, {"train/loss": 2.0}))
    assert [line.step for line in list_lines(path) if line.source == "tracker"] == [1, 2, 3]
    assert headers_in(path) == 4
