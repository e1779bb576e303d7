"""Every address against its own OpenAPI document, by schemathesis: generated requests, and all of its checks.

Runs are named as they are or anything else; whatever is asked, an answer has a documented status and fits its schema.
"""

import itertools
from pathlib import Path
from typing import Any

import pytest
import schemathesis
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st
from schemathesis import GenerationMode
from schemathesis.core.parameters import ParameterLocation
from schemathesis.specs.openapi.checks import positive_data_acceptance

from tdbg.viewer.routes import API, Route, list_routes

from .conftest import NAMES, Client

EXAMPLES = 20  # of each address, valid and invalid together
CASES = 150  # of each address, at the limits of what its schema allows; few have as many
MODES = [GenerationMode.POSITIVE, GenerationMode.NEGATIVE]
# Texts with a grammar of their own: not every string is one, which a schema cannot say.
GRAMMARS = {"ranks", "steps", "epochs", "text", "key", "level", "flag", "after", "slice", "keys"}
GRAMMARS |= {"planes", "rows", "columns", "sort", "least", "most", "from", "to"}
ROUTES = [one for one in list_routes() if not one.streams]


@pytest.fixture(scope="module")
def controlling(runs_folder: Path) -> Client:
    """A client that may act; every recorded run has ended, so that nothing is changed."""
    return Client(runs_folder, control=True)


@pytest.fixture(scope="module")
def described(controlling: Client) -> Any:
    """The document as the server sends it; requests go to the application itself, each with a session."""

    async def answer_locally(scope: Any, receive: Any, send: Any) -> None:
        """The name under which schemathesis asks does not lead here."""
        headers = [(b"host", b"127.0.0.1:8000"), *(one for one in scope.get("headers", ()) if one[0] != b"host")]
        await controlling.app({**scope, "headers": headers}, receive, send)

    found = schemathesis.openapi.from_asgi(f"{API}/openapi.json", answer_locally, headers=controlling.headers)

    class Session:
        def get(self, case: Any, context: Any) -> str:
            return controlling.headers["authorization"]

        def set(self, case: Any, data: str, context: Any) -> None:
            case.headers["authorization"] = data

    found.auth()(Session)
    return found


def check(case: Any, name: str | None) -> None:
    """Ask, and hold the answer against the document. name: a run for the path, unless that is what is wrong."""
    if name is not None and "run" in case.path_parameters and not case.meta.is_negative_at(ParameterLocation.PATH):
        case.path_parameters["run"] = name
    has_grammar = GRAMMARS.intersection(case.query) or case.operation.path.endswith("/flags")
    case.call_and_validate(excluded_checks=[positive_data_acceptance] if has_grammar else [])


@pytest.mark.parametrize("one", ROUTES, ids=lambda one: f"{one.method} {one.path}")
def test_generated_requests_are_answered_as_described(described: Any, one: Route) -> None:
    operation = described[one.path][one.method]

    @settings(max_examples=EXAMPLES, phases=[Phase.generate], suppress_health_check=list(HealthCheck))
    @given(st.one_of([operation.as_strategy(mode) for mode in MODES]), st.sampled_from([*NAMES, None]))
    def ask(case: Any, name: str | None) -> None:
        check(case, name)

    ask()


@pytest.mark.parametrize("one", ROUTES, ids=lambda one: f"{one.method} {one.path}")
def test_values_at_the_limits_are_answered_as_described(described: Any, one: Route) -> None:
    operation = described[one.path][one.method]
    cases = described.iter_coverage_cases(
        operation, generation_modes=MODES, generation_config=described.config.generation_for(operation=operation)
    )
    for case in itertools.islice(cases, CASES):
        check(case, "captured")
