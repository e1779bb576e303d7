"""Private names of torch stand in `torch_compat`, `torch_hooks` and `own_hooks`; every other use is listed here, with why."""

import ast
import importlib
import sys
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader

import tdbg

ROOT = Path(tdbg.__file__).parent
HOME = {"runtime/torch_compat.py", "runtime/torch_hooks.py", "runtime/own_hooks.py"}

STATE = "what every module is made of: whole modules are pickled with these names, so torch cannot rename them"
PASS = "`BatchIterator` in torch_compat declares it; without the class no batch is seen, and torch_compat notes that"
TENSOR = "documented (notes on autograd and on sparse tensors)"
NOT_TORCH = "of Python or of another package than torch"
# Names that are free in every file
FREE = {
    "_modules": STATE,
    "_parameters": STATE,
    "_buffers": STATE,
    "_num_yielded": PASS,
    "_dataset": PASS,
    "_index_sampler": PASS,
    "_sampler_iter": PASS,
    "_num_workers": PASS,
    "_version": TENSOR,
    "_values": TENSOR,
    "_indices": TENSOR,
    "_nnz": TENSOR,
    "_fields": NOT_TORCH,
    "_asdict": NOT_TORCH,
    "_exit": NOT_TORCH,
    "_getframe": NOT_TORCH,
    "_current_frames": NOT_TORCH,
}
# Files that use other packages' private names; torch is not loaded there, or the names are those of classes that the package
# has the program derive from
OTHERS = ("inject/", "metrics/", "launch/", "logs/", "cli/", "probes/wandb_metrics.py", "rules/")
GUARDED = "read with `getattr` and a default: without it this one thing is not seen"
LISTED = {
    "api/code_regions.py": ({"_is_profiler_enabled"}, GUARDED),
    "api/flop_count.py": (
        {"_overloadpacket"},
        "what an operator is the overload of: torch's own FLOP counter shows users this",
    ),
    "debuggers/attention_calls.py": ({"_materialize"}, "`hasattr` is asked first"),
    "debuggers/batch_matching.py": ({"_cdata"}, "the identity of a storage; a test of tdbg fails without it"),
    "debuggers/plain.py": (
        {"_nested_tensor_size"},
        "a nested tensor's shapes have no public name; the debugger says so where it fails",
    ),
    "inject/on/argparse_.py": ({"_get_value", "_check_value"}, "of argparse; torch has methods of the same name"),
    "metrics/step_logger/wandb_run_id.py": ({"_get_default_store"}, GUARDED),
    "probes/backward/loss_graph.py": ({"_saved_reduction"}, GUARDED),
    "probes/checkpoint/state_keys.py": ({"_non_persistent_buffers_set"}, STATE),
    "probes/dataloader/feeds.py": (
        {
            *("_workers", "_start_method", "_rcvd_idx", "_auto_collation", "_collate_fn", "_drop_last", "_pin_memory"),
            *("_persistent_workers", "_send_idx"),
        },
        PASS,
    ),
    "probes/device.py": ({"_hf_hook"}, "of accelerate"),
    "probes/early_stopping/__init__.py": ({"_evaluate_stopping_criteria"}, "of Lightning"),
    "probes/rank_batches.py": ({"_get_fsdp_state"}, "whether a module is one of FSDP2: asked with hasattr"),
    "probes/rank_weights.py": ({"_comm_hooks"}, GUARDED),
    "probes/scaler.py": ({"_step_supports_amp_scaling"}, GUARDED),
    "probes/schedule.py": ({"_is_initial", "_step_count"}, GUARDED),
    "probes/validation/__init__.py": ({"_DropoutNd", "_BatchNorm"}, "the bases of dropout and batch norm"),
    "probes/validation/eval_mode_updates.py": ({"_DropoutNd", "_BatchNorm"}, "the bases of dropout and batch norm"),
    "probes/worker_states.py": ({"_worker_init_fn"}, PASS),
    "runtime/first_update.py": (
        {"_torchdynamo_disable"},
        "set on a function of tdbg's; a torch that does not look for it breaks no graph there",
    ),
    "runtime/local_gradients.py": ({"_unsharded_param"}, GUARDED),
}


def list_names_of_torch() -> set[str]:
    """The private names of the classes and modules of torch that tdbg has to do with."""
    loader: Any = DataLoader([1, 2, 3])  # type: ignore[arg-type]
    tensor = torch.ones(2, requires_grad=True)
    names = (
        *("torch", "torch._C", "torch.autograd", "torch.cuda", "torch.cuda.memory", "torch.nn.modules.module"),
        *("torch.distributed.distributed_c10d", "torch.utils.data.dataloader", "torch.optim.optimizer"),
    )
    owners = [
        *(importlib.import_module(name) for name in names),
        *(nn.Module(), tensor, tensor.exp().grad_fn, loader, iter(loader), torch.optim.SGD([tensor], 0.1)),
        *(torch.amp.GradScaler("cpu"), torch.optim.lr_scheduler.LRScheduler, torch.profiler.profile),
        *(nn.parallel.DistributedDataParallel, torch.utils.hooks.RemovableHandle, torch.jit.ScriptModule),
        sys.modules["torch.utils.data.dataloader"]._MultiProcessingDataLoaderIter,
    ]
    return {name for owner in owners for name in dir(owner) if _is_private(name)}


def _is_private(name: object) -> bool:
    return isinstance(name, str) and name.startswith("_") and not name.startswith("__")


@cache
def _parse_names(text: str) -> tuple[frozenset[str], tuple[tuple[str, int], ...]]:
    """What a file defines, and the attributes that it reads. Each file is parsed once for all tests."""
    tree = ast.parse(text)
    return frozenset(_list_own_names(tree)), tuple(_iter_attributes(tree))


def _list_own_names(tree: ast.Module) -> set[str]:
    """What tdbg defines: functions, classes, variables, attributes of `self`."""
    found = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            found.add(node.name)
        elif isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
            found.add(node.id)
        elif isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Store) and _is_self(node.value):
            found.add(node.attr)
    return found


def _is_self(node: ast.expr) -> bool:
    return isinstance(node, ast.Name) and node.id in ("self", "cls")


def _iter_attributes(tree: ast.Module) -> Iterator[tuple[str, int]]:
    """Private attributes of something else than `self`, and private names that are imported from torch."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Attribute) and not _is_self(node.value):
            yield node.attr, node.lineno
        elif isinstance(node, ast.Call) and getattr(node.func, "id", "") in ("getattr", "hasattr", "setattr"):
            if isinstance(node.args[1], ast.Constant) and not _is_self(node.args[0]):
                yield str(node.args[1].value), node.lineno
        elif isinstance(node, ast.ImportFrom) and (node.module or "").partition(".")[0] == "torch":
            yield from ((alias.name, node.lineno) for alias in node.names)


def find_private_names(sources: dict[str, str]) -> dict[str, dict[str, int]]:
    """File -> private name that tdbg does not define, or torch defines too -> a line."""
    parsed = {file: _parse_names(text) for file, text in sources.items()}
    own, theirs = set().union(*(names for names, _ in parsed.values())), list_names_of_torch()
    found: dict[str, dict[str, int]] = {}
    for file, (_, attributes) in parsed.items():
        for name, line in attributes:
            if _is_private(name) and (name not in own or name in theirs):
                found.setdefault(file, {})[name] = line
    return found


@pytest.fixture(scope="module")
def sources() -> dict[str, str]:
    return {path.relative_to(ROOT).as_posix(): path.read_text(encoding="utf-8") for path in ROOT.rglob("*.py")}


def _list_unlisted(sources: dict[str, str]) -> list[str]:
    theirs = list_names_of_torch()
    return [
        f"{file}:{line} {name}"
        for file, names in find_private_names(sources).items()
        for name, line in names.items()
        if file not in HOME
        and name not in FREE
        and name not in LISTED.get(file, ((), ""))[0]
        and (name in theirs or not file.startswith(OTHERS))
    ]


def test_no_other_file_has_a_private_name_of_torch(sources: dict[str, str]) -> None:
    assert _list_unlisted(sources) == [], "put it into torch_compat, with what goes off without it"


def test_what_is_listed_is_there(sources: dict[str, str]) -> None:
    found = find_private_names(sources)
    assert {file: names - found.get(file, {}).keys() for file, (names, _) in LISTED.items()} == {
        file: set() for file in LISTED
    }
    assert FREE.keys() <= {name for names in found.values() for name in names}


@pytest.mark.parametrize(
    "line",
    [
        *("x = nn.Module._call_impl", "y = isinstance(a, nn.modules.dropout._DropoutNd)", "z = module._forward_hooks"),
        *("getattr(module, '_is_full_backward_hook', None)", "from torch.nn.modules.module import _IncompatibleKeys"),
    ],
)
def test_one_more_is_seen(line: str, sources: dict[str, str]) -> None:
    more = {**sources, "runtime/budget.py": f"{sources['runtime/budget.py']}\n{line}\n"}
    assert len(_list_unlisted(more)) == 1
