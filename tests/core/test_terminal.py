"""Lines and tables on a terminal: wrapped between words, within its width, coloured where that is wanted."""

import contextlib
import io
import os
import subprocess
import sys
from collections.abc import Callable
from typing import Any

import pytest
from screens import Screen

from tdbg.cli import main
from tdbg.core import output, tables, terminal
from tdbg.core.errors import TdbgError

LONG = "TD-N001 critical: first NaN at step 26 on rank 0, in the input of module encoder.0 (Linear), of a long name"


class Terminal(io.StringIO):
    """A stream that a person looks at."""

    def isatty(self) -> bool:
        return True

    def run_function(self, function: Callable[..., Any], *args: Any) -> Any:
        """Call something with this as stdout and stderr, as a command has them."""
        stream: Any = output.EscapingStream(self)
        with contextlib.redirect_stdout(stream), contextlib.redirect_stderr(stream):
            return function(*args)


@pytest.fixture
def screen(monkeypatch: pytest.MonkeyPatch) -> Terminal:
    """stdout and stderr of a command on a terminal of 80 columns."""
    shown = Terminal()
    monkeypatch.setenv("COLUMNS", "80")
    monkeypatch.setenv("TERM", "xterm")
    for name in ("NO_COLOR", "CI"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr(terminal, "_mode", "auto")
    return shown


def render_rows(shown: io.StringIO, columns: int = 80) -> list[str]:
    seen = Screen(columns)
    seen.show_text(shown.getvalue().replace("\n", "\r\n"))
    return seen.rows


def test_talk_is_wrapped_between_words_and_each_row_is_tdbgs(screen: Terminal) -> None:
    screen.run_function(output.print_messages, LONG, f"  {LONG}", "x" * 100)
    found = render_rows(screen)
    assert found[:2] == [
        "tdbg: TD-N001 critical: first NaN at step 26 on rank 0, in the input of module",
        "tdbg:     encoder.0 (Linear), of a long name",
    ]
    assert found[3] == "tdbg:       encoder.0 (Linear), of a long name"
    assert found[4:] == ["tdbg: " + "x" * 74, "tdbg:     " + "x" * 26], "a word wider than a row is cut"
    assert "\x1b[1;31mTD-N001 critical\x1b[0m" in screen.getvalue()


def test_what_a_program_wrote_is_shown_and_never_obeyed(screen: Terminal) -> None:
    screen.run_function(output.print_messages, "[bold]name[/bold] :smile: \x1b[31m 'text' 12", "a\rb")
    screen.run_function(output.print_lines, ["[red]x \x1b]0;t\x07"])
    assert render_rows(screen) == [
        "tdbg: [bold]name[/bold] :smile: \\u001b[31m 'text' 12",
        "tdbg: a\\u000db",
        "[red]x \\u001b]0;t\\u0007",
    ]
    assert "\x1b" not in screen.getvalue()


def test_a_rank_says_its_lines_plain_on_rows_of_their_own(screen: Terminal) -> None:
    """There the terminal is the program's: no rich, nothing is wrapped, and the row that the program began is left to it."""
    screen.write("begun,")
    with contextlib.redirect_stderr(screen):
        output.print_messages(LONG)
    screen.write("go on")
    found = render_rows(screen)
    assert found[0] == "begun," and "".join(found[1:3]) == f"tdbg: {LONG}" and found[3] == "go on"
    assert "\x1b[1" not in screen.getvalue()


def test_paragraphs_are_set_anew_and_indented_lines_stay(screen: Terminal) -> None:
    screen.run_function(
        output.print_prose, "One sentence that\nis long.\n\nExample:\n    a line\n    another line\nAfter it"
    )
    assert render_rows(screen) == [
        "One sentence that is long.",
        "",
        "Example:",
        "    a line",
        "    another line",
        "After it",
    ]


@pytest.mark.parametrize(
    "mode, env, colored",
    [
        ("auto", {}, True),
        ("auto", {"NO_COLOR": ""}, True),
        ("auto", {"NO_COLOR": "1"}, False),
        ("auto", {"TERM": "dumb"}, False),
        ("auto", {"CI": "true"}, False),
        ("auto", {"CI": "false"}, True),
        ("never", {}, False),
        ("always", {"NO_COLOR": "1", "CI": "1"}, True),
    ],
)
def test_who_decides_on_colour(
    screen: Terminal, monkeypatch: pytest.MonkeyPatch, mode: str, env: dict[str, str], colored: bool
) -> None:
    for name, value in env.items():
        monkeypatch.setenv(name, value)
    terminal.choose_color(mode)
    screen.run_function(output.print_messages, LONG)
    assert ("\x1b[" in screen.getvalue()) == colored and len(render_rows(screen)) == 2


def test_a_mode_that_is_none(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(TdbgError, match="--color cannot be 'red'"):
        terminal.choose_color("red")


def render_table(screen: Terminal, columns: list[str], lines: list[list[Any]]) -> list[str]:
    screen.run_function(tables.print_table, columns, lines)
    found = render_rows(screen)
    assert max(map(len, found)) <= 80
    return found


def test_a_table_has_numbers_to_the_right_and_severities_in_colour(screen: Terminal) -> None:
    found = render_table(screen, ["code", "severity", "ms"], [["TD-1", "critical", 1.5], ["TD-22", "info", 12]])
    assert found == ["code   severity   ms", "TD-1   critical  1.5", "TD-22  info       12"]
    assert "\x1b[1;31mcritical\x1b[0m" in screen.getvalue() and "\x1b[36minfo\x1b[0m" in screen.getvalue()


def test_a_table_without_severities_has_no_colour(screen: Terminal) -> None:
    render_table(screen, ["layer", "values"], [["error", 1]])
    assert "\x1b[31m" not in screen.getvalue()


def test_a_stream_of_the_program_that_is_odd_is_no_terminal() -> None:
    class Odd(io.StringIO):
        isatty: Any = None
        fileno: Any = None

    assert not terminal.is_terminal(Odd()) and terminal.row_columns(Odd()) == 80 and terminal.count_rows(None) == 24


def test_long_cells_are_wrapped_between_words(screen: Terminal) -> None:
    found = render_table(screen, ["name", "text", "n"], [["a", "word " * 20, 1], ["b", "short", 2]])
    assert found[0].split() == ["name", "text", "n"]
    assert found[1].startswith("a     word word") and found[1].endswith("1") and found[2].startswith("      word")
    assert " ".join(" ".join(found[1:3]).replace("1", "").split()) == "a " + " ".join(["word"] * 20)


def test_a_table_that_is_too_wide_is_several(screen: Terminal) -> None:
    names = [f"column {number}" for number in range(12)]
    found = render_table(screen, ["name", *names], [["first", *range(12)], ["second", *range(12)]])
    heads = [row for row in found if row.startswith("name")]
    assert (
        len(heads) == 2 and [row.startswith(("name", "first", "second")) or not row for row in found].count(False) == 0
    )
    assert "  ".join(head.removeprefix("name").strip() for head in heads).split("  ") == list(names), (
        "each column once, in its order"
    )


def test_a_path_wider_than_its_column_is_cut_and_nothing_else(screen: Terminal) -> None:
    path = "layers." * 20 + "weight"
    found = render_table(screen, ["path", "mean"], [[path, 1.5], ["short", 2.5]])
    assert "".join(row.split()[0] for row in found[1:-1]) == path and found[-1].split() == ["short", "2.5"]


def test_a_pipe_gets_lines_and_loads_no_rich() -> None:
    code = (
        "import sys; from tdbg.cli import main; code = main(sys.argv[1:])\n"
        "print('rich' in sys.modules, file=sys.stderr); sys.exit(code)"
    )
    env = {**os.environ, "COLUMNS": "40"}
    seen = {}
    for mode in ("auto", "never", "always"):
        words = [sys.executable, "-c", code, "flags", "list", "--color", mode]
        done = subprocess.run(words, capture_output=True, text=True, env=env, check=True)
        seen[mode] = done.stdout
        assert done.stderr == f"{mode == 'always'}\n"
    assert seen["auto"] == seen["never"] and seen["auto"].startswith("flag\tgroup\talso\tsummary\n")
    assert seen["always"].startswith("\x1b[1mflag") and "\t" not in seen["always"]


def test_json_has_no_colour(screen: Terminal) -> None:
    assert screen.run_function(main, ["explain", "TD-N001", "--json", "--color", "always"]) == 0
    assert "\x1b" not in screen.getvalue()
