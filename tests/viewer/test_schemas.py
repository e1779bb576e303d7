"""Every answer fits the schema that the OpenAPI document has of it, whatever is asked."""

import subprocess
import sys
from typing import Any

import pytest

from tdbg.viewer.routes import build_openapi, list_routes

from .conftest import NAMES, Client

DOCUMENT = build_openapi(changes=True)


def test_all_routes_are_in_the_document() -> None:
    methods = {(path, method.upper()) for path, about in DOCUMENT["paths"].items() for method in about}
    assert methods == {(one.path, one.method) for one in list_routes()}


def test_the_printed_addresses_are_those_of_the_document() -> None:
    done = subprocess.run(
        [sys.executable, "-m", "tdbg", "view", "--routes"], capture_output=True, text=True, check=True
    )
    printed = {tuple(line.split("\t")[:2]) for line in done.stdout.splitlines()[1:]}
    assert printed == {(method.upper(), path) for path, about in DOCUMENT["paths"].items() for method in about}
    assert {("GET", f"/api/v1/runs/{{run}}/{name}") for name in ("steps", "ranks", "findings")} <= printed


@pytest.mark.parametrize("run", NAMES)
def test_answers_fit_their_schemas(client: Client, run: str) -> None:
    from jsonschema import Draft202012Validator

    for one in list_routes(changes=False):
        if one.streams or one.method != "GET":
            continue
        answer = client.get(one.path.replace("{run}", run).replace("{code}", "TD-N001"))
        if answer.status_code != 200:
            assert answer.status_code in (400, 404) and answer.json()["error"], (one.path, answer.text)
            continue
        schema = DOCUMENT["paths"][one.path]["get"]["responses"]["200"]["content"]["application/json"]["schema"]
        whole = {**schema, "components": DOCUMENT["components"]}
        assert [error.message for error in Draft202012Validator(whole).iter_errors(answer.json())] == [], one.path


def is_bare(schema: Any) -> bool:
    """True for a schema that says nothing of what an answer holds."""
    if "$ref" in schema:
        return is_bare(DOCUMENT["components"]["schemas"][schema["$ref"].rpartition("/")[2]])
    if "anyOf" in schema:
        return any(map(is_bare, schema["anyOf"]))
    return schema.get("type") not in ("string", "array") and not schema.get("properties")


def test_no_route_has_a_bare_schema() -> None:
    bare = [
        (method, path)
        for path, methods in DOCUMENT["paths"].items()
        for method, about in methods.items()
        for content in about["responses"]["200"]["content"].values()
        if is_bare(content["schema"])
    ]
    assert bare == []
    assert is_bare({}) and is_bare({"type": "object"}) and not is_bare({"type": "string"})


QUERIES = [
    ("pages", {"datapoints": "true"}, "captured"),
    ("pages/datapoint", {"key": "step1"}, "captured"),
    ("pages/datapoint", {"key": "step1", "path": "head:output"}, "captured"),
    ("pages/datapoint", {"key": "step1", "path": "head:output", "slice": "0,:"}, "captured"),
    ("pages/datapoint", {"batch": "rank0001/batch_step00000013.safetensors"}, "two_ranks"),
    ("pages/picture", {"batch": "rank0001/batch_step00000013.safetensors", "path": "batch.0"}, "two_ranks"),
    ("pages/picture", {"key": "step1", "path": "head:output"}, "captured"),
    ("pages/picture", {"key": "step1", "path": "head:output", "rows": "0:2"}, "captured"),
    ("pages/difference", {"key": "step1", "path": "head:output", "other_key": "step2"}, "captured"),
    ("pages/difference", {"key": "step1", "path": "head:output", "other_key": "step2", "rows": "0:2"}, "captured"),
    ("pages/tokens", {"key": "step1"}, "captured"),
    ("traces", {"windows": "all"}, "profiled"),
    ("traces/flame", {"by": "operator"}, "second"),
    ("traces/spans", {"rank": "0", "from_ms": "1", "to_ms": "5"}, "profiled"),
    ("metrics/curves", {"smooth": "0.5"}, "two_ranks"),
    ("steps", {"from": "10", "to": "20", "points": "4"}, "two_ranks"),
    ("ranks", {"ranks": "1"}, "two_ranks"),
    ("findings", {"severity": "error"}, "two_ranks"),
    ("pages/datapoints", {"module": "head"}, "captured"),
]


@pytest.mark.parametrize(("address", "query", "run"), QUERIES)
def test_answers_to_queries_fit_their_schemas(client: Client, address: str, query: dict[str, str], run: str) -> None:
    from jsonschema import Draft202012Validator

    about = DOCUMENT["paths"][f"/api/v1/runs/{{run}}/{address}"]["get"]["responses"]["200"]
    whole = {**about["content"]["application/json"]["schema"], "components": DOCUMENT["components"]}
    answer = client.ask(f"/runs/{run}/{address}", **query)
    assert [error.message for error in Draft202012Validator(whole).iter_errors(answer)] == []
