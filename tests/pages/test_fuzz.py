"""Files of both kinds, changed at random, through the readers and through every subcommand.

By hand: TDBG_TEST_FUZZ_S=600 pytest tests/pages/test_fuzz.py -s; a failure is shrunk and names its seed. Without that
variable, or TDBG_TEST_RANDOM, the first seed is always the same.
"""

import contextlib
import io
import json
import os
import random
import shutil
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, Phase, given, seed, settings
from hypothesis import strategies as st

from tdbg import cli
from tdbg.pages.format.journal import frame_body, iter_records
from tdbg.pages.format.page_writer import Item
from tests.chance import choose_seed
from tests.pages.foreign import HOSTILE
from tests.pages.limited import read_peak_mb, reset_peak
from tests.pages.material import fill_writer, make_items, write_pages
from tests.pages.pickle_reader.test_pickle_pages import SEEDS, mutate_pickle, walk_pages
from tests.pages.read.test_page_set import MUTATIONS, _read_all, mutate_bytes
from tests.pages.test_hostile import iter_commands, iter_pickle_commands

FUZZ_S = float(os.environ.get("TDBG_TEST_FUZZ_S", "10"))  # of each kind
FIRST = choose_seed("TDBG_TEST_FUZZ_SEED", "TDBG_TEST_FUZZ_S")
BATCH = 50  # examples of one seed
GROWN_MB = 600
EXAMPLE_S = 20.0
pytestmark = pytest.mark.timeout(FUZZ_S + 240)


def run_for_seconds(test: Callable[[], None]) -> None:
    """Batches of examples, each of a seed of its own, until the time is up."""
    reset_peak()
    end, number, before = time.monotonic() + FUZZ_S, 0, read_peak_mb()
    test = settings(
        max_examples=BATCH, deadline=None, database=None, derandomize=False, suppress_health_check=list(HealthCheck),
        phases=[Phase.generate, Phase.shrink], print_blob=False,
    )(test)  # fmt: skip
    while time.monotonic() < end or not number:  # a batch takes seconds
        try:
            seed(FIRST + number)(test)()
        except BaseException:
            print(f"TDBG_TEST_FUZZ_SEED={FIRST + number}")
            raise
        number += 1
    grown = read_peak_mb() - before
    print(f"{number * BATCH} examples from seed {FIRST}, {grown:.0f} MB more at the peak")
    assert grown < GROWN_MB


@contextlib.contextmanager
def assert_timely() -> Iterator[None]:
    begun = time.thread_time()
    yield
    assert time.thread_time() - begun < EXAMPLE_S


def call_inspect_pages(words: list[object]) -> None:
    """One command line, in this process."""
    said = io.StringIO()
    with contextlib.redirect_stdout(io.StringIO()), contextlib.redirect_stderr(said):
        code = cli.main(["inspect-pages", *map(str, words)])
    assert code in (0, 1, 2) and "tdbg itself failed" not in said.getvalue(), (words, said.getvalue())


@pytest.fixture(scope="module")
def good_pages(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_pages(tmp_path_factory.mktemp("good"), 4)


@pytest.fixture(scope="module")
def sample_files(tmp_path_factory: pytest.TempPathFactory) -> dict[str, bytes]:
    """A sealed page and one that is being filled, with a batch, a drop, a quantised tensor and marked scalars."""
    folder = tmp_path_factory.mktemp("sample")
    writer = fill_writer(folder, 4, header_bytes=4096)
    writer.record_drop(2, "full", 1, 2)
    writer.seal()
    writer.add(
        "k4", make_items("k4"), scalars={"nan": float("nan"), "loss": 1, "tokens": ["a", "b"]}, containers={"x": "list"}
    )
    note = {"scales": [0.5, 0.25], "zero_points": [1, 2], "axis": 0}
    writer.add("b", [Item("x", "qint8", (2, 3), bytes(6), note)], keys=["r", "s"], split=["x"])
    return {path.name: path.read_bytes() for path in folder.iterdir()}


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.integers(-(2**70), 2**70) | st.floats(allow_nan=False)
    | st.text(max_size=8) | st.sampled_from(["float32", "qint8", "quint4x2", "../x", "x", "loss", 10**400, -64, 64, 2**62]),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=4) | st.sampled_from(["$float", "$dict", "t"]), inner, max_size=3),
    max_leaves=8,
)  # fmt: skip


def list_places(value: Any, at: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
    """The ways to each value in a structure."""
    inside = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    return [at, *(place for name, item in inside for place in list_places(item, (*at, name)))]


def replace_value(value: Any, place: tuple[Any, ...], new: Any) -> Any:
    """The structure with another value at a place."""
    if not place:
        return new
    if isinstance(value, dict):
        return {**value, place[0]: replace_value(value[place[0]], place[1:], new)}
    return [replace_value(item, place[1:], new) if index == place[0] else item for index, item in enumerate(value)]


def change_values(data: st.DataObject, value: Any) -> Any:
    """The structure with a few values that are something else."""
    for _ in range(data.draw(st.integers(1, 3))):
        value = replace_value(value, data.draw(st.sampled_from(list_places(value))), data.draw(JSON))
    return value


def encode_json(value: Any) -> bytes:
    return json.dumps(value).encode()


def change_journal(data: st.DataObject, found: bytes) -> bytes:
    """Records that say something else, in frames whose checksums are right."""
    records = change_values(data, [record for _, record in iter_records(found)])
    return b"".join(frame_body(encode_json(record)) for record in (records if isinstance(records, list) else [records]))


def change_header(data: st.DataObject, found: bytes) -> bytes:
    """A page whose header, or the records in it, say something else."""
    size = int.from_bytes(found[:8], "little")
    head = json.loads(found[8 : 8 + size])
    if data.draw(st.booleans()):
        inside = head["__metadata__"]
        name = data.draw(st.sampled_from(sorted(inside)))
        try:
            inside[name] = json.dumps(change_values(data, json.loads(inside[name])))
        except ValueError:
            inside[name] = data.draw(st.text(max_size=8))
    else:
        head = change_values(data, head)
    text = encode_json(head).ljust(size)
    return len(text).to_bytes(8, "little") + text + found[8 + size :]


def change_file(data: st.DataObject, name: str, found: bytes) -> bytes:
    if data.draw(st.booleans()):
        return mutate_bytes(found, data.draw(MUTATIONS))
    if name.endswith("journal"):
        return change_journal(data, found)
    return (
        change_header(data, found)
        if name.endswith("safetensors")
        else encode_json(change_values(data, json.loads(found)))
    )


@pytest.mark.slow
def test_pages(sample_files: dict[str, bytes], good_pages: Path, tmp_path: Path) -> None:
    folder, out = tmp_path / "in", tmp_path / "out"

    @given(st.data())
    def fuzz_pages(data: st.DataObject) -> None:
        name = data.draw(st.sampled_from([name for name in sorted(sample_files) if not name.endswith("part")]))
        for path in (folder, out):
            shutil.rmtree(path, ignore_errors=True)
            path.mkdir()
        left_out = data.draw(st.sampled_from(["", "", *sample_files]))
        for other, found in sample_files.items():
            if other != left_out or other == name:
                (folder / other).write_bytes(change_file(data, name, found) if other == name else found)
        with assert_timely():
            _read_all(folder)
            _read_all(folder / name)
            call_inspect_pages(data.draw(st.sampled_from(list(iter_commands(folder, good_pages, out)))))

    run_for_seconds(fuzz_pages)


@pytest.mark.slow
def test_pickles(tmp_path: Path) -> None:
    canary, folder, out = tmp_path / "canary", tmp_path / "in", tmp_path / "out"
    pool = [*SEEDS, *(make(canary) for make, _ in HOSTILE.values())]

    @given(st.sampled_from(range(len(pool))), st.randoms(use_true_random=False), st.integers(1, 12), st.integers(0, 4))
    def fuzz_pickles(number: int, source: random.Random, count: int, line: int) -> None:
        for path in (folder, out):
            shutil.rmtree(path, ignore_errors=True)
            path.mkdir()
        path = folder / "page_0.pkl"
        path.write_bytes(mutate_pickle(pool[number], source, count))
        with assert_timely():
            walk_pages(path)
            if not line:
                for words in iter_pickle_commands(folder, out):
                    call_inspect_pages(words)
        assert not canary.exists()

    run_for_seconds(fuzz_pickles)
