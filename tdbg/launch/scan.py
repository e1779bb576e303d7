"""Which debug flags a program knows, read from its source and its YAML files. Nothing is executed.

A flag the table does not have may still be the program's own: before `tdbg run` calls it a mistake, it
looks here. The scan is bounded, so on a huge tree it may miss one; the program's config is asked again
in the rank.
"""

import ast
import os
import re
import shlex
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path

from tdbg.core.files import read_small_file
from tdbg.core.source_tree import parse_source

MAX_FILES = 2_000
MAX_BYTES = 20_000_000
MAX_FILE_BYTES = 1_000_000
MAX_PARSED_BYTES = 4_000_000
SKIPPED = {"__pycache__", "node_modules", "site-packages", "dist-packages", "tdbg_runs", "wandb", "build", "dist"}
LAUNCHERS = ("torch.distributed.", "accelerate.", "deepspeed.", "lightning.")
CONFIGS = re.compile(r"(cfg|conf|config|args?|opts?|options|hparams|params|settings|flags|_?c)$", re.IGNORECASE)
METHODS = frozenset(dir(dict)) | {"freeze", "defrost", "clone", "dump", "merge", "is_frozen", "set_new_allowed"}
PROMISING = re.compile(r"DEBUG|[.\"'\[]debug|--debug|class Debug|debug_flag|tdbg")
DOTTED = re.compile(r"DEBUG((?:\.[A-Z][A-Z0-9_]*)+)")
OPTION = re.compile(r"--debug[-_.]([a-z0-9][\w.-]*)", re.IGNORECASE)
YAML_BLOCK = re.compile(r"^(?:DEBUG|debug):[ \t]*(?:#.*)?\n((?:[ \t]+.*\n|[ \t]*(?:#.*)?\n)+)", re.MULTILINE)


def known_flags(command: Sequence[str], cwd: Path) -> set[str]:
    """The names, without ``DEBUG.`` and in upper case, of every flag the program's files mention."""
    found: set[str] = set()
    parsed = 0
    for path in _iter_files(find_roots(command, cwd)):
        text = _read_text(path)
        if not text or (not PROMISING.search(text) and path.parent.name != "debug"):
            continue
        parsed += len(text)
        if parsed > MAX_PARSED_BYTES:
            break
        found.update(python_flags(text) if path.suffix == ".py" else yaml_flags(text, path.parent.name == "debug"))
    names = {name.upper() for name in found}
    return {name for name in names if not any(other.startswith(f"{name}.") for other in names)}


def find_roots(command: Sequence[str], cwd: Path) -> list[Path]:
    """The folders of the script or module, then the current one (but never a home folder or the root)."""
    words = [part for word in command for part in (_split_words(word) if " " in word else [word])]
    found = []
    for place, word in enumerate(words):
        path = cwd / word
        if word.endswith(".py") and path.is_file():
            found.append(path.resolve().parent)
        elif word in ("-m", "--module") and place + 1 < len(words) and not words[place + 1].startswith(LAUNCHERS):
            top = words[place + 1].partition(".")[0]
            found += [folder / top for folder in (cwd, cwd / "src") if (folder / top).is_dir()]
    here = cwd.resolve()
    if here not in (Path.home(), Path(here.anchor), Path("/tmp")):
        found.append(here)
    return list(dict.fromkeys(found))


def _split_words(word: str) -> list[str]:
    """The words of a shell's command line, as in ``sh -c "python train.py"``."""
    try:
        return shlex.split(word)
    except ValueError:
        return []


def _iter_files(roots: Iterable[Path]) -> Iterator[Path]:
    """Python and YAML files, level by level, until the bounds are reached."""
    count = size = 0
    seen: set[Path] = set()
    for root in roots:
        for path in _walk_folders(root):
            if path in seen:
                continue
            seen.add(path)
            try:
                bytes_here = path.stat().st_size
            except OSError:
                continue
            count, size = count + 1, size + bytes_here
            if count > MAX_FILES or size > MAX_BYTES:
                return
            yield path


def _walk_folders(root: Path) -> Iterator[Path]:
    level = [root]
    while level:
        below: list[Path] = []
        for folder in level:
            try:
                entries = sorted(os.scandir(folder), key=lambda entry: entry.name)
            except OSError:
                continue
            for entry in entries:
                if entry.is_dir(follow_symlinks=False):
                    if _should_enter(entry):
                        below.append(Path(entry.path))
                elif entry.name.endswith((".py", ".yaml", ".yml")):
                    yield Path(entry.path)
        level = below


def _should_enter(entry: "os.DirEntry[str]") -> bool:
    if entry.name.startswith(".") or entry.name in SKIPPED:
        return False
    return not os.path.exists(os.path.join(entry.path, "pyvenv.cfg"))


def _read_text(path: Path) -> str:
    try:
        return read_small_file(path, MAX_FILE_BYTES).decode("utf-8", "replace")
    except OSError:
        return ""


def python_flags(source: str) -> set[str]:
    """The flags one Python file defines, reads or offers as options."""
    try:
        tree = parse_source(source)
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return set()
    reader = _Reader()
    try:
        reader.visit(tree)
    except RecursionError:  # an expression nested thousands deep; what was found so far stands
        pass
    return reader.found


class _Reader(ast.NodeVisitor):
    """Collects flag names from the shapes in which programs write them."""

    def __init__(self) -> None:
        self.found: set[str] = set()
        self._aliases: dict[str, list[str]] = {}  # D = cfg.DEBUG

    def visit_Assign(self, node: ast.Assign) -> None:
        path = self._parse_dotted_path(node.value)
        if path and path[-1].upper() == "DEBUG" and len(node.targets) == 1 and isinstance(node.targets[0], ast.Name):
            self._aliases[node.targets[0].id] = path
        self.generic_visit(node)

    def visit_Attribute(self, node: ast.Attribute) -> None:
        self._record_flag_path(self._parse_dotted_path(node))
        self.generic_visit(node)

    def visit_Subscript(self, node: ast.Subscript) -> None:
        self._record_flag_path(self._parse_dotted_path(node))
        self.generic_visit(node)

    def visit_Constant(self, node: ast.Constant) -> None:
        if isinstance(node.value, str):
            match = DOTTED.fullmatch(node.value)
            if match:
                self.found.add(match[1][1:])

    def visit_Dict(self, node: ast.Dict) -> None:
        for key, value in zip(node.keys, node.values, strict=True):
            if isinstance(key, ast.Constant) and key.value in ("DEBUG", "debug"):
                self.found.update(_dict_paths(value))
        self.generic_visit(node)

    def visit_ClassDef(self, node: ast.ClassDef) -> None:
        """``class DebugConfig: null_masking: bool = False`` as structured configs have it."""
        if node.name.startswith("Debug"):
            for item in node.body:
                if isinstance(item, ast.AnnAssign) and isinstance(item.target, ast.Name) and _is_bool(item.annotation):
                    self.found.add(item.target.id)
        self.generic_visit(node)

    def visit_Call(self, node: ast.Call) -> None:
        name = node.func.attr if isinstance(node.func, ast.Attribute) else getattr(node.func, "id", "")
        words = [item.value for item in node.args if isinstance(item, ast.Constant) and isinstance(item.value, str)]
        if name == "add_argument":
            for match in filter(None, map(OPTION.fullmatch, words)):
                self.found.add(match[1].replace("-", "_"))
        elif name in ("getattr", "hasattr", "setattr") and len(node.args) > 1 and words:
            self._record_flag_path([*self._parse_dotted_path(node.args[0]), words[0]])
        elif name == "get" and isinstance(node.func, ast.Attribute) and words:
            self._record_flag_path([*self._parse_dotted_path(node.func.value), words[0]])
        elif name.endswith("debug_flag") or (name in ("flag", "log") and _is_tdbg(node.func)):
            self.found.update(word.upper().removeprefix("DEBUG.") for word in words[:1])
        self.generic_visit(node)

    def _record_flag_path(self, path: list[str]) -> None:
        """Keep what stands below DEBUG in a dotted path; for ``debug``, only below something named like a config."""
        for place, word in enumerate(path[:-1]):
            if word == "DEBUG" or (word == "debug" and place and CONFIGS.search(path[place - 1])):
                below = path[place + 1 :]
                if all(part.isidentifier() and part not in METHODS for part in below):
                    self.found.add(".".join(below))
                return

    def _parse_dotted_path(self, node: ast.AST) -> list[str]:
        """``a.b["c"].d`` as its words; empty for anything else."""
        words: list[str] = []
        while True:
            if isinstance(node, ast.Attribute):
                words.append(node.attr)
                node = node.value
            elif (
                isinstance(node, ast.Subscript)
                and isinstance(node.slice, ast.Constant)
                and isinstance(node.slice.value, str)
            ):
                words.append(node.slice.value)
                node = node.value
            elif isinstance(node, ast.Name):
                return [*self._aliases.get(node.id, [node.id]), *reversed(words)]
            else:
                return []


def _is_bool(annotation: ast.expr) -> bool:
    return "bool" in ast.unparse(annotation)


def _is_tdbg(function: ast.expr) -> bool:
    return isinstance(function, ast.Name) or (
        isinstance(function, ast.Attribute) and isinstance(function.value, ast.Name) and function.value.id == "tdbg"
    )


def _dict_paths(node: ast.expr, prefix: str = "") -> Iterator[str]:
    """The leaves of a dict display, also inside a call such as ``CN({...})``."""
    if isinstance(node, ast.Call) and len(node.args) == 1:
        node = node.args[0]
    if not isinstance(node, ast.Dict):
        if prefix:
            yield prefix
        return
    for key, value in zip(node.keys, node.values, strict=True):
        if isinstance(key, ast.Constant) and isinstance(key.value, str):
            yield from _dict_paths(value, f"{prefix}.{key.value}" if prefix else key.value)


def yaml_flags(text: str, whole: bool = False) -> set[str]:
    """The flags under a top-level ``DEBUG:`` of one YAML file; ``whole``: a file of Hydra's group ``debug``."""
    import yaml

    found: set[str] = set()
    blocks = [text] if whole else [match[1] for match in YAML_BLOCK.finditer(f"{text}\n")]
    for block in blocks:
        try:
            found.update(_iter_leaf_paths(yaml.safe_load(block), ""))
        except (yaml.YAMLError, RecursionError, ValueError):
            continue
    return found


def _iter_leaf_paths(node: object, prefix: str) -> Iterator[str]:
    if isinstance(node, dict):
        for key, value in node.items():
            if isinstance(key, str):
                yield from _iter_leaf_paths(value, f"{prefix}.{key}" if prefix else key)
    elif prefix:
        yield prefix
