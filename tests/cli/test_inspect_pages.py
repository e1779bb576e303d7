"""`tdbg inspect-pages` as a user calls it."""

import json
import os
import pty
import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

from tests.pages.samples import make_item, write_run

ROOT = Path(__file__).parents[2]
PAGE = ROOT / "docs" / "inspect-pages.md"
ENV = {**os.environ, "PYTHONPATH": str(ROOT)}
READING = ("ls", "show", "stats", "find", "verify", "recover")


def run_inspect_pages(*words: str, cwd: Path, **more: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "tdbg", "inspect-pages", *words]
    return subprocess.run(
        command, cwd=cwd, env={**ENV, **more}, capture_output=True, text=True, timeout=60, check=False, encoding="utf-8"
    )


@pytest.fixture
def pages_folder(tmp_path: Path) -> Path:
    write_run(tmp_path / "run")
    return tmp_path


def test_a_path_alone_lists(pages_folder: Path) -> None:
    done = run_inspect_pages("run", cwd=pages_folder)
    assert done.returncode == 0 and done.stdout.startswith("8 datapoints, 23 tensors")
    assert done.stdout == run_inspect_pages("ls", "run", cwd=pages_folder).stdout
    by_parser = run_inspect_pages("run", "--datapoints", "--no-such", cwd=pages_folder)
    assert by_parser.returncode == 2 and "no such option: --no-such" in by_parser.stderr


def test_the_path_may_stand_before_the_command(pages_folder: Path) -> None:
    for words in (("ls", "run", "--datapoints"), ("verify", "run"), ("show", "run", "1")):
        command, path, *others = words
        done = run_inspect_pages(path, command, *others, cwd=pages_folder)
        other = run_inspect_pages(*words, cwd=pages_folder)
        assert (done.returncode, done.stdout, done.stderr) == (0, other.stdout, other.stderr)


def test_help_shows_both_orders(pages_folder: Path) -> None:
    done = run_inspect_pages("--help", cwd=pages_folder)
    said = " ".join(done.stdout.split())
    assert done.returncode == 0
    assert "The path may come before or after the command: RUN show KEY is the same as show RUN KEY." in said
    assert "tdbg inspect-pages tdbg_runs/20261121-031500-train stats" in said
    for words in (("run", "show", "1"), ("show", "run", "1")):
        assert (
            run_inspect_pages(*words, cwd=pages_folder).stdout
            == run_inspect_pages("show", "1", "run", cwd=pages_folder).stdout
            != ""
        )


def test_a_word_that_is_neither_command_nor_path_is_said_to_be_neither(pages_folder: Path) -> None:
    assert "'rnu' is neither a command nor a path" in run_inspect_pages("rnu", cwd=pages_folder).stderr
    assert "no such command 'sho'. Did you mean 'show'?" in run_inspect_pages("sho", "1", cwd=pages_folder).stderr


def test_a_selection_that_leaves_nothing_tells_what_there_is(pages_folder: Path) -> None:
    for words in (("ls", "run"), ("show", "run", "1")):
        told = run_inspect_pages(*words, "--phase", "trian", cwd=pages_folder).stderr
        assert "there are: ranks 0 to 1, steps 0 to 3, epochs 0 to 1, phase train, eval" in told


def test_a_terminal_without_unicode_gets_escapes(tmp_path: Path) -> None:
    from tdbg.pages.format.page_writer import PageWriter

    with PageWriter(tmp_path / "pages") as writer:
        writer.add("日本", [make_item("ü:output", [1.0])])
    for words in (("ls", "pages", "--datapoints"), ("pages", "--phase=")):
        done = run_inspect_pages(*words, cwd=tmp_path, PYTHONIOENCODING="ascii")
        assert done.returncode == 0 and done.stderr == ""
        assert ("\\u65e5\\u672c" if "ls" in words else "\\xfc:output") in done.stdout


def test_the_newest_run_is_meant_where_none_is_named(pages_folder: Path) -> None:
    runs = pages_folder / "tdbg_runs"
    for name in ("20261120-000000-a", "20261121-000000-b"):
        (runs / name).mkdir(parents=True)
        (runs / name / "run.json").write_text("{}")
    write_run(runs / "20261121-000000-b")
    done = run_inspect_pages("show", "2/labels", cwd=pages_folder)
    assert done.returncode == 0 and "3 values" in done.stdout
    assert run_inspect_pages(cwd=pages_folder).stdout == run_inspect_pages("ls", cwd=pages_folder).stdout != ""
    (pages_folder / "2").mkdir()  # a folder of the same name is no key
    assert run_inspect_pages("show", "2", cwd=pages_folder).returncode == 0


@pytest.mark.parametrize(
    ("words", "code"),
    [
        (("ls", "run"), 0),
        (("ls", "run", "--ranks", "9"), 1),
        (("ls", "nowhere"), 2),
        (("ls", "run", "run"), 2),
        (("ls", "run", "--ranks", "x"), 2),
        (("show", "run", "1"), 0),
        (("show", "run", "99"), 1),
        (("show", "run", "1/nope"), 1),
        (("show", "run"), 2),
        (("show",), 2),
        (("stats", "run"), 0),
        (("stats", "run", "--layer", "nope"), 1),
        (("find", "run", "nan > 0"), 0),
        (("find", "run", "nan > 9"), 1),
        (("find", "run", "nonsense"), 2),
        (("find", "run", "--", "nan > 0"), 0),
        (("verify", "run"), 0),
        (("recover", "run"), 0),
        (("verify", "nowhere"), 2),
        (("ls",), 2),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, tuple) else str(value),
)
def test_exit_codes_and_no_traceback(pages_folder: Path, words: tuple[str, ...], code: int) -> None:
    done = run_inspect_pages(*words, cwd=pages_folder)
    assert done.returncode == code
    assert "Traceback" not in done.stderr and "tdbg itself failed" not in done.stderr
    assert all(line.startswith("tdbg: ") for line in done.stderr.splitlines())
    if code == 2:
        assert done.stdout == "" and len(done.stderr.splitlines()) == 2


def test_the_quick_reader_of_options_and_the_whole_one_agree(pages_folder: Path) -> None:
    for words in (["ls", "run", "--rank", "1", "--datapoints"], ["show", "run", "1/conv", "--slice", "0,:,1"]):
        code = "import sys; from tdbg import cli; sys.exit(cli.main(['inspect-pages', *sys.argv[1:]]))"
        whole = subprocess.run(
            [sys.executable, "-c", code, *words], cwd=pages_folder, env=ENV, capture_output=True, text=True, check=True
        )
        assert run_inspect_pages(*words, cwd=pages_folder).stdout == whole.stdout != ""


FACTS = ("dropped", " fit", "on several ranks")  # said whether anybody reads the output or not


@pytest.mark.parametrize("words", ["ls run --datapoints", "show run 1", "stats run", "find run 'count > 0'"])
def test_a_closed_pipe_is_quiet(pages_folder: Path, words: str) -> None:
    line = f"{sys.executable} -m tdbg inspect-pages {words} 2>err | true; echo ${{PIPESTATUS[0]}}"
    piped = subprocess.run(["bash", "-c", line], cwd=pages_folder, env=ENV, capture_output=True, text=True, check=True)
    said = (pages_folder / "err").read_text().splitlines()
    assert piped.stdout == "0\n" and piped.stderr == ""
    assert [line for line in said if not any(word in line for word in FACTS)] == []


def list_loaded_modules(folder: Path, *words: str) -> set[str]:
    command = [sys.executable, "-X", "importtime", "-m", "tdbg", "inspect-pages", *words]
    done = subprocess.run(command, cwd=folder, env=ENV, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr[-500:]
    return {line.rpartition("|")[2].strip() for line in done.stderr.splitlines()}


@pytest.mark.parametrize(
    "words", ["ls run", "run --datapoints", "show run 1", "show run 1/conv:output", "ls run --json"]
)
def test_what_must_be_quick_loads_nothing_heavy(pages_folder: Path, words: str) -> None:
    found = list_loaded_modules(pages_folder, *words.split())
    heavy = {"torch", "numpy", "rich", "typer", "yacs", "wandb", "dataclasses", "msgspec", "tdbg.cli.parser", "difflib"}
    assert not found & heavy and "tdbg.pages.read.page_set" in found


@pytest.mark.parametrize(
    "words", ["stats run", "find run 'nan > 0'", "verify run", "recover run", "stats run --group-by loss"]
)
def test_none_loads_torch(pages_folder: Path, words: str) -> None:
    assert not list_loaded_modules(pages_folder, *shlex.split(words)) & {
        "torch",
        "rich",
        "typer",
        "safetensors",
        "pandas",
    }


def run_on_terminal(folder: Path, line: str, **more: str) -> tuple[str, str]:
    """What a terminal gets on stdout and on stderr."""
    streams = []
    command = [sys.executable, "-m", "tdbg", "inspect-pages", *shlex.split(line)]
    pairs = [pty.openpty(), pty.openpty()]
    env = {key: value for key, value in ENV.items() if key not in ("NO_COLOR", "TMUX", "COLORTERM", "TERM_PROGRAM")}
    child = subprocess.Popen(
        command, cwd=folder, env={**env, "TERM": "xterm-256color", **more}, stdout=pairs[0][1], stderr=pairs[1][1]
    )
    for mine, theirs in pairs:
        os.close(theirs)
        parts = []
        while True:
            try:
                part = os.read(mine, 1 << 16)
            except OSError:  # how Linux says that the other end is closed
                break
            if not part:
                break
            parts.append(part)
        os.close(mine)
        streams.append(b"".join(parts).decode().replace("\r\n", "\n"))
    assert child.wait(30) == 0
    return streams[0], streams[1]


def test_on_a_terminal_tables_have_columns_and_pictures_colours(pages_folder: Path) -> None:
    listed, _ = run_on_terminal(pages_folder, "ls run", COLUMNS="120")
    head, first = listed.splitlines()[1:3]
    assert "\t" not in listed and head.startswith("\x1b[1mpath") and first.startswith("conv:output  float32  (3, 4, 4)")
    shown, said = run_on_terminal(pages_folder, "show run 1/conv:output")
    assert "\x1b[38;5;" in shown and "▀" in shown and said == ""
    assert "\x1b[38;2;" in run_on_terminal(pages_folder, "show run 1/conv:output", COLORTERM="truecolor")[0]
    assert "\x1b" not in run_on_terminal(pages_folder, "show run 1/conv:output", NO_COLOR="1")[0]


def test_real_pixels_go_to_terminals_that_take_them(pages_folder: Path) -> None:
    kitty, iterm, sixel = "\x1b_Ga=T", "\x1b]1337;File=", "\x1bPq"
    assert kitty in run_on_terminal(pages_folder, "show run 1/conv:output", TERM="xterm-kitty")[0]
    assert iterm in run_on_terminal(pages_folder, "show run 1/conv:output", TERM_PROGRAM="iTerm.app")[0]
    assert sixel in run_on_terminal(pages_folder, "show run 1/conv:output", TERM="foot")[0]
    never = run_on_terminal(pages_folder, "show run 1/conv:output --image never", TERM="xterm-kitty")[0]
    piped = run_inspect_pages("show", "run", "1/conv:output", cwd=pages_folder, TERM="xterm-kitty").stdout
    assert kitty not in never + piped and "\x1b" not in piped
    assert kitty in run_inspect_pages("show", "run", "1/conv:output", "--image", "kitty", cwd=pages_folder).stdout


def test_where_letters_have_no_bars(pages_folder: Path) -> None:
    done = run_inspect_pages(
        "show", "run", "1/conv:output", cwd=pages_folder, PYTHONIOENCODING="latin-1", PYTHONUTF8="0"
    )
    assert done.returncode == 0 and done.stdout.isascii()


def test_progress_is_for_terminals(pages_folder: Path) -> None:
    code = (
        "from tdbg.pages import progress_bar; progress_bar.SILENT_S = 0.0; progress_bar.EVERY_S = 0.0\n"
        "import sys; from tdbg.cli import main; main(['inspect-pages', *sys.argv[1:]])"
    )
    words = ["stats", "run"]
    piped = subprocess.run(
        [sys.executable, "-c", code, *words], cwd=pages_folder, env=ENV, capture_output=True, text=True
    )
    assert "\r" not in piped.stderr
    mine, theirs = pty.openpty()
    subprocess.run(
        [sys.executable, "-c", code, *words],
        cwd=pages_folder,
        env=ENV,
        stdout=subprocess.DEVNULL,
        stderr=theirs,
        check=True,
    )
    os.close(theirs)
    said = os.read(mine, 1 << 16).decode()
    os.close(mine)
    assert "stats: [" in said and "GB/s" in said and "\r\x1b[K" in said


def test_json_is_strict_and_named(pages_folder: Path) -> None:
    kinds = {
        "ls run": "pages-list",
        "show run 1": "pages-datapoint",
        "stats run": "pages-stats",
        "find run 'nan > 0'": "pages-find",
        "verify run": "pages-verify",
        "recover run": "pages-recover",
    }
    for line, kind in kinds.items():
        done = run_inspect_pages(*shlex.split(line), "--json", cwd=pages_folder)
        found = json.loads(done.stdout, parse_constant=lambda word: pytest.fail(f"{word} is no JSON"))
        assert found["kind"] == kind and found["version"] == 1 and list(found) == ["kind", "version", "data"]


def test_reading_changes_nothing(pages_folder: Path) -> None:
    def state() -> list[tuple[str, int, int]]:
        found = sorted(pages_folder.rglob("*"))
        return [(str(path), path.stat().st_mtime_ns, path.stat().st_size) for path in found]

    before = state()
    for line in ("ls run", "show run 1", "stats run", "find run 'nan > 0'", "verify run", "recover run"):
        run_inspect_pages(*shlex.split(line), cwd=pages_folder)
    assert state() == before


@pytest.mark.parametrize("name", READING)
def test_help_of_each(pages_folder: Path, name: str) -> None:
    done = run_inspect_pages(name, "--help", cwd=pages_folder)
    assert done.returncode == 0 and f"Usage: tdbg inspect-pages {name}" in done.stdout and "Examples:" in done.stdout


# the page


def list_page_commands() -> list[str]:
    text = PAGE.read_text(encoding="utf-8")
    lines = [
        line.partition("  #")[0].strip()
        for part in re.findall(r"```\n(.*?)```", text, re.S)
        for line in part.splitlines()
    ]
    reading = [line for line in lines if line.startswith("tdbg inspect-pages") and line.split()[2] in READING]
    return [line for line in reading if "://" not in line]  # those are tests/pages/read/test_remote_store.py's


@pytest.fixture(scope="module")
def documented_run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The run that the page speaks of."""
    from tdbg.pages.format.page_writer import PageWriter

    folder = tmp_path_factory.mktemp("docs")
    runs = folder / "tdbg_runs" / "20261121-031500-train"
    for rank in (0, 3):
        with PageWriter(runs / f"rank{rank:04d}" / "pages", rank=rank, world_size=4) as writer:
            for key in range(10, 20):
                numbers = [float((key * at) % 37) for at in range(4 * 8 * 8)]
                items = [
                    make_item("layers.4.attn:output", numbers, (4, 8, 8)),
                    make_item("layers.5:output", numbers[:64], (8, 8)),
                ]
                if key == 17:
                    items.append(make_item("layers.6:output", [float("nan"), 1.0]))
                writer.add(key, items, step=10 * key, epoch=key % 2, phase="train", scalars={"loss": key / 2})
    (runs / "run.json").write_text("{}")
    (folder / "failed.csv").write_text("key,score\n" + "".join(f"{key},{key % 2}\n" for key in range(10, 20)))
    return folder


def test_the_page_has_commands() -> None:
    found = list_page_commands()
    assert {line.split()[2] for line in found} == set(READING)


@pytest.mark.parametrize("line", list_page_commands() if PAGE.exists() else [])
def test_every_command_of_the_page_works(documented_run: Path, line: str) -> None:
    done = run_inspect_pages(*shlex.split(line)[2:], cwd=documented_run)
    assert done.returncode == 0, done.stderr
    assert done.stdout or "verify" in line or "recover" in line
