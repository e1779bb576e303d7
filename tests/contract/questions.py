"""What the recordings are asked, and what was answered when this was frozen.

``python -m tests.contract.questions`` prints what differs; with ``--add`` an answer to a new question is kept, and an old one
never written over. What an answer has more than the frozen one is listed in ``additions.txt``: a line for each, as
``QUESTION-PREFIX path.to.the[].key``, with the reason behind ``#``.
"""

import contextlib
import gzip
import io
import json
import math
import os
import sys
import tarfile
import tempfile
from collections.abc import Iterator, Mapping
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any

from tdbg.cli import main

HERE = Path(__file__).parent
RUNS = HERE / "runs"
ANSWERS = HERE / "answers.json.gz"
ADDITIONS = HERE / "additions.txt"

NAMES = sorted(path.name.removesuffix(".tar.gz") for path in RUNS.glob("*.tar.gz"))
OF_EVERY_RUN = (
    "report {} --json",
    "status {} --json",
    "metrics show {} --json",
    "metrics dump {}",
    "metrics plot {} train/loss --json",
    "metrics sanity {} --json",
    "flags doctor {} --json",
    "filter-logs {} --format jsonl",
)
OF_SOME = (
    "metrics compare first resumed --json",
    "metrics compare single two_ranks --json",
    "inspect-pages ls captured --json",
    "inspect-pages ls captured --datapoints --json",
    "inspect-pages show 3 captured --json",
    "inspect-pages stats captured --json",
    "inspect-pages stats single --json",
    "inspect-pages find absmax>0.5 captured --json",
    "inspect-pages diff captured captured --json",
    "inspect-pages verify captured --json",
    "trace show profiled --json",
    "trace show profiled --shapes --json",
    "trace advise profiled --json",
    "trace flame profiled --json",
    "trace compare profiled second --json",
)
AGES, AN_AGE = ("last_seen_s",), "an age"
PROSE = ("title", "evidence", "cause", "try_next", "headline", "help", "summary")  # for people: their wording is free
QUESTIONS = [*(text.format(name) for name in NAMES for text in OF_EVERY_RUN), *OF_SOME]


def unpack_recordings(folder: Path) -> None:
    """Lay the recordings out below ``folder``."""
    for name in NAMES:
        with tarfile.open(RUNS / f"{name}.tar.gz") as archive:
            archive.extractall(folder, filter="data")
    for path in folder.iterdir():
        path.chmod(0o700)


def ask_question(question: str, *, raw: bool = False) -> dict[str, Any]:
    """The exit code and what stdout held, as JSON where it is JSON; asked in the current folder. raw: with ages."""
    with tempfile.TemporaryFile() as printed, contextlib.redirect_stderr(io.StringIO()):
        sys.stdout.flush()
        before = os.dup(1)  # records of a log are written to the descriptor
        os.dup2(printed.fileno(), 1)
        try:
            with open(1, "w", encoding="utf-8", closefd=False) as out, contextlib.redirect_stdout(out):
                code = main(question.split())
        finally:
            os.dup2(before, 1)
            os.close(before)
        printed.seek(0)
        answer = _parse_output(printed.read().decode("utf-8"))
        return {"exit": code, "answer": answer if raw else _drop_ages(answer)}


def _drop_ages(answer: Any) -> Any:
    """The answer with how long ago something was taken out."""
    if isinstance(answer, dict):
        return {key: AN_AGE if key in AGES else _drop_ages(value) for key, value in answer.items()}
    return [_drop_ages(one) for one in answer] if isinstance(answer, list) else answer


def restore_ages(answer: Any) -> Any:
    """A kept answer as it was printed, but for how long an age is: that was not kept."""
    if isinstance(answer, dict):
        return {key: 1.5 if value == AN_AGE else restore_ages(value) for key, value in answer.items()}
    return [restore_ages(one) for one in answer] if isinstance(answer, list) else answer


def _parse_output(text: str) -> Any:
    try:
        return json.loads(text)
    except ValueError:
        pass
    try:
        return [json.loads(line) for line in text.splitlines()]
    except ValueError:
        return text


def load_frozen_answers() -> dict[str, Any]:
    """The kept answers by question."""
    if not ANSWERS.exists():
        return {}
    with gzip.open(ANSWERS, "rt", encoding="utf-8") as file:
        kept: dict[str, Any] = json.load(file)
    return kept


def list_differences(question: str, then: Any, now: Any) -> list[str]:
    """Where an answer is not what it was, leaving out the additions that are listed."""
    allowed = set(list_additions(question))
    return [text for path, text in _iter_differences("", then, now) if text[0] != "+" or not _is_listed(path, allowed)]


def list_changes(then: Any, now: Any) -> list[str]:
    """Where an answer is not what it was; what it has more begins with a plus sign."""
    return [text for _, text in _iter_differences("", then, now)]


def list_additions(question: str) -> list[str]:
    """The paths that are listed for a question."""
    listed = [line.partition("#")[0].split() for line in ADDITIONS.read_text(encoding="utf-8").splitlines()]
    return [words[1] for words in listed if len(words) == 2 and question.startswith(words[0])]


def _is_listed(path: str, allowed: set[str]) -> bool:
    return any(fnmatchcase(path, one.replace("[]", "[[]]")) for one in allowed)


def _iter_differences(path: str, then: Any, now: Any) -> Iterator[tuple[str, str]]:
    if isinstance(then, Mapping) and isinstance(now, Mapping):
        for key in then:
            if key not in now:
                yield path, f"- {path}.{key}: {_shorten_value(then[key])}"
            elif key not in PROSE or type(then[key]) is not type(now[key]):
                yield from _iter_differences(f"{path}.{key}".lstrip("."), then[key], now[key])
        for key in now:
            if key not in then:
                added = f"{path}.{key}".lstrip(".")
                yield added, f"+ {added}: {_shorten_value(now[key])}"
    elif isinstance(then, list) and isinstance(now, list) and len(then) == len(now):
        for old, new in zip(then, now, strict=True):
            yield from _iter_differences(f"{path}[]", old, new)
    elif then != now and not _is_same_sum(then, now):
        yield path, f"! {path}: {_shorten_value(then)} became {_shorten_value(now)}"


def _is_same_sum(then: Any, now: Any) -> bool:
    """True for two floats that differ in the order of additions alone, which numpy chooses by the processor."""
    return (
        isinstance(then, float)
        and isinstance(now, float)
        and math.isclose(then, now, rel_tol=4 * sys.float_info.epsilon)
    )


def _shorten_value(value: Any) -> str:
    text = json.dumps(value)
    return text if len(text) <= 200 else f"{text[:200]}..."


def _compare_answers(add: bool) -> int:
    kept, wrong = load_frozen_answers(), 0
    with tempfile.TemporaryDirectory() as made:
        os.chdir(made)
        unpack_recordings(Path(made))
        for question in QUESTIONS:
            now = ask_question(question)
            if question not in kept and add:
                kept[question] = now
            for text in list_differences(question, kept.get(question), now):
                wrong += 1
                print(f"{question}: {text}")
    if add:
        content = json.dumps(kept, indent=1, sort_keys=True).encode()
        ANSWERS.write_bytes(gzip.compress(content, mtime=0))
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(_compare_answers("--add" in sys.argv[1:]))
