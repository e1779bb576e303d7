"""Where tdbg stands in Python and in other packages than torch: one table, which nothing of tdbg's passes by."""

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

import tdbg
from tdbg.inject.foreign_patches import PATCHES, replace_function

ROOT = Path(tdbg.__file__).parent
FILES = {found.file for found in PATCHES.values()}
# What puts functions into place for others, which name what they want
MACHINERY = {
    "runtime/patches.py",
    "inject/foreign_patches.py",
    "inject/take.py",
    "inject/metrics/taps/__init__.py",
    "probes/__init__.py",
}
TORCH = "a function of torch's, from the table of torch_hooks"
OWN = "an object of tdbg's, or the values of a namespace of the program's"
ALLOWED = {
    "inject/boot_template.py": "the loader of one module, until that has run",
    "api/": OWN,
    "core/": OWN,
    "cli/": OWN,
    "traces/": OWN,
    "rules/": OWN,
    "pages/": OWN,
    "debuggers/attention_calls.py": TORCH,
    "probes/loss_calls/target_figures.py": OWN,
    "probes/profiler/span_marks.py": TORCH,
    "probes/device.py": TORCH,
    "probes/distributed/__init__.py": TORCH,
    "probes/preflight/__init__.py": "losses of the program's and of torch, under `--preflight`",
    "runtime/": TORCH,
    "probes/validation/random_draws.py": TORCH,
}


def _is_self(node: ast.expr) -> bool:
    while isinstance(node, ast.Attribute):
        node = node.value
    return isinstance(node, ast.Name) and node.id in ("self", "found", "seen")


def iter_patches(tree: ast.Module) -> Iterator[int]:
    """Lines at which something may be put in the place of a function: by a call, or by an assignment of a nested function."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Call):
            name = getattr(node.func, "attr", getattr(node.func, "id", ""))
            if (name == "setattr" and not _is_self(node.args[0])) or name in ("wrap_attribute", "patch"):
                yield node.lineno
        elif isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            nested = {one.name for one in ast.walk(node) if isinstance(one, ast.FunctionDef) and one is not node}
            for one in ast.walk(node):
                if not isinstance(one, ast.Assign) or not isinstance(one.targets[0], ast.Attribute):
                    continue
                used = {part.id for part in ast.walk(one.value) if isinstance(part, ast.Name)}
                if used & nested and not _is_self(one.targets[0]):
                    yield one.lineno


def _asks_the_table_of_torch(text: str) -> bool:
    return any(word in text for word in ("for_each_function(", "iter_targets("))


def list_unlisted(sources: dict[str, str]) -> list[str]:
    return [
        f"{file}:{line}"
        for file, text in sources.items()
        if file not in FILES | MACHINERY and not file.startswith(tuple(ALLOWED)) and not _asks_the_table_of_torch(text)
        for line in iter_patches(ast.parse(text))
    ]


@pytest.fixture(scope="module")
def sources() -> dict[str, str]:
    return {path.relative_to(ROOT).as_posix(): path.read_text(encoding="utf-8") for path in ROOT.rglob("*.py")}


def test_no_other_file_replaces_a_function(sources: dict[str, str]) -> None:
    assert list_unlisted(sources) == [], "add it to PATCHES of inject/foreign_patches.py"


@pytest.mark.parametrize(
    "text",
    [
        "def arrive(module):\n    setattr(module.Thing, 'run', len)\n",
        "def arrive(module):\n    def run():\n        pass\n    module.Thing.run = run\n",
        "def arrive(self, module):\n    self.patch(module.Thing, 'run', before=None)\n",
    ],
)
def test_one_more_is_seen(text: str, sources: dict[str, str]) -> None:
    assert len(list_unlisted({"inject/on/thing.py": text, "probes/lr.py": text})) == 2


def test_in_inject_a_function_is_set_in_place_by_the_table_alone(sources: dict[str, str]) -> None:
    """What is left of `setattr` there fills namespaces and nodes of a configuration."""
    found = {
        (file, ast.unparse(node.args[0]))
        for file, text in sources.items()
        if file.startswith("inject/") and file != "inject/foreign_patches.py"
        for node in ast.walk(ast.parse(text))
        if isinstance(node, ast.Call) and getattr(node.func, "id", "") == "setattr"
    }
    by_itself = ("inject/on/argparse_.py", "cls")  # the table is not loaded in every process that parses options
    assert found == {by_itself, ("inject/on/argparse_.py", "namespace"), ("inject/on/jsonargparse_.py", "node")}


@pytest.mark.parametrize("patch", PATCHES)
def test_what_is_listed_is_there(patch: str, sources: dict[str, str]) -> None:
    found = PATCHES[patch]
    assert found.why and found.undone and found.paths
    text = sources[found.file]
    asks = "install_after_hook(" in text or "replace_function(" in text or "add_listeners(" in text
    assert asks or "_watch_calls(" in text or list(iter_patches(ast.parse(text)))
    assert all(":" in path for path in found.paths)


def test_every_name_that_is_asked_for_is_in_the_table(sources: dict[str, str]) -> None:
    asked = set()
    for text in sources.values():
        for node in ast.walk(ast.parse(text)):
            name = getattr(getattr(node, "func", None), "id", "")
            if isinstance(node, ast.Call) and name in ("replace_function", "install_after_hook"):
                asked |= {arg.value for arg in node.args if isinstance(arg, ast.Constant)} & PATCHES.keys()
    assert asked == {
        *("jsonargparse", "omegaconf", "hydra", "yacs", "trainers"),
        *("preflight-files", "preflight-libraries"),
    }
    with pytest.raises(KeyError):
        replace_function("unknown", object(), "run", None)
