"""Inputs, Outputs, Labels."""

import torch
from torch import nn

from tdbg.debuggers import Inputs, Labels, Outputs


def test_copies_of_each_part():
    model, x, y = nn.Identity(), torch.zeros(2), torch.tensor([1, 2])
    datapoint = {"inputs": {"image": x, "name": "a"}, "outputs": (x, [x]), "labels": y, "meta_info": {"idx": 3}}
    found = {**Inputs()(datapoint, model), **Outputs()(datapoint, model), **Labels()(datapoint, model)}
    x.fill_(7)
    y.fill_(7)
    assert found["inputs"]["image"].tolist() == [0, 0] and found["inputs"]["name"] == "a"
    assert [item.tolist() for item in (found["outputs"][0], found["outputs"][1][0], found["labels"])] == [
        [0, 0],
        [0, 0],
        [1, 2],
    ]


def test_a_part_that_is_not_there():
    assert Labels()({"inputs": 1}, nn.Identity()) == {} == Labels()({"labels": None}, nn.Identity())
    assert Labels().missing(nn.Identity()) == "the datapoint has no labels"
    assert Labels()({"labels": 0}, nn.Identity()) == {"labels": 0}
