"""Imports torch once, then forks a process for each client; in the fork the program runs as the main program."""

import atexit
import gc
import importlib
import io
import os
import runpy
import select
import signal
import socket
import struct
import sys
import threading
import types


def load_modules() -> None:
    """Import what training programs have in common, and start no thread."""
    for name in ("numpy", "torch", "torch._dynamo", "torch.optim", "torch.utils.data", "torch.distributed.run"):
        importlib.import_module(name)
    gc.collect()
    gc.freeze()


def receive_request(link: socket.socket) -> tuple[list[bytes], list[int]]:
    """The fields of one request, and its open files."""
    head, rights, _, _ = link.recvmsg(4, socket.CMSG_SPACE(4 * 200))
    files = [number for _, _, data in rights for number in struct.unpack(f"{len(data) // 4}i", data)]
    data = link.recv(struct.unpack("<I", head)[0], socket.MSG_WAITALL)
    found, at = [], 0
    while at < len(data):
        (size,) = struct.unpack_from("<I", data, at)
        found.append(data[at + 4 : at + 4 + size])
        at += 4 + size
    return found, files


def serve_clients(address: str) -> tuple[list[bytes], list[int]]:
    """Accept clients until stdin closes; returns in each fork, with its request."""
    listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    listener.bind(address)
    listener.listen(64)
    wake, woken = os.pipe()
    os.set_blocking(woken, False)
    signal.set_wakeup_fd(woken)
    signal.signal(signal.SIGCHLD, lambda *_: None)
    print("ready", flush=True)
    links: dict[int, socket.socket] = {}  # of each child
    while True:
        ready, _, _ = select.select([listener, wake, 0, *links.values()], [], [])
        if 0 in ready:
            for pid in links:
                os.kill(pid, signal.SIGKILL)
            os._exit(0)
        if wake in ready:
            os.read(wake, 4096)
        for pid, link in list(links.items()):
            if link in ready and not link.recv(1):  # the client was killed
                os.kill(pid, signal.SIGKILL)
            done, status = os.waitpid(pid, os.WNOHANG)
            if done:
                try:
                    link.sendall(struct.pack("<i", status))
                except OSError:
                    pass
                links.pop(pid).close()
        if listener in ready:
            link, _ = listener.accept()
            request, files = receive_request(link)
            pid = os.fork()
            if not pid:
                signal.set_wakeup_fd(-1)
                signal.signal(signal.SIGCHLD, signal.SIG_DFL)
                for other in (listener, link, *links.values()):
                    other.close()
                os.close(wake)
                os.close(woken)
                return request, files
            for number in files:
                os.close(number)
            link.sendall(struct.pack("<i", pid))
            links[pid] = link


def take_files(received: list[int], numbers: list[int]) -> None:
    """Put the client's open files where it had them."""
    top = max([*numbers, *received]) + 1
    moved = []
    for number in received:
        moved.append(os.dup2(number, top + len(moved)))
        os.close(number)
    for high, number in zip(moved, numbers, strict=True):
        os.dup2(high, number)
        os.close(high)


def open_streams(unbuffered: bool) -> None:
    """The three standard streams, as the interpreter makes them."""
    for number, name in enumerate(("stdin", "stdout", "stderr")):
        try:
            raw = open(number, "wb" if number else "rb", -1, closefd=False)  # noqa: SIM115 - the program's own to close
        except OSError:
            stream = None
        else:
            lines = number == 2 or raw.isatty()
            errors = "backslashreplace" if number == 2 else "strict"
            through = unbuffered and number > 0
            stream = io.TextIOWrapper(raw, "utf-8", errors, line_buffering=lines, write_through=through)
            stream.mode = "w" if number else "r"
        setattr(sys, name, stream)
        setattr(sys, f"__{name}__", stream)


def become_client(request: list[bytes], received: list[int]) -> "tuple[types.ModuleType, str, str, bool]":
    """Turn the fork into the process of the client; returns the main module, what to run and in what way."""
    folder, mask = os.fsdecode(request[0]), int(request[1])
    n_args, n_env, n_files = (int(value) for value in request[2:5])
    rest = request[5:]
    args = [os.fsdecode(item) for item in rest[:n_args]]
    env = [os.fsdecode(item) for item in rest[n_args : n_args + n_env]]
    numbers = [int(item) for item in rest[n_args + n_env :]]
    keep = {0, 1, 2}
    # The client's listing of its files holds the one it listed with, which is closed by now.
    take_files(received, numbers[: len(received)] if n_files else sorted(keep))
    os.chdir(folder)
    os.umask(mask)
    os.environ.clear()
    os.environ.update(dict(zip(env[::2], env[1::2], strict=True)))
    unbuffered = "-u" in args[:1] or bool(os.environ.get("PYTHONUNBUFFERED"))
    open_streams(unbuffered)
    sys.orig_argv[:] = [sys.argv[2], *args]
    sys.executable = sys.argv[2]
    words = args[1:] if args[0] == "-u" else args
    numpy = sys.modules["numpy"]
    numpy.random.seed()
    paths = [os.path.abspath(entry) for entry in os.environ.get("PYTHONPATH", "").split(os.pathsep) if entry]
    sys.path[:] = [*paths, *sys.path[1:]]
    main = types.ModuleType("__main__")
    main.__builtins__ = __builtins__  # type: ignore[attr-defined]
    sys.modules["__main__"] = main
    sys.argv[:] = [""]
    try:
        importlib.import_module("sitecustomize")
    except ImportError:
        pass
    if words[0] in ("-c", "-m"):
        sys.argv[:] = [words[0], *words[2:]]
        sys.path.insert(0, "" if words[0] == "-c" else os.getcwd())
        return main, words[0], words[1], unbuffered
    sys.argv[:] = words
    sys.path.insert(0, os.path.dirname(os.path.realpath(words[0])))
    return main, "", words[0], unbuffered


def run_program(main: types.ModuleType, way: str, what: str) -> None:
    """Run the program as the interpreter would; an uncaught exception goes to the program's own hook."""
    try:
        if way == "-m":
            sys.modules.pop(what, None)  # run anew, as though it had not been loaded
            runpy._run_module_as_main(what)  # type: ignore[attr-defined]
        else:
            name = "<string>" if way else what
            if not way:
                main.__file__ = what
                main.__cached__ = None  # type: ignore[attr-defined]
                with io.open_code(os.path.abspath(what)) as file:
                    source: bytes | str = file.read()
            else:
                source = what + "\n"
            exec(compile(source, name, "exec", dont_inherit=True), main.__dict__)
    except SystemExit as end:
        finish_interpreter(end.code)
    except BaseException as error:
        trace = error.__traceback__
        while trace is not None and trace.tb_frame.f_code.co_filename == __file__:
            trace = trace.tb_next
        error.__traceback__ = trace
        sys.last_type, sys.last_value, sys.last_traceback = type(error), error, trace
        sys.excepthook(type(error), error, trace)
        finish_interpreter(130 if isinstance(error, KeyboardInterrupt) else 1)
    finish_interpreter(0)


def finish_interpreter(code: object) -> None:
    """What the interpreter does at its end, without taking the loaded modules apart, which costs a second."""
    if code is not None and not isinstance(code, int):
        print(code, file=sys.stderr)
        code = 1
    threading._shutdown()  # type: ignore[attr-defined]
    atexit._run_exitfuncs()
    for stream in (sys.stdout, sys.stderr):
        try:
            if stream is not None:
                stream.flush()
        except (OSError, ValueError):
            code = 120
    os._exit((code or 0) & 0xFF)


load_modules()
asked = serve_clients(sys.argv[1])
chosen = become_client(*asked)
del asked
run_program(*chosen[:3])
