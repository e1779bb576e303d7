"""What each technique does: trains baselines and variants with several seeds, and prints the table of README.md.

python effects.py --out effects.jsonl [--seeds 0 1 2 3 4] [--words 6000] [--epochs 8]; a started file is gone on with.
All is measured on the whole test part, which training never sees; settings are those of config.py, none was tuned on it.
"""

import argparse
import io
import json
import statistics
from collections import Counter
from contextlib import redirect_stderr, redirect_stdout
from pathlib import Path

import config as configuration
import data
import torch
from eval import evaluate
from languages import NULL_INDEX, RANKS
from train import Training

VARIANTS: dict[str, tuple[str, ...]] = {
    "plain model": (),
    "without meta-features": ("META.ENABLED", "False"),
    "label smoothing from the tree": ("LOSS.SMOOTHING.ENABLED", "True"),
    "null masking": ("LOSS.NULL_MASKING.ENABLED", "True"),
    "class weighting": ("LOSS.CLASS_WEIGHTING.ENABLED", "True"),
    "GradNorm": ("LOSS.GRADNORM.ENABLED", "True"),
    "augmentation": ("AUGMENT.ENABLED", "True"),
}
COLUMNS = (*RANKS, "macro_recall", "mistake_distance")
T_95 = {2: 12.71, 3: 4.30, 4: 3.18, 5: 2.78, 6: 2.57, 8: 2.36, 10: 2.26}  # of Student, two-sided, by number of pairs


def majority(words: int) -> dict[str, float]:
    """The figures of answering with the most common class of the training words."""
    train, test = data.Words("train", words=words), data.Words("test")
    found = {}
    for at, rank in enumerate(RANKS):
        labels = train.labels_NR[:, at]
        common = Counter(labels[labels != NULL_INDEX].tolist()).most_common(1)[0][0]
        own = test.labels_NR[:, at]
        found[rank] = float((own[own != NULL_INDEX] == common).float().mean())
    return found


def train_variant(settings: tuple[str, ...], seed: int, words: int, epochs: int) -> dict[str, float]:
    """Train once, without a word, and measure on the test part."""
    opts = ("SEED", seed, "DATA.WORDS", words, "TRAIN.EPOCHS", epochs, "SCHEDULE.MASKED_EPOCHS", 0)
    config = configuration.load_config(
        ["--opts", *map(str, opts), *settings, "SCHEDULE.VALIDATION_EPOCHS", str(epochs)]
    )
    torch.manual_seed(seed)
    with redirect_stdout(io.StringIO()), redirect_stderr(io.StringIO()):
        training = Training(config)
        training.train_epochs()
    hidden = () if config.META.ENABLED else tuple(data.COMPONENTS)
    scores = evaluate(training.model, data.Words("test"), hidden)
    return {**scores.accuracy, "macro_recall": scores.macro_recall, "mistake_distance": scores.mistake_distance}


def table(rows: list[dict[str, object]], words: int) -> str:
    """Markdown: mean and standard deviation over seeds; marked where the paired difference to the plain model is sure."""
    lines = [
        "| | language | branch | family | mean recall of languages | distance of mistakes |",
        "|---|---|---|---|---|---|",
    ]
    base = majority(words)
    lines.append("| majority class | " + " | ".join(f"{100 * base[rank]:.1f}" for rank in RANKS) + " | | |")
    plain = {row["seed"]: row for row in rows if row["variant"] == "plain model"}
    for variant in VARIANTS:
        own = {row["seed"]: row for row in rows if row["variant"] == variant}
        cells = []
        for column in COLUMNS:
            scale, digits = (1, 3) if column == "mistake_distance" else (100, 1)
            values = [scale * float(str(row[column])) for row in own.values()]
            pairs = [
                scale * (float(str(row[column])) - float(str(plain[seed][column])))
                for seed, row in own.items()
                if seed in plain
            ]
            cell = (
                f"{statistics.mean(values):.{digits}f} ± {statistics.stdev(values):.{digits}f}"
                if len(values) > 1
                else ""
            )
            if variant != "plain model" and len(pairs) > 1:
                mean, spread = statistics.mean(pairs), statistics.stdev(pairs)
                if abs(mean) > T_95[len(pairs)] * spread / len(pairs) ** 0.5:
                    cell += f" **({mean:+.{digits}f})**"
            cells.append(cell)
        lines.append(f"| {variant} | " + " | ".join(cells) + " |")
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(description="Measure what each technique does.")
    parser.add_argument("--out", type=Path, required=True, help="a line a run")
    parser.add_argument("--seeds", type=int, nargs="+", default=list(range(5)))
    parser.add_argument("--words", type=int, default=6_000)
    parser.add_argument("--epochs", type=int, default=8)
    asked = parser.parse_args()
    torch.set_num_threads(1)
    asked.out.touch()
    rows = [json.loads(line) for line in asked.out.read_text(encoding="utf-8").splitlines()]
    done = {(row["variant"], row["seed"]) for row in rows}
    for seed in asked.seeds:
        for variant, settings in VARIANTS.items():
            if (variant, seed) not in done:
                rows.append(
                    {"variant": variant, "seed": seed, **train_variant(settings, seed, asked.words, asked.epochs)}
                )
                with asked.out.open("a", encoding="utf-8") as file:
                    file.write(json.dumps(rows[-1]) + "\n")
    print(table(rows, asked.words))


if __name__ == "__main__":
    main()
