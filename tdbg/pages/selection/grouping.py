"""Groups of datapoints: by score (the failing half and the rest), or by a captured value."""

import csv
import io
import json
import math
from collections.abc import Callable, Iterable, Mapping
from typing import TYPE_CHECKING, Any

from tdbg.core.errors import TdbgError
from tdbg.core.files import read_small_file
from tdbg.core.output import print_messages
from tdbg.core.tables import format_count, safe
from tdbg.pages.read.datapoint import Datapoint
from tdbg.pages.read.tensor_values import to_real
from tdbg.pages.selection.datapoint_numbers import DatapointNumbers
from tdbg.pages.selection.iteration import iter_samples
from tdbg.pages.selection.locations import Grouped, select_datapoints

if TYPE_CHECKING:
    from tdbg.pages.read.page_set import PageSet

NAMED = 20  # numbers that an error names
MANY = 5  # different numbers: of more the upper and the lower half are compared
PLACES = ("rank", "step", "epoch", "phase")
MAX_SCORES_BYTES = 64 << 20  # some millions of scores

Score = float | str


def value_getter(name: str, known: DatapointNumbers) -> Callable[[Datapoint], Score | None]:
    """What `--group-by NAME` asks of a datapoint: rank, step, epoch, phase, or a number that belongs to it."""

    def get_score(datapoint: Datapoint) -> Score | None:
        found = known.resolve_value(datapoint, name)
        if found is None and name in PLACES:
            found = getattr(datapoint, name)
        return _as_score(found)

    return get_score


def score_getter(path: str) -> Callable[[Datapoint], Score | None]:
    """What `--scores FILE` says of a datapoint. Raises TdbgError for a file that cannot be read."""
    known = load_scores(path)
    return lambda datapoint: known.get(str(datapoint.key))


def load_scores(path: str) -> dict[str, Score]:
    """Key -> score, of a CSV file (key,score) or of JSON lines ({"key": 17, "score": 0.2}). Raises TdbgError."""
    try:
        text = read_small_file(path, MAX_SCORES_BYTES).decode("utf-8-sig")
    except (OSError, UnicodeError) as error:
        why = error.strerror if isinstance(error, OSError) else "it is not UTF-8"
        raise TdbgError(f"{path}: {why}", "name a CSV file of key,score or a JSON Lines file") from None
    found = _json_lines(path, text) if text.lstrip().startswith("{") else _parse_csv(path, text)
    if not found:
        raise TdbgError(f"{path} holds no score", "write lines such as 17,0.25")
    return found


def _parse_csv(path: str, text: str) -> dict[str, Score]:
    try:
        rows = [row for row in csv.reader(io.StringIO(text)) if any(map(str.strip, row))]
    except csv.Error as error:
        raise TdbgError(f"{path}: {error}", "write lines such as 17,0.25") from None
    if rows and [cell.strip().lower() for cell in rows[0][:2]] == ["key", "score"]:
        rows = rows[1:]
    for row in rows:
        if len(row) != 2:
            raise TdbgError(f"{path}: {','.join(row)[:80]!r} is not a key and a score", "write lines such as 17,0.25")
    return {key.strip(): _parse_score(score.strip()) for key, score in rows}


def _json_lines(path: str, text: str) -> dict[str, Score]:
    found: dict[str, Score] = {}
    for line in filter(str.strip, text.split("\n")):
        try:
            row = json.loads(line)
            score = _as_score(row["score"])
            key = str(row["key"])
        except (ValueError, TypeError, KeyError, RecursionError):
            score = None
        if score is None:
            raise TdbgError(f"{path}: {line[:80]!r} is not a key and a score", 'write {"key": 17, "score": 0.25}')
        found[key] = _parse_score(score) if isinstance(score, str) else score
    return found


def _parse_score(text: str) -> Score:
    try:
        return float(text)
    except ValueError:
        return text


def _as_score(value: Any) -> Score | None:
    if isinstance(value, bool):
        return "true" if value else "false"
    return value if isinstance(value, str) else to_real(value)


def split_groups(found: Mapping[Any, Score]) -> dict[Any, str]:
    """The group of each: its value where there are few of them, else high or low. What is not a number is "nan"."""
    numbers = sorted({score for score in found.values() if isinstance(score, float) and score == score})
    texts = any(isinstance(score, str) for score in found.values())
    if texts or len(numbers) <= 2 or (len(numbers) <= MANY and len(found) >= 2 * len(numbers)):
        return {name: _group_name(score) for name, score in found.items()}
    low = _find_lower_half_max([score for score in found.values() if isinstance(score, float) and score == score])
    return {name: "nan" if score != score else "high" if float(score) > low else "low" for name, score in found.items()}


def _find_lower_half_max(values: Iterable[float]) -> float:
    """The largest value of the lower half; equal ones stay together."""
    ordered = sorted(values)
    middle = ordered[(len(ordered) - 1) // 2]
    if middle < ordered[-1]:
        return middle
    return max(value for value in ordered if value < middle)


def _group_name(score: Score) -> str:
    if isinstance(score, str):
        return score
    return str(int(score)) if math.isfinite(score) and score == int(score) else f"{score:.6g}"


class GroupMembership:
    """The group of each datapoint, or row of a batch, that has a score; how many have none is told.

    Raises TdbgError where none has one, and for scores that cannot be read. Memory: some 200 bytes a sample.
    """

    def __init__(self, pages: "PageSet", question: Grouped) -> None:
        if question.group_by and question.scores:
            raise TdbgError("--group-by and --scores do not go together", "leave one of them out")
        self._groups = split_groups(_collect_scores(pages, question))
        found = list(self._groups.values())
        sizes = {group: found.count(group) for group in sorted(set(found))}
        print_messages(", ".join(f"{safe(group)}: {format_count(size, 'datapoint')}" for group, size in sizes.items()))

    def find_group(self, datapoint: Datapoint) -> str | None:
        """Of one; None of those without a score."""
        return self._groups.get(_identify_datapoint(datapoint))


def _collect_scores(pages: "PageSet", question: Grouped) -> dict[tuple[Any, ...], Score]:
    numbers = DatapointNumbers(pages)
    look = score_getter(question.scores) if question.scores else value_getter(question.group_by, numbers)
    name = safe(question.scores or question.group_by)
    found: dict[tuple[Any, ...], Score] = {}
    missing = 0
    for datapoint in (one for whole in select_datapoints(pages, question) for one in iter_samples(whole)):
        score = look(datapoint)
        if score is None:
            missing += 1
        else:
            found[_identify_datapoint(datapoint)] = score
    if not found:
        fields = f"known fields: {safe(', '.join([*PLACES, *numbers.names][:NAMED]))}"
        hint = fields if question.group_by else "use the keys that `tdbg inspect-pages ls --datapoints` shows"
        raise TdbgError(f"no datapoint has a {name}", hint)
    if missing:
        print_messages(f"{format_count(missing, 'datapoint')} without {name}: left out")
    return found


def _identify_datapoint(datapoint: Datapoint) -> tuple[Any, ...]:
    return datapoint.rank, datapoint.writer, datapoint.seq, datapoint.row
