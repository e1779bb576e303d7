"""The map of a program's own spellings, and what it finds in a plain text log."""

import errno
import os
import re
import subprocess
import sys
import time
from collections import Counter
from pathlib import Path

import pytest

from tdbg.cli import main
from tdbg.core.errors import TdbgError
from tdbg.logs.guards.link import link_facts
from tdbg.logs.guards.program_files import maps_below
from tdbg.logs.guards.reader import parse_facts
from tdbg.logs.tagmap import Spelling, TagMap, build_map, dump_map, load_map
from tests.logs.test_records import FLAGS, PROJECT, build_environment, compute_scores, read_truth

IF_AMP = "if cfg.DEBUG.AMP: "


def build_tag_map(*lines: str) -> TagMap:
    return build_map(link_facts({"a": parse_facts("\n".join(lines).encode())}).values())


@pytest.mark.parametrize(
    ("call", "text"),
    [
        ("log.info('values of %s and %5.2f', a, b)", "values of {} and {}"),
        ("log.info('100%% of values: %d' % a)", "100% of values: {}"),
        ("log.info('all of it, 100%')", "all of it, 100%"),
        ("log.info(f'value {a:.3f}, {b!r}')", "value {}, {}"),
        ("log.info('value {} of {{it}}'.format(a))", "value {} of {{it}}"),
        ("log.info('value ' + str(a) + ' seen')", "value {} seen"),
        ("log.info('value\\n%s', a)", "value\n{}"),
        ("log.info('value\\n\\nmore\\n')", "value\n\nmore"),
        ("log.log(10, 'value %s', a)", "value {}"),
        ("print('value', a, 'seen')", "value {} seen"),
        ("tqdm.write(f'value {a}')", "value {}"),
        ("log.info('%s of %s values', 'some', a)", "some of {} values"),
    ],
)
def test_texts_of_calls(call: str, text: str) -> None:
    assert [item.text for item in build_tag_map(f"{IF_AMP}{call}").entries["AMP"].texts] == [text]
    assert Spelling.parse_text(text).text == text


def test_tags_stand_for_all_their_texts() -> None:
    found = build_tag_map(f"{IF_AMP}log.info('[AMP] a %d', a)", f"{IF_AMP}log.info(f'{{T}} b')", "T = '[AMP]'")
    assert (found.entries["AMP"].tags, found.entries["AMP"].texts) == (["[AMP]"], [])
    assert found.flags_of(b"2026-01-01 10:00:00 INFO x: [AMP] whatever") == {"AMP"}
    assert found.flags_of(b"x[AMP] whatever") == frozenset()


@pytest.mark.parametrize(
    ("lines", "ambiguous"),
    [
        ((f"{IF_AMP}log.info('same text')", "log.info('same text')"), {"same text": ["", "AMP"]}),
        ((f"{IF_AMP}log.info('same text')", "if cfg.DEBUG.LR: log.info('same text')"), {"same text": ["AMP", "LR"]}),
        ((f"{IF_AMP}log.info('value %s', a)", "log.info('value of it')"), {}),
        ((f"{IF_AMP}log.info('%s: %d', a, b)",), {"{}: {}": ["AMP"]}),
        ((f"{IF_AMP}log.info('[T] a')", "log.info('[T] b')"), {}),
    ],
)
def test_what_is_printed_elsewhere_too_is_not_used(lines: tuple[str, ...], ambiguous: dict[str, list[str]]) -> None:
    found = build_tag_map(*lines)
    assert found.ambiguous == ambiguous
    assert not found.flags_of(b"2026-01-01 x: same text") and not found.flags_of(b"INFO value of it")


def test_texts_that_differ_by_what_stands_before_them() -> None:
    found = build_tag_map(f"{IF_AMP}log.info('labels %s', a)", "log.info('no labels in this batch')")
    assert found.flags_of(b"INFO: labels 1, 2") == {"AMP"}
    assert found.flags_of(b"INFO: no labels in this batch") == frozenset()


@pytest.mark.parametrize(
    "line",
    [
        b"its text",
        b"\x1b[32mINFO\x1b[0m its text\x1b[0m",
        b'{"level": "INFO", "message": "its text", "step": 3}',
        b"[rank3]: INFO:root:its text\r\n",
        b"2026-01-01 10:00:00,123 - train - INFO - its text",
    ],
)
def test_whatever_stands_around_a_text(line: bytes) -> None:
    found = build_tag_map(f"{IF_AMP}log.info('its text')")
    assert found.flags_of(line) == {"AMP"}
    assert not found.flags_of(line.replace(b"text", b"text too")) and not found.flags_of(line.replace(b"its", b"fits"))


def test_the_closer_text_counts() -> None:
    found = build_tag_map(f"{IF_AMP}log.info('value of it')", "log.info('value %s', a)")
    assert found.flags_of(b"INFO value of it") == {"AMP"} and not found.flags_of(b"INFO value of 3")


def test_the_file_is_read_as_it_was_written(tmp_path: Path) -> None:
    found = build_tag_map(
        f"{IF_AMP}log.info('a \"quoted\" \\\\ {{brace}} %s \\u0001 \\u00fc', a)",
        "if cfg.DEBUG.OWN.THING: log.info('[T] x')",
        f"{IF_AMP}log.info('labels %s', a)",
        "log.info('no labels in this batch')",
    )
    (tmp_path / "map.toml").write_text(dump_map(found), encoding="utf-8")
    again = load_map(tmp_path / "map.toml")
    assert (again.entries, again.unflagged) == (found.entries, found.unflagged)
    assert again.collect_literals("OWN") == (b"[T]",) and again.collect_literals("OWN.THING") == (b"[T]",)


@pytest.mark.parametrize("text", ["[A]\ntags = 3", "A = 1", "[A", "[A]\ntags = ['']\ntexts = []"])
def test_what_is_no_map(tmp_path: Path, text: str) -> None:
    (tmp_path / "map.toml").write_text(text)
    with pytest.raises(TdbgError):
        load_map(tmp_path / "map.toml")


def test_a_map_that_is_not_there() -> None:
    with pytest.raises(TdbgError, match="No such file"):
        load_map("/nowhere/map.toml")


def test_a_plain_text_log(tmp_path: Path) -> None:
    """The project run without tdbg, its flags on in its own config."""
    opts = [word for flag in FLAGS for word in (f"DEBUG.{flag}", "True")]
    command = [sys.executable, str(PROJECT / "train.py"), *opts]
    subprocess.run(command, cwd=tmp_path, env=build_environment(tmp_path), check=True, timeout=100, capture_output=True)
    shown = [line for line in read_truth(tmp_path) if line["shown"]]
    wanted = Counter((flag, line["text"].partition("\n")[0]) for line in shown for flag in line["flags"])
    known = build_map(maps_below(PROJECT).values())
    found: Counter[tuple[str, str]] = Counter()
    for line in (tmp_path / "out" / "train_rank0.log").read_bytes().splitlines():
        for flag in known.flags_of(line):
            found[flag, line.decode().partition(": ")[2]] += 1
    recall, precision = compute_scores(found, wanted)
    print(f"with the map: {wanted.total()} lines, recall {recall:.2%}, precision {precision:.2%}")
    assert recall >= 0.99 and precision >= 0.97


def test_the_command(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    target = tmp_path / "map.toml"
    assert main(["flags", "scan", str(PROJECT), "-o", str(target)]) == 0
    assert "22 log calls under 9 flags" in capsys.readouterr().err
    assert main(["flags", "scan", str(PROJECT)]) == 0
    assert capsys.readouterr().out == target.read_text()
    assert set(load_map(target).entries) == set(FLAGS)
    assert main(["flags", "scan", str(tmp_path)]) == 1
    assert main(["flags", "scan", str(tmp_path / "nowhere")]) == 2


def test_a_function_of_the_programs_own(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "a.py").write_text("if wants('AMP'): log.info('its text')\n")
    assert main(["flags", "scan", str(tmp_path)]) == 1
    assert main(["flags", "scan", str(tmp_path), "--function", "wants"]) == 0
    assert '"its text"' in capsys.readouterr().out


def test_a_file_that_cannot_be_parsed_is_named(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "good.py").write_text("if cfg.DEBUG.LR:\n    log.debug('the rate is now %s', rate)\n")
    (tmp_path / "bad.py").write_text("if cfg.DEBUG.LR:\n    log.debug('the rate\n")
    for _ in range(2):  # and once more, from the cache
        assert main(["flags", "scan", str(tmp_path)]) == 0
        said = capsys.readouterr().err
        assert "bad.py cannot be parsed (line 2: unterminated string literal" in said and "good.py" not in said


def test_a_flag_that_no_record_fits_is_told_of_the_map(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "train.log").write_text("INFO:root:its text\n")
    (tmp_path / "a.py").write_text("if cfg.DEBUG.AMP: log.info('its text')\n")
    log, target = str(tmp_path / "train.log"), str(tmp_path / "map.toml")
    for more in ([], ["--count"]):
        assert main(["filter-logs", log, "-f", "AMP", *more]) == 1
        assert "`tdbg flags scan SRC -o map.toml`, then add --map map.toml" in capsys.readouterr().err
    assert main(["filter-logs", log, "-e", "nothing like this"]) == 1
    assert "--map" not in capsys.readouterr().err
    assert main(["flags", "scan", str(tmp_path), "-o", target]) == 0
    assert main(["filter-logs", log, "-f", "LR", "--map", target]) == 1
    assert "add --map" not in capsys.readouterr().err


@pytest.mark.parametrize("ending", [" (norm)", "\nnorm {}", ""])
def test_a_line_that_nearly_fits_costs_little(ending: str) -> None:
    """Four times as long, it takes some four times as long, not four times for every gap."""
    text = Spelling.parse_text("weights {}, {}, {}, {}" + ending)
    pattern = re.compile(text.pattern)
    took = []
    for count in (300, 1200):
        line = b"weights " + b"0, " * count + b"x"
        begun = time.process_time()
        pattern.search(line)
        took.append(time.process_time() - begun)
    assert took[1] < 0.1 or took[1] < 9 * took[0], took


def test_scan_of_a_file_that_cannot_be_read_is_refused(capsys) -> None:
    assert main(["flags", "scan", "/dev/zero"]) == 2
    out, err = capsys.readouterr()
    assert out == ""
    assert err.splitlines() == [
        "tdbg: /dev/zero cannot be read: it is a device, not a regular file",
        "tdbg: name a folder of Python files that you may read",
    ]


@pytest.mark.skipif(not Path("/proc/self/mem").exists(), reason="no /proc")
def test_scan_of_a_file_that_opens_and_fails_to_be_read_is_refused(capsys) -> None:
    assert main(["flags", "scan", "/proc/self/mem"]) == 2
    assert "/proc/self/mem cannot be read: Input/output error" in capsys.readouterr().err


def test_scan_of_a_folder_in_which_no_file_can_be_read_is_refused(tmp_path: Path, capsys) -> None:
    for name in ("a.py", "b.py"):
        os.mkfifo(tmp_path / name)
    assert main(["flags", "scan", str(tmp_path)]) == 2
    first = capsys.readouterr().err.splitlines()[0]
    assert (
        first
        == f"tdbg: {tmp_path / 'a.py'} cannot be read: it is a pipe, not a regular file (nor can 1 more below {tmp_path})"
    )


def test_scan_names_the_files_it_cannot_read(tmp_path: Path, capsys) -> None:
    (tmp_path / "a.py").write_text("if cfg.DEBUG.LOSS.NULL_MASKING:\n    log.debug('the mask of nulls')\n")
    for number in range(12):
        (tmp_path / f"b{number:02}.py").symlink_to(tmp_path / "gone.py")
    (tmp_path / "c.py").write_text("x" * (2 << 20) + "x")
    assert main(["flags", "scan", str(tmp_path)]) == 0
    told = [line for line in capsys.readouterr().err.splitlines() if "cannot be read" in line]
    assert (
        told[0]
        == f"tdbg: {tmp_path / 'b00.py'} cannot be read (No such file or directory): its lines are not in the map"
    )
    assert (len(told), told[-1]) == (11, "tdbg: and 3 more cannot be read")


def test_scan_names_a_folder_that_cannot_be_listed(tmp_path: Path, capsys, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whoever is root may list all: scandir answers here as it does to others."""
    (tmp_path / "closed").mkdir()
    (tmp_path / "a.py").write_text("if cfg.DEBUG.LOSS.NULL_MASKING:\n    log.debug('the mask of nulls')\n")
    scandir = os.scandir

    def refuse(path: str) -> object:
        if str(path).endswith("closed"):
            raise PermissionError(errno.EACCES, os.strerror(errno.EACCES), str(path))
        return scandir(path)

    monkeypatch.setattr(os, "scandir", refuse)
    assert main(["flags", "scan", str(tmp_path)]) == 0
    assert f"{tmp_path / 'closed'} cannot be read (Permission denied)" in capsys.readouterr().err
    assert main(["flags", "scan", str(tmp_path / "closed")]) == 2
