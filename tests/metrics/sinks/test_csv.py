"""The CSV sink: a file a rank, its attempts told apart, and nobody else's file."""

import math
import os

from metrics.rows_of import make_row, read_csv, run_program

from tdbg.metrics.sinks.csv_ import CsvSink
from tdbg.metrics.sinks.fan_out import FanOut
from tdbg.metrics.step_logger.step_metrics_logger import StepMetricsLogger


def test_csv_is_read_back_exactly(tmp_path):
    path = tmp_path / "deep" / "m.csv"
    for part in (0, 1):  # the second process goes on in the file of the first
        sink = CsvSink(path)
        values = {"train/loss": 0.1 + part, 'va"l,/x': math.nan}
        sink.write(make_row(part, values, text={"schedule/group_str": "a,\n'b'"}))
        sink.close()
    read = read_csv(path)
    assert [(one["step"], one["key"]) for one in read[:3]] == [
        ("0", "train/loss"),
        ("0", 'va"l,/x'),
        ("0", "schedule/group_str"),
    ]
    assert float(read[3]["value"]) == 1.1 and read[1]["value"] == "nan" and read[2]["value"] == "a,\n'b'"
    assert len(read) == 6 and path.read_text().count("t,step,epoch") == 1


def test_attempts_in_one_csv_are_told_apart(tmp_path):
    code = """
import sys
from tdbg.metrics.rows.row import Row
from tdbg.metrics.sinks.csv_ import CsvSink
for _ in range(2):  # the second goes on in the same attempt
    sink = CsvSink(sys.argv[1])
    sink.write(Row(1e9, 1, values={"train/loss": 0.5}, text={"a/b_str": "a\\n0,0,0.000,"}))
    sink.close()
"""
    path = tmp_path / "m.csv"
    for _ in range(2):
        assert run_program(code, path).returncode == 0
    with path.open("ab") as file:
        file.write(b"1,0,1000000000.000,2,,,tra")  # a kill tore it
    sink = CsvSink(path)
    sink.write(make_row(1, {"train/loss": 0.5}))
    sink.resumed(0)
    sink.write(make_row(1, {"train/loss": 0.75}))
    sink.close()
    found = [(one["attempt"], one["value"]) for one in read_csv(path) if one["key"] == "train/loss"]
    assert found == [("0", "0.5")] * 2 + [("1", "0.5")] * 2 + [("2", "0.5"), ("3", "0.75")]


def test_a_program_that_changes_its_folder_moves_no_file(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with StepMetricsLogger(sinks=["csv"], folder="m", rank=0, console=False) as log:
        (tmp_path / "elsewhere").mkdir()
        monkeypatch.chdir(tmp_path / "elsewhere")
        log.log_step_metrics({"loss": 1.0}, step=10)
    assert {path.name for path in (tmp_path / "m").iterdir()} == {"metrics.csv", "metrics.jsonl"}
    assert not list((tmp_path / "elsewhere").iterdir())


def test_csv_never_writes_into_a_file_of_somebody_else(tmp_path):
    path = tmp_path / "m.csv"
    path.write_text("name,age\nx,3\n")
    said = []
    fan = FanOut([CsvSink(path)], said.append)
    for step in range(4):
        fan.write(make_row(step, {"train/loss": 1.0}))
    fan.close()
    assert path.read_text() == "name,age\nx,3\n" and "not written by this sink" in said[0] and "lost 4 rows" in said[1]


def test_a_forked_child_writes_nothing_into_the_csv_of_its_parent(tmp_path):
    sink = CsvSink(tmp_path / "m.csv")
    sink.write(make_row(1, {"train/loss": 1.0}))
    child = os.fork()
    if not child:
        try:
            sink.write(make_row(2, {"train/loss": 2.0}))
        except OSError:
            os._exit(7)
        os._exit(0)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 7
    sink.write(make_row(3, {"train/loss": 3.0}))
    assert [one["step"] for one in read_csv(tmp_path / "m.csv")] == ["1", "3"]
