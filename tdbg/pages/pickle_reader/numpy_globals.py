"""The globals of numpy and joblib, rebuilt as inert values: dtypes, arrays, scalars.

joblib writes the bytes of an array into the stream itself, behind the opcode that describes it.
Source: ``numpy/_core/src/multiarray`` (``array_reduce``, ``arraydescr_reduce``), ``joblib/numpy_pickle.py``.
"""

import math
import re
import struct

from tdbg.pages.pickle_reader.byte_source import MemorySource, TruncatedError
from tdbg.pages.pickle_reader.parsed_values import (
    Array,
    Blob,
    Global,
    Refused,
    Storage,
    contiguous_strides,
    parse_sizes,
)
from tdbg.pages.pickle_reader.pickle_machine import Pair, PickleMachine, Unbuilt
from tdbg.pages.pickle_reader.unpickle import follow_pickle

TYPES = {
    "b1": "bool",
    "c8": "complex64",
    "c16": "complex128",
    "f2": "float16",
    "f4": "float32",
    "f8": "float64",
} | {f"{sign}{size}": f"{'u' * (sign == 'u')}int{8 * size}" for sign in "iu" for size in (1, 2, 4, 8)}
SCALARS = {
    "bool": "?",
    "float16": "e",
    "float32": "f",
    "float64": "d",
    "complex64": "ff",
    "complex128": "dd",
    "int8": "b",
    "int16": "h",
    "int32": "i",
    "int64": "q",
    "uint8": "B",
    "uint16": "H",
    "uint32": "I",
    "uint64": "Q",
}
CODE = re.compile(r"([A-Za-z])(\d{1,9})")
HAS_OBJECTS = 1  # flag of a dtype
LONGEST_TEXT_BYTES = 1 << 16


class NumpyType(Unbuilt):
    """A numpy dtype: its code (``f8``), and whether the most significant byte comes first."""

    def __init__(self, code: str) -> None:
        self.code = code
        self.swapped = self.structured = False
        self.objects = code.startswith("O")
        self.value = Global("numpy", code)

    def build_from_state(self, machine: PickleMachine, state: object) -> object:
        if not isinstance(state, tuple) or len(state) < 8 or type(state[7]) is not int:
            raise ValueError("not a valid numpy dtype")
        self.swapped = state[1] == ">"
        self.structured = any(part is not None for part in state[2:5])
        self.objects = self.objects or bool(state[7] & HAS_OBJECTS)
        return self.value

    @property
    def torch_name(self) -> str:
        """ValueError for what has no counterpart: text, dates, records."""
        if self.objects:
            raise ValueError("an array of Python objects")
        if self.structured or self.code not in TYPES:
            raise ValueError(f"numpy dtype {self.code} has no torch counterpart")
        return TYPES[self.code]

    @property
    def itemsize(self) -> int:
        """Bytes of an element; ValueError if the code does not say."""
        match = CODE.fullmatch(self.code)
        if not match:
            raise ValueError("an unknown numpy dtype")
        return int(match[2]) * (4 if match[1] == "U" else 1)


def rebuild_dtype(machine: PickleMachine, arguments: tuple[object, ...]) -> NumpyType:
    """``numpy.dtype``."""
    if not arguments or not isinstance(arguments[0], str) or len(arguments[0]) > 16:
        raise ValueError("an unknown numpy dtype")
    return NumpyType(arguments[0])


def rebuild_scalar(machine: PickleMachine, arguments: tuple[object, ...]) -> object:
    """``numpy._core.multiarray.scalar``: the number, as Python has it."""
    kind, data = arguments
    if not isinstance(kind, NumpyType) or not isinstance(data, bytes) or len(data) != kind.itemsize:
        raise ValueError("a numpy scalar without its bytes")
    order = ">" if kind.swapped else "<"
    if kind.code[0] in "US" and not kind.structured and len(data) <= LONGEST_TEXT_BYTES:
        machine.ledger.charge(len(data))
        text = (
            data.decode("latin-1") if kind.code[0] == "S" else data.decode("utf-32-be" if kind.swapped else "utf-32-le")
        )
        return text.rstrip("\0")
    parts = struct.unpack(order + SCALARS[kind.torch_name], data)
    return complex(*parts) if len(parts) == 2 else parts[0]


def _build_storage(kind: NumpyType, data: object) -> Storage:
    if isinstance(data, bytes):
        return Storage(kind.torch_name, len(data), MemorySource(data), 0)
    if isinstance(data, Blob) and not data.text:
        return Storage(kind.torch_name, data.size, data.source, data.offset)
    raise ValueError("an array without its bytes")


def _build_array(kind: NumpyType, shape: object, columns_first: bool, storage: Storage) -> Array:
    strides = tuple(reversed(contiguous_strides(parse_sizes(shape)[::-1]))) if columns_first else None
    return Array(storage, kind.torch_name, parse_sizes(shape), strides, swapped=kind.swapped)


class NumpyArray(Unbuilt):
    """``numpy.ndarray`` as a plain pickle writes it: empty first, and filled by BUILD."""

    def __init__(self) -> None:
        self.value = Refused("numpy", "ndarray", "an array that was never filled")

    def build_from_state(self, machine: PickleMachine, state: object) -> object:
        if not isinstance(state, tuple) or len(state) not in (4, 5):
            raise ValueError("not a valid description of an array")
        shape, kind, columns_first, data = state[-4:]
        if not isinstance(kind, NumpyType):
            raise ValueError("an array without a dtype")
        try:
            return _build_array(kind, shape, bool(columns_first), _build_storage(kind, data))
        except ValueError as error:
            return machine.refuse_value("numpy", "ndarray", str(error), *([data] if kind.objects else []))


def create_numpy_array(machine: PickleMachine, arguments: tuple[object, ...]) -> NumpyArray:
    """``numpy._core.multiarray._reconstruct``."""
    return NumpyArray()


def rebuild_from_buffer(machine: PickleMachine, arguments: tuple[object, ...]) -> Array:
    """``numpy._core.numeric._frombuffer``, of protocol 5."""
    data, kind, shape, order, *_ = arguments
    if not isinstance(kind, NumpyType):
        raise ValueError("an array without a dtype")
    return _build_array(kind, shape, order == "F", _build_storage(kind, data))


class JoblibArray(Unbuilt):
    """joblib's NumpyArrayWrapper: BUILD describes the array, whose bytes follow in the stream."""

    def __init__(self) -> None:
        self.value = Refused("joblib.numpy_pickle", "NumpyArrayWrapper", "an array that was never described")

    def build_from_state(self, machine: PickleMachine, state: object) -> object:
        """What follows has to be stepped over in any case, so that a description which does not hold ends the page."""
        if not isinstance(state, dict) or not isinstance(state.get("dtype"), NumpyType):
            raise TruncatedError("the bytes of an array without a dtype follow")
        kind: NumpyType = state["dtype"]
        if kind.objects:
            parts = follow_pickle(machine.create_nested(machine.reader))
            return (
                parts.value
                if isinstance(parts, Unbuilt)
                else machine.refuse_value("numpy", "ndarray", "objects", parts)
            )
        try:
            shape = parse_sizes(state.get("shape"))
            nbytes = math.prod(shape) * kind.itemsize
        except ValueError as error:
            raise TruncatedError(f"the shape of the array that follows is invalid: {error}") from None
        if state.get("numpy_array_alignment_bytes") is not None:
            machine.reader.skip(machine.reader.read_byte())
        source, begin = machine.reader.source, machine.reader.skip(nbytes)
        try:
            return _build_array(kind, shape, state.get("order") == "F", Storage(kind.torch_name, nbytes, source, begin))
        except ValueError as error:
            return machine.refuse_value("numpy", "ndarray", str(error))


def create_joblib_array(machine: PickleMachine, arguments: tuple[object, ...]) -> JoblibArray:
    """``joblib.numpy_pickle.NumpyArrayWrapper``."""
    return JoblibArray()


CALLS = {
    ("numpy", "dtype"): rebuild_dtype,
    ("numpy._core.multiarray", "scalar"): rebuild_scalar,
    ("numpy.core.multiarray", "scalar"): rebuild_scalar,
    ("numpy._core.multiarray", "_reconstruct"): create_numpy_array,
    ("numpy.core.multiarray", "_reconstruct"): create_numpy_array,
    ("numpy._core.numeric", "_frombuffer"): rebuild_from_buffer,
    ("numpy.core.numeric", "_frombuffer"): rebuild_from_buffer,
    ("joblib.numpy_pickle", "NumpyArrayWrapper"): create_joblib_array,
}
NAMES: frozenset[Pair] = frozenset({("numpy", "ndarray"), ("numpy", "memmap")})
