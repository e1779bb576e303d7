"""`tdbg view`: runs in the browser."""

import contextlib
import sys

from tdbg.core.command_spec import Args, Argument, Command, Option, Options

TYPE_CHECKING = False  # what `typing` says, without its import
if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from tdbg.viewer.run_library import RunLibrary

HELP = """Show runs in the browser, and serve them as an HTTP API on 127.0.0.1.

        tdbg view
        tdbg view train --open
        tdbg view tdbg_runs --port 8000
        tdbg view s3://bucket/runs

    Print an address with a token; the page keeps a session for it. Nothing else on this machine or the network can
    read the pages without that token. To open it from another machine, forward the port there and open the same address:
    `ssh -N -L PORT:127.0.0.1:PORT USER@HOST`. In an SSH session, and where there is no display, that line is printed.
    """
OPTIONS: Options = {
    "port": Option(("--port",), "PORT", "The port to listen on; 0: any free one.", least=0),
    "open": Option(("--open",), "", "Open the address in a browser."),
    "routes": Option(("--routes",), "", "Print the addresses of the HTTP API, and end."),
    "control": Option(("--control",), "", "Allow the pages to change level and flags of a live run."),
}
ARGUMENT = Argument(
    "RUN", "A run, a folder of runs, or the URL of either; ./tdbg_runs if left out.", field="run", many=False
)


class ViewArgs(Args):
    """What `view` can be given."""

    run: str | None = None
    port: int = 0
    open: bool = False
    routes: bool = False
    control: bool = False


def view_runs(args: ViewArgs) -> int:
    """Serve until Ctrl-C."""
    from tdbg.core.urls import Url, parse_location
    from tdbg.launch.run_copies import RunCopies, is_on_store

    if args.run is None or not is_on_store(args.run) or isinstance(parse_location(args.run), Url):
        return serve_runs(args)
    with RunCopies("all") as copies:  # a folder that stands for a store
        args.run = copies.copy_run(args.run)
        return serve_runs(args)


def serve_runs(args: ViewArgs) -> int:
    """Serve what is on this machine, or below a URL."""
    from urllib.parse import quote

    from tdbg.core.errors import TdbgError
    from tdbg.core.output import print_lines
    from tdbg.core.tables import print_table

    try:
        from tdbg.viewer.routes import list_routes
        from tdbg.viewer.run_library import Served
        from tdbg.viewer.server import LOOPBACK, bind_socket, build_app, serve
        from tdbg.viewer.sessions import Sessions
    except ModuleNotFoundError as error:
        raise TdbgError(f"tdbg view needs {error.name}", "install the extra: pip install 'tdbg[view]'") from None
    if args.routes:
        print_table(("method", "address", "answer"), [(one.method, one.path, one.summary) for one in list_routes()])
        return 0
    sessions, library = Sessions(), _open_library(args)
    listener = bind_socket(args.port)
    port = listener.getsockname()[1]
    page = f"/runs/{quote(library.only.path.name, safe='')}/overview" if library.only is not None else "/runs"
    address = f"http://{LOOPBACK}:{port}{page}#token={sessions.token}"
    print_lines([address])
    _print_advice(LOOPBACK, port)
    served = Served(library, sessions, args.control)
    with open_browser(address) if args.open else contextlib.nullcontext():
        try:
            serve(build_app(served), listener)
        finally:
            served.drawings.close()
            served.traces.close()
            library.close()
    return 0


def _open_library(args: ViewArgs) -> "RunLibrary":
    """The runs that are named, on this machine or on a store."""
    from tdbg.core.errors import TdbgError
    from tdbg.core.urls import Url, parse_location
    from tdbg.viewer.run_library import RunLibrary

    place = parse_location(args.run) if args.run is not None else None
    if not isinstance(place, Url):
        return RunLibrary(None if place is None else str(place))
    if args.control:
        raise TdbgError("--control needs a run directory on this machine", "leave out --control")
    from tdbg.viewer.remote_runs import RemoteLibrary

    return RemoteLibrary(place)


def _print_advice(host: str, port: int) -> None:
    """How it is reached from another machine, and ended."""
    import getpass
    import os

    from tdbg.core.host import host_name
    from tdbg.core.output import print_messages

    if needs_forwarding(os.environ):
        try:
            user = getpass.getuser()
        except (KeyError, OSError):  # a container may give its user a number alone
            user = "USER"
        forward = f"ssh -N -L {port}:{host}:{port} {user}@{host_name()}"
        print_messages(f"to open it from another machine, run there first: {forward}")
    print_messages("press Ctrl-C to stop")


def needs_forwarding(environ: "Mapping[str, str]") -> bool:
    """True where no browser on this machine can show the address: in an SSH session, or on Linux without a display."""
    has_display = bool(environ.get("DISPLAY") or environ.get("WAYLAND_DISPLAY"))
    return "SSH_CONNECTION" in environ or (sys.platform == "linux" and not has_display)


@contextlib.contextmanager
def open_browser(address: str) -> "Iterator[None]":
    """Open an address in the browser, while it is served."""
    import threading
    import webbrowser

    with write_redirect(address) as page:
        threading.Thread(target=webbrowser.open, args=(page,), daemon=True).start()  # one in the terminal stays
        yield


@contextlib.contextmanager
def write_redirect(address: str) -> "Iterator[str]":
    """The address of a private page that leads to this one: the words of a command line are seen by other users."""
    import json
    import tempfile
    from pathlib import Path

    with tempfile.TemporaryDirectory(prefix="tdbg-view-", ignore_cleanup_errors=True) as folder:
        page = Path(folder) / "open.html"
        page.write_text(f"<!doctype html><script>location.replace({json.dumps(address)})</script>", encoding="utf-8")
        yield page.as_uri()


COMMAND = Command(view_runs, ViewArgs, HELP, OPTIONS, ARGUMENT, colors=False)
