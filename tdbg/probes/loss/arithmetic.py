"""Small arithmetic that the diagnostics share: intervals, bounds of chance, slopes, and words for them."""

import math
from collections.abc import Sequence

import torch
from torch import Tensor

Z_95 = 1.959963984540054  # the normal quantile of 97.5 %
SUM_TOLERANCE = 1e-3
SURPRISE = 13.815510557964274  # -ln(1e-6): beyond this bound chance is no explanation


def compute_wilson_interval(successes: int, trials: int, z: float = Z_95) -> tuple[float, float]:
    """The Wilson score interval of a probability (Wilson 1927); (0, 1) without a trial."""
    if not trials:
        return 0.0, 1.0
    share = successes / trials
    middle = share + z * z / (2 * trials)
    half = z * math.sqrt(share * (1 - share) / trials + z * z / (4 * trials * trials))
    scale = 1 + z * z / trials
    return max((middle - half) / scale, 0.0), min((middle + half) / scale, 1.0)


def compute_surprise(successes: int, trials: int, probability: float) -> float:
    """-ln of a bound on the chance of a count as far off as this one (Hoeffding 1963, theorem 1), in nats.

    probability: the mean of the trials' probabilities, which may differ. Infinite for what cannot happen.
    """
    if not trials:
        return 0.0
    share, total = successes / trials, 0.0
    for seen, asked in ((share, probability), (1 - share, 1 - probability)):
        if seen > 0:
            total += seen * math.log(seen / asked) if asked > 0 else math.inf
    return trials * max(total, 0.0)


def compute_slope(x: Sequence[float], y: Sequence[float]) -> float:
    """The least-squares slope of y over x; 0 where x does not vary."""
    mean_x, mean_y = sum(x) / len(x), sum(y) / len(y)
    spread = sum((a - mean_x) ** 2 for a in x)
    return sum((a - mean_x) * (b - mean_y) for a, b in zip(x, y, strict=True)) / spread if spread > 0 else 0.0


def to_host(values: object) -> Tensor:
    """Values on the host, without their graph; float64 for half and single precision. A tensor, array or list."""
    found = (values if isinstance(values, Tensor) else torch.as_tensor(values)).detach()
    if type(found) is not Tensor and hasattr(found, "to_local"):
        found = found.to_local()
    found = found.cpu()
    return found.double() if found.is_floating_point() else found


def to_vector(values: object, name: str) -> Tensor:
    """One value per class or task, float64 on the host; a tensor, list or array."""
    return to_host(values).double().reshape(-1)


def sum_tolerance(values: object) -> float:
    """How far from 1 a sum of rows may be: one part in a thousand, or what the precision of the values leaves."""
    if not isinstance(values, Tensor) or not values.is_floating_point():
        return SUM_TOLERANCE
    return max(SUM_TOLERANCE, torch.finfo(values.dtype).eps)


def format_number(value: float) -> str:
    """Four digits."""
    return f"{value:.4g}"


def format_share(part: float) -> str:
    """``12.5 %``."""
    return f"{100 * part:.3g} %"


def get_class_name(names: Sequence[str] | None, index: int) -> str:
    """What a class is called: its name, else ``class 3``."""
    return str(names[index]) if names is not None and 0 <= index < len(names) else f"class {index}"
