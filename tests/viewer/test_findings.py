"""Findings by their names: a name stays while others are found, and the list has what the report has."""

from typing import Any

import pytest

from tdbg.rules.finding_ids import build_finding_ids

from .conftest import NAMES, Client


def make_finding(code: str, step: int | None, rank: int | None, module: str = "", title: str = "") -> dict[str, Any]:
    return {"code": code, "first_step": step, "rank": rank, "module": module, "title": title}


def test_a_name_stays_whatever_else_is_found() -> None:
    first = make_finding("TD-N001", 13, 1, "encoder.0")
    others = [make_finding("TD-N001", 13, 0), make_finding("TD-C001", None, None), make_finding("TD-G001", 2, None)]
    assert build_finding_ids([first]) == ["TD-N001-step13-rank1-encoder.0"]
    assert build_finding_ids([*others, first]) == [
        "TD-N001-step13-rank0",
        "TD-C001",
        "TD-G001-step2",
        "TD-N001-step13-rank1-encoder.0",
    ]


def test_findings_of_one_place_are_told_apart_in_any_order() -> None:
    alike = [make_finding("TD-D003", 4, 0, title=title) for title in ("b", "a", "c")]
    names = dict(zip("bac", build_finding_ids(alike), strict=True))
    assert names == {"a": "TD-D003-step4-rank0", "b": "TD-D003-step4-rank0~2", "c": "TD-D003-step4-rank0~3"}
    assert build_finding_ids(alike[::-1]) == [names["c"], names["a"], names["b"]]


def test_a_secret_in_a_module_does_not_get_into_a_name() -> None:
    (name,) = build_finding_ids([make_finding("TD-N001", 1, 0, "hf_" + "A1b2C3d4" * 4 + "zz")])
    assert "A1b2C3d4" not in name


@pytest.mark.parametrize("run", NAMES)
def test_the_list_is_that_of_the_report_and_of_the_overview(client: Client, run: str) -> None:
    found = client.ask(f"/runs/{run}/findings")
    report = client.ask(f"/runs/{run}/report")["findings"]
    names = [one["id"] for one in found["findings"]]
    assert found["total"] == len(report) and len(set(names)) == len(names)
    for one, other in zip(found["findings"], report, strict=True):
        origin = other["follows_from"]
        assert one["follows_from"] == (None if origin is None else names[origin["finding"]])
        assert {**one, "follows_from": origin} == {**other, "id": one["id"]}
    shown = client.ask(f"/runs/{run}/overview")["findings"]
    assert {(one["id"], one["code"], one["step"], one["rank"]) for one in shown} == {
        (one["id"], one["code"], one["first_step"], one["rank"]) for one in found["findings"]
    }


@pytest.mark.parametrize(
    ("query", "codes"),
    [
        ({"code": "td-n001"}, ["TD-N001"]),
        ({"severity": "critical"}, ["TD-N001", "TD-N002"]),
        ({"ranks": "1"}, ["TD-N001", "TD-N002", "TD-D001"]),
        ({"steps": "14:"}, ["TD-N003"]),
        ({"steps": "14:", "ranks": "1"}, []),
    ],
)
def test_findings_are_filtered(client: Client, query: dict[str, Any], codes: list[str]) -> None:
    found = client.ask("/runs/two_ranks/findings", **query)
    assert [one["code"] for one in found["findings"]] == codes and found["total"] == 4


@pytest.mark.parametrize(
    ("query", "words"),
    [({"severity": "bad"}, "Invalid enum value 'bad'"), ({"ranks": "9-1"}, "ends before"), ({"steps": "x"}, "steps")],
)
def test_a_wrong_query_is_refused_in_a_line(client: Client, query: dict[str, Any], words: str) -> None:
    answer = client.get("/api/v1/runs/two_ranks/findings", params=query)
    assert answer.status_code == 400 and words in answer.json()["error"] and "\n" not in answer.json()["error"]
