"""The token of a server, and the sessions that are given for it. In memory alone."""

import hmac
import secrets

# What leads to a session again.
OPEN_AGAIN = "the URL with #token=... that `tdbg view` or `tdbg run --serve` printed"
SESSION_PATH = "/api/v1/session"
MAX_SESSIONS = 1_000


class Sessions:
    """The token of this server, and the sessions that were given for it."""

    def __init__(self) -> None:
        self.token = secrets.token_urlsafe(24)
        self._sessions: dict[str, None] = {}

    def open_session(self, token: str) -> str | None:
        """A new session; None for a wrong token."""
        if not hmac.compare_digest(token.encode(), self.token.encode()):
            return None
        session = secrets.token_urlsafe(24)
        self._sessions[session] = None
        while len(self._sessions) > MAX_SESSIONS:
            del self._sessions[next(iter(self._sessions))]
        return session

    def is_known(self, authorization: str) -> bool:
        """True for ``Bearer SESSION`` of a session that was given."""
        scheme, _, session = authorization.partition(" ")
        found = [hmac.compare_digest(session.encode(), known.encode()) for known in tuple(self._sessions)]
        return scheme.lower() == "bearer" and any(found)
