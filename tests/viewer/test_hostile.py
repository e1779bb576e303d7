"""Clients and run directories that mean harm: refused or served, quickly, in bounded memory, and nothing is changed or told."""

import asyncio
import contextlib
import gzip
import json
import os
import random
import re
import shutil
import socket
import stat
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any
from urllib.parse import quote

import psutil
import pytest
import uvicorn
from playwright.sync_api import Browser

from tdbg.viewer import connections, trace_indexes
from tdbg.viewer.routes import list_routes
from tdbg.viewer.server import bind_socket, build_config

from .conftest import Client, unpack_recording
from .test_pages import CHROMIUM, PAGES, Server, Watched, chromium  # noqa: F401 (a fixture)

STATUS = "/api/v1/runs/two_ranks/status"
SECRET = "TOP-SECRET-TEXT"


class Wire:
    """A connection to a server, without a client's manners."""

    def __init__(self, port: int) -> None:
        self.socket = socket.socket()
        self.socket.settimeout(20)
        self.socket.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 1 << 16)  # little is on its way unread
        self.socket.connect(("127.0.0.1", port))
        self.port = port

    def send(self, text: str | bytes) -> None:
        """Bytes as they are; what the server has closed meanwhile is no fault."""
        with contextlib.suppress(BrokenPipeError, ConnectionResetError):
            self.socket.sendall(text.encode("latin-1") if isinstance(text, str) else text)

    def ask(self, target: str, *headers: str, method: str = "GET", host: str = "") -> tuple[int, str]:
        """Status and body of one request whose target is not touched."""
        lines = [
            f"{method} {target} HTTP/1.1",
            f"Host: {host or f'127.0.0.1:{self.port}'}",
            *headers,
            "Connection: close",
        ]
        self.send("\r\n".join(lines) + "\r\n\r\n")
        return self.read_answer()

    def read_answer(self) -> tuple[int, str]:
        """Status and body; 0 if the connection ended without an answer."""
        found = b""
        with contextlib.suppress(ConnectionResetError):
            while piece := self.socket.recv(1 << 16):
                found += piece
        head, _, body = found.partition(b"\r\n\r\n")
        return (int(head.split()[1]) if head else 0), body.decode("utf-8", "replace")

    def is_closed_within(self, seconds: float) -> bool:
        """True if the server ends the connection by itself."""
        self.socket.settimeout(seconds)
        try:
            while self.socket.recv(1 << 16):
                pass
        except TimeoutError:
            return False
        except ConnectionResetError:
            return True
        return True


def check_refusal(status: int, body: str) -> None:
    """A refusal has a status of its own, one line of what and one of what next, and tells nothing else."""
    assert 400 <= status < 500, (status, body[:300])
    problem = json.loads(body)
    assert problem.keys() == {"error", "try_next"}
    for line in problem.values():
        assert line and "\n" not in line and len(line) <= 1_000, problem
    assert SECRET not in body and "Traceback" not in body and "site-packages" not in body and "root:" not in body


@pytest.fixture(scope="module")
def served(runs_folder: Path) -> Iterator[Server]:
    found = Server(runs_folder)
    yield found
    assert found.end() in (0, 130)


@pytest.fixture
def port(served: Server) -> int:
    return int(served.root.rpartition(":")[2])


@pytest.fixture(scope="module")
def authorization(served: Server) -> str:
    """The header of a session."""
    import urllib.request

    body = json.dumps({"token": served.address.partition("token=")[2]}).encode()
    with urllib.request.urlopen(f"{served.root}/api/v1/session", body) as answer:
        return f"Authorization: Bearer {json.load(answer)['session']}"


# requests


TARGETS = [
    "/assets/../server.py",
    "/assets/..%2fserver.py",
    "/assets/%2e%2e/server.py",
    "/assets/%252e%252e%252fserver.py",
    "/assets/..\\server.py",
    "/assets/..%5cserver.py",
    "/assets//etc/passwd",
    "/assets/%2fetc%2fpasswd",
    "/assets/app.js%00.css",
    "/assets/app.js/",
    "//etc/passwd",
    "/%2e%2e/%2e%2e/etc/passwd",
    *(
        f"/api/v1/runs/{name}/{what}"
        for name in (
            "..",
            "%2e%2e",
            "%252e%252e",
            "..%2f..",
            "..%5c..",
            "%2fetc",
            "two_ranks%00",
            "two_ranks%2f..",
            "%c0%ae%c0%ae",
            ".",
        )
        for what in ("report", "status", "logs", "pages", "events")
    ),
    "/api/v1/runs/two_ranks/pages/datapoint?key=..%2f..%2frun.json",
    "/api/v1/runs/two_ranks/pages/picture?key=step1&path=..%2f..%2frun.json",
    "/debug/summary?run=..%2ftwo_ranks",
]


@pytest.mark.parametrize("target", TARGETS)
def test_no_path_leads_out(port: int, authorization: str, target: str) -> None:
    check_refusal(*Wire(port).ask(target, authorization))


@pytest.mark.parametrize("target", ["http://evil.example/api/v1/runs", "*", "evil.example:80", "/" + "x" * 100_000])
def test_odd_targets_are_refused_or_answered_as_our_own(port: int, authorization: str, target: str) -> None:
    status, body = Wire(port).ask(target, authorization)
    assert status in (400, 404), (status, body[:200])
    check_refusal(status, body)


@pytest.mark.parametrize(
    "head",
    [
        "GET /api/v1/runs HTTP/1.0\r\n\r\n",
        "GET /api/v1/runs HTTP/1.1\r\nHost: 127.0.0.1\r\nHost: evil.example\r\n\r\n",
        "GET /api/v1/runs HTTP/1.1\r\nHost: evil.example\r\nX-Forwarded-Host: 127.0.0.1\r\nConnection: close\r\n\r\n",
        "GET / HTTP/1.1\r\nHost: 127.0.0.1\r\n" + "X: y\r\n" * 30_000 + "\r\n",
        "GET / HTTP/1.1\r\nHost: 127.0.0.1\r\nX: " + "y" * 300_000 + "\r\n\r\n",
        "GET / HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Length: -1\r\n\r\n",
        "GET / HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Length: 5\r\nTransfer-Encoding: chunked\r\nTransfer-Encoding: x\r\n\r\n",
        "\x16\x03\x01\x02\x00 no HTTP at all\r\n\r\n",
    ],
)
def test_odd_heads_are_refused(port: int, head: str) -> None:
    wire = Wire(port)
    wire.send(head)
    check_refusal(*wire.read_answer())


@pytest.mark.parametrize("kind", ["text/plain", "application/x-www-form-urlencoded", "multipart/form-data; boundary=x"])
@pytest.mark.parametrize(
    "path", ["/api/v1/session", "/api/v1/runs/two_ranks/flags", "/debug/clear", "/debug/level/off"]
)
def test_a_form_of_another_page_is_refused(port: int, kind: str, path: str) -> None:
    """What a page may send without asking first (no-cors) has an origin, and a site where the browser is newer."""
    for headers in (
        ["Origin: http://evil.example"],
        ["Origin: null"],
        ["Sec-Fetch-Site: cross-site", "Sec-Fetch-Mode: no-cors"],
    ):
        status, body = Wire(port).ask(path, *headers, f"Content-Type: {kind}", "Content-Length: 0", method="POST")
        assert status == 403
        check_refusal(status, body)


@pytest.mark.parametrize("path", ["/api/v1/session", STATUS])
def test_a_body_of_100_mb_is_not_kept(port: int, served: Server, path: str) -> None:
    before = psutil.Process(served.process.pid).memory_info().rss
    wire = Wire(port)
    wire.send(f"POST {path} HTTP/1.1\r\nHost: 127.0.0.1\r\nConnection: close\r\nContent-Length: 100000000\r\n\r\n")
    for _ in range(100):
        wire.send(b"x" * 1_000_000)
    status, body = wire.read_answer()
    if status:  # else the answer was lost, since the server closed before all was sent
        check_refusal(status, body)
    assert psutil.Process(served.process.pid).memory_info().rss - before < 20 << 20


# many and slow clients


def test_200_clients_at_once_are_answered_rightly(
    port: int, served: Server, authorization: str, client: Client
) -> None:
    expected = client.ask("/runs/two_ranks/metrics")
    with ThreadPoolExecutor(200) as pool:
        found = list(pool.map(lambda _: Wire(port).ask("/api/v1/runs/two_ranks/metrics", authorization), range(200)))
    assert {status for status, _ in found} == {200}
    assert all(json.loads(body) == expected for _, body in found)
    process = psutil.Process(served.process.pid)
    assert process.num_threads() < 80 and process.memory_info().rss < 250 << 20


def test_300_silent_clients_keep_nobody_out(port: int, authorization: str) -> None:
    silent = [Wire(port) for _ in range(300)]
    for wire in silent:
        wire.send("GET / HTTP/1.1\r\nHost: 127.0.0.1\r\nX-Slow: ")
    status, _ = Wire(port).ask(STATUS, authorization)
    assert status == 200
    for wire in silent:
        wire.socket.close()


@pytest.fixture
def impatient(client: Client, monkeypatch: pytest.MonkeyPatch) -> Iterator[int]:
    """The port of a server in this process whose deadlines are short."""
    monkeypatch.setattr(connections, "REQUEST_S", 0.5)
    monkeypatch.setattr(connections, "STALL_S", 0.5)
    listener = bind_socket(0)
    server = uvicorn.Server(build_config(client.app))
    server.config.timeout_keep_alive = 1
    thread = threading.Thread(target=lambda: asyncio.run(server.serve(sockets=[listener])), daemon=True)
    thread.start()
    yield listener.getsockname()[1]
    server.should_exit = True
    thread.join(20)
    assert not thread.is_alive()


@pytest.mark.parametrize(
    "begun",
    [
        "",
        "GET / HTTP/1.1\r\nHost: 127.0.0.1\r\nX: ",
        "POST /api/v1/session HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Length: 100\r\n\r\n{",
        "GET /assets/app.css HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\nGET / HTTP/1.1\r\n",
    ],
)
def test_a_request_without_end_is_given_up(impatient: int, begun: str) -> None:
    wire = Wire(impatient)
    wire.send(begun)
    assert wire.is_closed_within(10)


def count_served(port: int) -> int:
    """Connections that the server, which is in this process, still holds open."""
    found = psutil.Process().net_connections("tcp4")
    return sum(1 for one in found if one.laddr and one.laddr.port == port and one.status == psutil.CONN_ESTABLISHED)


def test_readers_that_never_read_are_given_up_and_hold_little_memory(impatient: int) -> None:
    _, whole = Wire(impatient).ask("/assets/plotly.js")  # 4 MB, made once
    before = psutil.Process().memory_info().rss
    lazy = []
    for _ in range(40):
        wire = Wire(impatient)
        wire.send("GET /assets/plotly.js HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n")
        lazy.append(wire)
    time.sleep(0.4)
    assert psutil.Process().memory_info().rss - before < 40 << 20  # of 170 MB that were asked for
    deadline = time.monotonic() + 60
    while (left := count_served(impatient)) and time.monotonic() < deadline:
        time.sleep(0.1)
    assert not left
    assert all(len(wire.read_answer()[1]) < len(whole) for wire in lazy)
    assert Wire(impatient).ask("/")[0] == 200


# run directories


def each_file(change: Callable[[Path], None]) -> Callable[[Path], None]:
    """Do it to every file of a run but run.json."""

    def change_all(run: Path) -> None:
        for path in sorted(run.rglob("*")):
            if path.is_file() and path.name != "run.json":
                change(path)

    return change_all


def replace_by_pipe(path: Path) -> None:
    path.unlink()
    os.mkfifo(path)


def replace_by_device(path: Path) -> None:
    path.unlink()
    try:
        os.mknod(path, stat.S_IFCHR | 0o666, os.makedev(1, 5))  # zeros without end
    except PermissionError:
        pytest.skip("devices are made by root alone")


def replace_by_folder(path: Path) -> None:
    path.unlink()
    path.mkdir()


def replace_by_link(path: Path) -> None:
    secret = path.parents[1] / "secret.txt"
    secret.write_text(f"{SECRET}\n" * 10, encoding="utf-8")
    path.unlink()
    path.symlink_to(secret)


def cut_in_half(path: Path) -> None:
    os.truncate(path, path.stat().st_size * 2 // 3)


def fill_with_noise(path: Path) -> None:
    path.write_bytes(random.Random(1).randbytes(20_000))


def nest_deeply(path: Path) -> None:
    path.write_bytes(
        b'{"type":"step","v":1,"t":1.0,"step":1,"loss":' + b"[" * 100_000 + b"]" * 100_000 + b"}\n" + b"[" * 100_000
    )


def make_a_hole(path: Path) -> None:
    path.write_bytes(b"")
    os.truncate(path, 20 << 30)


def change_numbers(path: Path) -> None:
    """Numbers of every size in place of some, clocks that jump among them."""
    if path.suffix in (".json", ".jsonl"):
        draw = random.Random(3)
        wild = ["1e999", "-1", "9" * 30, "NaN", "Infinity", "0", "-1e300", "4e18"]
        text = path.read_text(encoding="utf-8")
        number = r"(?<=[:,\[ ])-?[0-9]+(\.[0-9]+)?(e[-+]?[0-9]+)?"
        path.write_text(re.sub(number, lambda found: draw.choice([*wild, found[0], found[0]]), text), encoding="utf-8")


def turn_clocks(path: Path) -> None:
    if path.suffix in (".json", ".jsonl"):
        draw = random.Random(2)
        text = path.read_text(encoding="utf-8")
        turned = re.sub(
            r'"(t|start|end)": ?[0-9.e+]+', lambda found: f'"{found[1]}":{draw.choice([0, -5, 1e18, 4e9])}', text
        )
        path.write_text(turned, encoding="utf-8")


def write_a_line_of_100_mb(run: Path) -> None:
    for name in ("events.jsonl", "debug_log_rank0.txt", "metrics.jsonl", "records.jsonl"):
        (run / "rank0000" / name).write_bytes(b"x" * 100_000_000 + b"\n")


def add_100_000_files(run: Path) -> None:
    for number in range(100_000):
        os.close(os.open(run / f"f{number}", os.O_CREAT | os.O_WRONLY, 0o600))


def link_folders(run: Path) -> None:
    """Folders of ranks, pages and traces that lie elsewhere, and names that lead in a circle."""
    elsewhere = run.parent / "secret-folder"
    shutil.copytree(run / "rank0000", elsewhere)
    (elsewhere / "info_log_rank0.txt").write_text(SECRET, encoding="utf-8")
    shutil.rmtree(run / "rank0000")
    (run / "rank0000").symlink_to(elsewhere)
    (run / "rank0001" / "loop").symlink_to(run)
    (run / "rank9999").symlink_to("rank9999")
    for name in ("rank-5", "rank99999999999999999999", "rank00000002"):
        (run / name).mkdir()


def list_state(run: Path) -> dict[Path, tuple[int, int, int]]:
    """Mode, size and time of every file."""
    found = {path: path.lstat() for path in run.rglob("*")}
    return {path: (about.st_mode, about.st_size, about.st_mtime_ns) for path, about in found.items()}


HARM = {
    "pipes": each_file(replace_by_pipe),
    "devices": each_file(replace_by_device),
    "folders": each_file(replace_by_folder),
    "links": each_file(replace_by_link),
    "half": each_file(cut_in_half),
    "noise": each_file(fill_with_noise),
    "nested": each_file(nest_deeply),
    "holes": each_file(make_a_hole),
    "numbers": each_file(change_numbers),
    "clocks": each_file(turn_clocks),
    "line": write_a_line_of_100_mb,
    "files": add_100_000_files,
    "linked": link_folders,
}


FEW = ("/runs", "/status", "/report", "/pages")  # where looking takes its time


def ask_everything(client: Client, name: str, *, few: bool) -> Iterator[Any]:
    """All that can be read of a run: each answer is right or a refusal, and comes within seconds."""
    for one in list_routes(changes=False):
        if one.method == "GET" and not one.streams and (one.path.endswith(FEW) or not few):
            needed = {"key": "step1", "path": "encoder.0:output"} if "pages/" in one.path else {}
            begun = time.monotonic()
            answer = client.get(one.path.replace("{run}", name), params=needed)
            assert time.monotonic() - begun < 30, one.path
            if answer.status_code != 200:
                check_refusal(answer.status_code, answer.text)
            yield answer


@pytest.mark.parametrize("harm", HARM)
def test_a_harmful_run_is_served_or_refused_and_not_changed(tmp_path: Path, harm: str) -> None:
    run = unpack_recording("captured" if harm in ("half", "noise", "links") else "two_ranks", tmp_path)
    HARM[harm](run)
    before = list_state(run)
    for answer in ask_everything(Client(tmp_path, control=True), run.name, few=harm == "files"):
        json.loads(answer.text, parse_constant=pytest.fail)  # strict JSON
        assert SECRET not in answer.text and len(answer.content) < 4 << 20
    assert list_state(run) == before
    shutil.rmtree(run)


def pack_a_trace(path: Path, text: bytes) -> None:
    path.write_bytes(gzip.compress(text, 1))


def write_wild_events(path: Path) -> None:
    """Events of every type in every field, names without end, times that are none."""
    wild = [0, -1, 1e300, -1e300, 4e15, 10**30, None, "", "x" * 100_000, "\ud800", True, [], {"a": [1]}, "NaN"]
    kinds = ["cpu_op", "kernel", "python_function", "user_annotation", "cuda_runtime", "gpu_memcpy"]
    whole = {"ph": "X", "name": "a", "pid": 1, "tid": 1, "ts": 5.0, "dur": 3.0}
    events = [{**whole, "cat": kind, field: value} for kind in kinds for field in whole for value in wild]
    pack_a_trace(path, json.dumps({"traceEvents": [{**whole, "cat": "cpu_op"}, *events]}).encode())


def write_many_names(path: Path) -> None:
    """Threads, processes and names, each once."""
    events = [
        {
            "ph": "X",
            "cat": "cpu_op",
            "name": f"{number}" * 40,
            "pid": f"p{number}",
            "tid": number,
            "ts": number,
            "dur": 1,
        }
        for number in range(10_000)
    ]
    pack_a_trace(path, json.dumps({"traceEvents": events}).encode())


def name_it_strangely(path: Path) -> None:
    """Bytes that are no UTF-8, and markup, in the name of a trace."""
    path.rename(path.with_name(os.fsdecode(b"<img src=x>\xff.1234567890123.pt.trace.json.gz")))


HARMFUL_TRACES = {
    "pipe": replace_by_pipe,
    "folder": replace_by_folder,
    "link": replace_by_link,
    "half": cut_in_half,
    "noise": fill_with_noise,
    "nested": lambda path: pack_a_trace(path, b'{"traceEvents": ' + b"[" * 200_000),
    "hole": make_a_hole,
    "zeros": lambda path: pack_a_trace(path, bytes(100_000_000)),
    "no-events": lambda path: pack_a_trace(path, b'{"traceEvents": []}'),
    "wild": write_wild_events,
    "names": write_many_names,
    "odd-name": name_it_strangely,
}


@pytest.mark.parametrize("large", [False, True])
@pytest.mark.parametrize("harm", HARMFUL_TRACES)
def test_a_harmful_trace_is_read_or_refused_and_not_changed(
    tmp_path: Path, harm: str, large: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """large: read by a process beside the server."""
    monkeypatch.setattr(trace_indexes, "LARGE_PACKED_BYTES", 0 if large else 1 << 40)
    run = unpack_recording("profiled", tmp_path)
    (trace,) = run.glob("rank0000/traces/*.json.gz")
    HARMFUL_TRACES[harm](trace)
    before, client = list_state(run), Client(tmp_path)
    for path, query in (
        ("", {}),
        ("/page", {}),
        ("/flame", {}),
        ("/spans", {"rank": 0}),
        ("/spans", {"rank": 0, "step": 3}),
    ):
        client.wait_for(f"/runs/profiled/traces{path}", **query)
        answer = client.get(f"/api/v1/runs/profiled/traces{path}", params=query)
        if answer.status_code != 200:
            check_refusal(answer.status_code, answer.text)
        json.loads(answer.text, parse_constant=pytest.fail)
        assert SECRET not in answer.text and len(answer.content) < 4 << 20
    client.served.traces.close()
    assert list_state(run) == before


# markup in names and messages


MARKUP = "<img src=x onerror=\"window.harm='run'\"><script>window.harm='run'</script>'\"&{{7*7}}${harm}"
NAME = "<img src=x onerror=harm=1>'&quot;%41#?"  # of a folder: all but a slash


def spread_markup(value: Any) -> Any:
    """Every text of a document with markup behind it; what names a kind of thing stays."""
    if isinstance(value, dict):
        return {key: item if key in KEPT else spread_markup(item) for key, item in value.items()}
    if isinstance(value, list):
        return [spread_markup(item) for item in value]
    return value + MARKUP if isinstance(value, str) and value not in SPECIAL else value


KEPT = {"type", "severity", "level", "phase", "code", "source", "probe", "reason"}
SPECIAL = {"nan", "inf", "-inf", "NaN", "Infinity", "-Infinity"}


def poison_run(run: Path) -> None:
    """Markup in every text of its JSON files, in keys of metrics, in log lines."""
    for path in run.rglob("*.json"):
        if path.parent.name != "traces":
            path.write_text(json.dumps(spread_markup(json.loads(path.read_bytes()))), encoding="utf-8")
    for path in run.rglob("*.jsonl"):
        lines = [json.dumps(spread_markup(json.loads(line))) for line in path.read_bytes().splitlines()]
        text = "\n".join(lines).replace('"train/loss"', json.dumps(f"train/{MARKUP}"))
        path.write_text(text + "\n", encoding="utf-8")
    for path in run.rglob("*_log_rank*.txt"):
        path.write_text(re.sub(r"$", lambda _: MARKUP, path.read_text(encoding="utf-8"), flags=re.M), encoding="utf-8")


@pytest.mark.skipif(CHROMIUM is None, reason="no Chromium here to open the pages")
def test_markup_is_shown_as_text(tmp_path: Path, chromium: Browser) -> None:  # noqa: F811
    shutil.move(unpack_recording("captured", tmp_path), tmp_path / NAME)
    unpack_recording("two_ranks", tmp_path)
    poison_run(tmp_path / NAME)
    poison_run(tmp_path / "two_ranks")
    server = Server(tmp_path)
    watched = Watched(chromium, server)
    places = ["/runs", *(f"/runs/{quote(run, safe='')}/{page}" for run in (NAME, "two_ranks") for page in PAGES)]
    for place in [*places, f"/runs/{quote(NAME, safe='')}/tensors?key=step1&nth=0"]:
        shown = watched.show(place)
        assert shown.evaluate("window.harm") is None and shown.locator("#content img, #content script").count() == 0
        watched.check()
    assert MARKUP in watched.show("/runs/two_ranks/logs").inner_text("#content")
    watched.context.close()
    assert server.end() in (0, 130)
