"""The command line as a whole: the table, help, failures and exit codes."""

import subprocess
import sys
import types
from pathlib import Path

import pytest
import typer

from tdbg import __version__, cli
from tdbg.core.command_spec import Args, Argument, Command, Option
from tdbg.core.errors import CommandNotFoundError, LaunchError, TdbgError

GOLDEN = Path(__file__).parents[1] / "golden"


def run_tdbg(*words: str, **more) -> subprocess.CompletedProcess[str]:
    return subprocess.run([sys.executable, "-m", "tdbg", *words], capture_output=True, text=True, timeout=60, **more)


@pytest.fixture
def install_command(monkeypatch):
    """Put a function into the command line under the name `probe`."""

    def install_probe(function, args=Args, options=None, argument=None, **more):
        module = types.ModuleType("tdbg.cli.probe")
        module.COMMAND = Command(function, args, "Probe.", options or {}, argument, **more)
        monkeypatch.setitem(sys.modules, "tdbg.cli.probe", module)
        monkeypatch.setattr(cli, "COMMANDS", (*cli.COMMANDS, cli.Entry("probe", "Probe.")))

    return install_probe


def make_raising(error: BaseException):
    def raise_given(args: Args) -> int:
        raise error

    return raise_given


@pytest.mark.parametrize("entry", cli.COMMANDS, ids=lambda entry: entry.name)
def test_help_begins_with_the_summary_of_the_table(entry):
    assert (cli.load_parser(entry).help or "").splitlines()[0] == entry.summary


@pytest.mark.parametrize("entry", cli.COMMANDS, ids=lambda entry: entry.name)
def test_every_command_prints_its_page(entry, capsys):
    assert cli.main([entry.name, "--help"]) == 0
    out, err = capsys.readouterr()
    assert out.startswith(f"Usage: tdbg {entry.name} ") and entry.summary in " ".join(out.split()) and not err


def test_summaries_fit_one_line():
    assert all(len(entry.summary) <= 70 for entry in cli.COMMANDS)


def test_no_arguments_print_the_help(capsys):
    assert cli.main([]) == 0
    bare = capsys.readouterr().out
    assert cli.main(["--help"]) == 0
    assert bare == capsys.readouterr().out and "Commands:\n  run " in bare and "docs" not in bare


def test_version(capsys):
    assert cli.main(["--version"]) == 0
    assert capsys.readouterr().out == f"tdbg {__version__}\n"


def test_wrong_use_is_told_as_the_golden_file_says():
    text = (GOLDEN / "wrong_use.txt").read_text(encoding="utf-8")
    cases = [block.split("\n", 1) for block in text.strip().split("\n\n")]
    found = []
    for line, _expected in cases:
        done = run_tdbg(*line.removeprefix("$ tdbg").split())
        assert done.stdout == ""
        found.append(f"{line}\n{done.stderr}exit {done.returncode}")
    assert "\n\n".join(found) + "\n" == text


@pytest.mark.parametrize(
    ("error", "code"),
    [(TdbgError("w", "h"), 2), (LaunchError("w", "h"), 125), (CommandNotFoundError("w", "h"), 127)],
)
def test_a_failure_is_two_lines_and_its_code(install_command, capsys, error, code):
    install_command(make_raising(error))
    assert cli.main(["probe"]) == code
    assert capsys.readouterr() == ("", "tdbg: w\ntdbg: h\n")


def test_a_failure_with_line_breaks_stays_two_lines(install_command, capsys):
    install_command(make_raising(TdbgError("first\nsecond", "do\nthis")))
    assert cli.main(["probe"]) == 2
    assert capsys.readouterr().err == "tdbg: first second\ntdbg: do this\n"


def test_a_bug_is_told_without_a_traceback(install_command, capsys, monkeypatch):
    monkeypatch.delenv("TDBG_DEBUG", raising=False)
    install_command(make_raising(KeyError("x")))
    assert cli.main(["probe"]) == 2
    err = capsys.readouterr().err.splitlines()
    assert len(err) == 2 and err[0] == "tdbg: tdbg itself failed: KeyError: 'x'" and "TDBG_DEBUG=1" in err[1]


def test_the_traceback_comes_with_tdbg_debug(install_command, capsys, monkeypatch):
    monkeypatch.setenv("TDBG_DEBUG", "1")
    install_command(make_raising(TdbgError("w", "h")))
    assert cli.main(["probe"]) == 2
    err = capsys.readouterr().err
    assert "Traceback (most recent call last)" in err and err.endswith("tdbg: w\ntdbg: h\n")
    assert all(line.startswith("tdbg: ") for line in err.splitlines())


def test_an_unreadable_file_is_named(install_command, capsys):
    install_command(make_raising(PermissionError(13, "Permission denied", "/some/file")))
    assert cli.main(["probe"]) == 2
    assert capsys.readouterr().err.startswith("tdbg: /some/file: Permission denied\n")


@pytest.mark.parametrize("error", [KeyboardInterrupt(), typer.Abort()])
def test_ctrl_c_is_130(install_command, capsys, error):
    install_command(make_raising(error))
    assert cli.main(["probe"]) == 130
    assert capsys.readouterr() == ("", "")


@pytest.mark.parametrize(("value", "code"), [(None, 0), (0, 0), (1, 1), (7, 7)])
def test_what_a_command_returns_is_the_exit_code(install_command, value, code):
    def function(args: Args) -> int | None:
        return value

    install_command(function)
    assert cli.main(["probe"]) == code


@pytest.mark.parametrize(
    ("typed", "flag", "words"),
    [
        ("-- python x.py --level y", [], "python x.py --level y"),
        ("python x.py --help -f z", [], "python x.py --help -f z"),
        ("-f A --flag=B -- echo -f", ["A", "B"], "echo -f"),
        ("-f A echo -- -f", ["A"], "echo -- -f"),
        ("-fA -- -x", ["A"], "-x"),
        ("-- echo --", [], "echo --"),
        ("-f -- -- x", ["--"], "x"),
        ("-- -- x", [], "-- x"),
        ("", [], ""),
    ],
)
def test_a_wrapped_command_passes_through_untouched(install_command, typed, flag, words):
    seen = []

    class WrappedArgs(Args):
        words: tuple[str, ...] = ()
        flag: tuple[str, ...] = ()

    def function(args: WrappedArgs) -> int:
        seen.extend([list(args.flag), list(args.words)])
        return 0

    argument = Argument("COMMAND", "A command.", field="words")
    install_command(function, WrappedArgs, {"flag": Option(("-f", "--flag"), "FLAG", "One.")}, argument, wraps=True)
    assert cli.main(["probe", *typed.split()]) == 0
    assert seen == [flag, words.split()]


def test_only_the_command_that_is_called_is_loaded():
    code = (
        "import sys, tdbg.cli; tdbg.cli.main(['flags', '--help']); print(sorted(n for n in sys.modules if 'tdbg' in n))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    names = done.stdout.splitlines()[-1]
    assert "tdbg.cli.flags" in names and "tdbg.cli.run" not in names and "tdbg.launch" not in names


def test_a_closed_pipe_is_quiet():
    line = f"{sys.executable} -m tdbg flags list --json | head -1; echo ${{PIPESTATUS[0]}}"
    done = subprocess.run(["bash", "-c", line], capture_output=True, text=True, timeout=60)
    assert (done.stdout, done.stderr) == ("{\n0\n", "")


def test_a_pipe_closed_before_the_first_line_is_quiet():
    for words in ("flags list", "--help", "--version", "run --help"):
        line = f"(sleep 0.5; exec {sys.executable} -m tdbg {words}) | true; echo ${{PIPESTATUS[0]}}"
        done = subprocess.run(["bash", "-c", line], capture_output=True, text=True, timeout=60)
        assert (done.stdout, done.stderr) == ("0\n", ""), words


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="this system has no /dev/full")
def test_a_full_disk_is_told():
    for words in (["flags", "list"], ["--help"], ["--version"], ["run", "--help"]):
        with open("/dev/full", "w") as full:
            done = subprocess.run(
                [sys.executable, "-m", "tdbg", *words], stdout=full, stderr=subprocess.PIPE, text=True, timeout=60
            )
        assert done.returncode == 2, words
        assert "No space left" in done.stderr and len(done.stderr.splitlines()) == 2


@pytest.mark.parametrize("closed", (">&-", "2>&-", "<&-", ">&- 2>&- <&-"))
def test_closed_standard_streams_are_no_failure(closed):
    for words in ("flags list", "--help", "--version"):
        done = subprocess.run(
            ["bash", "-c", f"{sys.executable} -m tdbg {words} {closed}"], capture_output=True, timeout=60
        )
        assert done.returncode == 0, (words, done.stderr)
    done = subprocess.run(["bash", "-c", f"{sys.executable} -m tdbg nothing {closed}"], capture_output=True, timeout=60)
    assert done.returncode == 2
