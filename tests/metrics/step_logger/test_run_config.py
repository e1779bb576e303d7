"""What holds for a whole run, flat and plain, whatever kind of config a program has."""

import json
from argparse import Namespace
from dataclasses import dataclass

import pytest
import torch
from torch.utils.data import DataLoader, IterableDataset, TensorDataset

from tdbg.metrics.step_logger.run_config import MAX_LETTERS, MAX_VALUES, plain_config, run_config


def test_yacs():
    from yacs.config import CfgNode

    cfg = CfgNode({"SOLVER": {"LR": 0.1, "STEPS": (1, 2)}, "NAME": "x"})
    assert plain_config(cfg) == {"SOLVER.LR": 0.1, "SOLVER.STEPS": [1, 2], "NAME": "x"}


def test_omegaconf():
    omegaconf = pytest.importorskip("omegaconf")
    cfg = omegaconf.OmegaConf.create({"a": {"b": 1, "c": "${a.b}"}, "d": [1, 2]})
    found = plain_config(cfg)
    assert (found["a.b"], found["a.c"], found["d"]) == (1, "${a.b}", [1, 2])


def test_namespaces_dataclasses_and_what_is_not_plain():
    @dataclass
    class Settings:
        lr: float = 0.1
        inner: object = None

    found = plain_config(Namespace(settings=Settings(inner={1: torch.float32}), path=None, flag=True))
    assert found == {"settings.lr": 0.1, "settings.inner.1": "torch.float32", "path": None, "flag": True}
    json.dumps(found)


def test_it_is_bounded():
    deep: dict[str, object] = {}
    deep["again"] = deep
    assert len(plain_config(deep)) == 1
    assert len(plain_config({str(number): number for number in range(MAX_VALUES + 9)})) == MAX_VALUES
    assert len(plain_config({"a": "x" * 9999})["a"]) == MAX_LETTERS


def test_data_and_model():
    model = torch.nn.Linear(3, 2)
    model.bias.requires_grad_(False)
    loader = DataLoader(TensorDataset(torch.zeros(10, 3)), batch_size=4)
    found = run_config({"lr": 0.1}, data=loader, model=model)
    assert found["lr"] == 0.1 and found["data.length"] == 3 and found["data.batch_size"] == 4
    assert found["data.dataset.class"] == "TensorDataset" and found["data.dataset.length"] == 10
    assert (found["model.class"], found["model.parameters"], found["model.trained_parameters"]) == ("Linear", 8, 6)


def test_several_loaders_and_streams():
    class Stream(IterableDataset):
        def __iter__(self):
            return iter(())

    found = run_config(data={"train": DataLoader(Stream()), "classes": 7})
    assert found["data.train.dataset.class"] == "Stream" and found["data.classes"] == 7
    assert "data.train.dataset.length" not in found
    assert run_config() == {}
