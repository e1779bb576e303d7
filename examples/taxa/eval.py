"""Evaluate a checkpoint: accuracy by rank of the taxonomy; with --pages DIR, what the model saw in each word.

python eval.py out/last.pt [--part test] [--pages DIR] [--words N]
"""

import argparse
from pathlib import Path
from typing import Any, NamedTuple

import checkpoints
import config as configuration
import data
import torch
from checks import fail
from languages import NULL_INDEX, RANKS
from losses import distances
from model import Classifier
from torch import Tensor, nn
from torch.utils.data import DataLoader


class Scores(NamedTuple):
    """How well a model does on labelled words: shares of 1, by rank of the taxonomy, and for the language more."""

    accuracy: dict[str, float]
    macro_recall: float  # mean over the languages of the share that is found
    mistake_distance: float  # mean height of the common ancestor of a wrong language and the right one, 1 at the root


@torch.no_grad()
def evaluate(model: nn.Module, words: data.Words, hidden: tuple[str, ...] = ()) -> Scores:
    """Accuracy over the labelled words of a part; null is no answer."""
    model.eval()
    found: list[Tensor] = []
    for batch in DataLoader(words, 512):
        meta, shown = data.hide(batch["meta"], components=hidden)
        scores = model(batch["letters"], meta, shown)
        found.append(torch.stack([scores[rank][:, 1:].argmax(1) + 1 for rank in RANKS], 1))
    predicted, labels = torch.cat(found), words.labels_NR
    right, known = predicted == labels, labels != NULL_INDEX
    accuracy = {rank: float(right[known[:, at], at].float().mean()) for at, rank in enumerate(RANKS)}
    own = known[:, 0]
    recalls = [right[labels[:, 0] == label, 0].float().mean() for label in labels[own, 0].unique()]
    apart = distances(data.classes()["language"], 0)[labels[own, 0], predicted[own, 0]]
    wrong = apart[~right[own, 0]]
    return Scores(accuracy, float(torch.stack(recalls).mean()), float(wrong.mean()) if len(wrong) else 0.0)


def load_classifier(path: Path) -> tuple[Classifier, Any]:
    """The model of a checkpoint, and the config it was trained with."""
    if not path.is_file():
        fail(f"no file {path}", "a run of train.py with --opts OUTPUT DIR writes DIR/last.pt")
    state = checkpoints.read_checkpoint(path, torch.device("cpu"))
    config = configuration.defaults()
    config.merge_from_other_cfg(config.load_cfg(state["config"]))
    model = Classifier(len(data.alphabet()), {rank: len(own) for rank, own in data.classes().items()}, config.MODEL)
    model.load_state_dict(state["model"])
    return model, config


def write_pages(model: Classifier, words: data.Words, folder: Path, count: int) -> None:
    """Where the model looks in the first words, and what it makes of them, as pages of tdbg."""
    try:
        from tdbg.debuggers import ActivationStats, Attention, FeatureMap, Inputs, Labels, Outputs
        from tdbg.debuggers.mixins import EvaluationDebugging
        from tdbg.debuggers.sequential import SequentialDebugger
    except ImportError:
        fail("--pages needs tdbg, which is not installed", "pip install tdbg, or leave --pages out")

    class Evaluator(EvaluationDebugging):
        """Hands each batch to the debuggers."""

        def evaluate_words(self) -> None:
            self.on_eval_start()
            for at, batch in enumerate(DataLoader(words, 16)):
                if at * 16 >= count:
                    break
                ids = [row.word for row in words.rows[at * 16 : at * 16 + 16]]
                meta, shown = data.hide(batch["meta"])
                outputs = model(batch["letters"], meta, shown)
                labels = dict(zip(RANKS, batch["labels"].unbind(1), strict=True))
                self.on_eval_step({"inputs": batch["letters"], "labels": labels, "outputs": outputs,
                                   "meta_info": {"idx": ids}})  # fmt: skip
            self.on_eval_end()

    debuggers: list[dict[str, Any]] = [
        {"name": "look", "debugger_config": {"class": Attention, "args": {"layer_name": "backbone.look"}}},
        {"name": "near", "debugger_config": {"class": FeatureMap, "args": {"layer_name": "backbone.near"}}},
        {"name": "shared", "debugger_config": {"class": ActivationStats, "args": {"layer_name": "backbone.shared"}}},
        *({"class": cls, "args": {}} for cls in (Inputs, Labels, Outputs)),
    ]
    evaluator, pages = Evaluator(), SequentialDebugger(debuggers, model, page_size_mb=20)
    evaluator.debug_evaluation(pages, folder)
    with torch.no_grad():
        evaluator.evaluate_words()


def main() -> None:
    parser = argparse.ArgumentParser(description="Evaluate a checkpoint of train.py.")
    parser.add_argument("checkpoint", type=Path)
    parser.add_argument("--part", choices=data.PARTS, default="test")
    parser.add_argument("--pages", type=Path, metavar="DIR", help="write pages there")
    parser.add_argument("--words", type=int, default=64, metavar="N", help="of so many words (64)")
    asked = parser.parse_args()
    model, config = load_classifier(asked.checkpoint)
    words = data.Words(asked.part, words=config.DATA.WORDS, max_letters=config.DATA.MAX_LETTERS)
    scores = evaluate(model, words, () if config.META.ENABLED else tuple(data.COMPONENTS))
    print(f"{asked.part}: {len(words)} words")
    for rank, accuracy in scores.accuracy.items():
        print(f"{rank:10} {100 * accuracy:5.1f} %")
    print(f"languages found, mean over languages {100 * scores.macro_recall:.1f} %")
    if asked.pages:
        write_pages(model, words, asked.pages, asked.words)
        print(f"pages: tdbg inspect-pages ls {asked.pages}")


if __name__ == "__main__":
    main()
