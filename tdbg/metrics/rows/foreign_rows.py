"""Rows of other tools: JSON lines of flat numbers with a step or an epoch, and trainer_state.json of transformers."""

import re
from collections.abc import Iterator, Mapping
from pathlib import Path

from tdbg.core.errors import TdbgError
from tdbg.core.files import describe_failure, parse_json, read_small_file
from tdbg.metrics.keys import is_key
from tdbg.metrics.rows.row import MAX_STEP, Row

STATE = "trainer_state.json"
LARGEST = 1 << 28  # bytes of a document that is read whole
STEPS = ("step", "global_step", "_step", "trainer/global_step", "iteration", "iter", "steps", "current_steps")
EPOCHS = ("epoch", "epochs", "trainer/epoch")
TIMES = ("t", "time", "timestamp", "_timestamp")
OTHERS = ("rank", "_runtime", "_wandb")  # no metrics
PHASE = re.compile(r"(train|training|val|valid|validation|dev|eval|test)[_/.](.+)")
ODD = re.compile(r"[^A-Za-z0-9_.\-]+")


def row_of(found: object, *, of_trainer: bool = False) -> Row | None:
    """A flat object of numbers as a row; None if it has neither step nor epoch, or no number beside them.

    of_trainer: it comes from a trainer's log, where ``train_loss`` is the mean of the whole run.
    """
    if not isinstance(found, dict):
        return None
    numbers = {name: float(value) for name, value in found.items() if _is_number(value)}
    step, epoch = _find_first(numbers, STEPS), _find_first(numbers, EPOCHS)
    place = step if step is not None else epoch
    if place is None or not abs(place) < MAX_STEP:
        return None
    known = {*STEPS, *EPOCHS, *TIMES, *OTHERS}
    values = {_build_key(name, of_trainer): value for name, value in numbers.items() if name not in known}
    values = {key: value for key, value in values.items() if key}
    if not values:
        return None
    return Row(
        _find_first(numbers, TIMES) or 0.0,
        int(place),
        int(epoch) if epoch is not None and epoch == epoch // 1 else epoch,
        next(iter(values)).partition("/")[0],
        int(numbers.get("rank", 0)),
        values,
    )


def read_json_rows(path: Path) -> Iterator[Row]:
    """The rows of a whole JSON document: ``log_history`` of a trainer's state, or a list of flat objects.

    Raises TdbgError for one that cannot be read.
    """
    try:
        found = parse_json(read_small_file(path, LARGEST))
    except OSError as error:
        raise TdbgError(f"{path}: {describe_failure(error)}", "name a file of JSON lines") from None
    except ValueError as error:
        raise TdbgError(f"{path} is not JSON: {error}", "use metrics.jsonl, JSON lines or trainer_state.json") from None
    history = found.get("log_history") if isinstance(found, Mapping) else found
    entries = history if isinstance(history, list) else []
    rows = (row_of(entry, of_trainer=isinstance(found, Mapping)) for entry in entries)
    yield from (row for row in rows if row is not None)


def is_document(path: Path) -> bool:
    """True for a file that is one JSON document rather than lines of them."""
    return path.suffix == ".json"


def states_below(folder: Path) -> list[Path]:
    """The state of the trainer whose output folder this is: its own, else that of the last checkpoint."""
    if (folder / STATE).is_file():
        return [folder / STATE]
    numbered = [(int(path.parent.name.rpartition("-")[2]), path) for path in folder.glob(f"checkpoint-*/{STATE}")
                if path.parent.name.rpartition("-")[2].isdecimal()]  # fmt: skip
    return [max(numbered)[1]] if numbered else []


def _is_number(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def _find_first(numbers: Mapping[str, float], names: tuple[str, ...]) -> float | None:
    return next((numbers[name] for name in names if name in numbers), None)


def _build_key(name: str, of_trainer: bool) -> str:
    """``eval_loss`` as ``eval/loss``, ``loss`` as ``train/loss``; empty for a name that no key can have."""
    if "/" in name and is_key(name):
        return name
    parts = PHASE.fullmatch(name)
    if parts and not (of_trainer and parts[1] == "train"):
        phase, metric = parts[1], parts[2]
    else:
        phase, metric = "train", name
    key = f"{phase}/{ODD.sub('_', metric).strip('_')}"
    return key if is_key(key) else ""
