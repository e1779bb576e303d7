"""`tdbg metrics`: what it says where there is little to say, and what it must not hide."""

import json

import pytest
from cli.test_metrics import parse_table, run_metrics, write_run
from metrics.rows_of import Header, make_row, write_rows

from tdbg.metrics.rows.row import FILE

NAN = float("nan")


def write_validation_row(path, duration, loss=1.0):
    values = {"val/loss": loss, "val/avg_samples_per_sec": 1 / duration, "val/epoch_duration_sec": duration}
    return write_rows(path / FILE, make_row(5, values, phase="val"))


def test_timings_are_compared_where_their_exact_name_is_asked_for(tmp_path):
    a, b = write_validation_row(tmp_path / "a", 1.0), write_validation_row(tmp_path / "b", 2.0)
    done = run_metrics("compare", a, b, "--tolerance", "1%", "--key", "val/*")
    assert done.returncode == 0 and "no difference in 1 series" in done.stdout
    assert run_metrics("compare", a, b, "--key", "val/*", "--key", "val/epoch_duration_sec").returncode == 1


@pytest.mark.parametrize("more", [(), ("--json",)])
def test_nothing_to_compare_is_the_answer_no(tmp_path, more):
    a = write_rows(tmp_path / "a" / FILE, make_row(1, {"train/loss": 1.0}))
    b = write_rows(tmp_path / "b" / FILE, make_row(1, {"val/f1": 1.0}))
    done = run_metrics("compare", a, b, *more)
    assert done.returncode == 1 and "share no key at any step" in done.stderr
    assert bool(done.stdout) and ("--json" not in more or json.loads(done.stdout))


@pytest.mark.parametrize("sub", ["show", "dump", "plot", "sanity"])
@pytest.mark.parametrize("more", [(), ("--json",)])
def test_no_rows_is_the_answer_no_in_one_line(tmp_path, sub, more):
    path = write_rows(tmp_path / FILE, Header())
    done = run_metrics(sub, path, *more)
    assert done.returncode == 1 and len(done.stderr.splitlines()) == 1, done.stderr


@pytest.mark.parametrize("sub", ["show", "dump", "plot", "sanity", "compare"])
def test_a_file_of_something_else_is_unreadable_input(tmp_path, sub):
    path = tmp_path / "weights.bin"
    path.write_bytes(bytes(range(1, 256)) * 12)
    done = run_metrics(sub, path, *([path] if sub == "compare" else []))
    assert done.returncode == 2, done.stderr
    assert [line.split(": ")[-1] for line in done.stderr.splitlines()] == [
        "no row of metrics in 13 lines",
        "name a run, its metrics.jsonl, or a file of JSON lines, each with a step and numbers",
    ]


def test_one_run_is_compared_with_the_newest_which_is_said(tmp_path):
    runs = tmp_path / "tdbg_runs"
    for name in ("20261121-031500-before", "20261121-031600-after"):
        write_run(runs / name)
    done = run_metrics("compare", "before", cwd=tmp_path)
    assert done.returncode == 0 and "it is compared with the newest, " in done.stderr and "-after" in done.stderr
    done = run_metrics("compare", "after", cwd=tmp_path)
    assert done.returncode == 2 and done.stderr.splitlines() == [
        "tdbg: after is the newest run itself",
        "tdbg: name two: `tdbg metrics compare BEFORE AFTER`",
    ]


def test_a_phase_or_step_that_is_not_there_is_named_with_the_nearest(tmp_path):
    path = write_rows(tmp_path / FILE, make_row(5, {"val/loss": 1.0}, phase="val"), make_row(7, {"train/loss": 1.0}))
    done = run_metrics("dump", path, "--phase", "vall")
    assert done.returncode == 1 and done.stderr.splitlines() == [
        "tdbg: no row is of phase 'vall'",
        "tdbg: did you mean val?",
    ]
    done = run_metrics("dump", path, "--step", "0")
    assert done.returncode == 1 and done.stderr.splitlines() == [
        "tdbg: no row is as early as step 0",
        "tdbg: the first is of step 5",
    ]
    done = run_metrics("dump", path, "--series", "--key", "val/los")
    assert done.returncode == 1 and "did you mean val/loss?" in done.stderr


def test_json_and_another_format_are_refused(tmp_path):
    path = write_rows(tmp_path / FILE, make_row(5, {"val/loss": 1.0}))
    done = run_metrics("dump", path, "--json", "--format", "csv")
    assert done.returncode == 2 and len(done.stderr.splitlines()) == 2 and done.stdout == ""
    assert run_metrics("dump", path, "--json", "--format", "json").returncode == 0


@pytest.mark.parametrize("line", ["dump {} --out {}", "dump {} --format parquet --out {}", "plot {} --html {}"])
def test_errors_name_the_path_that_was_given(tmp_path, line):
    path = write_rows(tmp_path / FILE, make_row(5, {"val/loss": 1.0}))
    done = run_metrics(*line.format(path, "no/such/folder/out.x").split(), cwd=tmp_path)
    assert done.returncode == 2 and "no/such/folder/out.x" in done.stderr and ".part" not in done.stderr
    assert len(done.stderr.splitlines()) == 2


def test_an_empty_key_is_shown(tmp_path):
    path = write_rows(tmp_path / FILE, make_row(5, {"": 1.0}))
    assert [one["key"] for one in parse_table(run_metrics("show", path))] == ["''"]
    assert run_metrics("plot", path).stdout.startswith("''  last 1")


def test_states_of_chosen_keys_and_phases(tmp_path):
    path = write_rows(tmp_path / "rank0000" / FILE, make_row(5, {"val/loss": 1.0}))
    kept = path.parent / "metrics_state"
    kept.mkdir()
    phases = {
        name: {"metrics": {f"{name}/loss": {"value": 1.0}, f"{name}/f1": {"value": 2.0}}} for name in ("train", "val")
    }
    state = {
        "kind": "metrics_state",
        "step": 5,
        "phase": None,
        "phases": phases,
        "stores": {"lr/group0": {"value": 0.1}},
    }
    (kept / "val.json").write_text(json.dumps(state))

    def dump_states(*words):
        (one,) = json.loads(run_metrics("dump", path, "--states", *words).stdout)["data"]["states"]
        return {name: sorted(found["metrics"]) for name, found in one["phases"].items()}, sorted(one["stores"])

    assert dump_states("--key", "val/l*") == ({"val": ["val/loss"]}, [])
    assert dump_states("--key", "lr/*") == ({}, ["lr/group0"])
    assert dump_states("--phase", "train")[0] == {"train": ["train/f1", "train/loss"]}
    for words, what, there in (
        (("--key", "val/nothing"), "no state has", "val/loss"),
        (("--phase", "vall"), "no state has", "did you mean val?"),
        (("--step", "4"), "no state is as early as step 4", "step 5"),
    ):
        none = run_metrics("dump", path, "--states", *words)
        dump_states = none.stderr.splitlines()
        assert none.returncode == 1 and none.stdout == "" and len(dump_states) == 2, none.stderr
        assert what in dump_states[0] and there in dump_states[1]


def test_nan_stands_in_the_course_the_plot_and_the_findings(tmp_path):
    """Seen: a NaN loss was in no course, in no curve, and no finding named it."""
    losses = [1.0, 0.9, NAN, 0.7, NAN]
    path = write_rows(tmp_path / FILE, *(make_row(10 * at, {"train/loss": loss}) for at, loss in enumerate(losses)))
    (one,) = parse_table(run_metrics("show", path))
    assert one["latest"] == "nan" and one["course"] == "█▆×▁×"
    graph = run_metrics("plot", path).stdout.splitlines()
    assert "last nan (2 not finite)" in graph[0] and graph[-2].count("×") == 2 and graph[-2].endswith("×")
    (curve,) = json.loads(run_metrics("plot", path, "--json").stdout)["data"]["curves"]
    assert curve["not_finite_steps"] == [20, 40] and curve["steps"] == [0, 10, 30]
    done = run_metrics("sanity", path, "--fail-on", "warning")
    assert done.returncode == 1
    assert done.stdout.startswith(
        "TD-K011 warning: train/loss was not finite 2 of 5 times, first nan at step 20, rank 0"
    )


def test_nan_is_a_gap_on_the_page(tmp_path):
    pytest.importorskip("plotly")
    path = write_rows(tmp_path / FILE, *(make_row(at, {"train/loss": loss}) for at, loss in enumerate([1.0, NAN, 0.5])))
    assert run_metrics("plot", path, "--html", tmp_path / "a.html").returncode == 0
    page = (tmp_path / "a.html").read_text(encoding="utf-8").replace(", ", ",").replace(": ", ":")
    assert '"values":[1.0,0.5]' in page and '"not_finite_spans":[[1,1,1,"nan"]]' in page  # charts.js breaks the line


def test_rows_that_were_left_out_are_told_with_their_reason(tmp_path):
    rows = [make_row(step, {"train/loss": 1.0}, source="tdbg") for step in (1, 2, 5, 10)]
    rows.append(make_row(10, {"x": 1.0}, source="wandb", phase=None, left_out={"overhead": 12}))
    rows.append(make_row(12, {}, source="tdbg", phase=None, left_out={"overhead": 3, "disk": 1, "news\x1b[2J": 2}))
    path = write_rows(tmp_path / "rank0000" / FILE, *rows)
    done = run_metrics("show", path)
    told = done.stderr.splitlines()
    assert done.returncode == 0 and len(told) == 4
    assert told[0].startswith("tdbg: 1 row left out from step 12 on: ") and "--disk-budget" in told[0]
    assert told[1] == "tdbg: 2 rows left out from step 12 on: news\\x1b[2J"
    assert told[2].startswith("tdbg: 15 rows left out from step 10 on: ") and "--max-overhead" in told[2]
    assert told[3].startswith("tdbg: 4 of 12 steps recorded, because of ") and "--max-overhead" in told[3]
    write_rows(tmp_path / "rank0001" / FILE, rows[0], rows[1])
    told = run_metrics("show", tmp_path).stderr.splitlines()
    assert len(told) == 4 and all(line.startswith("tdbg: rank 0: ") for line in told)
    data = json.loads(run_metrics("show", path, "--json").stdout)["data"]
    assert {"rank": 0, "why": "overhead", "rows": 15, "from_step": 10} in data["rows_left_out"]
    assert data["steps_recorded"] == [{"rank": 0, "steps": 12, "recorded": 4}]


def test_nothing_is_said_where_nothing_was_left_out(tmp_path):
    rows = [make_row(step, {"train/loss": 1.0}, source="tdbg") for step in range(7, 20)]
    assert run_metrics("show", write_rows(tmp_path / FILE, *rows)).stderr == ""
