"""The stack machine that a pickle is a program for; its stack holds inert values alone.

Four opcodes of a pickle import names and call them. Here nothing is imported: a name is looked up in a list of exact
(module, name) pairs, whose rules make inert values, and what is not on the list becomes a Refused that says its name.
Long runs of bytes are not read: a Blob remembers where they lie.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

from tdbg.pages.pickle_reader.byte_source import ByteReader, TruncatedError
from tdbg.pages.pickle_reader.parsed_values import Array, Blob, Global, Refused
from tdbg.pages.pickle_reader.read_budget import ReadBudget

DEPTH = 4  # a pickle in the bytes of a tensor in a page; nobody needs more
INLINE_BYTES = 4096
INLINE_TEXT = 1 << 16
NUMBER_BYTES = 1024  # of a whole number
KEY_PARTS = 16

Pair = tuple[str, str]


class Unbuilt(ABC):
    """A value that a page describes in two steps, of which BUILD is the second. value: the result, once there is one."""

    value: object = None

    @abstractmethod
    def build_from_state(self, machine: "PickleMachine", state: Any) -> Any:
        """The value; ValueError or TypeError if the description is not true."""


class Rules(NamedTuple):
    """What a page may ask for: names that stand for themselves, and calls with the rule that answers each."""

    calls: Mapping[Pair, Callable[["PickleMachine", tuple[Any, ...]], Any]]
    names: frozenset[Pair]


class PickleMachine:
    """The stack and the memo of one pickle. persistent: answers a persistent id; without it they are refused."""

    def __init__(
        self,
        reader: ByteReader,
        rules: Rules,
        ledger: ReadBudget,
        persistent: Callable[[Any], Any] | None = None,
        depth: int = 0,
    ) -> None:
        if depth > DEPTH:
            raise TruncatedError(f"pickles are nested more than {DEPTH} deep")
        self.reader, self.rules, self.ledger = reader, rules, ledger
        self.persistent, self.depth = persistent, depth
        self.stack: list[object] = []
        self.below: list[list[object]] = []  # the stack up to each mark
        self.memo: dict[int, object] = {}

    def create_nested(self, reader: ByteReader, persistent: Callable[[Any], Any] | None = None) -> "PickleMachine":
        """Another machine for a pickle inside this one: same rules, same ledger, its own stack and memo."""
        return PickleMachine(reader, self.rules, self.ledger, persistent, self.depth + 1)

    def resolve_global(self, module: str, name: str) -> Global | Refused:
        """What a name stands for. Nothing is imported."""
        if (module, name) in self.rules.calls or (module, name) in self.rules.names:
            return Global(module, name)
        found = Refused(module, name)
        self.ledger.record_refused_name(found)
        return found

    def refuse_value(self, module: str, name: str, why: str = "", *parts: object) -> Refused:
        """A value that is not made."""
        return self.ledger.record_refused(Refused(module, name, why, list(parts)))

    def call_global(self, function: object, arguments: object) -> object:
        """What a call makes: the rule's inert value, or a Refused that keeps the arguments."""
        if isinstance(function, Refused):
            return self.refuse_value(function.module, function.name, "", *([arguments] if arguments else ()))
        if not isinstance(function, Global) or not isinstance(arguments, tuple):
            return self.refuse_value("pickle", "REDUCE", "a call of a non-function", function, arguments)
        rule = self.rules.calls.get((function.module, function.name))
        if rule is None:
            return self.refuse_value(function.module, function.name, "", arguments)
        try:
            return rule(self, arguments)
        except (ValueError, TypeError) as error:
            return self.refuse_value(function.module, function.name, str(error), arguments)

    def build_value(self, target: object, state: object) -> object:
        """What BUILD makes of a value. No ``__setstate__`` and no ``__dict__`` is touched."""
        if isinstance(target, Refused):
            target.parts.append(state)
            return target
        if isinstance(target, dict):
            return target  # attributes of an OrderedDict, such as those of a state_dict
        if not isinstance(target, Unbuilt):
            return self.refuse_value("pickle", "BUILD", "state for a value that takes none", target, state)
        try:
            target.value = target.build_from_state(self, state)
        except (ValueError, TypeError) as error:
            target.value = self.refuse_value("pickle", "BUILD", str(error), state)
        return target

    def extend_list(self, target: object, items: list[object]) -> object:
        """Add items to a list, or to what stands for one."""
        self.ledger.charge(8 * len(items))
        if isinstance(target, list):
            target.extend(items)
        elif isinstance(target, Refused):
            target.parts.extend(items)
        else:
            return self.refuse_value("pickle", "APPENDS", "items for a value that is not a list", target, items)
        return target

    def update_dict(self, target: object, items: list[object]) -> object:
        """Add keys and values, which take turns in ``items``, to a dict, or to what stands for one."""
        if len(items) % 2:
            raise ValueError("a key without a value")
        if isinstance(target, Refused):
            target.parts.append(self.update_dict({}, items))
        elif not isinstance(target, dict):
            return self.refuse_value("pickle", "SETITEMS", "items for a value that is not a dict", target, items)
        else:
            for at in range(0, len(items), 2):
                self.ledger.charge(100)
                target[self.validate_key(items[at])] = items[at + 1]
        return target

    def add_to_set(self, target: object, items: list[object]) -> Any:
        """Add members to a set, or to what stands for one."""
        if isinstance(target, Refused):
            target.parts.append(items)
        elif not isinstance(target, set):
            return self.refuse_value("pickle", "ADDITEMS", "items for a value that is not a set", target, items)
        else:
            for item in items:
                self.ledger.charge(70)
                target.add(self.validate_key(item))
        return target

    def validate_key(self, found: object) -> object:
        """A key of a dict. A tuple in a tuple is none: to hash what shares its parts can take for ever."""
        if type(found) in KEYS:
            return found
        if type(found) is tuple and len(found) <= KEY_PARTS and all(type(part) in KEYS for part in found):
            return found
        return self.refuse_value("pickle", "key", f"not usable as a dict key: {type(found).__name__}", found)

    def to_mark(self) -> list[object]:
        """What lies on the stack above the last mark, which goes."""
        items, self.stack = self.stack, self.below.pop()
        return items

    def memoize_top(self, at: int) -> None:
        """Remember the top of the stack."""
        self.memo[at] = self.stack[-1]

    def take_text(self, size: int) -> str | Blob:
        """Text of that many bytes; a long one stays where it is."""
        if size > INLINE_TEXT:
            return Blob(self.reader.source, self.reader.skip(size), size, text=True)
        self.ledger.charge(size)
        return self.reader.take_bytes(size).decode("utf-8", "surrogatepass")

    def read_data(self, size: int) -> bytes | Blob:
        """That many bytes; many of them stay where they are."""
        if size > INLINE_BYTES:
            return Blob(self.reader.source, self.reader.skip(size), size)
        self.ledger.charge(size)
        return self.reader.take_bytes(size)

    def read_signed_int(self, size: int) -> int | Refused:
        """A whole number of that many bytes, two's complement."""
        if size > NUMBER_BYTES:
            self.reader.skip(size)
            return self.refuse_value("builtins", "int", f"a number of {size} bytes")
        return int.from_bytes(self.reader.take_bytes(size), "little", signed=True)

    def old_text(self, data: bytes) -> str | bytes:
        """A string of Python 2: text if it is ASCII, bytes if not."""
        self.ledger.charge(len(data))
        return data.decode("ascii") if data.isascii() else data

    def read_line(self, limit: int) -> str:
        """The argument of a text opcode."""
        return self.reader.read_line(limit).decode("utf-8")

    def resolve_persistent_id(self, found: object) -> object:
        """What a persistent id stands for."""
        if self.persistent is None:
            return self.refuse_value("pickle", "persistent_id", "", found)
        try:
            return self.persistent(found)
        except ValueError as error:
            return self.refuse_value("pickle", "persistent_id", str(error), found)


KEYS = frozenset((str, int, float, bool, bytes, complex, type(None), Global, Refused, Array))
