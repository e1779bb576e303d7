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

from tdbg.core.flags import FLAGS
from tests.e2e.conftest import build_environment, run_command, warm_command
from tests.metrics.wandb_files import load_runs

TAXA = Path(__file__).parents[2] / "examples" / "taxa"
MODULES = (
    "checkpoints",
    "checks",
    "config",
    "data",
    "debugging",
    "faults",
    "gradnorm",
    "languages",
    "losses",
    "model",
    "stopping",
    "train",
)


@pytest.fixture(scope="module")
def taxa_modules() -> Iterator[Any]:
    """The modules of the example, as it imports them itself: its folder comes first, and goes again."""
    held = {name: sys.modules.pop(name) for name in MODULES if name in sys.modules}
    sys.path.insert(0, str(TAXA))
    yield SimpleNamespace(**{name: importlib.import_module(name) for name in MODULES})
    sys.path.remove(str(TAXA))
    for name in MODULES:
        sys.modules.pop(name, None)
    sys.modules.update(held)


def run_taxa(*words: str, cwd: Path, env: dict[str, str] | None = None) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        warm_command([sys.executable, str(TAXA / "train.py"), *words]),
        cwd=cwd, env=build_environment(env or {}), capture_output=True, text=True, timeout=150,
    )  # fmt: skip


# The table


def test_a_group_of_one_language_has_no_name(taxa_modules: Any) -> None:
    lineages = taxa_modules.languages.LINEAGES.values()
    for rank in (1, 2):
        labels = [lineage[rank] for lineage in lineages if lineage[rank] is not None]
        assert all(labels.count(label) > 1 for label in labels)


def test_each_branch_has_one_family(taxa_modules: Any) -> None:
    families: dict[str, set[str | None]] = {}
    for lineage in taxa_modules.languages.LINEAGES.values():
        if lineage.branch is not None:
            families.setdefault(lineage.branch, set()).add(lineage.family)
    assert all(len(found) == 1 and None not in found for found in families.values())
    codes = [code for group in taxa_modules.languages.GROUPS for code in group.codes]
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
def test_what_languages_share(taxa_modules: Any, codes: set[str], lineage: tuple[str | None, ...]) -> None:
    assert tuple(taxa_modules.languages.common(frozenset(codes))) == lineage


# The data


def test_words_are_split_once_and_for_all(taxa_modules: Any) -> None:
    rows = taxa_modules.data.rows()
    assert len(rows) > 30_000
    assert len({row.word for row in rows}) == len(rows)
    shares = {part: sum(row.part == part for row in rows) / len(rows) for part in taxa_modules.data.PARTS}
    assert shares == pytest.approx({"train": 0.8, "val": 0.1, "test": 0.1}, abs=0.01)
    by_word = {row.word: row for row in rows}
    assert by_word["allemagne"].lineage == ("fr", "Romance", "Indo-European")
    assert by_word["deutschland"].lineage.branch == "Germanic"
    shared = [row for row in rows if row.lineage.language is None]
    assert len(shared) > 4_000 and any(row.lineage.family is None for row in shared)
    assert [row.word for row in rows[:3]] == [
        row.word for row in sorted(rows, key=lambda r: taxa_modules.data._hash(r.word))[:3]
    ]


def test_ranks_see_every_validation_word_once(taxa_modules: Any) -> None:
    config = taxa_modules.config.load_config(["--opts", "DATA.WORDS", "777", "DATA.BATCH_SIZE", "16"])
    seen = [taxa_modules.data.loaders(config, rank, 2)[1].dataset.indices for rank in (0, 1)]
    whole = len(taxa_modules.data.Words("val", words=777))
    assert sorted([*seen[0], *seen[1]]) == list(range(whole))


def test_augmentation_drops_and_swaps(taxa_modules: Any) -> None:
    torch.manual_seed(0)
    word = torch.tensor([5, 6, 7, 8, 0, 0])
    dropped = taxa_modules.data.DropLetter(1.0)(word)
    assert dropped.shape == word.shape and (dropped > 0).sum() == 3
    swapped = taxa_modules.data.SwapLetters(1.0)(word)
    assert not torch.equal(swapped, word) and torch.equal(swapped.sort().values, word.sort().values)
    short = torch.tensor([5, 6, 7, 0, 0, 0])
    assert taxa_modules.data.DropLetter(1.0)(short) is short
    assert taxa_modules.data.SwapLetters(0.0)(word) is word


def test_components_are_hidden(taxa_modules: Any) -> None:
    meta = torch.ones(3, taxa_modules.data.META_DIM)
    hidden, shown = taxa_modules.data.hide(meta, components=("SCRIPT",))
    assert hidden.sum(1).tolist() == [6.0] * 3 and shown.tolist() == [[1.0, 0.0, 1.0, 1.0]] * 3
    assert taxa_modules.data.hide(meta, prob=1.0)[0].sum() == 0


# The losses


def test_distances_are_an_ultrametric(taxa_modules: Any) -> None:
    names = taxa_modules.data.classes()["language"]
    d = taxa_modules.losses.distances(names, 0)
    assert torch.equal(d, d.T) and d.diagonal().sum() == 0
    assert bool((d[:, None, :] <= torch.maximum(d[:, :, None], d.T[None]) + 1e-6).all())
    at = {name: index for index, name in enumerate(names)}
    assert float(d[at["de"], at["nl"]]) == pytest.approx(1 / 3)
    assert float(d[at["de"], at["fr"]]) == pytest.approx(2 / 3)
    assert float(d[at["de"], at["sq"]]) == pytest.approx(2 / 3)
    assert float(d[at["de"], at["eu"]]) == float(d[at["eu"], at["vi"]]) == 1.0


def test_smoothing_rows(taxa_modules: Any) -> None:
    d = taxa_modules.losses.distances(taxa_modules.data.classes()["language"], 0)
    matrix = taxa_modules.losses.smoothing_matrix(d, 0.1, 4.0)
    assert torch.allclose(matrix.sum(1), torch.ones(len(d)))
    assert torch.allclose(matrix.diagonal()[1:], torch.tensor(0.9)) and matrix[0, 0] == 1.0
    assert matrix[1:, 0].sum() == 0, "null gets nothing"
    far = d[1:, 1:][matrix[1:, 1:].argsort(1, descending=True)[:, 0]]
    assert far.shape == d[1:, 1:].shape
    order = d.gather(1, matrix.argsort(1, descending=True))[1:, :-1]
    assert bool((order.diff(dim=1) >= -1e-6).all()), "near classes get no less than far ones"


def test_effective_numbers(taxa_modules: Any) -> None:
    counts = torch.tensor([10, 100, 0, 1000])
    weights = taxa_modules.losses.class_weights(counts, 0.99)
    effective = [(1 - 0.99**n) / 0.01 for n in (10, 100, 1000)]
    raw = [1 / number for number in effective]
    scale = 1110 / (raw[0] * 10 + raw[1] * 100 + raw[2] * 1000)
    assert weights.tolist() == pytest.approx([raw[0] * scale, raw[1] * scale, 0.0, raw[2] * scale], rel=1e-5)


def test_null_masking_follows_its_schedule(taxa_modules: Any) -> None:
    config = SimpleNamespace(START=1.0, END=0.2, RAMP=0.5)
    mask = taxa_modules.losses.NullMask(config, total_steps=100)
    assert [mask.probability(step) for step in (0, 25, 50, 100)] == pytest.approx([1.0, 0.6, 0.2, 0.2])
    torch.manual_seed(0)
    labels = {"language": torch.tensor([0, 1] * 20_000)}
    kept = mask.keep(labels, 25)["language"]
    assert bool(kept[1::2].all()), "labelled samples always stay"
    assert float((~kept[::2]).float().mean()) == pytest.approx(0.6, abs=0.015)


def test_gradnorm_finds_its_targets(taxa_modules: Any) -> None:
    """Two tasks, one with ten times the gradient: their weighted norms meet."""
    shared = torch.nn.Parameter(torch.tensor([1.0, 1.0]))
    config = SimpleNamespace(ALPHA=0.0, LR=0.002)
    norm = taxa_modules.gradnorm.GradNorm(("a", "b"), shared, config)
    for _ in range(2000):
        seen = norm.update(lambda: {"a": 10 * shared[0], "b": shared[1] * 1.0})
    assert sum(norm.weights.values()) == pytest.approx(2.0)
    assert norm.weights["b"] / norm.weights["a"] == pytest.approx(10.0, rel=0.25)
    assert seen["target"]["a"] == pytest.approx(seen["target"]["b"])


# The configuration


def test_the_flags_are_those_of_the_table(taxa_modules: Any) -> None:
    assert [flag.name for flag in FLAGS] == taxa_modules.config.FLAGS


def test_the_file_of_defaults_is_readable(taxa_modules: Any) -> None:
    config = taxa_modules.config.load_config(
        ["--cfg", str(TAXA / "base.yaml"), "--opts", "TRAIN.LR", "1", "OUTPUT", "12"]
    )
    assert config.LOSS.NULL_MASKING.ENABLED and config.TRAIN.LR == 1.0 and config.OUTPUT == "12"


WRONG: dict[str, tuple[list[str], str, str]] = {  # the words of a command line -> what is said, and what to do next
    "unknown key": (["--opts", "TRAIN.LRR", "0.1"], "--opts: there is no setting TRAIN.LRR", "did you mean TRAIN.LR"),
    "key without its node": (["--opts", "epochs", "3"], "no setting epochs", "did you mean TRAIN.EPOCHS?"),
    "unknown key in a file": (["--cfg", "unknown.yaml"], "unknown.yaml: there is no setting DATA.NOPE", "config.py"),
    "option after --opts": (["--opts", "--cfg", "a.yaml"], "no setting --cfg", "come before --opts"),
    "key of a whole node": (["--opts", "LOSS", "3"], "LOSS is no setting by itself", "SMOOTHING, NULL_MASKING"),
    "text for a number": (["--opts", "TRAIN.LR", "fast"], "TRAIN.LR is 'fast'", "has to be a number, such as 0.003"),
    "fraction for a count": (["--opts", "TRAIN.EPOCHS", "1.5"], "TRAIN.EPOCHS is '1.5'", "a whole number"),
    "number for a switch": (["--opts", "META.ENABLED", "1"], "META.ENABLED is '1'", "True or False"),
    "list for a number": (["--cfg", "typed.yaml"], "typed.yaml: TRAIN.LR is [1, 2]", "has to be a number"),
    "off without quotes": (["--cfg", "off.yaml"], "off.yaml: TRAIN.AMP is False", "put it into quotes"),
    "no value": (["--opts", "TRAIN.LR"], "'TRAIN.LR' has no value", "pairs of KEY VALUE"),
    "missing file": (["--cfg", "missing.yaml"], "--cfg missing.yaml: there is no such file", "base.yaml"),
    "folder for a file": (["--cfg", "."], "--cfg . cannot be read", "base.yaml"),
    "broken file": (["--cfg", "broken.yaml"], "--cfg broken.yaml cannot be read", "base.yaml"),
    "binary file": (["--cfg", "binary.yaml"], "--cfg binary.yaml cannot be read", "base.yaml"),
    "file without settings": (["--cfg", "list.yaml"], "--cfg list.yaml holds no settings", "YAML mapping"),
    "missing checkpoint": (["--opts", "CHECKPOINT.RESUME", "no.pt"], "CHECKPOINT.RESUME: no file no.pt", "last.pt"),
    "file for a folder": (["--opts", "OUTPUT", "list.yaml"], "OUTPUT list.yaml is a file", "name a folder"),
    "unknown fault": (["--fault", "null-idx"], "no fault is called 'null-idx'", "did you mean null-index?"),
    "unknown fault in a setting": (["--opts", "FAULT", "nope"], "no fault is called 'nope'", "--fault list"),
    "two faults": (["--fault", "null-index", "--opts", "FAULT", "lr-spike"], "contradict each other", "one of them"),
    "out of range": (["--opts", "TRAIN.EPOCHS", "0"], "TRAIN.EPOCHS is 0", "between 1 and"),
    "below range": (["--opts", "DATA.WORDS", "-5"], "DATA.WORDS is -5", "between 0 and"),
    "no heads": (["--opts", "MODEL.HEADS", "0"], "MODEL.HEADS is 0", "between 1 and"),
    "nan": (["--opts", "TRAIN.LR", "nan"], "TRAIN.LR is nan", "between 1e-09 and"),
    "unknown choice": (["--opts", "TRAIN.AMP", "fp8"], "TRAIN.AMP is 'fp8'", "one of off, bf16, fp16"),
    "unknown metric": (["--opts", "EARLY_STOP.METRIC", "val/los"], "METRIC is 'val/los'", "one of val/loss, val/chain"),
    "steps and epochs": (["--opts", "SCHEDULE.VALIDATION_STEPS", "5"], "contradict each other", "set one of them to 0"),
    "end above start": (["--opts", "LOSS.NULL_MASKING.START", "0.1"], "END 0.5 is above START 0.1", "exchange"),
    "heads": (["--opts", "MODEL.HEADS", "5"], "MODEL.WIDTH 96 is not a multiple of MODEL.HEADS 5", "95 is"),
    "intervals": (["--opts", "SCHEDULE.METRICS.STEP_INTERVAL", "7"], "not a multiple of STEP_INTERVAL 7", "multiple"),
    "stop without validation": (
        ["--opts", "EARLY_STOP.PATIENCE", "2", "SCHEDULE.VALIDATION_EPOCHS", "0"],
        "nothing is ever validated", "set SCHEDULE.VALIDATION_EPOCHS",
    ),
    "fp16 and GradNorm": (
        ["--opts", "TRAIN.AMP", "fp16", "LOSS.GRADNORM.ENABLED", "True"],
        "TRAIN.AMP fp16 and LOSS.GRADNORM contradict each other", "use bf16",
    ),
}  # fmt: skip


@pytest.fixture
def wrong_files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with files that are wrong, and the process in it."""
    monkeypatch.chdir(tmp_path)
    texts = {
        "broken": "a: [",
        "list": "- 1",
        "unknown": "DATA: {NOPE: 1}",
        "typed": "TRAIN: {LR: [1, 2]}",
        "off": "TRAIN: {AMP: off}",
    }
    for name, text in texts.items():
        (tmp_path / f"{name}.yaml").write_text(text)
    (tmp_path / "binary.yaml").write_bytes(b"\xff\xfe\x00")
    return tmp_path


def assert_two_lines(text: str, what: str, next_step: str) -> None:
    lines = text.splitlines()
    assert len(lines) == 2 and all(line.startswith("taxa: ") for line in lines), lines
    assert what in lines[0] and next_step in lines[1], lines


@pytest.mark.usefixtures("wrong_files")
@pytest.mark.parametrize("name", WRONG)
def test_a_wrong_config_is_two_lines(taxa_modules: Any, name: str, capsys: Any) -> None:
    """What is wrong, and what to do next."""
    words, what, next_step = WRONG[name]
    with pytest.raises(SystemExit) as error:
        taxa_modules.config.load_config(words)
    assert error.value.code == 2
    assert_two_lines(capsys.readouterr().err, what, next_step)


@pytest.mark.parametrize("name", ["unknown key", "text for a number", "missing file", "steps and epochs"])
def test_a_wrong_config_ends_the_program(wrong_files: Path, name: str) -> None:
    words, what, next_step = WRONG[name]
    done = run_taxa(*words, cwd=wrong_files)
    assert done.returncode == 2 and done.stdout == ""
    assert_two_lines(done.stderr, what, next_step)
    assert [path.name for path in wrong_files.iterdir() if path.suffix != ".yaml"] == [], "nothing is written"


@pytest.mark.parametrize("late", ["", "0", "1"])
def test_of_two_ranks_one_says_it(tmp_path: Path, late: str) -> None:
    """Whichever of them is there first."""
    hold = tmp_path / "hold.sh"
    hold.write_text(f'[ "$LOCAL_RANK" = "{late}" ] && sleep 3\nexec {sys.executable} "$@"\n')
    launched = ["torchrun", "--standalone", "--nproc-per-node=2", "--no-python", "sh", str(hold)]
    done = run_command([*launched, str(TAXA / "train.py"), "--opts", "TRAIN.LRR", "1"], tmp_path)
    assert done.code != 0 and [line for line in done.stderr.splitlines() if line.startswith("taxa: ")] == [
        "taxa: --opts: there is no setting TRAIN.LRR",
        "taxa: did you mean TRAIN.LR?",
    ]


def test_under_tdbg_a_wrong_config_is_the_same(tmp_path: Path) -> None:
    words = [sys.executable, "-m", "tdbg", "run", "--flag", "LOSS.NULL_MASKING", "--", sys.executable]
    done = run_command([*words, str(TAXA / "train.py"), "--opts", "TRAIN.LRR", "1"], tmp_path)
    assert done.code == 2 and "Traceback" not in done.stderr
    assert_two_lines(
        "\n".join(line for line in done.stderr.splitlines() if line.startswith("taxa: ")), "TRAIN.LRR", "TRAIN.LR?"
    )


def test_what_a_file_may_say(taxa_modules: Any, tmp_path: Path) -> None:
    """Whole numbers for fractions, numbers in powers of ten, a heading with nothing below, texts that look like numbers."""
    file = tmp_path / "a.yaml"
    debug = "DEBUG: {PROFILER: '30:32', AUTOGRAD_ANOMALY: raise}"
    file.write_text(f"TRAIN: {{LR: 1, WEIGHT_DECAY: 1e-3, AMP: 'off'}}\nLOSS:\nOUTPUT: 12\n{debug}\n")
    config = taxa_modules.config.load_config(["--cfg", str(file), "--opts", "META.ENABLED", "false"])
    assert config.TRAIN.LR == 1.0 and config.TRAIN.WEIGHT_DECAY == 1e-3 and config.OUTPUT == "12"
    assert (
        config.DEBUG.PROFILER == "30:32" and config.DEBUG.AUTOGRAD_ANOMALY == "raise" and config.META.ENABLED is False
    )


def test_a_fault_named_by_a_setting_brings_its_settings(taxa_modules: Any) -> None:
    config = taxa_modules.config.load_config(["--opts", "FAULT", "smoothing-far"])
    assert config.FAULT == "smoothing-far" and config.LOSS.SMOOTHING.ENABLED


@pytest.mark.parametrize(
    ("words", "what", "next_step"),
    [
        (("DATA.WORDS", "60"), "give no batch of 128 on 1 rank(s)", "a larger DATA.WORDS"),
        (("CHECKPOINT.RESUME", "text.pt"), "text.pt is no checkpoint of this program", "last.pt"),
        (("CHECKPOINT.RESUME", "other.pt"), "it lacks what train.py saves", "last.pt"),
        (("CHECKPOINT.RESUME", "narrow.pt", "MODEL.WIDTH", "96"), "narrow.pt holds another model", "give MODEL"),
    ],
)  # fmt: skip
def test_what_shows_only_later(
    taxa_modules: Any, wrong_files: Path, words: tuple[str, ...], what: str, next_step: str, capsys: Any
) -> None:
    """Too few words, files that are no checkpoints, or hold another model."""
    few = ("DATA.WORDS", "200", "DATA.BATCH_SIZE", "32", "TRAIN.MAX_STEPS", "4", "SCHEDULE.MASKED_EPOCHS", "0")

    def train(*more: str) -> None:
        taxa_modules.train.Training(taxa_modules.config.load_config(["--opts", *more])).train_epochs()

    (wrong_files / "text.pt").write_text("hello")
    torch.save({"model": {}}, wrong_files / "other.pt")
    if "narrow.pt" in words:
        train(*few, "MODEL.WIDTH", "32", "OUTPUT", ".")
        (wrong_files / "last.pt").rename("narrow.pt")
    capsys.readouterr()
    with pytest.raises(SystemExit) as error:
        train(*(() if "DATA.WORDS" in words else few), *words)
    assert error.value.code == 2
    said = [line for line in capsys.readouterr().err.splitlines() if line.startswith("taxa: ")]
    assert_two_lines("\n".join(said), what, next_step)


def test_early_stopping_waits_for_what_is_measured(taxa_modules: Any, wrong_files: Path) -> None:
    """Each metric that may be named is one of a validation pass; where all of its samples are NaN, the wait goes on."""
    few = ("DATA.WORDS", "400", "DATA.BATCH_SIZE", "32", "SCHEDULE.MASKED_EPOCHS", "0", "TRAIN.EPOCHS", "9")
    training = taxa_modules.train.Training(
        taxa_modules.config.load_config(["--opts", *few, "EARLY_STOP.PATIENCE", "2"])
    )
    assert set(taxa_modules.checks.CHOICES["EARLY_STOP.METRIC"]) <= set(training.validation_pass("val"))
    with torch.no_grad():
        training.model.backbone.shared.weight.fill_(float("nan"))
    training.validate()
    assert training.stopper.counter == 1 and not training.stopper.early_stop
    training.validate()
    assert training.stopper.early_stop


# The program

TINY = ("DATA.WORDS", "600", "DATA.BATCH_SIZE", "32", "TRAIN.WARMUP", "5", "LOSS.GRADNORM.ENABLED", "True",
        "LOSS.GRADNORM.INTERVAL", "4", "AUGMENT.ENABLED", "True", "TRAIN.MAX_STEPS", "24")  # fmt: skip


def test_a_resumed_run_ends_where_it_would_have(
    taxa_modules: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Stopped in the middle of an epoch, and gone on with from its checkpoint: the same weights, bit by bit."""
    monkeypatch.chdir(tmp_path)

    def train(*more: str) -> Any:
        config = taxa_modules.config.load_config(["--opts", *TINY, "SCHEDULE.CHECKPOINT_EPOCHS", "0", *more])
        torch.manual_seed(0)
        training = taxa_modules.train.Training(config)
        training.train_epochs()
        return training

    whole = train("SCHEDULE.CHECKPOINT_STEPS", "9", "OUTPUT", "a")
    state = torch.load("a/last.pt", weights_only=True)
    assert state["step"] == 18 and state["batches"] > 0, "in the middle of an epoch"
    resumed = train("CHECKPOINT.RESUME", "a/last.pt", "SCHEDULE.CHECKPOINT_STEPS", "0")
    assert resumed.step == whole.step == 24 and resumed.epoch == whole.epoch
    for name, value in whole.model.state_dict().items():
        assert torch.equal(value, resumed.model.state_dict()[name]), name
    assert resumed.gradnorm.weights == whole.gradnorm.weights


def test_a_resumed_run_goes_on_with_its_run_of_wandb(tmp_path: Path) -> None:
    """Offline, by two processes: the same id, and the rows after the checkpoint once more, value for value."""
    words = [*TINY, "TRAIN.DEVICE", "cpu", "WANDB.ENABLED", "True", "SCHEDULE.METRICS.WANDB_INTERVAL", "3",
             "SCHEDULE.METRICS.STEP_INTERVAL", "1", "SCHEDULE.CHECKPOINT_EPOCHS", "0"]  # fmt: skip
    quiet = {"WANDB_MODE": "offline", "WANDB_SILENT": "true"}
    whole = run_taxa("--opts", *words, "SCHEDULE.CHECKPOINT_STEPS", "9", "OUTPUT", "whole", cwd=tmp_path, env=quiet)
    more = ("SCHEDULE.CHECKPOINT_STEPS", "0", "CHECKPOINT.RESUME", "whole/last.pt", "OUTPUT", "resumed")
    resumed = run_taxa("--opts", *words, *more, cwd=tmp_path, env=quiet)
    assert (whole.returncode, resumed.returncode) == (0, 0), whole.stderr + resumed.stderr
    (first,), (second,) = load_runs(tmp_path / "whole"), load_runs(tmp_path / "resumed")
    assert first["ended"] and second["ended"] and first["id"] == second["id"] == second["config"]["run_id"]
    was, again = _index_values(first), _index_values(second)
    assert {step for step, _ in again} == {20, 21, 24} < {step for step, _ in was}, "and no row of before"
    assert len(again) > 20 and again == {key: was[key] for key in again}


def _index_values(found: dict[str, Any]) -> dict[tuple[int, str], Any]:
    """(step, key) -> value of what a run of W&B holds of the training itself: no times, no memory, no constants."""
    return {
        (row["global_step"], key): value
        for row in found["history"]
        for key, value in row.items()
        if "/" in key and not key.startswith("schedule/") and "_sec" not in key and not key.endswith("_MB")
    }


def test_it_runs_without_tdbg(tmp_path: Path) -> None:
    """A module of that name which cannot be imported stands in its way."""
    (tmp_path / "tdbg.py").write_text("raise ImportError('not here')")
    done = run_taxa("--opts", *TINY, "TRAIN.DEVICE", "cpu", cwd=tmp_path, env={"PYTHONPATH": str(tmp_path)})
    assert done.returncode == 0, done.stderr
    assert done.stderr.splitlines() == [
        "taxa: tdbg is not installed: no diagnostics, and metrics go to the console alone"
    ]
    assert "val/acc1_language" in done.stdout and "done: 24 steps" in done.stdout


def test_a_flag_of_a_technique_that_is_off_is_told(taxa_modules: Any, capsys: Any) -> None:
    words = ["--opts", "DEBUG.LOSS.NULL_MASKING", "True", "LOSS.NULL_MASKING.ENABLED"]
    taxa_modules.debugging.tell_idle(taxa_modules.config.load_config([*words, "True"]))
    assert capsys.readouterr().err == ""
    taxa_modules.debugging.tell_idle(taxa_modules.config.load_config([*words, "False"]))
    said = "taxa: LOSS.NULL_MASKING has nothing to tell: LOSS.NULL_MASKING.ENABLED is off\n"
    assert capsys.readouterr().err == said
    assert list(taxa_modules.debugging.SPEAKS_OF) == [
        flag for flag in taxa_modules.config.FLAGS if flag.startswith("LOSS.")
    ]


def test_pages_of_an_evaluation(tmp_path: Path) -> None:
    from tdbg.pages.outputs import load_debug_outputs

    assert run_taxa("--opts", *TINY, "OUTPUT", "out", cwd=tmp_path).returncode == 0
    done = subprocess.run(
        warm_command(
            [sys.executable, str(TAXA / "eval.py"), "out/last.pt", "--part", "val", "--pages", "pages", "--words", "20"]
        ),
        cwd=tmp_path, env=build_environment({}), capture_output=True, text=True, timeout=150,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert "family" in done.stdout
    folder = next((tmp_path / "pages").rglob("*")).parent
    words = [line.split()[0] for line in done.stdout.splitlines() if line]
    assert words[0] == "val:" and folder.is_dir()
    assert callable(load_debug_outputs)
