"""`tdbg run --on-finding` and `--notify` on programs: a planted NaN, ranks and nodes, and a secret in no file."""

import json
import os
import shlex
import signal
import socket
import subprocess
import sys
import time
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from tests.e2e.conftest import (
    Runner,
    assert_same_output,
    build_environment,
    build_program_command,
    build_torchrun_command,
    warm_command,
)
from tests.webhook_server import serve_webhook

SECRET_PATH = "/hook/xK7sEcReT42"
TRAINING = """
import os, sys, time
import torch
model = torch.nn.Linear(4, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for step in range(1, 41):
    batch = torch.ones(2, 4)
    if step == 10:
        batch[0] = float("nan")
    optimizer.zero_grad()
    model(batch).sum().backward()
    optimizer.step()
print("the rank sees", str([sys.argv, dict(os.environ)]).count("sEcReT"))
"""
APPEND = "import sys; open(sys.argv[1], 'ab').write(sys.stdin.buffer.read()); print('appended')"


def build_append_command(path: Path) -> str:
    return shlex.join([sys.executable, "-c", APPEND, str(path)])


def read_rows(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []


def count_codes(found: list[dict[str, Any]]) -> Counter[str]:
    return Counter(one["code"] for one in found if "code" in one)


def test_each_finding_of_a_nan_is_sent_once_by_both(
    watched_runner: Runner, bare_runner: Runner, tmp_path: Path
) -> None:
    words = build_program_command("faults", "gpt", "backward-nan")
    with serve_webhook([503, 503], path=SECRET_PATH) as server:
        result = watched_runner(words, ["--on-finding", build_append_command(tmp_path / "got"), "--notify", server.url])
    assert_same_output(result, bare_runner(words))
    reported = result.verdict["findings"]
    sent = read_rows(tmp_path / "got")
    assert count_codes(sent) == count_codes(reported) and count_codes(sent)["TD-N001"] == 1
    first = next(one for one in sent if one["code"] == "TD-N001")
    in_the_end = {"follows_from"}  # which finding another follows from is settled when all are known
    assert first.keys() == {*reported[0], "run", "host", "command"} - in_the_end
    assert (first["first_step"], first["rank"], first["run"]) == (3, 0, str(result.folder))
    assert first["command"][1:] == words[1:]
    posted = server.accepted_bodies
    assert count_codes(posted) == count_codes(reported) and posted[-1]["kind"] == "verdict"
    assert posted[-1]["text"].splitlines()[0] == result.verdict["headline"]
    assert "tdbg: on-finding: appended" in result.tdbg_lines
    for path in result.folder.rglob("*"):
        assert SECRET_PATH.encode() not in (path.read_bytes() if path.is_file() else b""), path


def test_a_url_from_the_environment_reaches_no_process_of_the_program(watched_runner: Runner, tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(TRAINING)
    with serve_webhook(path=SECRET_PATH) as server:
        result = watched_runner([sys.executable, "train.py"], ["--tee"], {"TDBG_NOTIFY": server.url})
    assert result.code == 0 and "the rank sees 0" in result.stdout, result.stderr
    assert count_codes(server.accepted_bodies) == count_codes(result.verdict["findings"]) != {}
    for path in result.folder.rglob("*"):
        assert b"sEcReT" not in (path.read_bytes() if path.is_file() else b""), path


def test_a_finding_is_sent_while_the_program_goes_on(watched_runner: Runner, tmp_path: Path) -> None:
    """The program waits for what the command writes; without a live alert it waits in vain."""
    waits = """
until = time.monotonic() + 60
while not os.path.exists(sys.argv[1]) and time.monotonic() < until:
    time.sleep(0.05)
print("seen", os.path.exists(sys.argv[1]))
"""
    (tmp_path / "train.py").write_text(TRAINING + waits)
    got = tmp_path / "got"
    result = watched_runner([sys.executable, "train.py", str(got)], ["--on-finding", build_append_command(got)])
    assert "seen True" in result.stdout, result.stderr


def test_a_command_that_hangs_costs_the_end_its_limit_and_no_more(watched_runner: Runner, tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(TRAINING + "\nprint(time.time())\nsys.exit(5)")
    result = watched_runner([sys.executable, "train.py"], ["--on-finding", "sh -c 'sleep 700 & sleep 701'"])
    took = time.time() - float(result.stdout.splitlines()[-1])
    assert result.code == 5 and took < 45, took
    assert any("--on-finding: sh did not end within " in line for line in result.tdbg_lines), result.stderr
    assert any(note.startswith("--on-finding on ") for note in result.verdict["notes"])
    left = subprocess.run(["ps", "-eo", "args"], capture_output=True, text=True).stdout.splitlines()
    assert not [line for line in left if line.strip() in ("sleep 700", "sleep 701")]


def test_the_finding_of_one_rank_of_two_is_sent_once(watched_runner: Runner, tmp_path: Path) -> None:
    words = build_torchrun_command("faults", "conv", "bad-batch", "--rank", "1")
    result = watched_runner(words, ["--on-finding", build_append_command(tmp_path / "got")])
    sent = read_rows(tmp_path / "got")
    assert count_codes(sent) == count_codes(result.verdict["findings"])
    assert [one["rank"] for one in sent if one["code"] == "TD-N001"] == [1]


def test_on_two_nodes_each_supervisor_sends_what_its_own_rank_found(tmp_path: Path) -> None:
    """``torchrun --nnodes=2`` twice on the loopback, each under its own `tdbg run`; rank 1 has the fault."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    meeting = ["--rdzv-backend=c10d", f"--rdzv-endpoint=127.0.0.1:{port}", "--rdzv-id=7"]
    words = build_torchrun_command(
        "faults", "conv", "bad-batch", "--rank", "1", options=["--nnodes=2", "--nproc-per-node=1", *meeting]
    )
    agents = []
    with serve_webhook() as server:
        for number in (0, 1):
            options = ["--run-dir", str(tmp_path / "run"), "--notify", server.url]
            options += ["--on-finding", build_append_command(tmp_path / f"got{number}")]
            command = warm_command([sys.executable, "-m", "tdbg", "run", *options, "--", *words])
            agents.append(
                subprocess.Popen(
                    command,
                    cwd=tmp_path,
                    env=build_environment({}),
                    stdout=subprocess.PIPE,
                    stderr=subprocess.PIPE,
                    text=True,
                )
            )
        said = [agent.communicate(timeout=150)[1] for agent in agents]
    sent = {agent.pid: read_rows(tmp_path / f"got{number}") for number, agent in enumerate(agents)}
    by = {one["rank"]: pid for pid, found in sent.items() for one in found if one["code"] == "TD-N001"}
    assert list(by) == [1], said
    hello = [json.loads(path.read_text()) for path in (tmp_path / "run" / "hello").glob("*.json")]
    assert {int(one["env"]["TDBG_LAUNCHED_BY"]) for one in hello if one["rank"] == 1} == {by[1]}
    assert sum(count_codes(found)["TD-N001"] for found in sent.values()) == 1
    verdicts = [body for body in server.accepted_bodies if body["kind"] == "verdict"]
    assert len(verdicts) == 1 and count_codes(server.accepted_bodies) == count_codes(
        [one for found in sent.values() for one in found]
    )


@pytest.mark.parametrize("option", ["--on-finding", "--notify"])
def test_profile_has_the_options_too(tmp_path: Path, option: str) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "tdbg", "profile", option, "ftp://x '", "--", "true"],
        cwd=tmp_path,
        env=build_environment({}),
        capture_output=True,
        text=True,
    )
    assert done.returncode == 2 and option.removeprefix("--") in done.stderr and os.listdir(tmp_path) == []


def test_ctrl_c_while_tdbg_waits_ends_the_command_and_keeps_the_exit_code(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(TRAINING + "\nsys.exit(5)")
    options = ["--run-dir", str(tmp_path / "run"), "--on-finding", "sh -c 'sleep 702 & sleep 703'"]
    command = warm_command([sys.executable, "-m", "tdbg", "run", *options, "--", sys.executable, "train.py"])
    with subprocess.Popen(
        command, cwd=tmp_path, env=build_environment({}), stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True
    ) as agent:
        said = ""
        for line in agent.stderr or ():
            said += line
            if "waiting for --on-finding" in line:
                begun = time.monotonic()
                agent.send_signal(signal.SIGINT)
    assert agent.returncode == 5 and time.monotonic() - begun < 15, said
    assert "interrupted: messages not yet sent" in said and "Traceback" not in said
    left = subprocess.run(["ps", "-eo", "args"], capture_output=True, text=True).stdout.splitlines()
    assert not [line for line in left if line.strip() in ("sleep 702", "sleep 703")]
