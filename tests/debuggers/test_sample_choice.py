"""Which samples `--capture-samples` keeps, for labels and predictions of every kind."""

from typing import Any

import pytest
import torch
from torch import Tensor
from torch.nn import functional

from tdbg.core.capture import SampleSelection
from tdbg.core.errors import TdbgError
from tdbg.debuggers import sample_choice
from tdbg.debuggers.sample_choice import SampleChooser, score_rows

B = 6


@pytest.fixture(autouse=True)
def _seed() -> None:
    torch.manual_seed(0)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("", SampleSelection()),
        ("worst", SampleSelection("worst", 1)),
        (" Worst:4 ", SampleSelection("worst", 4)),
        ("wrong", SampleSelection("wrong", 1)),
        ("10", SampleSelection("every", 10)),
    ],
)
def test_parse(text: str, expected: SampleSelection) -> None:
    assert SampleSelection.parse(text) == expected


@pytest.mark.parametrize(
    "text",
    [
        "0",
        "-1",
        "worst:",
        "worst:0",
        "worst:x",
        "wrong:3",
        "best",
        ":",
        "1.5",
        "every:3",
        "3:4",
        "9" * 5000,
        "worst:" + "9" * 5000,
    ],
)
def test_parse_error(text: str) -> None:
    with pytest.raises(TdbgError, match="cannot be") as raised:
        SampleSelection.parse(text)
    assert "worst:4" in (raised.value.hint or "")


def make_classes() -> tuple[Tensor, Tensor, Tensor, Tensor]:
    scores, labels = torch.randn(B, 5), torch.randint(5, (B,))
    return scores, labels, functional.cross_entropy(scores, labels, reduction="none"), scores.argmax(1) != labels


def make_probabilities() -> tuple[Tensor, Tensor, Tensor, Tensor]:
    scores, labels, losses, wrong = make_classes()
    return scores.softmax(1), labels, losses, wrong


def make_column_labels() -> tuple[Tensor, Tensor, Tensor, Tensor]:
    scores, labels, losses, wrong = make_classes()
    return scores, labels[:, None], losses, wrong


def make_maps() -> tuple[Tensor, Tensor, Tensor, Tensor]:
    scores, labels = torch.randn(B, 3, 4, 5), torch.randint(3, (B, 4, 5))
    losses = functional.cross_entropy(scores, labels, reduction="none").mean((1, 2))
    return scores, labels, losses, (scores.argmax(1) != labels).float().mean((1, 2)) > 0.5


def make_tokens() -> tuple[Tensor, Tensor, Tensor, Tensor]:
    scores, labels = torch.randn(B, 7, 11), torch.randint(11, (B, 7))
    labels[:, 4:] = -100
    losses = functional.cross_entropy(scores[:, :4].flatten(0, 1), labels[:, :4].flatten(), reduction="none")
    return scores, labels, losses.view(B, 4).mean(1), (scores.argmax(2) != labels)[:, :4].float().mean(1) > 0.5


def make_yes_or_no() -> tuple[Tensor, Tensor, Tensor, Tensor]:
    scores, labels = 3.0 * torch.randn(B, 1), torch.randint(2, (B,))
    losses = functional.binary_cross_entropy_with_logits(scores[:, 0], labels.float(), reduction="none")
    return scores, labels, losses, (scores[:, 0] > 0) != (labels > 0)


def make_several_answers() -> tuple[Tensor, Tensor, Tensor, Tensor]:
    scores, labels = torch.rand(B, 4), torch.randint(2, (B, 4)).float()
    losses = functional.binary_cross_entropy(scores, labels, reduction="none").mean(1)
    return scores, labels, losses, ((scores > 0.5) != (labels > 0.5)).float().mean(1) > 0.5


KINDS = [
    make_classes,
    make_probabilities,
    make_column_labels,
    make_maps,
    make_tokens,
    make_yes_or_no,
    make_several_answers,
]


@pytest.mark.parametrize("make", KINDS)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16])
def test_losses_are_those_of_torch(make: Any, dtype: torch.dtype) -> None:
    output, labels, losses, wrong = make()
    found = score_rows(B, {"outputs": output.to(dtype), "labels": labels, "conv:output": torch.rand(B, 5)})
    assert found is not None and found[1] is not None
    if dtype is torch.bfloat16:
        torch.testing.assert_close(torch.tensor(found[0]), losses, atol=0.1, rtol=0.1)
    else:
        torch.testing.assert_close(torch.tensor(found[0]), losses)
        assert found[1] == wrong.tolist()
        worst = SampleChooser(SampleSelection("worst", 2)).choose_rows(B, {"outputs": output, "labels": labels})
        assert worst == sorted(losses.argsort(descending=True)[:2].tolist())


def test_regression_has_a_loss_but_no_wrong_samples() -> None:
    output, labels = torch.randn(B, 3), torch.randn(B, 3)
    tensors = {"outputs.value": output, "labels.target": labels}
    losses, wrong = score_rows(B, tensors) or ([], [])
    torch.testing.assert_close(torch.tensor(losses), (output - labels).square().mean(1))
    assert wrong is None
    chooser = SampleChooser(SampleSelection("wrong"))
    assert chooser.choose_rows(B, tensors) is None and chooser.unscored == 1


def test_a_language_model_predicts_the_next_token() -> None:
    tokens = torch.randint(9, (B, 8))
    sure = 9.0 * functional.one_hot(tokens.roll(-1, 1), 9).float()
    sure[2] = 0.0
    tensors = {"inputs.input_ids": tokens, "labels": tokens.clone(), "outputs.logits": sure}
    assert SampleChooser(SampleSelection("worst")).choose_rows(B, tensors) == [2]
    assert SampleChooser(SampleSelection("wrong")).choose_rows(B, tensors) in ([], [2])


def test_a_prompt_or_padding_that_is_ignored_leaves_the_shift() -> None:
    tokens = torch.randint(9, (B, 8))
    labels = tokens.clone()
    labels[:, :3] = -100
    labels[1, 6:] = -100
    sure = 9.0 * functional.one_hot(tokens.roll(-1, 1), 9).float()
    sure[2] = 0.0
    tensors = {"inputs.input_ids": tokens, "labels": labels, "outputs.logits": sure}
    assert SampleChooser(SampleSelection("worst")).choose_rows(B, tensors) == [2]
    assert SampleChooser(SampleSelection("wrong")).choose_rows(B, tensors) in ([], [2])


@pytest.mark.parametrize("softmax", [False, True])
def test_one_hot_labels_are_classes(softmax: bool) -> None:
    scores, labels, losses, wrong = make_classes()
    tensors = {"outputs": scores.softmax(1) if softmax else scores, "labels": functional.one_hot(labels, 5)}
    found = score_rows(B, tensors)
    assert found is not None and found[1] == wrong.tolist()
    torch.testing.assert_close(torch.tensor(found[0]), losses)


@pytest.mark.parametrize("dtype", [torch.float64, torch.bfloat16])
def test_the_default_dtype_of_the_program_is_its_own_matter(dtype: torch.dtype) -> None:
    before = torch.get_default_dtype()
    scores, labels, losses, _ = make_probabilities()
    torch.set_default_dtype(dtype)
    try:
        rows = SampleChooser(SampleSelection("worst")).choose_rows(B, {"outputs": scores, "labels": labels})
    finally:
        torch.set_default_dtype(before)
    assert rows == [int(losses.argmax())]


def test_what_cannot_be_scored_is_counted_and_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: object) -> None:
        raise RuntimeError("out of memory")

    monkeypatch.setattr(sample_choice, "score_rows", fail)
    chooser = SampleChooser(SampleSelection("worst"))
    assert chooser.choose_rows(B, {}) is None and chooser.unscored == 1


def test_an_unknown_number_of_samples_is_counted_and_all_are_kept() -> None:
    chooser = SampleChooser(SampleSelection("every", 2))
    assert chooser.choose_rows(0, {}) is None and (chooser.unscored, chooser.without_rows) == (0, 1)


@pytest.mark.parametrize("bad", [float("nan"), float("inf")])
def test_a_loss_that_is_not_finite_is_the_worst(bad: float) -> None:
    output, labels = torch.randn(B, 5), torch.randint(5, (B,))
    output[3] = bad
    assert SampleChooser(SampleSelection("worst")).choose_rows(B, {"outputs": output, "labels": labels}) == [3]


def test_every_nth_counts_over_batches() -> None:
    chooser = SampleChooser(SampleSelection("every", 4))
    rows = [chooser.choose_rows(count, {}) for count in (3, 3, 1, 5, 4)]
    assert rows == [[0], [1], [], [1], [0]]
    assert chooser.unscored == 0


@pytest.mark.parametrize(
    "tensors",
    [
        {},
        {"outputs": torch.rand(B, 3)},
        {"labels": torch.zeros(B, dtype=torch.long)},
        {"outputs": torch.rand(B - 1, 3), "labels": torch.zeros(B, dtype=torch.long)},
        {"outputs": torch.rand(B, 3), "labels": torch.rand(B, 7)},
        {"outputs": torch.zeros(B, dtype=torch.long), "labels": torch.zeros(B, dtype=torch.long)},
    ],
)
def test_where_labels_and_prediction_do_not_fit_all_are_kept(tensors: dict[str, Tensor]) -> None:
    chooser = SampleChooser(SampleSelection("worst"))
    assert chooser.choose_rows(B, tensors) is None and chooser.unscored == 1
