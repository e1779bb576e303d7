"""`tdbg filter-logs` as a user calls it."""

import gzip
import subprocess
import sys
from pathlib import Path

import pytest

from tests.logs.test_filter import make_records


def run_filter_logs(*words: str, cwd: Path, stdin: bytes = b"") -> subprocess.CompletedProcess[bytes]:
    command = [sys.executable, "-m", "tdbg", "filter-logs", *words]
    return subprocess.run(command, cwd=cwd, input=stdin, capture_output=True, timeout=60, check=False)


@pytest.fixture
def log_file(tmp_path: Path) -> Path:
    path = tmp_path / "debug_log_rank0.txt"
    path.write_bytes(b"".join(make_records(60)))
    return path


def test_a_flag_brings_its_records_whole(log_file: Path) -> None:
    done = run_filter_logs(log_file.name, "-f", "FORWARD", cwd=log_file.parent)
    expected = b"".join(r for r in make_records(60) if b" [DEBUG_FORWARD] " in r.splitlines()[0])
    assert (done.returncode, done.stdout, done.stderr) == (0, expected, b"")
    inverted = run_filter_logs(log_file.name, "-f", "FORWARD", "-v", cwd=log_file.parent)
    assert len(inverted.stdout) + len(expected) == log_file.stat().st_size


def test_stdin_and_a_file_give_the_same(log_file: Path) -> None:
    from_stdin = run_filter_logs(
        "-", "--level", "ERROR", "--steps", "1:40", cwd=log_file.parent, stdin=log_file.read_bytes()
    )
    from_file = run_filter_logs(log_file.name, "--level", "ERROR", "--steps", "1:40", cwd=log_file.parent)
    assert from_stdin.returncode == 0 and from_stdin.stdout == from_file.stdout != b""


def test_count_and_nothing_found(log_file: Path) -> None:
    assert run_filter_logs(log_file.name, "--count", "-f", "LR", cwd=log_file.parent).stdout == b"12\n"
    nothing = run_filter_logs(log_file.name, "-e", "nowhere", cwd=log_file.parent)
    assert (nothing.returncode, nothing.stdout, nothing.stderr) == (1, b"", b"tdbg: no record matches\n")
    flag = run_filter_logs(log_file.name, "-f", "MEMORY", cwd=log_file.parent)
    assert (flag.returncode, flag.stdout) == (1, b"") and b"add --map map.toml" in flag.stderr


@pytest.mark.parametrize(
    ("words", "what", "next_"),
    [
        (("nowhere.log",), "there is no nowhere.log", "name a log file"),
        (("debug_log_rank0.txt", "-f", "FORWRD"), "no flag is named 'FORWRD'", "did you mean FORWARD?"),
        (("debug_log_rank0.txt", "-e", "("), "--regex '('", "regular expression"),
        (("debug_log_rank0.txt", "--level", "LOUD"), "no log level 'LOUD'", "known: "),
        (("debug_log_rank0.txt", "--ranks", "x"), "ranks cannot be 'x'", "numbers and ranges"),
        (("debug_log_rank0.txt", "-o", "debug_log_rank0.txt"), "is one of the logs that are read", "choose another"),
        (("debug_log_rank0.txt", "-t", "most"), "--type cannot be 'most'", "debug, info or both"),
    ],
)
def test_wrong_use_is_two_lines_and_exit_2(log_file: Path, words: tuple[str, ...], what: str, next_: str) -> None:
    before = log_file.read_bytes()
    done = run_filter_logs(*words, cwd=log_file.parent)
    first, second = done.stderr.decode().splitlines()
    assert done.returncode == 2 and done.stdout == b"" and what in first and next_ in second
    assert log_file.read_bytes() == before


def test_an_output_file_and_a_closed_pipe(log_file: Path) -> None:
    done = run_filter_logs(log_file.name, "-o", "kept.txt", "-f", "FORWARD", cwd=log_file.parent)
    assert done.returncode == 0 and done.stdout == b""
    assert (log_file.parent / "kept.txt").read_bytes() == run_filter_logs(
        log_file.name, "-f", "FORWARD", cwd=log_file.parent
    ).stdout
    line = f"{sys.executable} -m tdbg filter-logs {log_file.name} | head -1 > /dev/null; echo ${{PIPESTATUS[0]}}"
    piped = subprocess.run(
        ["bash", "-c", line], cwd=log_file.parent, capture_output=True, text=True, timeout=60, check=True
    )
    assert (piped.stdout, piped.stderr) == ("0\n", "")


def test_no_torch_is_loaded(log_file: Path) -> None:
    code = (
        "import sys; from tdbg import cli; cli.main(['filter-logs', sys.argv[1], '--count']);"
        " print(sorted({'torch', 'numpy', 'rich', 'yacs', 'wandb'} & set(sys.modules)))"
    )
    done = subprocess.run([sys.executable, "-c", code, str(log_file)], capture_output=True, text=True, check=True)
    assert done.stdout == "60\n[]\n"


def test_a_damaged_gz_gives_what_it_holds_and_says_so(log_file: Path) -> None:
    packed = gzip.compress(log_file.read_bytes())
    (log_file.parent / "cut.log.gz").write_bytes(packed[: len(packed) // 2])
    done = run_filter_logs("cut.log.gz", cwd=log_file.parent)
    assert done.returncode == 2 and done.stdout and log_file.read_bytes().startswith(done.stdout)
    first, second = done.stderr.decode().splitlines()
    assert "cut.log.gz is damaged" in first and "before the damage" in second


def test_a_map_finds_the_lines_that_do_not_carry_the_flag_s_name(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(
        "if cfg.DEBUG.LOSS.NULL_MASKING:\n    log.info('%d targets have no label', n)\n    log.info('[NULLS] mask')\n"
        "if cfg.DEBUG.OWN.THING:\n    log.info('a thing of ours: %s', x)\n"
    )
    head = "2026-11-20 03:06:40,123 INFO train: "
    mine = [f"{head}17 targets have no label\n    tail\n", f"{head}[NULLS] mask\n", f"{head}[DEBUG_NULL_MASKING_X] y\n"]
    (tmp_path / "a.log").write_text(
        "".join([f"{head}step 1\n", *mine, f"{head}a thing of ours: 3\n", f"{head}step 2\n"])
    )
    scan = [sys.executable, "-m", "tdbg", "flags", "scan", ".", "-o", "map.toml"]
    assert subprocess.run(scan, cwd=tmp_path, capture_output=True, check=False).returncode == 0
    found = run_filter_logs("a.log", "-f", "LOSS.NULL_MASKING", "--map", "map.toml", cwd=tmp_path)
    assert (found.returncode, found.stdout.decode()) == (0, "".join(mine))
    own = run_filter_logs("a.log", "-f", "OWN.THING", "--map", "map.toml", cwd=tmp_path)
    assert own.stdout.decode() == f"{head}a thing of ours: 3\n"
    rest = run_filter_logs("a.log", "-x", "LOSS", "--map", "map.toml", cwd=tmp_path)
    assert rest.stdout.decode().count("\n") == 3 and "label" not in rest.stdout.decode()
    unknown = run_filter_logs("a.log", "-f", "OWN.THING", cwd=tmp_path)
    assert unknown.returncode == 2 and b"no flag is named" in unknown.stderr
    missing = run_filter_logs("a.log", "-f", "LOSS", "--map", "none.toml", cwd=tmp_path)
    assert missing.returncode == 2 and b"none.toml" in missing.stderr


def test_it_loads_nothing_heavy(log_file: Path) -> None:
    words = [sys.executable, "-X", "importtime", "-m", "tdbg", "filter-logs", log_file.name, "-f", "FORWARD"]
    done = subprocess.run(words, cwd=log_file.parent, capture_output=True, text=True, check=True)
    loaded = {line.rpartition("|")[2].strip() for line in done.stderr.splitlines()}
    assert not loaded & {
        "torch",
        "numpy",
        "rich",
        "yacs",
        "wandb",
        "typer",
        "dataclasses",
        "pathlib",
        "msgspec",
        "tdbg.cli.parser",
    }
    assert "tdbg.logs.engine" in loaded


def test_a_named_pipe_is_read_once_and_whole(tmp_path: Path) -> None:
    text = "".join(f"2026-11-20 03:06:40,123 INFO t: {n}\n" for n in range(30_000))
    (tmp_path / "a.log").write_text(text)
    (tmp_path / "a.log.gz").write_bytes(gzip.compress(text.encode()))
    for inner in ("cat a.log", "cat a.log.gz"):
        for view, expected in (("", text), ("-e 9999", text.splitlines(keepends=True)[9999]), ("--count", "30000\n")):
            line = f"{sys.executable} -m tdbg filter-logs <({inner}) {view}"
            done = subprocess.run(["bash", "-c", line], cwd=tmp_path, capture_output=True, text=True, check=False)
            assert (done.returncode, done.stdout.startswith(expected)) == (0, True), (line, done.stderr)
            assert view or done.stdout == text
    packed = subprocess.run(
        [sys.executable, "-m", "tdbg", "filter-logs", "-"],
        input=(tmp_path / "a.log.gz").read_bytes(),
        capture_output=True,
        check=False,
    )
    assert packed.stdout.decode() == text


def test_what_a_pipe_cannot_give(log_file: Path) -> None:
    twice = run_filter_logs("-", "--diverge", cwd=log_file.parent, stdin=log_file.read_bytes())
    assert twice.returncode == 2 and b"reads its logs twice" in twice.stderr
    line = f"{sys.executable} -m tdbg filter-logs - <&-"
    closed = subprocess.run(["bash", "-c", line], capture_output=True, check=False)
    assert closed.returncode == 2 and closed.stderr.startswith(b"tdbg: stdin is closed\n")


def test_bytes_that_are_no_text_on_the_command_line(tmp_path: Path) -> None:
    (tmp_path / "a.log").write_bytes(b"2026-11-20 03:06:40,123 INFO t: caf\xe9\n2026-11-20 03:06:41,123 INFO t: b\n")
    words: list[str | bytes] = [sys.executable, "-m", "tdbg", "filter-logs", "a.log", "-e", b"caf\xe9"]
    done = subprocess.run(words, cwd=tmp_path, capture_output=True, check=False)
    assert (done.returncode, done.stdout.count(b"\n")) == (0, 1)
