"""Manual pages: a command's page in roff's man macros."""

from dataclasses import fields

from tdbg.cli import kinds, pages
from tdbg.cli.generate import words
from tdbg.core import config
from tdbg.version import __version__

STATUS = (
    ("0", "Done."),
    ("1", "Done, and the answer is no: nothing matched, a finding of the severity asked for, something is wrong."),
    ("2", "Wrong use, or input that cannot be read."),
    ("130", "Interrupted."),
)
STATUS_OF_A_WRAPPER = (
    ("N", "The command's own exit code."),
    ("128+N", "Signal N ended the command."),
    ("1", "The command exited 0, but --fail-on or --stop-on met a finding."),
    ("2", "Wrong use; the command was not started."),
    ("125", "tdbg could not start; the command was not started."),
    ("126, 127", "The command is not executable, or was not found."),
    ("130", "Interrupted."),
)
FILES = (
    ("tdbg_runs/", "Where run directories are made, unless --run-dir names another place."),
    ("pyproject.toml", "Table [tool.tdbg]: defaults for every option; [tool.tdbg.profiles.NAME]: named settings."),
    ("tdbg.yaml", "Defaults of the current folder; stronger than pyproject.toml."),
)


def file_name(page: pages.Page) -> str:
    """``tdbg-flags-list.1``."""
    return f"{_join_command_name(page.words)}.1"


def render_page(page: pages.Page, others: list[pages.Page]) -> str:
    """The manual page; ``others`` are all pages, for its references."""
    sections = [
        _render_title(page),
        _render_section(
            "Name",
            [f"{_escape_text(_join_command_name(page.words))} \\- {_escape_text(_format_sentence(page.summary))}"],
        ),
        _render_section("Synopsis", [f".B {_escape_text(page.path)}", _escape_text(page.synopsis)]),
        _render_section("Description", _render_description(page)),
        _render_section(
            "Commands",
            _render_entries([(_render_reference((*page.words, name)), text) for name, text in page.commands]),
        ),
        _render_section(
            "Arguments", _render_entries([(_render_italic(item.label), item.help) for item in page.arguments])
        ),
        _render_section("Options", _option_lines(page)),
        *_render_value_sections(page),
        _render_section("Exit status", _render_bold_entries(STATUS_OF_A_WRAPPER if page.is_wrapper else STATUS)),
        _render_section("Environment", _render_bold_entries(_list_variables(page))),
        _render_section("Files", _render_bold_entries(FILES if page.is_wrapper else ())),
        _render_section(
            "See also", [", ".join(_render_reference(other) for other in _list_related_commands(page, others))]
        ),
    ]
    return "".join(sections)


def _render_title(page: pages.Page) -> str:
    return f'.TH "{_join_command_name(page.words).upper()}" 1 "" "tdbg {__version__}" "tdbg manual"\n.nh\n.ad l\n'


def _render_section(title: str, lines: list[str]) -> str:
    return "\n".join([f".SH {title.upper()}", *lines]) + "\n" if any(lines) else ""


def _render_description(page: pages.Page) -> list[str]:
    lines: list[str] = []
    for text, verbatim in pages.split_paragraphs(page.about):
        if verbatim:
            lines += [".PP", ".RS 4", ".nf", *(_escape_text(line) for line in text.splitlines()), ".fi", ".RE"]
        elif text:
            lines += [".PP", _escape_text(text)]
    return lines


def _render_entries(rows: list[tuple[str, str]]) -> list[str]:
    """A list of tagged paragraphs; the tags are roff already."""
    return [line for tag, text in rows for line in (".TP", tag, _escape_text(text))]


def _render_bold_entries(rows: tuple[tuple[str, str], ...]) -> list[str]:
    return _render_entries([(f"\\fB{_escape_text(tag)}\\fR", text) for tag, text in rows])


def _option_lines(page: pages.Page) -> list[str]:
    """The options, under a heading for each group where there are several."""
    lines: list[str] = []
    for title, options in page.grouped_options:
        lines += [f".SS {_escape_text(title)}"] if len(page.grouped_options) > 1 else []
        lines += _render_entries([(_render_option(item), item.help) for item in options])
    return lines


def _render_value_sections(page: pages.Page) -> list[str]:
    """A section for each kind whose values are a list: the levels, the flags, ..."""
    params = (*page.options, *page.arguments)
    listed = dict.fromkeys(kind for param in params for kind in param.kind.split("|") if kind in kinds.LISTED)
    return [_render_section(f"Values of {kind}", _render_choices(words.list_words(kind))) for kind in listed]


def _render_choices(found: words.Words) -> list[str]:
    if any(text for _word, text in found):
        return _render_bold_entries(tuple(found))
    return [_escape_text(", ".join(word for word, _text in found))]


def _list_variables(page: pages.Page) -> tuple[tuple[str, str], ...]:
    debug = ("TDBG_DEBUG", "If 1, a failure of tdbg shows its traceback.")
    if not page.is_wrapper:
        return (debug,)
    settings = [(f"TDBG_{item.name.upper()}", f"{item.metadata['help']}.") for item in fields(config.Settings)]
    return (*settings, debug)


def _list_related_commands(page: pages.Page, others: list[pages.Page]) -> list[tuple[str, ...]]:
    """The page above, and those beside this one (below the root: the commands themselves)."""
    above = page.words[:-1]
    beside = [other.words for other in others if other.words[:-1] == (above or page.words) and other != page]
    return [above, *beside] if above else beside


def _render_reference(command: tuple[str, ...]) -> str:
    return f"\\fB{_escape_text(_join_command_name(command))}\\fR(1)"


def _render_option(param: pages.Param) -> str:
    names = ", ".join(f"\\fB{_escape_text(name)}\\fR" for name in param.names)
    return f"{names} {_render_italic(param.kind)}" if param.kind else names


def _render_italic(text: str) -> str:
    return f"\\fI{_escape_text(text)}\\fR"


def _join_command_name(command: tuple[str, ...]) -> str:
    return "-".join(command)


def _format_sentence(text: str) -> str:
    """As it stands after the name: small letter, no full stop."""
    return (text[:1].lower() + text[1:]).rstrip(".")


def _escape_text(text: str) -> str:
    """Text that roff prints as it is."""
    escaped = text.replace("\\", "\\e").replace("-", "\\-").replace("`", "\\(ga").replace("'", "\\(aq")
    return f"\\&{escaped}" if escaped.startswith(".") else escaped
