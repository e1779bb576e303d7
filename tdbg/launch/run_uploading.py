"""`--run-dir URL`: the run is written here as ever, and copied below the URL by a thread of the supervisor."""

import json
import os
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

from tdbg.core import run_files
from tdbg.core.capture import Epochs
from tdbg.core.config import Settings
from tdbg.core.errors import TdbgError
from tdbg.core.guard import guarded
from tdbg.core.host import host_name
from tdbg.core.output import print_messages
from tdbg.core.redaction import redact_text
from tdbg.core.rundir import STATE_FILE, RunDir
from tdbg.core.tables import format_count
from tdbg.core.urls import is_url

if TYPE_CHECKING:
    from tdbg.launch.run_upload import RunUpload

CLAIM_FILE = ".store-claim"  # in the run directory: by which a restarted job finds its own place again
UNFIT = {"http": "can be read, not written", "https": "can be read, not written", "memory": "ends with this process"}
LEAST_PAUSE_S, MOST_PAUSE_S = 5.0, 300.0
PAUSE_SHARE = 0.02  # of the time since the start: hours make hundreds of pieces, not thousands
REST = 20  # the thread sleeps this many times as long as a round took, as far as the longest pause allows
LOOK_S = 0.2  # between two looks whether the thread has ended, so that Ctrl-C is heard
PATIENCE_S = 60.0  # at the end of the run, without anything copied
LIMIT_S, STOPPED_LIMIT_S = 600.0, 10.0  # in all: at the end of the run, and after it was told to end
SLOW_S = 3.0  # then it is said what is waited for


def is_wanted(settings: Settings) -> bool:
    """True if the run is to be copied below a URL."""
    return is_url(settings.run_dir)


def check_store(settings: Settings) -> None:
    """TdbgError if nothing here can write there. Cost: loads the library, opens nothing."""
    if is_wanted(settings):
        _check_writable(settings.run_dir, "--run-dir: ")


def _check_writable(url: str, begins: str = "") -> None:
    from tdbg.pages.read.remote_store import check_protocol

    scheme = url.partition("://")[0]
    if scheme.lower() in UNFIT:
        raise TdbgError(f"{begins}{scheme}:// {UNFIT[scheme.lower()]}", "name a store such as s3://bucket/folder")
    check_protocol(url)


class StorePlace:
    """The URL of a run, and the token by which it is known that it is this run's."""

    def __init__(self, url: str, token: str, *, is_claimed: bool = False) -> None:
        self.url, self.token, self.is_claimed = url.rstrip("/"), token, is_claimed

    @classmethod
    def claim(cls, run: RunDir, settings: Settings) -> "StorePlace":
        """Take the URL before the command is started; a restarted job has it already.

        Raises TdbgError where another run lies there, or nothing can be written; the new run directory is then removed,
        and by Ctrl-C too.
        """
        from tdbg.launch.store_claim import try_claim

        place = cls(settings.run_dir, _make_token())
        kept = _read_claim(run)
        if kept.get("url") == place.url and kept.get("token"):
            place.token, place.is_claimed = str(kept["token"]), bool(kept.get("is_claimed"))
        if not place.is_claimed:
            try:
                place.is_claimed = try_claim(place.url, place.token)
            except (TdbgError, KeyboardInterrupt):
                _remove_new_run(run)
                raise
            place.save(run)
        return place

    def save(self, run: RunDir) -> None:
        """Note it in the run directory."""
        _write_claim(run, {"url": self.url, "token": self.token, "is_claimed": self.is_claimed})


def complete_upload(run: RunDir, url: str = "") -> "tuple[str, RunUpload]":
    """Copy what is not on the store yet of a run that is over. Returns the URL, and what was copied.

    url: the one that the run was begun with if left out. Raises TdbgError where another run lies there, or what fails.
    """
    from tdbg.launch.run_upload import PlaceTakenError, RunUpload, claim_place

    kept = _read_claim(run)
    url = (url or str(kept.get("url") or "")).rstrip("/")
    if not url:
        raise TdbgError(f"{run.path} was not begun with --run-dir URL", "write the URL after the run")
    _check_writable(url)
    others = kept.get("others")
    others = others if isinstance(others, list) else []
    is_known = kept.get("url") == url and bool(kept.get("token"))
    place = StorePlace(url, str(kept["token"]) if is_known else _make_token(), is_claimed=bool(kept.get("is_claimed")))
    upload = RunUpload(run.path, url)
    try:
        if not (is_known and place.is_claimed) and url not in others:
            claim_place(upload.store, place.token)
            place.is_claimed = True
            if is_known or not kept:
                place.save(run)
            else:  # the run was begun with another URL, which a call without one goes on with
                _write_claim(run, {**kept, "others": [*others, url]})
        upload.upload_new_files(last=True)
    except PlaceTakenError as error:
        raise TdbgError(str(error), "choose another URL") from None
    except FileNotFoundError as error:
        raise TdbgError(
            f"cannot write to {redact_text(url)}: {error.strerror or error}", "choose another URL"
        ) from None
    return url, upload


def _make_token() -> str:
    return f"{host_name()}-{os.getpid()}-{os.urandom(4).hex()}"


def _write_claim(run: RunDir, about: dict[str, object]) -> None:
    with guarded("a restart then takes it for another run's", lambda error: None):
        run_files.write_atomically(run.path / CLAIM_FILE, json.dumps(about).encode())


def _read_claim(run: RunDir) -> dict[str, object]:
    try:
        found = json.loads(run_files.read_bytes(run.path / CLAIM_FILE, 4096))
    except (OSError, ValueError):
        return {}
    return found if isinstance(found, dict) else {}


def _remove_new_run(run: RunDir) -> None:
    """Leave nothing of a run that was refused, if it is as new as it was made."""
    import shutil

    if os.listdir(run.path) == [STATE_FILE]:
        shutil.rmtree(run.path, ignore_errors=True)


class RunUploading:
    """Copies a run directory below its URL, in a thread.

    A failure is said once; what could not be copied is tried again, and stays in the run directory in any case.
    """

    def __init__(self, run: RunDir, settings: Settings, place: StorePlace) -> None:
        self._run, self._settings, self._place = run, settings, place
        self._epochs = Epochs.parse(settings.capture_epochs)
        self._wake = threading.Event()
        self._is_ending = self._is_stopped = self._is_given_up = False
        self._thread = threading.Thread(target=self._upload_periodically, name="tdbg-run-upload", daemon=True)
        self._error, self._is_reported = "", False
        self._upload: RunUpload | None = None

    def start_thread(self) -> None:
        """Begin; from here on this process has threads."""
        self._thread.start()

    def hasten_round(self, *, is_stopped: bool = False) -> None:
        """Copy at once: the command was told to end (``is_stopped``), or has ended. From any thread."""
        self._is_stopped = self._is_stopped or is_stopped
        self._wake.set()

    def finish_upload(self) -> None:
        """Copy the rest, and say what is there. Ctrl-C ends the waiting, and nothing is lost."""
        self._is_ending = True
        self._wake.set()
        try:
            self._wait_for_thread()
        except KeyboardInterrupt:
            self._error = "interrupted"
        where, place = self._run.path, self._place
        if self._error:
            print_messages(
                f"--run-dir: not all of the run is on {place.url}: {self._error}",
                f"the whole run is in {where}; `tdbg runs upload {where}` copies the rest",
            )
        elif self._upload is not None and not self._settings.quiet:
            count, size = format_count(self._upload.files, "file"), f"{self._upload.nbytes / 1e6:,.1f} MB"
            print_messages(f"{count}, {size} of the run are on {place.url}, and in {where}")

    def _wait_for_thread(self) -> None:
        """Wait as long as something is copied, within a limit."""
        limit = STOPPED_LIMIT_S if self._is_stopped else LIMIT_S
        begun = since = time.monotonic()
        copied, is_announced = -1, self._settings.quiet
        while self._thread.is_alive():
            self._thread.join(LOOK_S)
            now, nbytes = time.monotonic(), self._upload.nbytes if self._upload is not None else 0
            if nbytes != copied:
                copied, since = nbytes, now
            if now - since > PATIENCE_S or now - begun > limit:
                waited = (
                    f"nothing was copied for {PATIENCE_S:g} s"
                    if now - since > PATIENCE_S
                    else f"{limit:g} s were not enough"
                )
                self._error = self._error or waited
                return
            if now - begun > SLOW_S and not is_announced:
                is_announced = True
                print_messages(
                    f"--run-dir: copying the rest of the run to {self._place.url}, for at most {limit:g} s; Ctrl-C ends the wait"
                )

    def _upload_periodically(self) -> None:
        with guarded("the run must not end by it", self._record_failure):
            begun = time.monotonic()
            while not self._is_given_up and not self._is_ending:
                round_t = time.monotonic()
                self._attempt_action(lambda: self._carry_out_round(last=False))
                took = time.monotonic() - round_t
                pause = max(LEAST_PAUSE_S, PAUSE_SHARE * (round_t - begun), REST * took)
                self._wake.wait(min(pause, MOST_PAUSE_S))
                self._wake.clear()
            if not self._is_given_up:
                self._attempt_action(lambda: self._carry_out_round(last=True))

    def _carry_out_round(self, *, last: bool) -> None:
        from tdbg.launch.run_upload import PlaceTakenError, RunUpload, claim_place

        upload = self._upload
        if upload is None:  # not before: a library may need the network to be made
            upload = self._upload = RunUpload(self._run.path, self._place.url, stays=self._is_kept_folder)
        if not self._place.is_claimed:
            try:
                claim_place(upload.store, self._place.token)
            except PlaceTakenError:
                self._is_given_up = True
                raise
            self._place.is_claimed = True
            self._place.save(self._run)
        upload.upload_new_files(last=last)

    def _attempt_action(self, action: Callable[[], None]) -> None:
        with guarded("a store's library raises what it likes; the next attempt may succeed", self._record_failure):
            action()
            self._error = ""

    def _record_failure(self, error: BaseException) -> None:
        text = str(error) if isinstance(error, TdbgError) else f"{type(error).__name__}: {error}"
        self._error = redact_text(text)
        if not self._is_reported:
            self._is_reported = True
            hint = [error.hint] if isinstance(error, TdbgError) and error.hint else []
            again = "nothing more is copied" if self._is_given_up else "tdbg will retry"
            print_messages(f"--run-dir: {self._error}", *hint, f"{again}; the whole run is in {self._run.path}")

    def _is_kept_folder(self, folder: Path) -> bool:
        """False for the folder of an epoch that is kept only if it turns out to be the last."""
        word, _, number = folder.name.partition("epoch_")
        return bool(word) or not number.isdecimal() or self._epochs.is_selected(int(number))
