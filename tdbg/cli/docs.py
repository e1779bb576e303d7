"""`tdbg docs` (hidden): write the generated files of the source tree, check them, or list every text that tdbg can say."""

from pathlib import Path

from tdbg.core.command_spec import JSON, Args, Argument, Command, Option, Options
from tdbg.core.errors import TdbgError, suggest_name

HELP = """Write the generated files: man pages, completions, help, docs.

    `tdbg docs messages` writes nothing: it lists every text that tdbg can say, with its place in the source.

    Examples:
        tdbg docs all
        tdbg docs all --check
        tdbg docs messages --kind error
    """
MESSAGES = "messages"
OPTIONS: Options = {
    "check": Option(("--check",), "", "Write nothing; exit 1 if a file is stale."),
    "root": Option(("--root",), "DIR", "The source tree."),
    "kind": Option(
        ("--kind",),
        "NAME",
        "Of messages: finding, observation, field, note, error, warning, help, output or text.",
    ),
    "json": JSON,
}


class DocsArgs(Args):
    """What `docs` can be given."""

    what: str = ""
    check: bool = False
    root: str | None = None
    kind: str = ""
    json: bool = False


def generate_docs(args: DocsArgs) -> int:
    """Write them, or say which are stale; 1 if one is."""
    from tdbg.cli import generate

    if args.what == MESSAGES:
        if args.check:
            raise TdbgError("--check is for generated files, not for messages", "try `tdbg docs all --check`")
        list_messages(args)
        return 0
    for option in ("kind", "json"):
        if getattr(args, option):
            raise TdbgError(f"--{option} is for messages, not for {args.what}", "try `tdbg docs messages`")
    place = Path(args.root) if args.root else find_source_tree()
    files = {name: text for part in select_parts(args.what) for name, text in generate.PARTS[part]().items()}
    changed = generate.list_stale_files(files, place) if args.check else generate.write_files(files, place)
    for name in changed:
        print(f"{'stale' if args.check else 'written'}: {name}" if name in files else f"obsolete: {name}")
    return 1 if args.check and changed else 0


def list_messages(args: DocsArgs) -> None:
    """Print the texts that tdbg can say, of one kind or of all."""
    from tdbg.cli.generate import messages
    from tdbg.core.output import print_json
    from tdbg.core.tables import print_table

    if args.kind and args.kind not in messages.KINDS:
        raise TdbgError(
            f"no message is of the kind {args.kind!r}",
            suggest_name(args.kind, messages.KINDS, f"known: {', '.join(messages.KINDS)}"),
        )
    source = Path(args.root) / "tdbg" if args.root else None
    if source is not None and not source.is_dir():
        raise TdbgError(
            f"--root {args.root}: no source tree of tdbg", "name the folder that holds tdbg/, or leave it out"
        )
    found = messages.extract_messages(args.kind, source)
    if args.json:
        print_json("messages", [message._asdict() for message in found])
    else:
        print_table(messages.Message._fields, found)


def select_parts(what: str) -> list[str]:
    """The parts that ``what`` names."""
    from tdbg.cli.generate import PARTS

    if what == "all":
        return list(PARTS)
    if what in PARTS:
        return [what]
    raise TdbgError(f"no generated file is called {what!r}", f"known: {', '.join(PARTS)}, all, {MESSAGES}")


def find_source_tree() -> Path:
    """Where this tdbg was checked out; TdbgError if it was installed from a wheel."""
    import tdbg

    place = Path(tdbg.__file__).parent.parent
    if not (place / "pyproject.toml").is_file():
        raise TdbgError(f"{place} is no source tree of tdbg", "run it in a checkout, or name one with --root")
    return place


ARGUMENT = Argument(
    "WHAT",
    "help, man, completions, cli, flags, events, probes, findings or all; or messages.",
    field="what",
    many=False,
    required=True,
)
COMMAND = Command(generate_docs, DocsArgs, HELP, OPTIONS, ARGUMENT)
