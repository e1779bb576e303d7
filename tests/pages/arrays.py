"""Pages made of numpy arrays and torch tensors, and the command line that looks at them."""

import ctypes
import os
import subprocess
import sys
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import torch

import tdbg
from tdbg.pages.format.page_writer import Item, PageWriter

ENVIRONMENT = {**os.environ, "PYTHONPATH": str(Path(tdbg.__file__).parents[1])}


def to_bytes(value: Any) -> bytes:
    """The bytes of an array or a tensor."""
    if isinstance(value, np.ndarray):
        return value.tobytes()
    size = value.numel() * value.element_size()
    return bytes((ctypes.c_char * size).from_address(value.contiguous().data_ptr())) if size else b""


def make_item(path: str, value: Any, note: Mapping[str, Any] = {}) -> Item:
    """A tensor of a datapoint."""
    name = str(value.dtype).removeprefix("torch.")
    return Item(path, name, tuple(value.shape), to_bytes(value), note)


def write_pages(
    folder: Path, datapoints: Iterable[tuple[Any, Mapping[str, Any], Mapping[str, Any]]], **options: Any
) -> Path:
    """Pages of datapoints: (key, values by path, more fields). What is no array is a scalar."""
    with PageWriter(folder, **options) as writer:
        for step, (key, values, more) in enumerate(datapoints):
            arrays = {path: value for path, value in values.items() if hasattr(value, "dtype")}
            scalars = {path: value for path, value in values.items() if path not in arrays}
            fields = {"step": step, **more}
            writer.add(key, [make_item(path, value) for path, value in arrays.items()], scalars=scalars, **fields)
    return folder


def make_noise(*shape: int, seed: int = 0) -> Any:
    return np.random.default_rng(seed).standard_normal(shape, dtype=np.float32)


def run_inspect_pages(*words: object, cwd: Path | None = None, **environment: str) -> subprocess.CompletedProcess[str]:
    """`tdbg inspect-pages` as a user calls it."""
    command = [sys.executable, "-m", "tdbg", "inspect-pages", *map(str, words)]
    return subprocess.run(
        command, cwd=cwd, env={**ENVIRONMENT, **environment}, capture_output=True, text=True, timeout=60, check=False
    )


def to_bfloat16(values: Any) -> torch.Tensor:
    return torch.from_numpy(np.asarray(values, np.float32)).to(torch.bfloat16)
