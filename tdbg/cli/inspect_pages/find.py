"""`tdbg inspect-pages find`: the tensors whose figures fulfil a condition."""

from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any

from tdbg.core.command_spec import JSON, Argument, Command, Option, Options
from tdbg.pages.selection.locations import GROUPING, SELECTION, Grouped

if TYPE_CHECKING:
    from tdbg.core.conditions import Test
    from tdbg.pages.read.datapoint import Datapoint, Tensor
    from tdbg.pages.read.page_set import PageSet
    from tdbg.pages.selection.datapoint_numbers import DatapointNumbers
    from tdbg.pages.selection.grouping import GroupMembership
    from tdbg.pages.selection.iteration import ReadErrors
    from tdbg.pages.stats.value_stats import ValueStats

HELP = """Find tensors by their figures: nan > 0 or absmax > 1e4.

    A condition compares figures of a tensor (nan, inf, zero, count, mean, std, min, max, absmax, zero_share, median, q01,
    q05, q25, q75, q95, q99), its bytes, the rank, step, epoch and page of its datapoint, and scalar.NAME or
    scalar["any name"], numbers captured with it or on record of its step (loss, grad_norm); joined by and, or, not,
    + - * / and parentheses; abs, isnan, isinf, finite. A condition on datapoints alone reads no tensor. Of a batch
    that was stored once, each sample is tested by itself. --group-by and --scores count the matches in each group.
    Exits with 1 if nothing matches.

    Examples:
        tdbg inspect-pages find 'nan > 0 or absmax > 1e4'
        tdbg inspect-pages find tdbg_runs/train 'zero_share > 0.9' --layer 'layers.*' --sort zero_share --limit 20
        tdbg inspect-pages find 'scalar.loss > 5' --sort scalar.loss
        tdbg inspect-pages find 'zero_share > 0.9' --group-by loss
    """
ARGUMENT = Argument(
    "PATH|CONDITION",
    "Optional: a run, a folder of pages or a page; the newest run if left out. Then the condition, as one word.",
)
OPTIONS: Options = {
    "sort": Option(("--sort",), "FIELD", "Sort by this figure, or by a sum of several, the largest first."),
    "limit": Option(("--limit",), "N", "Print at most N; 0: all."),
    "layer": Option(("--layer",), "GLOB", "Only layers of this pattern, or below this name; repeatable."),
    **GROUPING,
    **SELECTION,
    "json": JSON,
}
PLACES = ("rank", "step", "epoch", "page")
PLACE = ("key", "rank", "step", "epoch")
BASE = ("nan", "inf", "mean", "std", "absmax")
EXACT = 1 << 20  # values: of more, the quantiles are those of a histogram
EXAMPLE = "tdbg inspect-pages find 'nan > 0 or absmax > 1e4'"


class FindArgs(Grouped):
    """What `find` can be asked."""

    sort: str = ""
    limit: int = 0
    layer: Sequence[str] = ()
    json: bool = False


class Facts:
    """What a condition is asked about: a tensor of a datapoint, figures that were kept instead of one, or the datapoint
    alone, which has no path. Figures are worked out once."""

    def __init__(
        self,
        datapoint: "Datapoint",
        path: str = "",
        tensor: "Tensor | None" = None,
        measure: "Callable[[], ValueStats] | None" = None,
        known: "DatapointNumbers | None" = None,
    ) -> None:
        self.datapoint, self.path, self.tensor = datapoint, path, tensor
        self.group = ""
        self._measure, self._known = measure, known
        self._figures: dict[str, object] | None = None

    def get_value(self, name: str) -> float | None:
        """What it says of a name; None for what it does not know."""
        from tdbg.pages.read.tensor_values import to_real

        if name.startswith("scalar."):
            found = self._known.resolve_value(self.datapoint, name[7:]) if self._known else None
        elif name in PLACES:
            found = getattr(self.datapoint, name)
        elif name == "bytes":
            found = self.tensor.nbytes if self.tensor else None
        else:
            found = self.get_figures().get(name)
        return to_real(found)

    def get_figures(self) -> dict[str, object]:
        """By name."""
        if self._figures is None:
            self._figures = self._measure().as_dict() if self._measure else {}
        return self._figures


def build_vocabulary() -> Any:
    """The names of a condition on tensors."""
    from tdbg.core.conditions import Vocabulary
    from tdbg.pages.stats.value_stats import NAMES, QUANTILE_NAMES

    return Vocabulary(
        numbers=(*NAMES, "absmax", "zero_share", *QUANTILE_NAMES, "bytes", *PLACES),
        value=lambda name, facts: facts.get_value(name),
        family="scalar",
        sample="absmax",
        example=f"write it such as: {EXAMPLE}",
        split="split it in two commands",
    )


def find_tensors(args: FindArgs) -> int:
    """Print what fits; 1 if nothing does."""
    from tdbg.core.conditions import Test
    from tdbg.core.output import print_messages
    from tdbg.core.tables import format_count, safe
    from tdbg.pages.read.problem_messages import say_problems
    from tdbg.pages.selection.datapoint_numbers import DatapointNumbers
    from tdbg.pages.selection.grouping import GroupMembership
    from tdbg.pages.selection.iteration import ReadErrors
    from tdbg.pages.selection.locations import is_place, open_pages, place_and_word

    if args.limit < 0:
        raise _make_error("--limit cannot be negative", "write --limit 0 or more")
    place, text = place_and_word(args.paths, "CONDITION", EXAMPLE)
    if not place and is_place(text):
        raise _make_error(f"{text} is a path: the condition is missing", f"write it such as: {EXAMPLE}")
    condition = Test(text, build_vocabulary())
    order = Test(args.sort, build_vocabulary(), number=True) if args.sort else None
    troubles, looked = ReadErrors(), Counter[str]()
    with open_pages(place) as pages:
        known = DatapointNumbers(pages)
        members = GroupMembership(pages, args) if args.group_by or args.scores else None
        found = _find_matches(pages, args, (condition, order), troubles, looked, known, members)
        say_problems(pages, drops=False)
    for name in known.in_vain():
        print_messages(
            f"no datapoint has a scalar {safe(name)}; what they have: {safe(', '.join(known.names)) or 'none'}"
        )
    names = list(dict.fromkeys([*condition.names, *(order.names if order else ())]))
    kept = found[: args.limit] if args.limit else found
    if args.json:
        _print_json(kept, names, _count_shares(found, looked))
    elif kept:
        _print_matches(kept, names, grouped=members is not None)
    thing = "tensor" if found and found[0].path else "datapoint"
    left = f", the first {len(kept)} are shown" if len(kept) < len(found) else ""
    if members is not None and found:
        shares = _count_shares(found, looked).items()
        print_messages(
            "; ".join(f"{safe(group)}: {fit:,} of {format_count(of, thing)} fit" for group, (fit, of) in shares)
        )
    print_messages(
        f"{len(found):,} of {format_count(looked.total(), thing)} fit{left}"
        if found
        else "no datapoint matches the condition"
    )
    return troubles.report_remaining() or (0 if found else 1)


def _make_error(what: str, hint: str) -> Exception:
    from tdbg.core.errors import TdbgError

    return TdbgError(what, hint)


def _find_matches(
    pages: "PageSet",
    args: FindArgs,
    tests: "tuple[Test, Test | None]",
    troubles: "ReadErrors",
    looked: Counter[str],
    known: "DatapointNumbers",
    members: "GroupMembership | None",
) -> list[Facts]:
    """What fits, in order. looked: counts what was looked at, by group."""
    from tdbg.core.errors import TdbgError

    condition, order = tests
    found: list[tuple[float, Facts]] = []
    for facts in _iter_facts(pages, args, [*condition.names, *(order.names if order else ())], known):
        group = "" if members is None else members.find_group(facts.datapoint)
        if group is None:  # without a score
            continue
        facts.group = group
        try:
            looked[group] += 1
            if not condition.is_met(facts):
                continue
            facts.get_figures()  # what cannot be read is told now, and not in the middle of the table
            value = order.evaluate(facts) if order else None
        except TdbgError as error:
            troubles.report(facts.datapoint, error)
            continue
        found.append((_compute_sort_key(value), facts))
    if order:
        found.sort(key=lambda pair: pair[0])  # stable: equal ones stay in the order of capture
    return [facts for _, facts in found]


def _compute_sort_key(value: float | bool | None) -> float:
    """To sort by: what is no number first, then the largest, at last what is unknown."""
    if value is None:
        return float("inf")
    return float("-inf") if value != value else -float(value)


def _iter_facts(pages: "PageSet", args: FindArgs, names: Sequence[str], known: "DatapointNumbers") -> Iterator[Facts]:
    """What the condition is to be asked about."""
    from tdbg.pages.selection.iteration import iter_sample_tensors, make_progress
    from tdbg.pages.selection.layer_globs import match_layers
    from tdbg.pages.selection.locations import select_datapoints
    from tdbg.pages.stats.value_stats import QUANTILE_NAMES, parse_recorded_stats

    is_chosen = match_layers(args.layer)
    if not args.layer and all(name in PLACES or name.startswith("scalar.") for name in names):
        yield from (Facts(datapoint, known=known) for datapoint in select_datapoints(pages.rows(), args))
        return
    quantiles = any(name in QUANTILE_NAMES for name in names)
    with make_progress(pages, args, is_chosen, "find") as progress:
        for datapoint, tensors in iter_sample_tensors(select_datapoints(pages, args)):
            for tensor in tensors:
                if is_chosen(tensor.path):
                    yield Facts(datapoint, tensor.path, tensor, _make_measurer(tensor, quantiles), known)
                    progress.advance(tensor.nbytes)
            for path, figures in parse_recorded_stats(datapoint).items() if not tensors else ():
                if is_chosen(path):
                    yield Facts(datapoint, path, None, partial(_return_figures, figures), known)


def _return_figures(figures: "ValueStats") -> "ValueStats":
    return figures


def _make_measurer(tensor: "Tensor", quantiles: bool) -> "Callable[[], ValueStats]":
    def measure_figures() -> "ValueStats":
        from tdbg.pages.read.tensor_values import value_count
        from tdbg.pages.stats import value_stats
        from tdbg.pages.stats.streaming_stats import StreamingStats

        if quantiles and value_count(tensor.dtype, tensor.shape) <= EXACT:
            return value_stats.of_array(tensor.array())
        tally = StreamingStats(bins=quantiles)
        tally.add_tensor(tensor)
        return tally.compute_stats()

    return measure_figures


def _count_shares(found: Sequence[Facts], looked: Counter[str]) -> dict[str, tuple[int, int]]:
    """Of each group, how many fit, and how many were looked at."""
    fit = Counter(facts.group for facts in found)
    return {group: (fit[group], looked[group]) for group in sorted(looked)}


def _print_matches(found: Sequence[Facts], names: Sequence[str], *, grouped: bool) -> None:
    from tdbg.core.tables import format_shape, print_table

    more = [name for name in names if name not in (*BASE, *PLACES)]
    head = ("group", *PLACE) if grouped else PLACE

    def build_head_cells(facts: Facts) -> tuple[object, ...]:
        return (facts.group, *_build_place_cells(facts)) if grouped else _build_place_cells(facts)

    if not found[0].path:
        columns = (*head, "phase", *more)
        rows = (
            (*build_head_cells(facts), facts.datapoint.phase or None, *map(facts.get_value, more)) for facts in found
        )
        print_table(columns, rows)
        return
    shapes = ("figures" if facts.tensor is None else format_shape(facts.tensor.shape) for facts in found)
    print_table(
        (*head, "tensor", "shape", *BASE, *more),
        (
            (
                *build_head_cells(facts),
                facts.path,
                size,
                *map(facts.get_figures().get, BASE),
                *map(facts.get_value, more),
            )
            for facts, size in zip(found, shapes, strict=True)
        ),
    )


def _build_place_cells(facts: Facts) -> tuple[object, ...]:
    datapoint = facts.datapoint
    return datapoint.key, datapoint.rank, datapoint.step, datapoint.epoch


def _print_json(found: Sequence[Facts], names: Sequence[str], shares: dict[str, tuple[int, int]]) -> None:
    from tdbg.core.output import print_json
    from tdbg.core.tables import to_json_value

    rows = []
    for facts in found:
        row: dict[str, Any] = dict(zip(PLACE, _build_place_cells(facts), strict=True))
        row |= {"group": facts.group} if facts.group else {}
        row |= {"phase": facts.datapoint.phase, "page": facts.datapoint.page, "row": facts.datapoint.row}
        if facts.path:
            row |= {"tensor": facts.path, "figures": facts.get_figures()}
        if facts.tensor is not None:
            row |= {"dtype": facts.tensor.dtype.name, "shape": facts.tensor.shape, "bytes": facts.tensor.nbytes}
        row["scalars"] = {name[7:]: facts.get_value(name) for name in names if name.startswith("scalar.")}
        rows.append(row)
    document: dict[str, object] = {
        name: sum(one[at] for one in shares.values()) for at, name in ((1, "looked_at"), (0, "fit"))
    }
    if any(shares):
        document["groups"] = {group: {"fit": fit, "looked_at": of} for group, (fit, of) in shares.items()}
    print_json("pages-find", to_json_value({**document, "found": rows}))


COMMAND = Command(find_tensors, FindArgs, HELP, OPTIONS, ARGUMENT)
