"""A run directory: where everything about one run is kept, and who may write where.

Writers need the standard library alone. Every line of an events file is written with one call and is
complete or ignored, so a killed run leaves a readable directory. Readers create nothing.
"""

import contextlib
import errno
import glob
import json
import os
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

from tdbg.core import events, run_files
from tdbg.core.errors import LaunchError, TdbgError
from tdbg.core.events import Event, Note, Step
from tdbg.core.files import is_readable, read_json, read_lines, why_unreadable
from tdbg.core.guard import undo_on_error
from tdbg.core.host import host_name
from tdbg.core.lazy_pattern import lazy_pattern
from tdbg.core.lines import LineWriter
from tdbg.core.ownership import TRUST
from tdbg.core.redaction import is_secret_name, redact_env, redact_text
from tdbg.core.urls import is_url

SCHEMA = 1
NO_HARD_LINKS = (errno.EPERM, errno.ENOTSUP, errno.EOPNOTSUPP, errno.ENOSYS)
HALF_FILE_PATIENCE_S = 0.5
RUNS = "tdbg_runs"
NEWEST_WORDS = ("last", "latest", "newest", "-1")  # what users type for the newest run
TIME_BEFORE = lazy_pattern(r"^\d{8}-\d{6}-")  # of a run that was given no name
EVENTS = "events.jsonl"
FINDINGS = "findings.jsonl"  # what was found while the run went on, as it was told then
STATE_FILE, PIECES_MARKER = run_files.STATE_FILE, run_files.PIECES_MARKER
STARTED_SUFFIX = ".started"  # of a file beside a host's folder there: a command was started after a file was written
DELETED_SUFFIX = ".deleted"  # of a file beside it: what the program has deleted or moved there
PREFLIGHT_START = "TDBG_PREFLIGHT_START"  # the variable that says where the program was started
PREFLIGHT_FOLDER = "preflight"  # where the files of a program that must write none stand, until the command has ended
UNWRITTEN = "unwritten"  # holds an empty file HOST-PID for each process whose events could not be written
AGENTS = "nodes"  # holds HOST-PID.json for each further `tdbg run` of the same job
UPLOAD = "upload"  # holds HOST.json, what became of `--capture-upload` there
PRESSURE = "pressure"  # holds HOST-PID.jsonl, what pressed on that host: a sample every few seconds
ALERTS = "alerts"  # holds HOST-PID.json, what became of `--on-finding` and `--notify` of that agent
RANK_ENV = ("RANK", "SLURM_PROCID", "OMPI_COMM_WORLD_RANK", "LOCAL_RANK")
# The only variables a run directory may hold: launchers', and no secrets.
ENV_ALLOWED = lazy_pattern(
    r"(RANK|LOCAL_RANK|WORLD_SIZE|LOCAL_WORLD_SIZE|GROUP_RANK|NODE_RANK|MASTER_ADDR|MASTER_PORT|"
    r"TORCHELASTIC_(RUN_ID|RESTART_COUNT|MAX_RESTARTS)|CUDA_VISIBLE_DEVICES|OMP_NUM_THREADS|"
    r"SLURM_(JOB_ID|JOB_NAME|PROCID|LOCALID|NODEID|NNODES|NTASKS|RESTART_COUNT)|"
    r"OMPI_COMM_WORLD_(RANK|LOCAL_RANK|SIZE)|PYTORCH_(CUDA_)?ALLOC_CONF|TORCH_[A-Z_]*|NCCL_[A-Z_]*|TDBG_[A-Z_]*)"
)


def allowed_env(environ: Mapping[str, str]) -> dict[str, str]:
    """The variables that may be kept: an allow-list, less anything that sounds like a secret."""
    kept = {name: value for name, value in environ.items() if ENV_ALLOWED.fullmatch(name) and not is_secret_name(name)}
    return redact_env(kept)


def read_upload_reports(run: "RunDir") -> list[dict[str, Any]]:
    """What became of `--capture-upload`, host by host: url, host, files, bytes, failures, error."""
    return _read_json_objects(run.path / UPLOAD)


def read_alert_reports(run: "RunDir") -> list[dict[str, Any]]:
    """What became of `--on-finding` and `--notify`, agent by agent: host, pid, options, findings."""
    return _read_json_objects(run.path / ALERTS)


def _read_json_objects(folder: Path) -> list[dict[str, Any]]:
    """The JSON objects in the files of a folder; what cannot be read is left out."""
    found = []
    for path in sorted(folder.glob("*.json")):
        try:
            found.append(read_json(path))
        except (OSError, ValueError):
            continue
    return [one for one in found if isinstance(one, dict)]


def mark_unwritten(run: Path) -> None:
    """Leave word that this process cannot write its events: an empty file, for which even a full disk may have room."""
    os.close(run_files.open_append(run / UNWRITTEN / f"{host_name()}-{os.getpid()}", makes=True))


def list_unwritten_processes(run: "RunDir") -> set[tuple[str, int]]:
    """(host, pid) of the processes that could not write all their events."""
    names = [path.name.rpartition("-") for path in (run.path / UNWRITTEN).glob("*-*")]
    return {(host, int(pid)) for host, _, pid in names if pid.isdigit()}


def write_json(path: Path, data: object) -> None:
    """Replace ``path`` in one step, so that a reader never sees half a file."""
    run_files.write_atomically(path, (json.dumps(data, indent=1, default=str) + "\n").encode())


def _publish_file(ready: Path, path: Path) -> None:
    """Let the file ``ready`` appear as ``path``; FileExistsError if another was first.

    The link is never half a file. Where there are no hard links the file is written under its name, and
    whoever reads it at that very moment has to look again (`_read_published`).
    """
    try:
        run_files.link_file(ready, path)
        return
    except OSError as error:
        if error.errno not in NO_HARD_LINKS:
            raise
    text = run_files.read_bytes(ready)
    handle = run_files.open_file(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL)
    with undo_on_error(lambda: run_files.remove_file(path)), os.fdopen(handle, "wb") as file:
        file.write(text)


def _read_published(path: Path) -> dict[str, Any]:
    """What a published file holds; nothing if it stays half a file."""
    until = time.monotonic() + HALF_FILE_PATIENCE_S
    while True:
        try:
            found = read_json(path)
            return found if isinstance(found, dict) else {}
        except ValueError:
            if time.monotonic() > until:
                return {}
        time.sleep(0.01)


def _make_store_error(what: str) -> TdbgError:
    return TdbgError(what, "`tdbg join URL -o DIR` makes a run directory of a run on a store")


_copied_from: dict[str, tuple[str, str]] = {}  # temporary copies of runs on a store -> the URL, and what is missing


def note_copy(copy: Path, url: str, gap: str = "") -> None:
    """Have a temporary copy of a run go by the URL that it is of. gap: what is missing there, in words."""
    _copied_from[str(copy)] = url, gap


class RunDir:
    """One run directory, opened for reading or about to be filled.

    place: what a person calls it. gap: what is missing of a run that was not copied whole, in words.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self.place, self.gap = _copied_from.get(str(path), (str(path), ""))
        run_files.protect_folder(path)

    @classmethod
    def create(
        cls, path: Path, run: Mapping[str, object], *, job: str = "", shared: bool = False
    ) -> tuple["RunDir", bool]:
        """Make the directory and its run.json, or join one of the same job; returns (dir, joined).

        job: what the agents of one job share (TORCHELASTIC_RUN_ID, SLURM_JOB_ID, ...); the first agent
            creates, the others join. Without it, a directory that already holds a run is refused.
        shared: others may read it.
        Raises TdbgError for a directory of another run or one that holds other files, LaunchError
        where it cannot be written, or belongs to another user.
        """
        state = path / STATE_FILE
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            with contextlib.suppress(FileExistsError):
                path.mkdir(mode=run_files.folder_mode(shared))
            found = cls(path)
            is_new = not os.listdir(path)
            if is_new and os.stat(path).st_uid == os.geteuid():  # it may have been there, with any permissions
                run_files.set_private(path, shared=shared)
            found.check_ownership()
            strangers = [name for name in os.listdir(path) if not name.startswith(".")]
            if state.exists():  # after the listing: another agent may be making this very run
                return cls._join_existing(path, job)
            if strangers:
                raise TdbgError(
                    f"{path} is not empty and holds no run ({strangers[0]}, ...)",
                    "choose another --run-dir",
                )
            record = {"schema": SCHEMA, "job": job, **run}
            draft = path / f".{STATE_FILE}.{os.getpid()}.{os.urandom(4).hex()}"
            try:
                with run_files.open_new(draft) as file:
                    file.write((json.dumps(record, indent=1, default=str) + "\n").encode())
                _publish_file(draft, state)
            except FileExistsError:
                return cls._join_existing(path, job)
            finally:
                run_files.remove_file(draft)
        except OSError as error:
            raise LaunchError(
                f"cannot write the run directory {path}: {error.strerror or error}",
                "choose one that can be written with --run-dir",
            ) from None
        return found, False

    def check_ownership(self) -> None:
        """LaunchError unless the directory is this user's, and no other's to write: what is in it starts as code."""
        try:
            foreign = run_files.describe_write_obstacle(self.path)
        except OSError as error:
            if error.errno not in (errno.EACCES, errno.EPERM):
                raise
            foreign = "you have no permission to read it"
        if foreign:
            raise LaunchError(
                f"the run directory {self.path} is not safe to use: {foreign}",
                f"choose another with --run-dir; if this user id is yours (container, NFS), set {TRUST}={self.path}",
            )

    @classmethod
    def _join_existing(cls, path: Path, job: str) -> tuple["RunDir", bool]:
        found = cls(path)
        kept = _read_published(path / STATE_FILE) or found.read_info()
        if job and kept.get("job") == job:
            return found, True
        raise TdbgError(
            f"{path} already holds a run ({' '.join(kept.get('command', [])) or 'unknown command'})",
            "choose another --run-dir, or remove the old one",
        )

    @classmethod
    def list_runs(cls) -> list["RunDir"]:
        """The runs under ./tdbg_runs, the newest last."""
        states = sorted(Path(RUNS).glob(f"*/{STATE_FILE}"), key=lambda path: path.stat().st_mtime)
        return [cls(state.parent) for state in states]

    @classmethod
    def open(cls, where: str | os.PathLike[str] | None = None, *, writes: bool = False) -> "RunDir":
        """The run at ``where`` (the directory, or a file in it), or the newest under ./tdbg_runs.

        writes: it is to be written; then LaunchError for a run of another user.

        A name alone is looked for under ./tdbg_runs too, with or without the time before it. Raises TdbgError where there is no run.
        """
        try:
            found = cls._locate_run(where)
        except PermissionError as error:
            kind = LaunchError if writes else TdbgError
            raise kind(
                f"{error.filename}: no permission to read it", "ask its owner to run it with `tdbg run --share`"
            ) from None
        if writes:
            found.check_ownership()
        return found

    @classmethod
    def _locate_run(cls, where: str | os.PathLike[str] | None) -> "RunDir":
        if where is None:
            runs = cls.list_runs()
            if not runs:
                raise TdbgError(
                    f"there is no run under {Path(RUNS).resolve()}", "name a run directory, or make one with `tdbg run`"
                )
            return runs[-1]
        if is_url(str(where)):
            raise _make_store_error(f"{redact_text(str(where))} is no run directory on this machine")
        given = Path(where)
        for candidate in (given, Path(RUNS) / given):
            for folder in (candidate, *candidate.parents[:3]):
                if (folder / STATE_FILE).is_file():
                    if (folder / PIECES_MARKER).is_file():
                        raise _make_store_error(f"the files of {folder} are in pieces")
                    return cls(folder)
        named = sorted(Path(RUNS).glob(f"*-{glob.escape(given.name)}/{STATE_FILE}")) if given.name == str(where) else []
        if named:  # `--name`: the newest of those that bear it
            return cls(named[-1].parent)
        if given.exists():
            raise TdbgError(
                f"{given} is not a run directory: it has no {STATE_FILE}", "name the directory `tdbg run` made"
            )
        if str(where).lower() in NEWEST_WORDS:
            return cls._locate_run(None)
        if given.name == str(where) and (begun := cls._find_by_prefix(given.name)):
            return begun
        raise TdbgError(f"there is no run {given}", "`tdbg runs` lists those of this folder")

    @classmethod
    def _find_by_prefix(cls, name: str) -> "RunDir | None":
        """The one run under ./tdbg_runs whose name begins like this, with or without the time before it.

        Raises TdbgError where several do.
        """
        states = sorted(Path(RUNS).glob(f"*/{STATE_FILE}"))
        names = [state.parent for state in states if TIME_BEFORE.sub("", state.parent.name).startswith(name)]
        found = names or [state.parent for state in states if state.parent.name.startswith(name)]
        if len(found) > 1:
            shown = ", ".join(path.name for path in found[-3:])
            raise TdbgError(f"{len(found)} runs begin with {name}: {shown}", "write more of the name")
        return cls(found[0]) if found else None

    def read_info(self) -> dict[str, Any]:
        """What run.json holds; TdbgError if it cannot be read."""
        hint = "restore run.json from a copy, or name another run"
        try:
            found = read_json(self.path / STATE_FILE)
        except (OSError, ValueError) as error:
            why = error.strerror if isinstance(error, OSError) else error
            raise TdbgError(f"cannot read {self.path / STATE_FILE}: {why}", hint) from None
        if not isinstance(found, dict):
            raise TdbgError(f"{self.path / STATE_FILE} does not hold a run", hint)
        return found

    def update_info(self, **values: object) -> None:
        """Change fields of run.json, by replacement (the supervisor alone does this)."""
        write_json(self.path / STATE_FILE, {**self.read_info(), **values})

    def list_processes(self) -> list["ProcessDir"]:
        """Everyone who wrote events: ranks and their attempts, then others; in rank and attempt order."""
        found = [ProcessDir(self, path.parent) for path in self._iter_event_files() if is_readable(path)]
        return sorted(found, key=lambda process: process.sort_key)

    def _iter_event_files(self) -> Iterator[Path]:
        yield from self.path.glob(f"rank*/**/{EVENTS}")
        yield from self.path.glob(f"other/*/{EVENTS}")

    def list_unreadable(self) -> list[str]:
        """What `list_processes` leaves out, and why: events files that are devices, pipes or folders, or may not be read."""
        return [
            f"{path} is left out: {why_unreadable(path)}" for path in self._iter_event_files() if not is_readable(path)
        ]

    def has_woken(self) -> bool:
        """True if any Python process started with tdbg's boot folder."""
        return (self.path / "boot" / "woke").exists()

    def read_hellos(self) -> list[dict[str, object]]:
        """The torch processes that reported, whether or not they took a step."""
        found = []
        for path in sorted((self.path / "hello").glob("*.json")):
            try:
                hello = read_json(path)
            except (OSError, ValueError):
                continue
            if isinstance(hello, dict):
                found.append(hello)
        return found


class ProcessDir:
    """The folder of one process: ``rank0003`` , ``rank0003/attempt1``, ``rank0003/pid77`` or ``other/...``."""

    def __init__(self, run: RunDir, path: Path) -> None:
        self.run = run
        self.path = path
        parts = path.relative_to(run.path).parts
        self.rank = int(parts[0][4:]) if parts[0].startswith("rank") and parts[0][4:].isdigit() else None
        last = parts[-1]
        self.attempt = int(last[7:]) if last.startswith("attempt") and last[7:].isdigit() else 0
        self.is_rank = self.rank is not None and not last.startswith("pid")
        self.label = "/".join(parts)

    @property
    def display_name(self) -> str:
        """The process as a text names it: ``rank 3``, or ``process vm-77`` where it never became a rank."""
        return f"process {self.path.name}" if self.rank is None else f"rank {self.rank}"

    @property
    def sort_key(self) -> tuple[int, int, int, str]:
        """Sort key: ranks first, in order, attempts in order."""
        rank = self.rank if self.rank is not None else 1 << 30
        return rank, 0 if self.is_rank else 1, self.attempt, self.label

    def iter_events(self) -> Iterator[Event]:
        """The events, streamed; torn and foreign lines are passed over."""
        yield from read_events(self.path / EVENTS)


def read_events(path: Path) -> Iterator[Event]:
    """The events of one file, streamed; only complete lines count."""
    for line in read_lines(path):
        event = events.decode(line)
        if event is not None:
            yield event


class EventWriter(LineWriter):
    """Writes the events of one process; opens its file at the first event, and never raises.

    folder: called at the first event; returns the folder to write into. See `LineWriter` for the rest.
    """

    what = "events"

    def __init__(self, folder: Callable[[], Path], budget_bytes: int, on_trouble: Callable[[str], None]) -> None:
        super().__init__(lambda: folder() / EVENTS, budget_bytes, on_trouble)
        self._vectors = 0  # met since half the budget was used
        self._steps_left_out = 0

    def emit(self, event: Event) -> None:
        """Write one event; under disk pressure first vectors, then step records are thinned out."""
        if isinstance(event, Step) and not self._should_write_step(event):
            self.dropped += 1
            return
        self.write_line(events.encode(event))

    def _should_write_step(self, step: Step) -> bool:
        share = self.written_bytes / self._budget_bytes if self._budget_bytes else 0.0
        if share < 0.5:
            return True
        if step.grad_norms is not None:
            self._vectors += 1
            if share > 0.8 or self._vectors % 10:
                step.grad_norms = None
                text = "half the disk budget is used: per-parameter gradient norms are written less often"
                self._emit_note_once("disk-vectors", text, step.step)
        if share < 0.9:
            return True
        self._emit_note_once(
            "disk-steps", "90 % of the disk budget is used: only every 100th step is recorded", step.step
        )
        self._steps_left_out += 1
        return share < 0.98 and self._steps_left_out % 100 == 1

    def _emit_note_once(self, code: str, text: str, step: int) -> None:
        if code not in self._reported_codes:
            self._reported_codes.add(code)
            self.write_line(events.encode(Note(t=time.time(), code=code, text=text, step=step)))

    def reset_after_fork(self) -> None:
        """In a forked child: the file belongs to the parent."""
        super().reset_after_fork()
        self._vectors = self._steps_left_out = 0


def env_rank(environ: Mapping[str, str]) -> int | None:
    """The global rank a launcher put into the environment, if any."""
    for name in RANK_ENV:
        if environ.get(name, "").isdecimal():
            return int(environ[name])
    return None


RESTART_COUNTS = ("TORCHELASTIC_RESTART_COUNT", "SLURM_RESTART_COUNT")
COUNT_DIGITS = 6  # more is no count: a file that somebody made, which Python refuses to read from 4,300 on


def restart_count(environ: Mapping[str, object]) -> int:
    """How often launcher and scheduler have restarted a job: torchrun in a job that SLURM requeued counts anew from 0."""
    counts = (str(environ.get(name, "")) for name in RESTART_COUNTS)
    return sum(int(count) for count in counts if count.isascii() and count.isdigit() and len(count) <= COUNT_DIGITS)


def process_start(pid: int) -> str:
    """When a process of this host started, in a form that tells a reused pid from the old one; "" if gone."""
    try:
        with open(f"/proc/{pid}/stat", "rb") as file:
            return file.read().rpartition(b")")[2].split()[19].decode()
    except (OSError, IndexError):
        pass
    if os.path.isdir("/proc/self"):
        return ""
    try:  # macOS: no /proc; only whether it lives
        os.kill(pid, 0)
    except OSError:
        return ""
    return "alive"


def is_process_alive(pid: object, host: object, started: object = "") -> bool | None:
    """Whether a process that was noted still runs; None on another host, whose process table is not ours to see.

    started: what `process_start` said of it then; without it, whoever has the number now counts.
    """
    if host != host_name():
        return None
    if not isinstance(pid, int) or pid <= 0:
        return False
    now = process_start(pid)
    if now:
        return not started or now == started
    try:
        os.kill(pid, 0)
    except OSError as error:
        return isinstance(error, PermissionError)  # another user's, hidden from us
    return True


def find_live_owner(folder: Path) -> int | None:
    """The process that owns a rank's folder, if it lives on this host and is surely still that process."""
    with contextlib.suppress(OSError):
        owner = _read_published(folder / "owner.json")
        pid, started = owner.get("pid"), owner.get("start")
        if started and is_process_alive(pid, owner.get("host"), started):
            return int(str(pid))
    return None


def rank_folder(run: Path, rank: int) -> Path:
    """Where a rank's files are."""
    return run / f"rank{rank:04d}"


def claim_rank_folder(run: Path, rank: int, restart: int = 0) -> tuple[Path, int]:
    """The folder for this process as ``rank``, and its attempt number.

    The first process that steps owns ``rankNNNN``. A later one is a restart (``attemptK``) if the owner
    is gone or the launcher counts a higher restart; while the owner lives, it is kept apart by pid, and so is a
    process that was there already while the owner still wrote: what restarts a program starts after its end.
    A program that replaced itself (``os.execv``) is a restart too: what it was before is gone.
    """
    base = rank_folder(run, rank)
    run_files.make_folder(base)
    pid, host = os.getpid(), host_name()
    me = {"pid": pid, "host": host, "start": process_start(pid), "restart": restart}
    for attempt in range(10_000):
        folder = base if attempt == 0 else base / f"attempt{attempt}"
        run_files.make_folder(folder)
        owner = _claim_ownership(folder / "owner.json", me)
        if owner is None:
            return folder, attempt
        if all(owner.get(name) == me[name] for name in ("pid", "host", "start")):
            continue
        beside = _is_owner_alive(owner, folder) or _started_before_last_write(owner, folder)
        if beside and restart <= int(owner.get("restart", 0)):
            aside = base / f"pid{pid}-{host}"
            run_files.make_folder(aside)
            return aside, attempt
    raise OSError(errno.EMFILE, f"this rank has too many attempts in {run}")


def _claim_ownership(path: Path, me: dict[str, object]) -> dict[str, Any] | None:
    """Become the owner in one step (None), or learn who is."""
    mine = path.with_name(f".owner.{me['host']}.{me['pid']}")
    with run_files.open_new(mine) as file:
        file.write(json.dumps(me).encode())
    try:
        _publish_file(mine, path)
        return None
    except FileExistsError:
        if os.path.samefile(mine, path):  # NFS: linked, but the answer was lost and the second try failed
            return None
        return _read_published(path)
    finally:
        run_files.remove_file(mine)


def _started_before_last_write(owner: Mapping[str, object], folder: Path) -> bool:
    """True if this process had started when an owner on this host wrote last: the parent of children that train, say."""
    began_t = _compute_start_time()
    if owner.get("host") != host_name() or began_t is None:
        return False
    try:
        return began_t < (folder / EVENTS).stat().st_mtime
    except OSError:
        return False


def _compute_start_time() -> float | None:
    """When this process was started, or forked; None where the system does not say."""
    try:
        since_boot_s = int(process_start(os.getpid())) / os.sysconf("SC_CLK_TCK")
        return time.time() - time.clock_gettime(time.CLOCK_BOOTTIME) + since_boot_s
    except (ValueError, OSError, AttributeError):
        return None


def _is_owner_alive(owner: Mapping[str, object], folder: Path) -> bool:
    """True if the owner of ``folder`` still lives; on another host, if it wrote of late."""
    here = is_process_alive(owner.get("pid"), owner.get("host"), owner.get("start"))
    if here is not None:
        return here
    try:
        return time.time() - (folder / EVENTS).stat().st_mtime < 60
    except OSError:
        return False
