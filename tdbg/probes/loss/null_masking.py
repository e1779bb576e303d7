"""LOSS.NULL_MASKING: how samples without a label are found, counted, and left out of the loss."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, ClassVar, TypeVar

from torch import Tensor

from tdbg.core.tables import format_count
from tdbg.probes.loss.arithmetic import compute_wilson_interval, format_share
from tdbg.probes.loss.loss_report import Report, build_argument_error, diagnostic, get_state
from tdbg.probes.loss.null_faults import Seen, faults_of
from tdbg.probes.loss.null_targets import Targets, read_targets

FLAG = "LOSS.NULL_MASKING"
T = TypeVar("T")


@dataclass(slots=True, kw_only=True)
class NullTask:
    """One task of a batch: its targets, its nulls, what was masked; and the same over all calls so far."""

    task: str
    format: str  # indices, one-hot or soft
    shape: list[int]
    dtype: str
    device: str
    samples: int
    contents: dict[str, int]  # class -> samples, the most frequent first, at most 8
    classes_seen: int
    null_index: int
    nulls: int
    how: str  # how they are told from the others
    found: int | None  # what the program itself took for null, if it says so
    masked: int
    masked_nulls: int
    probability: float | None  # asked for
    realised: float | None  # the share of nulls that are masked
    interval: tuple[float, float]  # its 95 % Wilson interval
    calls: int
    all_samples: int
    all_nulls: int
    all_masked_nulls: int
    all_interval: tuple[float, float]


@dataclass(slots=True, kw_only=True)
class NullMasking(Report):
    """What masking did to one batch, task by task."""

    flag: ClassVar[str] = FLAG
    part: ClassVar[str] = "SUMMARY"

    name: str
    training: bool
    tasks: list[NullTask] = field(default_factory=list)
    position: float | None = None  # in the schedule, 0 to 1

    def records(self) -> list[tuple[str, str]]:
        where = f"{self.name + ', ' if self.name else ''}{'training' if self.training else 'validation'}"
        return [
            ("INPUT", "\n".join([f"{where}, targets before masking", *map(_format_input_line, self.tasks)])),
            ("INTERNAL", "\n".join([f"{where}, nulls and masks", *map(_format_internal_line, self.tasks)])),
            (self.part, f"{where}: {self._format_summary()}"),
        ]

    def _format_summary(self) -> str:
        nulls, masked = self._sum_tasks("nulls"), self._sum_tasks("masked")
        text = f"{format_count(self._sum_tasks('samples'), 'target')} in {format_count(len(self.tasks), 'task')}, {nulls} null, {masked} masked"
        if self.position is not None:
            text += f", schedule at {format_share(self.position)}"
        found = ", ".join(dict.fromkeys(fault.code for fault in self.findings))
        return f"{text}; {found or 'no fault found'}"

    def collect_event_values(self) -> dict[str, object]:
        found: dict[str, Any] = {"training": self.training} | {
            name: self._sum_tasks(name) for name in ("samples", "nulls", "masked")
        }
        found |= {"name": self.name} if self.name else {}
        return found | ({"position": self.position} if self.position is not None else {})

    def _sum_tasks(self, name: str) -> int:
        return sum(getattr(task, name) for task in self.tasks)


@diagnostic(FLAG)
def null_masking(
    targets: Tensor | Mapping[str, Tensor],
    masked: Tensor | Mapping[str, Tensor],
    *,
    null_index: int | Mapping[str, int] = 0,
    nulls: Tensor | Mapping[str, Tensor] | None = None,
    classes: int | Mapping[str, int] | None = None,
    probability: float | Mapping[str, float] | None = None,
    expected_share: float | Mapping[str, float] | None = None,
    training: bool = True,
    schedule: tuple[int, int, int] | None = None,
    name: str = "",
    always: bool = False,
) -> NullMasking:
    """Tell of one batch how null labels were found, counted and masked; three records: INPUT, INTERNAL, SUMMARY.

    Call it once the masks are drawn, before the loss is averaged. One task, or a mapping task -> value for each.
    targets: as the loss gets them, before masking: class indices int [B], or one-hot or soft labels [B, C].
    masked: bool [B], True where the sample is left out of this task's loss.
    null_index: the class that stands for "no label" (or an ignore index such as -100). A one-hot row of zeros is
        null too.
    nulls: bool [B], what the program itself took for null; compared with what the targets say.
    classes: C, for targets that are indices.
    probability: of masking a null, as asked for, 0 to 1. In validation nothing is drawn: ask for 1 in a pass that
        leaves all nulls out, for 0 or nothing in one that counts them.
    expected_share: of nulls in the data set (0 to 1), as the sampler draws it, from a count over its labels; it is
        compared in training.
    schedule: (step, first step, last step) of a gradual schedule. name: of the loss, if there are several.
    Counts go on from call to call, apart for training and validation (`forget` ends that).
    The realised probability has a 95 % Wilson interval; findings rest on bounds of 1 in 10^6.
    Findings: TD-L001 no nulls although the data has them, TD-L002 wrong null index, TD-L003 one-hot taken for indices,
    TD-L004 everything masked, TD-L005 probability not applied, TD-L006 masking in validation.
    Cost: 0.5 ms a task at B = 64 on the host; reads the targets.
    Source: Wilson 1927 (interval); Hoeffding 1963, theorem 1 (the bound).
    """
    named = targets if isinstance(targets, Mapping) else {"": targets}
    report = NullMasking(name=name, training=training)
    for task, tensor in named.items():
        found = read_targets(
            tensor,
            _select_task_value(masked, task, "masked"),
            _select_task_value(nulls, task, "nulls"),
            int(_select_task_value(null_index, task, "null_index")),
            _select_task_value(classes, task, "classes"),
        )
        asked = _select_task_value(probability, task, "probability")
        if asked is not None and not 0 <= asked <= 1:
            raise build_argument_error(
                f"probability {asked} of task {task!r} is not in 0..1", "give the chance of masking a null, 0 to 1"
            )
        kept = get_state(Seen, "null_masking", name, task, "train" if training else "eval")
        kept.add_batch(found, asked)
        report.tasks.append(_build_task_row(task, found, asked, kept))
        share = _select_task_value(expected_share, task, "expected_share")
        report.findings += faults_of(task, found, kept, asked, share, training=training)
    if schedule is not None:
        step, first, last = schedule
        report.position = min(max((step - first) / max(last - first, 1), 0.0), 1.0)
    return report


def _select_task_value(value: object, task: str, what: str) -> Any:
    """What belongs to one task: its own value of a mapping, or the one for all."""
    if not isinstance(value, Mapping):
        return value
    if task not in value and value and task:
        raise build_argument_error(f"{what} has no task {task!r}", f"it has {', '.join(map(str, value))}")
    return value.get(task) if task else next(iter(value.values()), None)


def _build_task_row(task: str, found: Targets, asked: float | None, kept: Seen) -> NullTask:
    nulls, masked_nulls = int(found.nulls_N.sum()), int((found.masked_N & found.nulls_N).sum())
    return NullTask(
        task=task,
        format=found.format,
        shape=found.shape,
        dtype=found.dtype,
        device=found.device,
        samples=found.sample_count,
        contents={str(index): count for index, count in found.counts.most_common(8)},
        classes_seen=len(found.counts),
        null_index=found.null_index,
        nulls=nulls,
        how=found.how,
        found=None if found.found_N is None else int(found.found_N.sum()),
        masked=int(found.masked_N.sum()),
        masked_nulls=masked_nulls,
        probability=asked,
        realised=masked_nulls / nulls if nulls else None,
        interval=compute_wilson_interval(masked_nulls, nulls),
        calls=kept.calls,
        all_samples=kept.samples,
        all_nulls=kept.nulls,
        all_masked_nulls=kept.masked_nulls,
        all_interval=compute_wilson_interval(kept.masked_nulls, kept.nulls),
    )


def _format_input_line(row: NullTask) -> str:
    contents = ", ".join(f"{index}: {count}" for index, count in row.contents.items())
    more = (
        f" and {format_count(row.classes_seen - len(row.contents), 'more class')}"
        if row.classes_seen > len(row.contents)
        else ""
    )
    shape = "x".join(map(str, row.shape)) or "scalar"
    return f"  {row.task or 'targets'}: {row.format} {shape} {row.dtype} on {row.device}; {contents}{more}"


def _format_internal_line(row: NullTask) -> str:
    text = f"  {row.task or 'targets'}: {row.nulls} of {row.samples} null ({row.how})"
    if row.found is not None:
        text += f", the program found {row.found}"
    text += f"; masked {row.masked}, of the nulls {row.masked_nulls}"
    if row.nulls:
        text += f" = {format_share(row.realised or 0)} [{_format_interval(row.interval)}]"
    text += f", asked {format_share(row.probability)}" if row.probability is not None else ""
    if row.masked > row.masked_nulls:
        text += f"; {row.masked - row.masked_nulls} masked that are no nulls"
    text += f"; in {format_count(row.calls, 'call')} {row.all_nulls} of {row.all_samples} null, {row.all_masked_nulls} of them masked"
    return text + (f" [{_format_interval(row.all_interval)}]" if row.all_nulls else "")


def _format_interval(interval: tuple[float, float]) -> str:
    low, high = interval
    return f"{100 * low:.1f} to {100 * high:.1f} %"
