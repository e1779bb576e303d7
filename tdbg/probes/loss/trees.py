"""A label hierarchy as a forest: roots, whole trees, depth, and what breaks it."""

from collections import Counter
from collections.abc import Hashable, Mapping, Sequence
from typing import Any

from torch import Tensor

from tdbg.core.tables import format_count, join_limited
from tdbg.probes.loss.loss_report import Fault, build_argument_error
from tdbg.probes.loss.taxonomy_reports import Hierarchy

Parents = dict[Hashable, Hashable | None]


def build_hierarchy(
    parents: Tensor | Sequence[int] | Mapping[object, Hashable | None], names: Sequence[str] | None
) -> Hierarchy:
    """Follow every node up to its root."""
    above = _as_mapping(parents)

    def label_node(node: Hashable) -> str:
        known = names is not None and isinstance(node, int) and 0 <= node < len(names)
        return str(names[node]) if known else _format_node(node)  # type: ignore[index, call-overload]

    orphans = [node for node, parent in above.items() if parent is not None and parent not in above]
    cycles = _find_cycles(above)
    depth = _compute_depths(above)
    roots = [node for node, parent in above.items() if parent is None]
    has_children = {parent for parent in above.values() if parent is not None}
    leaves = [node for node in above if node not in has_children]
    trees = _measure_trees(above, roots, depth, has_children)
    report = Hierarchy(
        nodes=len(above),
        roots=[label_node(root) for root in roots],
        metaclades=[{"root": label_node(root), **tree} for root, tree in trees.items()],
        leaves=len(leaves),
        depth=max(depth.values(), default=0),
        leaf_depths=dict(sorted(Counter(depth[node] for node in leaves if node in depth).items())),
        orphans=[f"{label_node(node)} (parent {label_node(above[node])})" for node in orphans],
        cycles=[[label_node(node) for node in cycle] for cycle in cycles],
    )
    report.findings = _find_faults(report)
    return report


def _find_faults(report: Hierarchy) -> list[Fault]:
    found = []
    if report.orphans:
        found.append(
            Fault(
                "TD-L010",
                f"{len(report.orphans)} of {format_count(report.nodes, 'node')} of the hierarchy have a parent that is no node",
                "error",
                what="orphans",
                evidence=[join_limited(report.orphans)],
                cause="a level of the hierarchy was filtered or reindexed, but the levels below were not",
                try_next="build parents from the same class map as the labels; -1 or None is a root",
            )
        )
    if report.cycles:
        shown = " > ".join([*report.cycles[0], report.cycles[0][0]])
        found.append(
            Fault(
                "TD-L010",
                f"the hierarchy has {len(report.cycles)} cycle{'' if len(report.cycles) == 1 else 's'}: {shown}",
                "error",
                what="cycles",
                evidence=[" > ".join([*cycle, cycle[0]]) for cycle in report.cycles[:4]],
                cause="a class has the name of one above it, or child and parent are exchanged in a row",
                try_next="tell the ranks apart in the names of the nodes, such as ('genus', 'Prunella')",
            )
        )
    return found


def _as_mapping(parents: Any) -> Parents:
    if isinstance(parents, Mapping):
        if any(not isinstance(parent, Hashable) for parent in parents.values()):
            raise build_argument_error(
                "parents are no names", "give child -> parent, None for a root; not a tree of dictionaries"
            )
        return dict(parents)
    values = parents.tolist() if hasattr(parents, "tolist") else list(parents)
    if not all(isinstance(value, int) for value in values):
        raise build_argument_error(
            "parents are no whole numbers", "give the index of each node's parent, -1 for a root"
        )
    return {node: None if parent == -1 else parent for node, parent in enumerate(values)}


def _format_node(node: Hashable) -> str:
    return " ".join(map(str, node)) if isinstance(node, tuple) else str(node)


def _find_cycles(above: Parents) -> list[list[Hashable]]:
    """Every cycle once, from its first node on."""
    done: set[Hashable] = set()
    found = []
    for start in above:
        path: dict[Hashable, int] = {}
        node: Hashable | None = start
        while node is not None and node in above and node not in done and node not in path:
            path[node] = len(path)
            node = above[node]
        if node is not None and node in path:
            found.append([other for other, place in path.items() if place >= path[node]])
        done.update(path)
    return found


def _compute_depths(above: Parents) -> dict[Hashable, int]:
    """Steps from each node up to its root; those below an orphan or in a cycle have none."""
    depth: dict[Hashable, int] = {}
    lost: set[Hashable] = set()
    for start in above:
        path: list[Hashable] = []
        seen: set[Hashable] = set()
        node: Hashable | None = start
        while node is not None and node in above and node not in depth and node not in lost and node not in seen:
            path.append(node)
            seen.add(node)
            node = above[node]
        if node is None or node in depth:
            base = -1 if node is None else depth[node]
            for steps, other in enumerate(reversed(path), 1):
                depth[other] = base + steps
        else:
            lost.update(path)
    return depth


def _measure_trees(
    above: Parents, roots: list[Hashable], depth: dict[Hashable, int], has_children: set[Hashable]
) -> dict[Hashable, dict[str, int]]:
    """Size, leaves and depth of the tree below each root."""
    trees = {root: {"nodes": 0, "leaves": 0, "depth": 0} for root in roots}
    root_of: dict[Hashable, Hashable] = {}
    for node in sorted(depth, key=depth.__getitem__):
        parent = above[node]
        root_of[node] = node if parent is None else root_of[parent]
        tree = trees[root_of[node]]
        tree["nodes"] += 1
        tree["leaves"] += node not in has_children
        tree["depth"] = max(tree["depth"], depth[node])
    return trees
