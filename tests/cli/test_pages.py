"""Help pages: how they are read from a live command, and how they look."""

from typing import Annotated

import pytest
import typer

from tdbg.cli import options, pages

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
    narrow = pages.render(PAGE, 40)
    assert [line.rstrip() for line in narrow.splitlines()] == narrow.splitlines()
    assert narrow.split("Options:")[0] == TEXT.split("Options:")[0]
    assert narrow.split("Commands:")[1] == TEXT.split("Commands:")[1]
    wide = pages.render(PAGE, 80)
    assert "\n  -x, --xray                      See through.\n" in wide
    assert "\n  --a-very-long-option-name-indeed TEXT\n                                  Its text" in wide
    assert all(len(line) <= 80 for line in wide.splitlines())


def sample(
    name: Annotated[str, typer.Argument(metavar="NAME", help="Who.")],
    words: options.Wrapped = None,
    flag: Annotated[list[str] | None, typer.Option("--flag", "-f", metavar="FLAG", help="One.")] = None,
    steps: Annotated[int, typer.Option("--steps", metavar="N", help="Two.")] = 5,
    quiet: Annotated[bool, typer.Option("--quiet", help="Three.")] = False,
    secret: Annotated[bool, typer.Option("--secret", hidden=True)] = False,
) -> None:
    """Do it.

    More.
    """


def live(function):
    app = options.group()
    app.command("sample")(function)
    return typer.main.get_command(app)


def test_read():
    page = pages.read(live(sample), ("tdbg", "sample"))
    assert (page.path, page.summary, page.about) == ("tdbg sample", "Do it.", "Do it.\n\nMore.")
    assert [(item.label, item.default, item.repeated) for item in page.options] == [
        ("-f, --flag FLAG", "", True),
        ("--steps N", "5", False),
        ("--quiet", "", False),
        ("-h, --help", "", False),
    ]
    assert [item.label for item in page.arguments] == ["NAME", "[COMMAND]..."]
    assert page.wraps and page.commands == () and page.synopsis == "[OPTIONS] NAME [COMMAND]..."


def test_walk_leaves_out_what_is_hidden():
    app = options.group("A group.")

    @app.command()
    def shown() -> None:
        """Shown."""

    @app.command(hidden=True)
    def hidden() -> None:
        """Hidden."""

    found = list(pages.walk(typer.main.get_group(app), ("g",)))
    assert [page.path for page in found] == ["g", "g shown"]
    assert found[0].commands == (("shown", "Shown."),)


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
    assert options.asks_for_help(args, live(sample).params, anywhere) is answer


@pytest.mark.parametrize(("columns", "width"), [("10", 40), ("60", 60), ("500", 80)])
def test_width_follows_the_terminal_within_reason(monkeypatch, columns, width):
    monkeypatch.setenv("COLUMNS", columns)
    assert pages.terminal_width() == width
