"""Figures of the source itself: circles, upward imports, types that say nothing, and what stands twice.

``python benchmarks/structure.py [TREE]`` prints them for ``TREE/tdbg`` (this tree if left out), ``--json`` as JSON, and
``--where FIGURE`` the places behind one. The text of the files is read; nothing of them is imported.

- circles: groups of files that import each other, over all imports: at the top, in functions, under TYPE_CHECKING.
- upward: pairs of files whose first imports the second, which stands on a higher floor, or in another domain of its floor.
- any: the name ``Any`` in annotations, per 1,000 lines.
- blanket: ``except Exception`` and wider, per 1,000 lines.
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
from collections.abc import Iterator
from graphlib import CycleError, TopologicalSorter
from pathlib import Path
from typing import NamedTuple

HERE = Path(__file__).resolve().parents[1]
FLOORS: tuple[tuple[str, ...], ...] = (
    ("errors", "version", "guard"),
    (
        *(
            "flags",
            "registry",
            "events",
            "observations",
            "output",
            "lines",
            "conditions",
            "directions",
            "ranges",
            "tables",
            "terminal",
        ),
        *(
            "urls",
            "window",
            "capture",
            "command_spec",
            "host",
            "lazy_pattern",
            "profiling",
            "webpage",
            "curve_points",
            "time_lanes",
            "heat_grid",
            "output_file",
            "frames",
            "source_tree",
        ),
        *("escapes", "files", "redaction", "ownership", "run_files", "deprecation", "rule_base"),
    ),
    ("config", "config_files", "flag_variable", "rundir", "control"),
    ("runtime", "rules", "logs", "metrics", "pages", "traces"),
    ("probes",),
    ("launch", "inject", "debuggers", "compare", "viewer", "api", ""),  # "": tdbg itself, which names the Python API
    ("cli",),
    ("__main__",),
)
FLOOR = {name: number for number, names in enumerate(FLOORS) for name in names}
DOMAINS = 3  # the floor whose members never import each other
RE_EXPORTS = {f"tdbg/{name}.py" for name in ("errors", "events", "flags", "registry")}  # of the files in tdbg/core
PRIVATE = re.compile(r"\btorch(\.\w+)*\._[a-z]")


class Source(NamedTuple):
    """One file of tdbg."""

    name: str  # as imported: tdbg.rules.view
    path: Path
    lines: list[str]
    tree: ast.Module

    @property
    def part_name(self) -> str:
        """The file or folder below ``tdbg/``, or below ``tdbg/core/``, that it belongs to."""
        parts = [part for part in self.name.split(".")[1:] if part != "core"]
        return parts[0] if parts else ""


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
    """True for an import that the floors forbid."""
    own, theirs = FLOOR.get(source.part_name), FLOOR.get(other.part_name)
    if own is None or theirs is None or source.part_name == other.part_name:
        return False
    return theirs > own or theirs == own == DOMAINS


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
        if isinstance(node, ast.ExceptHandler) and (
            node.type is None or getattr(node.type, "id", "") in ("Exception", "BaseException")
        ):
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
