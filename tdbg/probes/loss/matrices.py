"""Matrices between classes: distances that are none, and rows of mass that go astray."""

from collections.abc import Sequence

import torch
from torch import Tensor

from tdbg.core.tables import format_count, join_limited
from tdbg.probes.loss.arithmetic import format_number, get_class_name, sum_tolerance, to_host
from tdbg.probes.loss.loss_report import Fault, build_argument_error
from tdbg.probes.loss.taxonomy_reports import Distances, SmoothingMatrix

ALL_MIDDLES = 512  # classes up to which every triangle is checked
SOME_MIDDLES = 256
TOLERANCE = 1e-5  # of the largest distance
SHOWN_ROWS = 16


def square(values: Tensor, name: str) -> Tensor:
    """Its values on the host, float64 [C, C]."""
    found = to_host(values if isinstance(values, Tensor) else torch.as_tensor(values)).double()
    if found.ndim != 2 or found.shape[0] != found.shape[1] or not len(found):
        raise build_argument_error(f"{name} has shape {list(found.shape)}", "give a square tensor [C, C]")
    return found


def check_distances(
    d_CC: Tensor, names: Sequence[str] | None, largest: float | None, *, ultrametric: bool
) -> Distances:
    """Range, diagonal, symmetry, triangles."""
    size = len(d_CC)
    finite = torch.isfinite(d_CC)
    clean = torch.where(finite, d_CC, 0.0)
    bound = TOLERANCE * max(float(clean.abs().max()), 1e-300)
    pairs = torch.triu(torch.ones_like(d_CC, dtype=torch.bool), 1)
    between = clean[pairs | pairs.T] if size > 1 else clean.new_zeros(1)
    levels = between.unique()
    gap = (clean - clean.T).abs()
    report = Distances(
        classes=size,
        least=float(between.min()),
        largest=float(between.max()),
        mean=float(between.mean()),
        levels=levels[:16].tolist(),
        not_finite=int((~finite).sum()),
        negative=int((clean < -bound).sum()),
        beyond=0 if largest is None else int((clean > largest * (1 + TOLERANCE)).sum()),
        zero_pairs=int(((clean.abs() <= bound) & pairs).sum()),
        off_diagonal=int((clean.diagonal().abs() > bound).sum()),
        asymmetric_pairs=int(((gap > bound) & pairs).sum()),
        asymmetry=float(gap.max()),
    )
    worst = _triangles(clean, bound, report)
    report.findings = _distance_faults(report, gap, worst, names, largest, ultrametric=ultrametric)
    return report


def _triangles(d_CC: Tensor, bound: float, report: Distances) -> dict[str, tuple[float, int, int, int]]:
    """Count the triples that break each inequality; returns the worst of each: by how much, a, b, c."""
    size = len(d_CC)
    middles = range(size) if size <= ALL_MIDDLES else [i * size // SOME_MIDDLES for i in range(SOME_MIDDLES)]
    worst = {"triangle": (0.0, 0, 0, 0), "ultrametric": (0.0, 0, 0, 0)}
    counts = {"triangle": 0, "ultrametric": 0}
    for b in middles:
        to, out = d_CC[:, b, None], d_CC[None, b, :]
        for kind, limit in (("triangle", to + out), ("ultrametric", torch.maximum(to, out))):
            over = d_CC - limit
            over.fill_diagonal_(0.0)
            over[b, :] = 0.0
            over[:, b] = 0.0
            counts[kind] += int((over > bound).sum())
            most = int(over.argmax())
            if float(over.reshape(-1)[most]) > max(worst[kind][0], bound):
                worst[kind] = (float(over.reshape(-1)[most]), most // size, b, most % size)
    report.middles = len(middles)
    report.broken_triangles, report.broken_ultrametric = counts["triangle"], counts["ultrametric"]
    report.is_ultrametric = not counts["ultrametric"]
    return worst


def _distance_faults(
    report: Distances,
    gap: Tensor,
    worst: dict[str, tuple[float, int, int, int]],
    names: Sequence[str] | None,
    largest: float | None,
    *,
    ultrametric: bool,
) -> list[Fault]:
    found = []

    def add(what: str, title: str, evidence: str, try_next: str) -> None:
        cause = "the matrix was filled from a broken hierarchy, in part, or with classes in another order"
        found.append(Fault("TD-L009", title, "error", what, [evidence], cause, try_next))

    if report.asymmetric_pairs:
        a, b = divmod(int(gap.argmax()), report.classes)
        add(
            "symmetry",
            f"the distance matrix is not symmetric in {format_count(report.asymmetric_pairs, 'pair')}",
            f"{get_class_name(names, a)} to {get_class_name(names, b)} and back differ by {format_number(report.asymmetry)}",
            "fill both triangles from one loop over pairs",
        )
    beyond = f", {report.beyond} above {largest:g}" if largest is not None and report.beyond else ""
    bad = report.negative + report.not_finite + report.off_diagonal + report.beyond
    if bad:
        add(
            "range",
            "the distance matrix holds values that are no distances",
            f"{report.negative} negative, {report.not_finite} not finite, {report.off_diagonal} on the diagonal{beyond}",
            "distances are finite and not negative; that of a class to itself is 0",
        )
    if report.broken_triangles:
        add(
            "triangle",
            f"the distance matrix breaks the triangle inequality {format_count(report.broken_triangles, 'time')}",
            _broken("d({a}, {c}) exceeds d({a}, {b}) + d({b}, {c}) by {over}", worst["triangle"], names),
            "path lengths in a tree never do: compute them from the parents",
        )
    elif ultrametric and not report.is_ultrametric and not (report.asymmetric_pairs or bad):
        add(
            "ultrametric",
            f"the distance matrix is not ultrametric: {format_count(report.broken_ultrametric, 'triple')} of classes",
            _broken("d({a}, {c}) exceeds max(d({a}, {b}), d({b}, {c})) by {over}", worst["ultrametric"], names),
            "use the height of the lowest common ancestor; or, with leaves at unlike depths, say ultrametric=False",
        )
    return found


def _broken(text: str, triple: tuple[float, int, int, int], names: Sequence[str] | None) -> str:
    over, a, b, c = triple
    return text.format(
        a=get_class_name(names, a), b=get_class_name(names, b), c=get_class_name(names, c), over=format_number(over)
    )


def check_rows(
    given_CC: Tensor, d_CC: Tensor | None, kept: float | None, names: Sequence[str] | None
) -> SmoothingMatrix:
    """Sums, the diagonal, and the order of the neighbours."""
    m_CC, tolerance = square(given_CC, "matrix"), sum_tolerance(given_CC)
    size = len(m_CC)
    if d_CC is not None and d_CC.shape != m_CC.shape:
        raise build_argument_error(
            f"distances are {list(d_CC.shape)}, the matrix is {list(m_CC.shape)}", "give both [C, C]"
        )
    diagonal = m_CC.diagonal()
    report = SmoothingMatrix(
        classes=size,
        row_error=float((m_CC.sum(1) - 1).abs().max()),
        bad_rows=int((~_row_is_fine(m_CC, tolerance)).sum()),
        kept_least=float(diagonal.min()),
        kept_mean=float(diagonal.mean()),
        moved_rows=int((m_CC.max(1).values > diagonal + TOLERANCE).sum()),
        names=None if names is None else [str(name) for name in names],
    )
    for row in range(min(size, SHOWN_ROWS)):
        report.rows.append({"class": row, "kept": float(diagonal[row]), "to": given_away(m_CC[row], row)})
    if d_CC is not None:
        for level in d_CC.unique().tolist()[:SHOWN_ROWS]:
            at = d_CC == level
            report.by_distance.append({"distance": level, "mass": float(m_CC[at].mean()), "pairs": int(at.sum())})
        report.inversions = int(_inverted(m_CC, d_CC).sum())
    said = [f"row {get_class_name(names, row)}" for row in range(size)]
    report.findings = rows_faults(m_CC, said, "the smoothing matrix", tolerance)
    report.findings += mass_faults(m_CC, torch.arange(size), d_CC, kept, said, names, "the smoothing matrix", tolerance)
    return report


def given_away(row_C: Tensor, true: int) -> dict[str, float]:
    """The three other classes that get most of a row's mass, of equal ones the first."""
    others = row_C.clone()
    others[true] = 0.0
    mass, where = others.sort(descending=True, stable=True)
    return {str(int(c)): float(m) for m, c in zip(mass[:3], where[:3], strict=True) if m > 0}


def _row_is_fine(m_NC: Tensor, tolerance: float) -> Tensor:
    return ((m_NC.sum(1) - 1).abs() <= tolerance) & (m_NC >= -TOLERANCE).all(1)  # NaN is not


def _inverted(m_CC: Tensor, d_CC: Tensor) -> Tensor:
    """Rows in which a farther class gets more than a nearer one; the true class itself left out."""
    found = torch.zeros(len(m_CC), dtype=torch.bool)
    for row in range(len(m_CC)):
        others = torch.arange(len(m_CC)) != row
        mass, distance = m_CC[row][others], d_CC[row][others]
        levels, place = distance.unique(return_inverse=True)
        if len(levels) < 2:
            continue
        least = torch.full_like(levels, float("inf")).scatter_reduce(0, place, mass, "amin")
        most = torch.full_like(levels, -float("inf")).scatter_reduce(0, place, mass, "amax")
        nearer = torch.cummin(least, 0).values
        found[row] = bool((most[1:] > nearer[:-1] + TOLERANCE).any())
    return found


def rows_faults(m_NC: Tensor, said: list[str], whose: str, tolerance: float) -> list[Fault]:
    """TD-L007: rows that are no distributions."""
    bad = (~_row_is_fine(m_NC, tolerance)).nonzero().flatten().tolist()
    if not bad:
        return []
    sums = m_NC.sum(1)
    shown = [
        f"{said[row]} sums to {format_number(float(sums[row]))}, least {format_number(float(m_NC[row].min()))}"
        for row in bad
    ]
    return [
        Fault(
            "TD-L007",
            f"{len(bad)} of {format_count(len(m_NC), 'row')} of {whose} do not sum to 1, or hold negative mass",
            "error",
            what=whose,
            evidence=shown[:4],
            cause="rows are not divided by their own sum, or are divided by the column sums",
            try_next="divide each row by its own sum (matrix / matrix.sum(1, keepdim=True)) after all else",
        )
    ]


def mass_faults(
    m_NC: Tensor,
    true_N: Tensor,
    d_CC: Tensor | None,
    kept: float | None,
    said: list[str],
    names: Sequence[str] | None,
    whose: str,
    tolerance: float,
) -> list[Fault]:
    """TD-L008: mass that leaves the true class for others, or goes to far classes rather than near ones."""
    own = m_NC[torch.arange(len(m_NC)), true_N]
    most, where = m_NC.max(1)
    moved = (most > own + TOLERANCE).nonzero().flatten().tolist()
    evidence = [
        f"{said[row]}: {get_class_name(names, int(where[row]))} has {format_number(float(most[row]))}, the true class "
        f"{get_class_name(names, int(true_N[row]))} {format_number(float(own[row]))}"
        for row in moved[:4]
    ]
    title = f"{len(moved)} of {format_count(len(m_NC), 'row')} of {whose} have more mass on another class than on the true one"
    if not moved and kept is not None:
        poor = (own < kept - tolerance).nonzero().flatten().tolist()
        evidence = [f"{said[row]} keeps {format_number(float(own[row]))} of {kept:g}" for row in poor[:4]]
        title = f"{len(poor)} of {format_count(len(m_NC), 'true class', 'keeps')} less mass than meant in {whose}"
    if not evidence and d_CC is not None:
        rows = _inverted(m_NC, d_CC).nonzero().flatten().tolist()
        evidence = [f"rows: {join_limited([said[row] for row in rows])}"] if rows else []
        title = (
            f"in {len(rows)} of {format_count(len(m_NC), 'row')} of {whose} a far class gets more mass than a near one"
        )
    if not evidence:
        return []
    return [
        Fault(
            "TD-L008",
            title,
            "error",
            what=whose,
            evidence=evidence,
            cause="distances are used as similarities (no minus in exp), or rows and labels differ in order",
            try_next="start from a one-hot row, give only the smoothing mass to the others, by exp(-distance)",
        )
    ]
