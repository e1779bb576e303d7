"""The completion script for zsh: one function per command, made of `_arguments` specifications."""

from tdbg.cli import kinds, pages
from tdbg.cli.generate import words

HEAD = """\
#compdef tdbg
# zsh completion for tdbg. Written by `tdbg docs`; change the source, not this file.
"""

HELPERS = """\
# The wrapped command, completed as if it stood alone.
_tdbg_wrapped() {
    if [[ $words[1] == -- ]]; then
        shift words
        (( CURRENT-- ))
    fi
    _normal
}

_tdbg_RUN() {
    local -a runs=(tdbg_runs/*/run.json(N:h:t))
    local -i ret=1
    (( $#runs )) && { compadd "$@" -a runs && ret=0 }
    _path_files -/ && ret=0
    return ret
}
"""

TAIL = """\
if [[ $funcstack[1] == _tdbg ]]; then
    _tdbg "$@"
else
    compdef _tdbg tdbg
fi
"""

STYLE_OF_A_GROUP = '-C -A "-*"'  # what follows the name of a command is for that command to complete


def render_script(found: list[pages.Page]) -> str:
    """The script."""
    unions = {param.kind for page in found for param in (*page.options, *page.arguments) if "|" in param.kind}
    parts = [HEAD, HELPERS]
    parts += [_render_values(kind) for kind in kinds.LISTED]
    parts += [_render_union(kind) for kind in sorted(unions)]
    parts += [_render_group(page) if page.commands else _render_leaf(page) for page in found]
    return "\n".join([*parts, TAIL])


def _render_values(kind: str) -> str:
    """A function that offers the words of a kind, each with its line."""
    lines = [f"        {_quote_text(_format_description(word, text))}" for word, text in words.list_words(kind)]
    body = ["    local -a found=(", *lines, "    )", f"    _describe -t {kind.lower()} {kind.lower()} found"]
    return "\n".join([f"_tdbg_{kind}() {{", *body, "}", ""])


def _render_union(kind: str) -> str:
    calls = [f"    {_render_action(part)} && ret=0" for part in kind.split("|") if part not in kinds.FREE]
    return "\n".join(
        [f"{_build_kind_function_name(kind)}() {{", "    local -i ret=1", *calls, "    return ret", "}", ""]
    )


def _render_group(page: pages.Page) -> str:
    """A command with commands below it: hand over to the function of the one that is typed."""
    name = _build_page_function_name(page)
    specs = [*_render_options(page), _quote_text("1: :->command"), _quote_text("*:: :->rest")]
    return "\n".join(
        [
            f"{name}() {{",
            '    local curcontext="$curcontext" state line',
            "    local -A opt_args",
            "    local -a below=(",  # `commands` is a table of zsh's own
            *(f"        {_quote_text(_format_description(command, text))}" for command, text in page.commands),
            "    )",
            f"    {_render_arguments(specs, STYLE_OF_A_GROUP)} && return",
            "    case $state in",
            "        command) _describe -t commands command below ;;",
            f"        rest) (( $+functions[{name}_$words[1]] )) && {name}_$words[1] ;;",
            "    esac",
            "}",
            "",
        ]
    )


def _render_leaf(page: pages.Page) -> str:
    specs = _render_options(page)
    for number, argument in enumerate(page.arguments, 1):
        if argument.kind == kinds.COMMAND:
            specs.append(_quote_text("(-)*:: : _tdbg_wrapped"))
        else:
            place = "*" if argument.repeated else str(number)
            specs.append(_quote_text(f"{place}:{argument.kind.lower()}:{_render_action(argument.kind)}"))
    return "\n".join([f"{_build_page_function_name(page)}() {{", f"    {_render_arguments(specs)}", "}", ""])


def _render_arguments(specs: list[str], style: str = "-s -S") -> str:
    joint = " \\\n        "
    return f"_arguments {style} :{joint}" + joint.join(specs)


def _render_options(page: pages.Page) -> list[str]:
    return [_render_option(option) for option in page.options]


def _render_option(option: pages.Param) -> str:
    """One specification: which options it rules out, its names, its text, and what its value is."""
    last = "--help" in option.names or "--version" in option.names  # nothing follows these
    others = "(- *)" if last else f"({' '.join(option.names)})" if len(option.names) > 1 else ""
    head = "*" if option.repeated else others
    names = [name + ("=" if option.kind and name.startswith("--") else "") for name in option.names]
    value = f":{option.kind.lower()}:{_render_action(option.kind)}" if option.kind else ""
    text = option.help.replace("[", "\\[").replace("]", "\\]").replace(":", "\\:")
    tail = _quote_text(f"[{text}]{value}")
    if len(names) == 1:
        return f"{_quote_text(head)}{names[0]}{tail}" if head else f"{names[0]}{tail}"
    return f"{_quote_text(head)}{{{','.join(names)}}}{tail}"


def _render_action(kind: str) -> str:
    """What completes a value of that kind."""
    actions = {"FILE": "_files", "PATH": "_files", "DIR": "_files -/", "RUN": "_tdbg_RUN"}
    if kind in actions:
        return actions[kind]
    return _build_kind_function_name(kind) if kind in kinds.LISTED or "|" in kind else " "


def _build_kind_function_name(kind: str) -> str:
    return f"_tdbg_{kind.replace('|', '_or_')}"


def _build_page_function_name(page: pages.Page) -> str:
    return "_" + "_".join(page.words)


def _format_description(word: str, text: str) -> str:
    """``word:text`` for `_describe`."""
    return f"{word}:{text}" if text else word


def _quote_text(text: str) -> str:
    return "'" + text.replace("'", "'\\''") + "'"
