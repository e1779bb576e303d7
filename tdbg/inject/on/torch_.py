"""torch was imported: this process may be a rank. Say hello, and set the monitor to work."""

import atexit
import json
import os
import platform
import sys
import time
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING

from tdbg.core import run_files
from tdbg.core.control import CONTROL_FILE, Request, read_requests
from tdbg.core.events import End, Event, Metric, Start, Step, number, plain
from tdbg.core.flags import DIAGNOSTICS
from tdbg.core.guard import guarded
from tdbg.core.redaction import redact_argv
from tdbg.core.rundir import allowed_env, env_rank, rank_folder, write_json
from tdbg.inject import children, log_recorder, redirects, tracebacks
from tdbg.inject.agent import INSPECTION_BYTES, Agent, get_agent
from tdbg.inject.identity import is_child
from tdbg.inject.imports import when_imported

if TYPE_CHECKING:
    from tdbg.inject.metrics.feed import Feed

LOCAL_RANK_ENV = ("LOCAL_RANK", "SLURM_LOCALID", "OMPI_COMM_WORLD_LOCAL_RANK")
BATCH_LIMIT_BYTES = 256_000_000
CHILD_S = 2.0  # for a loader's worker to end
PEERS_S = 1.0  # other ranks may still be reading what this one has sent
FAILED_CODE = 125  # as the boot file's, where tdbg fails to start
PREFLIGHT_FAILED = (
    "tdbg: preflight: process {} was stopped before its first update because the trials failed (TD-C005)\n"
)
FED = (Step, Metric)  # the events that say metrics


def arrive(module: ModuleType) -> None:
    """Called once, when the program's ``import torch`` has finished."""
    me = get_agent()
    begun = time.perf_counter()
    if not is_child():  # its parent said hello
        me.get_guard("hello").call_guarded(me.write_hello)
    me.get_guard("tracebacks").call_guarded(tracebacks.install_recorder, me)
    me.get_guard("children").call_guarded(children.install_child_watch, me)
    when_imported(DIAGNOSTICS, lambda module: me.get_guard("diagnostics").call_guarded(_give_host, me))
    if me.settings.level == "off":
        return
    if me.settings.preflight:
        redirects.install_torch_redirects()
    rank = me.get_guard("monitor").call_guarded(Rank, me, begun)
    if me.settings.preflight and (rank is None or not rank.can_preflight()):
        raise RuntimeError("the preflight trials could not be set up")  # the boot file ends the process
    if me.settings.records:
        me.get_guard("records").call_guarded(log_recorder.install_recorder, me)
        if me.feed is not None:
            log_recorder.read_texts(me.feed.printed.add_text)


def _give_host(me: Agent) -> None:
    """The program calls diagnostics of its own accord: they ask and tell this run."""
    from tdbg.inject.take import get_injection_log
    from tdbg.runtime.run_context import RunContext, install_context

    def record_flag_use(flag: str, value: object) -> None:
        get_injection_log().record_accepted(flag, DIAGNOSTICS, False, value)

    install_context(RunContext(me.settings.flags, lambda: me.monitor, record_flag_use))


class Rank:
    """Joins the monitor to the agent: identity, batches, the end of the process."""

    def __init__(self, me: Agent, begun: float) -> None:
        from tdbg.probes import PROBES
        from tdbg.probes.catalog import CATALOG
        from tdbg.runtime.baseline import Alternation
        from tdbg.runtime.first_update import end_first_update
        from tdbg.runtime.monitor import Monitor

        self.me = me
        self._guard = me.get_guard("end")
        self.ended = False
        self.woke_at = time.time()
        self._control = me.run_dir / CONTROL_FILE
        self._control_seen = (0, 0)  # inode and time of change
        self.monitor = Monitor(
            me.settings,
            catalog=CATALOG,
            emit=self._emit_event,
            become_rank=self._become_rank,
            save_batch=self._save_batch,
            failed=me.record_failure,
            note=me.note_once,
            started=time.perf_counter(),
            first_update=_settle_flags,
            log=me.log,
            when_imported=when_imported,
            requests=self._read_requests,
            keep=self._save_json,
            folder=lambda: me.folder if me.rank is not None else None,
            rank=env_rank(os.environ) or 0,
            end_process=self._end_process,
        )
        me.monitor = self.monitor
        PROBES.add_entry_points(me.third_party)
        if me.settings.captures:
            from tdbg.debuggers.run_capture import Capture
            from tdbg.debuggers.run_debuggers import add_third_party

            add_third_party(me.third_party_debuggers)
            self.monitor.lasting.append(Capture.with_folder(lambda: me.folder))
        if me.settings.preflight:
            self.monitor.lasting += CATALOG.load_probes("preflight")
        own_passes = me.get_guard("own-passes")
        when_imported("tdbg.debuggers.hooks", lambda module: own_passes.call_guarded(self._expect_own_passes, module))
        me.feed = self.feed = me.get_guard("metrics").call_guarded(self._build_feed)
        self.monitor.attach(CATALOG.select_probes(me.settings.level, me.settings.flags))
        if me.settings.disk_budget_bytes >= INSPECTION_BYTES:
            self.monitor.inspection.begin_inspection(me.settings.allowance)
        self.alternation = Alternation(self.monitor, me.settings.baseline) if me.settings.baseline else None
        self.startup_ms = (time.perf_counter() - begun) * 1e3
        self.monitor.budget.start_up_s = self.startup_ms / 1e3
        me.at_fork(self._handle_fork)
        atexit.register(self.record_process_end)
        if me.settings.preflight:
            end_first_update(self.monitor, self._end_process)

    def can_preflight(self) -> bool:
        """False if the probe that makes the trials is not at work."""
        return self.monitor.find_probe("preflight") is not None

    def _build_feed(self) -> "Feed":
        """Where metrics go."""
        from tdbg.inject.metrics.feed import Feed

        feed = Feed(self.me, self.monitor)
        feed.taps.install_when_imported()
        feed.dumps.listen_when_imported()
        return feed

    def _expect_own_passes(self, hooks: ModuleType) -> None:
        """A debugger that runs the model again (GradCAM) makes no step and no datapoint of it."""
        hooks.AROUND_OWN_PASSES.append(self.monitor.own_pass)

    def _read_requests(self) -> list[Request]:
        """What `tdbg control` asked for since the last look; nothing while the file is the same."""
        try:
            found = os.stat(self._control)
        except OSError:
            return []
        if (found.st_ino, found.st_mtime_ns) == self._control_seen:
            return []
        self._control_seen = found.st_ino, found.st_mtime_ns
        return read_requests(self._control)

    def _save_json(self, name: str, data: object) -> str:
        """Write plain data as JSON into the rank's folder; returns the file's name."""
        self.monitor.become_rank_now()
        if self.me.folder is None:
            return ""
        write_json(self.me.folder / name, plain(data))
        return name

    def _emit_event(self, event: Event) -> None:
        self.me.emit(event)
        if self.feed is not None and type(event) in FED:
            self.feed.record_event(event)

    def _become_rank(self) -> None:
        rank, world_size = get_rank_and_world_size(self.monitor.given_rank)
        self.monitor.rank, self.monitor.world_size = rank, world_size
        self.me.become_rank(rank, lambda attempt: self._build_start_event(rank, world_size, attempt))
        process = sys.modules.get("multiprocessing.process")
        if process is not None and process.parent_process() is not None:
            from multiprocessing.util import Finalize

            Finalize(None, self.record_process_end, exitpriority=100)  # such children leave without running atexit

    def _build_start_event(self, rank: int, world_size: int, attempt: int) -> Start:
        import torch

        if attempt:
            self.monitor.level_overrides.asked_since = self.woke_at

        return Start(
            rank=rank,
            local_rank=_env_int(LOCAL_RANK_ENV),
            world_size=world_size,
            attempt=attempt,
            host=self.me.host,
            pid=os.getpid(),
            argv=redact_argv(sys.argv[:50]),
            python=platform.python_version(),
            torch=torch.__version__,
            device=describe_device(),
            env=allowed_env(os.environ),
            startup_ms=round(self.startup_ms, 1),
        )

    def _save_batch(self, step: int, parts: dict[str, object]) -> str:
        """Write the tensors of a batch; the file's name, or nothing where no tensor could be written."""
        from tdbg.pages.format.safetensors_file import is_storable
        from tdbg.pages.format.safetensors_file import write_safetensors as write
        from tdbg.runtime.tensors import iter_tensors

        folder = self.me.folder
        if folder is None:
            return ""
        indices = parts.pop("indices", None)
        tensors, left_out, total = {}, [], 0
        for name, tensor in iter_tensors(parts):
            size = tensor.numel() * tensor.element_size()
            if not is_storable(tensor) or total + size > BATCH_LIMIT_BYTES:
                left_out.append(f"{name} {tensor.dtype} {list(tensor.shape)}")
                continue
            tensors[name] = tensor
            total += size
        if not tensors:
            if left_out:
                self.me.note_once("batch-left-out", f"no tensor of the batch could be saved: {', '.join(left_out[:3])}")
            return ""
        path = folder / f"batch_step{step:08d}.safetensors"
        known = {"indices": json.dumps(indices)} if indices else {}
        write(path, tensors, {"step": str(step), "rank": str(self.me.rank), **known})
        about = {
            "step": step,
            "rank": self.me.rank,
            "tensors": {
                n: {"dtype": str(t.dtype).removeprefix("torch."), "shape": list(t.shape)} for n, t in tensors.items()
            },
            **({"indices": indices} if indices else {}),
            "left_out": left_out,
            "other": outline_value(parts),
        }
        run_files.write_atomically(path.with_suffix(".json"), json.dumps(about, indent=1).encode())
        return path.name

    def record_process_end(self) -> None:
        """The process leaves in good order: write what is pending, and how it ended."""
        self._guard.call_guarded(self._record_process_end)

    def _end_process(self) -> None:
        """End the program here: nothing that it does at its end is to happen. The code is 0 if the trials did not fail."""
        failed = not self.can_preflight()
        try:
            self.record_process_end()
            for stream in (sys.stdout, sys.stderr):
                with guarded("the program's own stream", program_code=True):
                    stream.flush()
            if failed:
                os.write(2, PREFLIGHT_FAILED.format(os.getpid()).encode())
            processes = sys.modules.get("multiprocessing")
            for child in processes.active_children() if processes is not None else ():
                child.terminate()
                child.join(CHILD_S)
            if self.monitor.world_size > 1:
                time.sleep(PEERS_S)
        finally:
            os._exit(FAILED_CODE if failed else 0)

    def _record_process_end(self) -> None:
        """Every piece of the end has a guard of its own: what one cannot say must not keep the others from it."""
        guard = self.me.get_guard
        if self.me.rank is None and self.monitor.spoke:
            guard("late rank").call_guarded(self._speak_late)
        if self.ended or self.me.rank is None:
            guard("optimizers").call_guarded(self.monitor.optimizers.note_missing_class)
            guard("uncaught").call_guarded(self._record_uncaught)
            guard("records").call_guarded(log_recorder.flush_records_at_exit)
            return
        self.ended = True
        failed = guard("uncaught").call_guarded(
            self._record_uncaught
        )  # first: what comes next may fail with the device
        guard("records").call_guarded(log_recorder.flush_records_at_exit)
        guard("last steps").call_guarded(self.monitor.finish_run)
        if self.feed is not None:
            guard("metrics").call_guarded(self.feed.flush_at_exit)
        if self.alternation is not None:
            guard("baseline").call_guarded(lambda: self.me.emit(self.alternation.build_result()))  # type: ignore[union-attr]
        guard("cost").call_guarded(self._emit_cost)
        last = self.monitor.losses.last
        loss = number(guard("last loss").call_guarded(last.read_loss))
        reason = "exception" if failed else "exit"
        loss_step = last.step if loss is not None else 0
        recent = guard("recent losses").call_guarded(last.read_recent) or []
        self.me.emit(
            End(
                step=self.monitor.step,
                reason=reason,
                loss=loss,
                loss_step=loss_step,
                recent_losses=[float(f"{value:.6g}") for _, value in recent],
                recent_steps=[step for step, _ in recent],
            )
        )

    def _emit_cost(self) -> None:
        cost = self.monitor.build_cost()
        cost.errors, cost.dropped = self.me.errors, self.me.dropped
        cost.records_ms = log_recorder.get_recording_ms()
        cost.startup_ms += log_recorder.get_config_reading_ms()
        self.me.emit(cost)

    def _speak_late(self) -> None:
        """The program had something written and never made a step: it is kept, unless a child was the rank."""
        if not rank_folder(self.me.run_dir, get_rank_and_world_size(self.monitor.given_rank)[0]).exists():
            self.monitor.become_rank_now()

    def _record_uncaught(self) -> bool:
        """Record the exception that ends the process, whatever hook printed it."""
        error = getattr(sys, "last_value", None)
        if not isinstance(error, Exception):
            return False
        tracebacks.record_exception(self.me, error, how="uncaught")
        return True

    def _handle_fork(self) -> None:
        self.ended = False
        self.monitor.forked()
        if self.alternation is not None:
            self.alternation.reset_blocks()


def _settle_flags() -> None:
    """Flags nobody has taken by now are rejected; --strict-flags ends the rank here, before its first step."""
    takers = sys.modules.get("tdbg.inject.take")
    if takers is not None:
        takers.finalize_injection()


def _env_int(names: tuple[str, ...]) -> int | None:
    return next((int(os.environ[name]) for name in names if os.environ.get(name, "").isdecimal()), None)


def get_rank_and_world_size(given: tuple[int, int] | None = None) -> tuple[int, int]:
    """(rank, world size): what torch.distributed says, else what it is told by the program, the launcher; else 0 of 1.

    given: to `init_process_group`, which waits for the other ranks. How many tasks a scheduler starts (SLURM_NTASKS) does not say how many of them train together.
    """
    import torch.distributed as dist

    if dist.is_available() and dist.is_initialized():
        return dist.get_rank(), dist.get_world_size()
    if given is not None:
        return given
    return env_rank(os.environ) or 0, _env_int(("WORLD_SIZE",)) or 1


def describe_device() -> dict[str, object]:
    """The accelerator (or CPU) this process computes on, for the run's record.

    What only CUDA itself knows is left out as long as the program has not started it: that takes memory on the device,
    makes a fork useless, and may be too soon for its own settings.
    """
    import torch

    found: dict[str, object] = {"type": "cpu", "threads": torch.get_num_threads(), "machine": platform.machine()}
    if torch.cuda.is_available():
        found.update(type="cuda", cuda=torch.version.cuda, driver=_read_driver_version())
        if torch.cuda.is_initialized():
            index = torch.cuda.current_device()
            properties = torch.cuda.get_device_properties(index)
            found.update(
                index=index,
                name=properties.name,
                compute_capability=f"{properties.major}.{properties.minor}",
                memory_mb=round(properties.total_memory / 1e6),
                cudnn=torch.backends.cudnn.version(),
            )
    elif torch.accelerator.is_available():  # mps, xpu, npu, hpu and others, also those of other packages
        device = torch.accelerator.current_accelerator()
        found.update(type=device.type if device is not None else "cpu")
    return found


def _read_driver_version() -> str | None:
    try:
        text = Path("/proc/driver/nvidia/version").read_text(encoding="utf-8")
    except OSError:
        return None
    words = text.split("Kernel Module", 1)[-1].split()
    return next((word for word in words if word[:1].isdigit()), None)


def outline_value(value: object, depth: int = 0) -> object:
    """What else a batch holds, as plain data: short values whole, tensors by shape, the rest by type."""
    if isinstance(value, str):
        return value[:500]
    if value is None or isinstance(value, bool | int | float):
        return value
    shape = getattr(value, "shape", None)
    if shape is not None:
        return f"{type(value).__name__}{list(shape)}"
    if depth < 4 and isinstance(value, dict):
        return {str(key): outline_value(item, depth + 1) for key, item in list(value.items())[:64]}
    if depth < 4 and isinstance(value, list | tuple):
        return [outline_value(item, depth + 1) for item in value[:64]]
    return type(value).__name__
