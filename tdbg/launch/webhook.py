"""`--notify`: findings and the verdict, posted as JSON to the URL of a webhook.

The URL is a secret. No error names it: an error is put together from status codes and the system's own words.
"""

import json
import queue
import ssl
import threading
import time
import urllib.error
import urllib.request
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from http import HTTPStatus
from http.client import HTTPException, RemoteDisconnected
from typing import IO, Any
from urllib.parse import urlsplit

from tdbg.core.escapes import escape_line
from tdbg.core.guard import guarded
from tdbg.version import __version__

TRY_S = 5.0
PAUSES_S = (1.0, 2.0)  # before the second and the third try
LIMIT_S = 20.0  # all three tries of one message
MAX_TEXT = 3_000  # characters of a message: chat servers refuse long ones
TRY_AGAIN = (408, 425, 429)  # beside all from 500 on
# What takes a text and nothing else: hosts, or ends of host names.
SLACK = ("hooks.slack.com", "hooks.slack-gov.com")
CHATS = (*SLACK, "chat.googleapis.com", ".webhook.office.com")
DISCORD = ("discord.com", "discordapp.com")
CHAT_PATH = "/hooks/"  # of Mattermost and Rocket.Chat


class NoRedirects(urllib.request.HTTPRedirectHandler):
    """A redirect is an error: a POST would become a GET, and its target was not chosen by the user."""

    def redirect_request(
        self, req: urllib.request.Request, fp: IO[bytes], code: int, msg: str, headers: Any, newurl: str
    ) -> None:
        """No new request: urllib then raises the HTTPError."""


@dataclass(slots=True)
class WebhookChannel:
    """Posts messages, each with up to three tries. While the URL cannot be reached, a message gets one try."""

    url: str
    cancelled: threading.Event = field(default_factory=threading.Event)
    _is_down: bool = False
    option = "--notify"
    takes_verdict = True
    limit_s = LIMIT_S

    def send_message(self, document: Mapping[str, Any], lines: Sequence[str], until: float) -> str:
        """Post one message; returns why it failed, or nothing. It has ended by ``until``."""
        body = json.dumps(make_message(self.url, document, lines), default=str).encode()
        pauses = () if self._is_down else PAUSES_S
        why = "interrupted"
        for pause in (0.0, *pauses):
            if self.cancelled.wait(min(pause, max(until - time.monotonic(), 0.0))):
                break
            why, is_final = self._try_post(body, min(TRY_S, until - time.monotonic()))
            if not why or is_final:
                break
        self._is_down = bool(why)
        return why

    def _try_post(self, body: bytes, timeout_s: float) -> tuple[str, bool]:
        """One try, in a thread: neither the look-up of a name nor a server that drips can be told to end in time."""
        outcome: queue.SimpleQueue[tuple[str, bool]] = queue.SimpleQueue()

        def attempt_post() -> None:
            with guarded(
                "a proxy or a server may answer anything", lambda error: outcome.put((type(error).__name__, False))
            ):
                outcome.put(post_json(self.url, body, timeout_s))

        if timeout_s <= 0:
            return "no time was left", True
        threading.Thread(target=attempt_post, name="tdbg-notify-try", daemon=True).start()
        try:
            return outcome.get(timeout=timeout_s)
        except queue.Empty:
            return f"no answer within {TRY_S:g} s", False


def post_json(url: str, body: bytes, timeout_s: float) -> tuple[str, bool]:
    """Post JSON; returns why it failed, or nothing, and whether another try is pointless."""
    headers = {"Content-Type": "application/json; charset=utf-8", "User-Agent": f"tdbg/{__version__}"}
    request = urllib.request.Request(url, body, headers, method="POST")
    opener = urllib.request.build_opener(NoRedirects)
    try:
        with opener.open(request, timeout=timeout_s):
            return "", True
    except urllib.error.HTTPError as error:
        with error:
            return _describe_status(error.code), error.code < 500 and error.code not in TRY_AGAIN
    except urllib.error.URLError as error:
        return _describe_failure(error.reason), isinstance(error.reason, ssl.SSLCertVerificationError)
    except RemoteDisconnected:
        return "the server closed the connection without an answer", False
    except HTTPException:
        return "the answer is not HTTP", False
    except OSError as error:
        return _describe_failure(error), False


def _describe_status(code: int) -> str:
    try:
        phrase = f" {HTTPStatus(code).phrase}"
    except ValueError:
        phrase = ""
    where = ": it redirects, which tdbg does not follow" if 300 <= code < 400 else ""
    return f"HTTP {code}{phrase}{where}"


def _describe_failure(reason: object) -> str:
    if isinstance(reason, TimeoutError):
        return f"no answer within {TRY_S:g} s"
    if isinstance(reason, ssl.SSLCertVerificationError):
        return f"the certificate is not accepted: {reason.verify_message}"
    return (reason.strerror if isinstance(reason, OSError) else "") or type(reason).__name__


def make_message(url: str, document: Mapping[str, Any], lines: Sequence[str]) -> dict[str, Any]:
    """The JSON that this URL takes: a text for a chat, and for all others the text and the document."""
    parts = urlsplit(url)
    host = (parts.hostname or "").lower()
    text = "\n".join(escape_line(line) for line in lines)[:MAX_TEXT]
    if host in SLACK:
        return {"text": text.replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;")}
    if host in DISCORD:
        return {"content": text[:2_000], "allowed_mentions": {"parse": []}}
    if host.endswith(CHATS) or parts.path.startswith(CHAT_PATH):
        return {"text": text.replace("@", "@\u200b")}  # a name in a finding calls nobody
    return {"text": text, **document}
