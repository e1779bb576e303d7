"""tdbg's own text logs: one shape of line, rotation, nothing raised."""

import os
from pathlib import Path

from tdbg.flags import tag
from tdbg.logs.textlog import RankLogs, TextLog, header, line


def test_the_header_has_a_fixed_width() -> None:
    early, late = header(1795000000.0000004, "D", 3, 20000), header(1795000000.999999, "E", 41, 7)
    assert len(early) == len(late)
    assert early.endswith(".000000 D r0003 s00020000") and late.endswith(".999999 E r0041 s00000007")


def test_a_record_stays_whole() -> None:
    text = line(1795000000.5, "D", 0, 1, tag("LOSS.NULL_MASKING", "INPUT"), "first\nsecond\r\nthird")
    first, *rest = text.splitlines()
    assert first.endswith("[DEBUG_NULL_MASKING_INPUT] first")
    assert rest == ["    second\\r", "    third"]


def test_two_logs_by_level(tmp_path: Path) -> None:
    logs = RankLogs(lambda: tmp_path, lambda: 2)
    for level in "DSIWEC":
        logs.write(1795000000.0, level, 5, "[T]", f"at {level}")
    debug = (tmp_path / "debug_log_rank2.txt").read_text().splitlines()
    info = (tmp_path / "info_log_rank2.txt").read_text().splitlines()
    assert [text[-1] for text in debug] == list("DSIWEC")
    assert [text[-1] for text in info] == list("IWEC")
    assert logs.lost == 0


def test_rotation_keeps_the_last_parts(tmp_path: Path) -> None:
    log = TextLog(lambda: tmp_path / "x.txt", rotate_bytes=100)
    for number in range(60):
        log.write(f"line {number:03d} of some length\n")
    parts = sorted(path.name for path in tmp_path.iterdir())
    assert parts == ["x.txt", "x.txt.1", "x.txt.2", "x.txt.3", "x.txt.4"]
    assert all(path.stat().st_size <= 100 for path in tmp_path.iterdir())
    assert "line 059" in (tmp_path / "x.txt").read_text()
    older = [(tmp_path / name).read_text().splitlines()[0] for name in ("x.txt.4", "x.txt.3", "x.txt.2", "x.txt.1")]
    assert older == sorted(older)


def test_nothing_is_raised_where_nothing_can_be_written(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    log = TextLog(lambda: tmp_path / "file" / "x.txt")
    log.write("lost\n")
    assert log.lost == 1
    nowhere = TextLog(lambda: None)
    nowhere.write("lost\n")
    assert nowhere.lost == 1


def test_a_forked_child_writes_its_own_file(tmp_path: Path) -> None:
    here = tmp_path / "parent.txt"
    log = TextLog(lambda: here)
    log.write("parent\n")
    child = os.fork()
    if child == 0:
        here = tmp_path / "child.txt"
        log.write("child\n")
        os._exit(0)
    os.waitpid(child, 0)
    log.write("parent\n")
    assert (tmp_path / "parent.txt").read_text() == "parent\nparent\n"
    assert (tmp_path / "child.txt").read_text() == "child\n"
