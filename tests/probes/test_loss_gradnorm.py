"""GradNorm's values: one update worked out by hand, a real one, and each planted mistake."""

import math
from typing import Any

import pytest
import torch
from torch import nn

from tdbg.core.errors import TdbgError
from tdbg.probes.loss import forget, gradnorm_metrics, gradnorm_values

pytestmark = pytest.mark.usefixtures("loss_flags")

SOUND: dict[str, Any] = {
    "losses": {"family": 1.0, "genus": 2.0},
    "initial_losses": {"family": 2.0, "genus": 2.0},
    "norms": {"family": 1.0, "genus": 3.0},
    "weights": {"family": 0.5, "genus": 1.5},
}


def report_gradnorm(**more: Any) -> Any:
    found = gradnorm_metrics(**{**SOUND, **more}, always=True)
    assert found is not None and found.as_dict()
    return found


def list_codes(found: Any) -> list[str]:
    return [fault.code for fault in found.findings]


def test_one_update_by_hand() -> None:
    """Ratios 1/2 and 1, mean 3/4, so rates 2/3 and 4/3; mean norm 2; with alpha 1 the targets are 4/3 and 8/3."""
    found = report_gradnorm(alpha=1.0, targets={"family": 4 / 3, "genus": 3.0})
    assert found.ratios == [0.5, 1.0] and found.rates == pytest.approx([2 / 3, 4 / 3])
    assert found.targets == pytest.approx([4 / 3, 8 / 3])
    assert found.gradnorm_loss == pytest.approx(1 / 3 + 1 / 3) and found.target_gap == pytest.approx(1 / 8)
    assert (found.weight_sum, found.total, found.findings) == (2.0, 2.0, [])
    text = found.records()[0][1]
    assert (
        "family: loss 1 (0.5 of the first), rate 0.6667; norm 1, target 1.333; weight 0.5 (+0 now, +0 in all)" in text
    )
    assert "the program's own targets differ by 12.5 % at most" in text
    assert report_gradnorm(alpha=2.0).targets == pytest.approx([2 * 4 / 9, 2 * 16 / 9])


def test_drift_since_the_first_update() -> None:
    report_gradnorm()
    report_gradnorm(weights={"family": 0.8, "genus": 1.2})
    found = report_gradnorm(weights={"family": 0.9, "genus": 1.1})
    assert found.drift == pytest.approx([0.4, -0.4]) and found.change == pytest.approx([0.1, -0.1])
    assert found.updates == 3 and found.collect_event_values()["drift"] == pytest.approx(0.4)
    assert report_gradnorm(name="another").updates == 1
    forget()
    assert report_gradnorm().drift == [0.0, 0.0]


def test_tensors_lists_and_names() -> None:
    plain = {name: list(value.values()) for name, value in SOUND.items()}
    found = gradnorm_metrics(**plain, always=True)
    assert found is not None and found.tasks == ["task 0", "task 1"] and found.rates == report_gradnorm().rates
    mixed = {**plain, "losses": {"a": torch.tensor(1.0), "b": torch.tensor([2.0])}, "norms": torch.tensor([1.0, 3.0])}
    found = gradnorm_metrics(**mixed, always=True)
    assert found is not None and found.tasks == ["a", "b"] and found.rates == report_gradnorm().rates


class Net(nn.Module):
    """A shared layer and a head per task; ``cut`` detaches a head from it."""

    def __init__(self, cut: str = "") -> None:
        super().__init__()
        torch.manual_seed(0)
        self.shared = nn.Linear(8, 16)
        self.heads = nn.ModuleDict({"family": nn.Linear(16, 3), "genus": nn.Linear(16, 5), "species": nn.Linear(16, 7)})
        self.cut = cut

    def compute_losses(self, seed: int) -> dict[str, torch.Tensor]:
        generator = torch.Generator().manual_seed(seed)
        h_BH = self.shared(torch.randn(32, 8, generator=generator)).relu()
        outputs = {task: head(h_BH.detach() if task == self.cut else h_BH) for task, head in self.heads.items()}
        return {
            task: nn.functional.cross_entropy(out, torch.randint(out.shape[1], (32,), generator=generator))
            for task, out in outputs.items()
        }


def train_gradnorm(fault: str = "", updates: int = 30) -> tuple[list[Any], Net]:
    """GradNorm as in the paper, with one planted mistake; the report of each update."""
    model = Net("genus" if fault == "detached" else "")
    weights = dict.fromkeys(model.heads, 1.0)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    reports, first, shared = [], {}, [model.shared.weight]
    rate = {"collapse": 0.3, "negative": 2.0}.get(fault, 0.025)
    for step in range(updates):
        losses = model.compute_losses(step)
        first = first or {task: float(loss.detach()) for task, loss in losses.items()}
        weight_T = torch.tensor(list(weights.values()), requires_grad=True)
        grads, norms = {}, []
        for place, (task, loss) in enumerate(losses.items()):
            found = torch.autograd.grad(loss, shared, retain_graph=True, allow_unused=True)
            grads[task] = found
            plain = found[0].norm() if found[0] is not None else torch.zeros(())
            norms.append(weight_T[place] * plain)
        norm_T = torch.stack(norms)
        ratio_T = torch.tensor([float(losses[task].detach()) / first[task] for task in losses])
        target_T = norm_T.mean().detach() * (ratio_T / ratio_T.mean()) ** 1.5
        gradient_T = torch.autograd.grad((norm_T - target_T).abs().sum(), weight_T)[0]
        new_T = weight_T.detach() - rate * gradient_T
        if fault == "collapse":
            new_T = torch.tensor([1.0, 0.5**step, 1.0])
        if fault == "negative":
            new_T[0] = -0.2
        if fault != "not renormalised":
            new_T = new_T * 3 / new_T.sum()
        else:
            new_T = new_T * 0.99
        weights = dict(zip(weights, new_T.tolist(), strict=True))
        report = gradnorm_metrics(
            losses, first, norm_T, weights, targets=target_T, shared=grads, name=fault or "sound", always=True
        )
        reports.append(report)
        optimizer.zero_grad()
        total = sum(weights[task] * loss for task, loss in losses.items())
        assert isinstance(total, torch.Tensor)
        total.backward()
        optimizer.step()
    return reports, model


def test_a_sound_training() -> None:
    reports, _ = train_gradnorm()
    assert not any(report.findings for report in reports)
    last = reports[-1]
    assert last.target_gap < 1e-5, "its target norms are those of the paper's formula"
    assert last.shared["genus"]["tensors"] == 1 and last.shared["genus"]["missing"] == 0
    assert last.weight_sum == pytest.approx(3.0) and max(map(abs, last.drift)) > 0.001


@pytest.mark.parametrize(
    ("fault", "code"),
    [("collapse", "TD-L014"), ("not renormalised", "TD-L015"), ("negative", "TD-L016"), ("detached", "TD-L018")],
)
def test_a_training_with_a_mistake(fault: str, code: str) -> None:
    reports, _ = train_gradnorm(fault)
    assert {found for report in reports for found in list_codes(report)} == {code}
    said = next(report for report in reports if report.findings).findings[0]
    assert said.evidence and said.cause and said.try_next
    if fault in ("collapse", "detached"):
        assert "genus" in said.title


def test_a_missing_gradient_shows_in_the_norm_too() -> None:
    assert list_codes(report_gradnorm(norms={"family": 1.0, "genus": 0.0})) == ["TD-L018"]


def test_a_task_without_loss_or_weight_needs_no_gradient() -> None:
    """All of its samples are masked in this batch."""
    assert not report_gradnorm(losses={"family": 1.0, "genus": 0.0}, norms={"family": 1.0, "genus": 0.0}).findings


def test_another_sum_may_be_meant() -> None:
    assert list_codes(report_gradnorm(weights={"family": 0.5, "genus": 0.5})) == ["TD-L015"]
    assert not report_gradnorm(weights={"family": 0.5, "genus": 0.5}, total=1.0).findings


@pytest.mark.parametrize("where", ["losses", "norms", "weights"])
def test_values_that_are_not_finite(where: str) -> None:
    assert "TD-L019" in list_codes(report_gradnorm(**{where: {"family": 1.0, "genus": math.nan}}))


def test_a_first_loss_of_zero_is_survived() -> None:
    found = report_gradnorm(initial_losses={"family": 0.0, "genus": 2.0})
    assert math.isnan(found.ratios[0]) and "nan" in found.as_dict()["ratios"]


def test_every_intermediate_value() -> None:
    values: dict[str, Any] = {
        "norms": torch.tensor([1.0, 3.0]),
        "grads": [torch.arange(100.0).reshape(10, 10), None],
        "loss": 0.25,
        "rates": [0.5, 1.5],
    }
    found = gradnorm_values(values, always=True)
    assert found is not None and [row["name"] for row in found.rows] == [
        "norms",
        "grads[0]",
        "grads[1]",
        "loss",
        "rates",
    ]
    assert found.rows[1]["mean"] == 49.5 and found.rows[1]["norm"] == pytest.approx(math.sqrt(328350))
    assert found.records()[0][1].splitlines()[1:] == [
        "  norms: [1, 3]",
        "  grads[0]: 10x10 float32, norm 573, mean 49.5, min 0, max 99",
        "  grads[1]: missing",
        "  loss: 0.25",
        "  rates: [0.5, 1.5]",
    ]
    assert not found.findings
    found = gradnorm_values({"norms": torch.tensor([1.0, math.inf])}, always=True)
    assert found is not None and list_codes(found) == ["TD-L019"]


@pytest.mark.parametrize("more", [{"norms": [1.0]}, {"weights": {"family": 1.0}}])
def test_what_does_not_fit_is_refused(more: dict[str, Any]) -> None:
    with pytest.raises(TdbgError) as caught:
        report_gradnorm(**more)
    assert caught.value.hint
