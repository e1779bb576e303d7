"""What can be wrong with null masking, and when it is certain."""

import math
from collections import Counter

import torch
from torch import Tensor

from tdbg.core.tables import format_count
from tdbg.probes.loss.arithmetic import SURPRISE, compute_surprise, format_number, format_share
from tdbg.probes.loss.loss_report import Fault
from tdbg.probes.loss.null_targets import Targets

MAX_CLASSES = 100_000  # whose samples are counted from call to call
FEW = 3  # masked samples that say nothing yet
LEAST_GAP = 0.25  # of the share of nulls that is expected
ALL_NULL_CALLS, ALL_NULL_SAMPLES = 3, 64  # nothing but nulls in so many calls in a row, of so many samples


class Seen:
    """What the calls so far have seen of one task, in training or in validation."""

    def __init__(self) -> None:
        self.calls = self.samples = self.nulls = 0
        self.asked_nulls = self.masked_nulls_asked = 0  # where a probability was asked for
        self.masked_nulls = 0
        self.asked_sum = 0.0  # of the probability, over those nulls
        self.counts: Counter[int] = Counter()
        self.all_masked_calls = self.all_masked_samples = 0  # in a row, up to this call

    def add_batch(self, found: Targets, asked: float | None) -> None:
        """One more batch."""
        nulls, masked = int(found.nulls_N.sum()), int((found.nulls_N & found.masked_N).sum())
        self.calls += 1
        self.samples += found.sample_count
        self.nulls += nulls
        self.masked_nulls += masked
        if asked is not None:
            self.asked_nulls += nulls
            self.masked_nulls_asked += masked
            self.asked_sum += asked * nulls
        if len(self.counts) < MAX_CLASSES:
            self.counts.update(found.counts)
        whole = found.sample_count > 0 and bool(found.masked_N.all())
        self.all_masked_calls = self.all_masked_calls + 1 if whole else 0
        self.all_masked_samples = self.all_masked_samples + found.sample_count if whole else 0


def faults_of(
    task: str, found: Targets, seen: Seen, asked: float | None, share: float | None, *, training: bool
) -> list[Fault]:
    """The faults of one task, those that explain others first; what they explain is not told as well."""
    if not found.sample_count:
        return []
    where = f" in task {task}" if task else ""
    cause = _taken_for_indices(where, found) or _wrong_index(where, found, seen, share if training else None)
    cause = cause or _diagnose_missed_null_labels(where, found, seen, share if training else None)
    if cause is None:
        rest = [_find_all_masked(where, found, seen)]
        if training:
            rest.append(_not_applied(where, found, seen, asked))
        else:
            rest.append(_in_validation(where, found, asked))
    else:
        rest = [cause]
    faults = [fault for fault in rest if fault is not None]
    for fault in faults:
        fault.what = task
    return faults


def _taken_for_indices(where: str, found: Targets) -> Fault | None:
    """TD-L003: labels with a row a sample were compared, element by element, with the null index."""
    evidence = ""
    if found.format == "indices":
        if not _is_flattened_one_hot(found):
            return None
        evidence = f"{format_count(found.sample_count, 'target')} of 0 and 1, one 1 in each {found.classes}: one-hot rows, laid end to end"
    elif found.per_element:
        evidence = f"{found.per_element} has a value per element {found.shape}, not one per sample"
    else:
        taken = found.found_N if found.found_N is not None else found.masked_N
        equal = found.raw == found.null_index
        for word, compared in (("any", equal.any(1)), ("all", equal.all(1))):
            silent = word == "any" and found.null_index not in (0, 1) and found.found_N is not None
            if (
                (bool(compared.any()) or silent)
                and torch.equal(taken, compared)
                and not torch.equal(taken, found.nulls_N)
            ):
                evidence = (
                    f"what was taken for null is (targets == {found.null_index}).{word}(1): {int(taken.sum())} of "
                    f"{format_count(found.sample_count, 'sample')}, where {int(found.nulls_N.sum())} are null"
                )
                break
    if not evidence:
        return None
    return Fault(
        "TD-L003",
        f"{found.format if found.format != 'indices' else 'one-hot'} targets are taken for class indices{where}",
        "error",
        evidence=[evidence],
        cause="targets with a row a sample (mixup, label smoothing, one-hot) reached code that compares class indices",
        try_next=f"find nulls with targets.argmax(1) == {found.null_index}, or before the targets are made one-hot",
    )


def _is_flattened_one_hot(found: Targets) -> bool:
    size = found.classes or 0
    if size < 3 or found.sample_count % size or found.sample_count // size < 2 or not set(found.counts) <= {0, 1}:
        return False
    return bool((found.labels_N.view(-1, size).sum(1) == 1).all())


def _wrong_index(where: str, found: Targets, seen: Seen, share: float | None) -> Fault | None:
    """TD-L002: another value than the null index stands for no label."""
    index = found.null_index
    evidence = _odd_value(found, seen) or _describe_mistaken_null_class(found) or _unlikely_share(seen, index, share)
    if not evidence:
        return None
    return Fault(
        "TD-L002",
        f"the null index {index} is wrong{where}",
        "error",
        evidence=[evidence],
        cause="an index off by one, a class map without its null entry, or another ignore value in the data",
        try_next="print the class map of this task: which index do samples without a label get?",
    )


def _odd_value(found: Targets, seen: Seen) -> str:
    """A value that can be no class."""
    classes, index = found.classes, found.null_index
    if found.format != "indices":
        assert classes is not None
        if 0 <= index < classes or bool((found.raw.sum(1) == 0).any()):
            return ""
        return f"one-hot rows have {format_count(classes, 'class')}, so that no row can be class {index}"
    odd = {
        value: count
        for value, count in found.counts.items()
        if value != index and (value < 0 or (classes is not None and value >= classes))
    }
    if not odd:
        return ""
    value, count = max(odd.items(), key=lambda item: item[1])
    limit = f" of {classes}" if classes is not None else ""
    return f"{count} of {format_count(found.sample_count, 'target', 'is')} {value}, which is no class{limit} and not the null index {index}"


def _describe_mistaken_null_class(found: Targets) -> str:
    """The program took the samples of another class for null."""
    if found.found_N is not None and bool(found.found_N.any()):
        value = _only_class(found.labels_N[found.found_N])
        if value is not None and value != found.null_index and torch.equal(found.found_N, found.labels_N == value):
            return f"the program took class {value} for null ({int(found.found_N.sum())} of {format_count(found.sample_count, 'sample')})"
    masked = int(found.masked_N.sum())
    if masked >= FEW and masked < found.sample_count:
        value = _only_class(found.labels_N[found.masked_N])
        if value is not None and value != found.null_index:
            nulls = int(found.nulls_N.sum())
            return f"all {format_count(masked, 'masked sample', 'is')} of class {value}; {nulls} are of class {found.null_index}"
    return ""


def _only_class(labels_N: Tensor) -> int | None:
    values = labels_N.unique()
    return int(values[0]) if len(values) == 1 else None


def _unlikely_share(seen: Seen, index: int, share: float | None) -> str:
    """Too many or too few nulls, as no sampling would give them; none at all is TD-L001."""
    if share is None or not seen.nulls or abs(seen.nulls / seen.samples - share) < LEAST_GAP * share:
        return ""  # the same few batches again and again are no independent samples
    if compute_surprise(seen.nulls, seen.samples, share) <= SURPRISE:
        return ""
    text = f"{seen.nulls} of {format_count(seen.samples, 'target', 'is')} {index} = {format_share(seen.nulls / seen.samples)}, where the"
    text += f" data has {format_share(share)} nulls"
    fitting = [v for v, n in seen.counts.items() if v != index and compute_surprise(n, seen.samples, share) <= SURPRISE]
    fitting.sort(key=lambda value: abs(seen.counts[value] / seen.samples - share))
    if fitting and abs(fitting[0] - index) <= 2:
        text += f"; class {fitting[0]} has {format_share(seen.counts[fitting[0]] / seen.samples)}"
    return text


def _diagnose_missed_null_labels(where: str, found: Targets, seen: Seen, share: float | None) -> Fault | None:
    """TD-L001: the data has nulls and none is seen."""
    nulls, evidence = int(found.nulls_N.sum()), ""
    if found.found_N is not None and nulls and not bool(found.found_N.any()):
        evidence = f"{nulls} of {format_count(found.sample_count, 'target', 'is')} null, and the program found none"
    elif share and not seen.nulls and compute_surprise(0, seen.samples, share) > SURPRISE:
        chance = math.exp(-compute_surprise(0, seen.samples, share))
        evidence = f"0 of {format_count(seen.samples, 'target', 'is')} null, the data has {format_share(share)}: chance {format_number(chance)}"
    if not evidence:
        return None
    return Fault(
        "TD-L001",
        f"no nulls are seen{where} although the data has them",
        "warning",
        evidence=[evidence],
        cause="samples without a label are dropped or relabelled on the way, or their index is another one",
        try_next="count the null labels in a batch as it leaves the data loader, and again where the loss gets it",
    )


def _find_all_masked(where: str, found: Targets, seen: Seen) -> Fault | None:
    """TD-L004: nothing is left of the task's loss."""
    labelled = int((~found.nulls_N).sum())
    inverted = labelled >= FEW and labelled < found.sample_count and torch.equal(found.masked_N, ~found.nulls_N)
    if not inverted and not bool(found.masked_N.all()):
        return None
    lasting = seen.all_masked_calls >= ALL_NULL_CALLS and seen.all_masked_samples >= ALL_NULL_SAMPLES
    if found.sample_count < FEW or not (labelled or lasting):
        return None
    evidence = f"all {format_count(found.sample_count, 'sample', 'is')} masked, {labelled} of them with a label"
    if inverted:
        evidence = f"the {format_count(labelled, 'sample')} with a label are masked, the {format_count(found.sample_count - labelled, 'null', 'is')} not"
    elif not labelled:
        evidence = f"all {format_count(seen.all_masked_samples, 'sample')} in the last {format_count(seen.all_masked_calls, 'call')}: null and masked"
    return Fault(
        "TD-L004",
        f"everything {'with a label ' if inverted else ''}is masked{where}",
        "error",
        evidence=[evidence],
        cause="the mask is inverted or too broad" if labelled else "the task has no labels in this data",
        try_next="a mean over no sample is NaN or 0: look at what the loss makes of an empty task",
    )


def _not_applied(where: str, found: Targets, seen: Seen, asked: float | None) -> Fault | None:
    """TD-L005: nulls are masked more or less often than asked for."""
    if asked is None:
        return None
    nulls, masked = int(found.nulls_N.sum()), int((found.nulls_N & found.masked_N).sum())
    counted = (masked, nulls, asked)
    if compute_surprise(*counted) <= SURPRISE:
        if not seen.asked_nulls:
            return None
        counted = (seen.masked_nulls_asked, seen.asked_nulls, min(seen.asked_sum / seen.asked_nulls, 1.0))
        if compute_surprise(*counted) <= SURPRISE:
            return None
    masked, nulls, mean = counted
    always, never = masked == nulls, masked == 0
    how = "always" if always else "never" if never else "at another rate"
    return Fault(
        "TD-L005",
        f"the masking probability is not applied{where}: nulls are masked {how}",
        "warning",
        evidence=[f"{masked} of {nulls} nulls are masked = {format_share(masked / nulls)}, asked {format_share(mean)}"],
        cause="the probability is read from another key, compared the wrong way round, or drawn once for all",
        try_next="mask with torch.rand(B) < probability, a draw for each sample, from the schedule's value of this step",
    )


def _in_validation(where: str, found: Targets, asked: float | None) -> Fault | None:
    """TD-L006: masks are drawn in validation."""
    nulls, masked = int(found.nulls_N.sum()), int((found.nulls_N & found.masked_N).sum())
    if not masked or (masked == nulls and asked in (None, 1.0)):
        return None
    wanted = "nothing" if asked is None else format_share(asked)
    return Fault(
        "TD-L006",
        f"nulls are masked at random in validation{where}",
        "warning",
        evidence=[f"{masked} of {nulls} nulls are masked where {wanted} was asked for: the figures hang on the draw"],
        cause="the training loss, with its schedule, also judges validation",
        try_next="in validation mask none of the nulls, or all of them in a pass of its own; test model.training",
    )
