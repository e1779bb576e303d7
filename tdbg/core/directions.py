"""Which way of a metric is better: as its name says, or as a program says. The one list of such words."""

import re

from tdbg.core.errors import TdbgError
from tdbg.core.lazy_pattern import lazy_pattern

LOWER = {"loss", "losses", "error", "errors", "err", "mae", "mse", "rmse", "mape", "rmsle", "nll", "bce", "perplexity"}
LOWER |= {"ppl", "bpc", "ece", "eer", "wer", "cer", "ter", "fid", "lpips", "brier", "entropy"}
TIMES = {"runtime", "time", "duration", "latency", "ms", "msec", "sec", "secs", "second", "seconds", "mb"}
HIGHER = {"acc", "accuracy", "accuracies", "f1", "fbeta", "fscore", "auc", "roc", "auroc", "auprc", "map", "ap", "ar"}
HIGHER |= {"precision", "recall", "bleu", "sacrebleu", "chrf", "rouge", "meteor", "r2", "iou", "dice", "jaccard", "top"}
HIGHER |= {"miou", "giou", "psnr", "ssim", "ndcg", "mrr", "mcc", "kappa", "specificity", "sensitivity", "reward"}
HIGHER |= {"success"}
TURNED = {"neg", "negative", "minus", "inv", "inverse", "inverted"}  # of a name with these nobody knows
# What a name with one of these words means is no result, whatever else is in it.
NEVER = {"lr", "learning", "weight", "weights", "scale", "coef", "coefficient", "lambda", "flos", "flops", "count"}
NEVER |= {"num", "counts", "eta", "elapsed", "remaining", "size", "threshold", "momentum", "target", *TURNED}
# These settle a name that says no more: it is none, and its folder is not asked.
NEITHER = {"grad", "norm", "samples", "batches", "batch", "epoch", "epochs", "step", "steps", "tokens", "temperature"}
LOWER_ENDS = ("loss", "losses", "error", "entropy", "perplexity", "runtime")  # of words written together: trainloss
RATES = lazy_pattern(r"(_per_|/)(s|sec|secs|second|seconds)$")
# Words of a metric's name that say of which phase it is.
TRAINING_WORDS = {"train", "training"}
EVALUATION_WORDS = {"val", "valid", "validation", "eval", "evaluation", "test", "testing", "dev"}
BETTER = {"min": False, "max": True}


def direction_of(name: str, *around: str) -> bool | None:
    """Whether more of a metric is better, by its name: True (accuracy), False (loss, error, time), None: it says nothing.

    In any spelling: ``val_loss``, ``trainLoss``, ``CrossEntropy``, ``total loss``. around: what is asked where the name
    has no word that is known, such as the folder of TensorBoard's ``Loss/train``.
    """
    for text in (name, *around):
        found = _infer_direction(text)
        if found != "":
            return None if found == "neither" else found == "higher"
    return None


def certain_direction(name: str) -> bool | None:
    """The same where a wrong guess would accuse somebody: None too for times, rates and words of both ways."""
    words = words_of(name)
    lower, higher = bool(words & LOWER), bool(words & HIGHER)
    return None if lower == higher or words & NEVER else higher


def parse_direction(direction: object, of: str) -> bool | None:
    """What a program says is better: True or "max", False or "min", None for neither. Raises TdbgError for the rest."""
    if direction is None or isinstance(direction, bool):
        return direction
    if isinstance(direction, str) and direction in BETTER:
        return BETTER[direction]
    what = f"the direction of {of!r} cannot be {direction!r}"
    raise TdbgError(what, 'write "min" or False (lower is better), "max" or True (higher is), or None for neither')


def _infer_direction(name: str) -> str:
    """``higher``, ``lower``, ``neither`` where the name settles that, or nothing."""
    words = words_of(name)
    if words & NEVER:
        return "neither"
    if RATES.search(name.lower()):
        return "higher"
    if words & LOWER or any(word.endswith(LOWER_ENDS) for word in words):
        return "lower"
    if words & HIGHER or any(word.endswith("accuracy") for word in words):
        return "higher"
    if words & TIMES:
        return "lower"
    return "neither" if words & NEITHER else ""


def words_of(name: str) -> set[str]:
    """The words of a name: parted by signs and by capitals, also without the numbers behind them."""
    parts = re.findall(r"[^\W_]+", name)
    found = {part.lower() for part in parts}
    for part in parts:
        found |= {one.lower() for one in re.findall(r"[A-Z]+(?![a-z])\d*|[A-Z]?[^\WA-Z]+", part)}
    return found | {word.rstrip("0123456789") for word in found if word[-1:].isdigit()}
