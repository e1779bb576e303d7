"""A file that the user names is checked first, and replaced when it is whole."""

import os

import pytest

from tdbg.core.errors import TdbgError
from tdbg.core.output_file import check_output_file, replace_file


def test_a_new_name_will_do(tmp_path):
    assert check_output_file("--html", str(tmp_path / "x.html"), [], force=False) == tmp_path / "x.html"


def test_what_is_there_needs_force(tmp_path):
    path = tmp_path / "x.html"
    path.write_text("old")
    with pytest.raises(TdbgError, match="already exists"):
        check_output_file("--html", str(path), [], force=False)
    assert check_output_file("--html", str(path), [], force=True) == path
    link = tmp_path / "link.html"
    link.symlink_to(tmp_path / "nowhere")
    with pytest.raises(TdbgError, match="already exists"):
        check_output_file("--html", str(link), [], force=False)


def test_what_is_read_a_folder_and_stdout_are_refused_with_force_too(tmp_path):
    path = tmp_path / "run.json"
    path.write_text("{}")
    os.link(path, tmp_path / "same.html")
    for name, why in ((str(path), "the run's own"), (str(tmp_path / "same.html"), "the run's own")):
        with pytest.raises(TdbgError, match=why):
            check_output_file("--html", name, [(path, "the run's own")], force=True)
    with pytest.raises(TdbgError, match="is a folder"):
        check_output_file("--html", str(tmp_path), [], force=True)
    with pytest.raises(TdbgError, match="not to stdout"):
        check_output_file("--html", "-", [], force=True)


def test_a_device_or_a_pipe_is_not_replaced(tmp_path):
    os.mkfifo(tmp_path / "pipe")
    for name in (os.devnull, str(tmp_path / "pipe")):
        with pytest.raises(TdbgError, match="is a device or a pipe"):
            check_output_file("--html", name, [], force=True)


def test_a_file_appears_when_it_is_whole_and_a_link_is_replaced(tmp_path):
    target, path = tmp_path / "target", tmp_path / "x.html"
    target.write_text("of somebody else")
    path.symlink_to(target)
    with replace_file(path) as file:
        file.write(b"new")
        assert target.read_text() == "of somebody else" == path.read_text()
    assert path.read_text() == "new" and not path.is_symlink()
    assert target.read_text() == "of somebody else"
    assert sorted(os.listdir(tmp_path)) == ["target", "x.html"]


@pytest.mark.parametrize("error", [TdbgError("no plotly"), KeyboardInterrupt(), OSError(28, "No space left on device")])
def test_what_fails_leaves_nothing(tmp_path, error):
    with pytest.raises((TdbgError, KeyboardInterrupt)), replace_file(tmp_path / "x.html") as file:
        file.write(b"half")
        raise error
    assert os.listdir(tmp_path) == []


def test_what_cannot_be_written_is_an_error_of_the_user(tmp_path):
    with pytest.raises(TdbgError, match="name too long"):
        check_output_file("--html", "x" * 300, [], force=True)
    for path in (tmp_path / "none" / "x.html", tmp_path / ("x" * 250)):
        with pytest.raises(TdbgError) as found, replace_file(path):
            pass
        assert found.value.hint == "name a writable file"


@pytest.mark.parametrize(
    ("name", "why"),
    [
        (" ", "--html has an empty file name"),
        ("\t", "--html has an empty file name"),
        ("http://host/x.html", "--html writes a file, and http://host/x.html is a URL"),
        ("s3://b/\x1b[2J.html", "--html writes a file, and s3://b/\\x1b[2J.html is a URL"),
        ("file:///x.html", "--html writes a file, and file:///x.html is a URL"),
        ("none/x.html", "none/x.html: No such file or directory"),
        ("file.txt/x.html", "file.txt/x.html: Not a directory"),
        ("loop/x.html", "loop/x.html: Too many levels of symbolic links"),
        ("a/" * 3000 + "x.html", "File name too long"),
    ],
)
@pytest.mark.parametrize("force", [False, True])
def test_what_is_no_file_is_refused_before_the_work(tmp_path, monkeypatch, name, why, force):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "file.txt").write_text("mine")
    (tmp_path / "loop").symlink_to("loop")
    before = sorted(os.listdir(tmp_path))
    with pytest.raises(TdbgError) as refused:
        check_output_file("--html", name, [], force=force)
    assert why in str(refused.value) and refused.value.hint and "\n" not in str(refused.value)
    assert sorted(os.listdir(tmp_path)) == before and (tmp_path / "file.txt").read_text() == "mine"


def test_a_folder_that_is_closed_is_refused_before_the_work(tmp_path, monkeypatch):
    monkeypatch.setattr(
        os, "access", lambda path, mode: not str(path).startswith(str(tmp_path))
    )  # root may write anywhere
    with pytest.raises(TdbgError, match="Permission denied"):
        check_output_file("--html", str(tmp_path / "x.html"), [], force=False)


@pytest.mark.parametrize("name", ["x.html", "ü☃.html", "\udcff.html", "a:b.html", "-x.html", "odd\nname.html"])
def test_an_odd_name_is_a_name(tmp_path, monkeypatch, name):
    monkeypatch.chdir(tmp_path)
    with replace_file(check_output_file("--html", name, [], force=False)) as file:
        file.write(b"whole")
    assert os.listdir(tmp_path) == [name]
