"""The traces that a path names."""

import os

import pytest
from traces.material import make_op, write_trace

from tdbg.core.errors import TdbgError
from tdbg.traces.parse.trace_files import find_traces, select_newest_windows

EVENTS = [make_op("aten::mm", 0, 1)]


def list_labels(found):
    return [one.label for one in found]


def write_trace_at(path):
    path.parent.mkdir(parents=True, exist_ok=True)
    return write_trace(path, EVENTS)


def test_a_run_has_its_traces_by_rank_attempt_and_time(tmp_path):
    for name in (
        "rank0010/traces/host_7.1700000000000000009.pt.trace.json.gz",
        "rank0000/traces/host_5.1700000000000000002.pt.trace.json.gz",
        "rank0000/traces/host_5.1600000000000000001.pt.trace.json.gz",
        "rank0000/attempt1/traces/host_6.1500000000000000001.pt.trace.json.gz",
    ):
        write_trace_at(tmp_path / name)
    (tmp_path / "run.json").write_text("{}")
    found = find_traces(str(tmp_path))
    assert list_labels(found) == ["rank 0", "rank 0, window 1", "rank 0, attempt 1", "rank 10"]
    assert list_labels(select_newest_windows(found)) == ["rank 0, attempt 1", "rank 10"]
    assert list_labels(find_traces(str(tmp_path), lambda rank: rank > 3)) == ["rank 10"]
    with pytest.raises(TdbgError, match="no trace of these ranks"):
        find_traces(str(tmp_path), lambda rank: rank == 7)


def test_of_several_runs_the_newest_is_meant_and_it_is_said(tmp_path, capsys):
    for begun, run, names in ((2, "a", ("rank0000",)), (1, "b", ("rank0000/attempt1", "rank0001"))):
        for name in names:
            write_trace_at(tmp_path / run / name / "traces" / f"host.170000000000000000{begun}.pt.trace.json.gz")
        (tmp_path / run / "run.json").write_text("{}")
        os.utime(tmp_path / run / "run.json", (begun, begun))
    found = find_traces(str(tmp_path))
    assert (
        list_labels(select_newest_windows(found)) == list_labels(found) == ["rank 0"]
    )  # neither rank 1 nor the attempt of an older run
    assert found[0].path.is_relative_to(tmp_path / "a")
    assert f"there are traces of 2 runs: using the newest, {tmp_path / 'a'}" in capsys.readouterr().err
    assert list_labels(find_traces(str(tmp_path / "b"))) == ["rank 0, attempt 1", "rank 1"]
    assert capsys.readouterr().err == ""


def make_run(folder):
    folder.mkdir()
    (folder / "run.json").write_text("{}")
    return folder


NAME = "host.1700000000000000001.pt.trace.json"


@pytest.mark.parametrize(
    ("link", "why"),
    [
        (f"rank0000/traces/{NAME}", "it is a symbolic link; tdbg follows no links in a run directory"),
        ("rank0000", "it is a link to a folder, and those are not followed"),
    ],
)
def test_a_link_in_a_run_is_said_to_be_one(tmp_path, capsys, link, why):
    run, elsewhere = make_run(tmp_path / "run"), write_trace_at(tmp_path / "elsewhere" / NAME)
    place = run / link
    place.parent.mkdir(parents=True, exist_ok=True)
    place.symlink_to(elsewhere if link.endswith(NAME) else elsewhere.parent)
    for named in {run, place.parent}:
        with pytest.raises(TdbgError) as said:
            find_traces(str(named))
        assert str(said.value) == f"there is no trace that can be read: {place} is left out: {why}"
        assert "name what a link points to" in said.value.hint
    assert list_labels(find_traces(str(elsewhere))) == [NAME], "the next step that was named"
    assert capsys.readouterr().err == ""
    write_trace_at(run / "rank0001" / "traces" / NAME)
    assert list_labels(find_traces(str(run))) == ["rank 1"]
    assert f"{place} is left out: {why}" in capsys.readouterr().err, "nor is it passed over in silence beside others"


def test_a_link_that_is_named_is_followed_unless_it_leads_nowhere(tmp_path, capsys):
    (tmp_path / "to.json").symlink_to(write_trace_at(tmp_path / "elsewhere" / NAME))
    (tmp_path / "nowhere.json").symlink_to(tmp_path / "none")
    assert list_labels(find_traces(str(tmp_path / "to.json"))) == ["to.json"]
    with pytest.raises(TdbgError, match=r"nowhere\.json is a broken link: its target does not exist"):
        find_traces(str(tmp_path / "nowhere.json"))
    many = tmp_path / "many"
    many.mkdir()
    for number in range(3):
        (many / f"folder{number}").symlink_to(tmp_path / "elsewhere")
    with pytest.raises(TdbgError, match=r"folder0 is left out: it is a link to a folder, .* \(and 2 more\)"):
        find_traces(str(many))
    capsys.readouterr()
    write_trace_at(many / NAME)
    assert list_labels(find_traces(str(many))) == [NAME] and capsys.readouterr().err == "", (
        "latest-run, say, is none of its business"
    )


def test_a_pipe_is_said_to_be_one(tmp_path):
    (tmp_path / "traces").mkdir()
    os.mkfifo(tmp_path / "traces" / NAME)
    for named in (tmp_path, tmp_path / "traces" / NAME):
        with pytest.raises(TdbgError, match=r"is left out: it is a pipe, not a regular file"):
            find_traces(str(named))


def test_any_json_that_begins_as_a_trace_counts_where_no_name_says_so(tmp_path):
    write_trace_at(tmp_path / "step.json")
    write_trace_at(tmp_path / "deep" / "rank-3.json.gz")
    (tmp_path / "config.json").write_text('{"lr": 0.1}')
    (tmp_path / "broken.json.gz").write_bytes(b"\x1f\x8b\x00")
    assert list_labels(find_traces(str(tmp_path))) == ["step.json", "rank 3"]


@pytest.mark.parametrize("ranks", ["9" * 5000, ",".join(["1"] * 1001)])
def test_ranks_that_cannot_be_are_none(tmp_path, ranks):
    path = tmp_path / "merged.json"
    path.write_text(f'{{"tdbgRanks":[{ranks}],"traceEvents":[]}}')
    assert list_labels(find_traces(str(path))) == ["merged.json"]
    write_trace_at(tmp_path / f"rank{'1' * 30}.json")
    assert list_labels(find_traces(str(tmp_path / f"rank{'1' * 30}.json"))) == [f"rank{'1' * 30}.json"]


def test_one_file_is_itself_whatever_its_name(tmp_path):
    found = find_traces(str(write_trace_at(tmp_path / "odd.txt.json")))
    assert list_labels(found) == ["odd.txt.json"]


def test_nothing_there_is_told(tmp_path):
    with pytest.raises(TdbgError, match="there is no trace in it"):
        find_traces(str(tmp_path))
    with pytest.raises(TdbgError, match="s3://bucket/run is no run directory on this machine") as refused:
        find_traces("s3://bucket/run")
    assert "tdbg join URL -o DIR" in str(refused.value.hint)
    with pytest.raises(TdbgError, match="no such file, folder or run"):
        find_traces(str(tmp_path / "none"))
