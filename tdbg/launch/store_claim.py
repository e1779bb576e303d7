"""``python -m tdbg.launch.store_claim URL TOKEN``: take a URL for a run, before its command is started.

A process of its own: libraries of stores start threads, and the supervisor must have none when it forks the command.
It prints a JSON object: nothing in it where all went well, else what is wrong, and whether another try can help.
"""

import contextlib
import json
import subprocess
import sys

from tdbg.core.errors import TdbgError
from tdbg.core.redaction import redact_text
from tdbg.launch.run_upload import claim_place, is_final
from tdbg.pages.read.remote_store import Store

PATIENCE_S = 30.0


def try_claim(url: str, token: str) -> bool:
    """True if the URL is this run's now; False where the store gave no answer. TdbgError where it refuses."""
    command = [sys.executable, "-P", "-m", "tdbg.launch.store_claim", url, token]
    try:
        done = subprocess.run(command, stdin=subprocess.DEVNULL, capture_output=True, timeout=PATIENCE_S, check=True)
        answer = json.loads(done.stdout.splitlines()[-1])
    except (OSError, subprocess.SubprocessError, ValueError, IndexError):
        return False  # the thread that uploads tries again, and says what is wrong
    if answer.get("is_final"):
        raise TdbgError(f"--run-dir: {answer['error']}", answer["hint"])
    return "error" not in answer


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
