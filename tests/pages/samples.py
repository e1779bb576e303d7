"""A small run whose tensors are known number by number."""

import json
import struct
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from tdbg import cli
from tdbg.pages.format.page_writer import Item, PageWriter
from tdbg.pages.read.tensor_values import STRUCT

WORDS = ["the", "cat", "sat", "\x1b[31mon"]
RAMP = [float(number) for number in range(48)]


def pack_values(values: Sequence[Any], dtype: str = "float32") -> bytes:
    """The bytes of numbers; bfloat16 by cutting a float32."""
    if dtype == "bfloat16":
        return b"".join(struct.pack("<f", value)[2:] for value in values)
    if dtype == "bool":
        return bytes(map(bool, values))
    return struct.pack(f"<{len(values)}{STRUCT[dtype]}", *values)


def make_item(path: str, values: Sequence[Any], shape: tuple[int, ...] | None = None, dtype: str = "float32") -> Item:
    """One tensor."""
    return Item(path, dtype, (len(values),) if shape is None else shape, pack_values(values, dtype))


def write_run(folder: Path) -> Path:
    """Two ranks, three steps, eval after an epoch. Keys 0, 1, 2 of rank 0 and 10, 11, 12 of rank 1; "a/b" of both."""
    for rank in (0, 1):
        with PageWriter(folder / f"rank{rank:04d}" / "pages", run="r", rank=rank, world_size=2) as writer:
            for step in range(3):
                scale = 100.0 if (rank, step) == (1, 2) else 1.0
                items = [
                    make_item("conv:output", [scale * value for value in RAMP], (3, 4, 4)),
                    make_item("attn:output", [value / 15 for value in range(16)], (4, 4)),
                    make_item("labels", [step, 2, 3], dtype="int64"),
                ]
                if (rank, step) == (0, 1):
                    items.append(make_item("bad", [1.0, float("nan"), float("inf"), 0.0]))
                scalars = {"loss": rank + step / 2, "tokens": WORDS, "note": "\x1b]0;evil\x07"}
                writer.add(10 * rank + step, items, step=step, epoch=step // 2, phase="train", scalars=scalars)
            writer.add("a/b", [make_item("x/y", [1.0, 2.0]), make_item("x/z", [3.0])], step=3, phase="eval")
            writer.record_drop(2, "the ring was full", 1, 2)
    return folder


class Told(list[str]):
    """What a command printed, line by line. code: its exit code. said: what it said on stderr."""

    code: int
    said: str

    @property
    def table_rows(self) -> list[dict[str, str]]:
        """The rows of the table in it, by column."""
        found = [line.split("\t") for line in self if "\t" in line]
        return [dict(zip(found[0], row, strict=True)) for row in found[1:]]

    @property
    def json_data(self) -> Any:
        """What is in the envelope of `--json`; strict JSON."""

        def refuse_constant(word: str) -> None:
            raise AssertionError(f"{word} is no JSON")

        found = json.loads("\n".join(self), parse_constant=refuse_constant)
        assert found["version"] == 1 and found["kind"].startswith("pages-")
        return found["data"]


class Commands:
    """Calls `tdbg inspect-pages` in this process."""

    def __init__(self, folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
        self.folder, self._capsys = folder, capsys

    def __call__(self, name: str, *words: object) -> Told:
        self._capsys.readouterr()
        code = cli.main(["inspect-pages", name, str(self.folder), *map(str, words)])
        found = self._capsys.readouterr()
        told = Told(found.out.splitlines())
        told.code, told.said = code, found.err
        return told
