"""What the tests of debuggers share."""

from collections.abc import Callable, Iterator

import pytest
import torch
from torch import nn
from torch.nn import functional as F

from tdbg.core.guard import ignore_failure
from tdbg.debuggers.attention_calls import TAPS

ATTENTION = F.scaled_dot_product_attention, F.multi_head_attention_forward, torch._native_multi_head_attention


@pytest.fixture(autouse=True)
def clean_torch_state(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Every test begins with the same random numbers and outside of a run, and leaves torch's functions as they were."""
    torch.manual_seed(0)
    monkeypatch.setattr("tdbg.core.guard._process_report", ignore_failure)
    yield
    now = F.scaled_dot_product_attention, F.multi_head_attention_forward, torch._native_multi_head_attention
    assert now == ATTENTION and not TAPS.listeners
    assert torch._dynamo.eval_frame._stance.stance == "default"


@pytest.fixture
def count_hooks() -> Callable[[nn.Module], int]:
    """How many hooks of any kind a model carries."""

    def count_in_model(model: nn.Module) -> int:
        tables = ("_forward_hooks", "_forward_pre_hooks", "_backward_hooks", "_backward_pre_hooks")
        return sum(len(getattr(module, table)) for module in model.modules() for table in tables)

    return count_in_model


class Branches(nn.Module):
    """Runs ``shared`` twice, ``often`` as often as it is told, and ``unused`` never."""

    def __init__(self) -> None:
        super().__init__()
        self.shared = nn.Linear(4, 4)
        self.often = nn.Identity()
        self.unused = nn.Linear(4, 4)

    def forward(self, x_BF: torch.Tensor, times: int = 1) -> torch.Tensor:
        for _ in range(times):
            x_BF = self.often(x_BF + 1)
        return self.shared(self.shared(x_BF))


class Gives(nn.Module):
    """A layer that puts out whatever it is given."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Identity()

    def forward(self, value: object) -> object:
        return self.layer(value)


def small_cnn(seed: int = 0) -> nn.Sequential:
    """BCHW with C=1 to three classes; the activation works in place."""
    torch.manual_seed(seed)
    return nn.Sequential(
        nn.Conv2d(1, 4, 3, padding=1),
        nn.ReLU(inplace=True),
        nn.BatchNorm2d(4),
        nn.Dropout(0.5),
        nn.AdaptiveAvgPool2d(1),
        nn.Flatten(),
        nn.Linear(4, 3),
    )
