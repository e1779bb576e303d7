"""What the figures of loss calls prove to be wrong, and what they do not."""

import math

import torch

from tdbg.core.tables import format_count
from tdbg.probes.loss.arithmetic import format_number, format_share
from tdbg.probes.loss.class_weighting import weigh_classes
from tdbg.probes.loss.loss_report import Fault
from tdbg.probes.loss_calls.call_arguments import MEAN, LossCall
from tdbg.probes.loss_calls.target_figures import TargetFigures

LEAST_SAMPLES = 200  # before classes are judged by their counts
SAMPLES_A_CLASS = 20
SIGMAS = 5.0  # between the most frequent and the rarest class
UPSIDE_DOWN = 0.25  # how near, in nats, pos_weight lies to positives / negatives where it was divided upside down
UNEVEN = 1.0  # nats between positives and negatives from which on that tells
NAN = "its mean over nothing is NaN"


def find_empty_mean(call: LossCall, figures: TargetFigures) -> Fault | None:
    """TD-L004 or TD-L020: a mean that divides by 0, since nothing of the batch counts."""
    if call.reduction != MEAN:
        return None
    if not call.count:
        return Fault(
            "TD-L004",
            f"{call.name} was given a batch without a target: {NAN}",
            "error",
            what=call.name,
            evidence=[f"the targets are empty, the input has shape {list(call.shape)}"],
            cause="a mask (input[mask], target[mask]) that selects nothing in the batch",
            try_next="leave the loss of such a batch out, or add up and divide by max(count, 1)",
        )
    if call.kind != "classes":
        return None
    if figures.ignored == call.count:
        return Fault(
            "TD-L004",
            f"every target of the batch is ignored by {call.name}: {NAN}",
            "error",
            what=call.name,
            evidence=[f"{call.count} of {format_count(call.count, 'target', 'is')} ignore_index {call.ignore_index}"],
            cause="a batch in which no sample has a label",
            try_next="leave the loss of such a batch out, or use reduction='sum' and divide by max(count, 1)",
        )
    left = call.count - figures.ignored
    if figures.zero_weight != left:
        return None
    ignored = f"; {figures.ignored} more equal ignore_index {call.ignore_index}" if figures.ignored else ""
    return Fault(
        "TD-L020",
        f"the class weights of the batch sum to 0 in {call.name}: its weighted mean divides by them",
        "error",
        what=call.name,
        evidence=[f"{format_count(left, 'target')} of classes that weigh 0{ignored}"],
        cause="a batch that holds nothing but classes of weight 0",
        try_next="leave the loss of such a batch out, or use reduction='sum' and divide by the weights, at least 1e-8",
    )


def find_counted_nulls(call: LossCall, figures: TargetFigures, null_index: int) -> Fault | None:
    """TD-L021: targets of the null class that the loss learns. With reduction 'none' the program may mask them itself."""
    if not figures.counted_nulls or not call.reduction:
        return None
    return Fault(
        "TD-L021",
        f"targets of the null class {null_index} count in {call.name}",
        "warning",
        what=call.name,
        evidence=[
            f"{figures.counted_nulls} of {format_count(call.count, 'target', 'is')} {null_index}, neither ignored "
            f"(ignore_index {call.ignore_index}) nor weighted 0"
        ],
        cause="ignore_index or the class weights name another class than the one that stands for 'no label'",
        try_next=f"give the loss ignore_index={null_index}, or weight 0 for this class",
    )


def find_bad_rows(call: LossCall, figures: TargetFigures) -> Fault | None:
    """TD-L007: soft targets that are no distributions. Rows without any mass are masked ones."""
    if not figures.bad_rows:
        return None
    return Fault(
        "TD-L007",
        f"{figures.bad_rows} of {format_count(figures.rows, 'row')} of the targets of {call.name} do not sum to 1, or hold negative mass",
        "warning",
        what=call.name,
        evidence=[f"sums of rows from {format_number(figures.least_sum)} to {format_number(figures.largest_sum)}"],
        cause="mixed or smoothed rows that are not divided by their sum, several labels in a row, or logits as targets",
        try_next="divide each row by its own sum; of several labels use binary_cross_entropy_with_logits",
    )


def find_whole_smoothing(call: LossCall) -> Fault | None:
    """TD-L008: nothing is left of the true class."""
    if call.smoothing < 1.0 or call.kind == "rows":
        return None
    return Fault(
        "TD-L008",
        f"label_smoothing {call.smoothing:g} of {call.name} leaves nothing of the true class",
        "error",
        what=call.name,
        evidence=[f"each of the {format_count(call.classes, 'class')} gets 1/{call.classes} of every target"],
        cause="the mass to keep was given; label_smoothing takes the mass to spread",
        try_next="0.1 is usual: the true class then keeps 0.9",
    )


def find_bad_weights(call: LossCall, weights: list[float]) -> Fault | None:
    """TD-L011: weights that are negative or not finite."""
    bad = [place for place, weight in enumerate(weights) if not math.isfinite(weight) or weight < 0]
    if not bad:
        return None
    name = "pos_weight" if call.kind == "labels" else "weight"
    return Fault(
        "TD-L011",
        f"{len(bad)} of {len(weights)} class weights are negative or not finite ({name} of {call.name})",
        "error",
        what=call.name,
        evidence=[", ".join(f"class {place} {format_number(weights[place])}" for place in bad[:4])],
        cause="weights are 1 / count, and a class without samples made them infinite",
        try_next="clamp the counts at 1 before dividing",
    )


def find_misfit(call: LossCall, weights: list[float], counts: list[float], samples: float) -> list[Fault]:
    """TD-L011 and TD-L012: weights that contradict the classes seen. Silent until chance is no explanation."""
    if call.kind == "labels":
        return _find_upside_down(call, weights, counts, samples)
    used = [count for count, weight in zip(counts, weights, strict=True) if count and weight > 0]
    if samples < max(LEAST_SAMPLES, SAMPLES_A_CLASS * len(counts)) or len(used) < 2:
        return []
    most, least = max(used), min(used)
    if (most - least) / math.sqrt(most + least) < SIGMAS or most < 2 * least:
        return []
    weighed = weigh_classes(torch.tensor(weights), torch.tensor(counts))
    for fault in weighed.findings:
        fault.severity, fault.what = "warning", call.name
        fault.title = fault.title.replace("(weights)", f"(weight of {call.name})")
    return weighed.findings


def _find_upside_down(call: LossCall, weights: list[float], counts: list[float], samples: float) -> list[Fault]:
    """pos_weight is negatives / positives; its inverse weighs down what is rare."""
    if samples < LEAST_SAMPLES:
        return []
    wrong = []
    for place, (weight, positives) in enumerate(zip(weights, counts, strict=True)):
        if not 0 < positives < samples or weight <= 0:
            continue
        odds = math.log(positives / (samples - positives))
        if abs(odds) > UNEVEN and abs(math.log(weight) - odds) < UPSIDE_DOWN:
            wrong.append(place)
    if not wrong or 2 * len(wrong) < len(weights):
        return []
    first = wrong[0]
    return [
        Fault(
            "TD-L012",
            f"pos_weight of {call.name} is upside down: it is positives / negatives",
            "warning",
            what=call.name,
            evidence=[
                f"label {first}: {format_share(counts[first] / samples)} of {format_count(int(samples), 'sample', 'is')} positive, pos_weight "
                f"{format_number(weights[first])}; so are {len(wrong)} of {format_count(len(weights), 'label')}"
            ],
            cause="the odds of the positives are used where their inverse is meant",
            try_next="pos_weight = negatives / positives",
        )
    ]
