"""A watched program's torch.jit.script finds the names that its caller knows."""

from collections.abc import Callable
from typing import Any

import pytest
import torch


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_a_scripted_class_and_function(start_watch: Callable[..., Any]) -> None:
    start_watch()

    def double(x: torch.Tensor) -> torch.Tensor:
        return 2 * x

    @torch.jit.script
    class Local:
        def __init__(self) -> None:
            self.x = double(torch.ones(2))

    @torch.jit.script
    def read_local_x() -> torch.Tensor:
        return Local().x

    assert read_local_x().tolist() == [2.0, 2.0]
