"""Modules may return anything: whichever part reads their outputs, none is switched off, and training goes on."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from tdbg.core.flags import FLAGS

from .conftest import Watch

Start = Callable[..., Watch]


class Scaled(Tensor):
    """A subclass without a dispatch of its own."""


class Logged(Tensor):
    """One whose every operator is the class's own."""

    @classmethod
    def __torch_function__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        return super().__torch_function__(func, types, args, kwargs or {})


def make_fake_output(x_NF: Tensor) -> Tensor:
    with torch._subclasses.FakeTensorMode(allow_non_fake_inputs=True):
        return torch.empty(4, 4)


def make_jagged_output(x_NF: Tensor) -> Tensor:
    return torch.nested.nested_tensor([x_NF[:2].detach(), x_NF.detach()], layout=torch.jagged)


def make_nested_output(x_NF: Tensor) -> Tensor:
    return torch.nested.nested_tensor([x_NF[:2].detach(), x_NF.detach()])


ASIDE = {"PROFILER", "AUTOGRAD_ANOMALY"}  # they read no outputs
KINDS: dict[str, Callable[[Tensor], Any]] = {
    "coo": lambda x_NF: x_NF.to_sparse(),
    "coo twice": lambda x_NF: torch.sparse_coo_tensor(torch.zeros(2, 3, dtype=torch.int64), x_NF[0, :3], (4, 4)),
    "coo of rows": lambda x_NF: x_NF.to_sparse(1),
    "coo without values": lambda x_NF: torch.zeros(4, 4).to_sparse(),
    "csr": lambda x_NF: x_NF.to_sparse_csr(),
    "csc": lambda x_NF: x_NF.to_sparse_csc(),
    "bsr": lambda x_NF: x_NF.to_sparse_bsr((2, 2)),
    "bsc": lambda x_NF: x_NF.to_sparse_bsc((2, 2)),
    "csr with NaN": lambda x_NF: (x_NF.detach() * torch.nan).to_sparse_csr(),
    "csr of a batch": lambda x_NF: x_NF.detach().expand(2, 4, 4).to_sparse_csr(),
    "nested": make_nested_output,
    "jagged": make_jagged_output,
    "mkldnn": lambda x_NF: x_NF.detach().to_mkldnn(),
    "quantized": lambda x_NF: torch.quantize_per_tensor(x_NF.detach(), 0.1, 0, torch.qint8),
    "quantized by channel": lambda x_NF: torch.quantize_per_channel(
        x_NF.detach(), torch.ones(4), torch.zeros(4), 0, torch.quint8
    ),
    "complex": lambda x_NF: torch.complex(x_NF, x_NF),
    "complex, conjugated": lambda x_NF: torch.complex(x_NF, x_NF).conj(),
    "complex32": lambda x_NF: torch.complex(x_NF, x_NF).detach().to(torch.complex32),
    "complex csr": lambda x_NF: torch.complex(x_NF, x_NF).detach().to_sparse_csr(),
    "negated view": lambda x_NF: torch.complex(x_NF, x_NF).conj().imag,
    "meta": lambda x_NF: torch.empty(4, 4, device="meta"),
    "meta csr": lambda x_NF: torch.eye(4).to_sparse_csr().to("meta"),
    "fake": make_fake_output,
    "lazy parameter": lambda x_NF: nn.UninitializedParameter(),
    "subclass": lambda x_NF: x_NF.as_subclass(Scaled),
    "subclass with a function of its own": lambda x_NF: x_NF.as_subclass(Logged),
    "expanded": lambda x_NF: x_NF[:1].expand(4, 4),
    "number": lambda x_NF: x_NF.sum(),
    "nothing": lambda x_NF: torch.empty(0, 4),
    "parameter": lambda x_NF: nn.Parameter(x_NF.detach()),
    "no tensor": lambda x_NF: object(),
    "none": lambda x_NF: None,
    **{
        str(dtype): lambda x_NF, dtype=dtype: (x_NF.detach() > 0).to(torch.float32).to(dtype)
        for dtype in (
            torch.bool,
            torch.uint8,
            torch.uint16,
            torch.uint32,
            torch.uint64,
            torch.int8,
            torch.int64,
            torch.float16,
            torch.bfloat16,
            torch.float64,
            torch.float8_e4m3fn,
            torch.float8_e5m2,
            torch.float8_e4m3fnuz,
            torch.float8_e5m2fnuz,
            *([torch.float8_e8m0fnu] if hasattr(torch, "float8_e8m0fnu") else []),  # torch 2.6 has none
        )
    },
}
PARTS: dict[str, dict[str, Any]] = {
    "basic": {},
    "advanced": {"level": "advanced"},
    "extreme": {"level": "extreme"},
    "flags": {"flags": {flag.name: True for flag in FLAGS if flag.probe and flag.name not in ASIDE}},
    **{
        name: {"flags": {name: True}} for name in ("FORWARD", "BACKWARD", "GRADIENTS", "MEMORY", "DEVICE", "VALIDATION")
    },
}


class Odd(nn.Module):
    """Returns something odd, beside or instead of what a layer returns."""

    def __init__(self, make: Callable[[Tensor], Any], *, beside: bool) -> None:
        super().__init__()
        self.layer, self.make, self.beside = nn.Linear(4, 4), make, beside

    def forward(self, x_NF: Tensor) -> Any:
        output_NF: Tensor = self.layer(x_NF)
        made = self.make(output_NF)
        return ({"found": [made], "output": output_NF}, output_NF) if self.beside else made


class Whole(nn.Module):
    """A module that returns something odd, inside of one that does not, and of one that hands it on."""

    def __init__(self, make: Callable[[Tensor], Any], *, beside: bool, hands_on: bool) -> None:
        super().__init__()
        self.odd, self.layer, self.hands_on = Odd(make, beside=beside), nn.Linear(4, 4), hands_on

    def forward(self, x_NF: Tensor) -> Any:
        found = self.odd(x_NF)
        output_NF = self.layer(x_NF)
        return (output_NF, found) if self.hands_on else output_NF


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("part", PARTS)
@pytest.mark.parametrize("kind", KINDS)
def test_no_part_is_switched_off(start_watch: Start, kind: str, part: str) -> None:
    """The fixture asserts that nothing of tdbg failed."""
    seen = start_watch(**PARTS[part])
    for beside in (False, True):
        for hands_on in (False, True):
            model = Whole(KINDS[kind], beside=beside, hands_on=hands_on)
            optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
            for _ in range(2):
                output = model(torch.randn(4, 4))
                (output[0] if hands_on else output).square().mean().backward()
                optimizer.step()
                optimizer.zero_grad()
            with torch.no_grad():
                model(torch.randn(4, 4))
    assert [step.step for step in seen.train_steps][:2] == [1, 2]


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("kind", [kind for kind in KINDS if "cs" in kind or "bs" in kind])
def test_a_compressed_output_is_looked_at(start_watch: Start, kind: str) -> None:
    """Its values are, as those of a dense tensor would be."""
    seen = start_watch(flags={"FORWARD": True})
    Whole(KINDS[kind], beside=False, hands_on=False)(torch.randn(4, 4)).sum().backward()
    rows = {row.path: row for row in seen.monitor.modules.seen}
    assert rows["odd"].shape
