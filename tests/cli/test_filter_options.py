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


def choices() -> list[list[tuple[str, str]]]:
    """Every way to give some of the options, those that may be repeated once or twice."""
    ways = []
    for name, (values, _) in OPTIONS.items():
        sets = [(), *((value,) for value in values)]
        sets += list(itertools.combinations(values, 2)) if name in REPEATABLE else []
        ways.append([[(name, value) for value in chosen] for chosen in sets])
    return [list(itertools.chain(*chosen)) for chosen in itertools.product(*ways)]


def fits(record: tuple[int, str, str, int], chosen: list[tuple[str, str]]) -> bool:
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
    every = choices()
    assert len(every) > 200
    for chosen in every:
        words = [word for pair in chosen for word in pair]
        code = cli.main(["filter-logs", str(log), *words])
        out = capfd.readouterr().out
        wanted = [line for line, record in zip(lines, RECORDS, strict=True) if fits(record, chosen)]
        assert out == "".join(wanted) and code == (0 if wanted else 1), words


def test_help_and_docs_say_so() -> None:
    page = (Path(cli.__file__).parents[2] / "docs" / "filter-logs.md").read_text(encoding="utf-8")
    assert "narrow" in page and "widens" in page
