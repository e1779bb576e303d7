"""Who may ask: requests of this machine's own pages that carry a session, and nobody else.

The token stands in the fragment of the first address, which a browser sends to nobody. The page gives it once for a
session, keeps that, and sends it in a header: another page can neither read nor send it, so there is no cookie to be
misused. ``Host`` must be a name of this machine (a forwarded port has one too), so that no other name leads here.
"""

from starlette.datastructures import Headers, MutableHeaders
from starlette.responses import Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from tdbg.viewer.connections import send_in_pieces
from tdbg.viewer.sessions import OPEN_AGAIN, SESSION_PATH, Sessions

LOCAL_NAMES = ("localhost", "127.0.0.1", "[::1]")
MAX_TEXT = 1_000  # of what a refusal says: it may repeat what was asked
DESCRIBED = "GET /api/v1/openapi.json describes all addresses"
PROTECTED = ("/api/", "/debug/")
POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self' 'sha256-47DEQpj8HBSa+/TImW+5JCeuQeRkm5NMpJWZG3hSuFU=';"
    " img-src 'self' blob:; connect-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
)  # the hash is that of an empty style: plotly adds one and fills it by rules
HEADERS = {
    "content-security-policy": POLICY,
    "referrer-policy": "no-referrer",
    "x-content-type-options": "nosniff",
    "x-frame-options": "DENY",
    "cross-origin-opener-policy": "same-origin",
    "cross-origin-resource-policy": "same-origin",
    "cache-control": "no-store",
}


class AccessControl:
    """Refuses what is not this server's own, before anything else looks at a request; adds the headers to all answers."""

    def __init__(self, app: ASGIApp, sessions: Sessions) -> None:
        self._app, self._sessions = app, sessions

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer, or pass on."""
        if scope["type"] != "http":
            if scope["type"] == "lifespan":
                await self._app(scope, receive, send)
            return

        async def send_with_headers(message: Message) -> None:
            if message["type"] == "http.response.start":
                headers = MutableHeaders(scope=message)
                for name, value in HEADERS.items():
                    headers.setdefault(name, value)
            await send_in_pieces(send, message)

        refusal = self._refuse(scope)
        await (refusal or self._app)(scope, receive, send_with_headers)

    def _refuse(self, scope: Scope) -> Response | None:
        headers = Headers(scope=scope)
        host = headers.get("host", "")
        if len(headers.getlist("host")) != 1 or _strip_port(host) not in LOCAL_NAMES:
            return refuse(403, "unknown Host header", f"open {OPEN_AGAIN}")
        origin, site = headers.get("origin"), headers.get("sec-fetch-site", "none")
        path = scope["path"]
        # A link that a person follows from elsewhere: the page alone holds nothing, and no other page can frame or read it.
        is_opened = scope["method"] == "GET" and headers.get("sec-fetch-mode") == "navigate" and origin is None
        is_foreign = site not in ("none", "same-origin") and not (is_opened and not path.startswith(PROTECTED))
        if (origin is not None and origin != f"http://{host}") or is_foreign:
            return refuse(403, "cross-origin request refused", f"open {OPEN_AGAIN}")
        if not path.startswith(PROTECTED) or path == SESSION_PATH:
            return None
        if not self._sessions.is_known(headers.get("authorization", "")):
            return refuse(401, "the session is missing or not known", f"open {OPEN_AGAIN}")
        return None


def refuse(status: int, error: str, try_next: str) -> Response:
    """An answer that says in a line why there is none, and in another what to do."""
    from tdbg.viewer.encoding import encode_json
    from tdbg.viewer.routes import Problem

    lines = [" ".join(text.split())[:MAX_TEXT] for text in (error, try_next)]
    body = encode_json(Problem(error=lines[0], try_next=lines[1] or DESCRIBED))
    return Response(body, status, media_type="application/json")


def _strip_port(host: str) -> str:
    name, colon, port = host.rpartition(":")
    return (name if colon and port.isascii() and port.isdigit() else host).lower()
