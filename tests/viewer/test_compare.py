"""Two runs side by side: what of their settings differs, and nothing else."""

from pathlib import Path

from .conftest import Client


def test_what_differs_is_listed_and_what_is_equal_is_counted(client: Client) -> None:
    found = client.ask("/compare", first="single", second="two_ranks")
    differing = {one["name"]: (one["first"], one["second"]) for one in found["differences"]}
    assert differing["settings.level"] == ("basic", "advanced")
    assert differing["settings.flags.LOSS.NULL_MASKING"] == (True, None)
    assert differing["ranks"] == (1, 2)
    assert "settings.run_dir" not in differing and "settings.inject" not in differing
    assert found["same"] > 20


def test_the_entries_are_those_of_the_list(client: Client) -> None:
    listed = {run["name"]: run for run in client.ask("/runs")["runs"]}
    found = client.ask("/compare", first="killed", second="resumed")
    for entry in (*listed.values(), *(one["entry"] for one in found["runs"])):
        entry.pop("duration_s")  # of a run that has not ended it grows
    assert [one["entry"] for one in found["runs"]] == [listed["killed"], listed["resumed"]]
    for one in found["runs"]:
        report = client.ask(f"/runs/{one['entry']['name']}/report")
        assert one["headline"] == report["headline"].removeprefix("verdict: ")


def test_a_run_does_not_differ_from_itself(client: Client) -> None:
    assert client.ask("/compare", first="single", second="single")["differences"] == []


def test_a_damaged_run_still_compares(tmp_path: Path) -> None:
    for name, text in (("a", "{"), ("b", '{"settings": 7, "ranks": {"0": "x"}, "command": ["python"]}')):
        (tmp_path / name).mkdir()
        (tmp_path / name / "run.json").write_text(text)
    found = Client(tmp_path).ask("/compare", first="a", second="b")
    assert [one["name"] for one in found["differences"]] == ["command", "settings", "ranks"]


def test_runs_that_are_not_there_are_refused(client: Client) -> None:
    assert client.get("/api/v1/compare", params={"first": "single", "second": "../single"}).status_code == 404
    assert client.get("/api/v1/compare", params={"first": "single"}).status_code == 400
