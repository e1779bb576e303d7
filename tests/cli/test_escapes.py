"""Names with control codes in them are shown by every command, and obeyed by the terminal in none."""

import contextlib
import gc
import gzip
import io
import json
import os
import pty
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tdbg import __main__, cli

CONTROLS = "".join(
    chr(code)
    for first, last in (
        (1, 0x1F),
        (0x7F, 0x9F),
        (0x200E, 0x200F),
        (0x2028, 0x202E),
        (0x2066, 0x2069),
        (0xE0001, 0xE0001),
    )
    for code in range(first, last + 1)
)
HOSTILE = f"x\x1b]0;PWN\x07\x1b[31m[bold]<b>{CONTROLS}\nFORGED"
FILE = HOSTILE.replace("/", "")
# What may stand in output that is no terminal's: text, line feeds and tabs.
OBEYED = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\u061c\u200e\u200f\u2028-\u202e\u2066-\u2069\ud800-\udfff\U000e0001]")
COLOURS = re.compile("\x1b\\[[0-9;]*m|\r(?=\n)|\x1b\\[[HJK]")

PROGRAM = """
import json, logging, threading, sys, torch
E = json.loads(sys.argv[1])
logging.basicConfig(level=logging.INFO)
class Bad(torch.nn.Module):
    def forward(self, x):
        return torch.sqrt(x - 100)
Bad.__name__ = Bad.__qualname__ = "Bad" + E
model = torch.nn.Sequential()
model.add_module("a" + E.replace(".", ""), torch.nn.Linear(4, 4))
model.add_module("b" + E.replace(".", ""), Bad())
class Opt(torch.optim.SGD):
    pass
Opt.__name__ = "Opt" + E
optimizer = Opt(model.parameters(), lr=0.1)
threading.current_thread().name = "main" + E
for step in range(4):
    optimizer.zero_grad()
    loss = model(torch.ones(8, 4)).pow(2).mean()
    loss.backward()
    optimizer.step()
    logging.getLogger("log" + E).error("loss %s " + E, loss.item())
error = type("Error" + E, (RuntimeError,), {})
raise error("boom " + E)
"""


@pytest.fixture(scope="module")
def hostile_run(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """A run in which everything that has a name has a hostile one, with pages, a trace, metrics and a log beside it."""
    base = tmp_path_factory.mktemp("hostile")
    script = base / f"{FILE}.py"
    script.write_text(PROGRAM)
    folder = base / f"run{FILE.replace(':', '')}"
    words = [sys.executable, "-m", "tdbg", "run", "--run-dir", str(folder), "--capture", "**:output"]
    words += ["-f", "MODEL_BUILD", "-f", "GRADIENTS", "-f", "OPTIMIZER", "--", sys.executable, str(script)]
    words += [json.dumps(HOSTILE), HOSTILE]
    env = {name: value for name, value in os.environ.items() if not name.startswith(("TDBG_", "SLURM_"))}
    done = subprocess.run(words, capture_output=True, cwd=base, env=env, timeout=120)
    trace = base / f"{FILE}.pt.trace.json.gz"
    events = [
        {
            "ph": "X",
            "cat": "user_annotation",
            "name": f"ProfilerStep#{at}",
            "pid": 1,
            "tid": 1,
            "ts": at * 100,
            "dur": 90,
        }
        for at in range(3)
    ]
    events += [
        {"ph": "X", "cat": cat, "name": f"op{HOSTILE}", "pid": 1, "tid": 1, "ts": at * 100 + 5, "dur": 40, "args": {}}
        for at in range(3)
        for cat in ("cpu_op", "user_annotation")
    ]
    events += [{"ph": "M", "name": "thread_name", "pid": 1, "tid": 1, "args": {"name": HOSTILE}}]
    document = {"schemaVersion": 1, "traceName": HOSTILE, "traceEvents": events}
    trace.write_bytes(gzip.compress(json.dumps(document).encode()))
    other = base / f"other{FILE}.pt.trace.json"
    other.write_text(json.dumps(document).replace('"dur": 40', '"dur": 80'))
    log = base / f"{FILE}.log"
    log.write_text(
        f"2026-11-20 03:06:40,000 - {HOSTILE.splitlines()[0]} - ERROR - [DEBUG_X\x1b[31m] loss\x7f nan\n" * 3
    )
    source = base / "source"
    source.mkdir()
    guard = f"import logging\nlog = logging.getLogger()\nif cfg.DEBUG.MY_OWN:\n    log.info({HOSTILE!r})\n"
    (source / f"{FILE}.py").write_text(guard)
    metrics = folder / "rank0000" / "metrics.jsonl"
    lines = [json.loads(line) for line in metrics.read_text().splitlines()]
    for line in lines[1:]:
        line["values"][f"train/{HOSTILE}"] = 1.5
        line["text"] = {f"text/{HOSTILE}": HOSTILE}
    metrics.write_text("".join(json.dumps(line) + "\n" for line in lines))
    return {
        "key": "step1",
        "stderr": done.stderr.decode("utf-8", "replace"),
        "code": done.returncode,
        "run": str(folder),
        "trace": str(trace),
        "other": str(other),
        "log": str(log),
        "source": str(source),
        "base": base,
    }


# What each command is given of the hostile run, beside the wrong words that every command is given.
GIVEN: dict[str, list[list[str]]] = {
    "run": [["--dry-run", "--", "./none{name}"], ["--", "./none{name}"]],
    "profile": [["--", "./none{name}"]],
    "report": [["{run}"], ["{run}", "--json"]],
    "stacks": [["{run}"], ["{run}", "--all"], ["{run}", "--json"]],
    "view": [["--routes"], ["{name}"]],
    "runs ls": [["{base}"], ["{base}", "--json"]],
    "runs upload": [["{run}"], ["{run}", "{name}"], ["{run}", "none://{name}"]],
    "runs prune": [["{base}", "--keep", "0", "--dry-run"], ["{name}", "--keep", "1"]],
    "join": [["{run}", "{name}", "-o", "{base}/joined{name}"], ["{run}", "{run}", "-o", "{base}/joined{name}"]],
    "status": [["{run}"], ["{run}", "--json"]],
    "trust": [["./none{name}"], ["--list"]],
    "control": [["{run}", "--level", "advanced"], ["{run}", "-f", "{name}"]],
    "filter-logs": [
        ["{log}", "--stats"],
        ["{log}", "--list-prefixes"],
        ["{log}", "--silent"],
        ["{log}", "--count"],
        ["{log}", "--format", "jsonl"],
        ["{run}", "--format", "jsonl"],
        ["{run}", "--silent"],
        ["{run}", "--stats"],
        ["{run}", "--stats", "--format", "jsonl"],
        ["{log}", "-f", "{name}"],
        ["{log}", "--level", "{name}"],
    ],
    "inspect-pages": [["{run}"], ["{run}", "--json"]],
    "inspect-pages ls": [["{run}"], ["{run}", "--json"]],
    "inspect-pages show": [["{run}", "{key}"], ["{run}", "{key}", "--json"], ["{run}", "{name}"]],
    "inspect-pages stats": [["{run}"], ["{run}", "--json"]],
    "inspect-pages find": [["{run}", "nan > 0"], ["{run}", "nan > 0", "--json"]],
    "inspect-pages diff": [["{run}", "{run}"], ["{run}", "{run}", "--json"]],
    "inspect-pages export": [["{run}", "csv", "-o", "{base}/out{name}"]],
    "inspect-pages html": [["{run}", "-o", "{base}/out{name}.html"]],
    "inspect-pages verify": [["{run}"], ["{run}", "--json"]],
    "inspect-pages recover": [["{run}"], ["{base}/{name}"]],
    "inspect-pages convert": [["{run}", "-o", "{base}/converted{name}"]],
    "inspect-pages upload": [["{run}", "{name}"]],
    "trace show": [["{trace}"], ["{trace}", "--json"]],
    "trace advise": [["{trace}"], ["{trace}", "--json"]],
    "trace flame": [["{trace}"], ["{trace}", "--json"]],
    "trace compare": [["{trace}", "{other}"], ["{trace}", "{other}", "--json"]],
    "trace slice": [["{trace}", "--step", "1", "-o", "{base}/slice{name}.json"]],
    "metrics show": [["{run}"], ["{run}", "--json"]],
    "metrics dump": [["{run}"], ["{run}", "--format", "json"]],
    "metrics plot": [["{run}"], ["{run}", "--json"]],
    "metrics compare": [["{run}", "{run}"], ["{run}", "{run}", "--json"]],
    "metrics sanity": [["{run}"], ["{run}", "--json"]],
    "flags list": [[]],
    "flags show": [["{name}"]],
    "flags scan": [["{source}"]],
    "flags doctor": [["{run}"], ["{run}", "--json"]],
    "explain": [["{name}"]],
    "doctor": [[], ["--json"]],
    "demo": [["--fault", "{name}"]],
    "completions install": [["--shell", "{name}"]],
    "completions remove": [["--shell", "{name}"]],
    "hook install": [["--python", "{name}"]],
    "hook remove": [["--python", "{name}"]],
    "docs": [["{name}"]],
}


def list_commands() -> Iterator[str]:
    """Every command and subcommand there is."""
    for entry in cli.COMMANDS:
        loaded = cli.load_parser(entry)
        names = list(getattr(loaded, "commands", {}))
        if not names or entry.name == "inspect-pages":  # a bare one lists
            yield entry.name
        yield from (f"{entry.name} {name}" for name in names)


def call_command(words: list[str], capfd: pytest.CaptureFixture[str]) -> tuple[int, str, str]:
    """Exit code, stdout and stderr of one command line, in this process."""
    capfd.readouterr()
    before, thresholds = sys.argv, gc.get_threshold()
    sys.argv = ["tdbg", *words]
    try:
        code = __main__.main()
    finally:
        sys.argv = before
        # A process of its own ends here; this one goes on, and its next tests search what is in memory.
        gc.unfreeze()
        gc.set_threshold(*thresholds)
    sys.stdout.flush()
    told = capfd.readouterr()
    return code, told.out, told.err


def fill_placeholders(words: list[str], run: dict[str, Any]) -> list[str]:
    names = {
        "{run}": run["run"],
        "{trace}": run["trace"],
        "{log}": run["log"],
        "{name}": FILE,
        "{key}": run["key"],
        "{other}": run["other"],
    }
    names |= {"{base}": str(run["base"]), "{source}": run["source"]}
    return [re.sub(r"\{\w+\}", lambda found: names[found[0]], word) for word in words]


def assert_escaped(words: list[str], out: str, err: str) -> None:
    """Nothing that a terminal obeys, no line that a name forged, JSON that holds the names."""
    for what in (out, err):
        found = OBEYED.search(what)
        assert not found, (words, what[max(found.start() - 80, 0) : found.end() + 80])
        assert not re.search("^(tdbg: )? ?FORGED", what, re.MULTILINE), (words, what)
    assert "Traceback (most recent call last)" not in err and "tdbg itself failed" not in err, (words, err)
    if "--json" in words and out:
        json.loads(out)
    if "jsonl" in words:
        assert all(json.loads(line) for line in out.splitlines())


@pytest.mark.parametrize("name", list_commands())
def test_no_control_code_reaches_the_terminal(
    name: str, hostile_run: dict[str, Any], capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(hostile_run["base"])
    assert name in GIVEN, f"{name} is a new command: say in GIVEN what of the hostile run it is given"
    for given in GIVEN[name]:
        words = [*name.split(), *fill_placeholders(given, hostile_run)]
        code, out, err = call_command(words, capfd)
        assert code in (0, 1, 2, 127), (words, err)
        assert out or err, words
        assert_escaped(words, out, err)
    for wrong in ([f"--{HOSTILE}"], [f"./no{HOSTILE}", f"./no{HOSTILE}"]):
        if name.split()[0] in ("run", "profile", "demo", "doctor") and not wrong[0].startswith("--"):
            continue  # these take no path, or would start it
        code, out, err = call_command([*name.split(), *wrong], capfd)
        assert code in (0, 1, 2), (name, wrong, err)
        assert_escaped([name, *wrong], out, err)


def test_the_lines_of_a_run_and_its_verdict_are_clean(hostile_run: dict[str, Any]) -> None:
    """The program's own traceback is the program's; every line of ours is clean, and none is the work of a name."""
    ours = [line for line in hostile_run["stderr"].split("\n") if line.startswith("tdbg: ")]
    assert len(ours) > 8 and any("TD-N001" in line for line in ours), hostile_run["stderr"]
    for line in ours:
        assert not OBEYED.search(line), line
    assert not any(line.startswith("tdbg: FORGED") for line in ours), ours
    assert any("\\u001b]0;PWN" in line for line in ours)


def test_tdbgs_own_log_of_a_rank_is_clean(hostile_run: dict[str, Any]) -> None:
    """`less` and `tail -f` show it too."""
    (log,) = Path(hostile_run["run"]).glob("rank0000/debug_log_rank0.txt")
    text = log.read_text(encoding="utf-8", errors="surrogateescape")
    assert "PWN" in text and not OBEYED.search(text)


def test_names_survive_in_json(hostile_run: dict[str, Any], capfd: pytest.CaptureFixture[str]) -> None:
    code, out, _ = call_command(["report", hostile_run["run"], "--json"], capfd)
    assert code == 0 and "\x1b" not in out
    data = json.loads(out)["data"]
    assert data["run"] == hostile_run["run"]
    assert any(
        "\x1b]0;PWN\x07" in json.dumps(finding, ensure_ascii=False) or "\\u001b]0;PWN" in json.dumps(finding)
        for finding in data["findings"]
    )


@pytest.mark.parametrize(
    "words",
    [
        ["report", "{run}"],
        ["status", "{run}"],
        ["metrics", "show", "{run}"],
        ["inspect-pages", "ls", "{run}"],
        ["trace", "show", "{trace}"],
    ],
)
def test_on_a_terminal_there_are_tdbgs_own_colours_alone(words: list[str], hostile_run: dict[str, Any]) -> None:
    """rich, which draws the tables there, passes control codes of the cells on, and may take [bold] for its own."""
    leader, follower = pty.openpty()
    done = subprocess.Popen(
        [sys.executable, "-m", "tdbg", *fill_placeholders(words, hostile_run)],
        stdin=subprocess.DEVNULL,
        stdout=follower,
        stderr=follower,
        env={**os.environ, "TERM": "xterm-256color", "COLUMNS": "400"},
    )
    os.close(follower)
    told = io.BytesIO()
    with contextlib.suppress(OSError), open(leader, "rb", buffering=0) as file:
        while piece := file.read(1 << 16):
            told.write(piece)
    assert done.wait(timeout=60) == 0
    text = told.getvalue().decode("utf-8", "surrogateescape")
    assert "PWN" in text and "[bold]" in text.replace("\r\n", "")
    bare = COLOURS.sub("", text)
    assert not OBEYED.search(bare), OBEYED.search(bare)


def test_every_command_is_in_the_table() -> None:
    assert set(list_commands()) == set(GIVEN)
