"""Follow a pickle without running anything: each opcode of protocols 0 to 5 as its effect on a `PickleMachine`.

Source: the comments of CPython's ``Lib/pickletools.py``.
"""

import codecs
import struct
from collections.abc import Callable
from typing import Any

from tdbg.pages.pickle_reader.byte_source import TruncatedError
from tdbg.pages.pickle_reader.parsed_values import Blob
from tdbg.pages.pickle_reader.pickle_machine import NUMBER_BYTES, PickleMachine

NUMBER_CHARS = 2048
NAME_CHARS = 4096
PROTOCOLS = 5
STOP = b"."[0]

Handler = Callable[[PickleMachine], Any]


def _reject_opcode(machine: PickleMachine) -> None:
    raise ValueError("no such opcode")


HANDLERS: list[Handler] = [_reject_opcode] * 256
COSTS = [16] * 256


def _register_opcode(code: str | int, cost: int) -> Callable[[Handler], Handler]:
    """The handler of an opcode. cost: bytes of memory that it makes at most, besides what it charges itself."""

    def register_handler(handler: Handler) -> Handler:
        at = code if isinstance(code, int) else ord(code)
        HANDLERS[at], COSTS[at] = handler, cost
        return handler

    return register_handler


def _register_push(code: str | int, cost: int) -> Callable[[Callable[[PickleMachine], Any]], Handler]:
    """The handler of an opcode that puts one new value on the stack."""

    def register_handler(make: Callable[[PickleMachine], Any]) -> Handler:
        def handle_opcode(machine: PickleMachine) -> None:
            found = make(machine)  # which may change what the stack is
            machine.stack.append(found)

        return _register_opcode(code, cost)(handle_opcode)

    return register_handler


def _register_binary(code: str | int, cost: int) -> Callable[[Callable[[PickleMachine, Any, Any], Any]], Handler]:
    """The handler of an opcode that takes the two topmost values and puts one there."""

    def register_handler(make: Callable[[PickleMachine, Any, Any], Any]) -> Handler:
        def handle_opcode(machine: PickleMachine) -> None:
            upper = machine.stack.pop()
            machine.stack[-1] = make(machine, machine.stack[-1], upper)

        return _register_opcode(code, cost)(handle_opcode)

    return register_handler


def _register_mark_update(
    code: str | int, cost: int
) -> Callable[[Callable[[PickleMachine, Any, list[Any]], Any]], Handler]:
    """The handler of an opcode that gives what is above the mark to the value below it."""

    def register_handler(make: Callable[[PickleMachine, Any, list[Any]], Any]) -> Handler:
        def handle_opcode(machine: PickleMachine) -> None:
            items = machine.to_mark()
            machine.stack[-1] = make(machine, machine.stack[-1], items)

        return _register_opcode(code, cost)(handle_opcode)

    return register_handler


# what is always the same, and small things
_register_push("N", 16)(lambda m: None)
_register_push(0x88, 16)(lambda m: True)
_register_push(0x89, 16)(lambda m: False)
_register_push(")", 16)(lambda m: ())
_register_push("]", 80)(lambda m: [])
_register_push("}", 80)(lambda m: {})
_register_push(0x8F, 240)(lambda m: set())

# numbers
_register_push("K", 16)(lambda m: m.reader.read_byte())
_register_push("M", 48)(lambda m: m.reader.read_uint(2))
_register_push("J", 48)(lambda m: int.from_bytes(m.reader.take_bytes(4), "little", signed=True))
_register_push("G", 40)(lambda m: struct.unpack(">d", m.reader.take_bytes(8))[0])
_register_push("F", 40)(lambda m: float(m.read_line(NUMBER_CHARS)))
_register_push(0x8A, 300)(lambda m: m.read_signed_int(m.reader.read_byte()))
_register_push(0x8B, NUMBER_BYTES)(lambda m: m.read_signed_int(m.reader.read_uint(4)))
_register_push("L", NUMBER_CHARS)(lambda m: int(m.read_line(NUMBER_CHARS).rstrip("L")))


@_register_push("I", NUMBER_CHARS)
def _load_int(machine: PickleMachine) -> int:
    line = machine.read_line(NUMBER_CHARS)
    return {"00": False, "01": True}[line] if line in ("00", "01") else int(line)


# text and bytes
_register_push("X", 80)(lambda m: m.take_text(m.reader.read_uint(4)))
_register_push(0x8C, 80)(lambda m: m.take_text(m.reader.read_byte()))
_register_push(0x8D, 160)(lambda m: m.take_text(m.reader.read_uint(8)))
_register_push("B", 160)(lambda m: m.read_data(m.reader.read_uint(4)))
_register_push("C", 60)(lambda m: m.read_data(m.reader.read_byte()))
_register_push(0x8E, 160)(lambda m: m.read_data(m.reader.read_uint(8)))
_register_push(0x96, 160)(lambda m: m.read_data(m.reader.read_uint(8)))
_register_push("U", 60)(lambda m: m.old_text(m.reader.take_bytes(m.reader.read_byte())))


@_register_push("V", 80)
def _load_unicode(machine: PickleMachine) -> str:
    line = machine.reader.read_line()
    machine.ledger.charge(4 * len(line))
    return line.decode("raw-unicode-escape")


@_register_push("S", 80)
def _load_string(machine: PickleMachine) -> str | bytes:
    line = machine.reader.read_line().rstrip()
    machine.ledger.charge(len(line))
    if len(line) < 2 or line[:1] != line[-1:] or line[:1] not in (b"'", b'"'):
        raise ValueError("a string without its quotes")
    return machine.old_text(codecs.escape_decode(line[1:-1])[0])


@_register_push("T", 80)
def _load_binstring(machine: PickleMachine) -> str | bytes | Blob:
    found = machine.read_data(machine.reader.read_uint(4))
    return found if isinstance(found, Blob) else machine.old_text(found)


# the stack and the memo
@_register_opcode("(", 90)
def _load_mark(machine: PickleMachine) -> None:
    machine.below.append(machine.stack)
    machine.stack = []


@_register_opcode("0", 16)
def _load_pop(machine: PickleMachine) -> None:
    if machine.stack:
        machine.stack.pop()
    else:
        machine.to_mark()


_register_opcode("1", 16)(lambda m: m.to_mark())
_register_opcode("2", 16)(lambda m: m.stack.append(m.stack[-1]))
_register_opcode("p", 150)(lambda m: m.memoize_top(int(m.read_line(20))))
_register_opcode("q", 100)(lambda m: m.memoize_top(m.reader.read_byte()))
_register_opcode("r", 150)(lambda m: m.memoize_top(m.reader.read_uint(4)))
_register_opcode(0x94, 150)(lambda m: m.memoize_top(len(m.memo)))
_register_opcode("g", 16)(lambda m: m.stack.append(m.memo[int(m.read_line(20))]))
_register_opcode("h", 16)(lambda m: m.stack.append(m.memo[m.reader.read_byte()]))
_register_opcode("j", 16)(lambda m: m.stack.append(m.memo[m.reader.read_uint(4)]))

# containers
_register_push("l", 90)(lambda m: m.to_mark())
_register_push("t", 90)(lambda m: tuple(m.to_mark()))
_register_push("d", 100)(lambda m: m.update_dict({}, m.to_mark()))
_register_push(0x91, 240)(lambda m: frozenset(m.add_to_set(set(), m.to_mark())))
_register_opcode(0x85, 60)(lambda m: m.stack.append((m.stack.pop(),)))
_register_binary(0x86, 70)(lambda m, first, second: (first, second))
_register_binary("a", 32)(lambda m, target, item: m.extend_list(target, [item]))
_register_mark_update("e", 16)(PickleMachine.extend_list)
_register_mark_update("u", 16)(PickleMachine.update_dict)
_register_mark_update(0x90, 16)(PickleMachine.add_to_set)


@_register_opcode(0x87, 80)
def _load_tuple3(machine: PickleMachine) -> None:
    second, third = machine.stack.pop(-2), machine.stack.pop()
    machine.stack[-1] = (machine.stack[-1], second, third)


@_register_opcode("s", 16)
def _load_setitem(machine: PickleMachine) -> None:
    key, value = machine.stack.pop(-2), machine.stack.pop()
    machine.stack[-1] = machine.update_dict(machine.stack[-1], [key, value])


# names and calls
_register_push("c", 400)(lambda m: m.resolve_global(m.read_line(NAME_CHARS), m.read_line(NAME_CHARS)))
_register_binary("R", 400)(PickleMachine.call_global)
_register_binary(0x81, 400)(PickleMachine.call_global)
_register_binary("b", 200)(PickleMachine.build_value)
_register_push("P", 400)(lambda m: m.resolve_persistent_id(m.read_line(NAME_CHARS)))
_register_push("Q", 400)(lambda m: m.resolve_persistent_id(m.stack.pop()))
_register_push(0x82, 400)(lambda m: m.refuse_value("copyreg", f"extension {m.reader.read_uint(1)}"))
_register_push(0x83, 400)(lambda m: m.refuse_value("copyreg", f"extension {m.reader.read_uint(2)}"))
_register_push(0x84, 400)(lambda m: m.refuse_value("copyreg", f"extension {m.reader.read_uint(4)}"))
_register_push(0x97, 400)(lambda m: m.refuse_value("pickle", "NEXT_BUFFER", "its data was kept outside of the page"))
_register_opcode(0x98, 16)(lambda m: m.stack[-1])  # a buffer that may not be written to: it cannot anyway


@_register_binary(0x93, 400)
def _stack_global(machine: PickleMachine, module: Any, name: Any) -> Any:
    if not isinstance(module, str) or not isinstance(name, str):
        raise ValueError("a name that is not text")
    return machine.resolve_global(module, name)


@_register_opcode("i", 400)
def _load_inst(machine: PickleMachine) -> None:
    function = machine.resolve_global(machine.read_line(NAME_CHARS), machine.read_line(NAME_CHARS))
    arguments = tuple(machine.to_mark())
    machine.stack.append(machine.call_global(function, arguments))


@_register_opcode("o", 400)
def _load_obj(machine: PickleMachine) -> None:
    function, *arguments = machine.to_mark()
    machine.stack.append(machine.call_global(function, tuple(arguments)))


@_register_opcode(0x92, 400)
def _newobj_ex(machine: PickleMachine) -> None:
    arguments, words = machine.stack.pop(-2), machine.stack.pop()
    found = machine.call_global(machine.stack[-1], arguments)
    if words != {}:
        found = machine.refuse_value("pickle", "NEWOBJ_EX", "a call with keyword arguments", found, words)
    machine.stack[-1] = found


# about the stream itself; a frame is a hint for those who read ahead
@_register_opcode(0x80, 16)
def _load_proto(machine: PickleMachine) -> None:
    number = machine.reader.read_byte()
    if number > PROTOCOLS:
        raise TruncatedError(f"protocol {number} is not known")


_register_opcode(0x95, 16)(lambda m: m.reader.take_bytes(8))


def follow_pickle(machine: PickleMachine) -> Any:
    """The value of the pickle that begins where the machine's reader stands.

    Raises TruncatedError where it cannot be followed; what lies on the machine's stack then is left there, to be salvaged.
    """
    reader, ledger = machine.reader, machine.ledger
    try:
        while True:
            code = reader.read_byte()
            ledger.spent += COSTS[code]
            if ledger.spent > ledger.due:
                ledger.check_limits()
            if code == STOP:
                return machine.stack.pop()
            HANDLERS[code](machine)
    except (IndexError, KeyError, ValueError):  # an empty stack, nothing in the memo, no number or no text
        raise TruncatedError(f"the opcode before byte {reader.position} makes no sense") from None
