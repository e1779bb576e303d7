"""Hands a command to the server and ends as it ends; becomes an ordinary Python where that is not possible."""

import os
import signal
import socket
import struct
import sys

SOCKET = ""
PYTHON = ""
BEFORE: list[str] = []
FORWARDED = (
    signal.SIGTERM,
    signal.SIGINT,
    signal.SIGHUP,
    signal.SIGQUIT,
    signal.SIGUSR1,
    signal.SIGUSR2,
    signal.SIGCONT,
)


def pack_fields(*values: object) -> bytes:
    """Length and bytes of each value."""
    data = [os.fsencode(value) if isinstance(value, str) else str(value).encode() for value in values]
    return b"".join(struct.pack("<I", len(item)) + item for item in data)


def send_process() -> "socket.socket | None":
    """Send all that makes the process; None where only a fresh interpreter will do."""
    args = [*BEFORE, *sys.argv[1:]]
    plain = [word for word in args if word != "-u"]
    if not plain or (plain[0].startswith("-") and plain[0] not in ("-c", "-m")) or os.isatty(0):
        return None
    files = sorted(int(name) for name in os.listdir("/proc/self/fd"))
    files = [number for number in files if os.path.exists(f"/proc/self/fd/{number}")]
    link = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        link.connect(SOCKET)
    except OSError:
        return None
    mask = os.umask(0)
    os.umask(mask)
    env = [item for pair in os.environ.items() for item in pair]
    counts = (len(args), len(env), len(files))
    body = pack_fields(os.getcwd(), mask, *counts, *args, *env, *files)
    rights = struct.pack(f"{len(files)}i", *files)
    link.sendmsg([struct.pack("<I", len(body))], [(socket.SOL_SOCKET, socket.SCM_RIGHTS, rights)])
    link.sendall(body)
    return link


def main() -> None:
    """Hand over, forward signals, end alike."""
    ignored = [number for number in FORWARDED if signal.getsignal(number) == signal.SIG_IGN]
    link = send_process() if not ignored else None
    if link is None:
        os.execv(PYTHON, [PYTHON, *BEFORE, *sys.argv[1:]])
    pid = struct.unpack("<i", link.recv(4, socket.MSG_WAITALL))[0]
    for number in FORWARDED:
        signal.signal(number, lambda received, _frame: os.kill(pid, received))
    answer = link.recv(4, socket.MSG_WAITALL)
    if len(answer) < 4:
        os._exit(120)  # the server is gone
    status = struct.unpack("<i", answer)[0]
    if os.WIFSIGNALED(status):
        number = os.WTERMSIG(status)
        signal.signal(number, signal.SIG_DFL) if number not in (signal.SIGKILL, signal.SIGSTOP) else None
        os.kill(os.getpid(), number)
    os._exit(os.waitstatus_to_exitcode(status))


main()
