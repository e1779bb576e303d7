"""Rows of files, as tests look at them."""

import csv
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

from tdbg.metrics.rows import row_codec
from tdbg.metrics.rows.row import Header, Row
from tdbg.metrics.rows.row_files import RowsFile
from tdbg.metrics.rows.row_reader import Line, Reading


def list_lines(path: Path, rank: int | None = None) -> list[Line]:
    """The rows that count."""
    return [line for _, line in Reading([RowsFile(path, rank)]).iter_lines()]


def read_raw(path: Path) -> list[dict[str, Any]]:
    """Every line as JSON, headers too."""
    return [json.loads(text) for text in path.read_text(encoding="utf-8").splitlines()]


def write_rows(path: Path, *those: Row | Header) -> Path:
    """A file of these lines."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("ab") as file:
        for one in those:
            file.write(row_codec.encode_row(one) if isinstance(one, Row) else row_codec.encode_header(one))
    return path


def read_csv(path: Path) -> list[dict[str, str]]:
    """The lines of a CSV file, by its heading."""
    with path.open(newline="") as file:
        return list(csv.DictReader(file))


def make_row(step: int, values: dict[str, float], **more: Any) -> Row:
    """A row with what a test does not care for."""
    return Row(**{"t": 1e9 + step, "step": step, "epoch": step // 10, "phase": "train", "values": values, **more})


def run_program(code: str, *words: Any, **more: Any) -> subprocess.CompletedProcess[str]:
    """A program of its own, with its words."""
    env = {**os.environ, "OMP_NUM_THREADS": "1", **more.pop("env", {})}
    command = [sys.executable, "-c", code, *map(str, words)]
    return subprocess.run(command, capture_output=True, text=True, timeout=more.pop("timeout", 60), env=env, **more)


__all__ = ["Header", "Path", "list_lines", "make_row", "read_csv", "read_raw", "run_program", "write_rows"]
