"""The names of this machine."""

import os
import platform

import pytest

from tdbg.core.host import host_name, platform_name


def test_names_are_those_of_the_standard_library(monkeypatch: pytest.MonkeyPatch) -> None:
    assert host_name() == platform.node()
    known = platform.uname()
    expected = f"{known.system}-{known.release}-{known.machine}-with-{''.join(platform.libc_ver())}"
    assert platform_name() in (expected, platform.platform())

    def refuse(name: str) -> str:
        raise ValueError("unrecognized configuration name")

    monkeypatch.setattr(os, "confstr", refuse)
    assert platform_name() == platform.platform()
