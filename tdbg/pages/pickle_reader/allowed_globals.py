"""The globals that a pickled page may name, and the inert value that each becomes.

Exact (module, name) pairs; nothing is imported and nothing of that name is called.
Source: ``torch/_utils.py``, ``torch/_tensor.py`` (``_reduce_ex_internal``), ``copyreg.py``.
"""

from typing import Any

from tdbg.pages.format.dtypes import DTYPES
from tdbg.pages.pickle_reader import numpy_globals, torch_save_format
from tdbg.pages.pickle_reader.byte_source import MemorySource, TruncatedError
from tdbg.pages.pickle_reader.parsed_values import Array, Blob, Global, Named, Refused, Sparse, Storage, sizes
from tdbg.pages.pickle_reader.pickle_machine import Pair, PickleMachine, Rules
from tdbg.pages.pickle_reader.read_budget import BudgetExhausted

Arguments = tuple[Any, ...]

LAYOUTS = ("sparse_coo", "sparse_csr", "sparse_csc", "sparse_bsr", "sparse_bsc")
SPARSE_PARTS = {"sparse_coo": ("indices", "values")}
COMPRESSED_PARTS = ("compressed_indices", "plain_indices", "values")
PER_TENSOR, PER_CHANNEL = ("per_tensor_affine",), ("per_channel_affine", "per_channel_affine_float_qparams")
RETURN_TYPES = [
    "aminmax",
    "cummax",
    "cummin",
    "frexp",
    "geqrf",
    "histogram",
    "histogramdd",
    "kthvalue",
    "linalg_cholesky_ex",
    "linalg_eig",
    "linalg_eigh",
    "linalg_inv_ex",
    "linalg_ldl_factor",
    "linalg_ldl_factor_ex",
    "linalg_lstsq",
    "linalg_lu",
    "linalg_lu_factor",
    "linalg_lu_factor_ex",
    "linalg_qr",
    "linalg_slogdet",
    "linalg_solve_ex",
    "linalg_svd",
    "lu_unpack",
    "max",
    "median",
    "min",
    "mode",
    "nanmedian",
    "qr",
    "slogdet",
    "sort",
    "svd",
    "topk",
    "triangular_solve",
]


def _load_from_bytes(machine: PickleMachine, arguments: Arguments) -> Any:
    """The memory of a tensor: the bytes of ``torch.save`` in the bytes of a page, read by these same rules."""
    (data,) = arguments
    if isinstance(data, bytes):
        return _saved(machine, data)
    if not isinstance(data, Blob) or data.text:
        raise ValueError("no bytes of torch.save")
    if data.meaning is None:
        data.meaning = _saved(machine, data)
    return data.meaning


def _saved(machine: PickleMachine, data: bytes | Blob) -> Storage | Refused:
    try:
        found = torch_save_format.read_torch_save(
            machine, MemorySource(data) if isinstance(data, bytes) else data.window()
        )
    except BudgetExhausted:
        raise
    except TruncatedError as torn:
        raise ValueError(str(torn)) from None
    if not isinstance(found, Storage | Refused):
        raise ValueError("its bytes hold no memory of a tensor")
    return found


def _strided(storage: object, start: object, size: object, stride: object, dtype: str, **more: Any) -> Array:
    if isinstance(storage, Refused):
        raise ValueError("its memory was refused")
    if not isinstance(storage, Storage) or type(start) is not int:
        raise ValueError("a tensor without its memory")
    return Array(storage, dtype or storage.dtype or "uint8", sizes(size), sizes(stride), start, **more)


def _signs(found: object) -> dict[str, bool]:
    """The conj and neg bits, out of a tensor's metadata."""
    return {name: found.get(name) is True for name in ("conj", "neg")} if isinstance(found, dict) else {}


def _tensor(machine: PickleMachine, arguments: Arguments) -> Array:
    storage, start, size, stride, *rest = arguments
    return _strided(storage, start, size, stride, "", **_signs(rest[2] if len(rest) > 2 else None))


def _tensor_v3(machine: PickleMachine, arguments: Arguments) -> Array:
    storage, start, size, stride, _, _, dtype, *rest = arguments
    return _strided(storage, start, size, stride, _dtype(dtype), **_signs(rest[0] if rest else None))


def _dtype(found: object) -> str:
    if not isinstance(found, Global) or found.module != "torch" or found.name not in DTYPES:
        raise ValueError("a tensor without a dtype")
    return found.name


def _same(machine: PickleMachine, arguments: Arguments) -> Array:
    """A Parameter, or a tensor that was copied to the host to be pickled: the tensor."""
    if not arguments or not isinstance(arguments[0], Array):
        raise ValueError("no tensor")
    return arguments[0]


def _from_type(machine: PickleMachine, arguments: Arguments) -> Any:
    """A tensor of a subclass, or with attributes: the tensor. A subclass that is not known was refused by its name."""
    function, _, inner, _ = arguments
    if not isinstance(function, Global) or function.module != "torch._utils":
        raise ValueError("a tensor that is made of no tensor")
    return machine.call(function, inner)


def _sparse(machine: PickleMachine, arguments: Arguments) -> Sparse:
    layout, data = arguments
    if layout not in LAYOUTS or not isinstance(data, tuple):
        raise ValueError("a sparse tensor of no known layout")
    names = SPARSE_PARTS.get(layout, COMPRESSED_PARTS)
    parts = dict(zip(names, data, strict=False))
    if len(data) <= len(names) or not all(isinstance(part, Array) for part in parts.values()):
        raise ValueError("a sparse tensor without its parts")
    return Sparse(layout, sizes(data[len(names)]), parts)


def _layout(machine: PickleMachine, arguments: Arguments) -> str:
    (name,) = arguments
    if not isinstance(name, str) or name.removeprefix("torch.") not in (*LAYOUTS, "strided"):
        raise ValueError("no known layout")
    return name.removeprefix("torch.")


def _quantized(machine: PickleMachine, arguments: Arguments) -> Array:
    storage, start, size, stride, how, *_ = arguments
    if not isinstance(how, tuple) or not how or not isinstance(how[0], Global):
        raise ValueError("a quantised tensor of no known scheme")
    scheme = how[0].name
    if scheme in PER_TENSOR:
        _, scale, zero_point = how
        if not isinstance(scale, int | float) or not isinstance(zero_point, int | float):
            raise ValueError("a quantised tensor without its scale")
        note: dict[str, object] = {"scheme": scheme, "scale": scale, "zero_point": zero_point}
    elif scheme in PER_CHANNEL:
        _, scales, zero_points, axis = how
        if not isinstance(scales, Array) or not isinstance(zero_points, Array) or type(axis) is not int:
            raise ValueError("a quantised tensor without its scales")
        note = {"scheme": scheme, "scales": scales, "zero_points": zero_points, "axis": axis}
    else:
        raise ValueError("a quantised tensor of no known scheme")
    return _strided(storage, start, size, stride, "", note=note)


def _size(machine: PickleMachine, arguments: Arguments) -> tuple[int, ...]:
    (found,) = arguments
    return sizes(tuple(found) if isinstance(found, list) else found)


def _device(machine: PickleMachine, arguments: Arguments) -> str:
    kind, *index = arguments
    if not isinstance(kind, str) or len(kind) > 32 or not all(type(number) is int for number in index[:1]):
        raise ValueError("no device")
    return ":".join([kind, *map(str, index[:1])])


def _return_type(name: str) -> Any:
    def make(machine: PickleMachine, arguments: Arguments) -> Named:
        if not arguments or not isinstance(arguments[0], tuple):
            raise ValueError("a tuple without its values")
        machine.ledger.charge(16 * len(arguments[0]))
        return Named.of(f"torch.return_types.{name}", arguments[0])

    return make


def _dict(machine: PickleMachine, arguments: Arguments) -> dict[Any, Any]:
    """OrderedDict, Counter, defaultdict: what they are made of, if anything, comes as pairs or as a dict."""
    found: dict[Any, object] = {}
    given = [part for part in arguments if not isinstance(part, Global | Refused)]
    pairs = given[0] if given else []
    for pair in list(pairs.items()) if isinstance(pairs, dict) else pairs if isinstance(pairs, list) else [()]:
        if not isinstance(pair, list | tuple) or len(pair) != 2:
            raise ValueError("a dict is made of pairs")
        machine.update(found, list(pair))
    return found


def _members(machine: PickleMachine, arguments: Arguments) -> set[Any]:
    found: set[Any] = set()
    items = arguments[0] if arguments else []
    if not isinstance(items, list | tuple):
        raise ValueError("a set is made of a list")
    machine.add(found, list(items))
    return found


def _frozen(machine: PickleMachine, arguments: Arguments) -> frozenset[Any]:
    return frozenset(_members(machine, arguments))


def _complex(machine: PickleMachine, arguments: Arguments) -> complex:
    real, imaginary = arguments
    if not isinstance(real, float) or not isinstance(imaginary, float):
        raise ValueError("a complex number is made of two floats")
    return complex(real, imaginary)


def _encode(machine: PickleMachine, arguments: Arguments) -> bytes | Blob:
    """How protocols 0 to 2 write bytes: as text, a character each."""
    text, coding = arguments
    if coding not in ("latin1", "latin-1"):
        raise ValueError("bytes are written as latin1")
    if isinstance(text, str):
        machine.ledger.charge(len(text))
        return text.encode("latin-1")
    if not isinstance(text, Blob) or not text.text:
        raise ValueError("no text")
    return text.as_bytes()


def _bytes(machine: PickleMachine, arguments: Arguments) -> bytes | Blob:
    """``bytes`` and ``bytearray``: of nothing, of bytes, or of text and its coding (Python 2 and protocol 0)."""
    if not arguments:
        return b""
    if len(arguments) == 2:
        return _encode(machine, (arguments[0], arguments[1]))
    (found,) = arguments
    if not isinstance(found, bytes | Blob):
        raise ValueError("bytes are made of bytes")
    return found


def _reconstructor(machine: PickleMachine, arguments: Arguments) -> Any:
    """How protocols 0 and 1 make an object: its class is called, or refused by its own name."""
    kind, _, state = arguments
    return machine.call(kind, () if state is None else (state,))


def _rules() -> Rules:
    calls: dict[Pair, Any] = {
        **numpy_globals.CALLS,
        ("torch.storage", "_load_from_bytes"): _load_from_bytes,
        ("torch._utils", "_rebuild_tensor"): _tensor,
        ("torch._utils", "_rebuild_tensor_v2"): _tensor,
        ("torch._utils", "_rebuild_tensor_v3"): _tensor_v3,
        ("torch._utils", "_rebuild_parameter"): _same,
        ("torch._utils", "_rebuild_parameter_with_state"): _same,
        ("torch._utils", "_rebuild_device_tensor_from_cpu_tensor"): _same,
        ("torch._utils", "_rebuild_sparse_tensor"): _sparse,
        ("torch._utils", "_rebuild_qtensor"): _quantized,
        ("torch._tensor", "_rebuild_from_type_v2"): _from_type,
        ("torch.serialization", "_get_layout"): _layout,
        ("torch", "Size"): _size,
        ("torch", "device"): _device,
        ("collections", "OrderedDict"): _dict,
        ("collections", "defaultdict"): _dict,
        ("collections", "Counter"): _dict,
        ("_codecs", "encode"): _encode,
        **{("torch.return_types", name): _return_type(name) for name in RETURN_TYPES},
    }
    for module in ("builtins", "__builtin__"):
        calls |= {(module, "set"): _members, (module, "frozenset"): _frozen, (module, "complex"): _complex}
        calls |= {(module, "bytes"): _bytes, (module, "bytearray"): _bytes}
    for module in ("copyreg", "copy_reg"):
        calls[module, "_reconstructor"] = _reconstructor
    names: set[Pair] = {("torch", name) for name in (*DTYPES, *torch_save_format.STORAGES, *PER_TENSOR, *PER_CHANNEL)}
    names |= {torch_save_format.UNTYPED, ("torch", "Tensor"), ("torch.nn.parameter", "Parameter")}
    names |= {
        (module, name) for module in ("builtins", "__builtin__") for name in ("object", "list", "dict", "int", "float")
    }
    return Rules(calls, numpy_globals.NAMES | names)


RULES = _rules()
