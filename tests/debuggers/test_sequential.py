"""SequentialDebugger: the interface that code was written to, and each failure of a pickle-page design."""

import gc
import json
import threading
import time
from collections import namedtuple
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from tdbg.cli import main
from tdbg.core.errors import TdbgError
from tdbg.debuggers.base import BaseDebugger, ForwardDebugger
from tdbg.debuggers.mixins import EvaluationDebugging, ValidationDebugging
from tdbg.debuggers.sequential import SequentialDebugger, checkpoint_indices
from tdbg.pages.outputs import load_debug_outputs
from tdbg.pages.read.page_set import PageSet
from tests.stores import use_counting_store


class Ones(BaseDebugger):
    """A tensor of a megabyte, or what it is told to give."""

    def __init__(self, gives: Any = None) -> None:
        self.gives = gives

    def __call__(self, datapoint: Any, model: nn.Module) -> Any:
        return (
            {"ones": torch.full((262_144,), float(datapoint["meta_info"]["idx"]))} if self.gives is None else self.gives
        )


class Output(ForwardDebugger):
    """A layer's output."""

    def process_forward(self, module: nn.Module, input: Any, output: Tensor) -> dict[str, Tensor]:
        return {"feature_map": output}


def make_config(name: str, cls: type, **args: Any) -> dict[str, Any]:
    return {"name": name, "debugger_config": {"class": cls, "args": args}}


def make_datapoint(idx: Any) -> dict[str, Any]:
    return {"inputs": torch.zeros(1), "labels": 0, "meta_info": {"idx": idx}, "outputs": None}


@pytest.fixture
def net() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(4, 3), nn.ReLU(inplace=True), nn.Linear(3, 2))


@pytest.fixture(autouse=True)
def working_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


def test_the_interface(net: nn.Module, tmp_path: Path) -> None:
    found = SequentialDebugger(
        [make_config("first", Output, layer_name="0"), make_config("all", Ones)], net, page_size_mb=5
    )
    assert list(found.debuggers) == ["first", "all"] and list(found.forward_debuggers) == ["0"]
    assert (found.enabled, found.page_size, found.output_dir) == (False, 5_000_000, None)
    assert found(make_datapoint(1)) == {} and not any(layer._forward_hooks for layer in net)
    found.enabled = True
    x_BF = torch.randn(1, 4)
    net(x_BF)
    given = found(make_datapoint(7))
    expected = nn.functional.linear(x_BF, net[0].weight, net[0].bias)
    assert list(given) == ["first", "all"] and torch.equal(given["first"]["feature_map"], expected)
    found.enabled = False
    assert not any(layer._forward_hooks for layer in net)
    found.save_all(tmp_path / "epoch_0" / "debugger")
    assert found.output_dir == tmp_path / "epoch_0" / "debugger"
    (kept,) = PageSet.open(tmp_path / "epoch_0")
    assert (kept.key, list(kept.tensors)) == (7, ["first/feature_map", "all/ones"])
    assert kept.tensors["first/feature_map"].read() == expected.detach().numpy().tobytes()
    assert not list(tmp_path.glob(".tdbg-pages-*"))


def test_names_and_classes(net: nn.Module) -> None:
    with pytest.raises(AssertionError, match="Duplicate debugger name: a"):
        SequentialDebugger([make_config("a", Ones), make_config("a", Ones)], net)
    found = SequentialDebugger([{"class": Ones, "args": {}}], net)
    assert list(found.debuggers) == ["Ones"]
    missing = SequentialDebugger([make_config("a", Output, layer_name="9")], net)
    with pytest.raises(TdbgError, match="no layer is named '9'"):
        missing.enabled = True
    assert not missing.enabled and not any(layer._forward_hooks for layer in net)


@pytest.mark.parametrize(
    ("method", "epochs", "expected"),
    [("all", 3, [0, 1, 2]), ("latest", 4, [3]), (3, 10, [2, 5, 8, 9]), (5, 3, [2]), ("2", 4, [1, 3]), ("all", 0, [])],
)
def test_checkpoint_indices(method: Any, epochs: int, expected: list[int]) -> None:
    assert checkpoint_indices(method, epochs) == expected


@pytest.mark.parametrize("method", ["best", 0, -1, ""])
def test_checkpoint_methods_that_are_none(method: Any) -> None:
    if method == "":
        assert checkpoint_indices(method, 2) == [0, 1]
        return
    with pytest.raises(TdbgError, match="checkpoint_method"):
        checkpoint_indices(method, 3)


def test_pages_are_written_as_they_fill_and_no_larger_than_asked(net: nn.Module, tmp_path: Path) -> None:
    found = SequentialDebugger([make_config("ones", Ones)], net, page_size_mb=1, output_dir=tmp_path / "out")
    found.enabled = True
    for idx in range(20):
        found(make_datapoint(idx))
    found.flush()
    pages = list((tmp_path / "out").glob("*.safetensors"))
    assert len(pages) >= 19, "before anybody asked to save"
    assert all(page.stat().st_size < 1_000_000 + 1_200_000 for page in pages)
    found.save_all()
    for kept in PageSet.open(tmp_path / "out"):
        assert kept.tensors["ones/ones"].array()[0] == float(kept.key)


def test_datapoints_wait_in_bounded_memory(net: nn.Module) -> None:
    found = SequentialDebugger([make_config("ones", Ones)], net, ring_bytes=3_000_000)
    found.enabled = True
    most = 0
    for idx in range(60):
        found(make_datapoint(idx))
        most = max(most, found._pool.used_bytes)
    found.close()
    assert 0 < most <= 3_200_000


Pair = namedtuple("Pair", "left right")


def test_what_can_be_stored(net: nn.Module, tmp_path: Path) -> None:
    import numpy as np

    view = torch.zeros(1 << 20)[:10]
    gives = {
        "stats": {"mean": 0.5, "nan": float("nan"), "shape": (1, 2), "text": "cat", "none": None, "flag": True},
        "array": np.arange(6, dtype=np.float32).reshape(2, 3).T,
        "pair": Pair(torch.ones(2), [torch.zeros(1), {"deep": torch.tensor(3)}]),
        "view": view,
        "half": torch.ones(3, dtype=torch.bfloat16),
    }
    found = SequentialDebugger([make_config("all", Ones, gives=gives)], net, output_dir=tmp_path / "out")
    found.enabled = True
    found(make_datapoint("a/b"))
    found.save_all()
    (kept,) = PageSet.open(tmp_path / "out")
    assert kept.key == "a/b" and found.dropped == {}
    assert {path: tuple(tensor.shape) for path, tensor in kept.tensors.items()} == {
        "all/array": (3, 2), "all/pair/0": (2,), "all/pair/1/0": (1,), "all/pair/1/1/deep": (), "all/view": (10,),
        "all/half": (3,),
    }  # fmt: skip
    assert kept.tensors["all/array"].array().tolist() == [[0, 3], [1, 4], [2, 5]]
    assert kept.scalars["all/stats/text"] == "cat" and kept.scalars["all/stats/shape"] == [1, 2]
    assert kept.scalars["all/stats/nan"] != kept.scalars["all/stats/nan"]
    assert kept.more["notes"] == {
        "all/pair": {"tuple": "Pair"},
        "all/pair/1": {"list": ""},
        "all/stats/shape": {"tuple": ""},
    }
    assert sum(page.stat().st_size for page in (tmp_path / "out").iterdir()) < 3_000_000, "not the megabytes behind it"


def test_outputs_come_back_as_they_were_given(net: nn.Module, tmp_path: Path) -> None:
    import numpy as np

    gives = {
        "list": [torch.ones(2), {"deep": 1.5}],
        "tuple": (torch.zeros(1), (1, 2), []),
        "empty": {},
        "keys": {1: torch.ones(1), "1": 2, "a/b": 3, None: 4},
        "numbers": {"np32": np.float32(0.5), "np64": np.int64(3), "complex": 1 + 2j, "bytes": b"xy"},
        "arrays": [np.arange(3.0)[::-1], np.broadcast_to(np.float32(1), (2,))],
    }
    found = SequentialDebugger([make_config("all", Ones, gives=gives)], net, output_dir=tmp_path / "out")
    found.enabled = True
    found(make_datapoint(7))
    found.save_all()
    (kept,) = load_debug_outputs(tmp_path / "out", 7).values()
    assert found.dropped == {}
    assert [value.tolist() if hasattr(value, "tolist") else value for value in kept["list"]] == [[1, 1], {"deep": 1.5}]
    assert isinstance(kept["tuple"], tuple) and kept["tuple"][1:] == ((1, 2), []) and kept["empty"] == {}
    assert set(kept["keys"]) == {1, "1", "a/b", None}
    assert kept["keys"]["a/b"] == 3 and kept["keys"]["1"] == 2 and kept["keys"][1].tolist() == [1]
    assert kept["numbers"] == {"np32": 0.5, "np64": 3, "complex": 1 + 2j, "bytes": b"xy"}
    assert [array.tolist() for array in kept["arrays"]] == [[2, 1, 0], [1, 1]]


@pytest.mark.filterwarnings("ignore")
def test_quantised_tensors_keep_their_scales(net: nn.Module, tmp_path: Path) -> None:
    x = torch.tensor([[0.0, 0.5], [1.0, 2.0]])
    gives = {
        "whole": torch.quantize_per_tensor(x, 0.1, 10, torch.quint8),
        "rows": torch.quantize_per_channel(x, torch.tensor([0.1, 0.2]), torch.tensor([0, 1]), 0, torch.qint8),
    }
    found = SequentialDebugger([make_config("all", Ones, gives=gives)], net, output_dir=tmp_path / "out")
    found.enabled = True
    found(make_datapoint(7))
    found.save_all()
    kept = load_debug_outputs(tmp_path / "out", 7)["all"]
    for name, wanted in gives.items():
        assert kept[name].tolist() == wanted.dequantize().tolist()


@pytest.mark.filterwarnings("ignore")
def test_tensors_without_plain_bytes_leave_the_others_alone(net: nn.Module, tmp_path: Path) -> None:
    x = torch.arange(4.0).reshape(2, 2)
    gives = {
        "meta": x.to("meta"),
        "csr": x.to_sparse_csr(),
        "nested": torch.nested.nested_tensor([x, x]),
        "half_bytes": torch.quantize_per_tensor(x, 1.0, 0, torch.quint4x2),
        "fine": x,
    }
    found = SequentialDebugger([make_config("all", Ones, gives=gives)], net, output_dir=tmp_path / "out")
    found.enabled = True
    found(make_datapoint(7))
    found.save_all()
    (kept,) = PageSet.open(tmp_path / "out")
    assert {path.split("/")[1] for path in kept.tensors} == {"csr", "nested", "fine"}, "some have parts that are plain"
    assert {why.partition(":")[0] for why in found.dropped} == {"all/meta", "all/half_bytes"}


def test_flush_tells_what_could_not_be_written(net: nn.Module, tmp_path: Path) -> None:
    (tmp_path / "MANIFEST.json").write_text("{}")
    found = SequentialDebugger([make_config("all", Ones)], net, output_dir=tmp_path)
    found.enabled = True
    found(make_datapoint(1))
    with pytest.raises(TdbgError, match="MANIFEST"):
        found.flush()
    found(make_datapoint(2))
    found.close()
    assert found.dropped == {"not written": 2}


def test_what_cannot_be_stored_is_named_and_the_others_are_kept(net: nn.Module, tmp_path: Path) -> None:
    circle: dict[str, Any] = {"fine": torch.ones(1)}
    circle["self"] = circle
    debuggers = [
        make_config("good", Ones),
        make_config("bad", Ones, gives={"lambda": lambda: 0, "tensor": torch.ones(2)}),
        make_config("round", Ones, gives=circle),
        make_config("meta", Ones, gives={"x": torch.eye(2).to("meta")}),
    ]
    found = SequentialDebugger(debuggers, net, output_dir=tmp_path / "out")
    found.enabled = True
    for idx in range(3):
        found(make_datapoint(idx))
    found.save_all()
    kept = list(PageSet.open(tmp_path / "out"))
    assert [list(one.tensors) for one in kept] == [["good/ones", "bad/tensor", "round/fine"]] * 3
    assert found.dropped["bad/lambda: a function cannot be stored"] == 3
    assert found.dropped["round/self: it contains itself"] == 3
    assert found.dropped["meta/x: on the meta device: there are no values"] == 3 and len(found.dropped) == 3


def test_outputs_are_read_as_they_were_given(net: nn.Module, tmp_path: Path) -> None:
    import numpy as np

    quantised = torch.quantize_per_tensor(torch.randn(2, 3), 0.1, 2, torch.quint8)
    gives = {
        "numbers": {0: 1, 2: torch.ones(1), "a/b": 3, None: 4},
        "empty": {},
        "deep": [(torch.ones(2), "a"), {"x": [torch.zeros(1)]}],
        "set": {3, 1},
        "bytes": b"xyz",
        "long": "x" * 70_000,
        "scalar": np.float32(2.5),
        "reversed": np.arange(3)[::-1],
        "quantised": quantised,
        "sparse": torch.eye(2).to_sparse(),
    }
    found = SequentialDebugger([make_config("all", Ones, gives=gives)], net, output_dir=tmp_path / "out")
    found.enabled = True
    found(make_datapoint(3))
    found.save_all()
    assert found.dropped == {}
    again = load_debug_outputs(tmp_path / "out", 3, as_torch=True)["all"]
    assert list(again) != [] and set(again) == set(gives)
    assert {key: float(value) for key, value in again["numbers"].items()} == {0: 1, 2: 1, "a/b": 3, None: 4}
    assert (
        again["empty"] == {} and again["set"] == {1, 3} and again["bytes"] == b"xyz" and again["long"] == "x" * 70_000
    )
    assert isinstance(again["deep"], list) and isinstance(again["deep"][0], tuple) and again["deep"][0][1] == "a"
    assert torch.equal(again["deep"][1]["x"][0], torch.zeros(1))
    assert again["scalar"] == 2.5 and again["reversed"].tolist() == [2, 1, 0]
    assert torch.allclose(again["quantised"].float(), quantised.dequantize())
    assert again["sparse"]["indices"].tolist() == [[0, 1], [0, 1]] and again["sparse"]["values"].tolist() == [1, 1]


class Sometimes(nn.Module):
    """A branch that is not always taken."""

    def __init__(self) -> None:
        super().__init__()
        self.always, self.branch = nn.Linear(4, 4), nn.Linear(4, 4)

    def forward(self, x_BF: Tensor) -> Tensor:
        x_BF = self.always(x_BF)
        return self.branch(x_BF) if x_BF.sum() > 0 else x_BF


def test_a_layer_that_did_not_run_says_so_in_the_page(tmp_path: Path) -> None:
    net = Sometimes()
    debuggers = [make_config("branch", Output, layer_name="branch"), make_config("always", Output, layer_name="always")]
    found = SequentialDebugger(debuggers, net, output_dir=tmp_path / "out")
    found.enabled = True
    nn.init.eye_(net.always.weight)
    nn.init.zeros_(net.always.bias)
    for idx, value in enumerate((1.0, -1.0)):
        net(torch.full((1, 4), value))
        given = found(make_datapoint(idx))
        assert (given["branch"] is None) == (value < 0)
    found.save_all()
    ran, idle = (load_debug_outputs(tmp_path / "out", idx) for idx in (0, 1))
    assert ran["branch"]["feature_map"].shape == (1, 4)
    assert idle["branch"].startswith("not executed: 'branch' did not run in the last pass")
    assert idle["always"]["feature_map"].tolist() == [[-1.0] * 4]


def test_a_batch_is_stored_once_and_found_sample_by_sample(net: nn.Module, tmp_path: Path) -> None:
    found = SequentialDebugger([make_config("out", Output, layer_name="2")], net, output_dir=tmp_path / "out")
    found.enabled = True
    x_BF = torch.randn(3, 4)
    out_BF = net(x_BF)
    found({**make_datapoint(torch.tensor([5, 9, 7])), "inputs": x_BF})
    found.save_all()
    pages = PageSet.open(tmp_path / "out")
    assert len(list(pages)) == 1 and [row.key for row in pages.rows()] == [5, 9, 7]
    (one,) = pages.find(9)
    assert one.tensors["out/feature_map"].read() == out_BF[1].detach().numpy().tobytes()


def test_an_id_that_comes_again_is_kept_again(net: nn.Module, tmp_path: Path) -> None:
    found = SequentialDebugger([make_config("ones", Ones)], net, output_dir=tmp_path / "out")
    found.enabled = True
    for _ in range(2):
        found(make_datapoint(4))
    found.save_all()
    assert len(PageSet.open(tmp_path / "out").find(4)) == 2


def test_results_are_copies(net: nn.Module, tmp_path: Path) -> None:
    shared = torch.zeros(1000)
    found = SequentialDebugger([make_config("all", Ones, gives={"x": shared})], net, output_dir=tmp_path / "out")
    found.enabled = True
    for idx in range(20):
        shared.fill_(idx)
        found(make_datapoint(idx))
    found.save_all()
    assert [one.tensors["all/x"].array()[0] for one in PageSet.open(tmp_path / "out")] == [*range(20)]


def test_each_epoch_has_its_own_pages_and_nothing_is_written_over(net: nn.Module, tmp_path: Path) -> None:
    found = SequentialDebugger([make_config("ones", Ones)], net)
    found.enabled = True
    for epoch in range(2):
        found(make_datapoint(epoch))
        found.save_all(tmp_path / f"epoch_{epoch}" / "debugger")
    for epoch in range(2):
        assert [one.key for one in PageSet.open(tmp_path / f"epoch_{epoch}")] == [epoch]
    found(make_datapoint(9))
    with pytest.raises(TdbgError, match="is not empty"):
        found.save_all(tmp_path / "epoch_0" / "debugger")
    found.save_all(tmp_path / "elsewhere")
    assert [one.key for one in PageSet.open(tmp_path / "elsewhere")] == [9]


def test_reset_forgets_what_was_not_saved(net: nn.Module, tmp_path: Path) -> None:
    found = SequentialDebugger([make_config("ones", Ones)], net)
    found.enabled = True
    found(make_datapoint(1))
    found.reset_buffer()
    assert not list(tmp_path.glob(".tdbg-pages-*"))
    found(make_datapoint(2))
    found.save_all(tmp_path / "out")
    assert [one.key for one in PageSet.open(tmp_path / "out")] == [2]


def test_an_exception_of_a_debugger_is_the_caller_s(net: nn.Module) -> None:
    class Fails(BaseDebugger):
        def __call__(self, datapoint: Any, model: nn.Module) -> Any:
            raise KeyError("mine")

    found = SequentialDebugger([make_config("fails", Fails)], net)
    found.enabled = True
    with pytest.raises(KeyError, match="mine"):
        found(make_datapoint(1))
    found.close()


def test_a_disk_that_fails_raises_and_never_hangs(net: nn.Module, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("in the way")
    found = SequentialDebugger(
        [make_config("ones", Ones)], net, output_dir=tmp_path / "file" / "below", ring_bytes=3_000_000
    )
    found.enabled = True
    begun, raised = time.monotonic(), 0
    for idx in range(10):
        try:
            found(make_datapoint(idx))
        except OSError:
            raised += 1
    for last in (found.save_all, found.close):
        try:
            last()
        except OSError:
            raised += 1
    assert raised == 1 and time.monotonic() - begun < 40
    assert sum(count for why, count in found.dropped.items() if why == "not written") == 10


def test_a_debugger_that_is_forgotten_leaves_no_thread(net: nn.Module) -> None:
    found = SequentialDebugger([make_config("ones", Ones)], net)
    found.enabled = True
    found(make_datapoint(1))
    assert any(thread.name == "tdbg-capture" for thread in threading.enumerate())
    found.enabled = False
    del found
    gc.collect()
    until = time.monotonic() + 10
    while any(thread.name == "tdbg-capture" for thread in threading.enumerate()):
        assert time.monotonic() < until
        time.sleep(0.05)


def test_a_datapoint_without_a_name_is_refused(net: nn.Module) -> None:
    found = SequentialDebugger([make_config("ones", Ones, gives={"x": torch.ones(1)})], net)
    found.enabled = True
    with pytest.raises(TdbgError, match="no meta_info"):
        found({"inputs": torch.zeros(1)})
    found.close()


# A trainer and an evaluator of one's own


class Trainer(ValidationDebugging, EvaluationDebugging):
    """Validates after every epoch, then evaluates."""

    def __init__(self, net: nn.Module) -> None:
        self.net = net

    def run_epochs(self, epochs: int) -> list[int]:
        hooked = []
        for epoch in range(epochs):
            self.net(torch.zeros(1, 4))  # training
            self.on_val_start(epoch)
            for idx in range(2):
                self.net(torch.full((1, 4), float(idx)))
                hooked.append(sum(len(layer._forward_hooks) for layer in self.net))
                self.on_val_step(make_datapoint(10 * epoch + idx))
            self.on_val_end(epoch)
        self.on_eval_start()
        self.net(torch.ones(1, 4))
        self.on_eval_step(make_datapoint(77))
        self.on_eval_end()
        return hooked


def test_five_lines_keep_the_chosen_epochs(net: nn.Module, tmp_path: Path) -> None:
    trainer = Trainer(net)
    debugger = SequentialDebugger([make_config("out", Output, layer_name="2")], net)
    trainer.debug_validation(debugger, epochs=5, output_dir=tmp_path / "run", checkpoint_method=2)
    trainer.debug_evaluation(debugger, tmp_path / "run")
    assert trainer.run_epochs(5) == [0, 0, 1, 1, 0, 0, 1, 1, 1, 1]
    assert sorted(path.name for path in (tmp_path / "run").iterdir()) == ["debugger", "epoch_1", "epoch_3", "epoch_4"]
    for epoch in (1, 3, 4):
        kept = list(PageSet.open(tmp_path / "run" / f"epoch_{epoch}" / "debugger"))
        assert [one.key for one in kept] == [10 * epoch, 10 * epoch + 1]
    (one,) = PageSet.open(tmp_path / "run" / "debugger")
    assert one.tensors["out/feature_map"].read() == net(torch.ones(1, 4)).detach().numpy().tobytes()
    assert not debugger.enabled and not any(layer._forward_hooks for layer in net)


def test_without_a_debugger_the_callbacks_do_nothing(net: nn.Module, tmp_path: Path) -> None:
    assert Trainer(net).run_epochs(2) == [0] * 4
    assert not list(tmp_path.iterdir())


def test_pages_go_to_a_store(net: nn.Module, tmp_path: Path) -> None:
    with use_counting_store() as store, SequentialDebugger([make_config("ones", Ones)], net) as found:
        trainer = ValidationDebugging()
        trainer.debug_validation(found, 3, "counted://store/run", "latest")
        for epoch in range(3):
            trainer.on_val_start(epoch)
            trainer.on_val_step(make_datapoint(epoch))
            trainer.on_val_end(epoch)
        place = "counted://store/run/epoch_2/debugger"
        assert str(found.output_dir) == place and [datapoint.key for datapoint in PageSet.open(place)] == [2]
        assert not list(tmp_path.iterdir()), "nothing is left on the disk"
        found.enabled = True
        found(make_datapoint(7))
        with pytest.raises(TdbgError, match="is not empty"):
            found.save_all(place)
        store.failing.add("elsewhere")
        with pytest.raises(TdbgError, match="the store is full"):
            found.save_all("counted://store/elsewhere")
        found.save_all(tmp_path / "kept")
        assert [datapoint.key for datapoint in PageSet.open(tmp_path / "kept")] == [7]
    with pytest.raises(TdbgError, match="cannot be written directly to s3://bucket/run"):
        SequentialDebugger([], net, output_dir="s3://bucket/run")


class Nowhere:
    """Something that no page can hold."""


def test_the_model_may_be_given_as_other_debuggers_take_it(tmp_path: Path) -> None:
    given: list[nn.Module] = []

    class Takes(BaseDebugger):
        def __call__(self, datapoint: Any, model: nn.Module) -> Any:
            given.append(model)
            return {"one": torch.ones(1)}

    model, other = nn.Linear(2, 2), nn.Linear(2, 2)
    debugger = SequentialDebugger([make_config("a", Takes)], model, output_dir=tmp_path / "pages")
    assert isinstance(debugger, BaseDebugger)
    assert debugger(make_datapoint(0), model) == {}
    debugger.enabled = True
    debugger(make_datapoint(0))
    debugger(make_datapoint(1), other)
    assert given == [model, other]
    debugger.close()


def test_it_is_a_debugger_of_another_one(tmp_path: Path) -> None:
    model = nn.Sequential(nn.Linear(2, 2))
    inner = [make_config("layer", Output, layer_name="0")]
    args = {"debuggers_config": inner, "model": model, "output_dir": tmp_path / "inner"}
    with SequentialDebugger(
        [make_config("whole", SequentialDebugger, **args)], model, output_dir=tmp_path / "o"
    ) as debugger:
        debugger.enabled = True
        model(torch.zeros(1, 2))
        found = debugger(make_datapoint(3), model)
        assert set(found["whole"]) == {"layer"} and found["whole"]["layer"]["feature_map"].shape == (1, 2)
        debugger.enabled = False
        assert not model[0]._forward_hooks and debugger.debuggers["whole"].enabled is False  # type: ignore[attr-defined]
        debugger.debuggers["whole"].close()  # type: ignore[attr-defined]


@pytest.mark.parametrize("command", ["ls", "show", "find", "stats", "diff"])
def test_pages_below_an_epochs_folder_are_of_that_epoch(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], command: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = nn.Linear(2, 2)
    for epoch in (2, 7):
        gives = {"x": torch.full((3,), float(epoch)), "name": "a scalar"}
        debugger = SequentialDebugger([make_config("ones", Ones, gives=gives)], model)
        debugger.enabled = True
        debugger(make_datapoint(5))
        debugger.save_all(tmp_path / f"epoch_{epoch}" / "debugger")
        only = SequentialDebugger([make_config("none", Ones, gives={"note": "scalars alone"})], model)
        only.enabled = True
        only(make_datapoint(6))
        only.save_all(tmp_path / f"epoch_{epoch}" / "notes")

    def run_inspect_pages(*words: str) -> tuple[int, str]:
        code = main(["inspect-pages", command, *words])
        return code, capsys.readouterr().out

    place = str(tmp_path)
    if command == "ls":
        code, out = run_inspect_pages(place, "--json", "--datapoints", "--epoch", "7")
        found = json.loads(out)["data"]
        assert code == 0 and found["epochs"] == [7]
        assert {row["key"]: row["epoch"] for row in found["list"]} == {5: 7, 6: 7}
        monkeypatch.chdir(tmp_path / "epoch_2" / "debugger")
        assert json.loads(run_inspect_pages(".", "--json")[1])["data"]["epochs"] == [2]
    elif command == "show":
        code, out = run_inspect_pages(place, "5/ones/x", "--epoch", "7")
        assert code == 0 and "7" in out and "epoch 7" in out
        assert run_inspect_pages(place, "5", "--epoch", "3")[0] == 1
    elif command == "find":
        code, out = run_inspect_pages(place, "max > 1", "--epoch", "2:2", "--json")
        assert code == 0 and '"epoch": 2' in out and '"epoch": 7' not in out
    elif command == "stats":
        code, out = run_inspect_pages(place, "--epoch", "7", "--json")
        assert code == 0 and "7.0" in out and "2.0" not in out
    else:
        code, out = run_inspect_pages(place, "--epochs", "2,7")
        assert code == 1 and "ones/x" in out


def test_show_of_a_batch_gives_the_row_of_each_id(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    model = nn.Linear(2, 2)
    gives = {"x": torch.tensor([[1.5, 2.5], [3.5, 4.5]])}
    debugger = SequentialDebugger([make_config("ones", Ones, gives=gives)], model, output_dir=tmp_path)
    debugger.enabled = True
    debugger(make_datapoint([10, 11]))
    debugger.save_all()
    for key, row in ((10, ("1.5", "2.5")), (11, ("3.5", "4.5"))):
        assert main(["inspect-pages", "show", str(tmp_path), f"{key}/ones/x"]) == 0
        told = capsys.readouterr()
        assert all(number in told.out for number in row) and "this key" not in told.err
        assert main(["inspect-pages", "show", str(tmp_path), str(key)]) == 0
        assert "this key" not in capsys.readouterr().err
    assert load_debug_outputs(tmp_path, 10)["ones"]["x"].tolist() == [1.5, 2.5]


def test_an_output_that_cannot_be_stored_is_told_once_and_listed(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], caplog: pytest.LogCaptureFixture
) -> None:
    gives = {"x": torch.ones(2), "odd": Nowhere()}
    debugger = SequentialDebugger([make_config("ones", Ones, gives=gives)], nn.Linear(2, 2), output_dir=tmp_path)
    debugger.enabled = True
    for idx in range(4):
        debugger(make_datapoint(idx))
    debugger.close()
    assert [record.getMessage() for record in caplog.records if record.name == "tdbg"] == [
        "tdbg: not stored: ones/odd: a Nowhere cannot be stored; the other outputs are kept"
    ]
    assert main(["inspect-pages", "ls", str(tmp_path)]) == 0
    assert (
        "tdbg: 4 datapoints have outputs that were not stored: ones/odd: a Nowhere cannot be stored"
        in capsys.readouterr().err
    )
    assert main(["inspect-pages", "ls", str(tmp_path), "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["data"]["refused"] == {"ones/odd: a Nowhere cannot be stored": 4}


class Fails(ForwardDebugger):
    def process_forward(self, module: nn.Module, input: Any, output: Tensor) -> object:
        raise LookupError("mine")


def test_a_debugger_whose_hook_fails_is_told_by_ls(
    net: nn.Module, tmp_path: Path, capsys: pytest.CaptureFixture[str], caplog: pytest.LogCaptureFixture
) -> None:
    found = SequentialDebugger(
        [make_config("bad", Fails, layer_name="0"), make_config("good", Output, layer_name="0")],
        net,
        output_dir=tmp_path / "out",
    )
    found.enabled = True
    for idx in range(3):
        net(torch.ones(1, 4))
        found(make_datapoint(idx))
    found.save_all()
    why = "bad: switched off: LookupError: mine"
    assert found.dropped == {why: 3}
    assert caplog.messages == ["tdbg switched off its debugger Fails at '0': LookupError: mine"]
    (first, *_) = PageSet.open(tmp_path / "out")
    assert "good/feature_map" in first.tensors and first.scalars["bad"] == "switched off: LookupError: mine"
    assert main(["inspect-pages", "ls", str(tmp_path / "out"), "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["data"]["refused"] == {why: 3}
