"""The boot file in real processes: every way in, and nothing the program could notice."""

import json
import os
import shutil
import subprocess
import sys
import textwrap
import venv
from pathlib import Path
from typing import Any

import pytest

WATCHED = {"parcel": "tdbg_test_handler"}

HANDLER = """
import os
def arrive(module):
    with open(os.environ["ARRIVALS"], "a") as file:
        file.write(f"{os.getpid()} {module.__name__} {module.ready}\\n")
"""
# The handler writes what it saw; the program prints what it can see of tdbg.
PARCEL = "ready = True\nloader_inside = type(__spec__.loader).__name__ + str('exec_module' in vars(__spec__.loader))\n"


class Stage:
    """A folder with a watched module, its handler and a run that watches it."""

    def __init__(self, folder: Path, run: Any) -> None:
        self.run = run
        self.folder = folder
        self.log = folder / "arrivals.txt"
        self.modules = folder / "modules"
        self.modules.mkdir()
        (self.modules / "parcel.py").write_text(PARCEL)
        (self.modules / "tdbg_test_handler.py").write_text(HANDLER)

    def build_environment(self, *before: str, after: tuple[str, ...] = (), **extra: str) -> dict[str, str]:
        return self.run.build_environment(*before, after=(*after, str(self.modules)), ARRIVALS=str(self.log), **extra)

    def run_python(self, *args: str, **more: Any) -> subprocess.CompletedProcess[str]:
        more.setdefault("env", self.build_environment())
        return self.run.run_python(*args, cwd=self.folder, **more)

    @property
    def arrivals(self) -> list[str]:
        return self.log.read_text().splitlines() if self.log.exists() else []


@pytest.fixture
def boot_stage(tmp_path: Path, make_run: Any) -> Stage:
    return Stage(tmp_path, make_run(watch=WATCHED))


def write_script(stage: Stage, text: str, name: str = "s.py") -> str:
    path = stage.folder / name
    path.parent.mkdir(exist_ok=True, parents=True)
    path.write_text(textwrap.dedent(text))
    return str(path)


WAYS_ON = {
    "script": ["s.py"],
    "module": ["-m", "s"],
    "command": ["-c", "import parcel"],
    "no user site": ["-s", "s.py"],
    "safe path": ["-P", "s.py"],
    "no bytecode, optimised": ["-BO", "s.py"],
}


@pytest.mark.parametrize("args", WAYS_ON.values(), ids=WAYS_ON.keys())
def test_ways_in(boot_stage: Stage, args: list[str]) -> None:
    write_script(boot_stage, "import parcel")
    done = boot_stage.run_python(*args)
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")
    assert len(boot_stage.arrivals) == 1
    assert boot_stage.run.has_woken and not boot_stage.run.boot_errors


def test_stdin(boot_stage: Stage) -> None:
    assert boot_stage.run_python("-", stdin="import parcel").returncode == 0
    assert len(boot_stage.arrivals) == 1


def test_shell(boot_stage: Stage) -> None:
    write_script(boot_stage, "import parcel")
    subprocess.run(
        ["sh", "-c", f"{sys.executable} s.py"], env=boot_stage.build_environment(), cwd=boot_stage.folder, check=True
    )
    assert len(boot_stage.arrivals) == 1


@pytest.mark.parametrize("option", ["-I", "-E", "-S"])
def test_ways_that_stay_off(boot_stage: Stage, option: str) -> None:
    """Known limits, which the supervisor reports; `tdbg hook` is the way out for the first two."""
    done = boot_stage.run_python(option, "-c", "print('ran')")
    assert done.stdout == "ran\n"
    assert not boot_stage.run.has_woken


def test_empty_environment_is_off(boot_stage: Stage) -> None:
    assert boot_stage.run_python("-c", "print('ran')", env={}).stdout == "ran\n"
    assert not boot_stage.run.has_woken


@pytest.mark.parametrize("method", ["fork", "spawn", "forkserver"])
def test_multiprocessing(boot_stage: Stage, method: str) -> None:
    write_script(
        boot_stage,
        f"""
        import multiprocessing
        def work():
            import parcel
        if __name__ == "__main__":
            child = multiprocessing.get_context("{method}").Process(target=work)
            child.start(); child.join()
            raise SystemExit(child.exitcode)
        """,
    )
    done = boot_stage.run_python("s.py")
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")
    assert len(boot_stage.arrivals) == 1


def test_fork_after_arrival_keeps_its_modules(boot_stage: Stage) -> None:
    write_script(
        boot_stage,
        """
        import os, parcel
        pid = os.fork()
        if not pid:
            import parcel, json
            os._exit(0)
        raise SystemExit(os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]))
        """,
    )
    assert boot_stage.run_python("s.py").returncode == 0
    assert len(boot_stage.arrivals) == 1


def test_subprocess(boot_stage: Stage) -> None:
    write_script(
        boot_stage, "import subprocess, sys; subprocess.run([sys.executable, '-c', 'import parcel'], check=True)"
    )
    assert boot_stage.run_python("s.py").returncode == 0
    assert len(boot_stage.arrivals) == 1


def test_pythonpath_overwritten_and_prepended(boot_stage: Stage) -> None:
    code = "import os, subprocess, sys; {}; subprocess.run([sys.executable, '-c', 'import parcel'], check=True)"
    boot_stage.run_python("-c", code.format(f"os.environ['PYTHONPATH'] = {str(boot_stage.modules)!r}"))
    assert boot_stage.arrivals == []
    boot_stage.run_python("-c", code.format("os.environ['PYTHONPATH'] = '/nowhere:' + os.environ['PYTHONPATH']"))
    assert len(boot_stage.arrivals) == 1


def test_tdbg_variables_dropped(boot_stage: Stage) -> None:
    """DeepSpeed's pdsh launcher passes PYTHON* on, and little else."""
    env = {key: value for key, value in boot_stage.build_environment().items() if not key.startswith("TDBG_")}
    done = boot_stage.run_python("-c", "import os, parcel; print(os.environ['TDBG_RUN_DIR'])", env=env)
    assert done.stdout.strip() == str(boot_stage.run.path)
    assert len(boot_stage.arrivals) == 1


@pytest.fixture(scope="module")
def bare_venv(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("venv") / "bare"
    venv.create(folder, with_pip=False, symlinks=True)
    return folder


def find_site_packages(folder: Path) -> Path:
    return next(folder.glob("lib/python*/site-packages"))


def test_environment_without_tdbg(make_run: Any, bare_venv: Path, tmp_path: Path) -> None:
    """Only `tdbg` comes from tdbg's own folder; what lies beside it stays out of reach."""
    (tmp_path / "yacs").mkdir()
    (tmp_path / "yacs/__init__.py").touch()
    (tmp_path / "yacs/config.py").write_text("class CfgNode(dict): pass\n")
    run = make_run(watch={"yacs.config": "tdbg.inject.on"})
    code = (
        "import yacs.config, sys; print('tdbg.inject.on' in sys.modules, len(sys.path))\n"
        "import tdbg.core.flags, importlib.util\n"
        "print([importlib.util.find_spec(name) for name in ('torch', 'pytest', 'tests')])"
    )
    python = str(bare_venv / "bin/python")
    done = run.run_python("-c", code, python=python)
    bare = run.run_python("-c", "import sys; print(len(sys.path))", python=python, env={"PATH": os.environ["PATH"]})
    assert done.stderr == ""
    assert done.stdout == f"True {bare.stdout}[None, None, None]\n"
    assert "no attribute 'arrive'" in run.boot_errors  # tdbg.inject.on is no handler: said, not raised


def test_own_tdbg_of_the_program_wins(boot_stage: Stage) -> None:
    (boot_stage.folder / "tdbg.py").write_text("mine = True")
    write_script(boot_stage, "import tdbg; print(tdbg.mine)")
    assert boot_stage.run_python("s.py").stdout == "True\n"


# The user's own sitecustomize


def write_sitecustomize(folder: Path, text: str = "import sys; sys.users_own = __file__") -> str:
    folder.mkdir(exist_ok=True, parents=True)
    (folder / "sitecustomize.py").write_text(text)
    return str(folder)


SEE = "import sys; import sitecustomize; print(getattr(sys, 'users_own', None), sitecustomize.__file__)"
SHOW = f"{SEE}; import parcel"


def test_own_sitecustomize_after_ours(boot_stage: Stage) -> None:
    theirs = write_sitecustomize(boot_stage.folder / "theirs")
    done = boot_stage.run_python("-c", SHOW, env=boot_stage.build_environment(after=(theirs,)))
    assert done.stdout == f"{theirs}/sitecustomize.py {theirs}/sitecustomize.py\n"
    assert len(boot_stage.arrivals) == 1


def test_own_sitecustomize_in_site_packages(boot_stage: Stage, bare_venv: Path) -> None:
    theirs = write_sitecustomize(find_site_packages(bare_venv))
    try:
        python = str(bare_venv / "bin/python")
        done = boot_stage.run_python("-c", SHOW, python=python)
        bare = boot_stage.run_python("-c", SEE, python=python, env={"PATH": os.environ["PATH"]})
    finally:
        os.unlink(f"{theirs}/sitecustomize.py")
    assert bare.stdout and done.stdout == bare.stdout  # Debian's Python has one of its own, which comes first
    assert len(boot_stage.arrivals) == 1


def test_own_sitecustomize_before_ours_wins(boot_stage: Stage) -> None:
    """Off, as facts say; the supervisor reports that nobody woke."""
    theirs = write_sitecustomize(boot_stage.folder / "theirs")
    assert boot_stage.run_python("-c", "print('ran')", env=boot_stage.build_environment(theirs)).stdout == "ran\n"
    assert not boot_stage.run.has_woken


@pytest.mark.parametrize("text", ["1 / 0", "import no_such_module", "def f(:", "import sys; sys.exit(3)"])
def test_own_sitecustomize_that_fails_fails_as_before(boot_stage: Stage, text: str) -> None:
    theirs = write_sitecustomize(boot_stage.folder / "theirs", text)
    with_tdbg = boot_stage.run_python("-c", "print('ran')", env=boot_stage.build_environment(after=(theirs,)))
    env = {**boot_stage.build_environment(), "PYTHONPATH": theirs}
    without = boot_stage.run_python("-c", "print('ran')", env=env)
    assert (with_tdbg.returncode, with_tdbg.stdout) == (without.returncode, without.stdout)
    if "exit" not in text:  # Python dumps its whole stack then, with our frames in it
        assert with_tdbg.stderr == without.stderr
    assert boot_stage.run.has_woken


# Nothing to notice

LOOK = """
import importlib, importlib.util, sys, warnings, json, pickle
spec = importlib.util.find_spec("parcel")
before = type(spec.loader).__name__
import parcel
print(json.dumps({
    "path": [entry for entry in sys.path], "site": "sitecustomize" in sys.modules,
    "spec": before, "loader": type(parcel.__spec__.loader).__name__, "same": parcel.__loader__ is parcel.__spec__.loader,
    "extra": sorted(vars(parcel.__spec__.loader)), "inside": parcel.loader_inside, "filters": len(warnings.filters),
    "argv": sys.argv, "flags": str(sys.flags), "hooks": [sys.excepthook is sys.__excepthook__, sys.path_hooks == sys.path_hooks],
    "vars": sorted(key for key in vars(parcel) if not key.startswith("__")),
    "cached": parcel.__cached__, "origin": parcel.__spec__.origin, "reload": importlib.reload(parcel).ready,
}))
"""


def test_nothing_to_notice(boot_stage: Stage) -> None:
    write_script(boot_stage, LOOK)
    boot = str(boot_stage.run.boot)
    env = boot_stage.build_environment()
    bare = {**env, "PYTHONPATH": env["PYTHONPATH"].replace(boot + os.pathsep, "")}
    ours = boot_stage.run_python("-W", "error", "s.py", env=env)
    assert (ours.returncode, ours.stderr) == (0, "")
    theirs = json.loads(boot_stage.run_python("-W", "error", "s.py", env=bare).stdout)
    assert json.loads(ours.stdout) == theirs
    assert len(boot_stage.arrivals) == 1


BROKEN = "def deep():\n    raise RuntimeError('not today')\ndeep()\n"


def test_watched_module_that_fails_shows_its_own_traceback(boot_stage: Stage) -> None:
    (boot_stage.modules / "parcel.py").write_text(BROKEN)
    env = boot_stage.build_environment()
    bare = {**env, "PYTHONPATH": str(boot_stage.modules)}
    with_tdbg, without = (boot_stage.run_python("-c", "import parcel", env=each) for each in (env, bare))
    assert (with_tdbg.returncode, with_tdbg.stderr) == (1, without.stderr)
    assert boot_stage.arrivals == []


def test_watched_module_retried_after_a_failure(boot_stage: Stage) -> None:
    (boot_stage.modules / "parcel.py").write_text(
        "import sys\nif not hasattr(sys, 'ok'): raise ImportError('first')\nready = 1"
    )
    code = "import sys\ntry: import parcel\nexcept ImportError: sys.ok = 1\nimport parcel"
    assert boot_stage.run_python("-c", code).stderr == ""
    assert len(boot_stage.arrivals) == 1


def test_lazy_import_arrives_when_it_happens(boot_stage: Stage) -> None:
    code = """if True:
        import importlib.util, os, sys
        spec = importlib.util.find_spec("parcel")
        spec.loader = importlib.util.LazyLoader(spec.loader)
        module = importlib.util.module_from_spec(spec)
        sys.modules["parcel"] = module
        spec.loader.exec_module(module)
        print(os.path.exists(os.environ["ARRIVALS"]), module.ready)
    """
    assert boot_stage.run_python("-c", code).stdout == "False True\n"
    assert len(boot_stage.arrivals) == 1


def test_module_in_a_zip_file(boot_stage: Stage) -> None:
    shutil.make_archive(str(boot_stage.folder / "pack"), "zip", boot_stage.modules)
    shutil.rmtree(boot_stage.modules)
    (boot_stage.modules).mkdir()
    archive = str(boot_stage.folder / "pack.zip")
    done = boot_stage.run_python(
        "-c", "import parcel, tdbg_test_handler", env=boot_stage.build_environment(after=(archive,))
    )
    assert done.stderr == ""
    assert len(boot_stage.arrivals) == 1


def test_module_that_was_there_first(boot_stage: Stage) -> None:
    """A .pth file may import it before sitecustomize runs."""
    first = write_sitecustomize(
        boot_stage.folder / "first", "import parcel"
    )  # the outer file stands for any earlier import
    text = (boot_stage.run.boot / "sitecustomize.py").read_text()
    (boot_stage.run.boot / "sitecustomize.py").write_text(f"import parcel\n{text}")
    assert boot_stage.run_python("-c", "pass", env=boot_stage.build_environment(after=(first,))).stderr == ""
    assert len(boot_stage.arrivals) == 1


def test_handler_that_fails_is_noted(boot_stage: Stage) -> None:
    (boot_stage.modules / "tdbg_test_handler.py").write_text("def arrive(module): raise ValueError('two\\nlines')")
    done = boot_stage.run_python("-c", "import parcel; print(parcel.ready)")
    assert (done.stdout, done.stderr) == ("True\n", "")
    assert boot_stage.run.boot_errors.endswith("tdbg_test_handler: ValueError: two lines\n")


def test_run_directory_gone(boot_stage: Stage) -> None:
    shutil.copytree(boot_stage.run.boot, boot_stage.folder / "kept")
    shutil.rmtree(boot_stage.run.path)
    env = {**boot_stage.build_environment(), "PYTHONPATH": f"{boot_stage.folder}/kept:{boot_stage.modules}"}
    done = boot_stage.run_python("-c", "import parcel; print(parcel.ready)", env=env)
    assert (done.returncode, done.stdout, done.stderr) == (0, "True\n", "")


def test_run_inside_a_run(boot_stage: Stage, make_run: Any) -> None:
    """Two boot folders: the first is in charge, and each gives way to the next."""
    outer = make_run(watch=WATCHED)
    theirs = write_sitecustomize(boot_stage.folder / "theirs")
    done = boot_stage.run_python("-c", SHOW, env=boot_stage.build_environment(after=(str(outer.boot), theirs)))
    assert done.stdout.split()[0] == f"{theirs}/sitecustomize.py"
    assert len(boot_stage.arrivals) == 1
    assert boot_stage.run.has_woken and not outer.has_woken


def test_hook_name_does_not_chain(boot_stage: Stage) -> None:
    """`tdbg hook` runs the file under another name, before or without sitecustomize."""
    code = (
        f"import sys; path = {str(boot_stage.run.boot / 'sitecustomize.py')!r}\n"
        "exec(compile(open(path).read(), path, 'exec'), {'__name__': 'tdbg_boot', '__file__': path})\n"
        "import parcel"
    )
    env = {**boot_stage.build_environment(), "PYTHONPATH": str(boot_stage.modules)}
    done = boot_stage.run_python("-c", code, env=env)
    assert (done.returncode, done.stderr) == (0, "")
    assert len(boot_stage.arrivals) == 1


def test_old_python_gets_past_it(boot_stage: Stage) -> None:
    """No older interpreter may be at hand: the version is played."""
    path = boot_stage.run.boot / "sitecustomize.py"
    path.write_text(path.read_text().replace("sys.version_info < (3, 11)", "sys.version_info < (9,)"))
    done = boot_stage.run_python("-c", "import parcel; print('ran')")
    assert (done.stdout, done.stderr) == ("ran\n", "")
    assert (boot_stage.run.boot / "old-python").exists() and not boot_stage.run.has_woken
    assert boot_stage.arrivals == []


def test_boot_file_is_old_syntax() -> None:
    """Python 3.7 must be able to compile it, so that it can step aside."""
    import ast

    from tdbg.inject import boot_source

    text = boot_source("/run", "/parent", {"torch": "x"})
    assert text.isascii()  # whatever the locale, it can be read
    ast.parse(text, feature_version=(3, 7))


@pytest.mark.parametrize("path", ["/a b/c", "/it's", '/say "so"', "/übung", "/back\\slash", "/new\nline"])
def test_any_path_fits_into_the_boot_file(path: str) -> None:
    from tdbg.inject import boot_source

    names: dict[str, Any] = {"__name__": "tdbg_boot"}
    text = boot_source(path, path, {"torch": path}).replace("\n    _boot_process()", "\n    pass")
    exec(compile(text, "boot", "exec"), names)
    assert names["RUN_DIR"] == names["TDBG_PARENT"] == names["WATCH"]["torch"] == path


@pytest.mark.parametrize("name", ["parcel", "tdbg"])
def test_a_program_that_wraps_the_finders(boot_stage: Stage, name: str) -> None:
    """The finder is asked from within another one, and stands in the list no more."""
    write_script(
        boot_stage,
        f"""
        import sys
        class Wrapped:
            def __init__(self, finder): self.finder = finder
            def find_spec(self, *args): return self.finder.find_spec(*args)
        sys.meta_path[:] = [Wrapped(finder) for finder in sys.meta_path]
        import {name}
        """,
    )
    done = boot_stage.run_python("s.py")
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")


def test_whoever_asks_during_the_arrival_is_told_too(boot_stage: Stage) -> None:
    """For Python a module is still loading then, so that nobody takes it for complete."""
    (boot_stage.modules / "tdbg_test_handler.py").write_text(
        HANDLER
        + """
first = arrive
def arrive(module):
    import sys
    waker = next(finder for finder in sys.meta_path if getattr(finder, "tdbg_boot", False))
    waker.wanted.setdefault(module.__name__, []).append(first)
    first(module)
"""
    )
    done = boot_stage.run_python(write_script(boot_stage, "import parcel\nimport parcel\n"))
    assert done.returncode == 0, done.stderr
    assert [line.partition(" ")[2] for line in boot_stage.arrivals] == ["parcel True"] * 2
