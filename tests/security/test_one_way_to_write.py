"""What may lie in a run directory is opened in one place, `tdbg.core.run_files`, which `tdbg.core.files` reads with.

Other ways to write and to read stand here, each with its reason.
"""

import ast
from pathlib import Path

import tdbg

ROOT = Path(tdbg.__file__).parent
# Files that open, make or move something by themselves: what it is.
OTHER_WAYS = {
    "core/run_files.py": "the one place",
    "core/config_files.py": "the user's own folder, by a private draft",
    "core/user_cache.py": "a folder in the user's own cache",
    "core/rundir.py": "the run directory itself, and the folder it is in",
    "launch/join.py": "the run directory itself, and tdbg_runs",
    "launch/run_list.py": "the run directory itself, which is removed",
    "launch/joined_run.py": "the whole run directory, made beside its place",
    "launch/startup_files.py": "site-packages, which the user names",
    "launch/orphans.py": "/dev/null",
    "launch/shell_completions.py": "the user's own shell, which the user names",
    "cli/__init__.py": "/dev/null",
    "cli/generate/__init__.py": "the source tree",
    "cli/flags.py": "a file that the user names",
    "logs/run_filter.py": "--output, which the user names, and /dev/null",
    "logs/guards/program_files.py": "the map of a source tree, which the user names",
    "logs/guards/kept.py": "whose turn it is to read a source tree, in the user's own cache",
    "metrics/rows/table_files.py": "--out, which the user names",
    "pages/export/exporter.py": "--out, which the user names",
    "pages/read/remote_store.py": "a store, or the folder that stands for one",
    "core/output_file.py": "--html, which the user names",
    "traces/render/slice_file.py": "--out, which the user names",
    "debuggers/sequential.py": "a folder of pages, which the user names",
    "inject/boot_template.py": "files of boot/, relative to its folder: it cannot import tdbg",
    "inject/file_overlay.py": "what the program itself writes, below a folder of the run directory",
    "inject/startup.py": "reads alone, relative to folders: it cannot import tdbg",
    "api/performance.py": "a temporary folder",
    "cli/view.py": "a temporary folder",
    "viewer/remote_runs.py": "a temporary folder",
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


def is_writing(call: ast.Call) -> bool:
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
        if any(is_writing(call) for call in calls):
            found.add(path.relative_to(ROOT).as_posix())
    assert found == set(OTHER_WAYS), "write below a run directory with tdbg.core.run_files"


# Files that open something to read by themselves: what it is.
OTHER_READS = {
    "launch/shell_completions.py": "start-up files of the user's own shell",
    "core/registry.py": "what installed packages register, in their own folders",
    "core/run_files.py": "the one place",
    "core/files.py": "a descriptor that the one place opened",
    "core/config_files.py": "a configuration file, checked for its owner",
    "core/output.py": "/dev/null",
    "core/rundir.py": "/proc",
    "launch/stack_requests.py": "/proc",
    "core/host.py": "/proc",
    "core/webpage.py": "a file of tdbg's own",
    "viewer/server.py": "files of tdbg's own",
    "cli/flags.py": "a file that the user names",
    "cli/generate/__init__.py": "the source tree",
    "cli/generate/markdown.py": "the source tree",
    "cli/generate/messages.py": "the source tree",
    "core/user_cache.py": "a file in the user's own cache, checked for its owner",
    "__main__.py": "a file of tdbg's own",
    "inject/__init__.py": "a file of tdbg's own",
    "inject/boot_template.py": "boot/, relative to its folder: it cannot import tdbg",
    "inject/startup.py": "reads alone, relative to folders: it cannot import tdbg",
    "inject/on/torch_.py": "/proc",
    "probes/hang/hang_watch.py": "/proc",
    "probes/augmentation/worker_pipe.py": "/proc, a pipe of the process that spawned this worker",
    "launch/demo_train.py": "Python's own library, as a text to train on",
    "launch/git_state.py": ".git, checked and limited",
    "launch/host_pressure.py": "/proc and /sys",
    "launch/startup_files.py": "site-packages, which the user names",
    "launch/supervise.py": "/dev/tty",
    "logs/run_filter.py": "/dev/null",
    "logs/log_follower.py": "a pipe that the user names",
    "logs/log_files.py": "a pipe that the user names, and whether a device is a terminal",
    "pages/format/disk.py": "a folder, to have its names on the disk",
    "pages/render/html_report.py": "a file of tdbg's own",
    "probes/memory/host_memory.py": "/sys/fs/cgroup",
    "runtime/step_record.py": "/proc",
    "traces/analyze/trace_baseline.py": "a baseline, which the user names",
}
# What opens something else than a file by its name, or does so by `run_files`
OTHER_OPENERS = {"run_files", "RunDir", "PageSet", "LegacyPages", "webbrowser", "_pipe", "archive", "source", "opener"}
OPENERS = {"", "os", "io", "gzip", "bz2", "lzma", "zstandard", "tarfile", "zipfile", "mmap", "path"}


def is_reading(call: ast.Call) -> bool:
    """True for a call that opens a file by its name to read it, as far as its text tells."""
    name = call.func.attr if isinstance(call.func, ast.Attribute) else getattr(call.func, "id", "")
    owner = ast.unparse(call.func.value) if isinstance(call.func, ast.Attribute) else ""
    given = {ast.unparse(argument) for argument in (*call.args, *(one.value for one in call.keywords))}
    if is_writing(call) or owner == "run_files" or given & {"raw", "file"}:  # a file that is open already
        return False
    if name in ("read_text", "read_bytes"):
        return bool(owner)
    if name == "open" and owner and owner not in OPENERS:  # of a path, by any name
        return owner.rpartition(".")[2] not in OTHER_OPENERS
    return name in ("open", "GzipFile", "FileIO")


def test_what_lies_in_a_run_directory_is_read_in_one_place() -> None:
    found = set()
    for path in sorted(ROOT.rglob("*.py")):
        calls = [node for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))) if isinstance(node, ast.Call)]
        if any(is_reading(call) for call in calls):
            found.add(path.relative_to(ROOT).as_posix())
    assert found == set(OTHER_READS), "read what is below a run directory with tdbg.core.files or run_files"
