"""This server: a session for its token, and what it may."""

import msgspec

from tdbg.core.errors import TdbgError
from tdbg.version import __version__
from tdbg.viewer.routes import API, route
from tdbg.viewer.run_library import Served
from tdbg.viewer.sessions import OPEN_AGAIN, SESSION_PATH


class Token(msgspec.Struct):
    """The token of the printed address."""

    token: str


class Session(msgspec.Struct):
    """What a page sends from then on, as ``Authorization: Bearer SESSION``."""

    session: str


class About(msgspec.Struct, kw_only=True):
    """The server. control: level and flags of a live run can be changed."""

    version: str
    control: bool


class WrongTokenError(TdbgError):
    """A token that is not this server's."""


@route("POST", SESSION_PATH)
def open_session(served: Served, body: Token) -> Session:
    """Give a session for the token."""
    session = served.sessions.open_session(body.token)
    if session is None:
        raise WrongTokenError("the token is wrong", f"open {OPEN_AGAIN}")
    return Session(session)


@route("GET", f"{API}/server")
def describe_server(served: Served) -> About:
    """The version of tdbg, and whether this server may change a run."""
    return About(version=__version__, control=served.control)
