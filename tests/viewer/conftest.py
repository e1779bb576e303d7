"""Recorded runs behind the application, asked without a socket."""

import io
import tarfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from starlette.testclient import TestClient

from tdbg.viewer.run_library import RunLibrary, Served
from tdbg.viewer.server import build_app
from tdbg.viewer.sessions import Sessions

RECORDED = Path(__file__).parents[1] / "contract" / "runs"
PATIENCE_S = 60.0
NAMES = sorted(path.name.removesuffix(".tar.gz") for path in RECORDED.glob("*.tar.gz"))


def unpack_recording(name: str, folder: Path) -> Path:
    """One of the recorded runs, as it was written."""
    with tarfile.open(fileobj=io.BytesIO((RECORDED / f"{name}.tar.gz").read_bytes())) as archive:
        archive.extractall(folder, filter="data")
    return folder / name


@pytest.fixture(scope="session", autouse=True)
def cache_home(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """What viewers keep is kept in a folder of the tests, not in that of the user."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("XDG_CACHE_HOME", str(tmp_path_factory.mktemp("cache")))
        yield


@pytest.fixture(scope="session")
def runs_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """All recorded runs side by side."""
    folder = tmp_path_factory.mktemp("recorded")
    for name in NAMES:
        unpack_recording(name, folder)
    return folder


class Client:
    """Asks the application as a page does: with its session, from this machine."""

    def __init__(self, where: Path | RunLibrary, *, control: bool = False) -> None:
        self.sessions = Sessions()
        library = where if isinstance(where, RunLibrary) else RunLibrary(str(where))
        self.served = Served(library, self.sessions, control)
        self.app = build_app(self.served)
        self.http = TestClient(self.app, base_url="http://127.0.0.1:8000", raise_server_exceptions=False)
        session = self.sessions.open_session(self.sessions.token)
        self.headers = {"authorization": f"Bearer {session}"}

    def get(self, path: str, **more: Any) -> Any:
        """An answer, with the session unless other headers are given."""
        return self.http.get(path, **{"headers": self.headers, **more})

    def ask(self, path: str, /, **query: object) -> Any:
        """What an address answers; fails if it refuses."""
        answer = self.get(f"/api/v1{path}", params=query)
        assert answer.status_code == 200, answer.text
        return answer.json()

    def wait_for(self, path: str, /, **query: object) -> Any:
        """What an address of traces answers once they are read, or refuses."""
        until = time.monotonic() + PATIENCE_S
        while time.monotonic() < until:
            answer = self.get(f"/api/v1{path}", params=query)
            if answer.status_code != 200 or not answer.json().get("reading"):
                return answer.json()
            time.sleep(0.05)
        raise AssertionError("the traces were never read")


@pytest.fixture(scope="session")
def client(runs_folder: Path) -> Iterator[Client]:
    yield Client(runs_folder)
