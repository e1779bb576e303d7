"""``python -m tdbg`` and the console script: a thin front before the command line.

The two questions every shell and packager asks, `--version` and the bare `--help`, are answered from a
string and a generated text. Everything else goes to `tdbg.cli`.
"""

import gc
import os
import sys

LOOSE_THRESHOLD = 50_000  # objects between two searches for circles: loading makes many, and no circle


def main() -> int:
    """Run the command line; returns the exit code."""
    if os.name == "nt":
        print("tdbg: Windows is not supported; use Linux or macOS (WSL 2 counts as Linux)", file=sys.stderr)
        return 2
    gc.set_threshold(LOOSE_THRESHOLD, 20, 20)
    try:
        return _run_front_end(sys.argv[1:])
    except KeyboardInterrupt:  # while the command line was still loading
        return 130
    finally:
        gc.freeze()  # what lives now lives to the end: to look through it once more is a tenth of a short command


def _run_front_end(args: list[str]) -> int:
    text = _ready_text(args)
    if text:
        try:
            sys.stdout.write(text)
            sys.stdout.flush()
            return 0
        except (OSError, AttributeError):  # closed pipe, full disk or no stdout: the whole CLI knows what to do
            pass
    from tdbg import cli

    return cli.main(args)


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
