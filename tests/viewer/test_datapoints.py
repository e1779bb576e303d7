"""The grid of datapoints as the server sorts and filters it, against a plain sort of what was written."""

import math
import os
import queue
import threading
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tdbg.pages.format.journal import encode_frame, iter_records
from tdbg.pages.read.page_set import PageSet
from tdbg.pages.selection import datapoint_table, tensor_figures
from tdbg.viewer.datapoint_tables import read_stamp
from tests.pages.arrays import write_pages

from .conftest import Client
from .made_tensors import ATTENTION, FIRST_KEY, RAMP, SAMPLES, WORDS, make_losses, write_made_run

LOSSES = make_losses()
BATCH = [(1 << 60) + 5, 7, 7, "x"]  # a sample that was drawn twice


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Client:
    return Client(write_made_run(tmp_path_factory.mktemp("made") / "made"))


@pytest.fixture
def batches(tmp_path: Path) -> Client:
    """Two batches that are stored once, each with a loss of every sample, and a datapoint between them."""
    run = tmp_path / "rows"
    (run / "rank0000").mkdir(parents=True)
    (run / "run.json").write_text('{"command": ["train"], "exit": {"code": 0, "signal": null}, "name": "rows"}')

    def make_batch(scale: float) -> tuple[Any, Any, Any]:
        values = {"out": np.float32([[scale * row] for row in range(4)]), "loss": [scale, 2 * scale, 3 * scale, scale]}
        return BATCH[0], values, {"keys": BATCH, "split": ["out", "loss"]}

    alone = (7, {"out": np.float32([9]), "loss": 0.5}, {})
    write_pages(run / "rank0000" / "pages", [make_batch(1.0), alone, make_batch(10.0)], run="rows")
    return Client(run)


def ask_all(client: Client, run: str, **query: Any) -> list[dict[str, Any]]:
    """All rows, asked for in parts."""
    rows: list[dict[str, Any]] = []
    while True:
        found = client.ask(f"/runs/{run}/pages/datapoints", offset=len(rows), limit=90, **query)
        rows += found["rows"]
        if len(rows) >= found["matching"]:
            return rows


@pytest.mark.parametrize("descending", [False, True])
def test_all_are_sorted_by_loss_over_pages_of_rows(made: Client, descending: bool) -> None:
    rows = ask_all(made, "made", sort="loss", descending=str(descending).lower())
    numbers = sorted(range(SAMPLES), key=lambda at: (math.isnan(LOSSES[at]), LOSSES[at]), reverse=descending)
    assert [row["key"] for row in rows[:SAMPLES]] == [str(FIRST_KEY + at) for at in numbers]
    assert [row["key"] for row in rows[SAMPLES:]] == [
        "maps",
        "wide",
        "text",
        "pictures",
    ]  # those without a loss come last
    assert rows[0 if descending else SAMPLES - 1]["numbers"]["loss"] == "nan"


@pytest.mark.parametrize(
    ("query", "fits"),
    [
        ({"steps": "10:20,40"}, lambda at: 10 <= at <= 20 or at == 40),
        ({"epochs": "1"}, lambda at: at >= 125),
        ({"ranks": "0", "phase": "train"}, lambda at: True),
        ({"sort": "loss", "least": 100, "most": 120.5}, lambda at: 100 <= LOSSES[at] <= 120),
        ({"sort": "loss", "least": 240}, lambda at: LOSSES[at] >= 240 or math.isnan(LOSSES[at])),
        ({"sort": "step", "most": 12, "phase": "train"}, lambda at: at <= 12),
        ({"steps": "900"}, lambda at: False),
    ],
)
def test_filters_leave_what_fits(made: Client, query: dict[str, Any], fits: Any) -> None:
    rows = [row for row in ask_all(made, "made", **query) if row["phase"] == "train"]
    assert {row["key"] for row in rows} == {str(FIRST_KEY + at) for at in range(SAMPLES) if fits(at)}


@pytest.mark.parametrize(
    "query",
    [
        "sort=nothing",
        "steps=x",
        "steps=9:3",
        "least=1",
        "sort=loss&least=x",
        "limit=501",
        "limit=0",
        "offset=-1",
        "epochs=-1",
    ],
)
def test_what_cannot_be_asked_is_refused(made: Client, query: str) -> None:
    answer = made.get(f"/api/v1/runs/made/pages/datapoints?{query}")
    assert answer.status_code == 400 and answer.json()["error"]


def test_every_key_leads_to_its_datapoint(made: Client) -> None:
    for row in ask_all(made, "made", sort="loss", descending="true")[:40]:
        found = made.ask("/runs/made/pages/datapoint", key=row["key"], nth=row["nth"])
        assert str(found["key"]) == row["key"] and found["step"] == row["step"]


def test_each_sample_of_a_batch_is_a_row_of_its_own(batches: Client) -> None:
    rows = ask_all(batches, "rows", sort="loss", descending="true", samples="true")
    assert [row["numbers"]["loss"] for row in rows] == [30, 20, 10, 10, 3, 2, 1, 1, 0.5]
    for row in rows:
        found = batches.ask("/runs/rows/pages/datapoint", key=row["key"], nth=row["nth"])
        assert found["scalars"]["loss"] == row["numbers"]["loss"] and str(found["key"]) == row["key"]


def test_a_batch_has_the_largest_number_of_its_samples(batches: Client) -> None:
    found = batches.ask("/runs/rows/pages/datapoints", sort="loss", descending="true")
    assert [row["numbers"]["loss"] for row in found["rows"]] == [30, 3, 0.5]
    assert [row["samples"] for row in found["rows"]] == [4, 4, None] and found["total"] == 3 and found["has_batches"]


@pytest.mark.parametrize("samples", ["false", "true"])
def test_batches_with_a_key_of_their_own_are_reached_as_well(client: Client, samples: str) -> None:
    rows = ask_all(client, "captured", samples=samples)
    assert len(rows) == (12 if samples == "false" else 96)
    for row in rows:
        found = client.ask("/runs/captured/pages/datapoint", key=row["key"], nth=row["nth"])
        assert (str(found["key"]), found["step"], found["rank"]) == (row["key"], row["step"], row["rank"])


def test_a_series_goes_through_the_epochs_of_a_sample_or_the_steps_of_its_rank(made: Client, batches: Client) -> None:
    found = batches.ask("/runs/rows/pages/series", key="x")
    assert [(row["step"], row["nth"]) for row in found["rows"]] == [(0, 0), (2, 1)] and found["at"] == 0
    found = made.ask("/runs/made/pages/series", key=FIRST_KEY + 200)
    assert found["total"] == SAMPLES and found["rows"][found["at"]]["key"] == str(FIRST_KEY + 200)
    assert made.get("/api/v1/runs/made/pages/series?key=none").status_code == 404


def test_a_long_series_is_cut_around_the_datapoint(made: Client, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tdbg.viewer.answers.datapoints.MAX_SERIES", 20)
    for at in (0, 5, 130, 249):
        found = made.ask("/runs/made/pages/series", key=FIRST_KEY + at)
        assert len(found["rows"]) == 20 and found["rows"][found["at"]]["key"] == str(FIRST_KEY + at)


def test_numbers_beyond_the_first_are_read_when_they_are_asked_for(tmp_path: Path) -> None:
    names = [f"stat{at}" for at in range(40)]
    values = [{name: float((place * 7 + at) % 11) for at, name in enumerate(names)} for place in range(30)]
    run = tmp_path / "many"
    (run / "rank0000").mkdir(parents=True)
    (run / "run.json").write_text('{"command": ["train"], "exit": {"code": 0, "signal": null}, "name": "many"}')
    write_pages(run / "rank0000" / "pages", [(str(at), one, {}) for at, one in enumerate(values)], run="many")
    client = Client(run)
    for name in (*names[30:], "stat0", *names[12:30], "stat35"):
        rows = ask_all(client, "many", sort=name)
        assert [row["numbers"][name] for row in rows] == sorted(one[name] for one in values)
        assert all(row["numbers"][name] == values[int(row["key"])][name] for row in rows)


def write_many(run: Path, rank: int, places: range) -> None:
    """Datapoints with 40 numbers each, from 100 times the rank on."""
    values = [{f"stat{at}": 100.0 * rank + place + at / 64 for at in range(40)} for place in places]
    folder = run / f"rank{rank:04}" / "pages"
    write_pages(
        folder, [(f"{rank}:{at}", one, {}) for at, one in zip(places, values, strict=True)], run="many", rank=rank
    )


def test_numbers_that_are_read_later_are_those_of_their_rows(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tdbg.viewer.datapoint_tables.FRESH_S", 1e9)  # the table stays while the run goes on
    run = tmp_path / "many"
    for rank in (1, 2):
        write_many(run, rank, range(20))
    (run / "run.json").write_text('{"command": ["train"]}')
    client = Client(run)
    assert client.ask("/runs/many/pages/datapoints")["total"] == 40
    write_many(run, 0, range(7))  # before the others
    write_many(run, 1, range(20, 25))
    for name in ("stat39", "stat30", *(f"stat{at}" for at in range(12, 30))):
        rows = ask_all(client, "many", sort=name)
        assert len(rows) == 40
        for row in rows:
            rank, place = map(int, row["key"].split(":"))
            assert row["numbers"][name] == 100.0 * rank + place + int(name[4:]) / 64
            assert row["numbers"]["stat0"] == 100.0 * rank + place, "the first columns stay"


def test_who_asks_meanwhile_does_not_change_an_answer(tmp_path: Path) -> None:
    with PageSet.open(write_made_run(tmp_path / "made")) as pages:
        table = datapoint_table.DatapointTable(pages)
    other = datapoint_table.Wanted(sort="loss", is_descending=True)

    class Interrupted(datapoint_table.Wanted):
        """While it is compared with what was asked for before, another thread asks."""

        def __ne__(self, before: object) -> bool:
            table.find_rows(other)
            return tuple(self) != before

    wanted = table.find_rows(datapoint_table.Wanted(sort="loss"))
    assert table.find_rows(Interrupted(sort="loss")) == wanted != table.find_rows(other)


def test_links_of_pages_are_not_followed(tmp_path: Path) -> None:
    run, elsewhere = write_made_run(tmp_path / "made"), tmp_path / "elsewhere" / "pages"
    before = read_stamp(run)
    assert before and all(Path(path).suffix in (".journal", ".safetensors") for path, _, _ in before)
    write_pages(elsewhere, [("k", {"x": np.zeros(2)}, {})])
    (run / "rank0007").mkdir()
    (run / "rank0007" / "pages").symlink_to(elsewhere)
    (run / "rank0008").symlink_to(elsewhere.parent)
    (run / "rank0000" / "more").symlink_to(elsewhere.parent)
    (run / "rank0000" / "pages" / "notes.txt").write_text("x")
    assert read_stamp(run) == before


def test_more_rows_than_are_sorted_are_told(made: Client, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(datapoint_table, "MAX_ROWS", 100)
    client = Client(write_made_run(tmp_path / "made"))
    found = client.ask("/runs/made/pages/datapoints", sort="loss")
    assert (found["total"], found["left_out"]) == (100, SAMPLES + 4 - 100)


def test_the_table_follows_a_run_that_goes_on(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tdbg.viewer.datapoint_tables.FRESH_S", 0.0)
    monkeypatch.setattr("tdbg.viewer.datapoint_tables.MOST_SHARE", 0)
    run = write_made_run(tmp_path / "made")
    client = Client(run)
    assert client.ask("/runs/made/pages/datapoints")["total"] == SAMPLES + 4
    write_pages(run / "rank0002" / "pages", [("new", {"x": np.float32([1]), "loss": 1e9}, {})], run="made", rank=2)
    assert client.ask("/runs/made/pages/datapoints", sort="loss", descending="true")["rows"][1]["key"] == "new"
    assert client.ask("/runs/made/pages")["datapoints"] == SAMPLES + 5


def test_a_picture_of_a_part_is_the_picture_alone(made: Client) -> None:
    import base64

    where = {"key": "maps", "path": "layer:output"}
    found = made.ask("/runs/made/pages/picture", **where, planes="24:32", rows="5:9", columns=":3")
    preview = found["preview"]
    assert "figures" not in found and preview["region"] == [[24, 32], [5, 9], [0, 3]]
    values = np.frombuffer(base64.b64decode(preview["data"]), "<f4").reshape(preview["shape"])
    assert np.array_equal(values, RAMP[3, :, 5:9, :3])
    for wrong in ({"planes": "0:33"}, {"rows": "-1:3"}, {"columns": "3:3"}, {"rows": "9" * 30 + ":"}, {"planes": "x"}):
        answer = made.get("/api/v1/runs/made/pages/picture", params={**where, **wrong})
        assert answer.status_code == 400 and next(iter(wrong)) in answer.json()["error"]


def test_a_slice_comes_as_bytes_with_its_type_and_shape(made: Client) -> None:
    where = {"key": "maps", "path": "attn:attention"}
    answer = made.get("/api/v1/runs/made/pages/raw", params={**where, "slice": "1,::500,7:9"})
    assert (answer.headers["tdbg-dtype"], answer.headers["tdbg-shape"]) == ("float32", "3,2")
    assert answer.content == ATTENTION[1, ::500, 7:9].tobytes()
    assert answer.headers["content-disposition"] == 'attachment; filename="attn_attention.bin"'
    whole = made.get("/api/v1/runs/made/pages/raw", params=where)
    assert whole.content == ATTENTION.tobytes() and whole.headers["content-length"] == str(ATTENTION.nbytes)
    for wrong, status in (
        ({"slice": "9"}, 400),
        ({"slice": "x"}, 400),
        ({"path": "none"}, 404),
        ({"key": "none"}, 404),
    ):
        assert made.get("/api/v1/runs/made/pages/raw", params={**where, **wrong}).status_code == status


@pytest.mark.parametrize("address", ["raw", "datapoint"])
@pytest.mark.parametrize("missing", [{"path": "none"}, {"key": "none"}, {"batch": "none"}])
def test_a_wrong_slice_is_named_before_a_missing_tensor(made: Client, address: str, missing: dict[str, str]) -> None:
    query = {"key": "maps", "path": "attn:attention", "slice": "1,x", **missing}
    answer = made.get(f"/api/v1/runs/made/pages/{address}", params=query)
    assert answer.status_code == 400 and "'x' is not an index or a range" in answer.json()["error"]
    assert made.get(f"/api/v1/runs/made/pages/{address}", params={**query, "slice": "1"}).status_code == 404


def test_raw_values_are_described(made: Client) -> None:
    about = made.ask("/openapi.json")["paths"]["/api/v1/runs/{run}/pages/raw"]["get"]["responses"]["200"]
    assert set(about["headers"]) == {"tdbg-dtype", "tdbg-shape"} and list(about["content"]) == [
        "application/octet-stream"
    ]


def test_tokens_have_their_numbers(made: Client) -> None:
    assert made.ask("/runs/made/pages/datapoint", key="text")["tokens"] == [{"path": "tokens", "words": WORDS}]
    assert made.ask("/runs/made/pages/datapoint", key="maps")["tokens"] == []
    (found,) = made.ask("/runs/made/pages/tokens", key="text")["lists"]
    values = {one["name"]: one["values"] for one in found["values"]}
    assert found["words"] == WORDS and values["loss_per_token"] == [0.5 * at for at in range(8)]
    assert values["attn:attention, sum of rows"] == [1.0] * 8


def test_sums_of_attention_are_those_of_numpy(tmp_path: Path) -> None:
    from tdbg.pages.selection.token_lists import describe_token_values

    rows = np.random.default_rng(1).random((5, 9, 9)).astype(np.float32)
    write_pages(tmp_path, [(0, {"attn": rows, "words": [str(at) for at in range(9)]}, {})])
    (found,) = describe_token_values(next(iter(PageSet.open(tmp_path))))
    received, given = (one["values"] for one in found["values"])
    np.testing.assert_allclose(received, rows.sum(1).mean(0), rtol=1e-5)
    np.testing.assert_allclose(given, rows.sum(2).mean(0), rtol=1e-5)


def claim_tensors(folder: Path, size: int) -> Client:
    """A run with a datapoint whose one tensor is a hole of so many bytes, of which 64 were written."""
    pages = write_pages(folder / "claimed" / "rank0000" / "pages", [("k", {"x": np.zeros(64, np.uint8)}, {})])
    (folder / "claimed" / "run.json").write_text('{"command": ["train"]}')
    (folder / "claimed" / "rank0000" / "events.jsonl").write_text("")
    journal = next(pages.glob("*.journal"))
    records = [record for _, record in iter_records(journal)]
    for record in records:
        if "items" in record:
            (item,) = record["items"]
            item[2], item[4] = [size], size
        if record.get("length") == 64:
            record["length"] = size
    journal.write_bytes(b"".join(map(encode_frame, records)))
    for page in pages.glob("*.safetensors"):
        os.truncate(page, 2 * size)
    return Client(folder)


def test_a_hole_of_a_tb_is_refused_and_not_read(tmp_path: Path) -> None:
    try:
        client = claim_tensors(tmp_path, 1 << 40)
    except OSError:
        pytest.skip("no such large files here")
    where, pages = {"key": "k", "path": "x"}, "/runs/claimed/pages"
    (listed,) = client.ask(f"{pages}/datapoint", key="k")["tensors"]
    assert listed["bytes"] == 1 << 40
    for query in ({}, {"planes": ":"}):
        assert client.ask(f"{pages}/picture", **where, **query)["why"] == "it takes too much room"
    for page, query in (("datapoint", {}), ("datapoint", {"slice": ":"}), ("difference", {"other_key": "k"})):
        answer = client.get(f"/api/v1{pages}/{page}", params={**where, **query})
        assert answer.status_code == 400, answer.text
    assert client.ask(f"{pages}/datapoint", **where, slice="5:8")["values"] == [0, 0, 0]


def test_a_slice_that_reads_much_is_refused(made: Client, monkeypatch: pytest.MonkeyPatch) -> None:
    where = {"key": "maps", "path": "attn:attention"}
    monkeypatch.setattr("tdbg.viewer.answers.pages.MAX_WHOLE_BYTES", ATTENTION[0].nbytes)
    assert made.get("/api/v1/runs/made/pages/datapoint", params={**where, "slice": ":2,0,0"}).status_code == 400
    assert made.ask("/runs/made/pages/datapoint", **where, slice="2,:,3:4")["slice_shape"] == [1500, 1]


def test_lists_of_one_length_share_what_is_summed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from tdbg.pages.selection import token_lists

    rows = {f"attn{at}": np.ones((2, 9, 9), np.float32) for at in range(4)}
    words = {f"words{at}": [str(at)] * 9 for at in range(3)}
    write_pages(tmp_path, [(0, {**rows, **words}, {})])
    monkeypatch.setattr(token_lists, "MAX_ATTENTION_BYTES", 3 * 2 * 9 * 9 * 4)
    found = token_lists.describe_token_values(next(iter(PageSet.open(tmp_path))))
    assert len(found) == 3 and all(one["values"] == found[0]["values"] for one in found)
    names = {one["name"].partition(",")[0] for one in found[0]["values"]}
    assert names == {"attn0", "attn1", "attn2"}  # there is no room for the fourth


@pytest.mark.parametrize("figure", ["mean", "std", "min", "max", "absmax", "nan", "inf", "zero_share"])
def test_datapoints_are_sorted_by_a_figure_that_is_computed(made: Client, figure: str) -> None:
    name = f"{figure}(head)"
    found = made.ask("/runs/made/pages/datapoints", sort=name, descending=True, limit=500, ranks="0")
    assert found["matching"] == SAMPLES and name not in found["columns"]
    ats = [int(row["key"]) - FIRST_KEY for row in found["rows"]]
    heads = {at: np.float32([at, -at]) for at in ats}
    compute = {
        "mean": np.mean,
        "std": lambda values: np.std(values, ddof=1),
        "min": np.min,
        "max": np.max,
        "absmax": lambda values: np.abs(values).max(),
        "nan": lambda values: np.isnan(values).sum(),
        "inf": lambda values: np.isinf(values).sum(),
        "zero_share": lambda values: (values == 0).mean(),
    }[figure]
    wanted = {at: float(compute(values)) for at, values in heads.items()}
    told = {at: row["numbers"][name] for at, row in zip(ats, found["rows"], strict=True)}
    assert told == pytest.approx(wanted)
    assert ats == sorted(range(SAMPLES), key=lambda at: wanted[at], reverse=True)


def test_a_figure_that_is_computed_is_filtered_by(made: Client) -> None:
    found = made.ask("/runs/made/pages/datapoints", sort="max(head)", least=240, most=244, module="head")
    assert [int(row["key"]) - FIRST_KEY for row in found["rows"]] == [240, 241, 242, 243, 244]
    found = made.ask("/runs/made/pages/datapoints", sort="absmax(head)", least=240)
    assert found["matching"] == 10, "the datapoints without such a tensor are not among them"


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("std(nothing)", "no datapoint has a tensor nothing"),
        ("median(head)", "no datapoint has a number median(head)"),
        ("std()", "no datapoint has a number std()"),
    ],
)
def test_a_figure_of_nothing_is_refused(made: Client, name: str, words: str) -> None:
    answer = made.get("/api/v1/runs/made/pages/datapoints", params={"sort": name})
    assert answer.status_code == 400 and answer.json()["error"] == words


@pytest.mark.parametrize(("limit", "value"), [("MAX_BYTES", RAMP.nbytes - 1), ("MAX_TENSORS", 0)])
def test_a_figure_of_too_much_is_refused_before_it_is_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, limit: str, value: int
) -> None:
    client = Client(write_made_run(tmp_path / "made"))
    monkeypatch.setattr(tensor_figures, limit, value)
    monkeypatch.setattr(tensor_figures, "measure_tensor", None)
    answer = client.get("/api/v1/runs/made/pages/datapoints", params={"sort": "std(layer:output)"})
    assert answer.status_code == 400 and "of layer:output would be read for its std" in answer.json()["error"]


def test_others_need_not_wait_while_a_figure_is_computed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    client = Client(write_made_run(tmp_path / "made"))
    begun, goes_on, answers = threading.Event(), threading.Event(), queue.SimpleQueue[int]()
    measure = tensor_figures.measure_tensor

    def wait(*args: Any, **more: Any) -> Any:
        begun.set()
        assert goes_on.wait(60)
        return measure(*args, **more)

    def ask(**query: str) -> threading.Thread:
        address = "/api/v1/runs/made/pages/datapoints"
        asking = threading.Thread(target=lambda: answers.put(client.get(address, params=query).status_code))
        asking.start()
        return asking

    monkeypatch.setattr(tensor_figures, "measure_tensor", wait)
    threads = [ask(sort="std(head)")]
    try:
        assert begun.wait(60)
        threads.append(ask(limit="2"))
        assert answers.get(timeout=20) == 200, "the first goes on"
    finally:
        goes_on.set()
        for one in threads:
            one.join()
    assert answers.get(timeout=60) == 200


def test_datapoints_of_a_module_are_those_that_have_a_tensor_of_it(made: Client) -> None:
    for module, keys in (
        ("attn", ["maps", "text"]),
        ("attn:attention", ["maps", "text"]),
        ("att", []),
        ("gradcam", ["pictures"]),
    ):
        found = made.ask("/runs/made/pages/datapoints", module=module)
        assert [row["key"] for row in found["rows"]] == keys, module
    assert made.ask("/runs/made/pages/datapoints", module="head", ranks="0")["matching"] == SAMPLES
