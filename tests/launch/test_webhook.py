"""Posting to a webhook: three tries, five seconds each, the form that the URL takes, and a URL that stays secret."""

import contextlib
import json
import socket
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest

from tdbg.launch import webhook as module
from tdbg.launch.webhook import WebhookChannel, make_message
from tests.webhook_server import serve_webhook

DOCUMENT = {"kind": "finding", "code": "TD-N001", "rank": 0, "evidence": ["a", "b"]}
LINES = ["TD-N001 critical: first NaN at step 3", "  cause: <log> of 0 & a @name"]
FAR = float("inf")


@pytest.fixture
def brief_times(monkeypatch: pytest.MonkeyPatch) -> None:
    """Shorter times, in the same proportions."""
    monkeypatch.setattr(module, "TRY_S", 0.5)
    monkeypatch.setattr(module, "PAUSES_S", (0.1, 0.2))


def test_a_server_that_fails_twice_gets_the_message_at_the_third_try() -> None:
    with serve_webhook([503, 500]) as server:
        assert WebhookChannel(server.url).send_message(DOCUMENT, LINES, FAR) == ""
    assert server.statuses == [503, 500, 200]
    assert server.accepted_bodies == [{"text": "\n".join(LINES), **DOCUMENT}]
    first, second, third = server.times
    assert second - first >= 1.0 and third - second >= 2.0, "each pause is longer"
    assert server.headers[0]["Content-Type"].startswith("application/json")


@pytest.mark.usefixtures("brief_times")
def test_after_three_tries_it_gives_up_and_the_next_message_gets_one() -> None:
    with serve_webhook([500] * 5) as server:
        channel = WebhookChannel(server.url)
        assert channel.send_message(DOCUMENT, LINES, FAR) == "HTTP 500 Internal Server Error"
        assert len(server.statuses) == 3
        assert channel.send_message(DOCUMENT, LINES, FAR) and len(server.statuses) == 4
        assert channel.send_message(DOCUMENT, LINES, FAR) and len(server.statuses) == 5
        assert channel.send_message(DOCUMENT, LINES, FAR) == "", "it is back"


@pytest.mark.usefixtures("brief_times")
@pytest.mark.parametrize(("status", "tries"), [(404, 1), (403, 1), (400, 1), (429, 2), (408, 2), (502, 2)])
def test_what_another_try_cannot_mend_is_tried_once(status: int, tries: int) -> None:
    with serve_webhook([status]) as server:
        WebhookChannel(server.url).send_message(DOCUMENT, LINES, FAR)
    assert len(server.statuses) == tries


@pytest.mark.usefixtures("brief_times")
@pytest.mark.parametrize("how", [{"delay_s": 3.0}, {"drips": True}])
def test_a_slow_server_is_not_waited_for(how: dict[str, float]) -> None:
    with serve_webhook(**how) as server:
        begun = time.monotonic()
        why = WebhookChannel(server.url).send_message(DOCUMENT, LINES, FAR)
        assert why.startswith("no answer within") and time.monotonic() - begun < 2.5
        assert len(server.bodies) == 3


def test_a_try_lasts_five_seconds() -> None:
    with serve_webhook(delay_s=8.0) as server:
        begun = time.monotonic()
        why = WebhookChannel(server.url).send_message(DOCUMENT, LINES, begun + 5.5)
        assert why and 4.5 < time.monotonic() - begun < 6.5


@pytest.mark.usefixtures("brief_times")
@pytest.mark.parametrize("target", ["file:///etc/passwd", "ftp://127.0.0.1/x", "/elsewhere"])
@pytest.mark.parametrize("status", [301, 302, 303, 307, 308])
def test_no_redirect_is_followed(target: str, status: int) -> None:
    with serve_webhook([status], location=target) as server:
        why = WebhookChannel(server.url).send_message(DOCUMENT, LINES, FAR)
    assert "it redirects" in why and server.paths == ["/hook"]


@pytest.mark.usefixtures("brief_times")
def test_no_error_names_the_url() -> None:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]  # nobody listens there
    for url in (f"http://127.0.0.1:{port}/s3cretPath", f"https://127.0.0.1:{port}/s3cretPath"):
        why = WebhookChannel(url).send_message(DOCUMENT, LINES, FAR)
        assert why == "Connection refused"
    with serve_webhook(path="/s3cretPath") as server:
        why = WebhookChannel(server.url.replace("http:", "https:")).send_message(DOCUMENT, LINES, FAR)
    assert why and "s3cret" not in why, why


@pytest.mark.usefixtures("brief_times")
@pytest.mark.parametrize(
    ("answer", "why"),
    [
        (b"", "the server closed the connection without an answer"),
        (b"SSH-2.0-OpenSSH_9.6\r\n", "the answer is not HTTP"),
        (None, "no answer within 0.5 s"),
    ],
)
def test_a_server_that_does_not_speak_http(answer: bytes | None, why: str) -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:

        def serve() -> None:
            while True:
                taken, _ = server.accept()
                if answer is None:
                    continue
                with taken:
                    data = b""
                    while not data.endswith(b"}"):
                        data += taken.recv(1 << 16)
                    taken.sendall(answer)

        def accept() -> None:
            with contextlib.suppress(OSError):
                serve()

        threading.Thread(target=accept, daemon=True).start()
        url = f"http://127.0.0.1:{server.getsockname()[1]}/s3cretPath"
        assert WebhookChannel(url).send_message(DOCUMENT, LINES, FAR) == why


SLACK = "https://hooks.slack.com/services/T0/B0/x"


def test_chats_get_a_text_and_nothing_else() -> None:
    assert make_message(SLACK, DOCUMENT, LINES) == {
        "text": "TD-N001 critical: first NaN at step 3\n  cause: &lt;log&gt; of 0 &amp; a @name"
    }
    for url in ("https://chat.example/hooks/abc", "https://chat.googleapis.com/v1/x", "https://a.webhook.office.com/x"):
        (key,), (text,) = zip(*make_message(url, DOCUMENT, LINES).items(), strict=True)
        assert key == "text" and "@name" not in text and "<log>" in text
    assert make_message("https://discord.com/api/webhooks/1/x", DOCUMENT, LINES)["allowed_mentions"] == {"parse": []}


def test_others_get_the_finding_too() -> None:
    message = make_message("https://example.org/hook", DOCUMENT, LINES)
    assert message["code"] == "TD-N001" and message["text"].startswith("TD-N001 critical")
    assert json.loads(json.dumps(message)) == message


def test_a_message_is_short_and_holds_no_control_code() -> None:
    text = make_message(SLACK, DOCUMENT, ["\x1b[31m" + "x" * 100_000])["text"]
    assert len(text) <= module.MAX_TEXT and text.startswith("\\x1b[31m")


def test_the_module_is_loaded_where_it_is_wanted_alone(tmp_path: Path) -> None:
    code = "import sys, tdbg.launch.start; sys.exit('urllib.request' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], cwd=tmp_path).returncode == 0
