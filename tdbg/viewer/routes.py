"""The table of routes: one entry serves the address, checks its query, and describes itself in the OpenAPI document.

A route is a function in a file of ``tdbg/viewer/answers``, marked with `route`. What it takes and returns are msgspec
structs: the query is checked against the one, the schema of the answer comes from the other.
"""

import importlib
import inspect
import pkgutil
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import IO, Any, get_type_hints

import msgspec

from tdbg.core.errors import TdbgError
from tdbg.version import __version__

API = "/api/v1"
RUN = "{run}"
Handler = Callable[..., Any]


class Problem(msgspec.Struct, kw_only=True):
    """Why a request was refused, and what to do next."""

    error: str
    try_next: str = ""


class ConflictError(TdbgError):
    """The request is right, and the run is in no state to follow it."""


class NotFoundError(TdbgError):
    """What a request names is not there."""


class TooLargeError(TdbgError):
    """A request of more bytes than any has."""


REFUSALS = {
    400: "A parameter is wrong.",
    401: "The session is missing or not known.",
    403: "The request comes from another page, or under another name of this machine.",
    404: "Not found.",
    409: "The run is in no state for it, or a file of it cannot be read.",
    413: "The body is too long.",
}


@dataclass(slots=True, frozen=True)
class Download:
    """A file that is sent as it is. name: what the browser calls it, in ASCII without quotes."""

    file: IO[bytes]
    name: str


@dataclass(slots=True, frozen=True)
class RawValues:
    """Bytes of a tensor, with what they mean in headers. nbytes: of all blocks. name: as of a `Download`."""

    blocks: Iterator[bytes]
    nbytes: int
    name: str
    dtype: str
    shape: tuple[int, ...]

    @property
    def headers(self) -> dict[str, str]:
        """Of the answer: how many bytes, of what type, in what shape."""
        shape = ",".join(map(str, self.shape))
        return {"content-length": str(self.nbytes), "tdbg-dtype": self.dtype, "tdbg-shape": shape}


RAW_HEADERS = {
    "tdbg-dtype": "The type of the values, as torch calls it; little-endian.",
    "tdbg-shape": "The shape, as numbers with commas between them; empty for a single value.",
}


@dataclass(slots=True, frozen=True)
class Route:
    """One address. names: the type of each part of the path that is one. changes: it acts on a run, and is there with
    ``--control`` alone. media_type: of its answer. headers: that its answer has, with what they mean.
    """

    method: str
    path: str
    names: dict[str, Any]
    summary: str
    handler: Handler
    query: type[msgspec.Struct] | None
    body: type[msgspec.Struct] | None
    answer: Any
    changes: bool
    streams: bool
    media_type: str
    headers: dict[str, str] = field(default_factory=dict)


_routes: list[Route] = []


def route(method: str, path: str, *, changes: bool = False, answers: Any = None) -> Callable[[Handler], Handler]:
    """Mark a function as what answers an address. Its docstring's first line is the summary.

    answers: the type of what a function returns that makes plain data; a tuple where it is one of several.
    It is called with what is `Served`, the parts of the path by name, and ``query`` or ``body`` if it has them.
    """

    def add_route(handler: Handler) -> Handler:
        hints = get_type_hints(handler)
        summary = (inspect.getdoc(handler) or "").partition("\n")[0]
        streams = inspect.isasyncgenfunction(handler)
        answer, media_type = _describe_answer(answers or hints["return"], streams=streams)
        names = {part[1:-1]: hints[part[1:-1]] for part in path.split("/") if part.startswith("{")}
        query, body = hints.get("query"), hints.get("body")
        kinds = answer, changes, streams, media_type, RAW_HEADERS if hints["return"] is RawValues else {}
        _routes.append(Route(method, path, names, summary, handler, query, body, *kinds))
        return handler

    return add_route


def _describe_answer(returned: Any, *, streams: bool) -> tuple[Any, str]:
    if streams:
        return str, "text/event-stream"
    return (bytes, "application/octet-stream") if returned in (Download, RawValues) else (returned, "application/json")


def list_routes(*, changes: bool = True) -> list[Route]:
    """All routes, by path. changes: also those that act on a run."""
    package = importlib.import_module("tdbg.viewer.answers")
    for module in pkgutil.iter_modules(package.__path__):
        importlib.import_module(f"{package.__name__}.{module.name}")
    return sorted((one for one in _routes if changes or not one.changes), key=lambda one: (one.path, one.method))


def build_openapi(*, changes: bool) -> dict[str, Any]:
    """The OpenAPI 3.1 document of the routes."""
    routes = list_routes(changes=changes)
    kinds = [kind for one in routes for kind in (*_list_answers(one), one.body)]
    types = [kind for kind in kinds if kind not in (None, type(None))]
    template = "#/components/schemas/{name}"
    schemas, components = msgspec.json.schema_components(
        [*types, Problem], schema_hook=_describe_object, ref_template=template
    )
    schema_of = dict(zip(map(repr, types), schemas, strict=False))
    paths: dict[str, dict[str, Any]] = {}
    for one in routes:
        paths.setdefault(one.path, {})[one.method.lower()] = _describe_route(one, schema_of)
    return {
        "openapi": "3.1.0",
        "info": {"title": "tdbg", "version": __version__, "summary": "Runs of tdbg, as data."},
        "security": [{"session": []}],
        "paths": paths,
        "components": {
            "schemas": components,
            "securitySchemes": {"session": {"type": "http", "scheme": "bearer"}},
        },
    }


def _describe_route(one: Route, schema_of: dict[str, Any]) -> dict[str, Any]:
    problem = {"application/json": {"schema": {"$ref": "#/components/schemas/Problem"}}}
    found: dict[str, Any] = {
        "summary": one.summary,
        "operationId": one.handler.__name__,
        "parameters": [*_describe_path(one), *_describe_query(one.query)],
        "responses": {
            "200": {
                "description": "The answer.",
                "content": {one.media_type: {"schema": _describe_schema(one, schema_of)}},
            },
            **{str(status): {"description": why, "content": problem} for status, why in REFUSALS.items()},
        },
    }
    if one.headers:
        found["responses"]["200"]["headers"] = {
            name: {"description": text, "schema": {"type": "string"}} for name, text in one.headers.items()
        }
    if one.body is not None:
        found["requestBody"] = {
            "required": True,
            "content": {"application/json": {"schema": schema_of[repr(one.body)]}},
        }
    return found


def _describe_object(kind: type) -> dict[str, Any]:
    """The schema of a cell of a table: of another type it would not reach a page."""
    if kind is object:
        return {"type": ["string", "number", "boolean", "null"]}
    raise NotImplementedError


def _list_answers(one: Route) -> tuple[Any, ...]:
    return one.answer if isinstance(one.answer, tuple) else (one.answer,)


def _describe_schema(one: Route, schema_of: dict[str, Any]) -> dict[str, Any]:
    found = [schema_of[repr(kind)] for kind in _list_answers(one)]
    return found[0] if len(found) == 1 else {"anyOf": found}


def _describe_path(one: Route) -> Iterator[dict[str, Any]]:
    for name, kind in one.names.items():
        yield {"name": name, "in": "path", "required": True, "schema": {"minLength": 1, **msgspec.json.schema(kind)}}


def _describe_query(query: type[msgspec.Struct] | None) -> Iterator[dict[str, Any]]:
    if query is None:
        return
    schema = msgspec.json.schema(query)
    found = schema["$defs"][query.__name__]
    for name, about in found["properties"].items():
        yield {"name": name, "in": "query", "required": name in found.get("required", ()), "schema": about}
