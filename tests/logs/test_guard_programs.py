"""Flags of records, measured on programs made at random: by a map of their source, and under `tdbg run`."""

import json
import re
import secrets
import subprocess
import sys
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from tdbg.cli import main
from tests.logs.guard_programs import FLAGS, HEADERS, Program, count_lines, read_notes
from tests.logs.test_records import build_environment, compute_scores, count_pairs

HEADER = re.compile(r"^(?:\d{4}-\d\d-\d\d \d\d:\d\d:\d\d,\d+ - \S+ - \w+ - |(?:DEBUG|INFO|WARNING|ERROR):\w+:)")
PROGRAMS = 4


def choose_seed() -> int:
    """A new one each time, which a failing test shows."""
    found = secrets.randbelow(1 << 32)
    print(f"seed {found}")
    return found


def run_program(folder: Path, program: Program, header: str) -> Path:
    """Run it without tdbg; returns its log."""
    (folder / "train.py").write_text(program.source)
    log = folder / "train.log"
    with log.open("wb") as file:
        command = [sys.executable, "train.py", header, "notes"]
        subprocess.run(command, cwd=folder, stdout=file, check=True, timeout=60, env=build_environment(folder))
    return log


def count_filtered(log: Path, flag: str) -> Counter[tuple[str, str]]:
    """The lines that the filter prints for a flag with the map, without their headers."""
    out = log.with_suffix(".out")
    assert main(["filter-logs", str(log), "-f", flag, "--map", str(log.with_name("map.toml")), "-o", str(out)]) in (
        0,
        1,
    )
    lines = (HEADER.sub("", line).strip() for line in out.read_text().splitlines())
    return Counter((flag, line) for line in lines if line)


def test_with_a_map_of_the_source(tmp_path: Path) -> None:
    """Prints and logged records in one stream, with headers and without."""
    wanted: Counter[tuple[str, str]] = Counter()
    found: Counter[tuple[str, str]] = Counter()
    first = choose_seed()
    for number in range(first, first + PROGRAMS):
        program = Program(number)
        (tmp_path / "train.py").write_text(program.source)
        assert main(["flags", "scan", str(tmp_path / "train.py"), "-o", str(tmp_path / "map.toml")]) in (0, 1)
        for header in HEADERS.values():
            log = run_program(tmp_path, program, header)
            wanted += count_lines(read_notes(tmp_path / "notes"))
            for flag in FLAGS:
                if flag in (tmp_path / "map.toml").read_text():  # else the program never names it, and tdbg says so
                    found += count_filtered(log, flag)
    recall, precision = compute_scores(found, wanted)
    print(f"{wanted.total()} lines, recall {recall:.2%}, precision {precision:.2%}")
    print("missed:", *(wanted - found), "wrong:", *(found - wanted), sep="\n  ")
    assert wanted.total() > 50
    assert recall >= 0.99 and precision >= 0.97


def test_under_run(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(Program(choose_seed(), functions=100).source)
    flags = [word for flag in FLAGS for word in ("-f", flag)]
    command = ["python", "train.py", HEADERS["none"], "notes", "with torch"]
    done = subprocess.run(
        [sys.executable, "-m", "tdbg", "run", "--run-dir", "run", *flags, "--", *command],
        cwd=tmp_path, env=build_environment(tmp_path), capture_output=True, text=True, timeout=100,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    (path,) = (tmp_path / "run").glob("**/records.jsonl")
    said = read_records(path)
    truth = [{"flags": flags, "text": text.strip()} for _, flags, text in read_notes(tmp_path / "notes")]
    last = max(
        place for place, row in enumerate(truth) if row["flags"]
    )  # it takes no step: no rank, whose records end there
    assert 200 < last < len(said) <= len(truth)
    wanted, found = count_pairs(truth, "text"), count_pairs(said, "message")
    print("missed:", *(wanted - found), "wrong:", *(found - wanted), sep="\n  ")
    assert compute_scores(found, wanted) == (1.0, 1.0)


def read_records(path: Path) -> list[dict[str, Any]]:
    """The records of a file, their messages without what is empty around them."""
    found = [json.loads(line) for line in path.read_text().splitlines()]
    return [{**record, "message": record["message"].strip()} for record in found]


@pytest.mark.parametrize("number", range(3))
def test_a_program_is_the_same_for_the_same_seed(number: int) -> None:
    assert Program(number).source == Program(number).source
