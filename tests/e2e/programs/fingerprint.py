"""Runs another program of this folder, and prints hashes of all that it leaves: nothing of that may depend on tdbg.

Parameters, gradients and optimizer state, the state of each random generator, and every file below the working
directory, with a checkpoint that is written here.

usage: fingerprint.py PROGRAM [ARGS...]
"""

import hashlib
import os
import random
import runpy
import sys
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import numpy
import torch
from common import print_fact
from torch import Tensor
from torch.distributed.tensor import DTensor
from torch.nn.modules.module import register_module_parameter_registration_hook
from torch.optim.optimizer import register_optimizer_step_post_hook

RUN = "run"  # tdbg's own folder
parameters: dict[int, Tensor] = {}
optimizers: dict[int, Any] = {}


def hash_tensors(tensors: Iterable[Tensor | None]) -> str:
    digest = hashlib.sha256()
    for tensor in tensors:
        if isinstance(tensor, DTensor):
            tensor = tensor.to_local()
        if isinstance(tensor, Tensor):
            digest.update(f"{tensor.dtype}{list(tensor.shape)}".encode())
            digest.update(tensor.detach().contiguous().reshape(-1).view(torch.uint8).numpy().tobytes())
        else:
            digest.update(b"none")
    return digest.hexdigest()[:16]


def list_state_tensors(optimizer: Any) -> list[Tensor]:
    states = [state for group in optimizer.param_groups for p in group["params"] if (state := optimizer.state.get(p))]
    return [value for state in states for _, value in sorted(state.items()) if isinstance(value, Tensor)]


def print_fingerprint() -> None:
    rank = int(os.environ.get("RANK", "0"))
    held, states = [*parameters.values()], [tensor for one in optimizers.values() for tensor in list_state_tensors(one)]
    generators = {
        "torch": hash_tensors([torch.get_rng_state()]),
        "numpy": hashlib.sha256(repr(numpy.random.get_state()).encode()).hexdigest()[:16],
        "random": hashlib.sha256(repr(random.getstate()).encode()).hexdigest()[:16],
    }
    for parameter in held:  # Dynamo's mark, which is missing where every step was captured, and so ran uncompiled
        vars(parameter).pop("_dynamo_static_input_type", None)
    if not any(isinstance(tensor, DTensor) for tensor in [*held, *states]):  # those hold a hash of addresses
        torch.save({"parameters": held, "states": [one.state_dict() for one in optimizers.values()]}, f"end{rank}.pt")
    files = [path for path in sorted(Path().rglob("*")) if path.is_file() and path.parts[0] != RUN]
    mine = [path for path in files if "end" not in path.name or path.name == f"end{rank}.pt"]
    print_fact(
        "fingerprint",
        rank=rank,
        parameters=hash_tensors(held),
        gradients=hash_tensors(parameter.grad for parameter in held),
        states=hash_tensors(states),
        **generators,
        files={str(path): hashlib.sha256(path.read_bytes()).hexdigest()[:16] for path in mine},
    )


def main() -> None:
    def note_parameter(module: Any, name: str, parameter: Any) -> None:
        if isinstance(parameter, Tensor):
            parameters[id(parameter)] = parameter

    register_module_parameter_registration_hook(note_parameter)
    register_optimizer_step_post_hook(lambda optimizer, args, kwargs: optimizers.setdefault(id(optimizer), optimizer))
    random.seed(0)
    numpy.random.seed(0)
    torch.manual_seed(0)
    sys.argv = sys.argv[1:]
    sys.argv[0] = str(Path(__file__).with_name(f"{sys.argv[0]}.py"))
    try:
        runpy.run_path(sys.argv[0], run_name="__main__")
    finally:
        print_fingerprint()


if __name__ == "__main__":
    main()
