"""Options of filter-logs together: different ones narrow, the same one several times widens; in every combination."""

import itertools
from pathlib import Path

import pytest

from tdbg import cli

TAGS = ("DEBUG_FORWARD", "DEBUG_FORWARD_INPUT", "DEBUG_BACKWARD", "DEBUG_GRADIENTS", "OTHER")
LEVELS = ("INFO", "ERROR")
RECORDS = [
    (number, tag, level, rank) for number, (tag, level, rank) in enumerate(itertools.product(TAGS, LEVELS, (0, 1)))
]
# option -> (its values, the test that a record passes for one of them)
OPTIONS = {
    "-f": (("FORWARD", "BACKWARD"), lambda value, record: record[1].startswith(f"DEBUG_{value}")),
    "-p": (("DEBUG_FORWARD_I", "DEBUG_B", "OTH"), lambda value, record: record[1].startswith(value)),
    "--level": (("ERROR",), lambda value, record: record[2] == value),
    "-r": (("0", "1"), lambda value, record: record[3] == int(value)),
    "-e": (("n1[0-9]*$",), lambda value, record: str(record[0]).startswith("1")),
}
REPEATABLE = ("-f", "-p")


def list_choices() -> list[list[tuple[str, str]]]:
    """Every way to give some of the options, those that may be repeated once or twice."""
    ways = []
    for name, (values, _) in OPTIONS.items():
        sets = [(), *((value,) for value in values)]
        sets += list(itertools.combinations(values, 2)) if name in REPEATABLE else []
        ways.append([[(name, value) for value in chosen] for chosen in sets])
    return [list(itertools.chain(*chosen)) for chosen in itertools.product(*ways)]


def matches_options(record: tuple[int, str, str, int], chosen: list[tuple[str, str]]) -> bool:
    by_option: dict[str, list[str]] = {}
    for name, value in chosen:
        by_option.setdefault(name, []).append(value)
    return all(any(OPTIONS[name][1](value, record) for value in values) for name, values in by_option.items())


def test_different_options_narrow_and_the_same_one_widens(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    log = tmp_path / "x.log"
    lines = [
        f"2026-11-20T03:06:{number:02}.000000 {level[0]} r{rank:04} s{number:08} [{tag}] n{number}\n"
        for number, tag, level, rank in RECORDS
    ]
    log.write_text("".join(lines))
    every = list_choices()
    assert len(every) > 200
    for chosen in every:
        words = [word for pair in chosen for word in pair]
        code = cli.main(["filter-logs", str(log), *words])
        out = capfd.readouterr().out
        wanted = [line for line, record in zip(lines, RECORDS, strict=True) if matches_options(record, chosen)]
        assert out == "".join(wanted) and code == (0 if wanted else 1), words


SAID = (
    "Different options narrow: a record has to fit all of them",
    "The same option several times widens: any of its values will do",
)


def test_step_is_another_name_of_steps(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    log = tmp_path / "debug_log_rank0.txt"
    log.write_text(
        "".join(f"2026-11-20T03:06:4{n}.000299 D r0000 s{n:08d} [DEBUG_FORWARD] line {n}\n" for n in (1, 2, 3))
    )
    assert cli.main(["filter-logs", str(log), "--step", "2"]) == 0
    assert capfd.readouterr().out.strip().endswith("line 2")


def test_help_and_docs_say_so(capsys: pytest.CaptureFixture[str]) -> None:
    root = Path(cli.__file__).parents[2]
    assert cli.main(["filter-logs", "--help"]) == 0
    texts = [capsys.readouterr().out, *((root / "docs" / name).read_text() for name in ("filter-logs.md", "cli.md"))]
    for text in texts:
        joined = " ".join(text.split())
        assert [said for said in SAID if said not in joined] == []


def test_two_flags_that_are_left_out_are_both_left_out(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    log = tmp_path / "x.log"
    lines = [
        f"2026-11-20T03:06:0{number}.000000 I r0000 s00000001 [{tag}] n{number}\n" for number, tag in enumerate(TAGS)
    ]
    log.write_text("".join(lines))
    assert cli.main(["filter-logs", str(log), "-x", "FORWARD", "-x", "BACKWARD"]) == 0
    assert capfd.readouterr().out == "".join(line for line in lines if "GRADIENTS" in line or "OTHER" in line)


def test_help_says_of_each_option_that_may_be_repeated_what_two_of_it_mean(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["filter-logs", "--help"]) == 0
    joined = " ".join(capsys.readouterr().out.split())
    for words in ("repeat for more flags", "repeat to leave out more", "repeat for more prefixes"):
        assert words in joined
