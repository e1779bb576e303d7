"""The program's own log records, in ``records.jsonl`` of the rank: each with its step and the flags that guard its call.

Nothing the program can see is changed. Records are taken where a logger hands them to its handlers, so whatever
factory, logger class or configuration the program sets, before or after, is its own. A record that a logger's level
drops although a flag that is on guards its call is written from the arguments of the dropped call: neither
factory, filters nor handlers of the program hear of it, and `isEnabledFor` answers what it always did.
"""

import atexit
import functools
import inspect
import json
import sys
import threading
import time
import traceback
import warnings
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from json.encoder import encode_basestring as quoted
from types import FrameType, FunctionType
from typing import TYPE_CHECKING, Any, TypeVar

from tdbg.core.events import Traceback
from tdbg.core.frames import WITHOUT_OWN_FRAMES, get_line
from tdbg.core.guard import Guard, belongs_to_program, guarded
from tdbg.core.redaction import redact_text
from tdbg.core.tables import format_count
from tdbg.inject.agent import Agent
from tdbg.inject.identity import is_child, rank_of_process
from tdbg.inject.imports import disguise_as
from tdbg.inject.maps import Maps
from tdbg.logs.guards.flagsets import NONE, Flags
from tdbg.logs.guards.link import GuardMap
from tdbg.logs.log_header import RECORDS, STATS
from tdbg.logs.textlog import KEPT_PARTS, ROTATE_BYTES, TextLog, format_timestamp
from tdbg.runtime.patches import Patches

if TYPE_CHECKING:
    from logging import Logger, LogRecord

MAX_HELD = 10_000
MAX_HELD_CHARS = 8_000_000
MAX_WAIT_S = 30.0
MAX_CHARS = 4_000_000  # of one message
MAX_PARTIAL = 20_000  # of a printed line that does not end
SHARE = 0.25  # of the disk budget
PATIENCE_S = 2.0
MIN_RESULT = 4  # characters of a text that holds a name and a number
CLIMB = 4  # functions that pass a message on, one to the next

Hidden = TypeVar("Hidden")
Place = tuple[str, int]  # a file as its code objects name it, and a line


@dataclass(slots=True)
class Spoken:
    """A record on its way: what is known when it is made."""

    t: float
    level: str
    logger: str
    step: int
    phase: str
    text: str
    places: list[Place]  # of the call, and where that only passes the message on, of its callers
    suppressed: bool = False
    raised: bool = False  # it holds a traceback


class ThreadState(threading.local):
    """What a thread is at. A name that it has not set is found in the class: one that is missing costs an exception."""

    record: "LogRecord | None" = None  # whose handlers run
    partial = ""  # its unfinished printed line
    places: list[Place]  # of the call that began it, and of its callers


class Records:
    """Writes the records of this process, as soon as it is a rank and the maps are there; until then a bounded number waits."""

    def __init__(self, agent: Agent) -> None:
        self.agent = agent
        self.guard = agent.get_guard("records")
        self.maps = Maps(agent.settings.flag_functions, self.flush_held, agent.record_failure, self.flush_overdue)
        budget = agent.settings.disk_budget_bytes
        self._share_bytes = int(budget * SHARE)
        self._part_bytes = part_bytes = max(min(ROTATE_BYTES, self._share_bytes // (KEPT_PARTS + 1)), 1)
        self._log = TextLog(lambda: agent.folder / RECORDS if agent.folder else None, part_bytes)
        self._aside = TextLog(lambda: agent.folder_aside / RECORDS, part_bytes)  # until it is a rank
        self._written_bytes = 0
        self.text_reader: Callable[[str, int, str], None] | None = None  # given each text, its step and its phase
        self.reset_after_fork()

    def reset_after_fork(self) -> None:
        """In a forked child: what waits, the file and the thread are the parent's."""
        self._log.forget()
        self._aside.forget()
        self._saved = 0  # of those that wait, how many are in a file aside, should the process die before it is a rank
        self._seen = 0  # of those that wait, how many need no second look for a flag or an exception
        self.maps.reset_after_fork()
        self._held: list[Spoken] = []
        self._held_chars = self.lost = self._written_bytes = 0
        self.spent_s = 0.0
        self._lock = self.maps.lock  # one lock: a signal handler that logs may come while either has it
        self.local = ThreadState()

    def submit_record(self, spoken: Spoken, begun: float) -> None:
        """Write a record, or have it wait. begun: when the work on it began, by `time.perf_counter`."""
        try:
            self._write_or_hold(spoken)
        finally:
            self.spent_s += time.perf_counter() - begun

    def _write_or_hold(self, spoken: Spoken) -> None:
        with self._lock:
            waits = (
                self.agent.rank is None or self._held or any(self.maps.is_pending(file) for file, _ in spoken.places)
            )
            if not waits:
                self._write_record(spoken)
                return
            is_full = len(self._held) >= MAX_HELD or self._held_chars > MAX_HELD_CHARS
            if is_full and self.agent.rank is None:
                self.lost += 1
                return
            self._held.append(spoken)
            self._held_chars += len(spoken.text)
            if is_full or self._is_overdue:
                self._flush_held(at_the_end=True)
            elif not self.maps.busy:
                self.flush_held()

    @property
    def _is_overdue(self) -> bool:
        """True if the whole tree takes too long to read: what waits is lost if the process is killed."""
        return bool(self._held) and self.agent.rank is not None and time.time() - self._held[0].t > MAX_WAIT_S

    def flush_overdue(self) -> None:
        """Write what has waited too long, with what each file says by itself."""
        with self._lock:
            if self._is_overdue:
                self.flush_held(at_the_end=True)

    def flush_held(self, at_the_end: bool = False) -> None:
        """Write what waits, if nothing is missing any more."""
        self.guard.call_guarded(self._flush_held, at_the_end)

    def _flush_held(self, at_the_end: bool) -> None:
        with self._lock:
            if self.agent.rank is None:
                self._spill_held()
                return
            missing = [file for spoken in self._held for file, _ in spoken.places if self.maps.is_pending(file)]
            if missing and not at_the_end:
                return
            self.maps.use_single_maps(missing)
            held, self._held, self._held_chars, self._seen = self._held, [], 0, 0
            for spoken in held:
                self._write_record(spoken)
            self._forget_saved()
            if self.lost:
                self.agent.note_once(
                    "records-lost", f"{format_count(self.lost, 'log record')} lost: the buffer was full"
                )

    def flush_at_exit(self) -> None:
        """The process leaves in good order; one that never was a rank leaves what a flag or an exception made it say."""
        if "\n" in self.local.partial:
            self.guard.call_guarded(self._record_printed_lines, self.local.partial, time.perf_counter())
        if self.agent.rank is not None:
            if self._held:
                self.maps.wait_for_thread(PATIENCE_S)
            self.flush_held(at_the_end=True)
        elif self._held and not is_child():
            self.maps.wait_for_thread(PATIENCE_S)
            self._spill_held(at_the_end=True)

    def _spill_held(self, *, at_the_end: bool = False) -> None:
        """Have what waits for the process to be a rank in a file aside as well, if a flag or an exception is in it."""
        if self.agent.rank is not None:
            return
        with self.agent.get_guard("records"), self._lock:
            new = self._held[self._saved if at_the_end else self._seen :]
            missing = [file for spoken in new for file, _ in spoken.places if self.maps.is_pending(file)]
            if missing and not at_the_end:
                return
            self.maps.use_single_maps(missing)
            self._seen = len(self._held)
            if not any(one.raised or self.find_flags(one.places) for one in new):
                return
            for spoken in self._held[self._saved :]:
                self._write_record(spoken, self._aside)
            self._saved = len(self._held)

    def _forget_saved(self) -> None:
        """What waited is in the rank's own file now."""
        if self._saved:
            self._saved = 0
            self._aside.close()
            (self.agent.folder_aside / RECORDS).unlink(missing_ok=True)

    def find_flags(self, places: list[Place]) -> Flags:
        """The flags that guard a call."""
        for file, line in places:
            guards = self.maps.known.get(file)
            if guards is None:
                return NONE
            found = guards.flags_at(line, self._list_active_flags()) if line in guards.lines else NONE
            if found or line not in guards.passed_on:
                return found
        return NONE

    def _list_active_flags(self) -> list[str]:
        return [name for name, value in self.agent.settings.flags.items() if value is not False]

    def _write_record(self, spoken: Spoken, log: TextLog | None = None) -> None:
        flags = self.find_flags(spoken.places)
        if spoken.suppressed and not flags:
            return
        file, line = spoken.places[0] if spoken.places else ("", 0)
        rank = self.agent.rank if self.agent.rank is not None else rank_of_process()
        parts = [
            f'{{"time": "{format_timestamp(spoken.t)}", "level": {quoted(spoken.level)}, "rank": {json.dumps(rank)}',
            f'"step": {spoken.step}',
            f'"phase": "{spoken.phase}"' if spoken.phase else "",
            f'"flags": [{", ".join(map(quoted, sorted(flags)))}]',
            f'"logger": {quoted(spoken.logger)}, "file": {quoted(f"{file}:{line}")}',
            '"suppressed": true' if spoken.suppressed else "",
            f'"message": {quoted(spoken.text)}}}\n',
        ]
        text = ", ".join(filter(None, parts))
        if len(text) > self._part_bytes:  # under a tiny disk budget
            self.agent.note_once("records-left-out", f"log records too large for the disk budget are not in {RECORDS}")
            return
        (log or self._log).write(text)
        self._charge_disk_budget(len(text))

    def _charge_disk_budget(self, size: int) -> None:
        """Take what is written from the rank's disk budget, up to the share that the parts of the file can fill."""
        if self._written_bytes < self._share_bytes:
            self.agent.charge_disk(size)
            self._written_bytes += size
            if self._written_bytes >= self._share_bytes:
                text = f"log records filled their share of the disk budget: the oldest in {RECORDS} are deleted"
                self.agent.note_once("records-rotated", text)

    # what is heard

    def get_step_and_phase(self) -> tuple[int, str]:
        """Step and phase."""
        monitor, torch = self.agent.monitor, sys.modules.get("torch")
        if monitor is None or torch is None:
            return self.agent.step, ""
        return monitor.user_facing_step, "train" if torch.is_grad_enabled() else "eval"

    def record_logged(self, record: "LogRecord") -> None:
        """A record that a logger hands to its handlers."""
        begun = time.perf_counter()
        file, line = str(record.pathname), int(record.lineno or 0)
        places = [(file, line), *(_iter_callers(sys._getframe(2), file, line) if self._may_pass_on(file, line) else ())]
        text = message_of(record.msg, record.args, record)
        step, phase = self.get_step_and_phase()
        t = record.created if isinstance(record.created, float) else time.time()
        raised = bool(record.exc_info)
        if self.text_reader is not None and not raised:
            self.text_reader(text, step, phase)
        self.submit_record(
            Spoken(t, str(record.levelname), str(record.name), step, phase, text, places, raised=raised), begun
        )

    def _may_pass_on(self, file: str, line: int) -> bool:
        guards = self.maps.known.get(file, self)
        return guards is self or (isinstance(guards, GuardMap) and line in guards.passed_on)

    def record_dropped_call(self, logger: "Logger", level: int, entry: FrameType, frame: FrameType) -> None:
        """A call that its logger's level drops: if a flag guards it, it is written all the same.

        entry: the logging method that was called. frame: who called it.
        """
        begun = time.perf_counter()
        file = frame.f_code.co_filename
        guards = self.maps.get_single_map(file) if self.maps.is_pending(file) else self.maps.get_map(file)
        line = get_line(frame)
        if guards is None or not (line in guards.lines or line in guards.passed_on):
            return
        places = [(file, line), *(_iter_callers(frame, file, line) if line in guards.passed_on else ())]
        if not any(self.maps.is_pending(file) for file, _ in places) and not self.find_flags(places):
            return
        msg, args, exc_info = extract_log_arguments(entry, logger)
        text = message_of(msg, args, exc_info=exc_info)
        step, phase = self.get_step_and_phase()
        name = sys.modules["logging"].getLevelName(level)
        self.submit_record(
            Spoken(time.time(), str(name), str(logger.name), step, phase, text, places, suppressed=True), begun
        )

    def record_printed(self, text: str, frame: FrameType | None) -> None:
        """A piece of text on its way to stdout; a record is what one call prints up to a newline at its end.

        ``print`` writes its text first and the newline after it: a text of several lines waits for that.
        """
        begun = time.perf_counter()
        local = self.local
        if local.record is not None:  # a handler of a logger prints what is a record already
            return
        place = (frame.f_code.co_filename, get_line(frame)) if frame is not None else ("", 0)
        before = local.partial
        if "\n" in before and place != local.places[0]:
            before = self._record_printed_lines(
                before, begun
            )  # another call goes on: the lines before its own are whole
        if not before:
            callers = _iter_callers(frame, *place) if frame is not None and self._may_pass_on(*place) else ()
            local.places = [place, *callers]
        whole = before + text
        if not whole.endswith("\n") and "\n" in whole and len(whole) <= MAX_PARTIAL:
            local.partial = whole
        else:
            self._record_printed_lines(whole, begun)

    def _record_printed_lines(self, text: str, begun: float) -> str:
        """Take the lines of a printed text that have ended; returns, and keeps, the one that has not."""
        local = self.local
        done, newline, rest = text.rpartition("\n")
        local.partial = rest.rpartition("\r")[2][-MAX_PARTIAL:]  # a progress bar overwrites itself
        if newline and done.strip():
            step, phase = self.get_step_and_phase()
            if self.text_reader is not None:
                self.text_reader(done, step, phase)
            self.submit_record(
                Spoken(time.time(), "STDOUT", "stdout", step, phase, redact_and_truncate(done), local.places), begun
            )
        return str(local.partial)

    def read_stderr(self, text: str, frame: FrameType | None) -> None:
        """Give the reader what the program writes to stderr, such as a progress bar; it makes no record."""
        if self.text_reader is None or self.local.record is not None or len(text) < MIN_RESULT:
            return
        self.text_reader(text, *self.get_step_and_phase())

    def record_exception(self, error: Traceback) -> None:
        """An exception that no logger was told of: printed, the end of a thread or of the process."""
        begun = time.perf_counter()
        file, _, line = error.where.rpartition(":")
        level = "CRITICAL" if error.how == "uncaught" else "ERROR"
        text = "\n".join([f"exception, {error.how}", *error.lines])
        places = [(file, int(line))] if line.isdigit() else []
        step, phase = self.get_step_and_phase()
        self.submit_record(
            Spoken(time.time(), level, "traceback", step, phase, redact_and_truncate(text), places, raised=True), begun
        )

    def record_warning(self, message: warnings.WarningMessage) -> None:
        """A warning that is about to be shown."""
        begun = time.perf_counter()
        text = f"{message.category.__name__}: {message.message}"
        step, phase = self.get_step_and_phase()
        place = (str(message.filename), int(message.lineno))
        self.submit_record(
            Spoken(time.time(), "WARNING", "py.warnings", step, phase, redact_and_truncate(text), [place]), begun
        )


def message_of(msg: object, args: object, record: "LogRecord | None" = None, exc_info: object = None) -> str:
    """The whole message with its traceback, whatever is wrong with it."""
    try:
        text = str(record.getMessage()) if record is not None else str(msg) % args if args else str(msg)
    except BaseException as error:  # wrong arguments, or a __str__ that raises: logging itself prints its complaint
        if belongs_to_program(error):
            raise
        text = f"{_safe_repr(msg)} % {_safe_repr(args)} ({type(error).__name__} while formatting this message)"
    info = record.exc_info if record is not None else exc_info
    if info:
        info = info if isinstance(info, tuple) else sys.exc_info()
        if info[0] is not None:
            text = f"{text}\n{''.join(traceback.format_exception(*info)).rstrip()}"
    stack = getattr(record, "stack_info", None)
    return redact_and_truncate(f"{text}\n{stack}" if stack else text)


def redact_and_truncate(text: str) -> str:
    """A text no longer than a record may be, without the secrets that can be told."""
    text = redact_text(text[: MAX_CHARS + 1]) + text[MAX_CHARS + 1 :]
    return text if len(text) <= MAX_CHARS else f"{text[:MAX_CHARS]}... ({len(text) - MAX_CHARS:,} characters left out)"


def _safe_repr(value: object) -> str:
    with guarded("the program's own object: its __repr__ may raise anything", program_code=True):
        return repr(value)
    return f"<{type(value).__name__}>"


def _iter_callers(frame: FrameType | None, file: str, line: int) -> Iterator[Place]:
    """The callers of the place, innermost first, as far as functions that pass a message on are likely to reach."""
    while frame is not None and (frame.f_code.co_filename != file or get_line(frame) != line):
        frame = frame.f_back
    for _ in range(CLIMB):
        frame = frame.f_back if frame is not None else None
        if frame is None:
            return
        yield frame.f_code.co_filename, get_line(frame)


def extract_log_arguments(frame: FrameType, logger: object) -> tuple[object, object, object]:
    """Message, its arguments and exc_info of a logging method that was just called."""
    code, values = frame.f_code, frame.f_locals
    count = code.co_argcount + code.co_kwonlyargcount
    names, rest = code.co_varnames[: code.co_argcount], list(code.co_varnames[count:])
    args: Any = values.get(rest.pop(0), ()) if code.co_flags & inspect.CO_VARARGS else ()
    keywords: Any = values.get(rest.pop(0), {}) if code.co_flags & inspect.CO_VARKEYWORDS else {}
    msg = values[next(name for name in ("msg", *names[1:]) if name in names and name not in ("level", "lvl"))]
    owner: object = values.get(names[0])
    if owner is not logger and hasattr(owner, "process"):  # an adapter adds to the message
        msg, keywords = owner.process(msg, dict(keywords))
    if len(args) == 1 and isinstance(args[0], dict) and args[0]:
        args = args[0]  # as logging has it: "%(name)s", {"name": ...}
    return msg, args, keywords.get("exc_info") or values.get("exc_info")


_patches = Patches()
_records: Records | None = None


def install_recorder(agent: Agent) -> Records:
    """Chain logging, warnings and stdout; once per process."""
    global _records
    if _records is None:
        import logging

        _records = Records(agent)
        if logging.getLevelName(STATS) == f"Level {STATS}":  # the program's own name for 15 stands
            logging.addLevelName(STATS, "STATS")
        _hear_loggers(_records, logging)
        _hear_what_is_dropped(_records, logging)
        _hear_warnings(_records)
        _hear_prints(_records)
        atexit.register(_end_listening)
        agent.at_fork(_records.reset_after_fork)
        agent.at_rank(_records.flush_held)
        _records.maps.request_main_tree()
    return _records


def _end_listening() -> None:
    """What is printed or logged later, in a ``__del__``, would meet modules that are gone."""
    Guard("records at exit").call_guarded(_patches.restore)


def flush_records_at_exit() -> None:
    """The process leaves in good order."""
    if _records is not None:
        _records.flush_at_exit()


def read_texts(reader: Callable[[str, int, str], None]) -> None:
    """Have ``reader`` given what the program prints and logs from now on: the text, its step and its phase."""
    if _records is not None:
        _records.text_reader = reader


def record_traceback(error: Traceback) -> None:
    """Have an exception stand among the records, where no logger was told of it."""
    if _records is not None:
        _records.record_exception(error)


def get_config_reading_ms() -> float:
    """CPU time that went into reading the program's source, beside its training."""
    return round(_records.maps.read_s * 1e3, 3) if _records is not None else 0.0


def get_recording_ms() -> float:
    """Time that went into records."""
    return round(_records.spent_s * 1e3, 3) if _records is not None else 0.0


def _hide_from_compiler(function: Hidden) -> Hidden:
    """Records are kept in ranks alone, where torch is loaded: its compiler makes no frame of what stands in front."""
    from tdbg.runtime.compiler import hide_from_compiler

    return hide_from_compiler(function)


def _hear_loggers(records: Records, logging: Any) -> None:
    """``callHandlers``, which comes after the program's own filters: what they reject or mask was never said.

    A ``handle`` of the program's that does not come here is not heard: before it, nothing says what it will reject, and
    ``Handler.handle`` is also where queues and buffers hand on what was heard already, in other threads and processes.
    """
    real = logging.Logger.callHandlers
    logging.Logger.callHandlers = _hide_from_compiler(disguise_as(logging, _wrap_logger_method(real, records)))
    _patches.remember(logging.Logger, "callHandlers", real)


def _wrap_logger_method(real: Callable[..., object], records: Records) -> Callable[..., object]:
    guard = records.guard

    @functools.wraps(real)
    def record_and_call(self: "Logger", record: "LogRecord") -> object:
        local = records.local
        before = local.record
        if before is not record:
            guard.call_guarded(records.record_logged, record)
        local.record = record
        try:
            with WITHOUT_OWN_FRAMES:  # of what a handler of the program's raises
                return real(self, record)
        finally:
            local.record = before

    return record_and_call


def _hear_what_is_dropped(records: Records, logging: Any) -> None:
    real = logging.Logger.isEnabledFor
    source = real.__code__.co_filename
    known: dict[str, Any] = records.maps.known
    nothing = object()
    frame_at, guard = sys._getframe, records.guard

    @functools.wraps(real)
    def isEnabledFor(self: "Logger", level: int) -> object:
        answer = real(self, level)
        if answer:
            return answer
        try:  # no call of the guard's: a program may ask this a million times
            frame: Any = frame_at(1)
            entry = None
            while frame is not None and frame.f_code.co_filename == source:
                entry, frame = frame, frame.f_back
            if entry is None and _is_method_of(self, frame):  # one that the program gave its loggers
                entry, frame = frame, frame.f_back
            if entry and frame:
                guards = known.get(frame.f_code.co_filename, nothing)
                line = get_line(frame) if guards else 0
                if guards is nothing or (guards and (line in guards.lines or line in guards.passed_on)):
                    guard.call_guarded(records.record_dropped_call, self, level, entry, frame)
        except BaseException as error:
            if belongs_to_program(error):
                raise
            guard.handle_failure(error)
        return answer

    _hide_from_compiler(_is_method_of)
    logging.Logger.isEnabledFor = _hide_from_compiler(disguise_as(logging, isEnabledFor))
    _patches.remember(logging.Logger, "isEnabledFor", real)


def _is_method_of(logger: object, frame: FrameType) -> bool:
    """True if the class of the logger has this very function, whatever its name: the locals of a frame are not asked.

    Python before 3.13 keeps a copy of asked locals as long as the frame lives, and so every tensor in it.
    """
    code = frame.f_code
    return code.co_argcount > 1 and any(
        type(value) is FunctionType and value.__code__ is code
        for owner in type(logger).__mro__
        for value in vars(owner).values()
    )


def _hear_warnings(records: Records) -> None:
    """The one function that every shown warning goes through, whoever shows it."""
    real = getattr(warnings, "_showwarnmsg", None)
    if real is None:  # another Python: stderr has them still
        return
    plain = warnings._showwarnmsg_impl  # type: ignore[attr-defined]
    guard = records.guard

    def record_shown_warning(message: warnings.WarningMessage) -> None:
        caught = warnings._showwarnmsg_impl is not plain  # type: ignore[attr-defined]
        logged = getattr(warnings.showwarning, "__module__", "") == "logging"
        if not caught and not logged:
            records.record_warning(message)

    @functools.wraps(real)
    def show_warning(message: warnings.WarningMessage) -> object:
        guard.call_guarded(record_shown_warning, message)
        with WITHOUT_OWN_FRAMES:  # of what the program's way to show warnings raises
            return real(message)

    warnings._showwarnmsg = _hide_from_compiler(show_warning)  # type: ignore[attr-defined]
    _patches.remember(warnings, "_showwarnmsg", real)


def _hear_prints(records: Records) -> None:
    """stdout and stderr stay the objects they are: ``print`` asks for their ``write``, and finds one that listens."""
    _listen_to(sys.stdout, records.guard, records.record_printed)
    _listen_to(sys.stderr, records.guard, records.read_stderr)


def _listen_to(stream: Any, guard: Guard, listen: Callable[[str, FrameType | None], object]) -> None:
    real = getattr(stream, "write", None)
    if real is None or (stream is sys.stderr and stream is sys.stdout):
        return

    @functools.wraps(real)
    def write(text: str) -> object:
        with WITHOUT_OWN_FRAMES:  # of a closed pipe's error, or of a character that the console does not know
            done = real(text)
        caller = sys._getframe().f_back  # none below what Python itself writes, and functions of C at exit
        guard.call_guarded(listen, text, caller)
        return done

    is_own = "write" in getattr(stream, "__dict__", ())
    try:
        stream.write = _hide_from_compiler(write)
    except AttributeError:  # a stream of another kind that takes no attributes
        return
    _patches.remember(stream, "write", real, inherited=not is_own)
