"""Help pages: how they are read from a live command, and how they look."""

import pytest

from tdbg.cli import COMMANDS, asks_for_help, build_root_group, pages
from tdbg.core.command_spec import Args, Argument, Command, Group, Option

PAGE = pages.Page(
    words=("tdbg", "try"),
    about="Try it.\n\nA long paragraph that does not fit into forty characters.\n\nExamples:\n    tdbg try  --x\n    tdbg",
    options=(
        pages.Param(("-x", "--xray"), "", "See through."),
        pages.Param(("--a-very-long-option-name-indeed",), "TEXT", "Its text is on the next line.", default="no"),
    ),
    arguments=(pages.Param((), "RUN", "The run."),),
    commands=(("one", "First."), ("other", "Second.")),
    synopsis="[OPTIONS] [RUN]",
)

TEXT = """\
Usage: tdbg try [OPTIONS] [RUN]

Try it.

A long paragraph that does not fit into
forty characters.

Examples:
  tdbg try  --x
  tdbg

Arguments:
  [RUN]  The run.

Options:
  -x, --xray                    See
                                through.
  --a-very-long-option-name-indeed TEXT
                                Its text is
                                on the next
                                line.
                                [default:
                                no]

Commands:
  one    First.
  other  Second.
"""


def test_render():
    narrow = pages.render_page(PAGE, 40)
    assert [line.rstrip() for line in narrow.splitlines()] == narrow.splitlines()
    assert narrow.split("Options:")[0] == TEXT.split("Options:")[0]
    assert narrow.split("Commands:")[1] == TEXT.split("Commands:")[1]
    wide = pages.render_page(PAGE, 80)
    assert "\n  -x, --xray                      See through.\n" in wide
    assert "\n  --a-very-long-option-name-indeed TEXT\n                                  Its text" in wide
    assert all(len(line) <= 80 for line in wide.splitlines())


class SampleArgs(Args):
    words: tuple[str, ...] = ()
    flag: tuple[str, ...] = ()
    steps: int = 5
    quiet: bool = False


OPTIONS = {
    "flag": Option(("--flag", "-f"), "FLAG", "One."),
    "steps": Option(("--steps",), "N", "Two.", old_names=("--secret",)),
    "quiet": Option(("--quiet",), "", "Three."),
}


def make_command(*, wraps: bool, required: bool = False) -> Command:
    argument = Argument("COMMAND", "Who.", field="words", required=required)
    return Command(lambda args: 0, SampleArgs, "Do it.\n\n    More.\n    ", OPTIONS, argument, wraps=wraps)


def test_read():
    page = pages.build_page(make_command(wraps=True), ("tdbg", "sample"))
    assert (page.path, page.summary, page.about) == ("tdbg sample", "Do it.", "Do it.\n\nMore.")
    assert [(item.label, item.default, item.repeated) for item in page.options] == [
        ("-f, --flag FLAG", "", True),
        ("--steps N", "5", False),
        ("--quiet", "", False),
        ("--color WHEN", "auto", False),
        ("-h, --help", "", False),
    ]
    assert [item.label for item in page.arguments] == ["[COMMAND]..."]
    assert page.is_wrapper and page.commands == () and page.synopsis == "[OPTIONS] [--] [COMMAND]..."
    page = pages.build_page(make_command(wraps=False, required=True), ("tdbg", "sample"))
    assert page.synopsis == "[OPTIONS] COMMAND..."


def test_walk_leaves_out_what_is_hidden():
    found = list(pages.walk_pages(build_root_group(), ("tdbg",)))
    hidden = {entry.name for entry in COMMANDS if entry.hidden}
    assert hidden and not hidden & {word for page in found for word in page.words}
    assert not hidden & {name for name, _summary in found[0].commands}
    group = Group("A group.", ("shown",), lambda name: make_command(wraps=False))
    found = list(pages.walk_pages(group, ("g",)))
    assert [page.path for page in found] == ["g", "g shown"]
    assert found[0].commands == (("shown", "Do it."),)


@pytest.mark.parametrize(
    ("args", "anywhere", "answer"),
    [
        (["-h"], True, True),
        (["x", "--help"], True, True),
        (["x", "--help"], False, False),
        (["--", "--help"], True, False),
        (["-f", "--help"], True, False),
        (["-f", "a", "--help"], True, True),
        (["--quiet", "--help"], False, True),
        ([], True, False),
    ],
)
def test_asking_for_help(args, anywhere, answer):
    assert asks_for_help(make_command(wraps=not anywhere), args) is answer


@pytest.mark.parametrize(("columns", "width"), [("10", 40), ("60", 60), ("500", 80)])
def test_width_follows_the_terminal_within_reason(monkeypatch, columns, width):
    monkeypatch.setenv("COLUMNS", columns)
    assert pages.terminal_width() == width
