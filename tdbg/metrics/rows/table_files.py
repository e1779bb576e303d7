"""Write the rows of a table as CSV, JSON or Parquet, one block at a time."""

import csv
import json
import os
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from itertools import islice
from pathlib import Path
from typing import IO, Any

from tdbg.core.errors import TdbgError
from tdbg.core.tables import to_json_value

BLOCK = 50_000  # rows of a group in Parquet
# Column -> its type in Parquet.
TYPES = {
    "key": "string",
    "rank": "int32",
    "source": "string",
    "phase": "string",
    "unit": "string",
    "step": "int64",
    "epoch": "float64",
    "value": "float64",
    "t": "float64",
    "best": "float64",
    "best_step": "int64",
    "best_epoch": "float64",
    "least": "float64",
    "most": "float64",
    "count": "int64",
    "not_finite": "int64",
}

Rows = Iterable[Sequence[Any]]


def write_table(form: str, out: str, force: bool, about: dict[str, Any], columns: Sequence[str], rows: Rows) -> int:
    """Write a table; ``out``: a file, "" for stdout. Returns how many rows.

    about: what JSON says beside the rows. Raises TdbgError for a file that is there (unless ``force``), for Parquet
    without pyarrow or without a file.
    """
    with resolve_table_path(out, force, binary=form == "parquet") as file:
        return WRITERS[form](file, about, columns, rows)


@contextmanager
def resolve_table_path(out: str, force: bool, *, binary: bool = False) -> Iterator[IO[Any]]:
    """A file that appears under its name when it is whole; stdout for ""."""
    if not out:
        if binary:
            raise TdbgError("parquet needs a file", "name one with --out FILE")
        yield sys.stdout
        return
    path = Path(out)
    if path.is_dir():
        raise TdbgError(f"{path} is a folder", "name a file")
    if path.exists() and not force:
        raise TdbgError(f"{path} already exists", "choose another name, or add --force")
    part = path.with_name(f".{path.name}.{os.getpid()}.part")
    try:
        with part.open("wb") if binary else part.open("w", encoding="utf-8", newline="") as file:
            yield file
        part.replace(path)
    except OSError as error:
        if error.filename not in (None, str(part)):  # what is read meanwhile
            raise
        raise TdbgError(f"{path} cannot be written: {error.strerror or error}", "name a file elsewhere") from None
    finally:
        part.unlink(missing_ok=True)


def _write_csv(file: IO[str], about: dict[str, object], columns: Sequence[str], rows: Rows) -> int:
    writer = csv.writer(file, lineterminator="\n")
    writer.writerow(columns)
    count = 0
    for row in rows:
        writer.writerow(["" if value is None else repr(value) if isinstance(value, float) else value for value in row])
        count += 1
    return count


def _write_json(file: IO[str], about: dict[str, object], columns: Sequence[str], rows: Rows) -> int:
    head = json.dumps({"kind": "metrics-dump", "version": 1, "data": to_json_value(about)})
    file.write(f'{head[:-2]}{", " if about else ""}"rows": [')
    count = 0
    for row in rows:
        text = json.dumps(to_json_value(dict(zip(columns, row, strict=True))), allow_nan=False)
        file.write(f"{',' if count else ''}\n{text}")
        count += 1
    file.write("\n]}}\n")
    return count


def _write_parquet(file: IO[bytes], about: dict[str, object], columns: Sequence[str], rows: Rows) -> int:
    try:
        import pyarrow as arrow
        from pyarrow import parquet
    except ImportError:
        raise TdbgError("parquet needs pyarrow", "install the extra: pip install 'tdbg[parquet]'") from None
    kinds = {"string": arrow.string(), "float64": arrow.float64(), "int64": arrow.int64(), "int32": arrow.int32()}
    schema = arrow.schema([(name, kinds[TYPES[name]]) for name in columns])
    count = 0
    left = iter(rows)
    with parquet.ParquetWriter(file, schema) as writer:
        while block := list(islice(left, BLOCK)):
            held = [list(column) for column in zip(*block, strict=True)]
            writer.write_table(arrow.table(held, schema=schema))
            count += len(block)
    return count


WRITERS: dict[str, Callable[[Any, dict[str, object], Sequence[str], Rows], int]] = {
    "json": _write_json,
    "csv": _write_csv,
    "parquet": _write_parquet,
}
