"""The generated files: each is rendered from the live command line, the flag table, the events or the rules."""

from collections.abc import Callable
from pathlib import Path

from tdbg.cli import pages
from tdbg.cli.generate import bash, fish, man, markdown, zsh

Files = dict[str, str]  # path in the source tree -> text


def all_pages() -> list[pages.Page]:
    """The page of every command that is not hidden."""
    from tdbg.cli import build_root_group

    return list(pages.walk_pages(build_root_group(), ("tdbg",)))


def help_text() -> Files:
    """What the thin front prints for a bare `--help`."""
    return {"tdbg/cli/help.txt": pages.render_page(all_pages()[0])}


def render_manual() -> Files:
    """A manual page for each command."""
    found = all_pages()
    return {f"man/{man.file_name(page)}": man.render_page(page, found) for page in found}


def render_completions() -> Files:
    """One script per shell; none calls tdbg while completing."""
    found = all_pages()
    return {
        "completions/tdbg.bash": bash.render_script(found),
        "completions/_tdbg": zsh.render_script(found),
        "completions/tdbg.fish": fish.render_script(found),
    }


PARTS: dict[str, Callable[[], Files]] = {
    "help": help_text,
    "man": render_manual,
    "completions": render_completions,
    "cli": lambda: {"docs/cli.md": markdown.render_cli(all_pages())},
    "flags": lambda: {"docs/flags.md": markdown.render_flags()},
    "events": lambda: {"docs/events.md": markdown.render_events()},
    "probes": lambda: {"docs/probes.md": markdown.render_probes()},
    "findings": lambda: {"docs/findings.md": markdown.render_findings()},
}


def list_stale_files(files: Files, root: Path) -> list[str]:
    """The files that are missing or differ, and manual pages of commands that are gone."""
    changed = [name for name, text in files.items() if _read_text(root / name) != text]
    if any(name.startswith("man/") for name in files):
        there = sorted(path.relative_to(root).as_posix() for path in (root / "man").glob("*.1"))
        changed += [name for name in there if name not in files]
    return changed


def write_files(files: Files, root: Path) -> list[str]:
    """Bring the source tree up to date; returns what was changed."""
    changed = list_stale_files(files, root)
    for name in changed:
        path = root / name
        if name in files:
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(files[name], encoding="utf-8")
        else:
            path.unlink()
    return changed


def _read_text(path: Path) -> str | None:
    try:
        return path.read_text(encoding="utf-8")
    except FileNotFoundError:
        return None
