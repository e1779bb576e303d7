"""The completion script for bash: tables from the command line, and one function that reads them.

It needs bash 3.2 (macOS) and no bash-completion; with that installed, a wrapped command completes with
its own rules. bash splits words at ``=``, so ``--level=adv`` arrives as three of them.
"""

from collections.abc import Iterable

from tdbg.cli import kinds, pages
from tdbg.cli.generate import words

HEAD = """\
# bash completion for tdbg. Written by `tdbg docs`; change the source, not this file.
# Each function below answers in $reply.
"""

BODY = r"""
_tdbg_runs() {
    local run
    reply=''
    for run in tdbg_runs/*/run.json; do
        [[ -e $run ]] || continue
        run=${run%/run.json}
        reply+="${run##*/} "
    done
}

# Offer the values of the kinds in $1 (joined by a bar) that begin with $cur.
_tdbg_offer() {
    local kind reply IFS='|'
    for kind in $1; do
        IFS=$' \t\n'
        case $kind in
            FILE|PATH) compopt -o default 2>/dev/null || COMPREPLY+=($(compgen -f -- "$cur")) ;;
            DIR) compopt -o dirnames 2>/dev/null || COMPREPLY+=($(compgen -d -- "$cur")) ;;
            RUN) _tdbg_runs; COMPREPLY+=($(compgen -W "$reply" -- "$cur"))
                 compopt -o dirnames -o plusdirs 2>/dev/null ;;
            *) _tdbg_words "$kind"; COMPREPLY+=($(compgen -W "$reply" -- "$cur")) ;;
        esac
    done
}

# Complete the wrapped command, whose first word is number $1.
_tdbg_wrapped() {
    if declare -F _comp_command_offset >/dev/null; then
        _comp_command_offset "$1"
    elif declare -F _command_offset >/dev/null; then
        _command_offset "$1"
    elif (( COMP_CWORD == $1 )); then
        COMPREPLY=($(compgen -c -- "$cur"))
        compopt -o default 2>/dev/null
    else
        compopt -o default 2>/dev/null || COMPREPLY=($(compgen -f -- "$cur"))
    fi
}

_tdbg() {
    local cur=${COMP_WORDS[COMP_CWORD]} path='' kind='' word reply i
    COMPREPLY=()
    for (( i = 1; i < COMP_CWORD; i++ )); do
        word=${COMP_WORDS[i]}
        if [[ $word == '=' ]]; then
            [[ -n $kind ]] || (( i++ ))
        elif [[ -n $kind ]]; then
            kind=''
        elif [[ $word == -- ]]; then
            _tdbg_argument "$path"
            [[ $reply == COMMAND ]] && { _tdbg_wrapped $(( i + 1 )); return; }
        elif [[ $word == -* ]]; then
            _tdbg_kind "$path" "$word"
            kind=$reply
        else
            _tdbg_commands "$path"
            if [[ " $reply " == *" $word "* ]]; then
                path=${path:+$path }$word
            else
                _tdbg_argument "$path"
                [[ $reply == COMMAND ]] && { _tdbg_wrapped $i; return; }
            fi
        fi
    done
    [[ $cur == '=' ]] && cur=''
    if [[ -n $kind ]]; then
        _tdbg_offer "$kind"
    elif [[ $cur == -* ]]; then
        _tdbg_options "$path"
        COMPREPLY=($(compgen -W "$reply" -- "$cur"))
    else
        _tdbg_commands "$path"
        COMPREPLY=($(compgen -W "$reply" -- "$cur"))
        _tdbg_argument "$path"
        if [[ $reply == COMMAND ]]; then
            _tdbg_wrapped "$COMP_CWORD"
        elif [[ -n $reply ]]; then
            _tdbg_offer "$reply"
        fi
    fi
}

complete -F _tdbg tdbg
"""


def render_script(found: list[pages.Page]) -> str:
    """The script."""
    tables = [
        _render_function("_tdbg_commands", "$1", "commands below the command $1", _list_command_cases(found)),
        _render_function("_tdbg_options", "$1", "options of the command $1", _build_option_case_arms(found)),
        _render_function(
            "_tdbg_kind", "$1 $2", "kind of the value that option $2 of the command $1 takes", _iter_kind_cases(found)
        ),
        _render_function(
            "_tdbg_argument", "$1", "kind of the arguments of the command $1", _list_argument_cases(found)
        ),
        _render_function("_tdbg_words", "$1", "values of the kind $1", _list_value_cases()),
    ]
    return "\n".join([HEAD, *tables]) + BODY


def _format_path(page: pages.Page) -> str:
    return " ".join(page.words[1:])


def _list_command_cases(found: list[pages.Page]) -> Iterable[tuple[list[str], str]]:
    return [([_format_path(page)], " ".join(name for name, _text in page.commands)) for page in found if page.commands]


def _build_option_case_arms(found: list[pages.Page]) -> Iterable[tuple[list[str], str]]:
    return [
        ([_format_path(page)], " ".join(name for option in page.options for name in option.names)) for page in found
    ]


def _iter_kind_cases(found: list[pages.Page]) -> Iterable[tuple[list[str], str]]:
    for page in found:
        for option in page.options:
            if option.kind:
                yield [f"{_format_path(page)} {name}" for name in option.names], option.kind


def _list_argument_cases(found: list[pages.Page]) -> Iterable[tuple[list[str], str]]:
    return [([_format_path(page)], page.arguments[-1].kind) for page in found if page.arguments]


def _list_value_cases() -> Iterable[tuple[list[str], str]]:
    return [([kind], " ".join(word for word, _text in words.list_words(kind))) for kind in kinds.LISTED]


def _render_function(name: str, subject: str, about: str, cases: Iterable[tuple[list[str], str]]) -> str:
    """A function that looks one thing up in a table."""
    lines = [f"# {about}", f"{name}() {{", f'    case "{subject}" in']
    lines += [f"        {'|'.join(map(_quote_text, keys))}) reply={_quote_text(answer)} ;;" for keys, answer in cases]
    return "\n".join([*lines, "        *) reply='' ;;", "    esac", "}", ""])


def _quote_text(text: str) -> str:
    return "'" + text.replace("'", "'\\''") + "'"
