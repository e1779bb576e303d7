"""A process that never became a rank is named by its folder: no text of a finding says "rank None"."""

import ast
import dataclasses
import inspect
import itertools
import random
import re
import sys
import types
import typing
from collections.abc import Iterable, Iterator
from pathlib import Path

import pytest
from streams import Stream

from tdbg.core.events import Event, Finding, Observation, Step, Traceback
from tdbg.core.observations import Observed
from tdbg.core.rundir import ProcessDir, RunDir
from tdbg.rules import RULES, Rule
from tdbg.rules._order import GRADES
from tdbg.rules.view import View

FOLDERS = {"other/vm-77": "process vm-77", "rank0000": "rank 0"}
TRIES = 250
UNTOLD = "reason"  # of a trial of preflight: why it was not made
LOOKS = 30  # of each try: observations that last
OF_RUNS = {"TD-C001", "TD-C002", "TD-C003"}  # about the program and its flags, whichever process it was
OF_RANKS = {
    f"TD-R{number:03d}" for number in (1, 2, 4, 5, 6, 7, 8, 9, 10, 11)
}  # what ranks have in common: no others are read
INTEGERS = (0, 1, 2, 5, 30, 100, 1000)
NUMBERS = (0.0, 1e-12, 1e-4, 0.5, 0.9, 1.0, 2.5, 100.0, 1e5)


def rule_of(code: str) -> type[Rule]:
    return RULES[code]


def list_codes() -> list[str]:
    return [code for code in RULES.names() if code not in OF_RANKS | OF_RUNS]


def look(probe: str, part: str = "", step: int = 5, **values: object) -> Observation:
    return Observation(probe=probe, part=part, step=step, text="as seen", values=values)


def steps(count: int, **values: list[float]) -> list[Event]:
    """Steps whose fields take the last value on when their values are used up."""
    named = {name: [*each, *[each[-1]] * count][:count] for name, each in values.items()}
    rows = [{name: each[at] for name, each in named.items()} for at in range(count)]
    return [Step(step=at + 1, finite=True, lr=[row.pop("lr", 1e-3)], **row) for at, row in enumerate(rows)]


def ranges(use: str, scale: float) -> Observation:
    names = ("low", "high", "least_mean", "most_mean", "least_std", "most_std")
    figures = dict(zip(names, (0.0, 250.0, 90.0, 110.0, 60.0, 70.0), strict=True))
    row = {"name": "image", "dtype": "float32", "looks": 8, **{name: one * scale for name, one in figures.items()}}
    return look("data-splits", "RANGES", use=use, feed=int(scale), looks=8, loaded=[row], given=[row])


GROUPS = [{"lr": rate, "initial_lr": rate, "trainable": 2, "names": ["a.w"]} for rate in (0.0, 0.1)]
LASTING = {"names": ["a.w"], "count": 1, "looks": 5, "since": 2, "norm": 1e9, "before": 1.0, "times": 1e9}
PLANTED: dict[str, list[Event]] = {
    "TD-C013": [look("training-loop", "FAULT", kind="unreset", optimizer="SGD", since=2, streak=3)],
    "TD-D004": [
        look("dataloader", "LABELS", label="1", label_low=0, label_high=9, width=9),
        Traceback(step=5, exception="IndexError", message="Target 9 is out of bounds."),
    ],
    "TD-D010": [ranges("training", 1.0), ranges("evaluation", 10.0)],
    "TD-D014": [ranges("training", 1.0)],
    "TD-G001": steps(200, loss=[2.0], grad_norm=[1.0] * 100 + [1e9]),
    "TD-G002": [
        look("gradient-report", largest=1.0, largest_name="b.w", lasting={"vanishing": {**LASTING, "count": 9}})
    ],
    "TD-G003": [look("gradient-report", lasting={"none": LASTING})],
    "TD-G004": [look("gradient-report", lasting={"jumped": LASTING})],
    "TD-N002": steps(200, loss=[2.0, "nan"]),  # type: ignore[list-item]
    "TD-N004": steps(400, loss=[2.0] * 200 + [500.0], grad_norm=[1.0]),
    "TD-P001": [
        look("device", step=at, over=["a.py:3 x9"], syncs=9, copies=0, accelerator=True) for at in range(1, 40)
    ],
    "TD-P003": [look("validation", "PASS", faults=["graphs"], graphs=2, seen=3, number=at) for at in range(1, 4)],
    "TD-P007": steps(80, t=[1e6 + at + 60.0 * (at // 20) for at in range(80)], step_ms=[1000.0]),  # three pauses
    "TD-S001": steps(90, lr=[1e-3] * 60 + [1.0], loss=[2.0] * 60 + [1e5], grad_norm=[1.0] * 60 + [1e9]),
    "TD-S002": steps(90, lr=[1e-3, 0.0]),
    "TD-S007": [look("optimizer", lasting={"stuck": {**LASTING, "dtype": "bfloat16", "lr": 1e-3}})],
    "TD-S009": [
        look("early-stopping", "CHECK", metric="loss", better="min", fault="follows", first=1.0, value=2.0, streak=3)
    ],
    "TD-S010": [
        look("optimizer", "GROUPS", step=1, optimizer="SGD", groups=GROUPS, group_count=2),
        *[Step(step=at, lr=[0.0, 0.1]) for at in range(1, 400)],
    ],
    "TD-S012": [look("backward", "LOSS", classes=10), *steps(1500, loss=[2.302, 2.304] * 750, grad_norm=[1.0])],
}


def text_words(source: object) -> list[str]:
    """The short strings of a module: among them the kinds and faults that it tells apart."""
    tree = ast.parse(inspect.getsource(source))  # type: ignore[arg-type]
    found = {node.value for node in ast.walk(tree) if isinstance(node, ast.Constant) and isinstance(node.value, str)}
    return sorted(word for word in found if re.fullmatch(r"[\w .-]{1,24}", word))


def make_value(kind: typing.Any, chance: random.Random, words: list[str]) -> typing.Any:
    """A value of the kind that a field of an event says; never None."""
    origin, inner = typing.get_origin(kind), typing.get_args(kind)
    if origin in (typing.Union, types.UnionType):
        return make_value(chance.choice([one for one in inner if one is not type(None)]), chance, words)
    if origin is list:
        return [make_value(inner[0], chance, words) for _ in range(chance.randint(1, 3))]
    if origin is dict:
        names = chance.sample(words, 3)
        return {name: make_value(inner[1], chance, words) for name in names}
    if typing.is_typeddict(kind):
        return {name: make_value(one, chance, words) for name, one in typing.get_type_hints(kind).items()}
    if kind is bool:
        return chance.random() < 0.5
    if kind in (int, float):
        return chance.choice(INTEGERS if kind is int else NUMBERS)
    return chance.choice(words) if chance.random() < 0.8 else ""


def make_observation(kind: type[Observed], chance: random.Random, words: list[str]) -> Observation:
    hints = typing.get_type_hints(kind)
    told = [name for name in kind._lines if name != UNTOLD]
    values = {name: make_value(hints[name], chance, words) for name in told}
    return look(kind.PROBE, kind.PART, **values)


def make_event(kind: type[Event], chance: random.Random, words: list[str]) -> Event:
    hints = typing.get_type_hints(kind)
    names = [field.name for field in dataclasses.fields(kind) if field.name not in ("t", "step", "rank")]
    values = {name: make_value(hints[name], chance, words) for name in names if chance.random() < 0.8}
    return kind(**values)


def at_step(event: Event, step: int) -> Event:
    return dataclasses.replace(event, step=step) if hasattr(event, "step") else event


def make_streams(rule: type[Rule]) -> Iterator[list[Event]]:
    """What is planted for the rule, or else events of the kinds that it listens for, with values that its code names."""
    if rule.code in PLANTED:
        yield PLANTED[rule.code]
        return
    chance = random.Random(rule.code)
    modules = {one.__module__ for one in (*rule.__mro__, *rule.observes) if one.__module__.startswith("tdbg.")}
    words = ["a.b", "nan", "rerun", *itertools.chain(*(text_words(sys.modules[name]) for name in sorted(modules)))]
    words += [word for kind in rule.observes for line in kind._lines.values() for word in re.findall(r"\w+", line)]
    words = sorted({word for word in words if word != "None"})
    for _ in range(TRIES):
        found: list[Event] = [make_observation(kind, chance, words) for kind in rule.observes]
        found += [make_event(kind, chance, words) for kind in rule.listens if kind is not Observation]
        yield [at_step(event, at) for at in range(1, LOOKS) for event in found]


def find(rule: type[Rule], process: ProcessDir, events: Iterable[Event]) -> list[Finding]:
    one, view = rule(), View(process.run)
    found: list[Finding] = []
    for event in events:
        event = dataclasses.replace(event)
        view.add_event(process, event)
        if isinstance(event, rule.listens):
            found += one.feed(process, event)
    view.read_outcome(0)
    return [*found, *one.finish(view)]


def texts_of(finding: Finding) -> list[str]:
    return [finding.title, finding.cause, finding.try_next, *finding.evidence]


@pytest.fixture
def run_dir(tmp_path: Path) -> RunDir:
    return RunDir.create(tmp_path / "run", {"command": ["x.py"], "settings": {}, "start": 1.0})[0]


@pytest.mark.parametrize("folder", FOLDERS)
@pytest.mark.parametrize("code", list_codes())
def test_a_finding_names_the_process_that_it_is_of(run_dir: RunDir, code: str, folder: str) -> None:
    process = ProcessDir(run_dir, run_dir.path / folder)
    streams = (find(rule_of(code), process, events) for events in make_streams(rule_of(code)))
    found = list(itertools.islice((finding for findings in streams for finding in findings), 3))
    assert found, f"{code} found nothing in what was planted"
    for finding in found:
        assert finding.rank == process.rank or code == "TD-C005"
        assert FOLDERS[folder] in finding.title or code == "TD-R003", finding.title
        assert finding.grade in GRADES, f"{code} does not say how sure it is"
        assert not [text for text in texts_of(finding) if re.search(r"\bNone\b", text)]


@pytest.mark.parametrize("code", list_codes())
def test_the_same_of_a_second_process_is_named_too(run_dir: RunDir, code: str) -> None:
    """`report_once` adds where else it was found."""
    one = rule_of(code)()
    said: list[Finding] = []
    for events in itertools.islice(make_streams(rule_of(code)), 20):
        for folder in ("rank0001", "other/vm-77", "other/vm-78"):
            process = ProcessDir(run_dir, run_dir.path / folder)
            copies = [dataclasses.replace(event) for event in events]
            said += [new for event in copies if isinstance(event, one.listens) for new in one.feed(process, event)]
    assert not [text for finding in said for text in texts_of(finding) if re.search(r"\bNone\b", text)]


@pytest.mark.parametrize(
    ("first", "second", "line"),
    [
        (0, 1, "also on rank 1 at step 4"),
        (0, 0, "also in another process of that rank at step 4"),
        (0, None, "also in another process at step 4"),
        (None, 3, "also on rank 3 at step 4"),
        (None, None, "also in another process at step 4"),
    ],
)
def test_where_else_it_was_found(first: int | None, second: int | None, line: str) -> None:
    rule = RULES["TD-M002"]()
    given: list[Finding] = []
    for step, rank in ((2, first), (4, second)):
        rule.report_once(given, rule.make_finding("x", first_step=step, rank=rank))
    assert given[0].evidence == [line]


def test_what_one_process_shows_again_is_no_other_process(run_dir: RunDir) -> None:
    rule = RULES["TD-M002"]()
    given: list[Finding] = []
    process, other = (ProcessDir(run_dir, run_dir.path / folder) for folder in ("rank0000", "other/vm-77"))
    for where, step in ((process, 2), (process, 101), (other, 150), (process, 202), (process, 101), (process, 303)):
        rule.report_from(where, given, rule.make_finding("x", first_step=step, rank=0))
    assert given[0].first_step == 2
    assert given[0].evidence == ["again at steps 101, 202 and 303", "also in another process of that rank at step 150"]


def test_an_earlier_step_of_the_same_process_takes_the_place(run_dir: RunDir) -> None:
    rule = RULES["TD-M002"]()
    given: list[Finding] = []
    process = ProcessDir(run_dir, run_dir.path / "rank0000")
    for step in (7, 3):
        rule.report_from(process, given, rule.make_finding("x", first_step=step, rank=0))
    assert given[0].first_step == 3 and given[0].evidence == ["again at step 7"]


@pytest.mark.parametrize("own", ["also a line of its own", "again at step 9 by its own count"])
@pytest.mark.parametrize("with_repetitions", [True, False])
def test_what_was_added_is_known_by_more_than_how_it_begins(run_dir: RunDir, own: str, with_repetitions: bool) -> None:
    """A line of the rule's own goes with the finding that it was of; one on another process stays."""
    rule = RULES["TD-M002"]()
    given: list[Finding] = []
    process, other = (ProcessDir(run_dir, run_dir.path / folder) for folder in ("rank0000", "rank0001"))
    rule.report_from(process, given, rule.make_finding("x", first_step=2, rank=0, evidence=[own]))
    for where, rank, step in ((process, 0, 101), (other, 1, 150), (process, 0, 202)):
        rule.report_from(where, given, rule.make_finding("x", first_step=step, rank=rank))
    assert given[0].evidence == [own, "again at steps 101 and 202", "also on rank 1 at step 150"]
    new = rule.make_finding("y", first_step=2, rank=0, evidence=["new"])
    rule._replace_given(given[0], new, with_repetitions=with_repetitions)
    rule.report_from(process, given, rule.make_finding("x", first_step=303, rank=0))
    kept, later = ("again at steps 101, 202 and 303", []) if with_repetitions else ("", ["again at step 303"])
    assert given[0].title == "y"
    assert given[0].evidence == ["new", *([kept] if kept else []), "also on rank 1 at step 150", *later]


def test_no_rule_writes_the_rank_of_a_process_by_itself() -> None:
    """`ProcessDir.display_name` is the one way: a rank that is None has no text."""
    folder = Path(inspect.getfile(Stream)).parents[1] / "tdbg" / "rules"
    found = []
    for path in sorted(folder.rglob("*.py")):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.FormattedValue) and ast.unparse(node.value).endswith("process.rank"):
                found.append(f"{path.name}:{node.lineno}")
    allowed = {"n001_first_nonfinite.py", "r003_exception.py"}  # there it is known
    assert not [place for place in found if place.split(":")[0] not in allowed]


@pytest.mark.parametrize("code", sorted(OF_RANKS | OF_RUNS))
def test_a_rule_on_the_whole_run_says_how_sure_it_is(code: str) -> None:
    source = inspect.getsource(sys.modules[rule_of(code).__module__])
    assert rule_of(code).grade in GRADES or "grade=" in source, f"{code} does not say how sure its findings are"
