"""A number and the noun behind it agree: texts count with `format_count`, and none of them says "1 steps" or "step(s)"."""

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

import tdbg
from tdbg.core.tables import format_count, pluralize

SOURCE = Path(tdbg.__file__).parent
NOUNS = [
    "step",
    "epoch",
    "update",
    "batch",
    "sample",
    "class",
    "layer",
    "tensor",
    "module",
    "parameter",
    "gradient",
    "weight",
    "rank",
    "run",
    "value",
    "key",
    "row",
    "record",
    "call",
    "time",
    "datapoint",
    "file",
    "trace",
    "warning",
    "error",
    "worker",
    "element",
    "target",
    "label",
    "task",
    "collective",
    "bucket",
    "range",
    "index",
    "event",
    "process",
    "pass",
    "look",
    "copy",
    "wait",
    "launch",
    "group",
    "failure",
    "observation",
    "finding",
    "score",
]
ENDING = re.compile(rf"^ (?:[a-z-]+ )?(?:{'|'.join(map(pluralize, NOUNS))})\b(?! (?:that|of which))")
# Words and numbers of which there are always several, in which case only they are printed.
SEVERAL = {
    ("cli/trace/show.py", "len(every)"),
    ("core/config.py", "found"),
    ("metrics/step_logger/ops_schedule.py", "epochs"),
    ("metrics/step_logger/wandb_run_id.py", "world"),
    ("metrics/tracker/best_epochs.py", "size"),
    ("metrics/tracker/hierarchy_accuracy.py", "max(ks)"),
    ("pages/export/exporters/safetensors.py", "len(found)"),
    ("pages/format/datapoint_record.py", "rows if rows is not None else 'no'"),
    ("pages/pickle_reader/conversion.py", "'more' if stored is None else 'fewer'"),
    ("pages/read/tensor_values.py", "dtype.name"),
    ("probes/loss/class_weighting.py", "report.classes"),
    ("probes/loss/class_weighting.py", "format_number(ratio)"),
    ("probes/loss/gradnorm_metrics.py", "row['tensors']"),
    ("probes/loss/null_faults.py", "found.format if found.format != 'indices' else 'one-hot'"),
    ("probes/loss_calls/call_faults.py", "len(weights)"),
    ("rules/c014_gradients_thrown_away.py", "part"),
    ("rules/cost_lines.py", "baseline['block']"),
    ("rules/p001_syncs_in_step.py", "found[lasting[0]]"),
    ("traces/render/slice_file.py", "len(parts)"),
}
# Names: what follows is a verb.
VERBS = re.compile(r" (?:needs|have|has|runs|selects|without|that|steps before)\b")


def formatted_numbers(path: Path) -> Iterator[tuple[int, str, str]]:
    """Line, expression and the text behind it, of each f-string with a value before a noun in the plural."""
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if not isinstance(node, ast.JoinedStr):
            continue
        for value, after in zip(node.values, node.values[1:], strict=False):
            if isinstance(value, ast.FormattedValue) and is_plural(after) and not is_rounded(value):
                yield value.lineno, ast.unparse(value.value), ast.unparse(after).strip("'\"")


def is_plural(after: ast.expr) -> bool:
    return isinstance(after, ast.Constant) and bool(ENDING.match(str(after.value)))


def is_rounded(value: ast.FormattedValue) -> bool:
    return value.format_spec is not None and ast.unparse(value.format_spec).strip("f'\"") not in ("", ",", ",d")


SOURCES = sorted(SOURCE.rglob("*.py"))


def test_no_text_leaves_the_plural_to_the_reader() -> None:
    found = []
    for path in SOURCES:
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if (
                isinstance(node, ast.Constant)
                and isinstance(node.value, str)
                and re.search(r"\w\((?:s|es|ies)\)", node.value)
            ):
                found.append(f"{path.relative_to(SOURCE)}:{node.lineno}: {node.value}")
    assert not found


def test_numbers_are_counted() -> None:
    """`format_count` chooses singular or plural; a number that is printed by itself is always a plural."""
    found = []
    for path in SOURCES:
        name = path.relative_to(SOURCE).as_posix()
        for line, value, after in formatted_numbers(path):
            if (
                not value.isupper()
                and not value.startswith("format_count(")
                and (name, value) not in SEVERAL
                and not VERBS.match(after)
            ):
                found.append(f"{name}:{line}: {{{value}}}{after[:30]}")
    assert not found


@pytest.mark.parametrize(
    ("text", "is_found"),
    [
        ("f'{count} steps'", True),
        ("f'{count:,} trainable parameters'", True),
        ("f'{seen.looks} batches looked at'", True),
        ("f'{counted(count, \"step\")} taken'", False),
        ("f'{ms:.3g} steps'", False),
        ("f'{count} MB'", False),
        ("f'{count} step'", False),
    ],
)
def test_the_scan_finds_what_it_is_for(tmp_path: Path, text: str, is_found: bool) -> None:
    path = tmp_path / "x.py"
    path.write_text(text)
    assert bool(list(formatted_numbers(path))) is is_found


@pytest.mark.parametrize("noun", NOUNS)
@pytest.mark.parametrize("number", [0, 1, 2, 1200])
@pytest.mark.parametrize("verb", ["", "is", "has", "was", "does", "keeps"])
def test_counted(noun: str, number: int, verb: str) -> None:
    text = format_count(number, noun, verb)
    assert text.startswith(f"{number:,} {noun if number == 1 else pluralize(noun)}")
    assert text.endswith(verb) is (number == 1 or not verb)


@pytest.mark.parametrize(
    ("one", "several"),
    [
        ("step", "steps"),
        ("class", "classes"),
        ("batch", "batches"),
        ("epoch", "epochs"),
        ("training epoch", "training epochs"),
        ("copy", "copies"),
        ("key", "keys"),
        ("dataset index", "dataset indices"),
        ("leaf", "leaves"),
        ("loss", "losses"),
        ("evaluation pass", "evaluation passes"),
    ],
)
def test_the_plural_of_a_noun(one: str, several: str) -> None:
    assert pluralize(one) == several


def test_a_verb_agrees_with_its_number() -> None:
    assert [format_count(number, "key", "is") for number in (1, 2)] == ["1 key is", "2 keys are"]
    assert [format_count(number, "key", "fits") for number in (1, 2)] == ["1 key fits", "2 keys fit"]
