"""Which line of the program's own takes the time of fetching samples, in the process that fetches them."""

import mmap
import os
import sysconfig
from collections import defaultdict
from dataclasses import dataclass, field
from types import FrameType
from typing import Any

from tdbg.core.frames import get_line
from tdbg.core.guard import Guard
from tdbg.probes.augmentation.worker_pipe import WorkerPipe
from tdbg.probes.dataloader.feeds import format_dataset_name, is_in_worker
from tdbg.runtime.code_places import is_tdbg, is_torch, short_path
from tdbg.runtime.stack_sampler import Place, StackSampler
from tdbg.runtime.thread_stacks import PACKAGES, is_foreign_file

PATIENCE_S = 3.0  # what is said of a wait is held back so long for its line
LINE_SHARE = 1 / 3  # of the time: a smaller part explains nothing
FEW = 10  # samples before anything is said
MAX_FRAMES = 200
MAX_SENT = 6  # places a message has room for
MAX_TEXT = 120
MAX_REQUESTS = 255  # they are numbered in one byte


@dataclass(slots=True, frozen=True)
class SlowLine:
    """A line of the program's, and its part of the time of fetching samples."""

    where: str
    function: str
    callee: str  # what it calls most of that time, if that is Python
    share: float


@dataclass(slots=True)
class _Tally:
    """What was sampled of the fetches from one dataset, over all processes."""

    samples: int = 0
    seconds: defaultdict[Place, float] = field(default_factory=lambda: defaultdict(float))

    def add_message(self, message: dict[str, Any]) -> None:
        self.samples += int(message["samples"])
        for *place, seconds in message["places"]:
            self.seconds[tuple(map(str, place))] += float(seconds)

    def find_slow_line(self) -> SlowLine | None:
        """The line with the largest part of the time, if that is a third or more."""
        total = sum(self.seconds.values())
        lines: defaultdict[tuple[str, str], float] = defaultdict(float)
        for (where, function, _), seconds in self.seconds.items():
            lines[where, function] += seconds if where else 0.0
        if self.samples < FEW or total <= 0.0:
            return None
        slowest = max(lines, key=lines.__getitem__)
        if lines[slowest] < LINE_SHARE * total:
            return None
        callees = {place[2]: seconds for place, seconds in self.seconds.items() if place[:2] == slowest}
        callee = max(callees, key=callees.__getitem__)
        return SlowLine(*slowest, callee, lines[slowest] / total)


class FetchLines:
    """Samples the stack of whoever fetches, once the program waits for a loader; never before.

    The request is a byte of memory that forked workers share; their answers come through a pipe. Without workers the
    process samples itself. Cost where nothing is asked: 0.1 us a fetch.
    """

    def __init__(self, guard: Guard) -> None:
        self._guard = guard
        self._pipe = WorkerPipe()
        self._board: mmap.mmap | None = None  # the number of the request, 0 while there is none
        self._served = 0  # the request that this process has answered
        self._sampler: StackSampler | None = None
        self._name = ""  # of the dataset that is sampled
        self._requests: dict[str, float] = {}  # dataset -> when its line was asked for
        self._tallies: defaultdict[str, _Tally] = defaultdict(_Tally)

    def forked(self) -> None:
        """In a child, which has no thread of the parent's: what it is asked for it begins itself."""
        self._pipe.forked()
        self._sampler = None
        self._served = 0
        self._requests.clear()
        self._tallies.clear()

    def close(self) -> None:
        """End the sampling, and give the means of it back."""
        self.stop_sampling()
        self._pipe.close()
        board, self._board = self._board, None
        if board is not None:
            board.close()

    def stop_sampling(self) -> None:
        """Leave no thread behind: this process is about to fork, or ends."""
        if self._sampler is not None:
            self._sampler.stop_sampling()

    def prepare_workers(self) -> None:
        """Workers are about to be forked: they need a way to be asked, and to answer."""
        self.stop_sampling()
        self._pipe.open_pipe()
        self._open_board()

    def _open_board(self) -> mmap.mmap:
        if self._board is None:
            self._board = mmap.mmap(-1, 1)
        return self._board

    # in the process that waits

    def request_line(self, name: str, now: float) -> None:
        """Ask for the line of a dataset, once."""
        if name not in self._requests and len(self._requests) < MAX_REQUESTS:
            self._requests[name] = now
            self._open_board()[0] = len(self._requests)

    def is_pending(self, name: str, now: float) -> bool:
        """True while it is worth waiting for the answer."""
        self._receive_answers()
        asked_at = self._requests.get(name)
        return asked_at is not None and name not in self._tallies and now - asked_at < PATIENCE_S

    def take_slow_line(self, name: str) -> SlowLine | None:
        """The line that takes most of the time, as far as one does; nobody is asked any more."""
        self._receive_answers()
        if self._board is not None:
            self._board[0] = 0
        return self._tallies[name].find_slow_line() if name in self._tallies else None

    def _receive_answers(self) -> None:
        for message in self._pipe.receive_messages():
            self._tallies[str(message.get("dataset"))].add_message(message)

    # in the process that fetches

    def is_asked(self) -> bool:
        """True while a line is asked for that this process has not told, or its stack is sampled."""
        board = self._board
        return self._sampler is not None or (board is not None and board[0] not in (0, self._served))

    def fetch_begins(self, fetcher: Any) -> None:
        """A batch is about to be fetched here."""
        board = self._board
        if board is None or board[0] in (0, self._served):
            return
        if self._sampler is None:
            self._name = format_dataset_name(fetcher.dataset)
            self._sampler = StackSampler(self._guard, locate_fetch_line)
        if not self._sampler.is_done:
            self._sampler.resume()

    def fetch_ended(self) -> None:
        """It is fetched, or could not be."""
        sampler = self._sampler
        if sampler is None:
            return
        sampler.pause()
        if sampler.is_done and self._board is not None:
            self._served, self._sampler = self._board[0], None
            self._hand_out(sampler)

    def _hand_out(self, sampler: StackSampler) -> None:
        largest = sorted(sampler.seconds.items(), key=lambda item: -item[1])
        places = [[*(text[:MAX_TEXT] for text in place), round(seconds, 6)] for place, seconds in largest[:MAX_SENT]]
        rest = sum(seconds for _, seconds in largest[MAX_SENT:])
        message = {"dataset": self._name, "samples": sampler.samples, "places": [*places, ["", "", "", round(rest, 6)]]}
        if is_in_worker():
            self._pipe.send_message(message)
        else:
            self._tallies[self._name].add_message(message)


def locate_fetch_line(frame: FrameType) -> Place | None:
    """(file:line, function, callee) of the innermost frame of the program's own below torch's ``fetch``.

    Empty texts where there is none, as in a collate function of torch's; None outside of a fetch.
    """
    found: Place = ("", "", "")
    inner: FrameType | None = None
    current: FrameType | None = frame
    for _ in range(MAX_FRAMES):
        if current is None:
            return None
        if is_torch(current) and current.f_code.co_name == "fetch":
            return found
        if not found[0] and not is_foreign_file(current.f_code.co_filename):
            code = current.f_code
            callee = f"{inner.f_code.co_name} ({_short_library_path(inner.f_code.co_filename)})" if inner else ""
            found = f"{short_path(code.co_filename)}:{get_line(current)}", code.co_qualname, callee
        if not is_tdbg(current):
            inner = current
        current = current.f_back
    return None


def _short_library_path(file: str) -> str:
    """A file of an installed package from the package on, one of the standard library from there on."""
    for part in PACKAGES:
        _, found, rest = file.rpartition(part)
        if found:
            return rest
    return file.removeprefix(os.path.join(sysconfig.get_paths()["stdlib"], ""))
