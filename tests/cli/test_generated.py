"""The generated files: up to date, complete, and well-formed."""

import re
import subprocess
from pathlib import Path

import pytest

from tdbg.cli import generate, kinds, main, pages
from tdbg.cli.generate import man, markdown, words
from tdbg.core.events import EVENT_TYPES
from tdbg.core.flags import FLAGS
from tdbg.rules import RULES

ROOT = Path(__file__).parents[2]
PAGES = generate.all_pages()
by_path = pytest.mark.parametrize("page", PAGES, ids=lambda page: page.path)


@pytest.mark.parametrize("part", generate.PARTS)
def test_the_committed_file_is_up_to_date(part):
    assert generate.list_stale_files(generate.PARTS[part](), ROOT) == [], "run `tdbg docs all`"


def test_check_writes_nothing_and_says_what_is_stale(tmp_path, capsys):
    assert main(["docs", "all", "--check", "--root", str(tmp_path)]) == 1
    assert "stale: completions/_tdbg\n" in capsys.readouterr().out
    assert list(tmp_path.iterdir()) == []


def test_written_files_are_not_stale(tmp_path, capsys):
    assert main(["docs", "all", "--root", str(tmp_path)]) == 0
    assert main(["docs", "all", "--check", "--root", str(tmp_path)]) == 0
    (tmp_path / "docs" / "cli.md").write_text("old")
    capsys.readouterr()
    assert main(["docs", "all", "--check", "--root", str(tmp_path)]) == 1
    assert capsys.readouterr().out == "stale: docs/cli.md\n"
    assert main(["docs", "cli", "--root", str(tmp_path)]) == 0
    assert main(["docs", "all", "--check", "--root", str(tmp_path)]) == 0


def test_the_page_of_a_command_that_is_gone_is_removed(tmp_path, capsys):
    main(["docs", "man", "--root", str(tmp_path)])
    old = tmp_path / "man" / "tdbg-old.1"
    old.write_text("old")
    capsys.readouterr()
    assert main(["docs", "man", "--check", "--root", str(tmp_path)]) == 1
    assert capsys.readouterr().out == "obsolete: man/tdbg-old.1\n"
    assert main(["docs", "man", "--root", str(tmp_path)]) == 0 and not old.exists()


def test_nothing_depends_on_the_terminal(monkeypatch):
    monkeypatch.setenv("COLUMNS", "40")
    assert generate.list_stale_files(generate.help_text(), ROOT) == []


@by_path
def test_every_value_has_a_known_kind(page):
    known = {*kinds.LISTED, *kinds.ON_DISK, *kinds.FREE, kinds.COMMAND}
    for param in (*page.options, *page.arguments):
        if param.kind or not param.names:
            assert set(param.kind.split("|")) <= known, f"{page.path}: {param.label}: add its kind to cli/kinds.py"


@by_path
def test_every_option_and_argument_has_a_line_of_help(page):
    assert [param.label for param in (*page.options, *page.arguments) if not param.text.endswith(".")] == []


@by_path
def test_examples_keep_their_lines(page):
    """An example that is no longer indented would be wrapped into the text around it."""
    flowing = [text for text, verbatim in pages.split_paragraphs(page.about) if not verbatim]
    assert not [text for text in flowing if text.startswith("tdbg ")], "indent the examples below `Examples:`"


@pytest.mark.parametrize("kind", kinds.LISTED)
def test_listed_kinds_have_words(kind):
    found = [word for word, _text in words.list_words(kind)]
    assert found and len(set(found)) == len(found)


@by_path
def test_manual_page_is_clean_roff(page):
    text = man.render_page(page, PAGES)
    command = ["groff", "-man", "-Tutf8", "-ww", "-rLL=100n"]
    done = subprocess.run(command, input=text, capture_output=True, text=True, timeout=60)
    assert (done.returncode, done.stderr) == (0, "")
    shown = re.sub(r"\x1b\[[0-9;]*m|.\x08", "", done.stdout)
    for option in page.options:
        assert option.label in shown
    for section in ("NAME", "SYNOPSIS", "DESCRIPTION", "OPTIONS", "EXIT STATUS", "SEE ALSO"):
        assert f"\n{section}\n" in shown


def test_manual_pages_refer_to_pages_that_exist():
    names = {man.file_name(page).removesuffix(".1") for page in PAGES}
    for page in PAGES:
        found = re.findall(r"\\fB([a-z\\-]+)\\fR\(1\)", man.render_page(page, PAGES))
        assert {name.replace("\\-", "-") for name in found} <= names
        assert found, page.path


def test_roff_shows_odd_text_as_it_is():
    odd = ".start 'quoted' `code` back\\slash -- dash"
    page = pages.Page(("tdbg", "odd"), f"Odd.\n\n{odd}\n\nExamples:\n    .x 'y' \\z", (), (), (), "")
    done = subprocess.run(
        ["groff", "-man", "-Tascii", "-ww"],
        input=man.render_page(page, [page]),
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert done.stderr == "" and odd in done.stdout and ".x 'y' \\z" in done.stdout


def test_docs_name_every_command_flag_event_and_finding():
    cli, flags, events, findings = (
        markdown.render_cli(PAGES),
        markdown.render_flags(),
        markdown.render_events(),
        markdown.render_findings(),
    )
    assert all(f"## {page.path}\n" in cli for page in PAGES)
    assert all(f"`{flag.name}`" in flags for flag in FLAGS)
    assert all(f"## {name} (version {cls.VERSION})" in events for name, cls in EVENT_TYPES.items())
    assert all(f"## {rule.code}: {rule.title}" in findings for rule in RULES)


def test_tables_have_as_many_cells_as_columns():
    for text in (markdown.render_events(), markdown.render_flags(), markdown.render_cli(PAGES)):
        for block in re.findall(r"(?:^\|.*\n)+", text, re.MULTILINE):
            assert len({len(re.findall(r"(?<!\\)\|", row)) for row in block.splitlines()}) == 1
