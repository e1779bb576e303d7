"""`tdbg metrics` as a user calls it."""

import csv
import io
import json
import os
import subprocess
import sys

import pytest
from metrics.rows_of import Header, make_row, write_rows

from tdbg.metrics.rows.row import FILE


def run_metrics(*words, cwd=None, **more):
    command = [sys.executable, "-m", "tdbg", "metrics", *map(str, words)]
    return subprocess.run(command, capture_output=True, text=True, cwd=cwd, timeout=60, **more)


def parse_table(done):
    """The rows of a piped table as dicts, whatever stands above."""
    lines = done.stdout.splitlines()
    at = next(number for number, line in enumerate(lines) if "\t" in line)
    return list(csv.DictReader(io.StringIO("\n".join(lines[at:])), delimiter="\t"))


def write_run(folder, shift=0.0, ranks=2, steps=30):
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "run.json").write_text('{"schema": 1}')
    for rank in range(ranks):
        path = folder / f"rank{rank:04d}" / FILE
        write_rows(path, Header(rank=rank))
        for step in range(1, steps + 1):
            late = shift if step > 20 else 0.0
            values = {"train/loss": 1 / step + rank + late, "core/train_loss": 1.0, "train/step_ms": step * (1 + shift)}
            write_rows(path, make_row(step, values, rank=rank))
        units = {"val/acc1_genus": "pct"}
        write_rows(
            path,
            make_row(steps, {"val/acc1_genus": 50.0, "val/loss": 2.0}, rank=rank, phase="val", epoch=3, units=units),
        )
        write_rows(path, make_row(steps, {}, rank=rank, text={"schedule/group_str": "a\x1b[2J"}))
    return folder


@pytest.fixture
def metrics_run(tmp_path):
    return write_run(tmp_path / "tdbg_runs" / "20261121-031500-train")


def test_show_tells_latest_best_count_and_course(metrics_run, tmp_path):
    done = run_metrics("show", cwd=tmp_path)
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.splitlines()[0] == "64 rows of 2 ranks, up to step 30, epoch 3"
    rows = {one["key"]: one for one in parse_table(done) if one["latest"]}
    assert list(rows) == ["train/loss", "train/step_ms", "val/loss", "val/acc1_genus"]
    loss = rows["train/loss"]
    assert (loss["latest"], loss["step"], loss["best"], loss["at step"], loss["count"]) == (
        "0.033333",
        "30",
        "0.033333",
        "30",
        "30",
    )
    assert loss["other ranks"] == "1.0333 (rank 1)" and rows["val/loss"]["other ranks"] == "same"
    assert (rows["val/acc1_genus"]["unit"], rows["train/step_ms"]["unit"]) == ("pct", "ms")
    assert rows["val/acc1_genus"]["epoch"] == "3" and loss["course"].startswith("█")
    assert "schedule/group_str: a\\x1b[2J" in done.stdout


def test_show_of_chosen_ranks_and_keys(metrics_run):
    done = run_metrics("show", metrics_run, "--ranks", "1", "--key", "*loss", "-k", "lr/*")
    assert done.returncode == 2 and "no key matches 'lr/*'" in done.stderr
    done = run_metrics("show", metrics_run, "--ranks", "1", "--key", "*loss")
    assert [one["key"] for one in parse_table(done)] == ["train/loss", "val/loss", "core/train_loss"]
    assert parse_table(done)[0]["latest"] == "1.0333"
    done = run_metrics("show", metrics_run, "--ranks", "5")
    assert done.returncode == 2 and "no rank of 5" in done.stderr


def test_show_as_json_has_every_rank(metrics_run):
    told = json.loads(run_metrics("show", metrics_run, "--json").stdout)
    assert (told["kind"], told["version"]) == ("metrics-show", 1)
    losses = [one for one in told["data"]["series"] if one["key"] == "train/loss"]
    assert [(one["rank"], one["count"], one["best"]["step"], one["source"]) for one in losses] == [
        (0, 30, 30, "tracker"),
        (1, 30, 30, "tracker"),
    ]
    assert told["data"]["rows"] == 64 and told["data"]["lines_passed_over"] == 0


def test_a_killed_and_a_foreign_file_are_read_as_far_as_they_go(metrics_run):
    path = metrics_run / "rank0000" / FILE
    with path.open("ab") as file:
        file.write(b'{"loss": 1}\n{"t":1,"step":31,"values":{"train/loss":0.')
    done = run_metrics("show", path)
    assert done.returncode == 0 and "2 lines skipped" in done.stderr
    assert next(one for one in parse_table(done) if one["key"] == "train/loss")["step"] == "30"


def test_two_sources_of_one_key_are_told_apart(tmp_path):
    path = write_rows(tmp_path / FILE, make_row(1, {"train/loss": 1.0}), make_row(1, {"train/loss": 2.0}, source="hf"))
    found = [(one["key"], one["latest"], one["count"], one["source"]) for one in parse_table(run_metrics("show", path))]
    assert found == [("train/loss", "2", "1", "hf"), ("train/loss", "1", "1", "tracker")]


def test_values_that_are_not_finite_are_told(tmp_path):
    values = [1.0, float("nan"), 0.5, float("inf")]
    path = write_rows(tmp_path / FILE, *(make_row(step, {"train/loss": value}) for step, value in enumerate(values)))
    done = run_metrics("show", path)
    (one,) = parse_table(done)
    assert (one["latest"], one["best"], one["at step"], one["count"]) == ("inf", "0.5", "2", "4")
    assert "train/loss: 2 values of rank 0 not finite" in done.stderr
    assert json.loads(run_metrics("show", path, "--json").stdout)["data"]["series"][0]["latest"]["value"] == "inf"


def test_no_rows_is_the_answer_no(tmp_path):
    path = write_rows(tmp_path / FILE, Header())
    done = run_metrics("show", path)
    assert (done.returncode, done.stdout) == (1, "") and "there are no metrics yet" in done.stderr


@pytest.mark.parametrize("sub", ["show", "dump", "plot", "compare"])
def test_nothing_there_is_said_in_two_lines(tmp_path, sub):
    (tmp_path / "empty").mkdir()
    done = run_metrics(sub, "empty", cwd=tmp_path)
    assert done.returncode == 2 and len(done.stderr.splitlines()) == 2 and "no metrics" in done.stderr
    done = run_metrics(sub, "nowhere/at/all.jsonl", cwd=tmp_path)
    assert done.returncode == 2 and "Traceback" not in done.stderr


def test_dump_gives_the_state_at_a_step(metrics_run):
    told = json.loads(run_metrics("dump", metrics_run, "--step", "10", "--ranks", "0").stdout)
    assert (told["kind"], told["data"]["step"]) == ("metrics-dump", 10)
    loss = next(one for one in told["data"]["rows"] if one["key"] == "train/loss")
    assert (loss["value"], loss["step"], loss["best_step"], loss["count"], loss["least"]) == (0.1, 10, 10, 10, 0.1)
    assert not any(one["phase"] == "val" for one in told["data"]["rows"])
    ended = json.loads(run_metrics("dump", metrics_run, "--phase", "val", "--json").stdout)["data"]["rows"]
    assert {one["key"] for one in ended} == {"val/acc1_genus", "val/loss"} and {one["unit"] for one in ended} == {
        "pct",
        None,
    }


def test_dump_of_every_value_as_csv_and_parquet_are_equal(metrics_run, tmp_path):
    parquet = pytest.importorskip("pyarrow.parquet")
    done = run_metrics("dump", metrics_run, "--series", "--format", "csv")
    values = list(csv.DictReader(io.StringIO(done.stdout)))
    assert len(values) == 2 * (30 * 3 + 2)
    out = tmp_path / "m.parquet"
    assert run_metrics("dump", metrics_run, "--series", "--format", "parquet", "--out", out).returncode == 0
    columns = parquet.read_table(out).to_pydict()
    assert columns["value"] == [float(one["value"]) for one in values]
    assert columns["step"] == [int(one["step"]) for one in values] and columns["key"] == [one["key"] for one in values]
    told = json.loads(run_metrics("dump", metrics_run, "--series").stdout)["data"]["rows"]
    assert [one["value"] for one in told] == columns["value"]
    again = run_metrics("dump", metrics_run, "--series", "--format", "parquet", "--out", out)
    assert again.returncode == 2 and "--force" in again.stderr
    assert run_metrics("dump", metrics_run, "--format", "parquet").returncode == 2


def test_dump_of_states_that_were_kept(metrics_run):
    kept = metrics_run / "rank0000" / "metrics_state"
    kept.mkdir()
    for step in (10, 20):
        (kept / f"val-{step}.json").write_text(json.dumps({"kind": "metrics_state", "step": step, "phase": "val"}))
    (kept / "torn.json").write_text('{"kind"')
    done = run_metrics("dump", metrics_run, "--states", "--step", "15")
    assert [one["step"] for one in json.loads(done.stdout)["data"]["states"]] == [10] and "torn.json" in done.stderr
    assert len(json.loads(run_metrics("dump", metrics_run, "--states", "--phase", "val").stdout)["data"]["states"]) == 2
    none = run_metrics("dump", metrics_run, "--states", "--ranks", "1")
    assert none.returncode == 2 and "DUMP_METRICS" in none.stderr


@pytest.mark.parametrize(
    "line",
    [
        "dump {} --format xml",
        "dump {} --step x",
        "dump {} --series --states",
        "plot {} --smooth 1",
        "plot {} --height 1",
        "compare {} {} --tolerance x",
        "show {} {}",
        "plot {} nothing/here",
        "compare",
        "show {} --ranks x",
    ],
)
def test_wrong_use_is_two_lines_and_code_2(metrics_run, line):
    done = run_metrics(*line.format(metrics_run, metrics_run).split())
    assert done.returncode == 2 and len(done.stderr.splitlines()) == 2, done.stderr


def test_plot_draws_a_graph_a_key(metrics_run):
    done = run_metrics("plot", metrics_run, "train/loss", "val/*", "--height", "4")
    assert done.returncode == 0 and done.stderr == ""
    heads = [line for line in done.stdout.splitlines() if "/" in line]
    assert heads == [
        "train/loss  rank 0: 0.033333, rank 1: 1.0333",
        "val/acc1_genus  rank 0: 50, rank 1: 50",
        "val/loss  rank 0: 2, rank 1: 2",
    ]
    graph = done.stdout.split("\n\n")[0].splitlines()
    assert (
        len(graph) == 7
        and graph[1].startswith("       2 │")
        and graph[4].startswith("0.033333 │")
        and graph[6].endswith("30")
    )
    assert graph[1].rstrip()[8:] and "⠀" not in done.stdout


def test_plot_as_json_and_of_the_newest_run(metrics_run, tmp_path):
    told = json.loads(run_metrics("plot", "train/loss", "--json", "--ranks", "0", cwd=tmp_path).stdout)
    (curve,) = told["data"]["curves"]
    assert curve["steps"] == list(range(1, 31)) and curve["values"][9] == 0.1
    done = run_metrics("plot", "train/los", cwd=tmp_path)
    assert done.returncode == 2 and "did you mean" in done.stderr and "train/loss" in done.stderr


def test_compare_of_equal_runs_is_0(metrics_run, tmp_path):
    other = write_run(tmp_path / "other")
    done = run_metrics("compare", metrics_run, other)
    assert done.returncode == 0 and "no difference in 6 series" in done.stdout
    assert "step_ms" not in done.stdout  # differs on any machine


def test_compare_tells_the_first_step_where_series_part(metrics_run, tmp_path):
    other = write_run(tmp_path / "other", shift=0.25)
    done = run_metrics("compare", metrics_run, other)
    assert done.returncode == 1
    assert "2 of 6 series diverge, first at step 21: train/loss" in done.stdout
    first = parse_table(done)[0]
    assert (first["key"], first["diverges at"], first["steps"], first["differ"]) == ("train/loss", "21", "30", "10")
    assert (first["A there"], first["B there"]) == ("0.047619", "0.29762")
    assert run_metrics("compare", metrics_run, other, "--key", "val/*").returncode == 0
    assert run_metrics("compare", metrics_run, other, "--key", "train/step_ms").returncode == 1
    assert run_metrics("compare", metrics_run, other, "--tolerance", "95%").returncode == 0
    told = json.loads(run_metrics("compare", metrics_run, other, "--json", "--tolerance", "0.01").stdout)["data"][
        "compared"
    ][0]
    assert told["differs"] and next(one for one in told["series"] if one["key"] == "train/loss")["parted"]["step"] == 21


def test_compare_within_the_spread(tmp_path):
    import random

    for name, seed, shift in (("a", 1, 0.0), ("b", 2, 0.0), ("c", 3, 5.0)):
        chance = random.Random(seed)
        rows = (make_row(s, {"train/loss": 1.0 + shift * (s > 50) + chance.gauss(0, 0.1)}) for s in range(1, 101))
        write_rows(tmp_path / name / FILE, *rows)
    a, b, c = (tmp_path / name for name in "abc")
    assert run_metrics("compare", a, b).returncode == 1
    assert run_metrics("compare", a, b, "--tolerance", "spread").returncode == 0
    done = run_metrics("compare", a, b, c, "--tolerance", "spread")
    assert done.returncode == 1 and "first at step 51" in done.stdout and done.stdout.count("A: ") == 2


def test_compare_of_other_keys_and_other_lengths(tmp_path):
    a = write_rows(tmp_path / "a" / FILE, *(make_row(s, {"train/loss": 1.0, "val/acc1": 1.0}) for s in range(1, 41)))
    b = write_rows(tmp_path / "b" / FILE, *(make_row(s, {"train/loss": 1.0, "val/f1": 1.0}) for s in range(5, 200, 2)))
    done = run_metrics("compare", a, b)
    assert (
        done.returncode == 0
        and "only A has 1 key: val/acc1" in done.stderr
        and "only B has 1 key: val/f1" in done.stderr
    )
    (one,) = json.loads(run_metrics("compare", a, b, "--json", "--key", "train/*").stdout)["data"]["compared"][0][
        "series"
    ]
    assert (one["steps"], one["steps_of_a_alone"], one["steps_of_b_alone"]) == (18, 22, 80)


@pytest.mark.parametrize(
    "line", ["show {}", "show {} --json", "dump --format=csv {}", "plot {} train/loss", "compare {} {}"]
)
def test_the_thin_front_and_the_whole_parser_say_the_same(metrics_run, line):
    words = line.format(metrics_run, metrics_run).split()
    code = "import sys; from tdbg import cli; sys.exit(cli.main(['metrics', *sys.argv[1:]]))"
    whole = subprocess.run([sys.executable, "-c", code, *words], capture_output=True, text=True, timeout=60)
    thin = run_metrics(*words)
    assert (whole.returncode, whole.stdout) == (thin.returncode, thin.stdout) and whole.stdout


def test_reading_loads_no_torch(metrics_run):
    code = f"import sys; from tdbg import cli; cli.main(['metrics', 'show', {str(metrics_run)!r}]); sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, timeout=60).returncode == 0


def test_a_closed_pipe_is_quiet(metrics_run):
    command = f"{sys.executable} -m tdbg metrics dump {metrics_run} --series --format csv | head -n 1"
    done = subprocess.run(["bash", "-o", "pipefail", "-c", command], capture_output=True, text=True, timeout=60)
    assert (done.returncode, done.stderr) == (0, "")


def test_a_terminal_that_lacks_letters_gets_escapes(metrics_run):
    done = run_metrics("show", metrics_run, env={**os.environ, "PYTHONIOENCODING": "ascii"})
    assert done.returncode == 0 and "\\u2588" in done.stdout
