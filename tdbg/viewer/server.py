"""The server: routes, pages and their files on 127.0.0.1, until Ctrl-C."""

import asyncio
import functools
import hashlib
import signal
import socket
from collections.abc import AsyncIterator, Callable, Iterator
from importlib import resources
from typing import IO, Any

import msgspec
import uvicorn
from starlette.applications import Starlette
from starlette.concurrency import run_in_threadpool
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response, StreamingResponse
from starlette.routing import Route as Address

from tdbg.core.errors import TdbgError
from tdbg.core.guard import describe_error
from tdbg.core.webpage import find_styled_ids, load_plotly_script
from tdbg.viewer.access import AccessControl, refuse
from tdbg.viewer.answers.session_tokens import WrongTokenError
from tdbg.viewer.connections import TimedConnection
from tdbg.viewer.encoding import encode_json
from tdbg.viewer.routes import (
    API,
    ConflictError,
    Download,
    NotFoundError,
    RawValues,
    Route,
    TooLargeError,
    build_openapi,
    list_routes,
)
from tdbg.viewer.run_library import Served

LOOPBACK = "127.0.0.1"
MAX_BODY_BYTES = 64 << 10
BLOCK_BYTES = 1 << 20  # of a file that is sent
KINDS = {"css": "text/css", "js": "text/javascript", "html": "text/html; charset=utf-8", "svg": "image/svg+xml"}
# Files of the pages by the name under /assets: where each lies.
SHARED = {
    **dict.fromkeys(("charts.css", "charts.js", "report.css", "report.js"), "tdbg.core"),
    "tensor.js": "tdbg.pages",
    **dict.fromkeys(("trace.css", "trace.js"), "tdbg.traces"),
}
STATUSES = {WrongTokenError: 401, NotFoundError: 404, ConflictError: 409, TooLargeError: 413}
HTTP_ERRORS = {404: "no such endpoint", 405: "method not allowed"}
PLOTLY = "plotly.js"


def build_app(served: Served) -> AccessControl:
    """The application. Routes that act on a run are there with ``served.control``."""
    control = served.control
    addresses = [
        Address(one.path, _make_endpoint(served, one), methods=[one.method]) for one in list_routes(changes=control)
    ]

    async def send_openapi(request: Request) -> Response:
        return _send_json(build_openapi(changes=control))

    async def send_page(request: Request) -> Response:
        return Response(_read_web_file("index.html"), media_type=KINDS["html"])

    addresses += [
        Address(f"{API}/openapi.json", send_openapi),
        Address("/assets/{name}", _send_asset),
        Address("/", send_page),
        Address("/runs", send_page),
        Address("/runs/{run}", send_page),
        Address("/runs/{run}/{page}", send_page),
    ]
    app = Starlette(
        routes=addresses, exception_handlers={HTTPException: _answer_http_error, Exception: _answer_failure}
    )
    app.router.redirect_slashes = False
    return AccessControl(app, served.sessions)


def _make_endpoint(served: Served, one: Route) -> Callable[[Request], Any]:
    async def answer(request: Request) -> Response:
        given: dict[str, Any] = {
            name: msgspec.convert(request.path_params[name], kind) for name, kind in one.names.items()
        }
        if one.query is not None:
            given["query"] = _parse_query(request, one.query)
        elif request.query_params:
            raise TdbgError("this endpoint takes no parameters", "remove the query string")
        if one.body is not None:
            given["body"] = msgspec.json.decode(await _read_body(request), type=one.body)
        if one.streams:
            return await _start_stream(one.handler(served, **given))
        found = await run_in_threadpool(one.handler, served, **given)
        if isinstance(found, Download):
            return _send_file(found)
        if isinstance(found, RawValues):
            return _send_values(found)
        return _send_json(found, served.runs.restore_paths)

    return _guard_endpoint(answer, served.runs.restore_paths)


async def _start_stream(events: AsyncIterator[bytes]) -> Response:
    """A stream whose first event is there: what is wrong before that is an answer of its own."""
    first = await anext(events)

    async def send_all() -> AsyncIterator[bytes]:
        yield first
        async for event in events:
            yield event

    return StreamingResponse(send_all(), media_type="text/event-stream")


def _guard_endpoint(answer: Callable[[Request], Any], change: Callable[[bytes], bytes]) -> Callable[[Request], Any]:
    """change: what is done to paths in the texts of a refusal."""

    def restore_text(text: str) -> str:
        restored: str = msgspec.json.decode(change(encode_json(text)))
        return restored

    async def answer_or_refuse(request: Request) -> Response:
        try:
            found: Response = await answer(request)
            return found
        except TdbgError as error:
            status = next((status for kind, status in STATUSES.items() if isinstance(error, kind)), 400)
            return refuse(status, restore_text(str(error)), restore_text(error.hint))
        except (msgspec.MsgspecError, RecursionError) as error:
            return refuse(400, str(error), "")
        except OSError as error:
            return refuse(
                409, f"a file of the run cannot be read: {error.strerror}", "check the permissions of the file"
            )

    return answer_or_refuse


def _parse_query(request: Request, query: type[msgspec.Struct]) -> msgspec.Struct:
    items = request.query_params.multi_items()
    if len(items) != len(request.query_params):
        raise TdbgError("a parameter is given twice", "give each once")
    return msgspec.convert(dict(items), query, strict=False)


async def _read_body(request: Request) -> bytes:
    found = bytearray()
    async for piece in request.stream():
        found += piece
        if len(found) > MAX_BODY_BYTES:
            raise TooLargeError(f"the body is longer than {MAX_BODY_BYTES >> 10} KiB", "send less")
    return bytes(found)


def _send_json(value: object, change: Callable[[bytes], bytes] = bytes) -> Response:
    return Response(change(encode_json(value)), media_type="application/json")


def _send_file(found: Download) -> Response:
    headers = {"content-disposition": f'attachment; filename="{found.name}"'}
    return StreamingResponse(_iter_blocks(found.file), media_type="application/octet-stream", headers=headers)


def _send_values(found: RawValues) -> Response:
    headers = {"content-disposition": f'attachment; filename="{found.name}"', **found.headers}
    return StreamingResponse(found.blocks, media_type="application/octet-stream", headers=headers)


def _iter_blocks(file: IO[bytes]) -> Iterator[bytes]:
    with file:
        while block := file.read(BLOCK_BYTES):
            yield block


async def _answer_http_error(request: Request, error: Exception) -> Response:
    status = error.status_code if isinstance(error, HTTPException) else 500
    found = refuse(status, HTTP_ERRORS.get(status, "refused"), "")
    if isinstance(error, HTTPException):
        found.headers.update(error.headers or {})
    return found


async def _answer_failure(request: Request, error: Exception) -> Response:
    return refuse(500, f"tdbg itself failed: {describe_error(error)}", "report it; the run is not affected")


def _read_web_file(name: str) -> bytes:
    return resources.files(SHARED.get(name, "tdbg.viewer")).joinpath(f"web/{name}").read_bytes()


def _list_assets() -> set[str]:
    return {path.name for path in resources.files("tdbg.viewer").joinpath("web").iterdir()} | set(SHARED)


async def _send_asset(request: Request) -> Response:
    """A file of the pages. It is asked for again only if it has changed."""
    name = request.path_params["name"]
    if name == PLOTLY:
        body = await run_in_threadpool(_build_plotly_script)
    elif name in _list_assets():
        body = _read_web_file(name)
    else:
        raise HTTPException(404)
    tag = f'"{hashlib.sha256(body).hexdigest()[:32]}"'
    headers = {"etag": tag, "cache-control": "no-cache"}
    if request.headers.get("if-none-match") == tag:
        return Response(status_code=304, headers=headers)
    return Response(body, media_type=KINDS[name.rpartition(".")[2]], headers=headers)


@functools.cache
def _build_plotly_script() -> bytes:
    """Plotly, with the elements before it that keep it from adding styles that the policy refuses."""
    script = load_plotly_script()
    guards = "".join(
        f'document.head.appendChild(document.createElement("template")).id="{name}";'
        for name in find_styled_ids(script)
    )
    return (guards + script).encode()


def bind_socket(port: int) -> socket.socket:
    """A socket that listens on this machine alone; 0: any free port. Raises TdbgError if the port is taken."""
    found = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
    found.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        found.bind((LOOPBACK, port))
        found.listen(128)  # who reads the address may connect at once
    except (OSError, OverflowError) as error:
        found.close()
        why = error.strerror if isinstance(error, OSError) else error
        raise TdbgError(
            f"cannot listen on {LOOPBACK}:{port}: {why}", "choose another --port; 0 takes a free one"
        ) from None
    return found


def build_config(app: AccessControl) -> uvicorn.Config:
    """How uvicorn serves: quietly, with these connections."""
    return uvicorn.Config(
        app,
        http=TimedConnection,
        log_level="critical",  # what fails is answered
        access_log=False,
        server_header=False,
        date_header=False,
        proxy_headers=False,
        timeout_keep_alive=10,
        timeout_graceful_shutdown=1,
        lifespan="off",
        ws="none",
    )


def serve(app: AccessControl, listener: socket.socket) -> None:
    """Serve until SIGINT, SIGTERM or, unless it is ignored, SIGHUP."""
    server = uvicorn.Server(build_config(app))
    if signal.getsignal(signal.SIGHUP) == signal.SIG_DFL:  # the terminal is gone
        signal.signal(signal.SIGHUP, lambda number, frame: signal.raise_signal(signal.SIGTERM))
    try:
        asyncio.run(server.serve(sockets=[listener]))
    except KeyboardInterrupt:  # raised again by uvicorn once all is closed
        return
    finally:
        listener.close()
