"""The flag CHECKPOINT: saves, loads, the keys that fit and those that do not, resumed runs."""

import copy
import io
import threading
from collections import OrderedDict
from pathlib import Path
from typing import Any

import pytest
import safetensors.torch
import torch
import torch.distributed.checkpoint as dcp
from probes.judging import judge_codes, judge_watch, list_observations
from torch import Tensor, nn
from torch.optim import lr_scheduler

from tdbg.probes.checkpoint.state_keys import collect_module_shapes, collect_shapes, compare_keys

FLAG = {"flags": {"CHECKPOINT": True}, "max_overhead": 1e6}


def make_net(seed: int = 0, width: int = 8) -> nn.Sequential:
    torch.manual_seed(seed)
    return nn.Sequential(nn.Linear(4, width), nn.BatchNorm1d(width), nn.Linear(width, 2))


def train_model(model: nn.Module, optimizer: Any = None, steps: int = 1, scheduler: Any = None) -> Any:
    optimizer = optimizer or torch.optim.SGD(model.parameters(), lr=0.01)
    for _ in range(steps):
        optimizer.zero_grad()
        model(torch.randn(4, 4)).square().mean().backward()
        optimizer.step()
        if scheduler is not None:
            scheduler.step()
    return optimizer


def list_values(watched: Any, part: str) -> list[dict[str, Any]]:
    return [event.values for event in list_observations(watched, "checkpoint", part)]


# files


def test_saves_and_loads(start_watch: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    watched = start_watch(**FLAG)
    model = make_net()
    optimizer = train_model(model, steps=2)
    monkeypatch.chdir(tmp_path)
    torch.save({"model": model.state_dict(), "epoch": 3, "done": True, "note": "x"}, tmp_path / "a.pt")
    expected = torch.load(tmp_path / "a.pt")
    train_model(model, optimizer)
    (saved,), (loaded,) = list_values(watched, "SAVE"), list_values(watched, "LOAD")
    assert saved["path"] == loaded["path"] == "a.pt"
    assert saved["size_mb"] == round((tmp_path / "a.pt").stat().st_size / 1e6, 3)
    assert saved["took_s"] > 0 and saved["tensors"] == loaded["tensors"] == 9
    assert saved["entries"] == ["model", "epoch", "done", "note"]
    assert saved["steps"] == loaded["steps"] == {"epoch": 3}
    assert [event.step for event in list_observations(watched, "checkpoint", "SAVE")] == [2]
    assert expected["note"] == "x"
    assert judge_codes(watched, tmp_path) == []


def test_memory_and_open_files(start_watch: Any, tmp_path: Path) -> None:
    watched = start_watch(**FLAG)
    buffer = io.BytesIO()
    torch.save([1, 2], buffer)
    with (tmp_path / "b.pt").open("wb") as file:
        torch.save(torch.ones(3), file)
    torch.save(make_net(), tmp_path / "c.pt")
    train_model(make_net())
    first, second, third = list_values(watched, "SAVE")
    assert first["path"] == "" and first["size_mb"] == round(buffer.tell() / 1e6, 3)
    assert second["path"].endswith("b.pt") and second["tensors"] == 1
    assert third["entries"] == ["Sequential"] and third["tensors"] == 9


def test_safetensors(start_watch: Any, tmp_path: Path) -> None:
    watched = start_watch(**FLAG)
    model = make_net()
    safetensors.torch.save_file({"w": torch.ones(2)}, tmp_path / "a.safetensors")
    safetensors.torch.load_file(tmp_path / "a.safetensors")
    safetensors.torch.save_model(model, str(tmp_path / "m.safetensors"))
    safetensors.torch.load_model(model, str(tmp_path / "m.safetensors"))
    train_model(model)
    assert [row["call"] for row in list_values(watched, "SAVE")] == [
        "safetensors.torch.save_file",
        "safetensors.torch.save_model",
    ]
    assert [Path(row["path"]).name for row in list_values(watched, "LOAD")] == ["a.safetensors", "m.safetensors"]
    assert list_values(watched, "STATE")[0]["placed"] == 9
    assert judge_codes(watched, tmp_path) == []


@pytest.mark.filterwarnings("ignore:torch.distributed is disabled")
def test_distributed_checkpoints(start_watch: Any, tmp_path: Path) -> None:
    watched = start_watch(**FLAG)
    state = {"model": make_net().state_dict(), "step": 7}
    dcp.save(state, checkpoint_id=str(tmp_path / "dcp"))
    dcp.load(state, checkpoint_id=str(tmp_path / "dcp"))
    train_model(make_net())
    (saved,), (loaded,) = list_values(watched, "SAVE"), list_values(watched, "LOAD")
    assert saved["path"].endswith("dcp") and saved["size_mb"] > 0
    assert saved["steps"] == loaded["steps"] == {"step": 7}, "what torch saves inside is part of it"


def test_a_save_that_fails(start_watch: Any, tmp_path: Path) -> None:
    watched = start_watch(**FLAG)
    model = make_net()
    train_model(model, steps=2)
    with pytest.raises(RuntimeError):
        torch.save(model.state_dict(), tmp_path / "nowhere" / "a.pt")
    torch.save(model.state_dict(), tmp_path / "a.pt")
    train_model(model)
    (failed,), (saved,) = list_values(watched, "FAILED"), list_values(watched, "SAVE")
    assert failed["error"].startswith("RuntimeError") and "size_mb" not in failed and saved["path"].endswith("a.pt")
    (finding,) = judge_watch(watched, tmp_path)
    assert finding.code == "TD-C016" and "failed at step 2: RuntimeError" in finding.title


def test_a_full_disk(start_watch: Any, tmp_path: Path) -> None:
    if not Path("/dev/full").exists():
        pytest.skip("no /dev/full here")
    watched = start_watch(**FLAG)
    train_model(make_net())
    with pytest.raises(Exception), open("/dev/full", "wb") as file:  # noqa: B017 whatever torch makes of it
        torch.save(torch.ones(100_000), file)
    assert [row["path"] for row in list_values(watched, "FAILED")] == ["/dev/full"]
    assert judge_codes(watched, tmp_path) == ["TD-C016"]


def test_what_fails_in_memory_or_while_loading_is_no_finding(start_watch: Any, tmp_path: Path) -> None:
    watched = start_watch(**FLAG)
    train_model(make_net())
    with pytest.raises(AttributeError):
        torch.save(lambda: 0, io.BytesIO())
    with pytest.raises(FileNotFoundError):
        torch.load(tmp_path / "none.pt")
    assert len(list_values(watched, "FAILED")) == 1 and len(list_values(watched, "LOAD_FAILED")) == 1
    assert judge_codes(watched, tmp_path) == []


def test_a_save_in_a_thread(start_watch: Any, tmp_path: Path) -> None:
    watched = start_watch(**FLAG)
    train_model(make_net())
    thread = threading.Thread(target=torch.save, args=(torch.ones(2), tmp_path / "a.pt"))
    thread.start()
    thread.join()
    assert len(list_values(watched, "SAVE")) == 1


def test_many_files_a_step_are_bounded(start_watch: Any, tmp_path: Path) -> None:
    watched = start_watch(**FLAG)
    train_model(make_net())
    for number in range(20):
        torch.save(number, tmp_path / f"{number}.pt")
    assert len(list_values(watched, "SAVE")) == 8


def test_saves_that_stop_coming_are_told_once(start_watch: Any, tmp_path: Path) -> None:
    watched = start_watch(**FLAG)
    model = make_net()
    optimizer = train_model(model)
    for number in range(5):
        train_model(model, optimizer, steps=3)
        torch.save(model.state_dict(), tmp_path / f"{number}.pt")
    train_model(model, optimizer, steps=8)
    assert not list_values(watched, "MISSED")
    train_model(model, optimizer, steps=20)
    assert list_values(watched, "MISSED") == [{"every_steps": 3, "last_step": 16}]
    assert judge_codes(watched, tmp_path) == [], "it may save the best ones alone"


def test_irregular_saves_are_no_schedule(start_watch: Any, tmp_path: Path) -> None:
    watched = start_watch(**FLAG)
    model = make_net()
    optimizer = train_model(model)
    for steps in (3, 3, 3, 4, 3):
        train_model(model, optimizer, steps=steps)
        torch.save(model.state_dict(), tmp_path / "a.pt")
    train_model(model, optimizer, steps=40)
    assert not list_values(watched, "MISSED")


# keys


def prefix_keys(model: nn.Module, prefix: str) -> "OrderedDict[str, Tensor]":
    return OrderedDict((prefix + name, value) for name, value in model.state_dict().items())


def test_a_prefix_leaves_the_model_as_it_was(start_watch: Any, tmp_path: Path) -> None:
    watched = start_watch(**FLAG)
    model = make_net()
    model.load_state_dict(prefix_keys(make_net(1), "module."), strict=False)
    train_model(model)
    (row,) = list_values(watched, "STATE")
    assert (row["prefix"], row["prefixed"], row["placed"], row["keys"]) == ("module.", 9, 0, 9)
    (finding,) = judge_watch(watched, tmp_path)
    assert finding.code == "TD-C010" and finding.severity == "error"
    assert finding.title == ("Sequential: 0 of 9 keys loaded, 9 of 9 given keys carry the prefix module., rank 0")


def test_a_prefix_that_is_lacking(start_watch: Any, tmp_path: Path) -> None:
    watched = start_watch(**FLAG)
    model = nn.DataParallel(make_net())
    model.load_state_dict(make_net(1).state_dict(), strict=False)
    train_model(model)
    assert list_values(watched, "PARTIAL")[0]["lacks"] == "module."
    assert judge_codes(watched, tmp_path) == ["TD-C010"]


def test_a_part_of_the_model_under_another_name(start_watch: Any, tmp_path: Path) -> None:
    watched = start_watch(**FLAG)
    model = nn.ModuleDict({"backbone": make_net(), "head": nn.Linear(2, 2)})
    weights = {**prefix_keys(make_net(1), "encoder.backbone."), **prefix_keys(nn.Linear(2, 2), "head.")}
    model.load_state_dict(weights, strict=False)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    model["head"](model["backbone"](torch.randn(4, 4))).sum().backward()
    optimizer.step()
    (finding,) = judge_watch(watched, tmp_path)
    assert finding.severity == "warning" and "2 of 11 keys loaded" in finding.title
    assert "carry the prefix encoder." in finding.title


def test_a_checkpoint_of_another_model(start_watch: Any, tmp_path: Path) -> None:
    watched = start_watch(**FLAG)
    model = make_net()
    other = nn.Sequential(*(nn.Linear(3, 3, bias=False) for _ in range(12)))
    model.load_state_dict(prefix_keys(other, "x"), strict=False)
    train_model(model)
    (finding,) = judge_watch(watched, tmp_path)
    assert finding.cause == "the keys are those of another model"


def test_evaluation_brings_it_to_light_as_well(start_watch: Any, tmp_path: Path) -> None:
    watched = start_watch(**FLAG)
    model = make_net().eval()
    model.load_state_dict(prefix_keys(make_net(1), "module."), strict=False)
    with torch.no_grad():
        model(torch.randn(4, 4))
    assert judge_codes(watched, tmp_path) == ["TD-C010"]


def test_what_is_filled_in_the_end_is_no_finding(start_watch: Any, tmp_path: Path) -> None:
    """A first try that fails, or another way to the same weights."""
    watched = start_watch(**FLAG)
    wrong, right = prefix_keys(make_net(1), "module."), make_net(1).state_dict()
    model = make_net()
    model.load_state_dict(wrong, strict=False)
    model.load_state_dict(right)
    train_model(model)
    model = make_net()
    model.load_state_dict(wrong, strict=False)
    for layer, source in zip(model, make_net(1), strict=True):
        layer.load_state_dict(source.state_dict())
    train_model(model)
    model = make_net()
    model.load_state_dict(wrong, strict=False)
    for parameter in model.parameters():
        parameter.data.fill_(0.25)
    train_model(model)
    assert judge_codes(watched, tmp_path) == []
    assert len(list_values(watched, "STATE")) >= 6


def new_head() -> tuple[nn.Module, dict[str, Tensor]]:
    weights = {f"0.{name}": value for name, value in make_net(1).state_dict().items()}
    weights |= {"head.weight": torch.ones(10, 2), "head.bias": torch.ones(10)}
    return nn.Sequential(make_net(), nn.Linear(2, 3)), weights


def make_adapters() -> tuple[nn.Module, dict[str, Tensor]]:
    return nn.Sequential(make_net(), nn.Linear(2, 2)), {"1.weight": torch.ones(2, 2), "1.bias": torch.ones(2)}


def backbone_alone() -> tuple[nn.Module, dict[str, Tensor]]:
    return make_net(), {**make_net(1).state_dict(), **prefix_keys(nn.Linear(64, 64), "decoder.")}


def nothing_at_all() -> tuple[nn.Module, dict[str, Tensor]]:
    return make_net(), {}


def teacher_beside_it() -> tuple[nn.Module, dict[str, Tensor]]:
    return make_net(), {**make_net(1).state_dict(), **prefix_keys(make_net(2), "teacher.")}


@pytest.mark.parametrize(
    "make", [new_head, make_adapters, backbone_alone, teacher_beside_it, nothing_at_all], ids=lambda one: one.__name__
)
def test_partial_loads_on_purpose_are_left_alone(start_watch: Any, tmp_path: Path, make: Any) -> None:
    watched = start_watch(**FLAG)
    model, weights = make()
    model.load_state_dict(weights, strict=False)
    train_model(model)
    (row,) = list_values(watched, "STATE")
    assert row["missing_count"] or row["unexpected_count"]
    assert judge_codes(watched, tmp_path) == []


def test_a_strict_load_that_fails_is_explained(start_watch: Any, tmp_path: Path) -> None:
    watched = start_watch(**FLAG)
    model = make_net()
    with pytest.raises(RuntimeError):
        model.load_state_dict(prefix_keys(make_net(1), "module."))
    with pytest.raises(RuntimeError):
        model.load_state_dict(make_net(width=16).state_dict())
    train_model(model)
    first, second = list_values(watched, "STATE")
    assert first["prefix"] == "module." and first["error"].startswith("RuntimeError")
    assert "0.weight [16, 4] to [8, 4]" in second["resized"]
    assert judge_codes(watched, tmp_path) == []


def test_the_way_from_the_file(start_watch: Any, tmp_path: Path) -> None:
    watched = start_watch(**FLAG)
    source = prefix_keys(make_net(1), "module.")
    torch.save({"model": source, "epoch": 1}, tmp_path / "a.pt")
    weights = {name.removeprefix("module."): value for name, value in torch.load(tmp_path / "a.pt")["model"].items()}
    weights["2.weight"] = weights["2.weight"].repeat(2, 1)
    weights["2.bias"] = weights["2.bias"].repeat(2)
    model = nn.Sequential(*make_net()[:2], nn.Linear(8, 4))
    model.load_state_dict(weights)
    train_model(model)
    (row,) = list_values(watched, "STATE")
    assert row["file"].endswith("a.pt") and row["file_prefix"] == "module."
    text = list_observations(watched, "checkpoint", "STATE")[0].text
    assert "9 of 9 keys loaded; changed after reading" in text and "prefix module. removed" in text


def test_resized_and_left_out_on_the_way(start_watch: Any, tmp_path: Path) -> None:
    watched = start_watch(**FLAG)
    torch.save(make_net(1).state_dict(), tmp_path / "a.pt")
    weights = torch.load(tmp_path / "a.pt")
    weights["0.weight"] = weights["0.weight"].repeat(2, 1)[:8]
    weights["1.running_mean"] = torch.nn.functional.interpolate(weights["1.running_mean"][None, None], size=4)[0, 0]
    del weights["2.bias"]
    with pytest.raises(RuntimeError):
        make_net().load_state_dict(weights, strict=False)
    model = make_net()
    del weights["1.running_mean"]
    weights["2.weight"] = torch.ones(2, 8)
    model.load_state_dict(weights, strict=False)
    train_model(model)
    row = list_values(watched, "STATE")[-1]
    assert row["file_left_out"] == 2 and row["missing"] == ["1.running_mean", "2.bias"]


def test_many_loads_of_averaged_weights_cost_little(start_watch: Any) -> None:
    watched = start_watch(flags={"CHECKPOINT": True}, max_overhead=1e-9)
    model = make_net()
    optimizer = train_model(model, steps=10)
    weights = copy.deepcopy(model.state_dict())
    for _ in range(40):
        model.load_state_dict(weights)
        train_model(model, optimizer)
    assert len(list_values(watched, "STATE")) == 16


# resumed runs


class Saved:
    """A run up to its 50th step, and what it saved."""

    def __init__(self, folder: Path) -> None:
        self.path = folder / "ckpt.pt"
        model = make_net()
        optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
        scheduler = lr_scheduler.CosineAnnealingLR(optimizer, 100)
        train_model(model, optimizer, 50, scheduler)
        parts = {"model": model, "optimizer": optimizer, "scheduler": scheduler}
        torch.save({**{name: part.state_dict() for name, part in parts.items()}, "step": 50}, self.path)


@pytest.fixture
def resumable_run(tmp_path: Path) -> Saved:
    return Saved(tmp_path)


def make_parts(model: nn.Module) -> tuple[Any, Any]:
    optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
    return optimizer, lr_scheduler.CosineAnnealingLR(optimizer, 100)


def test_a_run_that_goes_on(start_watch: Any, tmp_path: Path, resumable_run: Saved) -> None:
    watched = start_watch(**FLAG)
    model = make_net(1)
    optimizer, scheduler = make_parts(model)
    kept = torch.load(resumable_run.path)
    model.load_state_dict(kept["model"])
    optimizer.load_state_dict(kept["optimizer"])
    scheduler.load_state_dict(kept["scheduler"])
    train_model(model, optimizer, 5, scheduler)
    torch.save({"model": model.state_dict(), "step": 55}, tmp_path / "next.pt")
    train_model(model, optimizer, 1, scheduler)
    (row,) = list_values(watched, "RESUME")
    assert row["restored"] == ["optimizer", "scheduler"] and row["fault"] == ""
    assert row["steps"] == {"step": 50} and row["optimizer_step"] == 50 and row["scheduler_step"] == 50
    assert judge_codes(watched, tmp_path) == []


def test_the_counters_of_a_teachers_file_are_not_the_runs(
    start_watch: Any, tmp_path: Path, resumable_run: Saved
) -> None:
    torch.save({"model": make_net(2).state_dict(), "step": 300}, tmp_path / "teacher.pt")
    watched = start_watch(**FLAG)
    model = make_net(1)
    optimizer, scheduler = make_parts(model)
    kept = torch.load(resumable_run.path)
    optimizer.load_state_dict(kept["optimizer"])
    scheduler.load_state_dict(kept["scheduler"])
    make_net(2).load_state_dict(torch.load(tmp_path / "teacher.pt")["model"])
    train_model(model, optimizer, 5, scheduler)
    torch.save({"model": model.state_dict(), "step": 55}, tmp_path / "next.pt")
    (row,) = list_values(watched, "RESUME")
    assert row["steps"] == {"step": 50} and judge_codes(watched, tmp_path) == []


def test_a_scheduler_left_behind(start_watch: Any, tmp_path: Path, resumable_run: Saved) -> None:
    watched = start_watch(**FLAG)
    model = make_net(1)
    optimizer, scheduler = make_parts(model)
    kept = torch.load(resumable_run.path)
    model.load_state_dict(kept["model"])
    optimizer.load_state_dict(kept["optimizer"])
    train_model(model, optimizer, 5, scheduler)
    (finding,) = [one for one in judge_watch(watched, tmp_path) if one.code == "TD-C011"]
    assert "without its scheduler: the learning rate starts over" in finding.title


def test_a_scheduler_that_was_told_where_it_is(start_watch: Any, tmp_path: Path, resumable_run: Saved) -> None:
    watched = start_watch(**FLAG)
    model = make_net(1)
    optimizer, _ = make_parts(model)
    kept = torch.load(resumable_run.path)
    optimizer.load_state_dict(kept["optimizer"])
    scheduler = lr_scheduler.CosineAnnealingLR(optimizer, 100, last_epoch=50)
    train_model(model, optimizer, 5, scheduler)
    assert list_values(watched, "RESUME")[0]["fault"] == ""
    assert judge_codes(watched, tmp_path) == []


def test_an_optimizer_made_anew(start_watch: Any, tmp_path: Path, resumable_run: Saved) -> None:
    watched = start_watch(**FLAG)
    model = make_net(1)
    optimizer, _ = make_parts(model)
    kept = torch.load(resumable_run.path)
    model.load_state_dict(kept["model"])
    optimizer.load_state_dict(kept["optimizer"])
    train_model(model, torch.optim.Adam(model.parameters(), lr=0.01), 5)
    (finding,) = judge_watch(watched, tmp_path)
    assert finding.code == "TD-C011" and finding.title.endswith("but another optimizer makes the updates, rank 0")


def test_a_counter_that_begins_anew(start_watch: Any, tmp_path: Path, resumable_run: Saved) -> None:
    watched = start_watch(**FLAG)
    model = make_net(1)
    optimizer, scheduler = make_parts(model)
    kept = torch.load(resumable_run.path)
    optimizer.load_state_dict(kept["optimizer"])
    scheduler.load_state_dict(kept["scheduler"])
    train_model(model, optimizer, 5, scheduler)
    torch.save({"step": 5}, tmp_path / "next.pt")
    (finding,) = judge_watch(watched, tmp_path)
    assert finding.title == "resumed at step 50, and the next save says 5, rank 0"


def test_a_count_within_the_epoch_may_begin_anew(start_watch: Any, tmp_path: Path) -> None:
    watched = start_watch(**FLAG)
    model = make_net()
    optimizer = train_model(model, steps=2)
    torch.save({"optimizer": optimizer.state_dict(), "epoch": 2, "iter": 900}, tmp_path / "a.pt")
    optimizer.load_state_dict(torch.load(tmp_path / "a.pt")["optimizer"])
    train_model(model, optimizer, 4)
    torch.save({"epoch": 3, "iter": 100}, tmp_path / "b.pt")
    assert not list_values(watched, "COUNTER")


def test_fine_tuning_is_no_resumed_run(start_watch: Any, tmp_path: Path, resumable_run: Saved) -> None:
    watched = start_watch(**FLAG)
    model = make_net(1)
    optimizer, scheduler = make_parts(model)
    model.load_state_dict(torch.load(resumable_run.path)["model"])
    train_model(model, optimizer, 5, scheduler)
    torch.save({"step": 5}, tmp_path / "next.pt")
    assert not list_values(watched, "RESUME") and judge_codes(watched, tmp_path) == []


def test_a_schedule_alone_makes_no_resumed_run(start_watch: Any, tmp_path: Path, resumable_run: Saved) -> None:
    watched = start_watch(**FLAG)
    model = make_net(1)
    optimizer, scheduler = make_parts(model)
    scheduler.load_state_dict(torch.load(resumable_run.path)["scheduler"])
    train_model(model, optimizer, 5, scheduler)
    torch.save({"step": 5}, tmp_path / "next.pt")
    assert list_values(watched, "RESUME")[0]["restored"] == ["scheduler"]
    assert judge_codes(watched, tmp_path) == []


# names and shapes


def test_shapes_of_a_module_are_those_of_its_state() -> None:
    model = nn.Sequential(make_net(), nn.Linear(2, 2))
    model[1].weight = nn.Parameter(torch.ones(2, 2))
    model.tied = model[1]
    model.register_buffer("kept", torch.ones(3))
    model.register_buffer("not_kept", torch.ones(3), persistent=False)
    assert collect_module_shapes(model) == collect_shapes(model.state_dict())


def test_renamed_keys_are_paired() -> None:
    wanted, given = {"a.w": (2,), "head.bias": (5,)}, {"a.w": (2,), "fc.bias": (5,)}
    found = compare_keys(wanted, given, ["head.bias"], ["fc.bias"])
    assert found.renamed == ["fc.bias -> head.bias"] and found.placed_count == 1
    given = {"a.w": (2,), "fc.bias": (6,)}
    assert compare_keys(wanted, given, ["head.bias"], ["fc.bias"]).renamed == []


def test_everything_is_put_back(start_watch: Any) -> None:
    before = torch.save, torch.load, nn.Module.load_state_dict, lr_scheduler.LRScheduler.__init__
    watched = start_watch(**FLAG)
    assert torch.save is not before[0]
    watched.monitor.activate_probes([])
    assert (torch.save, torch.load, nn.Module.load_state_dict, lr_scheduler.LRScheduler.__init__) == before


# resumed without the optimizer


def test_a_restored_scheduler_without_its_optimizer(start_watch: Any, tmp_path: Path, resumable_run: Saved) -> None:
    watched = start_watch(**FLAG)
    model = make_net(1)
    optimizer, scheduler = make_parts(model)
    kept = torch.load(resumable_run.path)
    model.load_state_dict(kept["model"])
    scheduler.load_state_dict(kept["scheduler"])
    train_model(model, optimizer, 5, scheduler)
    (finding,) = judge_watch(watched, tmp_path)
    assert (finding.code, finding.severity, finding.grade) == ("TD-C028", "warning", "located")
    assert "without the optimizer: Adam begins without its state (its scheduler is at step 5" in finding.title


def test_a_counter_that_goes_on_without_the_optimizer(start_watch: Any, tmp_path: Path, resumable_run: Saved) -> None:
    watched = start_watch(**FLAG)
    model = make_net(1)
    optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
    kept = torch.load(resumable_run.path)
    model.load_state_dict(kept["model"])
    train_model(model, optimizer, 3)
    torch.save({"model": model.state_dict(), "step": kept["step"] + 3}, tmp_path / "next.pt")
    (finding,) = judge_watch(watched, tmp_path)
    assert finding.code == "TD-C028" and "(the next save says step 53)" in finding.title


NOT_MISSED = ("restored", "by hand", "fine-tuning", "a small count", "a teacher", "no averages")


@pytest.mark.parametrize("kind", NOT_MISSED)
def test_where_no_optimizer_state_is_missed(start_watch: Any, tmp_path: Path, resumable_run: Saved, kind: str) -> None:
    watched = start_watch(**FLAG)
    model = make_net(1)
    optimizer, _ = make_parts(model)
    kept = torch.load(resumable_run.path)
    if kind == "no averages":
        kept["optimizer"]["state"] = {}
        torch.save(kept, tmp_path / "plain.pt")
        kept = torch.load(tmp_path / "plain.pt")
        watched.monitor.find_probe("checkpoint")._files.popleft()
    (make_net(3) if kind == "a teacher" else model).load_state_dict(kept["model"])
    if kind == "restored":
        optimizer.load_state_dict(kept["optimizer"])
    if kind == "by hand":
        for parameter, state in zip(model.parameters(), kept["optimizer"]["state"].values(), strict=True):
            optimizer.state[parameter] = state
    train_model(model, optimizer, 3)
    number = {"fine-tuning": 3, "a small count": 45}.get(kind, 53)
    torch.save({"model": model.state_dict(), "step": number}, tmp_path / "next.pt")
    assert "TD-C028" not in judge_codes(watched, tmp_path)
