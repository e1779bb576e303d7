"""Which tensors of a call are labels, by name and shape."""

import pytest
import torch
from torch import Tensor

from tdbg.probes.preflight.batch_inputs import Input, is_target

X = torch.rand(4, 8)


@pytest.mark.parametrize(
    ("name", "tensor", "expected"),
    [
        ("labels", torch.zeros(4, dtype=torch.long), True),
        ("batch.target", torch.rand(4, 8), True),
        ("y", torch.zeros(4, dtype=torch.long), True),
        ("y", torch.rand(4, 1), True),
        ("y", torch.rand(4, 8), False),
        ("batch.y", torch.rand(4, 8), False),
        ("x", torch.rand(4, 8), False),
    ],
)
def test_a_second_input_named_y_is_no_label(name: str, tensor: Tensor, expected: bool) -> None:
    one = Input(name, tensor, False)
    assert is_target(one, [Input("x", X, False), one]) is expected
