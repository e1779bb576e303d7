"""Records a part at a time: of lines that are torn, endless or foreign too."""

import os
import time
from pathlib import Path

from tdbg.core.rundir import RunDir, rank_folder
from tdbg.logs.filter_args import FilterArgs
from tdbg.logs.log_window import SHOWN_BYTES, LogWindow, Place, read_window
from tdbg.logs.run_filter import Job


def read_log(folder: Path, name: str, content: bytes, *, hole: int = 0) -> LogWindow:
    """What a window shows of a rank's file; hole: so many bytes of nothing follow."""
    run, _ = RunDir.create(folder / "run", {})
    rank = rank_folder(run.path, 0)
    rank.mkdir()
    (rank / name).write_bytes(content)
    if hole:
        os.truncate(rank / name, len(content) + hole)
    return read_window(Job(FilterArgs(paths=[str(run.path)], ranks="all")), Place(), 100, 64 << 20)


def test_a_line_that_is_no_json_is_shown_as_text(tmp_path: Path) -> None:
    whole = b'{"time":"2026-11-20T03:06:40","rank":0,"level":"DEBUG","message":"whole"}\n'
    found = read_log(tmp_path, "records.jsonl", whole + whole[:40])
    assert [record.get("message") for record in found.records][:1] == ["whole"]
    assert any(str(record.get("text", "")).startswith('{"time"') for record in found.records)


def test_a_record_without_end_is_cut_and_not_read_to_the_end(tmp_path: Path) -> None:
    begun = time.monotonic()
    found = read_log(
        tmp_path, "debug_log_rank0.txt", b"2026-11-20T03:06:40.000299 D r0000 s00020000 [DEBUG_LR] x", hole=20 << 30
    )
    assert time.monotonic() - begun < 20
    (record,) = found.records
    assert record["text"].startswith("2026-11-20") and record["text"].endswith("more bytes)")
    assert len(record["text"]) < 5 * SHOWN_BYTES and found.next is not None
