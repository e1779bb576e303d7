"""`--capture-upload`: what is captured goes to a store while the command runs, from the supervisor, at no cost of the ranks."""

import fcntl
import os
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import IO, TYPE_CHECKING

from tdbg.core import run_files
from tdbg.core.capture import Epochs
from tdbg.core.config import Settings
from tdbg.core.errors import TdbgError
from tdbg.core.guard import guarded
from tdbg.core.host import host_name
from tdbg.core.output import print_messages
from tdbg.core.rundir import UPLOAD, RunDir, write_json
from tdbg.core.tables import format_count

if TYPE_CHECKING:
    from tdbg.pages.page_upload import Upload

INTERRUPTED = "interrupted"
POLL_S = 5.0
REST = 20  # the thread sleeps this many times as long as a look took, at least
LOOK_S = 0.2  # between two looks whether the thread has ended, so that Ctrl-C is heard


def is_wanted(settings: Settings) -> bool:
    """True if something is captured and is to be copied."""
    return bool(settings.captures and settings.capture_upload)


def check_store(settings: Settings) -> None:
    """TdbgError if nothing here can speak to the store."""
    if is_wanted(settings):
        from tdbg.pages.read.remote_store import check_protocol

        check_protocol(settings.capture_upload)


class Uploading:
    """Copies what was written on this host to ``URL/NAME-OF-THE-RUN``, in a thread.

    A failure is said once; what could not be copied is tried again, and stays where it was written in any case.
    """

    def __init__(self, run: RunDir, settings: Settings) -> None:
        self._run, self._settings = run, settings
        self.url = f"{settings.capture_upload.rstrip('/')}/{run.path.name}"
        self._epochs = Epochs.parse(settings.capture_epochs)
        self._ending = threading.Event()
        self._thread = threading.Thread(target=self._upload_periodically, name="tdbg-upload", daemon=True)
        self._error, self._is_reported = "", False
        self._failures = 0
        self._upload: Upload | None = None

    def start_thread(self) -> None:
        """Begin; from here on this process has threads."""
        self._thread.start()

    def finish_upload(self) -> None:
        """Wait for the rest, and leave word of it in the run directory. Ctrl-C ends the waiting, and nothing is lost."""
        self._ending.set()
        try:
            while self._thread.is_alive():
                self._thread.join(LOOK_S)
        except KeyboardInterrupt:
            self._error = INTERRUPTED
        files, nbytes = (self._upload.files, self._upload.nbytes) if self._upload else (0, 0)
        self._write_status(files, nbytes)
        if self._error == INTERRUPTED:
            print_messages(f"interrupted: `tdbg inspect-pages upload {self._run.path} {self.url}` copies the rest")
        elif not self._error and files and not self._settings.quiet:
            print_messages(f"{format_count(files, 'file')}, {nbytes / 1e6:,.1f} MB are on {self.url}")

    def _upload_periodically(self) -> None:
        pause = POLL_S
        with guarded("the run must not end by it", self._record_failure):
            from tdbg.pages.page_upload import Upload

            upload = self._upload = Upload(self._run.path, self.url, host=host_name(), stays=self._is_kept_folder)
            self._attempt_action(upload.store.check_access)
            while not self._ending.wait(pause):
                begun = time.monotonic()
                with Turn(self._run, wait=False) as mine:
                    if mine:
                        self._attempt_action(upload.upload_new_files)
                pause = max(POLL_S, REST * (time.monotonic() - begun))
            with Turn(self._run, wait=True):
                self._attempt_action(lambda: upload.upload_new_files(last=True))

    def _attempt_action(self, action: Callable[[], None]) -> None:
        with guarded("a store's library raises what it likes; the next attempt may succeed", self._record_failure):
            action()
            self._error = ""

    def _record_failure(self, error: BaseException) -> None:
        self._failures += 1
        self._error = str(error) if isinstance(error, TdbgError) else f"{type(error).__name__}: {error}"
        if not self._is_reported:
            self._is_reported = True
            hint = [error.hint] if isinstance(error, TdbgError) and error.hint else []
            print_messages(
                f"--capture-upload: {self._error}",
                *hint,
                f"tdbg will retry; the captured pages stay in {self._run.path}",
            )

    def _is_kept_folder(self, folder: Path) -> bool:
        """False for the folder of an epoch that is kept only if it turns out to be the last."""
        word, _, number = folder.name.partition("epoch_")
        return bool(word) or not number.isdecimal() or self._epochs.is_selected(int(number))

    def _write_status(self, files: int, nbytes: int) -> None:
        host = host_name()
        about = {"url": self.url, "host": host, "files": files, "bytes": nbytes}
        about |= {"failures": self._failures, "error": self._error}
        try:
            run_files.make_folder(self._run.path / UPLOAD)
            write_json(self._run.path / UPLOAD / f"{host}.json", about)
        except OSError as error:
            print_messages(f"cannot write {self._run.path / UPLOAD}: {error.strerror or error}")


class Turn:
    """One agent of a host copies at a time, so that several of them copy nothing twice."""

    def __init__(self, run: RunDir, *, wait: bool) -> None:
        self._path = run.path / UPLOAD / f"{host_name()}.lock"
        self._flags = fcntl.LOCK_EX | (0 if wait else fcntl.LOCK_NB)
        self._file: IO[bytes] | None = None

    def __enter__(self) -> bool:
        """True if it is this one's turn, or nobody can tell."""
        try:
            self._file = os.fdopen(run_files.open_append(self._path, makes=True), "ab")
            fcntl.flock(self._file, self._flags)
        except BlockingIOError:
            return False
        except OSError:  # no locks there
            pass
        return True

    def __exit__(self, *exc: object) -> None:
        if self._file is not None:
            self._file.close()
