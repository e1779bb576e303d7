"""The reference pages under docs/: commands, flags, events, findings."""

import ast
import inspect
from collections.abc import Iterable, Sequence
from itertools import groupby

from tdbg.cli import pages

ASKS = ("patch_at", "for_each_function", "iter_targets")  # how a place of torch is asked for
NOTICE = "\n<!-- Written by `tdbg docs`; change the source, not this file. -->\n"


def render_cli(found: list[pages.Page]) -> str:
    """docs/cli.md: the help page of every command."""
    parts = ["# The command line", NOTICE, _render_exit_codes()]
    parts += [f"## {page.path}\n\n```text\n{pages.render_page(page)}```\n" for page in found]
    return "\n".join(parts)


def _render_exit_codes() -> str:
    from tdbg.cli.generate import man

    return (
        "`--` ends tdbg's options; so does the first word of a wrapped command. tdbg speaks on stderr, each line\n"
        "begins with `tdbg:`; stdout is data, and under `tdbg run` it is the program's alone.\n\n"
        f"Exit status of `tdbg run`:\n\n{_render_table(('code', 'meaning'), man.STATUS_OF_A_WRAPPER)}\n"
        f"Exit status of every other command:\n\n{_render_table(('code', 'meaning'), man.STATUS)}"
    )


def render_flags() -> str:
    """docs/flags.md: the flag table and the presets."""
    from tdbg.core.flags import FLAGS, PRESETS, thresholds

    parts = ["# Debug flags", NOTICE, "Switched on with `tdbg run -f FLAG`; `tdbg flags show FLAG` shows one.\n"]
    for group, members in groupby(FLAGS, key=lambda flag: flag.group):
        rows = [(f"`{flag.name}`", f"{flag.summary} {flag.help}", _format_code_list(flag.aliases)) for flag in members]
        parts.append(f"## {group}\n\n{_render_table(('flag', 'what and when', 'also'), rows)}")
    bounds = [(f"`{name}`", f"{bound.default:g}", bound.summary) for name, bound in thresholds().items()]
    table = _render_table(("threshold", "default", "meaning"), bounds)
    parts.append(f"## Thresholds\n\nSet with `tdbg run --threshold NAME=VALUE`.\n\n{table}")
    presets = [(f"`{name}`", _format_code_list(members)) for name, members in PRESETS.items()]
    parts.append(
        f"## Presets\n\nSwitched on with `tdbg run --preset NAME`.\n\n{_render_table(('preset', 'flags'), presets)}"
    )
    return "\n".join(parts)


def render_events() -> str:
    """docs/events.md: the schema of every event."""
    from tdbg.core.events import describe

    parts = [
        "# Events",
        NOTICE,
        "A line of `events.jsonl` is one JSON object. `type` and `v` (the version of the type) come first; a field at\n"
        "its default is left out; a number that is not finite is the string `nan`, `inf` or `-inf`. A line without its\n"
        "newline is torn and is ignored, as are unknown types and unknown fields.\n",
    ]
    for cls, rows in describe():
        about = " ".join((cls.__doc__ or "").split())
        table = _render_table(
            ("field", "type", "meaning"), [(f"`{name}`", f"`{kind}`", text) for name, kind, text in rows]
        )
        parts.append(f"## {cls.TYPE} (version {cls.VERSION})\n\n{about}\n\n{table}")
    return "\n".join(parts)


def render_probes() -> str:
    """docs/probes.md: what each probe reads, what it costs, and the fields of its observations."""
    from tdbg.core.flags import FLAGS
    from tdbg.core.observations import field_lines
    from tdbg.core.observations.preflight import Refused
    from tdbg.probes import PROBES

    parts = [
        "# Probes",
        NOTICE,
        "A probe works in the ranks of a run. Its flag wakes it, or a level. What it sees goes into `events.jsonl` as\n"
        "an observation, and as a line under the flag's tag into `debug_log_rankN.txt`.\n",
    ]
    for probe in sorted(PROBES, key=lambda probe: probe.name):
        woken = [flag.name for flag in FLAGS if flag.probe == probe.name]
        by = ", ".join([*(f"`--flag {name}`" for name in woken), *(f"level {level}" for level in probe.levels)])
        about = inspect.cleandoc(probe.__doc__ or "")
        if probe.name == Refused.PROBE:
            by = "`tdbg run --preflight`"
        by = by or "nobody; the program calls it ([Losses](loss.md))"
        parts.append(f"## {probe.name}\n\nWoken by: {by}.\n\n```text\n{about}\n```\n")
        for kind in probe.observations:
            docstring = " ".join((kind.__doc__ or "").split())
            table = _render_table(
                ("field", "meaning"), [(f"`{name}`", text) for name, text in field_lines([kind]).items()]
            )
            parts.append(
                f"### {probe.name} {kind.PART or '(each look)'}\n\n{docstring} Evidence: {kind.EVIDENCE.value}.\n\n{table}"
            )
        if probe.fields and not probe.observations:
            parts.append(
                _render_table(("field", "meaning"), [(f"`{name}`", text) for name, text in probe.fields.items()])
            )
    return "\n".join([*parts, render_torch_places(), render_foreign_patches()])


def render_torch_places() -> str:
    """Every function and every table of hooks of torch that tdbg stands in front of."""
    from tdbg.runtime.torch_hooks import PLACES, TABLES

    functions, askers = [], _find_askers()
    for name, place in PLACES.items():
        found = place.found() if place.found is not None else []
        where = [
            (owner.__name__, "") if inspect.ismodule(owner) else (owner.__module__, owner.__qualname__ + ".")
            for owner, _ in found
            if inspect.ismodule(owner) or inspect.isclass(owner)
        ]
        paths = [f"{module}:{cls}{held}" for (module, cls), (_, held) in zip(where, found, strict=True)]
        asked = _format_code_list(askers.get(name, ()))
        functions.append((f"`{name}`", place.why, _format_code_list([*place.paths, *paths]), asked))
    tables = [(f"`{name}`", why, f"`{register.__name__}`") for name, (why, register) in TABLES.items()]
    return "\n".join(
        [
            "## Functions of torch that tdbg wraps",
            "Functions that are wrapped while somebody asks for them; nothing else of torch is replaced. The wrappers are\n"
            "taken away when the run's level or flags no longer need them. What stays is that of `compile`, which does\n"
            "nothing once the rank has made an update, and what `--preflight` puts into place (`inject/redirects.py`).\n",
            _render_table(("place", "what is seen there", "functions", "asked for by"), functions),
            "Tables of hooks for all modules and optimizers:\n",
            _render_table(("table", "what is seen there", "registered by"), tables),
        ]
    )


def _find_askers() -> dict[str, list[str]]:
    """Place of torch -> the files of tdbg that ask for it."""
    from pathlib import Path

    import tdbg
    from tdbg.runtime.torch_hooks import PLACES

    root, found = Path(tdbg.__file__).parent, dict[str, list[str]]()
    files = [path for path in sorted(root.rglob("*.py")) if path != root / "probes/__init__.py"]  # it passes on
    for path in files:
        for place in _list_asked(ast.parse(path.read_text(encoding="utf-8"))) & PLACES.keys():
            found.setdefault(place, []).append(path.relative_to(root).as_posix())
    return found


def _list_asked(tree: ast.Module) -> set[str]:
    """The places that a file asks for by name; where one is in a variable, all of its strings."""
    calls = [node for node in ast.walk(tree) if isinstance(node, ast.Call) and node.args]
    first = [call.args[0] for call in calls if getattr(call.func, "attr", getattr(call.func, "id", "")) in ASKS]
    is_open = any(not isinstance(place, ast.Constant) for place in first)
    nodes = ast.walk(tree) if is_open else first
    return {node.value for node in nodes if isinstance(node, ast.Constant) and isinstance(node.value, str)}


def render_foreign_patches() -> str:
    """Every function of Python and of other packages that tdbg stands in front of."""
    from tdbg.inject.foreign_patches import PATCHES

    rows = [
        (f"`{name}`", found.why, _format_code_list(found.paths), f"`{found.file}`", found.undone)
        for name, found in PATCHES.items()
    ]
    return "\n".join(
        [
            "## Functions of Python and other packages that tdbg wraps",
            "A package is wrapped when the program imports it; others are not touched.\n",
            _render_table(("patch", "what for", "functions", "by", "taken away"), rows),
        ]
    )


def render_findings() -> str:
    """docs/findings.md: the page of every rule."""
    from tdbg.metrics.sanity import RULES as METRICS
    from tdbg.rules import RULES

    parts = ["# Findings", NOTICE, "`tdbg explain CODE` prints one of these.\n"]
    for rule in (*RULES, *METRICS):
        parts.append(
            f"## {rule.code}: {rule.title}\n\nUsual severity: {rule.severity}.\n\n{_render_prose(rule.page())}\n"
        )
    return "\n".join([*parts, render_trace_rules()])


def render_trace_rules() -> str:
    """The page of every rule of `tdbg trace advise`."""
    from tdbg.traces.rules import RULES

    parts = [
        "# Advice on traces",
        "What `tdbg trace advise` says; a threshold NAME is set with `--threshold NAME=VALUE`.\n",
    ]
    for rule in RULES:
        limits = ", ".join(f"`{name}` {value:g}" for name, value in rule.thresholds.items())
        about = f"Thresholds: {limits}. Source: {rule.source}."
        parts.append(f"## {rule.code}: {rule.title}\n\n{_render_prose(rule.page())}\n\n{about}\n")
    return "\n".join(parts)


def _render_prose(text: str) -> str:
    """Plain help text as Markdown: its indented lines become code."""
    blocks = [f"```text\n{piece}\n```" if verbatim else piece for piece, verbatim in pages.split_paragraphs(text)]
    return "\n\n".join(block for block in blocks if block)


def _format_code_list(words: Iterable[str]) -> str:
    return ", ".join(f"`{word}`" for word in words)


def _render_table(columns: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    lines = ["| " + " | ".join(columns) + " |", "|" + " --- |" * len(columns)]
    lines += ["| " + " | ".join(cell.replace("|", "\\|") for cell in row) + " |" for row in rows]
    return "\n".join(lines) + "\n"
