"""`tdbg docs` (hidden): write the generated files of the source tree, or check that they are up to date."""

from pathlib import Path

from tdbg.core.command_spec import Args, Argument, Command, Option, Options
from tdbg.core.errors import TdbgError

HELP = """Write the generated files: man pages, completions, help, docs.

    Examples:
        tdbg docs all
        tdbg docs all --check
    """
OPTIONS: Options = {
    "check": Option(("--check",), "", "Write nothing; exit 1 if a file is stale."),
    "root": Option(("--root",), "DIR", "The source tree."),
}


class DocsArgs(Args):
    """What `docs` can be given."""

    what: str = ""
    check: bool = False
    root: str | None = None


def run(args: DocsArgs) -> int:
    """Write them, or say which are stale; 1 if one is."""
    from tdbg.cli import generate

    place = Path(args.root) if args.root else source_tree()
    files = {name: text for part in parts(args.what) for name, text in generate.PARTS[part]().items()}
    changed = generate.stale(files, place) if args.check else generate.write(files, place)
    for name in changed:
        print(f"{'stale' if args.check else 'written'}: {name}" if name in files else f"obsolete: {name}")
    return 1 if args.check and changed else 0


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


ARGUMENT = Argument(
    "WHAT",
    "help, man, completions, cli, flags, events, probes, findings; or all.",
    field="what",
    many=False,
    required=True,
)
COMMAND = Command(run, DocsArgs, HELP, OPTIONS, ARGUMENT)
