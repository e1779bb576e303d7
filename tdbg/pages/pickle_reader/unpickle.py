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


def _unknown(machine: PickleMachine) -> None:
    raise ValueError("no such opcode")


HANDLERS: list[Handler] = [_unknown] * 256
COSTS = [16] * 256


def _opcode(code: str | int, cost: int) -> Callable[[Handler], Handler]:
    """The handler of an opcode. cost: bytes of memory that it makes at most, besides what it charges itself."""

    def keep(handler: Handler) -> Handler:
        at = code if isinstance(code, int) else ord(code)
        HANDLERS[at], COSTS[at] = handler, cost
        return handler

    return keep


def _pushes(code: str | int, cost: int) -> Callable[[Callable[[PickleMachine], Any]], Handler]:
    """The handler of an opcode that puts one new value on the stack."""

    def keep(make: Callable[[PickleMachine], Any]) -> Handler:
        def handler(machine: PickleMachine) -> None:
            found = make(machine)  # which may change what the stack is
            machine.stack.append(found)

        return _opcode(code, cost)(handler)

    return keep


def _replaces(code: str | int, cost: int) -> Callable[[Callable[[PickleMachine, Any, Any], Any]], Handler]:
    """The handler of an opcode that takes the two topmost values and puts one there."""

    def keep(make: Callable[[PickleMachine, Any, Any], Any]) -> Handler:
        def handler(machine: PickleMachine) -> None:
            upper = machine.stack.pop()
            machine.stack[-1] = make(machine, machine.stack[-1], upper)

        return _opcode(code, cost)(handler)

    return keep


def _changes(code: str | int, cost: int) -> Callable[[Callable[[PickleMachine, Any, list[Any]], Any]], Handler]:
    """The handler of an opcode that gives what is above the mark to the value below it."""

    def keep(make: Callable[[PickleMachine, Any, list[Any]], Any]) -> Handler:
        def handler(machine: PickleMachine) -> None:
            items = machine.to_mark()
            machine.stack[-1] = make(machine, machine.stack[-1], items)

        return _opcode(code, cost)(handler)

    return keep


# what is always the same, and small things
_pushes("N", 16)(lambda m: None)
_pushes(0x88, 16)(lambda m: True)
_pushes(0x89, 16)(lambda m: False)
_pushes(")", 16)(lambda m: ())
_pushes("]", 80)(lambda m: [])
_pushes("}", 80)(lambda m: {})
_pushes(0x8F, 240)(lambda m: set())

# numbers
_pushes("K", 16)(lambda m: m.reader.byte())
_pushes("M", 48)(lambda m: m.reader.number(2))
_pushes("J", 48)(lambda m: int.from_bytes(m.reader.take(4), "little", signed=True))
_pushes("G", 40)(lambda m: struct.unpack(">d", m.reader.take(8))[0])
_pushes("F", 40)(lambda m: float(m.line(NUMBER_CHARS)))
_pushes(0x8A, 300)(lambda m: m.whole(m.reader.byte()))
_pushes(0x8B, NUMBER_BYTES)(lambda m: m.whole(m.reader.number(4)))
_pushes("L", NUMBER_CHARS)(lambda m: int(m.line(NUMBER_CHARS).rstrip("L")))


@_pushes("I", NUMBER_CHARS)
def _int(machine: PickleMachine) -> int:
    line = machine.line(NUMBER_CHARS)
    return {"00": False, "01": True}[line] if line in ("00", "01") else int(line)


# text and bytes
_pushes("X", 80)(lambda m: m.text(m.reader.number(4)))
_pushes(0x8C, 80)(lambda m: m.text(m.reader.byte()))
_pushes(0x8D, 160)(lambda m: m.text(m.reader.number(8)))
_pushes("B", 160)(lambda m: m.data(m.reader.number(4)))
_pushes("C", 60)(lambda m: m.data(m.reader.byte()))
_pushes(0x8E, 160)(lambda m: m.data(m.reader.number(8)))
_pushes(0x96, 160)(lambda m: m.data(m.reader.number(8)))
_pushes("U", 60)(lambda m: m.old_text(m.reader.take(m.reader.byte())))


@_pushes("V", 80)
def _unicode(machine: PickleMachine) -> str:
    line = machine.reader.line()
    machine.ledger.charge(4 * len(line))
    return line.decode("raw-unicode-escape")


@_pushes("S", 80)
def _string(machine: PickleMachine) -> str | bytes:
    line = machine.reader.line().rstrip()
    machine.ledger.charge(len(line))
    if len(line) < 2 or line[:1] != line[-1:] or line[:1] not in (b"'", b'"'):
        raise ValueError("a string without its quotes")
    return machine.old_text(codecs.escape_decode(line[1:-1])[0])


@_pushes("T", 80)
def _binstring(machine: PickleMachine) -> str | bytes | Blob:
    found = machine.data(machine.reader.number(4))
    return found if isinstance(found, Blob) else machine.old_text(found)


# the stack and the memo
@_opcode("(", 90)
def _mark(machine: PickleMachine) -> None:
    machine.below.append(machine.stack)
    machine.stack = []


@_opcode("0", 16)
def _pop(machine: PickleMachine) -> None:
    if machine.stack:
        machine.stack.pop()
    else:
        machine.to_mark()


_opcode("1", 16)(lambda m: m.to_mark())
_opcode("2", 16)(lambda m: m.stack.append(m.stack[-1]))
_opcode("p", 150)(lambda m: m.put(int(m.line(20))))
_opcode("q", 100)(lambda m: m.put(m.reader.byte()))
_opcode("r", 150)(lambda m: m.put(m.reader.number(4)))
_opcode(0x94, 150)(lambda m: m.put(len(m.memo)))
_opcode("g", 16)(lambda m: m.stack.append(m.memo[int(m.line(20))]))
_opcode("h", 16)(lambda m: m.stack.append(m.memo[m.reader.byte()]))
_opcode("j", 16)(lambda m: m.stack.append(m.memo[m.reader.number(4)]))

# containers
_pushes("l", 90)(lambda m: m.to_mark())
_pushes("t", 90)(lambda m: tuple(m.to_mark()))
_pushes("d", 100)(lambda m: m.update({}, m.to_mark()))
_pushes(0x91, 240)(lambda m: frozenset(m.add(set(), m.to_mark())))
_opcode(0x85, 60)(lambda m: m.stack.append((m.stack.pop(),)))
_replaces(0x86, 70)(lambda m, first, second: (first, second))
_replaces("a", 32)(lambda m, target, item: m.extend(target, [item]))
_changes("e", 16)(PickleMachine.extend)
_changes("u", 16)(PickleMachine.update)
_changes(0x90, 16)(PickleMachine.add)


@_opcode(0x87, 80)
def _tuple3(machine: PickleMachine) -> None:
    second, third = machine.stack.pop(-2), machine.stack.pop()
    machine.stack[-1] = (machine.stack[-1], second, third)


@_opcode("s", 16)
def _setitem(machine: PickleMachine) -> None:
    key, value = machine.stack.pop(-2), machine.stack.pop()
    machine.stack[-1] = machine.update(machine.stack[-1], [key, value])


# names and calls
_pushes("c", 400)(lambda m: m.name(m.line(NAME_CHARS), m.line(NAME_CHARS)))
_replaces("R", 400)(PickleMachine.call)
_replaces(0x81, 400)(PickleMachine.call)
_replaces("b", 200)(PickleMachine.build)
_pushes("P", 400)(lambda m: m.persist(m.line(NAME_CHARS)))
_pushes("Q", 400)(lambda m: m.persist(m.stack.pop()))
_pushes(0x82, 400)(lambda m: m.refuse("copyreg", f"extension {m.reader.number(1)}"))
_pushes(0x83, 400)(lambda m: m.refuse("copyreg", f"extension {m.reader.number(2)}"))
_pushes(0x84, 400)(lambda m: m.refuse("copyreg", f"extension {m.reader.number(4)}"))
_pushes(0x97, 400)(lambda m: m.refuse("pickle", "NEXT_BUFFER", "its data was kept outside of the page"))
_opcode(0x98, 16)(lambda m: m.stack[-1])  # a buffer that may not be written to: it cannot anyway


@_replaces(0x93, 400)
def _stack_global(machine: PickleMachine, module: Any, name: Any) -> Any:
    if not isinstance(module, str) or not isinstance(name, str):
        raise ValueError("a name that is no text")
    return machine.name(module, name)


@_opcode("i", 400)
def _inst(machine: PickleMachine) -> None:
    function = machine.name(machine.line(NAME_CHARS), machine.line(NAME_CHARS))
    arguments = tuple(machine.to_mark())
    machine.stack.append(machine.call(function, arguments))


@_opcode("o", 400)
def _obj(machine: PickleMachine) -> None:
    function, *arguments = machine.to_mark()
    machine.stack.append(machine.call(function, tuple(arguments)))


@_opcode(0x92, 400)
def _newobj_ex(machine: PickleMachine) -> None:
    arguments, words = machine.stack.pop(-2), machine.stack.pop()
    found = machine.call(machine.stack[-1], arguments)
    if words != {}:
        found = machine.refuse("pickle", "NEWOBJ_EX", "a call with words", found, words)
    machine.stack[-1] = found


# about the stream itself; a frame is a hint for those who read ahead
@_opcode(0x80, 16)
def _proto(machine: PickleMachine) -> None:
    number = machine.reader.byte()
    if number > PROTOCOLS:
        raise TruncatedError(f"protocol {number} is not known")


_opcode(0x95, 16)(lambda m: m.reader.take(8))


def follow_pickle(machine: PickleMachine) -> Any:
    """The value of the pickle that begins where the machine's reader stands.

    Raises TruncatedError where it cannot be followed; what lies on the machine's stack then is left there, to be salvaged.
    """
    reader, ledger = machine.reader, machine.ledger
    try:
        while True:
            code = reader.byte()
            ledger.spent += COSTS[code]
            if ledger.spent > ledger.due:
                ledger.check()
            if code == STOP:
                return machine.stack.pop()
            HANDLERS[code](machine)
    except (IndexError, KeyError, ValueError):  # an empty stack, nothing in the memo, no number or no text
        raise TruncatedError(f"the opcode before byte {reader.position} makes no sense") from None
