"""What tdbg writes is what the safetensors library reads."""

from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

from tdbg.pages.format.safetensors_file import is_storable, write_safetensors


def test_every_common_dtype_is_read_back_by_the_library(tmp_path: Path) -> None:
    tensors = {
        "f32": torch.randn(3, 4),
        "f64": torch.randn(2, dtype=torch.float64),
        "f16": torch.randn(5).half(),
        "bf16": torch.randn(5).bfloat16(),
        "fp8": torch.randn(5).to(torch.float8_e4m3fn),
        "i64": torch.arange(4),
        "u8": torch.arange(4, dtype=torch.uint8),
        "flags": torch.tensor([True, False]),
        "scalar": torch.tensor(1.5),
        "empty": torch.empty(0, 3),
        "view": torch.arange(12.0).reshape(3, 4).T,
    }
    path = tmp_path / "batch.safetensors"
    size = write_safetensors(path, tensors, {"step": "3"})
    assert path.stat().st_size == size
    back = load_file(path)
    assert back.keys() == tensors.keys()
    for name, tensor in tensors.items():
        assert back[name].dtype == tensor.dtype
        assert torch.equal(back[name].float(), tensor.float())


def test_what_the_format_cannot_hold_is_known_beforehand() -> None:
    assert not is_storable(torch.empty(2, device="meta"))
    assert not is_storable(torch.eye(2).to_sparse())
    assert is_storable(torch.ones(2, dtype=torch.complex64))


def test_a_failed_write_leaves_nothing(tmp_path: Path) -> None:
    with pytest.raises(OSError):
        write_safetensors(tmp_path / "no" / "where.safetensors", {"x": torch.ones(1)}, {})
    assert list(tmp_path.iterdir()) == []
