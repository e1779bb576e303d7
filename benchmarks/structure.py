"""Figures of the source itself: circles, upward imports, types that say nothing, and what stands twice.

``python benchmarks/structure.py [TREE]`` prints them for ``TREE/tdbg`` (this tree if left out), ``--json`` as JSON, and
``--where FIGURE`` the places behind one. The text of the files is read; nothing of them is imported.

- circles: groups of files that import each other, over all imports: at the top, in functions, under TYPE_CHECKING.
- upward: pairs of files whose first imports the second, which stands on a higher floor, or in another domain of its floor.
- any: the name ``Any`` in annotations, per 1,000 lines.
- blanket: ``except Exception`` and wider, alone or among others, per 1,000 lines.
- values_get: ``values.get(`` in ``rules/``: a rule that reads what a probe saw by the text of its name.
- torch_inside: files that name a private part of torch, or set an attribute of it.
- stems: names that two or more files share, other than those of packages. Not counted: a probe and the observations it
  emits (``probes/amp.py``, ``core/observations/amp.py``), whose one name is how each is found from the other, and the
  re-exports that the documentation names (``tdbg/errors.py``). ``shared_stems_all`` counts these too.
"""

import argparse
import ast
import json
import re
import statistics
import sys
from collections import defaultdict
from collections.abc import Iterator, Sequence
from graphlib import CycleError, TopologicalSorter
from pathlib import Path
from typing import NamedTuple

HERE = Path(__file__).resolve().parents[1]
FLOORS: tuple[tuple[str, ...], ...] = (
    ("version", "core.errors", "core.guard"),
    (
        "core.flags",
        "core.registry",
        "core.events",
        "core.observations",
        "core.frames",
        "core.host",
        "core.lazy_pattern",
        "core.lines",
        "core.output",
        "core.escapes",
        "core.files",
        "core.redaction",
        "core.window",
        "core.conditions",
        "core.directions",
        "core.ranges",
        "core.command_spec",
        "core.capture",
        "core.profiling",
        "core.urls",
        "core.tables",
        "core.terminal",
        "core.webpage",
        "core.curve_points",
        "core.step_clock",
        "core.time_lanes",
        "core.step_anomalies",
        "core.heat_grid",
        "core.output_file",
        "core.ownership",
        "core.run_files",
        "core.native_stack",
        "core.stack_tree",
        "core.sink_files",
        "core.deprecation",
        "core.rule_base",
        "core.source_tree",
        "core.steady_growth",
        "core.user_cache",
    ),
    ("core.config", "core.config_files", "core.rundir", "core.control", "core.flag_variable"),
    ("errors", "events", "flags", "registry", "core", "logs", "metrics", "pages", "runtime", "rules", "traces"),
    ("probes",),
    ("launch", "inject", "debuggers", "compare", "viewer", "api"),
    ("cli",),
    ("__main__",),
)
FLOOR = {part: number for number, parts in enumerate(FLOORS) for part in parts}
SEPARATE = 3  # the six domains never import each other
RE_EXPORTS = {f"tdbg/{name}.py" for name in ("errors", "events", "flags", "registry")}  # of the files in tdbg/core
PRIVATE = re.compile(r"\btorch(\.\w+)*\._[a-zA-Z]")


class Source(NamedTuple):
    """One file of tdbg."""

    name: str  # as imported: tdbg.rules.view
    path: Path
    lines: list[str]
    tree: ast.Module

    @property
    def part_name(self) -> str:
        """The part of tdbg that it belongs to; empty for the package itself, which names the Python API."""
        return name_part(self.name.split(".")[1:])


def name_part(words: Sequence[str]) -> str:
    """The part that a module belongs to: a folder, or in the shared core a file."""
    known = [word for word in words[:2] if word != "__init__"]
    return ".".join(known) if known[:1] == ["core"] else "".join(known[:1])


def read_sources(tree: Path) -> dict[str, Source]:
    """Every file below ``tree/tdbg`` by its name."""
    found = {}
    for path in sorted((tree / "tdbg").rglob("*.py")):
        parts = path.relative_to(tree).with_suffix("").parts
        name = ".".join(parts[:-1] if parts[-1] == "__init__" else parts)
        text = path.read_text(encoding="utf-8")
        found[name] = Source(name, path.relative_to(tree), text.splitlines(), ast.parse(text))
    return found


def find_imports(source: Source, sources: dict[str, Source]) -> set[str]:
    """The files of tdbg that a file names in any import, wherever it stands."""
    found = set()
    for node in ast.walk(source.tree):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module:
            whole = {f"{node.module}.{alias.name}" for alias in node.names}
            files = {name for name in whole if name in sources}
            found |= files if files == whole else files | {node.module}
    return {name for name in found if name in sources and name != source.name}


def find_cycles(edges: dict[str, set[str]]) -> list[list[str]]:
    """Groups of files of which each reaches every other."""
    graph, groups = {name: set(others) for name, others in edges.items()}, []
    while True:
        try:
            TopologicalSorter(graph).prepare()
            return groups
        except CycleError as error:
            group = _find_component(graph, error.args[1][0])
            groups.append(sorted(group))
            for name in group:
                graph[name] -= group


def _find_component(graph: dict[str, set[str]], start: str) -> set[str]:
    back: dict[str, set[str]] = defaultdict(set)
    for name, others in graph.items():
        for other in others:
            back[other].add(name)
    return _find_reachable(graph, start) & _find_reachable(back, start)


def _find_reachable(graph: dict[str, set[str]], start: str) -> set[str]:
    seen, open_ = {start}, [start]
    while open_:
        for other in graph.get(open_.pop(), ()):
            if other not in seen:
                seen.add(other)
                open_.append(other)
    return seen


def is_upward_import(source: Source, other: Source) -> bool:
    """True for an import that the floors forbid. KeyError for a part that has no floor: it would go unwatched."""
    if "" in (source.part_name, other.part_name) or source.part_name == other.part_name:
        return False
    own, theirs = FLOOR[source.part_name], FLOOR[other.part_name]
    return theirs > own or theirs == own == SEPARATE


def find_places(sources: dict[str, Source]) -> dict[str, list[str]]:
    """What each figure counts, a line for each."""
    edges = {name: find_imports(source, sources) for name, source in sources.items()}
    found: dict[str, list[str]] = {
        "circles": [" ".join(group) for group in find_cycles(edges)],
        "upward": sorted(
            f"{name} -> {other}"
            for name in edges
            for other in edges[name]
            if is_upward_import(sources[name], sources[other])
        ),
        "stems": _find_shared_stems(sources),
    }
    for kind, look in (
        ("any", _iter_any_lines),
        ("blanket", _iter_blanket_lines),
        ("values_get", _iter_values_get_lines),
        ("torch_inside", _iter_torch_internals),
    ):
        found[kind] = [f"{one.path}:{line}" for one in sources.values() for line in look(one)]
    return found


def _find_shared_stems(sources: dict[str, Source], *, everything: bool = False) -> list[str]:
    files: dict[str, list[str]] = defaultdict(list)
    for source in sources.values():
        if source.path.name != "__init__.py" and (everything or not _is_namesake(source, sources)):
            files[source.path.stem].append(source.path.as_posix())
    return [f"{stem}: {' '.join(paths)}" for stem, paths in sorted(files.items()) if len(paths) > 1]


def _is_namesake(source: Source, sources: dict[str, Source]) -> bool:
    """True for the observations of a probe of the same name, and for a documented re-export."""
    probe = source.name.replace("tdbg.core.observations.", "tdbg.probes.")
    return (probe != source.name and probe in sources) or source.path.as_posix() in RE_EXPORTS


def _iter_any_lines(source: Source) -> Iterator[int]:
    for node in ast.walk(source.tree):
        if isinstance(node, ast.Name) and node.id == "Any":
            yield node.lineno


def _iter_blanket_lines(source: Source) -> Iterator[int]:
    for node in ast.walk(source.tree):
        if not isinstance(node, ast.ExceptHandler):
            continue
        kinds = node.type.elts if isinstance(node.type, ast.Tuple) else [node.type]
        if any(kind is None or getattr(kind, "id", "") in ("Exception", "BaseException") for kind in kinds):
            yield node.lineno


def _iter_values_get_lines(source: Source) -> Iterator[int]:
    if source.part_name == "rules":
        for number, line in enumerate(source.lines, 1):
            yield from [number] * len(re.findall(r"\bvalues\.get\(", line))


def _iter_torch_internals(source: Source) -> Iterator[int]:
    """The first line that names a private part of torch, or puts something else in the place of a part of it."""
    if source.path.name in ("torch_compat.py", "torch_hooks.py"):
        return
    for number, line in enumerate(_blank_out_strings(source), 1):
        if PRIVATE.search(line) or re.search(r"patches\.(set|wrap|put|replace)\(\s*torch\b|^\s*torch\.[\w.]+ = ", line):
            yield number
            return


def _blank_out_strings(source: Source) -> list[str]:
    """Its lines with spaces in place of what stands in quotes: docstrings name what others use."""
    lines = [line.encode() for line in source.lines]
    for node in ast.walk(source.tree):
        if isinstance(node, ast.Constant) and isinstance(node.value, str) and node.end_lineno is not None:
            for number in range(node.lineno - 1, node.end_lineno):
                first = node.col_offset if number == node.lineno - 1 else 0
                last = (node.end_col_offset or 0) if number == node.end_lineno - 1 else len(lines[number])
                lines[number] = lines[number][:first] + b" " * (last - first) + lines[number][last:]
    return [line.decode() for line in lines]


def compute_figures(sources: dict[str, Source]) -> dict[str, float]:
    """The figures by name."""
    found = find_places(sources)
    lines = sum(len(source.lines) for source in sources.values())
    sizes = sorted(
        (node.end_lineno or node.lineno) - node.lineno + 1
        for source in sources.values()
        for node in ast.walk(source.tree)
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
    )
    per_1000 = 1000 / lines
    return {
        "files": len(sources),
        "lines": lines,
        "circles": len(found["circles"]),
        "upward": len(found["upward"]),
        "any_per_1000": round(len(found["any"]) * per_1000, 2),
        "blanket_per_1000": round(len(found["blanket"]) * per_1000, 2),
        "values_get": len(found["values_get"]),
        "torch_inside_files": len(found["torch_inside"]),
        "shared_stems": len(found["stems"]),
        "shared_stems_all": len(_find_shared_stems(sources, everything=True)),
        "function_lines_median": statistics.median(sizes),
        "function_lines_p95": sizes[int(len(sizes) * 0.95)],
    }


def main() -> int:
    """Print the figures of one tree."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("tree", nargs="?", type=Path, default=HERE)
    parser.add_argument("--json", action="store_true")
    parser.add_argument(
        "--where", choices=("circles", "upward", "stems", "any", "blanket", "values_get", "torch_inside")
    )
    given = parser.parse_args()
    sources = read_sources(given.tree)
    if given.where:
        print("\n".join(find_places(sources)[given.where]))
    elif given.json:
        print(json.dumps(compute_figures(sources), indent=2))
    else:
        for name, value in compute_figures(sources).items():
            print(f"{name:22} {value:g}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
