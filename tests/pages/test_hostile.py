"""Every subcommand over files that somebody made to do harm: none runs, none crashes, none takes the machine's memory."""

import gzip
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pytest

from tests.pages.foreign import HOSTILE, dump_joblib, make_page
from tests.pages.hostile import PAGES
from tests.pages.limited import Answer, Limited
from tests.pages.material import write_pages
from tests.pages.pickle_reader.test_pickle_pages import SEEDS
from tests.pages.pickle_reader.test_unpickle import BOMBS

GROWN_MB = 400  # what a folder of a few dozen MB may take at the peak
SECONDS = 25


@pytest.fixture(scope="module")
def limited_commands() -> Iterator[Limited]:
    limited = Limited()
    yield limited
    limited.close()


@pytest.fixture(scope="module")
def good_pages(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder of pages to compare with."""
    return write_pages(tmp_path_factory.mktemp("good"), 4)


def iter_pickle_commands(folder: Path, out: Path) -> Iterator[list[object]]:
    """Those that read pickles, and those that name the one that does."""
    yield ["ls", folder]
    yield ["convert", folder, "-o", out / "converted", "--json"]
    yield ["verify", out / "converted"]
    yield ["stats", out / "converted"]
    yield ["show", out / "converted", "1"]


def iter_commands(folder: Path, good: Path, out: Path) -> Iterator[list[object]]:
    """Each subcommand, in the forms that read different parts of the files."""
    yield ["ls", folder]
    yield ["ls", folder, "--datapoints", "--json"]
    for key in ("k1", "1", "k"):
        yield ["show", folder, key]
        yield ["show", folder, key, "--json", "--slice", "0"]
    yield ["stats", folder, "--json"]
    yield ["stats", folder, "--group-by", "loss"]
    yield ["find", folder, "nan > 0 or absmax > 1e4 or scalar.loss > 0", "--sort", "std"]
    yield ["diff", folder, good, "--json"]
    yield ["diff", good, folder, "--by", "order"]
    for kind in ("npz", "npy", "safetensors", "png", "csv"):
        yield ["export", folder, kind, "-o", out / kind, "--json"]
    yield ["html", folder, "-o", out / "x.html"]
    yield ["verify", folder, "--json"]
    yield ["recover", folder, "--force"]
    yield ["convert", folder, "-o", out / "converted", "--json"]
    yield ["verify", out / "converted"]


def assert_harmless(words: list[object], answer: Answer) -> None:
    told = (
        f"{' '.join(map(str, words))}: {answer.code}, {answer.grown_mb:.0f} MB, {answer.seconds:.1f} s\n{answer.said}"
    )
    assert answer.code in (0, 1, 2), told
    assert "tdbg itself failed" not in answer.said and "Traceback" not in answer.said, told
    assert all(line.startswith("tdbg: ") for line in answer.said.splitlines()), told
    assert answer.grown_mb < GROWN_MB, told
    assert answer.seconds < SECONDS, told
    for text in (answer.out, answer.said):
        assert not set(text) & set("\x00\x07\x1b\x9b\u202e"), told


def run_all_commands(
    ask: Limited, make: Callable[[Path], object], tmp_path: Path, good: Path, *, pickles: bool = False
) -> list[Answer]:
    """All subcommands over what ``make`` makes; nothing outside of their folders changes."""
    folder, out = tmp_path / "in" / "hostile", tmp_path / "in" / "out"
    folder.mkdir(parents=True)
    out.mkdir()
    make(folder)
    found = []
    for words in iter_pickle_commands(folder, out) if pickles else iter_commands(folder, good, out):
        answer = ask(*words)
        assert_harmless(words, answer)
        found.append(answer)
    assert [path.name for path in tmp_path.iterdir()] == ["in"] and len(list((tmp_path / "in").iterdir())) == 2
    shutil.rmtree(tmp_path / "in", ignore_errors=True)
    return found


def test_the_limits_would_notice(limited_commands: Limited, tmp_path: Path, good_pages: Path) -> None:
    """Else the tests below could not fail: a good folder is answered, and its commands say something."""
    found = run_all_commands(limited_commands, lambda folder: write_pages(folder, 4), tmp_path, good_pages)
    assert [answer.code for answer in found[:2]] == [0, 0] and "k1" in found[1].out
    assert found[-3].code == 0, "recover has nothing to do"


@pytest.mark.parametrize("name", PAGES)
def test_pages(limited_commands: Limited, tmp_path: Path, good_pages: Path, name: str) -> None:
    run_all_commands(limited_commands, PAGES[name], tmp_path, good_pages)


def iter_pickles(canary: Path) -> Iterator[tuple[str, bytes]]:
    for name, (make, _) in HOSTILE.items():
        yield name, make(canary)
    for name, data in BOMBS.items():
        yield f"bomb-{name}", data
        yield f"bomb-{name}-ended", data + b"."
    whole = dump_joblib(make_page(6))
    for share in (0.001, 0.1, 0.5, 0.99):
        yield f"cut-{share}", whole[: int(len(whole) * share)]
    for number, seed in enumerate(SEEDS):
        yield f"cut-seed-{number}", seed[: len(seed) * 2 // 3]
    yield "packed-bomb", gzip.compress(dump_joblib({1: {"a": 1}, 2: {"a": np.zeros(40_000_000)}}))
    yield "packed-zeros", gzip.compress(bytes(400 << 20))


@pytest.mark.slow
def test_pickles(limited_commands: Limited, tmp_path: Path, good_pages: Path) -> None:
    for number, (name, data) in enumerate(iter_pickles(tmp_path / "in" / "canary")):
        make = lambda folder, data=data: (folder / "page_0.pkl").write_bytes(data)  # noqa: E731
        found = run_all_commands(limited_commands, make, tmp_path, good_pages, pickles=number > 0)
        assert {answer.code for answer in found} != {0}, name
