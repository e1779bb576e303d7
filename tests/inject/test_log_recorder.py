"""Records and the program's own logging: whatever it sets, before or after torch, prints what it printed before."""

import json
import logging
import os
import signal
import subprocess
import sys
import textwrap
import time
import weakref
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from tdbg.core.config import Settings
from tdbg.core.guard import Guard
from tdbg.inject import log_recorder as records_module
from tdbg.inject import maps as maps_module
from tdbg.inject.log_recorder import Records, Spoken
from tdbg.logs.guards.flagsets import NONE
from tdbg.logs.guards.kept import take_turn

STEP = """
import logging, os, sys, warnings, threading
import torch
class Flags:
    class DEBUG:
        MEMORY = AMP = True
        LR = False
cfg = Flags()
def step(times=1):
    model = torch.nn.Linear(2, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for _ in range(times):
        model(torch.ones(1, 2)).sum().backward()
        optimizer.step()
log = logging.getLogger("train")
"""


@pytest.fixture
def cache_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))


@pytest.fixture
def play_program(make_run: Any, tmp_path: Path, cache_folder: None) -> Any:
    """Run a program after STEP; gives what it printed, on stdout and stderr, and its records."""

    def run_text(text: str, before: str = "", **settings: Any) -> tuple[str, str, list[dict[str, Any]]]:
        warm = not before  # which is to happen before torch is imported
        run = make_run(**settings)
        folder = tmp_path / "program"
        folder.mkdir(exist_ok=True)
        (folder / "s.py").write_text(textwrap.dedent(before) + STEP + textwrap.dedent(text))
        env = run.build_environment(OMP_NUM_THREADS="1")
        done = run.run_python("s.py", cwd=folder, env=env, warm=warm)
        bare = {key: value for key, value in env.items() if key not in ("PYTHONPATH", "TDBG_RUN_DIR")}
        alone = run.run_python("s.py", cwd=folder, env=bare, warm=warm)
        assert (done.returncode, run.boot_errors, run.list_events("probe_off")) == (0, "", []), done.stderr
        assert (done.stdout, done.stderr) == (alone.stdout, alone.stderr)  # in every test: nothing shows
        return done.stdout, done.stderr, read_records(run.path)

    return run_text


def read_records(run: Path) -> list[dict[str, Any]]:
    path = run / "rank0000" / "records.jsonl"
    return [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []


def list_messages(records: list[dict[str, Any]]) -> list[str]:
    return [record["message"] for record in records]


SETTINGS = {
    "nothing": "",
    "basic": "logging.basicConfig(level=logging.INFO, stream=sys.stdout, format='%(filename)s:%(lineno)d %(message)s')",
    "class": """
        class Mine(logging.Logger):
            def makeRecord(self, *args, **kwargs):
                record = super().makeRecord(*args, **kwargs)
                record.msg = f"mine: {record.msg}"
                return record
        logging.setLoggerClass(Mine)
        log = logging.getLogger("mine"); logging.basicConfig(level=logging.INFO)
        """,
    "handle": """
        class Mine(logging.Logger):
            def handle(self, record):
                self.callHandlers(record)
        logging.setLoggerClass(Mine)
        log = logging.getLogger("mine"); logging.basicConfig(level=logging.INFO)
        """,
    "factory": """
        made = []
        def factory(*args, **kwargs):
            made.append(1)
            return logging.LogRecord(*args, **kwargs)
        logging.setLogRecordFactory(factory)
        import atexit; atexit.register(lambda: print(len(made), logging.getLogRecordFactory() is factory))
        logging.basicConfig(level=logging.INFO)
        """,
    "dictConfig": """
        import logging.config
        logging.config.dictConfig({"version": 1, "disable_existing_loggers": False,
            "handlers": {"h": {"class": "logging.StreamHandler"}}, "root": {"handlers": ["h"], "level": "INFO"}})
        """,
    "filter": """
        seen = []
        logging.basicConfig(level=logging.INFO)
        log.addFilter(lambda record: seen.append(record) or True)
        import atexit; atexit.register(lambda: print(len(seen)))
        """,
    "attributes": """
        class Dump(logging.Handler):
            def emit(self, record):
                print(sorted(record.__dict__), record.exc_text)
        logging.basicConfig(level=logging.INFO, handlers=[Dump()])
        """,
}


@pytest.mark.parametrize(("name", "early"), [*((name, False) for name in SETTINGS), ("class", True), ("factory", True)])
def test_whatever_the_program_sets(play_program: Any, name: str, early: bool) -> None:
    setting = textwrap.dedent(SETTINGS[name])
    head = f"import logging, sys\nlog = logging.getLogger('train')\n{setting}\n" if early else ""
    _, _, said = play_program(
        ("" if early else setting)
        + textwrap.dedent("""
        step()
        if cfg.DEBUG.MEMORY:
            log.debug("dropped %d", 1)
            log.warning("shown %s", "x")
        log.debug("never")
        log.error("plain")
        """),
        before=head,
    )
    kept = [(r["message"].removeprefix("mine: "), r["flags"], r.get("suppressed", False)) for r in said]
    assert [item for item in kept if item[0][0] in "dsnp"] == [
        ("dropped 1", ["MEMORY"], True),
        ("shown x", ["MEMORY"], False),
        ("plain", [], False),
    ]


ANY = [
    ("log.warning('%d', 'x')", "'%d' % ('x',) (TypeError while formatting this message)"),
    ("log.warning('a %s')", "a %s"),
    ("log.warning('%(a)s', {'a': 1})", "1"),
    ("log.warning('\\udc80')", "\udc80"),
    ("log.warning('ü\\n\\t\"\\x00')", 'ü\n\t"\x00'),
    ("log.warning(Bad())", "<Bad> % () (ValueError while formatting this message)"),
    ("log.warning(None)", "None"),
    ("log.handle(logging.makeLogRecord({'levelno': 40}))", ""),
    ("log.handle(logging.makeLogRecord({'msg': 'made', 'levelno': 40}))", "made"),
    ("t = threading.Thread(target=log.warning, args=('threaded',)); t.start(); t.join()", "threaded"),
    ("logging.LoggerAdapter(log, {}).warning('adapted')", "adapted"),
    ("warnings.warn('careful')", "UserWarning: careful"),
    ("print('a', 'b', end='!\\n')", "a b!"),
    ("sys.stdout.write('half'); print(' whole')", "half whole"),
]


def test_any_record(play_program: Any) -> None:
    bad = "class Bad:\n    def __str__(self): raise ValueError\n    __repr__ = __str__\nlogging.raiseExceptions = False"
    _, _, said = play_program("\n".join([bad, "step()", *(text for text, _ in ANY)]))
    assert list_messages(said) == [then for _, then in ANY]


def test_warnings_that_are_logged_come_once(play_program: Any) -> None:
    _, _, said = play_program("step()\nlogging.captureWarnings(True)\nwarnings.warn('caught')\n")
    assert ["UserWarning: caught" in text for text in list_messages(said)] == [True]
    assert said[0]["logger"] == "py.warnings"


def test_tracebacks_are_whole(play_program: Any) -> None:
    _, _, said = play_program(
        """
        step()
        logging.disable(logging.INFO)
        try:
            1 / 0
        except ZeroDivisionError:
            log.exception("it failed")
            if cfg.DEBUG.AMP: log.info("it failed too", exc_info=True)
        """
    )
    assert [record["message"].splitlines()[0] for record in said] == ["it failed", "it failed too"]
    assert all("Traceback (most recent call last):" in r["message"] for r in said)
    assert all(r["message"].endswith("ZeroDivisionError: division by zero") for r in said)
    assert [r.get("suppressed", False) for r in said] == [False, True]


def test_what_the_program_asks_is_answered_as_before(play_program: Any) -> None:
    out, _, said = play_program(
        """
        step()
        def wraps(message): log.debug(message)
        class Mine(logging.Logger):
            def stats(self, message, *args):
                if self.isEnabledFor(15): self._log(15, message, args)
        logging.setLoggerClass(Mine)
        own = logging.getLogger("own")
        if cfg.DEBUG.MEMORY:
            print(log.isEnabledFor(10), log.getEffectiveLevel())
            if log.isEnabledFor(10): log.debug("guarded twice")
            wraps("passed on")
            own.stats("stats %d", 15)
            logging.LoggerAdapter(own, {}).debug("adapted %s", "x")
        wraps("passed on by nobody")
        """
    )
    assert out == "False 30\n"
    assert [(r["message"], r["level"]) for r in said if r.get("suppressed")] == [
        ("passed on", "DEBUG"),
        ("stats 15", "STATS"),
        ("adapted x", "DEBUG"),
    ]


def test_a_flag_that_is_one_way_of_several(play_program: Any) -> None:
    text = """
    step()
    for verbose in (True,):
        if cfg.DEBUG.LR or verbose: log.warning("either")
    """
    assert [r["flags"] for r in play_program(text)[2]] == [[]]
    assert [r["flags"] for r in play_program(text, flags={"LR": True})[2]] == [["LR"]]


def test_a_program_that_never_steps_leaves_no_file(play_program: Any, tmp_path: Path) -> None:
    assert play_program("log.warning('x'); print('y')")[2] == []
    assert not list(tmp_path.glob("run*/**/records.jsonl*"))


def test_loader_workers_leave_no_file(play_program: Any, tmp_path: Path) -> None:
    play_program(
        """
        class Set(torch.utils.data.Dataset):
            def __len__(self): return 4
            def __getitem__(self, i):
                log.warning("item")
                return torch.ones(2)
        step()
        log.warning("before")
        for batch in torch.utils.data.DataLoader(Set(), num_workers=1): pass
        """
    )
    (path,) = tmp_path.glob("run*/**/records.jsonl*")
    assert [json.loads(line)["message"] for line in path.read_text().splitlines()] == ["before"]


def test_level_off_hooks_nothing(play_program: Any) -> None:
    out, _, said = play_program(
        "step(); print(logging.Logger.callHandlers.__module__, 'write' in vars(sys.stdout))", level="off"
    )
    assert (out, said) == ("logging False\n", [])


def test_records_switched_off(play_program: Any) -> None:
    out, _, said = play_program("step(); print('write' in vars(sys.stdout))", records=False)
    assert (out, said) == ("False\n", [])


def test_a_function_of_the_programs_own(play_program: Any) -> None:
    text = "step()\ndef wants(name): return True\nif wants('AMP'): log.error('x')\n"
    assert [r["flags"] for r in play_program(text, flag_functions=["wants"])[2]] == [["AMP"]]


def test_the_disk_budget_holds(play_program: Any, tmp_path: Path) -> None:
    _, _, said = play_program(
        """
        step()
        for number in range(3000): log.info("x" * 200) if number < 0 else log.error("y%d " % number + "x" * 200)
        """,
        before="import logging; logging.raiseExceptions = False; logging.lastResort = None\n",
        disk_budget="400kB",
    )
    (folder,) = tmp_path.glob("run*/rank0000")
    kept = sum(path.stat().st_size for path in folder.glob("records.jsonl*"))
    assert 60_000 < kept <= 100_000  # a quarter
    assert said[-1]["message"].startswith("y2999")
    assert "records-rotated" in (folder / "events.jsonl").read_text()


def test_a_kill_leaves_whole_lines(make_run: Any, tmp_path: Path, cache_folder: None) -> None:
    run = make_run()
    path = tmp_path / "s.py"
    path.write_text(STEP + "step()\nfor number in range(10**9): log.error('%d', number)\n")
    child = subprocess.Popen([sys.executable, str(path)], env=run.build_environment(), stderr=subprocess.PIPE)
    assert child.stderr is not None
    while int(child.stderr.readline() or b"200") < 200:
        pass
    os.kill(child.pid, signal.SIGKILL)
    child.stderr.close()
    child.wait()
    lines = (run.path / "rank0000" / "records.jsonl").read_bytes().splitlines(keepends=True)
    said = [json.loads(line) for line in lines]
    assert [int(record["message"]) for record in said] == list(range(len(said))) and len(said) >= 200


DEATHS = {
    "an exception": ("raise ValueError('no luck')", ["exception, uncaught"]),
    "swallowed": ("try: raise ValueError('no luck')\n    except ValueError: log.exception('failed')", ["failed"]),
    "a kill": (  # once the source is mapped, which a thread does
        "while not glob.glob(os.environ['TDBG_RUN_DIR'] + '/*/*/records.jsonl'): time.sleep(0.01)\n"
        "    os.kill(os.getpid(), 9)",
        [],
    ),
}


@pytest.mark.parametrize("death", DEATHS)
def test_a_process_that_dies_before_its_first_step_leaves_what_flags_made_it_say(
    make_run: Any, tmp_path: Path, cache_folder: None, death: str
) -> None:
    text, more = DEATHS[death]
    run = make_run(flags={"MEMORY": True})
    body = f"""
import glob, time
logging.basicConfig(level=logging.INFO)
def main():
    if cfg.DEBUG.MEMORY:
        log.info("model: 12 MB")
    log.info("on its way")
    {text}
if __name__ == "__main__":
    main()
"""
    (tmp_path / "s.py").write_text(STEP + body)
    run.run_python("s.py", cwd=tmp_path, env=run.build_environment(OMP_NUM_THREADS="1"))
    (path,) = run.path.rglob("records.jsonl")  # of the rank, if a probe made it one, else beside the ranks
    records = [json.loads(line) for line in path.read_text().splitlines()]
    assert ("model: 12 MB", ["MEMORY"]) in [(row["message"], row["flags"]) for row in records]
    assert all(row["rank"] == 0 for row in records)
    told = [row["message"] for row in records if "ValueError: no luck" in row["message"]]
    assert [message.splitlines()[0] for message in told] == more
    assert all("s.py" in message and "Traceback" in message for message in told)
    assert run.boot_errors == "" and run.list_events("probe_off") == []


class Quiet:
    """What `Records` asks of an agent, of a process that is no rank yet."""

    settings = Settings(flags={"MEMORY": True})
    rank = None
    monitor = None
    step = 0

    def __init__(self, folder: Path) -> None:
        self.folder = None
        self.folder_aside = folder
        self.at_fork = self.at_rank = self.charge_disk = self.note_once = lambda *args: None

    def record_failure(self, part: str, error: BaseException) -> None:
        raise error

    def get_guard(self, name: str) -> Guard:
        return Guard(name, self.record_failure)


@pytest.fixture
def waiting_records(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Records:
    """Records of a process that is no rank yet. The tests themselves are no program: their tree takes long to read."""
    monkeypatch.setattr(maps_module, "is_of_the_program", lambda path: path.startswith(str(tmp_path)))
    return Records(cast(Any, Quiet(tmp_path)))


def make_spoken(text: str, *, raised: bool = False) -> Spoken:
    return Spoken(0.0, "INFO", "train", 0, "", text, [("<nowhere>", 1)], raised=raised)


def test_records_that_wait_for_the_first_step_are_looked_at_once(
    waiting_records: Records, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    looks = []
    monkeypatch.setattr(waiting_records, "find_flags", lambda places: looks.append(places) or NONE)
    for number in range(200):
        waiting_records.submit_record(make_spoken(str(number)), 0.0)
    assert len(looks) == 200
    waiting_records.submit_record(make_spoken("raised", raised=True), 0.0)
    lines = (tmp_path / "records.jsonl").read_text().splitlines()
    assert list_messages([json.loads(line) for line in lines]) == [
        *map(str, range(200)),
        "raised",
    ]  # with those before it


@pytest.mark.parametrize("calls", ["another record", "the thread"])
def test_records_do_not_wait_for_a_large_tree(
    calls: str, waiting_records: Records, cache_folder: None, tmp_path: Path
) -> None:
    """A process that is killed takes with it what waits: after half a minute each file speaks for itself."""
    program = tmp_path / "program" / "train.py"
    program.parent.mkdir()
    program.write_text("if cfg.DEBUG.MEMORY:\n    log.info('old')\n")
    agent = cast(Any, waiting_records.agent)
    agent.rank, agent.folder = 0, tmp_path
    with take_turn(str(program.parent), ()) as is_ours:
        assert is_ours
        for text, age_s in (("old", 29.0), ("new", 0.0)):
            spoken = replace(make_spoken(text), t=time.time() - age_s, places=[(str(program), 2)])
            waiting_records.submit_record(spoken, 0.0)
        assert not (tmp_path / "records.jsonl").exists()
        time.sleep(1.1)
        if calls == "another record":
            waiting_records.submit_record(replace(make_spoken("last"), t=time.time()), 0.0)
        else:
            until = time.monotonic() + 30.0
            while not (tmp_path / "records.jsonl").exists() and time.monotonic() < until:
                time.sleep(0.05)
        kept = [json.loads(line) for line in (tmp_path / "records.jsonl").read_text().splitlines()]
    assert [(one["message"], one["flags"]) for one in kept][:2] == [("old", ["MEMORY"]), ("new", ["MEMORY"])]
    waiting_records.maps.wait_for_thread(30.0)


@pytest.fixture
def heard_loggers(waiting_records: Records, monkeypatch: pytest.MonkeyPatch) -> Records:
    """Loggers that are listened to as in a run, until the test is over."""
    for name in ("handle", "callHandlers", "isEnabledFor"):
        monkeypatch.setattr(logging.Logger, name, getattr(logging.Logger, name))
    records_module._hear_loggers(waiting_records, logging)
    records_module._hear_what_is_dropped(waiting_records, logging)
    return waiting_records


def test_a_dropped_call_is_kept_if_the_maps_are_ready_at_that_very_moment(
    heard_loggers: Records, cache_folder: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Seen under load: the thread had read the tree while the file was read by itself, and the record was lost."""
    program = tmp_path / "program" / "train.py"
    program.parent.mkdir()
    program.write_text("if cfg.DEBUG.MEMORY:\n    log.debug('kept')\nlog.debug('not kept')\n")
    real = maps_module.map_of

    def read_slowly(*args: Any) -> Any:
        heard_loggers.maps.wait_for_thread(30.0)
        return real(*args)

    monkeypatch.setattr(maps_module, "map_of", read_slowly)
    names = {"log": logging.Logger("train", logging.INFO), "cfg": SimpleNamespace(DEBUG=SimpleNamespace(MEMORY=True))}
    exec(compile(program.read_text(), str(program), "exec"), names)
    heard_loggers.flush_at_exit()
    kept = [json.loads(line) for line in (tmp_path / "records.jsonl").read_text().splitlines()]
    assert list_messages(kept) == ["kept"] and kept[0]["flags"] == ["MEMORY"]


def test_a_question_that_is_answered_no_keeps_nothing_alive(heard_loggers: Records) -> None:
    class Big:
        pass

    def step(log: logging.Logger, batch: object) -> bool:
        out = Big()
        seen = weakref.ref(out)
        assert not log.isEnabledFor(logging.DEBUG)
        del out
        return seen() is None

    assert step(logging.getLogger("train"), object())


def test_a_method_that_loggers_were_given_is_told_from_a_function() -> None:
    class Mine(logging.Logger):
        pass

    def frame(logger: Any, text: str) -> Any:
        return sys._getframe()

    log = Mine("own")
    assert not records_module._is_method_of(log, frame(log, ""))
    setattr(Mine, "stats", frame)  # noqa: B010 - as a program gives all loggers a level of its own
    assert records_module._is_method_of(log, cast(Any, log).stats(""))


def test_what_the_filters_of_the_program_reject_or_mask_is_not_kept(heard_loggers: Records) -> None:
    def mask(record: logging.LogRecord) -> bool:
        record.msg = record.msg.replace("Ann", "***")
        return "reject" not in record.msg

    class Own(logging.Logger):
        def handle(self, record: logging.LogRecord) -> None:
            self.callHandlers(record)

    log, own = logging.Logger("train"), Own("own")
    for each in (log, own):
        each.addHandler(logging.NullHandler())
    log.addFilter(mask)
    log.warning("patient Ann")
    log.warning("reject this")
    own.warning("heard")
    assert [one.text for one in heard_loggers._held] == ["patient ***", "heard"]
