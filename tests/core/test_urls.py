"""URLs that name a place, and URLs that something can be posted to."""

import pytest

from tdbg.core.errors import TdbgError
from tdbg.core.urls import check_webhook


@pytest.mark.parametrize(
    "url",
    [
        "https://hooks.slack.com/services/T0/B0/x",
        "http://127.0.0.1:8065/hooks/x",
        "HTTPS://Example.ORG",
        "https://[::1]:80/x?y=z#w",
        "https://chat.googleapis.com/v1/spaces/X/messages?key=a&token=b%3D",
        "http://intra_net.example./x",
        "http://localhost?x",
        f"http://{'a' * 63}.{'b' * 63}.example.org/x",
    ],
)
def test_where_messages_can_be_posted(url: str) -> None:
    check_webhook(url)


@pytest.mark.parametrize(
    "url",
    ["", "x", "http:/x/sEcReT", "ws://x/sEcReT", "https://-x/sEcReT", "https://x:/sEcReT", "https://x:0/sEcReT",
     "https://[::1/sEcReT", "https://\u00e4/sEcReT", "https://x/\u00e4sEcReT", "https://x/\x00sEcReT", "https://a b/sEcReT",
     "https://sEcReT@x/", "javascript://x/sEcReT", "https://sEcReT..x/", f"https://{'sEcReT' * 11}/",
     f"https://{'sEcReT.' * 37}x/", "http://-/sEcReT", "http://.../sEcReT"],
)  # fmt: skip
def test_where_they_cannot_and_the_url_is_not_repeated(url: str) -> None:
    with pytest.raises(TdbgError) as caught:
        check_webhook(url)
    assert "ReT" not in f"{caught.value} {caught.value.hint}"
