"""How the pages are reached from another machine: the ssh line is printed where no browser here can show them."""

import getpass
import sys

import pytest

from tdbg.cli import view


@pytest.mark.parametrize(
    ("environ", "is_needed"),
    [
        ({"SSH_CONNECTION": "10.0.0.1 1 10.0.0.2 22", "DISPLAY": ":0"}, True),
        ({"DISPLAY": ":0"}, False),
        ({"WAYLAND_DISPLAY": "wayland-0"}, False),
        ({"DISPLAY": ""}, True),
        ({}, True),
    ],
)
def test_the_line_is_needed_in_an_ssh_session_and_without_a_display(
    monkeypatch: pytest.MonkeyPatch, environ: dict[str, str], is_needed: bool
) -> None:
    monkeypatch.setattr(sys, "platform", "linux")
    assert view.needs_forwarding(environ) == is_needed
    monkeypatch.setattr(sys, "platform", "darwin")
    assert view.needs_forwarding(environ) == ("SSH_CONNECTION" in environ)


@pytest.mark.parametrize("is_known", [True, False])
def test_the_line_is_printed_with_port_user_and_host(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], is_known: bool
) -> None:
    def get_user() -> str:
        if not is_known:
            raise KeyError("uid not found")
        return "ada"

    monkeypatch.setattr(getpass, "getuser", get_user)
    monkeypatch.setenv("SSH_CONNECTION", "x")
    view._print_advice("127.0.0.1", 43521)
    printed = capsys.readouterr().err
    assert f"ssh -N -L 43521:127.0.0.1:43521 {'ada' if is_known else 'USER'}@" in printed
    monkeypatch.delenv("SSH_CONNECTION")
    monkeypatch.setenv("DISPLAY", ":0")
    view._print_advice("127.0.0.1", 43521)
    assert "ssh" not in capsys.readouterr().err
