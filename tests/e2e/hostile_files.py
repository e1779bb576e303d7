"""Files that somebody else made, of every bad kind; and the program that gives them to tdbg and measures it.

As a program: reads cases (a list of command lines) as JSON on stdin and prints what became of each; all of them in this
one process, which has tdbg loaded already.
"""

import gzip
import json
import os
import random
import resource
import signal
import sys
import tempfile
import zlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

MAX_S = 20  # of processor time
STUCK_S = 60  # by the clock: it waits for something that never comes
MAX_MB = 300
DEEP = b"[" * 200_000 + b"]" * 200_000
DIGITS = b"9" * 100_000
SPARSE_BYTES = 10 << 30
LOG_BYTES = 30 << 20  # a log is read to its end, however long it is


def _write_bomb(path: Path, good: bytes) -> None:
    """30 MB of one letter in thirty kilobytes."""
    pack = zlib.compressobj(9, zlib.DEFLATED, 31)
    block = b"a" * (1 << 20)
    with path.open("wb") as file:
        for _ in range(30):
            file.write(pack.compress(block))
        file.write(pack.flush())


def _write_sparse(path: Path, good: bytes) -> None:
    path.write_bytes(good)
    is_log = path.name.endswith((".log", ".txt")) or path.name.startswith("records")
    os.truncate(path, LOG_BYTES if is_log else SPARSE_BYTES)


def _write_corrupt(path: Path, good: bytes) -> None:
    text = b"".join(b"%d %d\n" % (at, random.Random(at).getrandbits(64)) for at in range(5000))
    packed = bytearray(gzip.compress(good + text))
    packed[len(packed) // 2 : len(packed) // 2 + 40] = bytes(40)
    path.write_bytes(packed)


def _write_locked(path: Path, good: bytes) -> None:
    path.write_bytes(good)
    path.chmod(0)


# kind -> writes such a file; good: what a sound file of its place holds
PLAIN: dict[str, Callable[[Path, bytes], Any]] = {
    "fifo": lambda path, good: os.mkfifo(path),
    "zero": lambda path, good: path.symlink_to("/dev/zero"),
    "full": lambda path, good: path.symlink_to("/dev/full"),
    "folder": lambda path, good: path.mkdir(),
    "sparse": _write_sparse,
    "deep": lambda path, good: path.write_bytes(DEEP + b"\n"),
    "deep in a record": lambda path, good: path.write_bytes(good + b'{"type":"note","v":1,"x":' + DEEP + b"}\n"),
    "huge line": lambda path, good: path.write_bytes(good + b"x" * (20 << 20)),
    "nul bytes": lambda path, good: path.write_bytes(good + bytes(100_000) + b"\n" + good),
    "bad utf-8": lambda path, good: path.write_bytes(good + b"\xff\xfe\xc3\x28\xed\xa0\x80\n" * 1000),
    "huge number": lambda path, good: path.write_bytes(good.replace(b"1", b"1e999999")),
    "many digits": lambda path, good: path.write_bytes(good.replace(b"1", DIGITS)),
    "rank -1": lambda path, good: path.write_bytes(good.replace(b'"rank":0', b'"rank":-1')),
    "rank 2^63": lambda path, good: path.write_bytes(good.replace(b'"rank":0', b'"rank":9223372036854775808')),
    "keys twice": lambda path, good: path.write_bytes(good.replace(b'"t":', b'"t":1,"t":')),
    "empty": lambda path, good: path.write_bytes(b""),
    "loop": lambda path, good: path.symlink_to(path),
    "locked": _write_locked,
}
PACKED: dict[str, Callable[[Path, bytes], Any]] = {
    "cut": lambda path, good: path.write_bytes(gzip.compress(good * 2000)[:-300]),
    "corrupt": _write_corrupt,
    "not gzip": lambda path, good: path.write_bytes(b"plain text\n" * 100),
    "bomb": _write_bomb,
    "empty": lambda path, good: path.write_bytes(b""),
    "deep": lambda path, good: path.write_bytes(gzip.compress(DEEP)),
    "zero": lambda path, good: path.symlink_to("/dev/zero"),
}


class TooSlowError(BaseException):
    """The time is up."""


def _raise_too_slow(*_: object) -> None:
    raise TooSlowError


def _measure_used_s() -> float:
    used = os.times()
    return used.user + used.system + used.children_user + used.children_system


def _read_memory_mb(kind: str) -> float:
    """``VmHWM``, the peak, or ``VmRSS``, what is held now."""
    with open("/proc/self/status", encoding="ascii") as file:
        return next(int(line.split()[1]) / 1000 for line in file if line.startswith(kind))


def run_command(words: list[str]) -> dict[str, Any]:
    """Run one command line here; returns what it printed and cost."""
    from tdbg import __main__

    kept = os.dup(1), os.dup(2)
    begun, code, held_mb = _measure_used_s(), -1, 0.0
    with tempfile.TemporaryFile() as out, tempfile.TemporaryFile() as err:
        os.dup2(out.fileno(), 1), os.dup2(err.fileno(), 2)
        signal.alarm(STUCK_S)
        try:
            with open("/proc/self/clear_refs", "w", encoding="ascii") as file:
                file.write("5")  # the peak begins anew
            held_mb = _read_memory_mb("VmRSS")
            sys.argv = ["tdbg", *words]
            code = __main__.main()
            sys.stdout.flush()
        except TooSlowError:
            code = -2
        finally:
            signal.alarm(0)
            sys.stdout.flush(), sys.stderr.flush()
            os.dup2(kept[0], 1), os.dup2(kept[1], 2)
            os.close(kept[0]), os.close(kept[1])
        took, mb = _measure_used_s() - begun, _read_memory_mb("VmHWM")
        err.seek(0)
        told = err.read(20_000).decode("utf-8", "replace")
        size, grown_mb = out.seek(0, os.SEEK_END), mb - held_mb
        return {"code": code, "err": told, "out": size, "s": took, "mb": mb, "grown_mb": grown_mb}


def main() -> None:
    import numpy  # noqa: F401 - what readers load on demand is no part of what a file costs

    import tdbg.cli  # noqa: F401

    signal.signal(signal.SIGALRM, _raise_too_slow)
    resource.setrlimit(resource.RLIMIT_AS, (4 << 30, 4 << 30))
    for line in sys.stdin:
        print(json.dumps(run_command(json.loads(line))), flush=True)


if __name__ == "__main__":
    main()
