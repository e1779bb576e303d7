"""`tdbg docs` (hidden): write the generated files of the source tree, or check that they are up to date."""

from pathlib import Path
from typing import Annotated

import typer

from tdbg.core.errors import TdbgError


def command(
    what: Annotated[
        str,
        typer.Argument(metavar="WHAT", help="help, man, completions, cli, flags, events, probes, findings; or all."),
    ],
    check: Annotated[bool, typer.Option("--check", help="Write nothing; exit 1 if a file is stale.")] = False,
    root: Annotated[Path | None, typer.Option("--root", metavar="DIR", help="The source tree.")] = None,
) -> int:
    """Write the generated files: man pages, completions, help, docs.

    Examples:
        tdbg docs all
        tdbg docs all --check
    """
    from tdbg.cli import generate

    place = root or source_tree()
    files = {name: text for part in parts(what) for name, text in generate.PARTS[part]().items()}
    changed = generate.stale(files, place) if check else generate.write(files, place)
    for name in changed:
        print(f"{'stale' if check else 'written'}: {name}" if name in files else f"obsolete: {name}")
    return 1 if check and changed else 0


def parts(what: str) -> list[str]:
    """The parts that ``what`` names."""
    from tdbg.cli.generate import PARTS

    if what == "all":
        return list(PARTS)
    if what in PARTS:
        return [what]
    raise TdbgError(f"no generated file is called {what!r}", f"known: {', '.join(PARTS)}, all")


def source_tree() -> Path:
    """Where this tdbg was checked out; TdbgError if it was installed from a wheel."""
    import tdbg

    place = Path(tdbg.__file__).parent.parent
    if not (place / "pyproject.toml").is_file():
        raise TdbgError(f"{place} is no source tree of tdbg", "run it in a checkout, or name one with --root")
    return place
