"""`tdbg trust`: folders whose configuration files may make tdbg run, send or load something."""

from typing import TYPE_CHECKING

from tdbg.core.command_spec import JSON, Args, Argument, Command, Option, Options
from tdbg.core.output import print_json, print_lines

if TYPE_CHECKING:
    from tdbg.core.config_files import Trusted

HELP = """Allow a folder's configuration to run, send and load things.

        tdbg trust .
        tdbg trust --list
        tdbg trust --remove ~/src/project

    A pyproject.toml or tdbg.yaml comes with a cloned repository. By itself it sets only what tdbg records and says;
    an upload URL or a run directory in it is ignored, with a line that says so. Trust a folder whose authors you
    would let run code as you. It counts until the folder gets another owner. The list is kept in trusted.json of
    ~/.config/tdbg.
    """
OPTIONS: Options = {
    "remove": Option(("--remove",), "", "Withdraw what was allowed; exit code 1 if nothing was."),
    "list_all": Option(("--list",), "", "Print the allowed folders; also without DIR."),
    "json": JSON,
}


class TrustArgs(Args):
    """What `trust` can be given."""

    folder: str | None = None
    remove: bool = False
    list_all: bool = False
    json: bool = False


def trust_folder(args: TrustArgs) -> int:
    """Allow a folder, withdraw it, or print the list; 1 if there was nothing to withdraw."""
    from tdbg.core import config_files
    from tdbg.core.errors import TdbgError

    if args.folder is not None and args.list_all:
        raise TdbgError("--list takes no folder", "leave out --list, or the folder")
    if args.folder is None and args.remove:
        raise TdbgError("--remove names no folder", "write: tdbg trust --remove DIR")
    if args.folder is None:
        return _print_trusted(config_files.load_trusted(), args.json)
    from pathlib import Path

    if args.remove:
        found = config_files.remove_trusted(Path(args.folder))
        print_lines([f"no longer trusted: {args.folder}" if found else f"not in the list: {args.folder}"])
        return 0 if found else 1
    print_lines([f"trusted: {config_files.add_trusted(Path(args.folder)).path}"])
    return 0


def _print_trusted(records: "list[Trusted]", json: bool) -> int:
    from tdbg.core.ownership import user_name
    from tdbg.core.tables import print_table

    if json:
        print_json("trust", [{"path": record.path, "owner": record.owner} for record in records])
    else:
        print_table(("folder", "owner"), [(record.path, user_name(record.owner)) for record in records])
    return 0


ARGUMENT = Argument("DIR", "The folder; everything below it is allowed with it.", field="folder", many=False)
COMMAND = Command(trust_folder, TrustArgs, HELP, OPTIONS, ARGUMENT)
