"""What may lie in a run directory is opened in one place, `tdbg.core.run_files`; other ways stand here, each with its reason."""

import ast
from pathlib import Path

import tdbg

ROOT = Path(tdbg.__file__).parent
# Files that open, make or move something by themselves: what it is.
OTHER_WAYS = {
    "core/run_files.py": "the one place",
    "core/config_files.py": "the user's own folder, by a private draft",
    "core/rundir.py": "the run directory itself, and the folder it is in",
    "launch/join.py": "the run directory itself, and tdbg_runs",
    "launch/hook.py": "site-packages, which the user names",
    "launch/orphans.py": "/dev/null",
    "cli/__init__.py": "/dev/null",
    "cli/generate/__init__.py": "the source tree",
    "cli/flags.py": "a file that the user names",
    "logs/answer.py": "--output, which the user names, and /dev/null",
    "logs/guards/files.py": "the map of a source tree, which the user names",
    "metrics/tabling.py": "--out, which the user names",
    "pages/exporters/__init__.py": "--out, which the user names",
    "pages/remote.py": "a store, or the folder that stands for one",
    "traces/commands/show.py": "--html, which the user names",
    "traces/slices.py": "--out, which the user names",
    "debuggers/sequential.py": "a folder of pages, which the user names",
    "inject/boot_template.py": "files of boot/, relative to its folder: it cannot import tdbg",
    "inject/startup.py": "reads alone, relative to folders: it cannot import tdbg",
    "api/performance.py": "a temporary folder",
}
MAKING = {
    "write_text",
    "write_bytes",
    "mkdir",
    "makedirs",
    "mkstemp",
    "mkdtemp",
    "symlink_to",
    "hardlink_to",
    "symlink",
}


def writes(call: ast.Call) -> bool:
    """True for a call that makes a file or folder, or opens one for writing, as far as its text tells."""
    name = call.func.attr if isinstance(call.func, ast.Attribute) else getattr(call.func, "id", "")
    owner = call.func.value.id if isinstance(call.func, ast.Attribute) and isinstance(call.func.value, ast.Name) else ""
    if owner in ("run_files", "archive"):
        return False
    if name in MAKING:
        return True
    if name == "open" and owner == "os":
        return any(
            any(word in ast.unparse(argument) for word in ("O_CREAT", "O_RDWR", "flags")) for argument in call.args
        )
    if name in ("open", "GzipFile"):
        texts = [argument.value for argument in call.args if isinstance(argument, ast.Constant)]
        opened = any(
            isinstance(text, str) and text and set(text) <= set("wxabt+") and set(text) & set("wxa+") for text in texts
        )
        return opened and not any(
            isinstance(argument, ast.Name) and argument.id in ("raw", "file") for argument in call.args
        )
    return name in ("replace", "rename", "link") and owner == "os"


def test_what_lies_in_a_run_directory_is_opened_in_one_place() -> None:
    found = set()
    for path in sorted(ROOT.rglob("*.py")):
        calls = [node for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))) if isinstance(node, ast.Call)]
        if any(writes(call) for call in calls):
            found.add(path.relative_to(ROOT).as_posix())
    assert found == set(OTHER_WAYS), "write below a run directory with tdbg.core.run_files"
