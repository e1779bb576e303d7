"""Rows of files that grow: read piece by piece they make the same series as read at once."""

import gc
import json
import random
import tracemalloc
from collections.abc import Callable
from pathlib import Path

import pytest

from tdbg.metrics.render.curve_data import CurveCollector
from tdbg.metrics.rows.growing_rows import GrowingReading, OutdatedError, can_grow
from tdbg.metrics.rows.row_files import RowsFile
from tdbg.metrics.rows.row_reader import Reading
from tdbg.metrics.rows.series import Tally, build_tally
from tdbg.metrics.rows.series_data import describe_metrics, list_series

HEADER = b'{"schema":1,"rank":0}\n'


def make_rows(count: int) -> bytes:
    """Rows of two sources; some have a value that is not finite, or a text."""
    drawn, found = random.Random(7), bytearray(HEADER)
    for step in range(1, count + 1):
        values = {"train/loss": "NaN" if step % 50 == 7 else drawn.random(), "train/lr": 0.1}
        row = {"t": float(step), "step": step, "rank": 0, "source": "train", "values": values}
        if step % 30 == 0:
            row |= {
                "source": "eval",
                "phase": "val",
                "values": {"val/acc": drawn.random()},
                "text": {"note": f"at {step}"},
            }
        found += json.dumps(row).encode() + b"\n"
    return bytes(found)


def describe(found: Tally, reading: Reading) -> dict[str, object]:
    return describe_metrics("run", list_series(found.assign_units(), lambda key: True), found, reading.counts)


@pytest.mark.parametrize("seed", range(4))
def test_pieces_of_any_length_make_the_same_series(tmp_path: Path, seed: int) -> None:
    data, drawn, path = make_rows(1500), random.Random(seed), tmp_path / "metrics.jsonl"
    path.write_bytes(b"")
    reading, found = GrowingReading([RowsFile(path, 0)]), Tally()
    at = 0
    while at < len(data):
        end = min(at + drawn.randint(1, 20_000), len(data))
        with path.open("ab") as file:
            file.write(data[at:end])
        for batch in reading.iter_batches():
            found.add_batch(batch)
        assert reading.has_rest == (data[end - 1 : end] != b"\n")
        at = end
    whole = Reading([RowsFile(path, 0)])
    assert describe(found, reading) == describe(build_tally(whole.iter_batches()), whole)
    assert reading.counts.rows == 1500 and not list(reading.iter_batches())


def read_grown(path: Path, before: bytes, after: bytes) -> None:
    path.write_bytes(before)
    reading = GrowingReading([RowsFile(path, 0)])
    assert list(reading.iter_batches())
    path.write_bytes(after)
    list(reading.iter_batches())


def test_a_file_that_was_cut_or_begins_another_attempt_is_outdated(tmp_path: Path) -> None:
    data, path = make_rows(20), tmp_path / "metrics.jsonl"
    read_grown(path, data, data + b"no row\n")
    for after in (data[:-100], data + HEADER, data + make_rows(1)):
        with pytest.raises(OutdatedError):
            read_grown(path, data, after)


@pytest.mark.parametrize("rows", [3, 20])
def test_a_longer_file_of_other_rows_is_outdated(tmp_path: Path, rows: int) -> None:
    """In place, so with the same inode: rows of both would be taken for those of one file."""
    path = tmp_path / "metrics.jsonl"
    for wrong in (b'"train/lr": 0.2', b'"train/lr": 0.15'):
        with pytest.raises(OutdatedError):
            read_grown(path, make_rows(rows), make_rows(rows + 30).replace(b'"train/lr": 0.1', wrong))


@pytest.mark.parametrize("at", [0, -1])
def test_a_file_that_differs_at_one_end_of_what_was_read_is_outdated(tmp_path: Path, at: int) -> None:
    data, path = make_rows(20), tmp_path / "metrics.jsonl"
    lines = data.splitlines(keepends=True)
    lines[at] = lines[at].replace(b"0", b"1")
    assert len(b"".join(lines)) == len(data) and b"".join(lines) != data
    with pytest.raises(OutdatedError):
        read_grown(path, data, b"".join([*lines, lines[-1]]))


def test_another_file_that_begins_alike_is_outdated(tmp_path: Path) -> None:
    data, path = make_rows(20), tmp_path / "metrics.jsonl"
    path.write_bytes(data)
    reading = GrowingReading([RowsFile(path, 0)])
    assert list(reading.iter_batches())
    path.rename(tmp_path / "before")
    path.write_bytes(data)
    with pytest.raises(OutdatedError):
        list(reading.iter_batches())


def make_keys(count: int, rows: int, value: str, text: str = "") -> bytes:
    """Rows with so many keys, and a text of their own."""
    values = ",".join(f'"train/metric_{at}":{value}' for at in range(count))
    row = '{"t":1.0,"step":%d,"rank":0,"source":"train","values":{%s},"text":{"note_%d":"%s"}}\n'
    return HEADER + "".join(row % (step, values, step, text) for step in range(1, rows + 1)).encode()


@pytest.mark.parametrize("collect", [Tally, lambda: CurveCollector((), 0.0)], ids=["series", "curves"])
@pytest.mark.parametrize(
    "data",
    [
        make_keys(1000, 1, "0.5"),
        make_keys(1000, 3, '"NaN"'),
        make_keys(20, 1000, '"NaN"'),
        make_keys(20, 5000, "0.5"),
        make_keys(1, 20, "0.5", "x" * 50_000),
    ],
    ids=["many", "nan", "long nan", "long", "texts"],
)
def test_the_numbers_that_are_counted_take_the_memory(
    tmp_path: Path, collect: Callable[[], Tally | CurveCollector], data: bytes
) -> None:
    path = tmp_path / "metrics.jsonl"
    path.write_bytes(data)
    found = collect()
    tracemalloc.start()
    try:
        for batch in Reading([RowsFile(path, 0)]).iter_batches():
            found.add_batch(batch)
        del batch
        gc.collect()
        taken, _ = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert taken < 20 * found.count_numbers() + 20_000


def test_the_last_step_is_the_same_however_rows_come(tmp_path: Path) -> None:
    """Steps begin again without a header: of one part the largest was taken, of another the last."""
    path, counts = tmp_path / "metrics.jsonl", (3000, 2000)
    rows = b"".join(make_rows(count).removeprefix(HEADER) for count in counts)
    path.write_bytes(HEADER + rows)
    whole = Reading([RowsFile(path, 0)])
    told = describe(build_tally(whole.iter_batches()), whole)
    assert told["ranks"] == {"0": {"step": 3000, "epoch": None, "t": 3000.0}}
    reading, found = GrowingReading([RowsFile(path, 0)]), Tally()
    path.write_bytes(HEADER)
    for line in rows.splitlines(keepends=True):
        with path.open("ab") as file:
            file.write(line)
        for batch in reading.iter_batches():
            found.add_batch(batch)
    assert describe(found, reading) == told


def test_only_files_of_single_attempts_can_grow(tmp_path: Path) -> None:
    path = tmp_path / "metrics.jsonl"
    assert can_grow([RowsFile(path, 0), RowsFile(path, 1)])
    for files in ([RowsFile(path, 0), RowsFile(path, 0)], [RowsFile(path, 0, 1)], [RowsFile(path)]):
        assert not can_grow(files)
    assert not can_grow([RowsFile(tmp_path / "state.json", 0)])
