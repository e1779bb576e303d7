"""Layers by name and by pattern."""

import pytest
import torch
from torch import nn
from torch.distributed.algorithms._checkpoint.checkpoint_wrapper import checkpoint_wrapper

from tdbg.core.errors import TdbgError
from tdbg.debuggers.layers import get_layer_by_name, layers_of, place_of, scripted_parts, select, unwrap_all
from tdbg.runtime.root_modules import unwrap_module


class Block(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.attn, self.mlp = nn.Linear(2, 2), nn.Sequential(nn.Linear(2, 2), nn.ReLU())
        self.scale = nn.Parameter(torch.ones(2))


class Model(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList(Block() for _ in range(12))
        self.head = nn.Linear(2, 2)
        self.named = nn.Sequential()
        self.named.add_module("first", nn.Linear(2, 2))
        self.named.add_module("second", nn.Linear(2, 2))
        self.by_key = nn.ModuleDict({"3": nn.ReLU()})
        self.loose = [self.layers[0], self.layers[1]]
        self.tied = self.layers[2]
        self.register_buffer("table", torch.zeros(2))
        self.gone = None

    @property
    def backbone(self) -> nn.Module:
        return self.layers

    def method(self) -> None: ...

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.head(x)


@pytest.fixture
def model() -> Model:
    return Model()


def test_by_path(model):
    assert get_layer_by_name(model, "layers.4.attn") is model.layers[4].attn
    assert get_layer_by_name(model, "layers.11.mlp.1") is model.layers[11].mlp[1]
    assert get_layer_by_name(model, "layers.-1.mlp.-2") is model.layers[11].mlp[0]
    assert get_layer_by_name(model, "named.1") is get_layer_by_name(model, "named.second") is model.named.second
    assert get_layer_by_name(model, "by_key.3") is model.by_key["3"]
    assert get_layer_by_name(model, "backbone.3.attn") is model.layers[3].attn
    assert get_layer_by_name(model, "loose.1.attn") is model.layers[1].attn
    assert get_layer_by_name(model, "") is model


@pytest.mark.parametrize(
    ("name", "what"),
    (
        ("head.weight", "'weight' of head is a Parameter"),
        ("layers.3.scale", "'scale' of layers.3 is a Parameter"),
        ("table", "'table' of the model is a Tensor"),
        ("method", "'method' of the model is a method"),
        ("loose", "'loose' of the model is a list"),
        ("layers.12", "layers (ModuleList) has no '12'; it holds 0, 1, 2, 3, 4, 5, 6, 7, ... (12 in all)"),
        ("layers.3.atn", "layers.3 (Block) has no 'atn'; it holds attn, mlp"),
        ("layers.x.attn", "layers (ModuleList) has no 'x'"),
        ("named.2", "named (Sequential) has no '2'; it holds first, second"),
        ("by_key.0", "by_key (ModuleDict) has no '0'"),
        ("head.deeper", "head (Linear) has no 'deeper'; it holds no layers"),
        ("gone", "the model (Model) has no 'gone'"),
        ("head.weight.x", "'weight' of head is a Parameter"),
    ),
)
def test_what_is_no_layer(model, name, what):
    with pytest.raises(TdbgError) as caught:
        get_layer_by_name(model, name)
    assert str(caught.value).startswith(f"no layer is named {name!r}: {what}")
    assert caught.value.hint


def test_the_nearest_names(model):
    with pytest.raises(TdbgError) as caught:
        get_layer_by_name(model, "layers.4.atn")
    assert caught.value.hint.startswith("did you mean layers.4.attn")


def test_wrappers_are_seen_through(model):
    attn = model.layers[4].attn
    model.layers[4] = checkpoint_wrapper(torch.compile(model.layers[4], backend="eager"))
    for wrapped in (model, torch.compile(model, backend="eager"), nn.DataParallel(model)):
        assert get_layer_by_name(wrapped, "layers.4.attn") is attn
        assert list(select(wrapped, "layers.4.*")) == ["layers.4.attn", "layers.4.mlp"]
        assert unwrap_all(wrapped) is model
    assert get_layer_by_name(model, "layers.4._checkpoint_wrapped_module._orig_mod.attn") is attn
    assert get_layer_by_name(model, "module.layers.4.attn") is attn
    assert not isinstance(get_layer_by_name(model, "layers.4"), type(model.layers[4])), "the user's block"


def test_a_layer_that_is_really_called_module():
    model = nn.Sequential()
    model.add_module("module", nn.Sequential(nn.Linear(2, 2)))
    assert get_layer_by_name(model, "module.0") is model.module[0]


def test_patterns(model):
    assert list(select(model, "layers.*.attn")) == [f"layers.{i}.attn" for i in range(12)]
    assert list(select(model, "layers.[0-2].attn")) == ["layers.0.attn", "layers.1.attn", "layers.2.attn"]
    assert list(select(model, "layers.1?.attn")) == ["layers.10.attn", "layers.11.attn"]
    assert list(select(model, "**.second")) == ["named.second"]
    assert list(select(model, "**.attn")) == [f"layers.{i}.attn" for i in range(12)]
    assert list(select(model, "layers.0.**")) == [
        "layers.0",
        "layers.0.attn",
        "layers.0.mlp",
        "layers.0.mlp.0",
        "layers.0.mlp.1",
    ]
    assert list(select(model, "*")) == ["layers", "head", "named", "by_key", "tied"]
    assert list(select(model, r"re:layers\.\d\.mlp\.[01]"))[:3] == [
        "layers.0.mlp.0",
        "layers.0.mlp.1",
        "layers.1.mlp.0",
    ]
    assert select(model, "") == {"": model}
    assert len(select(model, "**")) == len(list(model.modules()))


def test_a_shared_layer_comes_once_under_any_of_its_paths(model):
    assert select(model, "tied") == {"tied": model.layers[2]}
    assert list(select(model, "**.attn")).count("tied.attn") == 0
    assert [path for path, module in layers_of(model) if module is model.layers[2]] == ["layers.2", "tied"]


@pytest.mark.parametrize(
    ("pattern", "hint"),
    (
        ("layers.*.atn", "did you mean"),
        ("layer.*.attn", "did you mean"),
        ("zzz", "layers: layers, layers.0, layers.0.attn"),
        ("head.weight", "did you mean head"),
        ("re:(", "see Python's re syntax"),
        ("layers.[", "did you mean"),
    ),
)
def test_a_pattern_that_matches_nothing(model, pattern, hint):
    with pytest.raises(TdbgError) as caught:
        select(model, pattern)
    assert hint in caught.value.hint


def test_a_circle_ends():
    model = nn.Sequential(nn.Linear(2, 2))
    model._modules["self"] = model
    assert [path for path, _ in layers_of(model)] == ["", "0", "self"]


def test_the_place_of_a_part_that_is_called_by_itself() -> None:
    net = nn.Sequential(nn.Sequential(nn.Linear(2, 2)), nn.Linear(2, 2))
    alone = nn.Linear(2, 2)
    assert place_of(net[0], [alone, net]) == (net, "0")
    assert place_of(net, [alone, net]) == (net, "") and place_of(alone, [net]) == (alone, "")


def test_scripted_models_can_be_walked() -> None:
    scripted = torch.jit.script(nn.Sequential(nn.Linear(2, 2), nn.ReLU()))
    assert unwrap_module(scripted) is scripted
    net = nn.Sequential(scripted, nn.Linear(2, 2))
    assert list(select(net, "**")) == ["", "0", "0.0", "0.1", "1"]
    assert scripted_parts(net) == {"0.0", "0.1"} and scripted_parts(scripted) == {"0", "1"}
