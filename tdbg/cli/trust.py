"""`tdbg trust`: folders whose configuration files may make tdbg run, send or load something."""

from typing import TYPE_CHECKING, Annotated

import typer

from tdbg.cli import options

if TYPE_CHECKING:
    from tdbg.core.config_files import Trusted

Folder = Annotated[
    str | None, typer.Argument(metavar="DIR", help="The folder; everything below it is allowed with it.")
]
Remove = Annotated[bool, typer.Option("--remove", help="Withdraw what was allowed; exit code 1 if nothing was.")]
List = Annotated[bool, typer.Option("--list", help="Print the allowed folders; also without DIR.")]


def command(folder: Folder = None, remove: Remove = False, list_all: List = False, json: options.Json = False) -> int:
    """Allow a folder's configuration to run, send and load things.

        tdbg trust .
        tdbg trust --list
        tdbg trust --remove ~/src/project

    A pyproject.toml or tdbg.yaml comes with a cloned repository. By itself it sets only what tdbg records and says;
    an upload URL or a run directory in it is ignored, with a line that says so. Trust a folder whose authors you
    would let run code as you. It counts until the folder gets another owner. The list is kept in trusted.json of
    ~/.config/tdbg.
    """
    from tdbg.core import config_files
    from tdbg.core.errors import TdbgError

    if folder is not None and list_all:
        raise TdbgError("--list takes no folder", "leave out --list, or the folder")
    if folder is None and remove:
        raise TdbgError("--remove names no folder", "write: tdbg trust --remove DIR")
    if folder is None:
        return _show(config_files.load_trusted(), json)
    from pathlib import Path

    if remove:
        found = config_files.remove_trusted(Path(folder))
        print(f"no longer trusted: {folder}" if found else f"not in the list: {folder}")
        return 0 if found else 1
    print(f"trusted: {config_files.add_trusted(Path(folder)).path}")
    return 0


def _show(records: "list[Trusted]", json: bool) -> int:
    from tdbg.core.output import print_json, print_table
    from tdbg.core.ownership import user_name

    if json:
        print_json("trust", [{"path": record.path, "owner": record.owner} for record in records])
    else:
        print_table(("folder", "owner"), [(record.path, user_name(record.owner)) for record in records])
    return 0
