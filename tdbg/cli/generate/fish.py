"""The completion script for fish: a line per command, option and value, each bound to where it is typed."""

from collections.abc import Iterator

from tdbg.cli import kinds, pages
from tdbg.cli.generate import words

HEAD = """\
# fish completion for tdbg. Written by `tdbg docs`; change the source, not this file.
"""

BODY = """
# Prints the command typed so far, such as `flags list`; `run --` once the wrapped command has begun.
function __tdbg_state
    set -l typed (commandline -opc)
    set -l path
    set -l skip 0
    set -g __tdbg_begin (math (count $typed) + 1)
    for i in (seq 2 (count $typed))
        set -l word $typed[$i]
        if test $skip = 1
            set skip 0
            continue
        end
        switch $word
            case --
                if contains -- "$path" $__tdbg_wrappers
                    set -g __tdbg_begin (math $i + 1)
                    echo "$path --"
                    return
                end
            case '-*=*'
                continue
            case '-*'
                contains -- (string trim "$path $word") $__tdbg_valued; and set skip 1
            case '*'
                if contains -- (string trim "$path $word") $__tdbg_paths
                    set path (string trim "$path $word")
                else if contains -- "$path" $__tdbg_wrappers
                    set -g __tdbg_begin $i
                    echo "$path --"
                    return
                end
        end
    end
    echo "$path"
end

function __tdbg_at
    set -l state (__tdbg_state)
    test "$state" = "$argv[1]"
end

# Completes the wrapped command as if it stood alone.
function __tdbg_wrapped
    set -l typed (commandline -opc)
    set -l line
    if test $__tdbg_begin -le (count $typed)
        set line (string escape -- $typed[$__tdbg_begin..-1])
    end
    set -l word (commandline -ct)
    if set -q line[1]; or not string match -q -- '-*' "$word"
        complete -C (string join ' ' -- $line "$word")
    end
end

function __tdbg_runs
    for run in tdbg_runs/*/run.json
        string replace -r '^tdbg_runs/(.*)/run.json$' '$1' -- $run
    end
    __fish_complete_directories (commandline -ct) ''
end
"""


def render_script(found: list[pages.Page]) -> str:
    """The script."""
    lines = [HEAD, *_iter_tables(found), BODY, *_iter_value_functions(), "", "complete -c tdbg -f"]
    for page in found:
        lines += ["", f"# {page.path}", *_iter_page_lines(page)]
    return "\n".join(lines) + "\n"


def _iter_tables(found: list[pages.Page]) -> Iterator[str]:
    valued = [
        f"{_format_path(page)} {name}".strip()
        for page in found
        for item in page.options
        if item.kind
        for name in item.names
    ]
    yield _render_set("__tdbg_paths", [_format_path(page) for page in found[1:]])
    yield _render_set("__tdbg_wrappers", [_format_path(page) for page in found if page.is_wrapper])
    yield _render_set("__tdbg_valued", valued)


def _render_set(name: str, members: list[str]) -> str:
    return " ".join([f"set -g {name}", *map(_quote_text, members)])


def _iter_value_functions() -> Iterator[str]:
    """A function per kind that prints its words, a tab and a line about each."""
    for kind in kinds.LISTED:
        rows = [_quote_text(f"{word}\t{text}" if text else word) for word, text in words.list_words(kind)]
        yield "\n".join([f"function __tdbg_{kind}", *(f"    printf '%s\\n' {row}" for row in rows), "end", ""])


def _iter_page_lines(page: pages.Page) -> Iterator[str]:
    at = _render_condition(_format_path(page))
    for name, text in page.commands:
        yield f"{at} -a {name} -d {_quote_text(text)}"
    for option in page.options:
        yield " ".join(
            [at, *_iter_name_flags(option), *_list_action_flags(option.kind), "-d", _quote_text(option.help)]
        )
    for argument in page.arguments[-1:]:
        if argument.kind == kinds.COMMAND:
            yield f"{at} -a '(__tdbg_wrapped)'"
            yield f"{_render_condition(f'{_format_path(page)} --')} -a '(__tdbg_wrapped)'"
        else:
            yield " ".join([at, *(part for part in _list_action_flags(argument.kind) if part != "-x")])


def _render_condition(state: str) -> str:
    """The beginning of a line that holds while ``state`` is what has been typed."""
    condition = _quote_text(f"__tdbg_at {_quote_text(state)}")
    return f"complete -c tdbg -n {condition}"


def _iter_name_flags(option: pages.Param) -> Iterator[str]:
    for name in option.names:
        yield f"-l {name[2:]}" if name.startswith("--") else f"-s {name[1:]}"


def _list_action_flags(kind: str) -> list[str]:
    """What completes a value of that kind."""
    if not kind:
        return []
    if kind.partition("|")[0] in ("FILE", "PATH"):
        return ["-r", "-F"]
    calls = [call for call in map(_find_call, kind.split("|")) if call]
    return ["-x", "-a", _quote_text(" ".join(calls))] if calls else ["-x"]


def _find_call(kind: str) -> str:
    special = {"DIR": "(__fish_complete_directories)", "RUN": "(__tdbg_runs)"}
    return special.get(kind, f"(__tdbg_{kind})" if kind in kinds.LISTED else "")


def _format_path(page: pages.Page) -> str:
    return " ".join(page.words[1:])


def _quote_text(text: str) -> str:
    """In single quotes, as fish reads them."""
    return "'" + text.replace("\\", "\\\\").replace("'", "\\'") + "'"
