"""`tdbg run --capture-upload`: what the ranks captured is on the store, and the run does not end by it."""

import json
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tdbg.pages.read.page_set import PageSet
from tests.e2e.conftest import (
    Result,
    Runner,
    assert_same_output,
    build_program_command,
    build_torchrun_command,
    run_command,
)
from tests.stores import BUCKET, serve_s3

URL = f"s3://{BUCKET}/runs"
CAPTURE = ["--capture", "conv", "--capture-phase", "train"]


@pytest.fixture(scope="module")
def s3_server() -> Iterator[dict[str, str]]:
    with serve_s3() as found:
        yield {**found, "AWS_EC2_METADATA_DISABLED": "true", "AWS_MAX_ATTEMPTS": "1"}


def run_inspect_pages(result: Result, server: dict[str, str], *words: str) -> Result:
    return run_command([sys.executable, "-m", "tdbg", "inspect-pages", *words], result.folder.parent, server)


def test_two_ranks_and_every_command_reads_it(watched_runner: Runner, s3_server: dict[str, str]) -> None:
    result = watched_runner(
        build_torchrun_command("layers", "--ddp"), [*CAPTURE, "--capture-upload", f"{URL}/two/"], s3_server
    )
    assert result.code == 0 and result.codes == [], result.stderr
    assert any(f"6 files, 2.2 MB are on {URL}/two/run" in line for line in result.tdbg_lines), result.stderr
    listed = run_inspect_pages(result, s3_server, f"{URL}/two/run")
    assert listed.stdout.startswith("12 datapoints, 12 tensors, 1 layer"), listed.stderr
    local = [(point.rank, point.key) for point in PageSet.open(result.folder)]
    rows = run_inspect_pages(result, s3_server, "ls", "--datapoints", f"{URL}/two").stdout.splitlines()[2:]
    assert [row.split("\t")[1] for row in rows] == [str(rank) for rank, _ in local]
    for words in (["stats"], ["show", "--rank", "1", "--step", "3"]):
        key = ["117"] if words[0] == "show" else []
        here, there = (
            run_inspect_pages(result, s3_server, *words[:1], place, *key, *words[1:])
            for place in (str(result.folder), f"{URL}/two/run")
        )
        assert here.stdout == there.stdout != "" and here.code == there.code
    verified = run_inspect_pages(result, s3_server, "verify", f"{URL}/two/run")
    assert verified.code == 0 and not verified.stdout
    (about,) = [json.loads(path.read_text()) for path in (result.folder / "upload").glob("*.json")]
    assert (about["url"], about["files"], about["failures"], about["error"]) == (f"{URL}/two/run", 6, 0, "")


def test_no_bucket_is_said_once_and_costs_the_run_nothing(
    watched_runner: Runner, bare_runner: Runner, s3_server: dict[str, str]
) -> None:
    result = watched_runner(
        build_program_command("layers"), [*CAPTURE, "--capture-upload", "s3://no-such-bucket/runs"], s3_server
    )
    assert_same_output(result, bare_runner(build_program_command("layers")))
    assert len(list(PageSet.open(result.folder))) == 6
    said = [
        line for line in result.tdbg_lines if "s3://no-such-bucket does not exist" in line and "TD-C020" not in line
    ]
    assert len(said) == 1 and any("the captured pages stay in" in line for line in result.tdbg_lines)
    finding = result.find_finding("TD-C020")
    assert finding["severity"] == "warning" and "s3://no-such-bucket/runs/run" in finding["title"]
    assert "tdbg inspect-pages upload" in finding["try_next"]


@pytest.mark.parametrize(
    ("options", "text"),
    [
        (
            [*CAPTURE, "--capture-upload", "s3://key:sesame@bucket/runs"],
            "capture-upload: the s3:// URL holds a password",
        ),
        ([*CAPTURE, "--capture-upload", "/tmp/runs"], "capture-upload: '/tmp/runs' is not a URL"),
        ([*CAPTURE, "--capture-upload", "nowhere://x/y"], "unknown URL scheme nowhere://"),
        ([*CAPTURE, "--exec", "--capture-upload", "s3://bucket/runs"], "--capture-upload needs tdbg to stay running"),
        (["--capture-upload", "s3://bucket/runs"], "--capture-upload needs --capture"),
    ],
)
def test_a_wrong_place_is_told_before_the_start(watched_runner: Runner, options: list[str], text: str) -> None:
    result = watched_runner(build_program_command("layers"), options)
    assert result.code == 2 and text in result.stderr and "sesame" not in result.stderr, result.stderr
    assert not Path(result.folder).exists()
