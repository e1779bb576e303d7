"""Pages to test with: datapoints whose bytes can be told from their key."""

import random
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

from tdbg.pages.format.page_writer import Item, PageWriter
from tdbg.pages.read.page_set import Datapoint, PageSet

SHAPES: Sequence[tuple[str, str, tuple[int, ...], int]] = (
    ("layers.0.attn/output/0", "float32", (4, 5), 80),
    ("layers.0.attn/output/1", "bfloat16", (3,), 6),
    ("head/weight π", "int64", (), 8),
    ("empty", "float32", (0, 7), 0),
    ("flags", "bool", (64,), 64),
)


def make_content(key: object, path: str, size: int) -> bytes:
    """The bytes of one tensor of one datapoint."""
    return random.Random(f"{key}|{path}".encode("utf-8", "surrogatepass")).randbytes(size)


def make_items(key: object, shapes: Sequence[tuple[str, str, tuple[int, ...], int]] = SHAPES) -> list[Item]:
    """The tensors of one datapoint."""
    return [Item(path, dtype, shape, make_content(key, path, size)) for path, dtype, shape, size in shapes]


def fill_writer(folder: Path, count: int = 10, **options: Any) -> PageWriter:
    """A writer that has stored ``count`` datapoints, k0, k1, ..., and is still open."""
    writer = PageWriter(folder, **options)
    for number in range(count):
        writer.add(
            f"k{number}", make_items(f"k{number}"), step=number, scalars={"loss": number / 2, "name": f"n{number}"}
        )
    return writer


def write_pages(folder: Path, count: int = 10, **options: Any) -> Path:
    """The same, closed."""
    fill_writer(folder, count, **options).close()
    return folder


def assert_whole(found: Iterable[Datapoint]) -> int:
    """Each tensor holds the bytes that its key tells; returns how many datapoints there are."""
    count = 0
    for datapoint in found:
        for path, tensor in datapoint.tensors.items():
            assert tensor.read() == make_content(datapoint.key, path, tensor.nbytes), (datapoint.key, path)
        count += 1
    return count


def read_keys(path: Path) -> list[str | int]:
    """The keys of all datapoints, each of them read and found good."""
    with PageSet.open(path) as found:
        assert_whole(found)
        return [datapoint.key for datapoint in found]


def list_sealed(folder: Path) -> list[Path]:
    return sorted(folder.glob("*.safetensors"))


def sum_bytes(folder: Path) -> int:
    return sum(file.stat().st_size for file in folder.iterdir())
