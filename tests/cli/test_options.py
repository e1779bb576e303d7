"""The options of all commands together: one meaning for a name, and what was renamed still works."""

from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path

import pytest

from tdbg.cli import build_root_group, main, pages, parser
from tdbg.core.command_spec import Command, Group, Option, fill_bare_options, parse_plain_args

# What an option means that several commands have. Read the line before you add one of these names to another command.
MEANINGS = {
    "--all": "everything, not only what most people look for",
    "--fail-on": "exit with 1 from this severity on",
    "--dry-run": "print what would be done, and do nothing",
    "--flag": "a debug flag, and those below it",
    "--force": "overwrite a file that is there",
    "--format": "the format of what is written",
    "--html": "write one HTML file that opens without a network",
    "--json": "print one JSON document",
    "--key": "only what has this key",
    "--layer": "only layers that fit this glob",
    "--level": "a level of tdbg: how much is recorded",
    "--limit": "at most so many datapoints, or runs",
    "--log-level": "a level of log records: this one and above",
    "--no-flag": "a debug flag that is switched off",
    "--output": "where the result is written",
    "--phase": "only this phase",
    "--epoch": "only these epochs",
    "--epochs": "only these epochs",
    "--python": "the interpreter of an environment",
    "--rank": "only these ranks",
    "--ranks": "only these ranks",
    "--run-dir": "where the run is kept",
    "--shell": "which shell is set up",
    "--scores": "part datapoints by the scores in a file",
    "--group-by": "part datapoints by a number or a name",
    "--step": "only these steps",
    "--steps": "only these steps",
    "--keys": "only datapoints with these keys",
    "--color": "whether the output is coloured",
    "--threshold": "another bound of a probe or rule, as NAME=VALUE",
    "--tolerance": "how far two sides may differ, as a share",
    "--to": "a sink that the run is sent to",
    "--top": "how many rows of a table",
    "--windows": "which windows of a profiler are read",
    "-f": "short for --flag",
    "-l": "short for --level",
    "-o": "short for --output and --out: where the result is written",
    "-k": "short for --key in `metrics`, for --kind in `profile`: the only letter with two meanings",
}
# Kinds that differ although the meaning is one: a file or a folder; severities of advice and of findings.
KINDS_THAT_DIFFER = {
    "--output": {"FILE", "DIR", "FILE|DIR"},
    "-o": {"FILE", "DIR", "FILE|DIR"},
    "--fail-on": {"SEVERITY", "NAME"},
    "--key": {"GLOB", "KEY"},
    "-k": {"GLOB", "KIND"},
}
# Commands that take the options of another one.
SAME = {"profile": "run"}


def walk_commands(spec: Command | Group | None = None, path: tuple[str, ...] = ()) -> Iterator[tuple[str, Command]]:
    spec = spec or build_root_group()
    if isinstance(spec, Command):
        yield " ".join(path), spec
    else:
        for name in spec.names:
            yield from walk_commands(spec.load(name), (*path, name))


COMMANDS = dict(walk_commands())
OLD = [
    (path, spec, field) for path, spec in COMMANDS.items() for field in spec.options if spec.options[field].old_names
]


def find_shared_options() -> dict[str, dict[str, Option]]:
    """Names of options that several commands have -> command -> the option."""
    found: dict[str, dict[str, Option]] = defaultdict(dict)
    for path, spec in COMMANDS.items():
        for field, option in spec.options.items():
            for name in option.names:
                if SAME.get(path) not in found[name] or field not in COMMANDS[SAME[path]].options:
                    found[name][path] = option
    return {name: options for name, options in found.items() if len(options) > 1}


def test_what_several_commands_have_means_one_thing() -> None:
    assert set(find_shared_options()) == set(MEANINGS), "does it mean the same in each of them? then say here what"


@pytest.mark.parametrize("name", MEANINGS)
def test_its_value_is_of_one_kind(name: str) -> None:
    kinds = {option.metavar for option in find_shared_options()[name].values()}
    assert len(kinds) == 1 or kinds == KINDS_THAT_DIFFER.get(name)


def test_no_old_name_is_the_name_of_another_option_there() -> None:
    for path, spec in COMMANDS.items():
        names = [name for option in spec.options.values() for name in (*option.names, *option.old_names)]
        assert len(names) == len(set(names)), path


@pytest.mark.parametrize(("path", "spec", "field"), OLD, ids=lambda value: value if isinstance(value, str) else "")
def test_an_old_name_works_and_is_shown_nowhere(path: str, spec: Command, field: str) -> None:
    option, taken = spec.options[field], []
    value = [] if spec.is_switch(field) else ["3"]
    for name in (*option.names, *option.old_names):
        plain = parse_plain_args(spec, [name, *value])
        assert plain is not None
        whole = Command(lambda args: taken.append(args) or 0, spec.args, spec.help, spec.options, spec.argument)
        assert parser.parse_and_run(whole, f"tdbg {path}", [name, *value]) == 0
        assert getattr(plain, field) == getattr(taken[-1], field) != spec.get_default(field)
    page = pages.build_page(spec, ("tdbg", *path.split()))
    assert not set(option.old_names) & {name for shown in page.options for name in shown.names}


@pytest.mark.parametrize(("path", "spec", "field"), OLD, ids=lambda value: value if isinstance(value, str) else "")
def test_a_value_after_an_old_name_is_no_option(path: str, spec: Command, field: str) -> None:
    """An option that may stand bare gets its value, whatever the option before it is called."""
    option, value = spec.options[field], [] if spec.is_switch(field) else ["3"]
    offers = next(one for one in COMMANDS["run"].options.values() if one.bare)
    offering = Command(spec.run, type("Both", (spec.args,), {"offered": 0}), "", {**spec.options, "offered": offers})
    for name in option.all_names:
        for given in (value, ["--port"] if value else []):  # a value may look like an option
            filled = fill_bare_options(offering, [name, *given, offers.names[0], "--", "--serve"])
            assert filled == [name, *given, offers.names[0], offers.bare, "--", "--serve"]


@pytest.mark.parametrize("name", ["--baseline", "--measure-overhead"])
def test_a_bare_option_may_follow_an_old_name(name: str) -> None:
    spec, taken = COMMANDS["run"], []
    whole = Command(
        lambda args: taken.append(args) or 0, spec.args, spec.help, spec.options, spec.argument, wraps=spec.wraps
    )
    words = fill_bare_options(spec, [name, "5", "--serve", "--", "python", "t.py"])
    assert parser.parse_and_run(whole, "tdbg run", words) == 0
    assert (taken[0].serve, taken[0].baseline) == (0, 5)


@pytest.mark.parametrize("path", ["run", "profile"])
def test_the_options_of_run_stand_in_six_groups(path: str) -> None:
    titles = [title for title, _ in pages.build_page(COMMANDS[path], ("tdbg", path)).grouped_options]
    six = ["What to watch", "How much", "Capture", "When something is found", "Files and limits", "Launching"]
    assert [title for title in titles if title != "What is recorded"] == six


def test_every_option_of_a_command_with_groups_is_in_one() -> None:
    for path, spec in COMMANDS.items():
        grouped = {bool(option.group) for option in spec.options.values()}
        assert len(grouped) <= 1, path


def test_an_old_name_is_proposed_to_nobody(capsys: pytest.CaptureFixture[str]) -> None:
    from tdbg.cli import main

    assert main(["inspect-pages", "recover", "--forc", "run"]) == 2
    assert main(["run", "--base", "--", "true"]) == 2
    told = capsys.readouterr().err
    assert "--force" not in told and "--baseline" not in told and "no such option: --forc" in told


@pytest.mark.parametrize(
    "words, what",
    [
        ("run --every 0 -- true", "invalid value for '--every': 0 is less than 1"),
        ("run --measure-overhead 0 -- true", "invalid value for '--measure-overhead': 0 is less than 1"),
        ("run --name= -- true", "--name is empty"),
        ("inspect-pages diff A B --top -1", "invalid value for '--top': -1 is less than 0"),
        ("status --color red", "--color cannot be 'red'"),
    ],
)
def test_a_value_that_makes_no_sense_is_refused(words: str, what: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(words.split()) == 2
    said = capsys.readouterr().err.splitlines()
    assert len(said) == 2 and said[0] == f"tdbg: {what}", "what is wrong, then what to do"


def test_a_default_is_told_once_and_only_where_it_is_one() -> None:
    for path, spec in COMMANDS.items():
        for option in pages.build_page(spec, tuple(path.split())).options:
            assert not option.default or ("default" not in option.text and "if left out" not in option.text), (
                path,
                option,
            )


BAD_OPTIONS = [
    (["--flag", ""], "--flag is empty"),
    (["-f", "GRADIENTS=banana"], "flag GRADIENTS cannot be 'banana'"),
    (["-f", "AUTOGRAD_ANOMALY=banana"], "flag AUTOGRAD_ANOMALY cannot be 'banana'"),
    (["--step-optimizer", ""], "--step-optimizer is empty"),
    (["--run-dir", ""], "--run-dir is empty"),
    (["--run-dir", "FILE"], "is not a folder"),
    (["--run-dir", "FILE/below"], "is not a folder"),
    (["--name", "X", "--run-dir", "Y"], "--name and --run-dir both"),
    (["--capture", ""], "--capture is empty"),
    (["--every", "0"], "0 is less than 1"),
    (["--measure-overhead", "x"], "'x' is not a whole number"),
    (["--to", ""], "--to is empty"),
    (["--to", "a,b"], "unknown sink"),
    (["--allowance=-1"], "0 seconds or more"),
    (["--allowance", "x"], "'x' is not a number"),
    (["--allowance", "1_0"], "'1_0' is not a number"),
    (["--every", "\u0663"], "is not a whole number"),
    (["--allowance", "nan"], "0 seconds or more"),
    (["--allowance", "inf"], "0 seconds or more"),
    (["--on-finding", ""], "--on-finding is empty"),
    (["--on-finding", "'unclosed"], "no closing quotation"),
    (["--notify", ""], "--notify is empty"),
    (["--notify", "ftp://x"], "not an http or https URL"),
]


def assert_refused(words: list[str], what: str, capsys: pytest.CaptureFixture[str]) -> str:
    """Run a command line that is refused with exit code 2 and two lines, ``what`` in the first; return the second."""
    assert main(words) == 2
    lines = capsys.readouterr().err.splitlines()
    assert len(lines) == 2 and what in lines[0], lines
    return lines[1]


@pytest.mark.parametrize("command", ["run", "profile"])
@pytest.mark.parametrize("options, what", BAD_OPTIONS)
def test_a_bad_option_of_a_run_is_refused_in_two_lines(
    command: str,
    options: list[str],
    what: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("FILE").touch()
    second = assert_refused([command, *options, "--", "true"], what, capsys)
    assert "--help" not in second, "what to do, not where to read on"
    assert not Path("tdbg_runs").exists() and not Path("Y").exists()


def test_the_program_may_read_any_value_of_a_flag_that_it_knows(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("train.py").write_text("if cfg.DEBUG.GRADIENTS == 'banana': pass\n")
    assert main(["run", "--dry-run", "-f", "GRADIENTS=banana", "--", "python", "train.py"]) == 0
    assert "flag: GRADIENTS = banana" in capsys.readouterr().out


@pytest.mark.parametrize(
    "options, what",
    [
        (["--html", ""], "--html is empty"),
        (["--html", "FOLDER"], "is a folder"),
        (["--html", "FILE/page.html"], "Not a directory"),
        (["--to", ""], "--to is empty"),
        (["--markdown", "--json"], "exclude each other"),
        (["--all", "FOLDER"], "is not a run directory"),
    ],
)
def test_a_bad_option_of_a_report_is_refused_in_two_lines(
    options: list[str],
    what: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    from tdbg.core.rundir import RunDir

    monkeypatch.chdir(tmp_path)
    Path("FILE").touch()
    Path("FOLDER").mkdir()
    RunDir.create(tmp_path / "tdbg_runs" / "20260101-000000-one", {"command": ["true"]})
    assert_refused(["report", *options], what, capsys)
