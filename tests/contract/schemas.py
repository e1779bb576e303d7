"""JSON Schemas of the documents that ``--json`` prints: ``docs/schemas/``.

``python -m tests.contract.schemas [RUN...]`` widens them so that the documents of the recorded runs fit, and those of the runs
that are named. A field that all documents had is required; more fields may come with any version, none goes away.
"""

import json
import os
import pickle
import shutil
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any
from unittest.mock import patch

import numpy as np
from genson import SchemaBuilder

from tdbg.core.control import Request
from tdbg.core.events import Switch
from tdbg.core.rundir import RunDir
from tdbg.launch.ask import Answer
from tdbg.launch.live import read_snapshot
from tests.contract import questions

FOLDER = Path(__file__).parents[2] / "docs" / "schemas"
DIALECT = "https://json-schema.org/draft/2020-12/schema"
GROUPS = ("metrics", "inspect-pages", "trace", "flags", "runs")  # commands whose second word says which document
# Objects whose keys are names of the run's own, or numbers of ranks: below ``data``, lists as [].
MAPS: dict[str, tuple[str, ...]] = {
    "report": ("flags", "looks", "looks.*.last", "triggers[].values", "baseline"),
    "metrics show": ("ranks", "text"),
    "inspect-pages ls": ("refused", "list[].scalars"),
    "inspect-pages find": ("found[].scalars",),
    "inspect-pages show": ("[].scalars", "[].flags"),
    "inspect-pages diff": ("unreadable", "only_a.paths", "only_b.paths"),
    "inspect-pages convert": ("refused",),
    "inspect-pages export": ("failed", "left_out"),
    "control": ("flags",),
    "stacks": ("silent",),
}
# Values of any type, as a setting or a number of the program's own has: below ``data``, lists as [], maps as *.
OF_ANY_TYPE: dict[str, tuple[str, ...]] = {
    "doctor": ("settings[].value",),
    "inspect-pages ls": ("list[].scalars.*",),
    "inspect-pages find": ("found[].scalars.*",),
    "inspect-pages show": ("[].scalars.*",),
    "control": ("flags.*",),
}
# What these may hold besides: other runs than the recorded ones have it. Paths as above.
ALSO: dict[str, dict[str, tuple[str, ...]]] = {
    "report": {
        "ranks[].loss": ("null",),
        "ranks[].pid": ("null",),
        "flags.*": ("string",),
        "injections[].old": ("string", "number", "null"),
        "injections[].new": ("string", "number", "null"),
    },
    "status": {
        "ranks[].last_seen_s": ("number", "null"),
        "ranks[].steps_per_s": ("null",),
        "ranks[].cost_pct": ("null",),
        "ranks[].loss": ("null",),
        "ranks[].pid": ("null",),
    },
    "metrics compare": {
        "compared[].tolerance": ("string",),
        "compared[].series[].b": ("null",),
        "compared[].series[].parted.a": ("string",),
    },
    "metrics show": {"series[].least": ("null",), "series[].most": ("null",)},
    "metrics dump": {"rows[].least": ("null",), "rows[].most": ("null",)},
}
# Required once, and wrongly: a field that may be absent, by document and name.
NO_LONGER_REQUIRED: frozenset[tuple[str, str]] = frozenset()
# What hangs on the machine, on the version, or is written anew at each call, and so is in no recording.
UNRECORDED = (
    "doctor --json",
    "explain --json",
    "explain TD-N001 --json",
    "flags list --json",
    "flags show LOSS --json",
    "trust --json",
    "runs ls --json",
    "stacks hung --json",
    "inspect-pages recover captured --json",
    "inspect-pages recover damaged --json",
    "inspect-pages export captured npz -o captured.npz --json",
    "inspect-pages html captured -o captured.html --json",
    "inspect-pages upload captured memory://captured --json",
    "inspect-pages convert foreign -o converted --json",
    *(f"inspect-pages {words} --json" for words in (  # datapoints without rank, step and epoch
        "ls converted", "ls converted --datapoints", "show 0 converted", "stats converted", "find absmax>0.5 converted",
        "diff converted converted", "verify converted", "recover converted", "export converted npz -o converted.npz",
        "html converted -o converted.html",
    )),
)  # fmt: skip


def name_document(question: str) -> str:
    """``metrics show`` for the question ``metrics show single --json``; ``explain CODE`` for that of one code."""
    words = question.split()
    if words[0] == "explain" and not words[1].startswith("-"):
        return "explain CODE"
    return " ".join(words[: 2 if words[0] in GROUPS else 1])


def load_published() -> dict[str, dict[str, Any]]:
    """The schemas as they are in docs, by the document's name."""
    found = (json.loads(path.read_text(encoding="utf-8")) for path in sorted(FOLDER.glob("*.schema.json")))
    return {schema["title"].removeprefix("tdbg ").removesuffix(" --json"): schema for schema in found}


def build_schemas(runs: Sequence[Path] = ()) -> dict[str, dict[str, Any]]:
    """The schema of each document by its name: what is published, the frozen answers, today's, and those of more runs."""
    kept, builders, fixed = load_published(), dict[str, SchemaBuilder](), dict[str, dict[str, Any]]()
    for question, answer in _iter_answers(runs):
        if not isinstance(answer, Mapping) or "kind" not in answer:  # lines of a log: docs/records.md describes them
            continue
        name = name_document(question)
        if name not in builders:
            fixed[name] = {key: {"const": answer[key]} for key in ("kind", "version")}
            builders[name] = SchemaBuilder(schema_uri=DIALECT)
            for path in MAPS.get(name, ()):
                builders[name].add_schema(_build_map_schema(_split_path(path)))
            builders[name].add_schema(_restore_null(_drop_constants(kept.get(name, {}))))
        builders[name].add_object(answer)
    done = {name: _finish_schema(name, builder.to_schema(), fixed[name]) for name, builder in sorted(builders.items())}
    for name, schema in done.items():
        lost = _find_required(kept.get(name, {})) - _find_required(schema) - NO_LONGER_REQUIRED
        if lost:
            raise SystemExit(f"{name}: was promised, and is not in every document: {sorted(lost)}")
    return done


def _find_required(schema: Any, at: str = "") -> set[tuple[str, str]]:
    """Where a field is required, and its name."""
    if isinstance(schema, list):
        return {one for item in schema for one in _find_required(item, at)}
    if not isinstance(schema, dict):
        return set()
    found = {(at, name) for name in schema.get("required", ()) if isinstance(name, str)}
    for key, below in schema.items():
        if key != "required":
            found |= _find_required(below, at if key in ("anyOf", "properties", "items") else f"{at}.{key}")
    return found


def _restore_null(schema: Any) -> Any:
    """A published schema as its builder wrote it: an object that may be null says so by an empty alternative."""
    if isinstance(schema, list):
        return [_restore_null(one) for one in schema]
    if not isinstance(schema, dict):
        return schema
    found = {key: _restore_null(one) for key, one in schema.items()}
    if "anyOf" in found:
        found["anyOf"] = [one or {"type": "null"} for one in found["anyOf"]]
    return found


def _iter_answers(runs: Sequence[Path]) -> Iterator[tuple[str, Any]]:
    for question, then in questions.load_frozen_answers().items():
        if then["exit"] != 2:
            yield question, questions.restore_ages(then["answer"])
    yield from iter_documents(runs)
    before = Path.cwd()
    with tempfile.TemporaryDirectory() as folder:
        questions.unpack_recordings(Path(folder))
        os.chdir(folder)
        try:
            for question in questions.QUESTIONS:
                now = questions.ask_question(question, raw=True)
                if now["exit"] != 2:
                    yield question, now["answer"]
            yield from _iter_unrecorded(Path(folder))
            yield from _iter_control_answers(RunDir(Path(folder) / "two_ranks"))
        finally:
            os.chdir(before)


def _iter_unrecorded(folder: Path) -> Iterator[tuple[str, Any]]:
    """The documents that no recording holds, asked in the folder where the recordings are laid out."""
    (folder / "foreign").mkdir()
    (folder / "foreign" / "page_0.pkl").write_bytes(pickle.dumps({0: {"D": {"x": np.ones(3), "y": os.getcwd}}}))
    shutil.copytree("captured", "damaged")
    shutil.copytree("two_ranks", "hung")
    kept = {"t": 1.0, "threads": {"MainThread (7)": ['  File "/p/train.py", line 41, in main\n    step()']}}
    Path("hung/rank0000/stacks_step00000003.json").write_text(json.dumps(kept), encoding="utf-8")
    for page in Path("damaged").rglob("*.safetensors"):
        os.truncate(page, page.stat().st_size // 2)
    clean = {name: value for name, value in os.environ.items() if not name.startswith("TDBG_")}
    with patch.dict(os.environ, {**clean, "XDG_CONFIG_HOME": str(folder / "config")}, clear=True):
        questions.ask_question("trust captured")
        for question in UNRECORDED:
            yield question, questions.ask_question(question, raw=True)["answer"]


def _iter_control_answers(run: RunDir) -> Iterator[tuple[str, Any]]:
    """What comes of a request to two ranks: one switched; the other has not answered, or has ended."""
    request = Request(number=1, at_step=10, flags={"MEMORY": True})
    for ended in ([], [1]):
        answer = Answer(request, read_snapshot(run).ranks, {0: Switch(step=10, level="advanced")}, ended)
        yield "control --json", {"kind": "control", "version": 1, "data": {"run": "two_ranks", **answer.as_dict()}}


def _split_path(path: str) -> list[str]:
    return ["data", *path.replace("[]", ".[]").strip(".").split(".")]


def _build_map_schema(path: list[str]) -> dict[str, Any]:
    """What tells the builder that the object at this path has keys of its own choosing."""
    if not path:
        return {"type": "object", "patternProperties": {".*": None}}
    name, below = path[0], _build_map_schema(path[1:])
    if name == "[]":
        return {"type": "array", "items": below}
    if name == "*":
        return {"type": "object", "patternProperties": {".*": below}}
    return {"type": "object", "properties": {name: below}}


def iter_documents(runs: Sequence[Path]) -> Iterator[tuple[str, Any]]:
    """What a run directory is asked, and the documents that were printed."""
    for run in runs:
        for text in questions.OF_EVERY_RUN:
            found = questions.ask_question(text.format(run), raw=True)
            if found["exit"] != 2:
                yield text.format(run), found["answer"]


def _drop_constants(schema: dict[str, Any]) -> dict[str, Any]:
    properties = {key: one for key, one in schema.get("properties", {}).items() if "const" not in one}
    return {**schema, "properties": properties} if properties else {}


def _finish_schema(name: str, schema: dict[str, Any], fixed: dict[str, Any]) -> dict[str, Any]:
    _open_schema(schema)
    for path, types in ALSO.get(name, {}).items():
        _widen_types(schema, _split_path(path), types)
    for path in OF_ANY_TYPE.get(name, ()):
        _free_path(schema, _split_path(path))
    schema["properties"].update(fixed)
    return {"title": f"tdbg {name} --json", **schema, "$schema": DIALECT}


def _free_path(schema: dict[str, Any], path: list[str]) -> None:
    """Say nothing of what a path leads to, in each of the forms that the schema allows."""
    if not path:
        schema.clear()
        return
    for one in schema.get("anyOf", [schema]):
        below = {"[]": one.get("items"), "*": one.get("patternProperties", {}).get(".*")}
        found = below.get(path[0], one.get("properties", {}).get(path[0]))
        if found is not None:
            _free_path(found, path[1:])


def _widen_types(schema: dict[str, Any], path: list[str], types: tuple[str, ...]) -> None:
    """Allow these types as well where a path leads, in each of the forms that the schema allows."""
    for one in schema.get("anyOf", [schema]):
        below = {"[]": one.get("items"), "*": one.get("patternProperties", {}).get(".*")}
        found = below.get(path[0], one.get("properties", {}).get(path[0]))
        if found is None:
            continue
        if path[1:]:
            _widen_types(found, path[1:], types)
        elif "anyOf" in found:
            found["anyOf"][:0] = [{"type": name} for name in types if {"type": name} not in found["anyOf"]]
        elif found.get("type") == "object":
            found.update(anyOf=[*({"type": name} for name in types), {**found}])
            for key in found.keys() - {"anyOf"}:
                del found[key]
        elif "type" in found:
            held = found["type"] if isinstance(found["type"], list) else [found["type"]]
            found["type"] = sorted({*held, *types})


def _open_schema(schema: Any) -> None:
    """Nothing is said of a value that was null, or a list that was empty, in all documents."""
    if isinstance(schema, dict):
        if schema.get("type") == "null":
            del schema["type"]
        schema.pop("$schema", None)
        for key, one in schema.items():
            for below in one if key == "anyOf" else ():
                if below != {"type": "null"}:
                    _open_schema(below)
            if key != "anyOf":
                _open_schema(one)
    elif isinstance(schema, list):
        for one in schema:
            _open_schema(one)


def build_files(runs: Sequence[Path] = ()) -> dict[str, str]:
    """The text of each published file by its name."""
    return {
        f"{name.replace(' ', '-')}.schema.json": json.dumps(schema, indent=1, sort_keys=True) + "\n"
        for name, schema in build_schemas(runs).items()
    }


def main(words: Sequence[str]) -> int:
    """Write them."""
    FOLDER.mkdir(exist_ok=True)
    for name, text in build_files([Path(word).absolute() for word in words]).items():
        (FOLDER / name).write_text(text, encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
