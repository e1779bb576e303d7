"""Every answer fits the schema that the OpenAPI document has of it, whatever is asked."""

import pytest

from tdbg.viewer.routes import build_openapi, list_routes

from .conftest import NAMES, Client

DOCUMENT = build_openapi(changes=True)


def test_all_routes_are_in_the_document() -> None:
    methods = {(path, method.upper()) for path, about in DOCUMENT["paths"].items() for method in about}
    assert methods == {(one.path, one.method) for one in list_routes()}


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
