"""Conditions over step records and what to do when one comes true: ``--when 'loss > 10' --then 'level=extreme for 20'``.

A condition is a small language, read with Python's own parser and worked out here: nothing is ever evaluated as
Python. Comparisons, ``and``, ``or``, ``not``, ``+ - * /``, parentheses, numbers, ``nan`` and ``inf``, the numbers and
yes-or-no fields of a step record, ``lr`` (of the first parameter group), ``metric.NAME`` (a metric of the user's),
and the functions ``abs``, ``isnan``, ``isinf``, ``finite`` and ``median``. What a record does not hold makes a
comparison unknown, and a condition that is not known to be true is not true.
"""

import ast
import math
import operator
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import fields
from itertools import zip_longest
from types import MappingProxyType
from typing import Any, NamedTuple, get_args, get_origin

from tdbg.core import flags as flag_table
from tdbg.core.errors import TdbgError, suggest_name
from tdbg.core.events import Number, Step, as_float, number
from tdbg.core.window import Window

MAX_CHARACTERS = 500
MAX_PARTS = 200
MEDIAN_RECORDS = 8  # a median of fewer records is unknown
EXAMPLE = "write a condition, for example: loss > 10 or grad_norm > 3 * median(grad_norm) or skipped"
DUMP = "dump"  # what is done if a condition has no action of its own

Value = float | bool | None  # None: unknown
Metrics = Mapping[str, float]
NO_METRICS: Metrics = MappingProxyType({})


class _Facts(NamedTuple):
    """What a condition may speak of."""

    record: Step
    metrics: Metrics
    medians: Mapping[str, Window]


_Look = Callable[[_Facts], Value]


def _fields_of(kinds: set[object]) -> tuple[str, ...]:
    """Those of a step record that hold one value of these kinds."""
    found = [item for item in fields(Step) if item.name != "t" and get_origin(item.type) is not list]
    return tuple(item.name for item in found if kinds & {item.type, *get_args(item.type)})


TRUTHS = _fields_of({bool})
NUMBERS = (*_fields_of({int, float}), "lr")
WORDS: dict[str, float] = {"nan": math.nan, "inf": math.inf}
_TESTS: dict[str, Callable[[float], bool]] = {"isnan": math.isnan, "isinf": math.isinf, "finite": math.isfinite}
_COMPARE: dict[type[ast.cmpop], Callable[[float, float], bool]] = {
    ast.Lt: operator.lt,
    ast.LtE: operator.le,
    ast.Gt: operator.gt,
    ast.GtE: operator.ge,
    ast.Eq: operator.eq,
    ast.NotEq: operator.ne,
}
_ARITHMETIC: dict[type[ast.operator], Callable[[float, float], float]] = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
    ast.Div: operator.truediv,
}


class Vocabulary(NamedTuple):
    """What a condition can speak of. value: a name, and the facts that a condition is asked about -> what they say.

    family: names such as ``metric.accuracy`` or ``metric["any name"]``. sample: a number, for the hints.
    """

    numbers: tuple[str, ...]
    value: Callable[[str, Any], Value]
    truths: tuple[str, ...] = ()
    family: str = ""
    words: Mapping[str, float] = MappingProxyType({})
    functions: tuple[str, ...] = ("abs", "isnan", "isinf", "finite")
    sample: str = "loss"
    example: str = EXAMPLE
    split: str = "split it: --when can be repeated"


class Test:
    """A condition over other facts than steps: those of a vocabulary. Raises TdbgError for a text that is none."""

    __test__ = False  # no test of pytest's

    def __init__(self, text: str, vocabulary: Vocabulary, *, number: bool = False) -> None:
        """number: it is a number, and not a truth."""
        reader = _Reader(text.strip(), vocabulary)
        self._look: Callable[[Any], Value] = reader.compile_text(number=number)
        self.names = tuple(reader.names)

    def evaluate(self, facts: object) -> Value:
        """What it comes to; None for unknown."""
        return self._look(facts)

    def is_met(self, facts: object) -> bool:
        """True if it is known to be."""
        return self._look(facts) is True


class Condition:
    """One condition, seen record after record. Cost: 1 to 5 us a record.

    ``median(name)`` is that of the 64 records before, unknown before there were 8.
    Raises TdbgError for a text that is no condition.
    """

    def __init__(self, text: str) -> None:
        self.text = text.strip()
        reader = _Reader(self.text, STEPS)
        self._look = reader.compile_text()
        self.names = tuple(reader.names)
        self._medians = reader.medians

    def is_met(self, record: Step, metrics: Metrics = NO_METRICS) -> bool:
        """True if the record is known to fulfil it; to be asked once a record."""
        answer = self.would_be_met(record, metrics)
        facts = _Facts(record, metrics, self._medians)
        for name, window in self._medians.items():
            value = _get_step_value(name, facts)
            if value is not None and math.isfinite(value):
                window.push(value)
        return answer

    def reset_medians(self) -> None:
        """Forget the records seen so far."""
        for window in self._medians.values():
            window.clear()

    def would_be_met(self, record: Step, metrics: Metrics = NO_METRICS) -> bool:
        """The same without counting the record in the medians."""
        return self._look(_Facts(record, metrics, self._medians)) is True

    def collect_values(self, record: Step, metrics: Metrics = NO_METRICS) -> dict[str, Number | bool | None]:
        """The fields it speaks of, with what the record says of them."""
        facts = _Facts(record, metrics, self._medians)
        found = {name: _get_step_value(name, facts) for name in self.names}
        found |= {f"median({name})": window.median for name, window in self._medians.items() if len(window)}
        return {name: value if isinstance(value, bool) else number(value) for name, value in found.items()}


def _get_step_value(name: str, facts: _Facts) -> Value:
    if name == "lr":
        return float(facts.record.lr[0]) if facts.record.lr else None
    if name.startswith("metric."):
        return facts.metrics.get(name[7:])
    value: Any = getattr(facts.record, name)
    return value if isinstance(value, bool) else as_float(value)


STEPS = Vocabulary(NUMBERS, _get_step_value, TRUTHS, "metric", WORDS, ("abs", "isnan", "isinf", "finite", "median"))


def make_partial_step(step: int, loss: float) -> Step:
    """A step of which only its number and its loss are known as yet.

    What is true of it stays true when the rest is known.
    """
    return Step(**{**_NOTHING_KNOWN, "step": step, "loss": loss})


_NOTHING_KNOWN: dict[str, Any] = dict.fromkeys((*NUMBERS, *TRUTHS)) | {"lr": []}


class _Reader:
    """Turns a condition's text into a function: what is a truth and what is a number is settled here, once."""

    def __init__(self, text: str, vocabulary: Vocabulary) -> None:
        self.text, self.vocabulary = text, vocabulary
        self.names: dict[str, None] = {}  # in the order they are met
        self.medians: dict[str, Window] = {}
        self._parts = 0

    def compile_text(self, *, number: bool = False) -> _Look:
        """The whole condition, or a number."""
        if len(self.text) > MAX_CHARACTERS:
            raise self._make_error(f"it is longer than {MAX_CHARACTERS} characters", self.vocabulary.split)
        try:
            tree = ast.parse(self.text, mode="eval")
        except (SyntaxError, ValueError, RecursionError, MemoryError) as error:
            why = error.msg if isinstance(error, SyntaxError) else "it is nested too deeply"
            raise self._make_error(f"it cannot be read ({why})", self.vocabulary.example) from None
        return self._compile_number(tree.body) if number else self._compile_truth(tree.body)

    def _make_error(self, why: str, hint: str) -> TdbgError:
        shown = self.text if len(self.text) <= 80 else f"{self.text[:77]}..."
        return TdbgError(f"condition {shown!r}: {why}", hint)

    def _quote_source(self, node: ast.AST) -> str:
        return repr(ast.get_source_segment(self.text, node) or type(node).__name__)

    def _count_part(self) -> None:
        self._parts += 1
        if self._parts > MAX_PARTS:
            raise self._make_error("it has too many parts", self.vocabulary.split)

    # truths

    def _compile_truth(self, node: ast.expr) -> _Look:
        self._count_part()
        match node:
            case ast.BoolOp(op=op, values=values):
                return _join_truths(isinstance(op, ast.And), [self._compile_truth(value) for value in values])
            case ast.UnaryOp(op=ast.Not(), operand=inner):
                look = self._compile_truth(inner)
                return lambda facts: None if (value := look(facts)) is None else not value
            case ast.Compare():
                return self._compile_comparison(node)
            case ast.Call(func=ast.Name(id=name)) if name in _TESTS:
                return self._compile_test(_TESTS[name], node)
            case ast.Constant(value=bool(value)):
                return lambda facts: value
            case ast.Name(id=name) if name in self.vocabulary.truths:
                self.names[name] = None
                value_of = self.vocabulary.value
                return lambda facts: value_of(name, facts)
        self._compile_number(node)  # says what is wrong with it, if it is no number either
        what = f"{self._quote_source(node)} is a number, not a condition"
        raise self._make_error(what, f"compare it with a value, for example: {self.vocabulary.sample} > 10")

    def _compile_comparison(self, node: ast.Compare) -> _Look:
        operands = [node.left, *node.comparators]
        names = {operand.id for operand in operands if isinstance(operand, ast.Name)}
        if "nan" in names & self.vocabulary.words.keys():
            raise self._make_error("a comparison with nan is always false", f"write isnan({self.vocabulary.sample})")
        looks = [self._compile_number(operand) for operand in operands]
        pairs: list[_Look] = []
        for op, left, right in zip(node.ops, looks, looks[1:], strict=False):
            compare = _COMPARE.get(type(op))
            if compare is None:
                raise self._make_error(f"{self._quote_source(node)} uses an unknown comparison", "use < <= > >= == !=")
            pairs.append(_apply_to_both(compare, left, right))
        return pairs[0] if len(pairs) == 1 else _join_truths(True, pairs)

    def _compile_test(self, test: Callable[[float], bool], call: ast.Call) -> _Look:
        look = self._compile_number(self._get_argument(call))
        return lambda facts: None if (value := look(facts)) is None else test(value)

    def _get_argument(self, call: ast.Call) -> ast.expr:
        if len(call.args) != 1 or call.keywords or isinstance(call.args[0], ast.Starred):
            calls = " or ".join(f"{name}({self.vocabulary.sample})" for name in self.vocabulary.functions[:2])
            raise self._make_error(f"{self._quote_source(call)} takes one number", f"for example: {calls}")
        return call.args[0]

    # numbers

    def _compile_number(self, node: ast.expr) -> _Look:
        self._count_part()
        match node:
            case ast.Constant(value=int() | float() as value) if not isinstance(value, bool):
                constant = self._convert_constant(value)
                return lambda facts: constant
            case ast.BinOp(op=op, left=left, right=right) if type(op) in _ARITHMETIC:
                return _apply_to_both(_ARITHMETIC[type(op)], self._compile_number(left), self._compile_number(right))
            case ast.UnaryOp(op=ast.USub() | ast.UAdd() as sign, operand=inner):
                look = self._compile_number(inner)
                return _apply_to_one(operator.neg if isinstance(sign, ast.USub) else operator.pos, look)
            case ast.Call(func=ast.Name(id="abs")):
                return _apply_to_one(abs, self._compile_number(self._get_argument(node)))
            case ast.Call(func=ast.Name(id="median")) if "median" in self.vocabulary.functions:
                return self._compile_median(node)
            case ast.Name(id=name) if name in self.vocabulary.words:
                word = self.vocabulary.words[name]
                return lambda facts: word
        name, value_of = self._resolve_name(node), self.vocabulary.value
        return lambda facts: value_of(name, facts)

    def _convert_constant(self, value: float) -> float:
        try:
            return float(value)
        except OverflowError:
            raise self._make_error("a number in it is too large", "write inf for infinity") from None

    def _compile_median(self, call: ast.Call) -> _Look:
        window = self.medians.setdefault(self._resolve_name(self._get_argument(call)), Window())
        return lambda facts: window.median if len(window) >= MEDIAN_RECORDS else None

    def _resolve_name(self, node: ast.expr) -> str:
        """A number by its name: of a step a field of the record, ``lr``, or a metric of the user's."""
        known = self.vocabulary
        match node:
            case ast.Name(id=name) if name in known.numbers:
                found = name
            case ast.Attribute(value=ast.Name(id=family), attr=name) if family == known.family:
                found = f"{family}.{name}"
            case ast.Subscript(value=ast.Name(id=family), slice=ast.Constant(value=str(name))) if (
                family == known.family
            ):
                found = f"{family}.{name}"
            case ast.Name(id=name):
                raise self._make_unknown_error(name, (*known.numbers, *known.truths, *known.words))
            case ast.Call(func=ast.Name(id=name)) if name not in known.functions:
                raise self._make_unknown_error(name, known.functions)
            case _:
                raise self._make_error(f"{self._quote_source(node)} cannot be used in a condition", known.example)
        self.names[found] = None
        return found

    def _make_unknown_error(self, name: str, known: Sequence[str]) -> TdbgError:
        if name == self.vocabulary.family:
            return self._make_error(f"{name} alone is not a number", f'name one: {name}.NAME, or {name}["any name"]')
        if name in self.vocabulary.truths:
            return self._make_error(f"{name} is true or false, not a number", f"write {name}, or not {name}")
        return self._make_error(f"unknown name {name!r}", suggest_name(name, known, f"known names: {', '.join(known)}"))


def _join_truths(every: bool, looks: list[_Look]) -> _Look:
    """``and`` and ``or`` of truths some of which may be unknown."""

    def evaluate_truths(facts: _Facts) -> Value:
        answer: Value = every
        for part in looks:
            value = part(facts)
            if value is not None and bool(value) is not every:
                return not every
            answer = None if value is None else answer
        return answer

    return evaluate_truths


def _apply_to_one(apply: Callable[[float], float], inner: _Look) -> _Look:
    return lambda facts: None if (value := inner(facts)) is None else apply(value)


def _apply_to_both(apply: Callable[[float, float], float], left: _Look, right: _Look) -> _Look:
    def evaluate_operands(facts: _Facts) -> Value:
        a, b = left(facts), right(facts)
        if a is None or b is None:
            return None
        try:
            return apply(a, b)
        except ZeroDivisionError:
            return None

    return evaluate_operands


class Action(NamedTuple):
    """What is done when a condition comes true."""

    text: str
    level: str = ""  # empty: as it is
    flags: Mapping[str, flag_table.Value] = MappingProxyType({})
    for_steps: int = 0  # then level and flags are as before; 0: for good
    dump: bool = False  # keep the last records, the history of tensors and the batch
    stop: bool = False  # have the supervisor end the command

    @property
    def has_switches(self) -> bool:
        """True if level or flags change."""
        return bool(self.level or self.flags)


def parse_action(text: str) -> Action:
    """``level=extreme for 20, flag=MEMORY, dump, stop`` as an `Action`; TdbgError for anything else.

    ``for N`` holds for level and flags alike.
    """
    found: dict[str, Any] = {"flags": {}}
    lengths: set[int] = set()
    for part in (part.strip() for part in text[: MAX_CHARACTERS + 1].split(",")):
        match = re.fullmatch(r"(\S*?)(?:\s+for\s+(\d{1,9})(?:\s+steps?)?)?", part)
        name, equals, value = (match[1] if match else part).partition("=")
        if match is None or len(text) > MAX_CHARACTERS or not _parse_part(found, name.strip(), equals, value.strip()):
            raise _make_action_error(text, part)
        if match[2]:
            lengths.add(int(match[2]))
    action = Action(text.strip(), **found)
    if len(lengths) > 1 or lengths == {0}:
        raise TdbgError(f"action {text!r} needs one number of steps, above 0", "write: level=extreme for 20")
    if lengths and not action.has_switches:
        raise TdbgError(
            f"action {text!r}: only level= and flag= can have a duration ('for N')", "write: level=extreme for 20"
        )
    return Action(text.strip(), **found, for_steps=max(lengths, default=0))


def _parse_part(found: dict[str, Any], name: str, equals: str, value: str) -> bool:
    """One part of an action; False if it is none."""
    if not equals:
        if name in ("dump", "stop"):
            found[name] = True
        return name in ("dump", "stop")
    if name == "level":
        found["level"] = _parse_level(value)
    elif name == "flag":
        found["flags"].update(flag_table.parse_flag(value))
    return name in ("level", "flag")


def _parse_level(word: str) -> str:
    levels = [level for level in flag_table.LEVELS if level != "off"]  # nothing would be left to end it
    if word.lower() in levels:
        return word.lower()
    hint = suggest_name(word, levels, f"choose from: {', '.join(levels)}")
    raise TdbgError(f"an action cannot set the level {word!r}", hint)


def _make_action_error(text: str, part: str) -> TdbgError:
    words = ("level=extreme", "flag=MEMORY", "dump", "stop")
    name, known = part.partition("=")[0], [word.partition("=")[0] for word in words]
    hint = "" if name in known else suggest_name(name, known, "")
    shown = text if len(text) <= 80 else f"{text[:77]}..."
    return TdbgError(
        f"action {shown!r}: {part[:80]!r} is not a known action",
        f"{hint} write one or more of: level=LEVEL for N, flag=FLAG for N, dump, stop".lstrip(),
    )


def check_condition(text: str) -> None:
    """TdbgError for a text that is no condition."""
    Condition(text)


def check_action(text: str) -> None:
    """TdbgError for a text that is no action."""
    parse_action(text)


def check_pairs(when: Sequence[str], then: Sequence[str]) -> None:
    """TdbgError if there are actions without a condition."""
    if len(then) > len(when):
        raise TdbgError(
            f"there are more --then ({len(then)}) than --when ({len(when)})",
            "give each --then its --when; the first action belongs to the first condition",
        )


def parse_pairs(when: Sequence[str], then: Sequence[str]) -> list[tuple[Condition, Action]]:
    """Each condition with its action; one that has none of its own dumps."""
    check_pairs(when, then)
    return [(Condition(text), parse_action(what)) for text, what in zip_longest(when, then, fillvalue=DUMP)]
