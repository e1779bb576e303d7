"""Silent bugs of models, losses and modes: the default level names them, and says nothing of the healthy twin."""

import sys

import pytest

from tests.chance import pick_share
from tests.e2e.conftest import Runner, assert_named_first, assert_notes_alone, build_program_command

TWINS = 3  # every third: `python -m tests.e2e.levels` plays them all
NAMED = {  # kind -> code, and a part of the first line
    "left-in-eval-mode": ("TD-C021", "in eval mode since step 21, after evaluation: Net, 1 dropout layer and 1 batch"),
    "left-in-eval-mode-late": ("TD-C021", "in eval mode since step 71"),
    "functional-dropout": ("TD-C022", ", pass 1 after step 20, FunctionalDropout in eval mode"),
    "attention-dropout": ("TD-C022", "active in evaluation: scaled_dot_product_attention at"),
    "softmax-twice": ("TD-C023", "softmax before cross_entropy, which applies its own: (32, 4)"),
    "sigmoid-twice": ("TD-C023", "sigmoid before binary_cross_entropy_with_logits, which applies its own: (32, 4)"),
    "batch-softmax": ("TD-C023", "log_softmax over the batch dimension before nll_loss: (32, 4)"),
    "all-pairs": ("TD-C024", "the loss is over (32, 32) pairs: predictions of (32, 1) broadcast against targets"),
    "another-instance": ("TD-S011", "since step 1: its 6 parameters are not those of the Net that runs"),
    "frozen-alone": ("TD-S011", "AdamW has updated nothing since step 1: all 4 parameters that it holds are frozen"),
    "left-out-beside": (
        "TD-S006",
        "4 parameters of Sequential, called beside Sequential, are in no optimizer: 0.weight",
    ),
    "cut-off": ("TD-S011", "Adam updated nothing in steps 2 to 13: no gradient reached the 4 parameters that it holds"),
    "shuffled-labels": (
        "TD-S012",
        "steps: 1.",
    ),
    "maximized": ("TD-S012", "the loss is far above chance level after 200 steps: "),
    "negated": ("TD-S012", "the cross-entropy, whose negative is the loss, is far above chance level after 200 steps"),
    "layers-in-a-list": ("TD-S006", "6 parameters in Listed.hidden (list) are in no parameter group"),
    "still-norm": ("TD-C025", "1 batch norm layer keeps a running mean of 0: body.1 (momentum 0)"),
    "still-average": ("TD-C025", "the average of Net that is evaluated was never updated, after step 20"),
    "broken-tie": ("TD-C027", "embedding.weight and head.weight should share one tensor but are two, equal before"),
    "autocast-off": (
        "TD-C026",
        "autocast to bfloat16 on cpu does not apply: all 2 linear and convolution layers return",
    ),
}

HEALTHY = (
    *("accumulated", "adversarial", "attention", "autoencoder", "averaged", "contrast", "copy", "denoise", "distil"),
    *("focal", "frozen-body", "language", "low-rank", "masters", "monte-carlo", "rank", "reinforce", "smoothed"),
    *("two-tasks", "warm-up"),
)


@pytest.mark.parametrize("kind", NAMED)
def test_the_default_level_names_what_is_wrong(watched_runner: Runner, kind: str) -> None:
    assert_named_first(watched_runner(build_program_command("planted_model", kind, "fault")), *NAMED[kind])


@pytest.mark.parametrize("kind", pick_share(NAMED, TWINS))
def test_the_default_level_is_silent_about_the_healthy_twin(watched_runner: Runner, kind: str) -> None:
    assert_notes_alone(watched_runner(build_program_command("planted_model", kind, "healthy")))


@pytest.mark.parametrize("kind", HEALTHY)
def test_the_default_level_is_silent_about_healthy_models(watched_runner: Runner, kind: str) -> None:
    assert_notes_alone(watched_runner(build_program_command("healthy_model", kind)))


ONE_CALL = """
import torch
from torch import nn
torch.manual_seed(0)
x, held_out = torch.randn(1600, 10), torch.randn(400, 10)
y, labels = (x[:, :3].sum(1) > 0).long(), (held_out[:, :3].sum(1) > 0).long()
model = nn.Sequential(nn.Linear(10, 256), nn.BatchNorm1d(256), nn.ReLU(), nn.Dropout(0.3), nn.Linear(256, 2))
optimizer, criterion = torch.optim.Adam(model.parameters(), 1e-3), nn.CrossEntropyLoss()
for epoch in range(8):
    model.train()
    for batch in torch.randperm(1600).split(64):
        optimizer.zero_grad()
        criterion(model(x[batch]), y[batch]).backward()
        optimizer.step()
    {mode}
    with torch.no_grad():
        print(epoch, criterion(model(held_out), labels).item())
"""


@pytest.mark.parametrize(("mode", "codes"), [("pass", ["TD-C012"]), ("model.eval()", [])])
def test_an_evaluation_of_one_call(watched_runner: Runner, mode: str, codes: list[str]) -> None:
    """The second and third pass are looked at as the first is, though the opening steps are over."""
    result = watched_runner([sys.executable, "-c", ONE_CALL.replace("{mode}", mode)])
    assert [finding["code"] for finding in result.verdict["findings"]] == codes, result.stderr
