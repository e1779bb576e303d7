"""What the programs share: one JSON line per fact on stdout, and tiny data that is the same everywhere."""

import gc
import json
import sys
import time
from collections.abc import Iterable
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor
from torch.utils.data import TensorDataset


def print_fact(event: str, **facts: Any) -> None:
    """Print one fact as a JSON line, in a single write, so that lines of several ranks do not mix."""
    sys.stdout.write(json.dumps({"event": event, **facts}) + "\n")
    sys.stdout.flush()


def compute_grad_norm(parameters: Iterable[Tensor]) -> float:
    """The L2 norm over all gradients, in float64, worked out by hand."""
    squares = [float(p.grad.double().pow(2).sum()) for p in parameters if p.grad is not None]
    return sum(squares) ** 0.5


def make_regression(samples: int, features: int = 8, seed: int = 0) -> TensorDataset:
    """Inputs and targets of a noisy linear map."""
    generator = torch.Generator().manual_seed(seed)
    x_NF = torch.randn(samples, features, generator=generator)
    weight_F = torch.randn(features, generator=generator)
    noise_N = torch.randn(samples, generator=generator)
    return TensorDataset(x_NF, (x_NF @ weight_F + 0.1 * noise_N)[:, None])


def make_tokens(samples: int, length: int, vocabulary: int, seed: int = 0) -> Tensor:
    """Sequences that count upwards from a random start: easy to learn."""
    generator = torch.Generator().manual_seed(seed)
    start_N = torch.randint(vocabulary, (samples, 1), generator=generator)
    return (start_N + torch.arange(length)) % vocabulary


def leave_group() -> None:
    """Leave the process group in peace.

    With torch 2.13 on gloo, a bare DDP program that exits right after its last all-reduce aborts now and
    then (1 in 4 here): a C++ thread asks for the GIL while Python shuts down. A moment's rest prevents it.
    """
    gc.collect()
    dist.barrier()
    time.sleep(0.3)
    dist.destroy_process_group()
