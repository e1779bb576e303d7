"""Datapoints in two or more groups: by a score, the failing half and the other, or by a value that was captured."""

import csv
import io
import json
import math
from collections.abc import Callable, Iterable, Mapping
from typing import Any

from tdbg.core.errors import TdbgError
from tdbg.core.files import read_small
from tdbg.pages.read.datapoint import Datapoint
from tdbg.pages.read.tensor_values import real
from tdbg.pages.selection.datapoint_numbers import Known

MANY = 5  # different numbers: of more the upper and the lower half are compared
PLACES = ("rank", "step", "epoch", "phase")
Score = float | str


def value_of(name: str, known: Known) -> Callable[[Datapoint], Score | None]:
    """What `--group-by NAME` asks of a datapoint: rank, step, epoch, phase, or a number that belongs to it."""

    def look(datapoint: Datapoint) -> Score | None:
        found = known.value(datapoint, name)
        if found is None and name in PLACES:
            found = getattr(datapoint, name)
        return _score(found)

    return look


MAX_SCORES_BYTES = 64 << 20  # some millions of scores


def score_of(path: str) -> Callable[[Datapoint], Score | None]:
    """What `--scores FILE` says of a datapoint. Raises TdbgError for a file that cannot be read."""
    known = scores(path)
    return lambda datapoint: known.get(str(datapoint.key))


def scores(path: str) -> dict[str, Score]:
    """Key -> score, of a CSV file (key,score) or of JSON lines ({"key": 17, "score": 0.2}). Raises TdbgError."""
    try:
        text = read_small(path, MAX_SCORES_BYTES).decode("utf-8-sig")
    except (OSError, UnicodeError) as error:
        why = error.strerror if isinstance(error, OSError) else "it is no UTF-8"
        raise TdbgError(f"{path}: {why}", "name a CSV file, key,score, or JSON lines") from None
    found = _json_lines(path, text) if text.lstrip().startswith("{") else _csv(path, text)
    if not found:
        raise TdbgError(f"{path} holds no score", "write lines such as 17,0.25")
    return found


def _csv(path: str, text: str) -> dict[str, Score]:
    try:
        rows = [row for row in csv.reader(io.StringIO(text)) if any(map(str.strip, row))]
    except csv.Error as error:
        raise TdbgError(f"{path}: {error}", "write lines such as 17,0.25") from None
    if rows and [cell.strip().lower() for cell in rows[0][:2]] == ["key", "score"]:
        rows = rows[1:]
    for row in rows:
        if len(row) != 2:
            raise TdbgError(f"{path}: {','.join(row)[:80]!r} is no key and score", "write lines such as 17,0.25")
    return {key.strip(): _number(score.strip()) for key, score in rows}


def _json_lines(path: str, text: str) -> dict[str, Score]:
    found: dict[str, Score] = {}
    for line in filter(str.strip, text.split("\n")):
        try:
            row = json.loads(line)
            score = _score(row["score"])
            key = str(row["key"])
        except (ValueError, TypeError, KeyError, RecursionError):
            score = None
        if score is None:
            raise TdbgError(f"{path}: {line[:80]!r} is no key and score", 'write {"key": 17, "score": 0.25}')
        found[key] = _number(score) if isinstance(score, str) else score
    return found


def _number(text: str) -> Score:
    try:
        return float(text)
    except ValueError:
        return text


def _score(value: object) -> Score | None:
    if isinstance(value, bool):
        return "true" if value else "false"
    return value if isinstance(value, str) else real(value)


def split(found: Mapping[Any, Score]) -> dict[Any, str]:
    """The group of each: its value where there are few of them, else high or low. What is not a number is "nan"."""
    numbers = sorted({score for score in found.values() if isinstance(score, float) and score == score})
    texts = any(isinstance(score, str) for score in found.values())
    if texts or len(numbers) <= 2 or (len(numbers) <= MANY and len(found) >= 2 * len(numbers)):
        return {name: _shown(score) for name, score in found.items()}
    low = _halves([score for score in found.values() if isinstance(score, float) and score == score])
    return {name: "nan" if score != score else "high" if float(score) > low else "low" for name, score in found.items()}


def _halves(values: Iterable[float]) -> float:
    """The largest value of the lower half; equal ones stay together."""
    ordered = sorted(values)
    middle = ordered[(len(ordered) - 1) // 2]
    if middle < ordered[-1]:
        return middle
    return max(value for value in ordered if value < middle)


def _shown(score: Score) -> str:
    if isinstance(score, str):
        return score
    return str(int(score)) if math.isfinite(score) and score == int(score) else f"{score:.6g}"
