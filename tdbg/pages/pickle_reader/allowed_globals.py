"""The globals that a pickled page may name, and the inert value that each becomes.

Exact (module, name) pairs; nothing is imported and nothing of that name is called.
Source: ``torch/_utils.py``, ``torch/_tensor.py`` (``_reduce_ex_internal``), ``copyreg.py``.
"""

from typing import Any

from tdbg.pages.format.dtypes import DTYPES
from tdbg.pages.pickle_reader import numpy_globals, torch_save_format
from tdbg.pages.pickle_reader.byte_source import MemorySource, TruncatedError
from tdbg.pages.pickle_reader.parsed_values import Array, Blob, Global, Named, Refused, Sparse, Storage, parse_sizes
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
        return _read_saved_storage(machine, data)
    if not isinstance(data, Blob) or data.text:
        raise ValueError("bytes that torch.save did not write")
    if data.meaning is None:
        data.meaning = _read_saved_storage(machine, data)
    return data.meaning


def _read_saved_storage(machine: PickleMachine, data: bytes | Blob) -> Storage | Refused:
    try:
        found = torch_save_format.read_torch_save(
            machine, MemorySource(data) if isinstance(data, bytes) else data.open_window()
        )
    except BudgetExhausted:
        raise
    except TruncatedError as torn:
        raise ValueError(str(torn)) from None
    if not isinstance(found, Storage | Refused):
        raise ValueError("its bytes hold no tensor storage")
    return found


def _build_strided_array(
    storage: object, start: object, size: object, stride: object, dtype: str, **more: Any
) -> Array:
    if isinstance(storage, Refused):
        raise ValueError("its storage was refused")
    if not isinstance(storage, Storage) or type(start) is not int:
        raise ValueError("a tensor without its storage")
    return Array(storage, dtype or storage.dtype or "uint8", parse_sizes(size), parse_sizes(stride), start, **more)


def _parse_sign_bits(found: object) -> dict[str, bool]:
    """The conj and neg bits, out of a tensor's metadata."""
    return {name: found.get(name) is True for name in ("conj", "neg")} if isinstance(found, dict) else {}


def _rebuild_tensor(machine: PickleMachine, arguments: Arguments) -> Array:
    storage, start, size, stride, *rest = arguments
    return _build_strided_array(
        storage, start, size, stride, "", **_parse_sign_bits(rest[2] if len(rest) > 2 else None)
    )


def _tensor_v3(machine: PickleMachine, arguments: Arguments) -> Array:
    storage, start, size, stride, _, _, dtype, *rest = arguments
    return _build_strided_array(
        storage, start, size, stride, _parse_dtype(dtype), **_parse_sign_bits(rest[0] if rest else None)
    )


def _parse_dtype(found: object) -> str:
    if not isinstance(found, Global) or found.module != "torch" or found.name not in DTYPES:
        raise ValueError("a tensor without a dtype")
    return found.name


def _unwrap_tensor(machine: PickleMachine, arguments: Arguments) -> Array:
    """A Parameter, or a tensor that was copied to the host to be pickled: the tensor."""
    if not arguments or not isinstance(arguments[0], Array):
        raise ValueError("the argument is not a tensor")
    return arguments[0]


def _from_type(machine: PickleMachine, arguments: Arguments) -> Any:
    """A tensor of a subclass, or with attributes: the tensor. A subclass that is not known was refused by its name."""
    function, _, inner, _ = arguments
    if not isinstance(function, Global) or function.module != "torch._utils":
        raise ValueError("a tensor subclass that is not made from a tensor")
    return machine.call_global(function, inner)


def _rebuild_sparse_tensor(machine: PickleMachine, arguments: Arguments) -> Sparse:
    layout, data = arguments
    if layout not in LAYOUTS or not isinstance(data, tuple):
        raise ValueError("a sparse tensor of unknown layout")
    names = SPARSE_PARTS.get(layout, COMPRESSED_PARTS)
    parts = dict(zip(names, data, strict=False))
    if len(data) <= len(names) or not all(isinstance(part, Array) for part in parts.values()):
        raise ValueError("a sparse tensor without its indices or values")
    return Sparse(layout, parse_sizes(data[len(names)]), parts)


def _parse_layout(machine: PickleMachine, arguments: Arguments) -> str:
    (name,) = arguments
    if not isinstance(name, str) or name.removeprefix("torch.") not in (*LAYOUTS, "strided"):
        raise ValueError("an unknown layout")
    return name.removeprefix("torch.")


def _rebuild_qtensor(machine: PickleMachine, arguments: Arguments) -> Array:
    storage, start, size, stride, how, *_ = arguments
    if not isinstance(how, tuple) or not how or not isinstance(how[0], Global):
        raise ValueError("a quantised tensor of unknown scheme")
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
        raise ValueError("a quantised tensor of unknown scheme")
    return _build_strided_array(storage, start, size, stride, "", note=note)


def _rebuild_size(machine: PickleMachine, arguments: Arguments) -> tuple[int, ...]:
    (found,) = arguments
    return parse_sizes(tuple(found) if isinstance(found, list) else found)


def _rebuild_device(machine: PickleMachine, arguments: Arguments) -> str:
    kind, *index = arguments
    if not isinstance(kind, str) or len(kind) > 32 or not all(type(number) is int for number in index[:1]):
        raise ValueError("the arguments do not name a device")
    return ":".join([kind, *map(str, index[:1])])


def _return_type(name: str) -> Any:
    def build_return_type(machine: PickleMachine, arguments: Arguments) -> Named:
        if not arguments or not isinstance(arguments[0], tuple):
            raise ValueError("a tuple without its values")
        machine.ledger.charge(16 * len(arguments[0]))
        return Named.from_values(f"torch.return_types.{name}", arguments[0])

    return build_return_type


def _rebuild_dict(machine: PickleMachine, arguments: Arguments) -> dict[Any, Any]:
    """OrderedDict, Counter, defaultdict: what they are made of, if anything, comes as pairs or as a dict."""
    found: dict[Any, object] = {}
    given = [part for part in arguments if not isinstance(part, Global | Refused)]
    pairs = given[0] if given else []
    for pair in list(pairs.items()) if isinstance(pairs, dict) else pairs if isinstance(pairs, list) else [()]:
        if not isinstance(pair, list | tuple) or len(pair) != 2:
            raise ValueError("the items of a dict are not pairs")
        machine.update_dict(found, list(pair))
    return found


def _rebuild_set(machine: PickleMachine, arguments: Arguments) -> set[Any]:
    found: set[Any] = set()
    items = arguments[0] if arguments else []
    if not isinstance(items, list | tuple):
        raise ValueError("the items of a set are not a list")
    machine.add_to_set(found, list(items))
    return found


def _rebuild_frozenset(machine: PickleMachine, arguments: Arguments) -> frozenset[Any]:
    return frozenset(_rebuild_set(machine, arguments))


def _rebuild_complex(machine: PickleMachine, arguments: Arguments) -> complex:
    real, imaginary = arguments
    if not isinstance(real, float) or not isinstance(imaginary, float):
        raise ValueError("a complex number that is not two floats")
    return complex(real, imaginary)


def _encode_latin1(machine: PickleMachine, arguments: Arguments) -> bytes | Blob:
    """How protocols 0 to 2 write bytes: as text, a character each."""
    text, coding = arguments
    if coding not in ("latin1", "latin-1"):
        raise ValueError("bytes with an encoding other than latin1")
    if isinstance(text, str):
        machine.ledger.charge(len(text))
        return text.encode("latin-1")
    if not isinstance(text, Blob) or not text.text:
        raise ValueError("the argument is not text")
    return text.as_bytes()


def _rebuild_bytes(machine: PickleMachine, arguments: Arguments) -> bytes | Blob:
    """``bytes`` and ``bytearray``: of nothing, of bytes, or of text and its coding (Python 2 and protocol 0)."""
    if not arguments:
        return b""
    if len(arguments) == 2:
        return _encode_latin1(machine, (arguments[0], arguments[1]))
    (found,) = arguments
    if not isinstance(found, bytes | Blob):
        raise ValueError("the argument is not bytes")
    return found


def _reconstruct_object(machine: PickleMachine, arguments: Arguments) -> Any:
    """How protocols 0 and 1 make an object: its class is called, or refused by its own name."""
    kind, _, state = arguments
    return machine.call_global(kind, () if state is None else (state,))


def _build_rules() -> Rules:
    calls: dict[Pair, Any] = {
        **numpy_globals.CALLS,
        ("torch.storage", "_load_from_bytes"): _load_from_bytes,
        ("torch._utils", "_rebuild_tensor"): _rebuild_tensor,
        ("torch._utils", "_rebuild_tensor_v2"): _rebuild_tensor,
        ("torch._utils", "_rebuild_tensor_v3"): _tensor_v3,
        ("torch._utils", "_rebuild_parameter"): _unwrap_tensor,
        ("torch._utils", "_rebuild_parameter_with_state"): _unwrap_tensor,
        ("torch._utils", "_rebuild_device_tensor_from_cpu_tensor"): _unwrap_tensor,
        ("torch._utils", "_rebuild_sparse_tensor"): _rebuild_sparse_tensor,
        ("torch._utils", "_rebuild_qtensor"): _rebuild_qtensor,
        ("torch._tensor", "_rebuild_from_type_v2"): _from_type,
        ("torch.serialization", "_get_layout"): _parse_layout,
        ("torch", "Size"): _rebuild_size,
        ("torch", "device"): _rebuild_device,
        ("collections", "OrderedDict"): _rebuild_dict,
        ("collections", "defaultdict"): _rebuild_dict,
        ("collections", "Counter"): _rebuild_dict,
        ("_codecs", "encode"): _encode_latin1,
        **{("torch.return_types", name): _return_type(name) for name in RETURN_TYPES},
    }
    for module in ("builtins", "__builtin__"):
        calls |= {
            (module, "set"): _rebuild_set,
            (module, "frozenset"): _rebuild_frozenset,
            (module, "complex"): _rebuild_complex,
        }
        calls |= {(module, "bytes"): _rebuild_bytes, (module, "bytearray"): _rebuild_bytes}
    for module in ("copyreg", "copy_reg"):
        calls[module, "_reconstructor"] = _reconstruct_object
    names: set[Pair] = {("torch", name) for name in (*DTYPES, *torch_save_format.STORAGES, *PER_TENSOR, *PER_CHANNEL)}
    names |= {torch_save_format.UNTYPED, ("torch", "Tensor"), ("torch.nn.parameter", "Parameter")}
    names |= {
        (module, name) for module in ("builtins", "__builtin__") for name in ("object", "list", "dict", "int", "float")
    }
    return Rules(calls, numpy_globals.NAMES | names)


RULES = _build_rules()
