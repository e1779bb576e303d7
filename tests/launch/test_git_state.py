"""git is asked without running anything that a repository configures."""

import json
import os
import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.launch.conftest import TDBG, build_clean_env

pytestmark = pytest.mark.skipif(shutil.which("git") is None, reason="needs git")


class Repository:
    """A repository with one commit, and a program that leaves a mark when it runs."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder / "repo"
        self.folder.mkdir()
        self.mark = folder / "ran"
        self.program = folder / "program"
        self.program.write_text(f"#!/bin/sh\necho $0 $* >> {self.mark}\ncat\n")
        self.program.chmod(0o755)
        self.run_git("init", "-q", "-b", "main")
        (self.folder / "a.txt").write_text("a\n")
        (self.folder / "b.bin").write_text("b\n")
        self.run_git("add", ".")
        self.run_git("commit", "-q", "-m", "one")

    def run_git(self, *words: str) -> str:
        env = {"PATH": os.environ["PATH"], "HOME": str(self.folder.parent), "GIT_CONFIG_NOSYSTEM": "1"}
        who = ["-c", "user.name=x", "-c", "user.email=x@y"]
        done = subprocess.run(
            ["git", *who, *words], cwd=self.folder, env=env, capture_output=True, text=True, check=True
        )
        return done.stdout.strip()

    def read_state(self, cwd: Path | None = None, **env: str) -> dict[str, object] | None:
        """What a run records, made by the command line; the home is not this machine's."""
        run = self.folder.parent / f"run{len(list(self.folder.parent.glob('run*')))}"
        words = [*TDBG, "run", "-q", "--run-dir", str(run), "--", "true"]
        home = {"HOME": str(self.folder.parent / "home"), "GIT_CONFIG_NOSYSTEM": "1"}
        kept = build_clean_env(**home, **env)
        done = subprocess.run(words, cwd=cwd or self.folder, env=kept, capture_output=True, text=True, timeout=60)
        assert done.returncode == 0, done.stderr
        found: dict[str, object] | None = json.loads((run / "run.json").read_text())["git"]
        return found

    def touch_files(self) -> None:
        """Have git look into the files: their times are new, their content is not."""
        for path in self.folder.glob("*.*"):
            os.utime(path, (1, 1))


@pytest.fixture
def repo(tmp_path: Path) -> Repository:
    return Repository(tmp_path)


def set_monitor(repo: Repository) -> None:
    repo.run_git("config", "core.fsmonitor", str(repo.program))


def install_clean_filter(repo: Repository) -> None:
    (repo.folder / ".git" / "info" / "attributes").write_text("*.bin filter=evil diff=evil\n")
    for name in ("clean", "smudge", "process"):
        repo.run_git("config", f"filter.evil.{name}", str(repo.program))
    repo.run_git("config", "filter.evil.required", "true")


def install_included_filter(repo: Repository) -> None:
    (repo.folder / ".git" / "info" / "attributes").write_text("*.bin filter=a.b\n")
    (repo.folder / ".git" / "more").write_text(f'[filter "a.b"]\n\tclean = {repo.program}\n')
    repo.run_git("config", "include.path", "more")


def install_hooks(repo: Repository) -> None:
    for name in ("post-index-change", "reference-transaction", "post-checkout"):
        shutil.copy(repo.program, repo.folder / ".git" / "hooks" / name)


def install_drivers(repo: Repository) -> None:
    (repo.folder / ".git" / "info" / "attributes").write_text("* diff=evil\n")
    for key in (
        "diff.external",
        "diff.evil.command",
        "diff.evil.textconv",
        "core.pager",
        "pager.status",
        "gpg.program",
    ):
        repo.run_git("config", key, str(repo.program))
    for key in ("alias.status", "alias.config", "alias.rev-parse", "alias.check-attr"):
        repo.run_git("config", key, f"!{repo.program}")


def set_absent_objects(repo: Repository) -> None:
    """A repository that fetches what it lacks, from a remote that is a command."""
    repo.run_git("config", "extensions.partialClone", "origin")
    repo.run_git("config", "core.repositoryFormatVersion", "1")
    repo.run_git("config", "remote.origin.url", f"ext::{repo.program}")
    repo.run_git("config", "remote.origin.promisor", "true")
    repo.run_git("config", "protocol.ext.allow", "always")
    tree = repo.run_git("rev-parse", "HEAD^{tree}")
    (repo.folder / ".git" / "objects" / tree[:2] / tree[2:]).unlink()


def add_submodule(repo: Repository) -> None:
    """A repository in the repository, with a monitor of its own."""
    inner = repo.folder / "inner"
    inner.mkdir()
    subprocess.run(["git", "init", "-q", inner], check=True)
    repo.run_git("-C", "inner", "commit", "-q", "--allow-empty", "-m", "x")
    repo.run_git("add", "inner")
    repo.run_git("commit", "-q", "-m", "two")
    repo.run_git("-C", "inner", "config", "core.fsmonitor", str(repo.program))


@pytest.mark.parametrize(
    "plant",
    [
        set_monitor,
        install_clean_filter,
        install_included_filter,
        install_hooks,
        install_drivers,
        set_absent_objects,
        add_submodule,
    ],
    ids=lambda f: f.__name__,
)
def test_nothing_that_a_repository_configures_runs(repo: Repository, plant: Callable[[Repository], None]) -> None:
    commit = repo.run_git("rev-parse", "HEAD")
    plant(repo)
    commit = (repo.folder / ".git" / "refs" / "heads" / "main").read_text().strip()
    repo.touch_files()
    repo.mark.unlink(missing_ok=True)
    found = repo.read_state()
    assert not repo.mark.exists(), repo.mark.read_text()
    assert found and found["commit"] == commit and found["branch"] == "main"


def test_nothing_that_the_environment_names_runs(repo: Repository) -> None:
    repo.touch_files()
    (repo.folder / "a.txt").write_text("changed\n")
    program = str(repo.program)
    env = dict.fromkeys(("GIT_EXTERNAL_DIFF", "GIT_PAGER", "GIT_SSH", "GIT_ASKPASS", "GIT_EDITOR"), program)
    env |= {"GIT_CONFIG_COUNT": "1", "GIT_CONFIG_KEY_0": "core.fsmonitor", "GIT_CONFIG_VALUE_0": program}
    env |= {"GIT_EXEC_PATH": str(repo.folder), "GIT_TRACE": str(repo.mark)}
    found = repo.read_state(**env)
    assert not repo.mark.exists(), repo.mark.read_text()
    assert found and found["dirty"] is True


def test_a_git_of_the_current_folder_does_not_run(repo: Repository) -> None:
    shutil.copy(repo.program, repo.folder / "git")
    repo.read_state(PATH=f".{os.pathsep}{os.pathsep}{os.environ['PATH']}")
    assert not repo.mark.exists()


def test_cleanliness_is_told_where_it_is_sure(repo: Repository) -> None:
    from tdbg.launch.git_state import read_state

    def dirty() -> object:
        return (read_state(repo.folder, 10.0) or {})["dirty"]

    assert dirty() is False
    install_clean_filter(repo)
    repo.touch_files()
    assert dirty() is False  # the content is the commit's, filter or not
    (repo.folder / "b.bin").write_text("changed\n")
    assert dirty() is None  # a filter might give the commit's content back
    (repo.folder / "a.txt").write_text("changed\n")
    assert dirty() is True
    assert not repo.mark.exists()


def test_heads_of_all_kinds(repo: Repository, tmp_path: Path) -> None:
    from tdbg.launch.git_state import read_state

    def head(folder: Path) -> tuple[object, object]:
        found = read_state(folder, 10.0) or {}
        return found.get("commit"), found.get("branch")

    commit = repo.run_git("rev-parse", "HEAD")
    (repo.folder / "below").mkdir()
    assert head(repo.folder / "below") == (commit, "main")
    repo.run_git("pack-refs", "--all")
    assert head(repo.folder) == (commit, "main")
    repo.run_git("worktree", "add", "-q", "-b", "feature/x", str(tmp_path / "tree"))
    assert head(tmp_path / "tree") == (commit, "feature/x")
    repo.run_git("checkout", "-q", "--detach")
    assert head(repo.folder) == (commit, "HEAD")
    (repo.folder / ".git" / "HEAD").write_text("ref: refs/heads/../../../../etc/passwd\n")
    assert head(repo.folder) == (None, None)
    (repo.folder / ".git" / "HEAD").unlink()
    os.mkfifo(repo.folder / ".git" / "HEAD")
    assert head(repo.folder) == (None, None)


@pytest.mark.skipif(os.geteuid() != 0 and not os.environ.get("PYTEST_NO_SKIPS"), reason="only root can be another user")
def test_anothers_repository_is_read_and_git_does_not_look_into_it(repo: Repository) -> None:
    set_monitor(repo)
    commit = repo.run_git("-c", "core.fsmonitor=false", "rev-parse", "HEAD")
    for path in (repo.folder, *repo.folder.rglob("*")):
        os.chown(path, 12345, 12345)
    repo.mark.unlink(missing_ok=True)
    found = repo.read_state(TDBG_TRUST=str(repo.folder), SUDO_UID="12345")
    assert found == {"commit": commit, "branch": "main", "dirty": None} and not repo.mark.exists()
