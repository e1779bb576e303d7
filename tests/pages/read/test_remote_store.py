"""Pages on a store: every command reads them, by range, and says in a line what keeps it from that."""

import io
import os
import pickle
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from tdbg import cli
from tdbg.core.errors import TdbgError
from tdbg.core.urls import Url, is_url, parse_location
from tdbg.pages.format.page_writer import Item, PageWriter
from tdbg.pages.outputs import load_debug_outputs
from tdbg.pages.page_upload import Upload
from tdbg.pages.read.page_set import NoPagesError, PageSet
from tests.pages.material import assert_whole, list_sealed, write_pages
from tests.pages.samples import Commands, write_run
from tests.stores import BUCKET, Counted, serve_s3, use_counting_store

URL = "counted://store/run"


@pytest.fixture
def counting_store() -> Iterator[type[Counted]]:
    with use_counting_store() as found:
        yield found


def upload_folder(folder: Path, url: str = URL) -> str:
    Upload(folder, url).upload_new_files(last=True)
    Counted.requests.clear()
    return url


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("ls", ["--datapoints"]),
        ("show", ["1/conv:output"]),
        ("show", ["a/b", "--json"]),
        ("stats", []),
        ("stats", ["--group-by", "loss"]),
        ("find", ["nan > 0 or absmax > 1e3"]),
        ("diff", ["--ranks", "0,1", "--by", "order"]),
        ("verify", []),
    ],
)
def test_commands_print_the_same_of_a_url(
    name: str, words: list[str], tmp_path: Path, counting_store: object, capsys: pytest.CaptureFixture[str]
) -> None:
    local = Commands(write_run(tmp_path / "run"), capsys)
    remote = Commands(tmp_path, capsys)
    remote.folder = upload_folder(tmp_path / "run")  # type: ignore[assignment]
    here, there = local(name, *words), remote(name, *words)
    assert here or name == "verify"
    assert [line.replace(URL, "") for line in there] == [line.replace(str(tmp_path / "run"), "") for line in here]
    assert there.code == here.code and there.said.replace(URL, "") == here.said.replace(str(tmp_path / "run"), "")


def test_export_and_html_take_a_url(tmp_path: Path, counting_store: object, capsys: pytest.CaptureFixture[str]) -> None:
    url = upload_folder(write_run(tmp_path / "run"))
    npz, html = tmp_path / "a.npz", tmp_path / "a.html"
    assert cli.main(["inspect-pages", "export", url, "npz", "-o", str(npz), "--ranks", "0"]) == 0
    with np.load(npz) as found:
        assert any(name.endswith("conv_output") or "conv" in name for name in found.files)
    assert cli.main(["inspect-pages", "html", url, "-o", str(html)]) == 0 and html.stat().st_size > 1000


def test_a_path_alone_lists_and_a_url_without_a_key_says_so(
    tmp_path: Path, counting_store: object, capsys: pytest.CaptureFixture[str]
) -> None:
    url = upload_folder(write_run(tmp_path / "run"))
    assert cli.main(["inspect-pages", url]) == 0
    assert capsys.readouterr().out.startswith("8 datapoints, 23 tensors")
    for words in (["show", url], ["find", url]):
        assert cli.main(["inspect-pages", *words]) == 2
        assert f"{url} is a path: the " in capsys.readouterr().err


def test_one_tensor_is_one_request(
    tmp_path: Path, counting_store: type[Counted], capsys: pytest.CaptureFixture[str]
) -> None:
    with PageWriter(tmp_path / "pages", run="r") as writer:
        for number in range(50):
            writer.add(number, [Item(name, "float32", (100_000,), bytes([number]) * 400_000) for name in ("a", "b")])
    url = upload_folder(tmp_path)
    journal = sum(path.stat().st_size for path in (tmp_path / "pages").glob("*.journal"))
    assert cli.main(["inspect-pages", "show", url, "31/b"]) == 0
    assert "100,000 values" in capsys.readouterr().out
    pages = [request for request in counting_store.requests if request.path.endswith(".safetensors") and request.nbytes]
    assert [request.nbytes for request in pages] == [400_000]
    assert sum(request.nbytes for request in counting_store.requests) < 400_000 + journal + 1000
    assert len(list((tmp_path / "pages").glob("*.safetensors"))) == 1


def test_small_tensors_in_a_row_are_fetched_together(tmp_path: Path, counting_store: type[Counted]) -> None:
    url = upload_folder(write_pages(tmp_path / "pages", 500))
    with PageSet.open(url) as found:
        assert assert_whole(found) == 500
    reads = [request for request in counting_store.requests if request.path.endswith(".safetensors")]
    assert len(reads) < 20 < 2000
    size = list_sealed(tmp_path / "pages")[0].stat().st_size
    assert sum(request.nbytes for request in reads) <= size


def test_a_sealed_page_alone(tmp_path: Path, counting_store: type[Counted]) -> None:
    page = list_sealed(write_pages(tmp_path / "pages", 10, page_bytes=3000))[1]
    upload_folder(tmp_path / "pages")
    for name in [name for name in counting_store.store if name.endswith(".journal")]:
        del counting_store.store[name]
    with PageSet.open(f"{URL}/{page.name}") as found:
        assert 0 < assert_whole(found) < 10
    with PageSet.open(URL) as found:
        assert assert_whole(found) == 10


def test_a_page_that_is_not_there_is_told(tmp_path: Path, counting_store: type[Counted]) -> None:
    page = list_sealed(write_pages(tmp_path / "pages", 10, page_bytes=3000))[0]
    upload_folder(tmp_path / "pages")
    del counting_store.store[f"/store/run/{page.name}"]
    with PageSet.open(URL) as found:
        assert [str(problem) for problem in found.problems] == [
            f"{URL}: page 0 of rank 0 is missing, or cannot be read"
        ]
        first = next(iter(found))
        with pytest.raises(TdbgError, match="is missing"):
            next(iter(first.tensors.values())).read()


def test_a_journal_that_grew_is_read_as_it_was_listed(tmp_path: Path, counting_store: type[Counted]) -> None:
    upload_folder(write_pages(tmp_path / "pages"))
    found = PageSet.open(URL)
    (journal,) = [name for name in counting_store.store if name.endswith(".journal")]
    counting_store.store[journal].seek(0, io.SEEK_END)
    counting_store.store[journal].write(b"\x20\0\0\0half a frame")
    assert assert_whole(found) == 10
    assert not found.problems


def test_outputs_of_a_datapoint(tmp_path: Path, counting_store: object) -> None:
    url = upload_folder(write_run(tmp_path / "run"))
    found = load_debug_outputs(url, "a/b")
    assert [*found["x"]["y"]] == [1.0, 2.0]
    with pytest.raises(NoPagesError, match="there is no counted://store/nothing"):
        load_debug_outputs("counted://store/nothing", 1)


def test_pages_of_other_tools(
    tmp_path: Path, counting_store: type[Counted], capsys: pytest.CaptureFixture[str]
) -> None:
    for epoch in (2, 10):
        page = pickle.dumps({epoch: {"D": {"x": 1.5, "name": "n"}}})
        counting_store().pipe_file(f"/store/old/epoch_{epoch}/debugger/page_0.pkl", page)
    counting_store().pipe_file("/store/old/elsewhere/page_0.pkl", b"not looked at")
    assert cli.main(["inspect-pages", "ls", "counted://store/old"]) == 2
    assert "holds 2 pickles of another tool (page_0.pkl)" in capsys.readouterr().err
    assert cli.main(["inspect-pages", "convert", "counted://store/old", "-o", str(tmp_path / "new")]) == 0
    assert [(point.key, point.epoch) for point in PageSet.open(tmp_path / "new")] == [(2, 2), (10, 10)]
    assert cli.main(["inspect-pages", "convert", "counted://store/nothing", "-o", str(tmp_path / "newer")]) == 2


@pytest.mark.parametrize(
    ("url", "what", "hint"),
    [
        ("nowhere://x/y", "unknown URL scheme nowhere://", "write s3://"),
        ("gs://bucket/run", "gs:// needs another library", "gcsfs"),
        ("s3://key:sesame@bucket/run", "the s3:// URL holds a password", "environment"),
        ("s3://", "'s3://' names no bucket or folder", "s3://bucket/folder"),
        ("counted://store/nothing", "there is no counted://store/nothing", "name a run"),
    ],
)
def test_what_cannot_be_read_is_told_in_two_lines(
    url: str, what: str, hint: str, counting_store: object, capsys: pytest.CaptureFixture[str]
) -> None:
    assert cli.main(["inspect-pages", "ls", url]) == 2
    found = capsys.readouterr()
    lines = found.err.splitlines()
    assert len(lines) == 2 and lines[0] == f"tdbg: {what}" and hint in lines[1]
    assert "sesame" not in found.err and not found.out


def test_recover_is_for_disks(tmp_path: Path, counting_store: object, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["inspect-pages", "recover", upload_folder(write_run(tmp_path / "run"))]) == 2
    assert "is not on a local disk" in capsys.readouterr().err


def test_a_file_url_is_a_path_and_needs_no_library(tmp_path: Path) -> None:
    url = f"file://{write_run(tmp_path / 'run')}"
    assert parse_location(url) == tmp_path / "run"
    hide = "import sys; sys.modules['fsspec'] = None; from tdbg.__main__ import _run_front_end; sys.exit(_run_front_end(sys.argv[1:]))"
    done = [
        subprocess.run([sys.executable, "-c", hide, "inspect-pages", "ls", place], capture_output=True, text=True)
        for place in (url, "s3://bucket/run")
    ]
    assert done[0].returncode == 0 and done[0].stdout.startswith("8 datapoints")
    assert done[1].returncode == 2 and done[1].stderr.splitlines() == [
        "tdbg: s3://bucket/run needs fsspec", "tdbg: install it: pip install 'tdbg[remote]'",
    ]  # fmt: skip


def test_a_path_loads_no_library_of_stores(tmp_path: Path) -> None:
    code = f"from tdbg.cli import main; main(['inspect-pages', 'ls', {str(write_run(tmp_path / 'run'))!r}])"
    code += (
        "\nimport sys; assert not {'fsspec', 's3fs', 'aiohttp', 'tdbg.pages.read.remote_store'} & sys.modules.keys()"
    )
    subprocess.run([sys.executable, "-c", code], check=True, capture_output=True)


def test_a_check_before_the_start_leaves_no_thread() -> None:
    """The command and its guard are forks of a process that must have one thread."""
    code = (
        "import threading; from tdbg.pages.read.remote_store import check_protocol; check_protocol('s3://bucket/run')"
    )
    subprocess.run([sys.executable, "-c", f"{code}\nassert threading.active_count() == 1"], check=True)


def test_urls_have_the_manners_of_paths() -> None:
    url = Url("s3://bucket/run")
    assert str(url / "rank0000" / "pages") == "s3://bucket/run/rank0000/pages"
    assert str((url / "x.journal").parent) == os.fspath(url) == "s3://bucket/run" and url.name == "run"
    assert (
        parse_location("s3://bucket/run/") == url
        and parse_location("a/b") == Path("a/b")
        and parse_location("local:///tmp") == Path("/tmp")
    )
    assert is_url("abfs://box@account.dfs.core.windows.net/run") and parse_location("abfs://box@account/run")
    assert not any(map(is_url, ("a/b", "a:b", "C:/x", "epoch=1://", "/a://b")))


# a server that speaks S3


@pytest.fixture(scope="module")
def s3_server() -> Iterator[dict[str, str]]:
    with serve_s3() as found:
        yield found


def run_inspect_pages(server: dict[str, str], *words: object, **other: str) -> subprocess.CompletedProcess[str]:
    kept = {name: value for name, value in os.environ.items() if not name.startswith("AWS_")}
    environment = {**kept, "AWS_EC2_METADATA_DISABLED": "true", **server, **other}
    command = [sys.executable, "-m", "tdbg", "inspect-pages", *map(str, words)]
    return subprocess.run(command, env=environment, capture_output=True, text=True, timeout=120)


def test_s3_there_and_back(tmp_path: Path, s3_server: dict[str, str]) -> None:
    folder, url = write_run(tmp_path / "run"), f"s3://{BUCKET}/a/run"
    done = run_inspect_pages(s3_server, "upload", folder, url)
    assert done.returncode == 0 and "copied 6 files" in done.stderr, done.stderr
    shutil.rmtree(folder / "rank0001")
    again = run_inspect_pages(s3_server, "upload", folder, url, "--json")
    assert again.returncode == 0 and '"files": 0' in again.stdout
    listed = run_inspect_pages(s3_server, url)
    assert listed.returncode == 0 and listed.stdout.startswith("8 datapoints, 23 tensors"), listed.stderr
    shown = run_inspect_pages(s3_server, "show", url, "12/conv:output", "--slice", "0,0,:")
    assert "0 100 200 300" in shown.stdout, shown.stderr
    alone = run_inspect_pages(s3_server, "ls", f"{url}/rank0001/pages/r0001-000000.safetensors", "--datapoints")
    assert alone.returncode == 0 and len(alone.stdout.splitlines()) == 6


def test_what_keeps_s3_from_answering(s3_server: dict[str, str]) -> None:
    url = f"s3://{BUCKET}/run"
    nobody = {name: value for name, value in s3_server.items() if "KEY" not in name}
    nowhere = {"AWS_ENDPOINT_URL": "http://127.0.0.1:9", "AWS_MAX_ATTEMPTS": "1"}
    cases = [
        (
            run_inspect_pages(s3_server, "ls", "s3://no-such-bucket/run"),
            "s3://no-such-bucket does not exist",
            "make it",
        ),
        (
            run_inspect_pages(s3_server, "ls", f"s3://{BUCKET}/nothing"),
            f"there is no s3://{BUCKET}/nothing",
            "name a run",
        ),
        (run_inspect_pages(nobody, "ls", url), "NoCredentialsError", "credentials in the environment"),
        (run_inspect_pages(s3_server, "ls", url, **nowhere), "EndpointConnectionError", "AWS_ENDPOINT_URL"),
    ]
    for done, what, hint in cases:
        lines = done.stderr.splitlines()
        assert done.returncode == 2 and len(lines) == 2 and what in lines[0] and hint in lines[1], done.stderr
