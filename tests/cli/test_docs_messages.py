"""`tdbg docs messages`: every text that tdbg can say, with its kind and place."""

import functools
import json
from pathlib import Path

import pytest

import tdbg
from tdbg.cli import main
from tdbg.cli.generate.messages import KINDS, extract_messages, read_texts
from tdbg.core.errors import TdbgError
from tdbg.core.flags import FLAGS
from tdbg.core.rule_base import RULE_CATALOG

SOURCE = Path(tdbg.__file__).parent

all_messages = functools.cache(extract_messages)


@functools.cache
def read_lines(path: Path) -> list[str]:
    return path.read_text(encoding="utf-8").splitlines()


CASES = {
    "finding": [
        "self.make_finding(f'loss is {kind} at step {step}')",
        "Finding(code='X', title='loss is NaN')",
        "self.make_finding('', cause='loss is NaN')",
        "self.make_finding('', evidence=['loss is NaN', *([f'loss is {x} now'] if x else [])])",
        "class A:\n    title = 'loss is NaN'",
        "Fault('TD-L001', 'loss is NaN')",
    ],
    "error": [
        "raise TdbgError('no such run', 'name another')",
        "raise ValueError(f'no such {run} here')",
        "error = TdbgError('no such run')",
        "raise build_argument_error('no such run')",
    ],
    "note": [
        "agent.note_once('code', 'log records were lost')",
        "self._emit_note_once('code', 'log records were lost', 7)",
        "Note(code='x', text='log records were lost')",
    ],
    "warning": [
        "print_messages('that is late')",
        "print_message_once('that is late')",
        "warnings.warn(f'that is {late} now')",
        "logger.warning('that is late')",
    ],
    "help": ["HELP = 'Show the run.'", "Option(('--x',), 'N', 'Show the run.')", "Flag('X', about='Show the run.')"],
    "output": ["print('all is well')", "print_lines([f'all is {well} now'])"],
    "field": ["x: int = doc('how many steps', 0)"],
    "text": ["WORDS = {'x': 'seen so far'}", "return 'seen so far'", "f(f'seen {so} far off')"],
}
SILENT = [
    "'''A docstring of some words.'''",
    "def f():\n    'A docstring of some words.'",
    "# a comment of some words",
    "x = 'word'",
    "print_messages('')",
    "print_messages(f'{text}')",
    "format_count(number, 'log record')",
    "x: 'dict[str, int]'",
]


@pytest.mark.parametrize(("kind", "code"), [(kind, code) for kind, codes in CASES.items() for code in codes])
def test_a_text_is_found_by_what_is_done_with_it(kind: str, code: str) -> None:
    found = list(read_texts(code, "tdbg/x.py"))
    assert found and {one for _, one, _ in found} == {kind}


@pytest.mark.parametrize("code", SILENT)
def test_other_strings_are_no_texts(code: str) -> None:
    assert list(read_texts(code, "tdbg/x.py")) == []


def test_lines_values_and_folded_texts() -> None:
    code = "x = 1\nprint_messages(\n    f'rank {rank} took {count:,}'\n    ' steps in all'\n)\n"
    assert list(read_texts(code, "tdbg/x.py")) == [(3, "warning", "rank {rank} took {count} steps in all")]


def test_observations_are_a_kind_of_their_own() -> None:
    code = "class A:\n    def text(self):\n        return 'seen so far'"
    assert [kind for _, kind, _ in read_texts(code, "tdbg/core/observations/x.py")] == ["observation"]


def test_all_that_is_known_to_be_said_is_listed() -> None:
    messages = all_messages()
    texts = {(message.kind, message.text) for message in messages}
    spoken = " ".join(text for _, text in texts)
    assert set(KINDS) == {message.kind for message in messages}
    for rule in RULE_CATALOG:
        if rule.__module__.startswith("tdbg.") and " " in rule.title.replace("-", ""):
            assert ("finding", rule.title) in texts, rule.code
    assert all(flag.summary in spoken and " ".join(flag.help.split()) in spoken for flag in FLAGS)
    assert ("help", "Print one JSON document.") in texts


def test_each_place_holds_its_text() -> None:
    for message in all_messages()[::7]:
        name, _, line = message.place.rpartition(":")
        lines = read_lines(SOURCE.parent / name)
        word = message.text.partition("{")[0].split(" ")[0]
        assert word in "\n".join(lines[int(line) - 1 : int(line) + 60]), message


@pytest.mark.parametrize("kind", ["note", "help"])
def test_the_command_prints_one_kind(kind: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["docs", "messages", "--kind", kind]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[0].split("\t") == ["place", "kind", "text"]
    assert len(lines) - 1 == len([one for one in all_messages() if one.kind == kind]) > 10
    assert {line.split("\t")[1] for line in lines[1:]} == {kind}


def test_json(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["docs", "messages", "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["kind"] == "messages" and len(found["data"]) == len(all_messages())
    assert set(found["data"][0]) == {"place", "kind", "text"}


@pytest.mark.parametrize(
    ("words", "what"),
    [
        (["messages", "--kind", "nota"], "no message is of the kind 'nota'"),
        (["cli", "--kind", "note"], "--kind is for messages, not for cli"),
        (["all", "--json"], "--json is for messages, not for all"),
    ],
)
def test_what_cannot_be_asked(words: list[str], what: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["docs", *words]) == TdbgError.exit_code
    assert what in capsys.readouterr().err


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (["--check"], "--check is for generated files"),
        (["--root", "/no/such/folder"], "no source tree of tdbg"),
        (["--root", "{tmp}"], "no source tree of tdbg"),
    ],
)
def test_wrong_use_of_messages_is_refused(
    words: list[str], says: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["docs", "messages", *(word.format(tmp=tmp_path) for word in words)]) == 2
    said = capsys.readouterr()
    assert not said.out and says in said.err and len(said.err.splitlines()) == 2
