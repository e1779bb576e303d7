"""``python -m tdbg.launch.store_claim URL TOKEN``: take a URL for a run, before its command is started.

A process of its own: libraries of stores start threads, and the supervisor must have none when it forks the command.
It prints a JSON object: nothing in it where all went well, else what is wrong, and whether another try can help.
"""

import contextlib
import json
import subprocess
import sys

from tdbg.core.errors import TdbgError
from tdbg.core.guard import undo_on_error
from tdbg.core.output import print_messages
from tdbg.core.redaction import redact_text
from tdbg.launch.run_upload import claim_place, is_final
from tdbg.pages.read.remote_store import Store

PATIENCE_S = 30.0
SLOW_S = 3.0  # then it is said what is waited for


def try_claim(url: str, token: str) -> bool:
    """True if the URL is this run's now; False where the store gave no answer. TdbgError where it refuses."""
    try:
        answer = dict(json.loads(_ask_other_process(url, token).splitlines()[-1]))
    except subprocess.TimeoutExpired:
        print_messages(f"--run-dir: {url} has not answered for {PATIENCE_S:g} s", "the command starts; tdbg will retry")
        return False
    except (OSError, ValueError, TypeError, IndexError):
        return False  # the thread that uploads tries again, and says what is wrong
    if answer.get("is_final"):
        raise TdbgError(f"--run-dir: {answer['error']}", answer["hint"])
    return "error" not in answer


def _ask_other_process(url: str, token: str) -> bytes:
    """What it prints. Raises TimeoutExpired; the process has ended in any case."""
    command = [sys.executable, "-P", "-m", "tdbg.launch.store_claim", url, token]
    null = subprocess.DEVNULL
    process = subprocess.Popen(command, stdin=null, stdout=subprocess.PIPE, stderr=null)
    with process, undo_on_error(process.kill):
        try:
            return process.communicate(timeout=SLOW_S)[0]
        except subprocess.TimeoutExpired:
            print_messages(f"--run-dir: waiting for {url}, for at most {PATIENCE_S:g} s")
        return process.communicate(timeout=PATIENCE_S - SLOW_S)[0]


def main() -> None:
    """Claim it, and print what came of it."""
    url, token = sys.argv[1:]
    answer: dict[str, object] = {}
    try:
        with contextlib.redirect_stdout(sys.stderr):  # what a library prints is no answer
            claim_place(Store(url), token)
    except TdbgError as error:
        answer = {"error": redact_text(str(error)), "hint": error.hint, "is_final": is_final(error)}
    print(json.dumps(answer))


if __name__ == "__main__":
    main()
