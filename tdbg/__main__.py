"""``python -m tdbg`` and the console script: a thin front before the command line.

The two questions every shell and packager asks, `--version` and the bare `--help`, are answered from a
string and a generated text, and a plain `filter-logs` by its own small reader of the same options, without
loading a parser, which would take longer than most logs. Everything else goes to `tdbg.cli`.
"""

import os
import sys

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable


def main() -> int:
    """Run the command line; returns the exit code."""
    if os.name == "nt":
        print("tdbg: Windows is not supported; use Linux or macOS (WSL 2 counts as Linux)", file=sys.stderr)
        return 2
    try:
        return _front(sys.argv[1:])
    except KeyboardInterrupt:  # while the command line was still loading
        return 130


def _front(args: list[str]) -> int:
    text = _ready_text(args)
    if text:
        try:
            sys.stdout.write(text)
            sys.stdout.flush()
            return 0
        except (OSError, AttributeError):  # closed pipe, full disk or no stdout: the whole CLI knows what to do
            pass
    quick = {"filter-logs": _filter_logs, "inspect-pages": _inspect_pages, "trace": _trace, "metrics": _metrics}
    if args and args[0] in quick:
        code = _guarded(quick[args[0]], args)
        if code is not None:
            return code
    from tdbg import cli

    return cli.main(args)


def _guarded(answer: "Callable[[list[str]], int | None]", args: list[str]) -> int | None:
    """What a quick command answers; None where the whole command line has to look at it."""
    from tdbg.core.output import escaped_output

    with escaped_output():
        try:
            return answer(args[1:])
        except (Exception, KeyboardInterrupt) as error:  # told as everywhere else
            from tdbg import cli

            return cli.failed(error, args)


def _filter_logs(words: list[str]) -> int | None:
    from tdbg.logs.question import parse

    question = parse(words)
    if question is None or sys.stdout is None:
        return None
    from tdbg.logs.answer import answer

    code = answer(question)
    sys.stdout.flush()
    return code


def _inspect_pages(words: list[str]) -> int | None:
    from tdbg.pages.commands import thin

    return thin(words)


def _trace(words: list[str]) -> int | None:
    from tdbg.traces.commands import thin

    return thin(words)


def _metrics(words: list[str]) -> int | None:
    from tdbg.metrics.commands import thin

    return thin(words)


def _ready_text(args: list[str]) -> str:
    """The answer, if it is known without parsing; else an empty string."""
    if args == ["--version"]:
        from tdbg.version import __version__

        return f"tdbg {__version__}\n"
    if args in ([], ["--help"], ["-h"]):
        try:
            with open(os.path.join(os.path.dirname(__file__), "cli", "help.txt"), encoding="utf-8") as file:
                return file.read()
        except OSError:  # not generated yet
            return ""
    return ""


if __name__ == "__main__":
    sys.exit(main())
