"""`--on-finding` and `--notify` together: each finding once, by the agent whose rank it is, and no waiting without end."""

import json
import os
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest

from tdbg.core.config import Settings
from tdbg.core.errors import TdbgError
from tdbg.core.events import Finding
from tdbg.core.host import host_name
from tdbg.core.rundir import RunDir, read_alert_reports
from tdbg.launch import alert_command, alerts, join
from tdbg.launch.alerts import Alerts, RankOwners
from tdbg.rules.rule_engine import judge_run
from tdbg.rules.verdict import Verdict
from tests.webhook_server import serve_webhook

# What the tests have as the user's command: it adds what it read to a file.
APPEND = "import sys; open(sys.argv[1], 'ab').write(sys.stdin.buffer.read())"
SECRET = "/hook/xK7sEcReT42"


@pytest.fixture
def run_dir(tmp_path: Path) -> RunDir:
    record = {"command": ["x"], "settings": Settings().as_dict(), "supervisor": join.describe_process(), "start": 1.0}
    return RunDir.create(tmp_path / "run", record)[0]


def make_finding(title: str = "first NaN", rank: int | None = 0, code: str = "TD-N001", **more: Any) -> Finding:
    return Finding(code=code, severity="critical", title=title, rank=rank, first_step=3, **more)


def start_alerts(
    run: RunDir, leads: bool = True, command: Sequence[str] = ("python", "x.py"), **settings: Any
) -> Alerts:
    made = Alerts(run, Settings(**settings), command, leads=leads)
    made.start_senders()
    return made


def build_append_command(path: Path) -> str:
    import shlex

    return shlex.join([sys.executable, "-c", APPEND, str(path)])


def read_rows(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []


def make_verdict(run: RunDir, *findings: Finding) -> Verdict:
    return Verdict(run=str(run.path), findings=list(findings))


def test_the_command_gets_the_finding_and_where_it_is_from(run_dir: RunDir, tmp_path: Path) -> None:
    found = make_finding(evidence=["a", "b"])
    made = start_alerts(
        run_dir, command=["python", "x.py", "--api-key", "Kx7qT4"], on_finding=build_append_command(tmp_path / "got")
    )
    made.add_finding(found)
    made.finish_sending(make_verdict(run_dir, found), 0)
    about = {"run": str(run_dir.path), "host": host_name(), "command": ["python", "x.py", "--api-key", "***"]}
    assert read_rows(tmp_path / "got") == [{**found.as_dict(), **about}]


def test_what_is_confirmed_at_the_end_is_not_sent_twice_and_what_is_new_is(run_dir: RunDir, tmp_path: Path) -> None:
    made = start_alerts(run_dir, on_finding=build_append_command(tmp_path / "got"))
    live = [make_finding("first NaN"), make_finding("flag A", code="TD-C001"), make_finding("flag B", code="TD-C001")]
    for found in (*live, *live):
        made.add_finding(found)
    same = make_finding("first NaN, in other words")
    made.finish_sending(
        make_verdict(
            run_dir, same, *live[1:], make_finding("flag C", code="TD-C001"), make_finding("late", code="TD-K001")
        ),
        1,
    )
    assert [one["title"] for one in read_rows(tmp_path / "got")] == ["first NaN", "flag A", "flag B", "flag C", "late"]


def test_a_finding_that_its_rule_rewords_is_the_same(run_dir: RunDir, tmp_path: Path) -> None:
    made = start_alerts(run_dir, on_finding=build_append_command(tmp_path / "got"))
    found = make_finding("RuntimeError", code="TD-R003")
    made.add_finding(found)
    found.title, found.evidence = "RuntimeError, after step 3", ["more"]
    made.finish_sending(make_verdict(run_dir, found), 1)
    assert [one["title"] for one in read_rows(tmp_path / "got")] == ["RuntimeError"]


def test_a_webhook_gets_the_headline_too(run_dir: RunDir) -> None:
    with serve_webhook([503]) as server:
        made = start_alerts(run_dir, notify=server.url)
        made.add_finding(make_finding())
        made.finish_sending(make_verdict(run_dir, make_finding()), 1)
    assert [body["kind"] for body in server.accepted_bodies] == ["finding", "verdict"]
    assert server.accepted_bodies[-1]["text"].startswith("verdict: 1 finding (1 critical)")
    assert server.accepted_bodies[-1]["worst_severity"] == "critical"


@pytest.mark.parametrize(("code", "kinds"), [(0, []), (1, ["verdict"]), (-9, ["verdict"])])
def test_of_a_run_without_a_finding_only_a_failure_is_sent(run_dir: RunDir, code: int, kinds: list[str]) -> None:
    with serve_webhook() as server:
        start_alerts(run_dir, notify=server.url).finish_sending(make_verdict(run_dir), code)
    assert [body["kind"] for body in server.accepted_bodies] == kinds
    assert read_alert_reports(run_dir) == [] or kinds


def test_without_the_options_nothing_is_done(run_dir: RunDir) -> None:
    made = start_alerts(run_dir)
    made.add_finding(make_finding())
    made.finish_sending(make_verdict(run_dir, make_finding()), 1)
    assert not (run_dir.path / "alerts").exists()


def test_a_failure_is_said_once_and_the_report_counts_all(run_dir: RunDir, capsys: pytest.CaptureFixture[str]) -> None:
    made = start_alerts(run_dir, on_finding="false")
    for number in range(3):
        made.add_finding(make_finding(f"{number}"))
    made.finish_sending(make_verdict(run_dir), 0)
    assert capsys.readouterr().err.splitlines() == ["tdbg: --on-finding: false ended with exit code 1"]
    note = f"--on-finding on {host_name()}: 3 of 3 not sent: false ended with exit code 1"
    assert judge_run(run_dir, 0).notes == [note]


def test_errors_that_differ_each_time_are_no_flood(run_dir: RunDir, capsys: pytest.CaptureFixture[str]) -> None:
    made = start_alerts(run_dir, on_finding="sh -c 'cut -c 1-60; exit 1'")
    for number in range(20):
        made.add_finding(make_finding("x", code=f"TD-N{number:03d}"))
    made.finish_sending(make_verdict(run_dir), 0)
    assert len(capsys.readouterr().err.splitlines()) == alerts.MAX_REPORTED


def test_a_command_that_is_gone_is_one_line(run_dir: RunDir, capsys: pytest.CaptureFixture[str]) -> None:
    made = start_alerts(run_dir, on_finding="no-such-command-anywhere 'a b'")
    made.add_finding(make_finding())
    made.finish_sending(make_verdict(run_dir), 0)
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith("tdbg: --on-finding: cannot start no-such-command-anywhere: ")


def test_the_end_waits_for_one_command_and_not_for_each(
    run_dir: RunDir, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(alert_command.CommandChannel, "limit_s", 4.0)
    monkeypatch.setattr(alert_command, "LIMIT_S", 4.0)
    made = start_alerts(run_dir, on_finding="sleep 600")
    for number in range(20):
        made.add_finding(make_finding(f"{number}"))
    begun = time.monotonic()
    made.finish_sending(make_verdict(run_dir), 0)
    assert 2.0 < time.monotonic() - begun < 5.0
    said = capsys.readouterr().err
    assert "--on-finding: messages not sent: 19 (out of time)" in said and "waiting for --on-finding" in said
    tally = read_alert_reports(run_dir)[0]["options"]["--on-finding"]
    assert tally.pop("error").startswith("sleep did not end within ")
    assert tally == {"sent": 0, "failed": 1, "dropped": 19}


def test_a_slow_command_does_not_hold_up_the_follower(run_dir: RunDir) -> None:
    made = start_alerts(run_dir, on_finding="sleep 5")
    begun = time.monotonic()
    for number in range(50):
        made.add_finding(make_finding(f"{number}"))
    assert time.monotonic() - begun < 1.0
    made._senders[0].cancel()


def test_ctrl_c_ends_the_waiting(
    run_dir: RunDir, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    made = start_alerts(run_dir, on_finding="sleep 600")
    made.add_finding(make_finding())

    def interrupt(seconds: float) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(alerts.time, "sleep", interrupt)
    begun = time.monotonic()
    made.finish_sending(make_verdict(run_dir), 0)
    assert time.monotonic() - begun < 5.0 and "interrupted" in capsys.readouterr().err
    assert not made._senders[0].is_working()


def test_the_url_is_nowhere_below_the_run_directory_nor_in_what_is_said(
    run_dir: RunDir, capsys: pytest.CaptureFixture[str]
) -> None:
    with serve_webhook([404, 404], path=SECRET) as server:
        made = start_alerts(run_dir, notify=server.url, command=["python", "x.py", server.url])
        made.add_finding(make_finding())
        made.finish_sending(make_verdict(run_dir, make_finding()), 1)
        assert len(server.bodies) == 2 and SECRET not in json.dumps(server.bodies)
        assert SECRET not in json.dumps(Settings(notify=server.url).as_dict())
    assert capsys.readouterr().err.splitlines() == ["tdbg: --notify: HTTP 404 Not Found"]
    for path in run_dir.path.rglob("*"):
        assert SECRET.encode() not in (path.read_bytes() if path.is_file() else b"")


def test_a_run_directory_that_cannot_be_written_is_said_once(
    run_dir: RunDir, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (run_dir.path / "alerts").write_text("in the way")
    made = start_alerts(run_dir, on_finding=build_append_command(tmp_path / "got"))
    made.add_finding(make_finding("a"))
    made.add_finding(make_finding("b"))
    made.finish_sending(make_verdict(run_dir), 0)
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith(f"tdbg: cannot write {run_dir.path / 'alerts'}") and len(read_rows(tmp_path / "got")) == 2


def test_the_next_attempt_of_a_run_does_not_send_it_again(run_dir: RunDir, tmp_path: Path) -> None:
    for title in ("first", "second"):
        made = start_alerts(run_dir, on_finding=build_append_command(tmp_path / "got"))
        made.add_finding(make_finding("first"))
        made.add_finding(make_finding(title))
        made.finish_sending(make_verdict(run_dir), 0)
    assert [one["title"] for one in read_rows(tmp_path / "got")] == ["first", "second"]


def test_notes_in_the_report_survive_a_damaged_file(run_dir: RunDir) -> None:
    (run_dir.path / "alerts").mkdir()
    for name, text in (("a", "[]"), ("b", "{"), ("c", '{"options": 3}'), ("d", '{"options": {"x": {"failed": "y"}}}')):
        (run_dir.path / "alerts" / f"{name}.json").write_text(text)
    (run_dir.path / "alerts" / "e.json").write_text('{"findings": [3], "options": {"--notify": {"failed": 1}}}')
    assert judge_run(run_dir, 0).notes == ["--notify on None: 1 of 1 not sent"]
    start_alerts(run_dir, notify="http://127.0.0.1:9/x").finish_sending(make_verdict(run_dir), 0)


# several nodes


def add_rank(run: RunDir, rank: int, pid: int, host: str, launched_by: int, attempt: int = 0) -> None:
    folder = run.path / f"rank{rank:04d}" / (f"attempt{attempt}" if attempt else "")
    folder.mkdir(parents=True)
    (folder / "owner.json").write_text(json.dumps({"pid": pid, "host": host}))
    (run.path / "hello").mkdir(exist_ok=True)
    about = {"pid": pid, "host": host, "env": {"TDBG_LAUNCHED_BY": str(launched_by)}}
    (run.path / "hello" / f"{host}-{pid}.json").write_text(json.dumps(about))


def add_agent(run: RunDir, pid: int, host: str) -> None:
    (run.path / "nodes").mkdir(exist_ok=True)
    (run.path / "nodes" / f"{host}-{pid}.json").write_text(json.dumps({"pid": pid, "host": host, "start": 1.0}))


def test_each_agent_sends_what_its_own_ranks_found(
    run_dir: RunDir, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Two supervisors with one pid, as in containers: the host tells them apart. No rank 2 is known to anybody."""
    add_agent(run_dir, os.getpid(), "other")
    add_rank(run_dir, 0, 11, host_name(), os.getpid())
    add_rank(run_dir, 1, 11, "other", os.getpid())
    found = [make_finding(f"rank {rank}", rank) for rank in (0, 1, 2, None)]
    for leads, host in ((True, host_name()), (False, "other")):
        monkeypatch.setattr(alerts, "host_name", lambda host=host: host)
        made = start_alerts(run_dir, leads=leads, on_finding=build_append_command(tmp_path / host))
        for one in found:
            made.add_finding(one)
        made.finish_sending(make_verdict(run_dir, *found), 1)
    assert [one["title"] for one in read_rows(tmp_path / host_name())] == ["rank 0", "rank 2", "rank None"]
    assert [one["title"] for one in read_rows(tmp_path / "other")] == ["rank 1"]


def test_the_headline_is_the_leaders(run_dir: RunDir) -> None:
    with serve_webhook() as server:
        start_alerts(run_dir, leads=False, notify=server.url).finish_sending(make_verdict(run_dir), 1)
    assert server.bodies == []


def test_the_ranks_that_one_agent_started_on_other_hosts_are_its_own(run_dir: RunDir) -> None:
    add_agent(run_dir, 500_000, "third")
    add_rank(run_dir, 7, 11, "far", os.getpid())
    assert RankOwners(run_dir).find_owner(7) == (os.getpid(), host_name())
    add_rank(run_dir, 7, 12, "third", 500_000, attempt=1)
    assert RankOwners(run_dir).find_owner(7) == (500_000, "third"), "of the latest attempt"
    assert RankOwners(run_dir).find_owner(8) is None


# what is refused


@pytest.mark.parametrize(("source", "refused"), [("option", True), ("environment", False)])
def test_a_typed_command_that_is_not_there_is_refused(source: str, refused: bool) -> None:
    def check_settings() -> None:
        alerts.check_on_finding(Settings(on_finding="no-such-command-anywhere x"), {"on_finding": source})

    if refused:
        with pytest.raises(TdbgError, match="command not found: no-such-command-anywhere"):
            check_settings()
    else:
        check_settings()


WRONG: list[tuple[str, str, str]] = [
    ("--on-finding", "", "--on-finding is empty"),
    ("--on-finding", "  ", "on-finding names no command"),
    ("--on-finding", "''", "on-finding names no command"),
    ("--on-finding", "python 'alert.py", "on-finding cannot be split into words: no closing quotation"),
    ("--on-finding", "no-such-command-anywhere", "--on-finding: command not found: no-such-command-anywhere"),
    ("--on-finding", "/", "--on-finding: cannot execute /: it is a directory"),
    ("--on-finding", "/etc/passwd", "--on-finding: cannot execute /etc/passwd: permission denied"),
    ("--on-finding", "| mail", "--on-finding: command not found: |"),
    ("--on-finding", "~/no-such-command", "--on-finding: command not found: ~/no-such-command"),
    ("--on-finding", "a\\", "on-finding cannot be split into words: no escaped character"),
    ("--on-finding", "\udcff-ü", "--on-finding: command not found: "),
    ("--notify", "", "--notify is empty"),
    ("--notify", " ", "notify: not an http or https URL"),
    ("--notify", "https://sEcReT..example/", "notify: the host name of the URL is not valid"),
    ("--notify", f"https://{'sEcReT' * 11}/", "notify: the host name of the URL is not valid"),
    ("--notify", "ftp://host/sEcReT", "notify: not an http or https URL"),
    ("--notify", "host/sEcReT", "notify: not an http or https URL"),
    ("--notify", "file:///sEcReT", "notify: not an http or https URL"),
    ("--notify", "https://", "notify: the URL has no host"),
    ("--notify", "https:///sEcReT", "notify: the URL has no host"),
    ("--notify", "https://?sEcReT", "notify: the URL has no host"),
    ("--notify", "https://host/sEc ReT", "notify: the URL has no host, or has invalid characters"),
    ("--notify", "https://host/sEc\nReT", "notify: the URL has no host, or has invalid characters"),
    ("--notify", "https://me:sEcReT@host/", "notify: a URL with a user or a password"),
    ("--notify", "https://host:99999/sEcReT", "notify: the port of the URL is out of range"),
    ("--notify", "https://host:x/sEcReT", "notify: the URL has no host, or has invalid characters"),
]


@pytest.mark.parametrize(("option", "value", "text"), WRONG)
def test_bad_input_is_refused_before_the_start(shell: Any, option: str, value: str, text: str) -> None:
    done = shell.run_command("touch", "made", options=(option, value))
    assert done.returncode == 2 and text in done.stderr and "ReT" not in done.stderr, done.stderr
    assert len(done.stderr.splitlines()) == 2 and done.stdout == ""
    assert os.listdir(shell.folder) == []


@pytest.mark.parametrize(("option", "value"), [("--on-finding", "true"), ("--notify", "https://host/sEcReT")])
def test_with_exec_nobody_is_left_who_could_send(shell: Any, option: str, value: str) -> None:
    done = shell.run_command("touch", "made", options=("--exec", option, value))
    assert done.returncode == 2 and f"{option} needs tdbg to stay running" in done.stderr
    assert f"leave out --exec or {option}" in done.stderr and os.listdir(shell.folder) == []


def test_the_plan_and_the_doctor_do_not_show_the_url(shell: Any) -> None:
    url = "https://example.org/xK7sEcReT42"
    done = shell.run_command(
        "true", options=("--dry-run", "--on-finding", f"curl --token Kx7abc {url}"), env={"TDBG_NOTIFY": url}
    )
    assert "setting: notify = *** (environment)" in done.stdout
    assert "Kx7abc" not in done.stdout
    import subprocess

    from tests.launch.conftest import TDBG, build_clean_env

    shown = subprocess.run([*TDBG, "doctor"], env=build_clean_env(TDBG_NOTIFY=url), capture_output=True, text=True)
    assert "sEcReT" not in shown.stdout + shown.stderr


def test_the_programs_environment_does_not_hold_the_url(shell: Any) -> None:
    url = "http://127.0.0.1:9/xK7sEcReT42"
    done = shell.run_command("env", env={"TDBG_NOTIFY": url})
    assert done.returncode == 0 and "sEcReT" not in done.stdout
    outer = shell.run_command("true", "--notify", url, f"--notify={url}", "tdbg", "run", "--notify", url, "--", "true")
    assert outer.returncode == 0
    for path in (shell.folder / "tdbg_runs").rglob("*.json"):
        assert "sEcReT" not in path.read_text(), path


def test_the_exit_code_stays(shell: Any, wait_until: Callable[..., Any]) -> None:
    for code in (0, 7):
        done = shell.run_command(
            "sh", "-c", f"exit {code}", options=("--on-finding", "false", "--notify", "http://127.0.0.1:9/x")
        )
        assert done.returncode == code
    assert "--notify: Connection refused" in done.stderr and "verdict:" in done.stderr
