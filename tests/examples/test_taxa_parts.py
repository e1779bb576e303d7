"""The parts of examples/taxa: the table of languages, the data, the losses, GradNorm, the configuration."""

import importlib
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from tdbg.flags import FLAGS
from tests.e2e.conftest import environment

TAXA = Path(__file__).parents[2] / "examples" / "taxa"
MODULES = ("config", "data", "debugging", "faults", "gradnorm", "languages", "losses", "model", "stopping", "train")


@pytest.fixture(scope="module")
def taxa() -> Iterator[Any]:
    """The modules of the example, as it imports them itself: its folder comes first, and goes again."""
    held = {name: sys.modules.pop(name) for name in MODULES if name in sys.modules}
    sys.path.insert(0, str(TAXA))
    yield SimpleNamespace(**{name: importlib.import_module(name) for name in MODULES})
    sys.path.remove(str(TAXA))
    for name in MODULES:
        sys.modules.pop(name, None)
    sys.modules.update(held)


def run(*words: str, cwd: Path, env: dict[str, str] | None = None) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, str(TAXA / "train.py"), *words],
        cwd=cwd, env=environment(env or {}), capture_output=True, text=True, timeout=150,
    )  # fmt: skip


# The table


def test_a_group_of_one_language_has_no_name(taxa: Any) -> None:
    lineages = taxa.languages.LINEAGES.values()
    for rank in (1, 2):
        labels = [lineage[rank] for lineage in lineages if lineage[rank] is not None]
        assert all(labels.count(label) > 1 for label in labels)


def test_each_branch_has_one_family(taxa: Any) -> None:
    families: dict[str, set[str | None]] = {}
    for lineage in taxa.languages.LINEAGES.values():
        if lineage.branch is not None:
            families.setdefault(lineage.branch, set()).add(lineage.family)
    assert all(len(found) == 1 and None not in found for found in families.values())
    codes = [code for group in taxa.languages.GROUPS for code in group.codes]
    assert len(codes) == len(set(codes)) == 80


@pytest.mark.parametrize(
    ("codes", "lineage"),
    [
        ({"de"}, ("de", "Germanic", "Indo-European")),
        ({"de", "nl"}, (None, "Germanic", "Indo-European")),
        ({"de", "fr"}, (None, None, "Indo-European")),
        ({"de", "fi"}, (None, None, None)),
        ({"eu"}, ("eu", None, None)),
        ({"sq", "de"}, (None, None, "Indo-European")),
        ({"hu"}, ("hu", None, "Uralic")),
    ],
)
def test_what_languages_share(taxa: Any, codes: set[str], lineage: tuple[str | None, ...]) -> None:
    assert tuple(taxa.languages.common(frozenset(codes))) == lineage


# The data


def test_words_are_split_once_and_for_all(taxa: Any) -> None:
    rows = taxa.data.rows()
    assert len(rows) > 30_000
    assert len({row.word for row in rows}) == len(rows)
    shares = {part: sum(row.part == part for row in rows) / len(rows) for part in taxa.data.PARTS}
    assert shares == pytest.approx({"train": 0.8, "val": 0.1, "test": 0.1}, abs=0.01)
    by_word = {row.word: row for row in rows}
    assert by_word["allemagne"].lineage == ("fr", "Romance", "Indo-European")
    assert by_word["deutschland"].lineage.branch == "Germanic"
    shared = [row for row in rows if row.lineage.language is None]
    assert len(shared) > 4_000 and any(row.lineage.family is None for row in shared)
    assert [row.word for row in rows[:3]] == [
        row.word for row in sorted(rows, key=lambda r: taxa.data._hash(r.word))[:3]
    ]


def test_ranks_see_every_validation_word_once(taxa: Any) -> None:
    config = taxa.config.load(["--opts", "DATA.WORDS", "777", "DATA.BATCH_SIZE", "16"])
    seen = [taxa.data.loaders(config, rank, 2)[1].dataset.indices for rank in (0, 1)]
    whole = len(taxa.data.Words("val", words=777))
    assert sorted([*seen[0], *seen[1]]) == list(range(whole))


def test_augmentation_drops_and_swaps(taxa: Any) -> None:
    torch.manual_seed(0)
    word = torch.tensor([5, 6, 7, 8, 0, 0])
    dropped = taxa.data.DropLetter(1.0)(word)
    assert dropped.shape == word.shape and (dropped > 0).sum() == 3
    swapped = taxa.data.SwapLetters(1.0)(word)
    assert not torch.equal(swapped, word) and torch.equal(swapped.sort().values, word.sort().values)
    short = torch.tensor([5, 6, 7, 0, 0, 0])
    assert taxa.data.DropLetter(1.0)(short) is short
    assert taxa.data.SwapLetters(0.0)(word) is word


def test_components_are_hidden(taxa: Any) -> None:
    meta = torch.ones(3, taxa.data.META_DIM)
    hidden, shown = taxa.data.hide(meta, components=("SCRIPT",))
    assert hidden.sum(1).tolist() == [6.0] * 3 and shown.tolist() == [[1.0, 0.0, 1.0, 1.0]] * 3
    assert taxa.data.hide(meta, prob=1.0)[0].sum() == 0


# The losses


def test_distances_are_an_ultrametric(taxa: Any) -> None:
    names = taxa.data.classes()["language"]
    d = taxa.losses.distances(names, 0)
    assert torch.equal(d, d.T) and d.diagonal().sum() == 0
    assert bool((d[:, None, :] <= torch.maximum(d[:, :, None], d.T[None]) + 1e-6).all())
    at = {name: index for index, name in enumerate(names)}
    assert float(d[at["de"], at["nl"]]) == pytest.approx(1 / 3)
    assert float(d[at["de"], at["fr"]]) == pytest.approx(2 / 3)
    assert float(d[at["de"], at["sq"]]) == pytest.approx(2 / 3)
    assert float(d[at["de"], at["eu"]]) == float(d[at["eu"], at["vi"]]) == 1.0


def test_smoothing_rows(taxa: Any) -> None:
    d = taxa.losses.distances(taxa.data.classes()["language"], 0)
    matrix = taxa.losses.smoothing_matrix(d, 0.1, 4.0)
    assert torch.allclose(matrix.sum(1), torch.ones(len(d)))
    assert torch.allclose(matrix.diagonal()[1:], torch.tensor(0.9)) and matrix[0, 0] == 1.0
    assert matrix[1:, 0].sum() == 0, "null gets nothing"
    far = d[1:, 1:][matrix[1:, 1:].argsort(1, descending=True)[:, 0]]
    assert far.shape == d[1:, 1:].shape
    order = d.gather(1, matrix.argsort(1, descending=True))[1:, :-1]
    assert bool((order.diff(dim=1) >= -1e-6).all()), "near classes get no less than far ones"


def test_effective_numbers(taxa: Any) -> None:
    counts = torch.tensor([10, 100, 0, 1000])
    weights = taxa.losses.class_weights(counts, 0.99)
    effective = [(1 - 0.99**n) / 0.01 for n in (10, 100, 1000)]
    raw = [1 / number for number in effective]
    scale = 1110 / (raw[0] * 10 + raw[1] * 100 + raw[2] * 1000)
    assert weights.tolist() == pytest.approx([raw[0] * scale, raw[1] * scale, 0.0, raw[2] * scale], rel=1e-5)


def test_null_masking_follows_its_schedule(taxa: Any) -> None:
    config = SimpleNamespace(START=1.0, END=0.2, RAMP=0.5)
    mask = taxa.losses.NullMask(config, total_steps=100)
    assert [mask.probability(step) for step in (0, 25, 50, 100)] == pytest.approx([1.0, 0.6, 0.2, 0.2])
    torch.manual_seed(0)
    labels = {"language": torch.tensor([0, 1] * 20_000)}
    kept = mask.keep(labels, 25)["language"]
    assert bool(kept[1::2].all()), "labelled samples always stay"
    assert float((~kept[::2]).float().mean()) == pytest.approx(0.6, abs=0.015)


def test_gradnorm_finds_its_targets(taxa: Any) -> None:
    """Two tasks, one with ten times the gradient: their weighted norms meet."""
    shared = torch.nn.Parameter(torch.tensor([1.0, 1.0]))
    config = SimpleNamespace(ALPHA=0.0, LR=0.002)
    norm = taxa.gradnorm.GradNorm(("a", "b"), shared, config)
    for _ in range(2000):
        seen = norm.update(lambda: {"a": 10 * shared[0], "b": shared[1] * 1.0})
    assert sum(norm.weights.values()) == pytest.approx(2.0)
    assert norm.weights["b"] / norm.weights["a"] == pytest.approx(10.0, rel=0.25)
    assert seen["target"]["a"] == pytest.approx(seen["target"]["b"])


# The configuration


def test_the_flags_are_those_of_the_table(taxa: Any) -> None:
    assert [flag.name for flag in FLAGS] == taxa.config.FLAGS


def test_the_file_of_defaults_is_readable(taxa: Any) -> None:
    config = taxa.config.load(["--cfg", str(TAXA / "base.yaml"), "--opts", "TRAIN.LR", "1", "OUTPUT", "12"])
    assert config.LOSS.NULL_MASKING.ENABLED and config.TRAIN.LR == 1.0 and config.OUTPUT == "12"


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--opts", "TRAIN.LRR", "0.1"], "TRAIN.LRR"),
        (["--opts", "TRAIN.LR", "fast"], "TRAIN.LR"),
        (["--opts", "TRAIN.LR"], "no value"),
        (["--opts", "LOSS", "3"], "LOSS"),
        (["--cfg", "missing.yaml"], "no such file"),
        (["--cfg", "broken.yaml"], "broken.yaml"),
        (["--cfg", "list.yaml"], "no YAML mapping"),
        (["--cfg", "unknown.yaml"], "NOPE"),
        (["--fault", "nope"], "no fault"),
        (["--opts", "TRAIN.EPOCHS", "0"], "TRAIN.EPOCHS is 0"),
        (["--opts", "SCHEDULE.VALIDATION_STEPS", "5"], "contradict"),
        (["--opts", "LOSS.NULL_MASKING.START", "0.1"], "END is above START"),
        (["--opts", "MODEL.HEADS", "5"], "multiple"),
        (["--opts", "CHECKPOINT.RESUME", "missing.pt"], "missing.pt"),
        (["--opts", "TRAIN.AMP", "fp8"], "fp8"),
    ],
)
def test_a_wrong_config_is_one_line(
    taxa: Any, words: list[str], said: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Any
) -> None:
    monkeypatch.chdir(tmp_path)
    for name, text in {"broken": "a: [", "list": "- 1", "unknown": "DATA: {NOPE: 1}"}.items():
        Path(f"{name}.yaml").write_text(text)
    with pytest.raises(SystemExit) as error:
        taxa.config.load(words)
    assert error.value.code == 2
    lines = capsys.readouterr().err.splitlines()
    assert len(lines) == 1 and lines[0].startswith("taxa: ") and said in lines[0], lines


def test_a_wrong_config_ends_the_program(tmp_path: Path) -> None:
    done = run("--opts", "TRAIN.LRR", "0.1", cwd=tmp_path)
    assert done.returncode == 2 and done.stdout == "" and len(done.stderr.splitlines()) == 1, done.stderr


# The program

TINY = ("DATA.WORDS", "600", "DATA.BATCH_SIZE", "32", "TRAIN.WARMUP", "5", "LOSS.GRADNORM.ENABLED", "True",
        "LOSS.GRADNORM.INTERVAL", "4", "AUGMENT.ENABLED", "True", "TRAIN.MAX_STEPS", "24")  # fmt: skip


def test_a_resumed_run_ends_where_it_would_have(taxa: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Stopped in the middle of an epoch, and gone on with from its checkpoint: the same weights, bit by bit."""
    monkeypatch.chdir(tmp_path)

    def train(*more: str) -> Any:
        config = taxa.config.load(["--opts", *TINY, "SCHEDULE.CHECKPOINT_EPOCHS", "0", *more])
        torch.manual_seed(0)
        training = taxa.train.Training(config)
        training.fit()
        return training

    whole = train("SCHEDULE.CHECKPOINT_STEPS", "9", "OUTPUT", "a")
    state = torch.load("a/last.pt", weights_only=True)
    assert state["step"] == 18 and state["batches"] > 0, "in the middle of an epoch"
    resumed = train("CHECKPOINT.RESUME", "a/last.pt", "SCHEDULE.CHECKPOINT_STEPS", "0")
    assert resumed.step == whole.step == 24 and resumed.epoch == whole.epoch
    for name, value in whole.model.state_dict().items():
        assert torch.equal(value, resumed.model.state_dict()[name]), name
    assert resumed.gradnorm.weights == whole.gradnorm.weights


def test_it_runs_without_tdbg(tmp_path: Path) -> None:
    """A module of that name which cannot be imported stands in its way."""
    (tmp_path / "tdbg.py").write_text("raise ImportError('not here')")
    done = run("--opts", *TINY, "TRAIN.DEVICE", "cpu", cwd=tmp_path, env={"PYTHONPATH": str(tmp_path)})
    assert done.returncode == 0, done.stderr
    assert done.stderr.splitlines() == [
        "taxa: tdbg is not installed: no diagnostics, and metrics go to the console alone"
    ]
    assert "val/acc1_language" in done.stdout and "done: 24 steps" in done.stdout


def test_pages_of_an_evaluation(tmp_path: Path) -> None:
    from tdbg.pages.outputs import load_debug_outputs

    assert run("--opts", *TINY, "OUTPUT", "out", cwd=tmp_path).returncode == 0
    done = subprocess.run(
        [sys.executable, str(TAXA / "eval.py"), "out/last.pt", "--part", "val", "--pages", "pages", "--words", "20"],
        cwd=tmp_path, env=environment({}), capture_output=True, text=True, timeout=150,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert "family" in done.stdout
    folder = next((tmp_path / "pages").rglob("*")).parent
    words = [line.split()[0] for line in done.stdout.splitlines() if line]
    assert words[0] == "val:" and folder.is_dir()
    assert callable(load_debug_outputs)
