"""Flags and levels switched from within the program, in a run and outside of one; nothing is left behind."""

import gc
import threading

import pytest
import torch
from torch import nn
from torch.nn.modules import module as module_registry
from torch.optim import optimizer as optimizer_module

import tdbg
from tdbg.api import session
from tdbg.core.errors import TdbgError
from tdbg.core.events import Cost, End, NonFinite, Observation, Start, Step, Switch
from tdbg.core.flags import FLAGS

from .conftest import small_model, train_model


def list_torch_hooks() -> tuple[object, ...]:
    """Every place where tdbg stands in torch."""
    return (
        torch.autograd.backward,
        torch.optim.Optimizer.__init__,
        nn.utils.clip_grad_norm_,
        torch.jit.script,
        nn.Module.compile,
        torch.save,
        torch.load,
        torch.utils.data.dataloader._BaseDataLoaderIter.__next__,
        torch.amp.GradScaler.step,
        tuple(optimizer_module._global_optimizer_pre_hooks),
        tuple(optimizer_module._global_optimizer_post_hooks),
        tuple(module_registry._global_module_registration_hooks),
        tuple(module_registry._global_parameter_registration_hooks),
        threading.active_count(),
    )


def test_some_flags_on_and_off():
    before = list_torch_hooks()
    tdbg.enable_debugging(["memory_usage", "debug_gradient_norms"])
    status = tdbg.get_debugging_status()
    assert (status["active"], status["inside_run"], status["level"], status["run_dir"]) == (True, False, "basic", "")
    assert {name for name, value in status["flags"].items() if value} == {"MEMORY", "GRADIENTS"}
    assert set(status["flags"]) >= {flag.name for flag in FLAGS}
    assert list_torch_hooks() != before
    train_model(4)
    assert tdbg.flag("MEMORY") is True and tdbg.get_debugging_status()["step"] == 4
    seen = {event.flag for event in session.current_session().collect_events() if isinstance(event, Observation)}
    assert {"MEMORY", "GRADIENTS"} <= seen
    tdbg.disable_debugging("memory_usage")
    assert tdbg.get_debugging_status()["active"] and tdbg.flag("MEMORY") is False
    monitor = session.current_session().monitor
    tdbg.disable_debugging("gradient_norms")
    assert not tdbg.get_debugging_status()["active"] and monitor.hook_count() == 0
    assert list_torch_hooks() == before


def test_all_flags():
    before = list_torch_hooks()
    tdbg.enable_debugging()
    assert all(tdbg.get_debugging_status()["flags"].values())
    assert torch.is_anomaly_enabled()
    train_model(3)
    assert tdbg.get_debugging_status()["cost"]["own_ms"] > 0
    tdbg.disable_debugging()
    assert not any(tdbg.get_debugging_status()["flags"].values())
    assert list_torch_hooks() == before and not torch.is_anomaly_enabled()


def test_values_families_and_unknown_names():
    tdbg.enable_debugging(["LOSS", "GRADIENTS=2"])
    flags = tdbg.get_debugging_status()["flags"]
    assert flags["GRADIENTS"] == "2" and flags["LOSS.NULL_MASKING"] and tdbg.flag("LOSS.GRADNORM_MEMORY")
    with pytest.raises(TdbgError, match="no flag is named 'memry'; did you mean MEMORY"):
        tdbg.enable_debugging("memry")
    with pytest.raises(TdbgError, match="no flag is named"):
        tdbg.disable_debugging(["nonsense"])
    assert tdbg.get_debugging_status()["active"]
    tdbg.disable_debugging()


def test_anomaly_mode_is_torchs_own_and_goes_back():
    torch.autograd.set_detect_anomaly(True, check_nan=False)
    tdbg.enable_debugging("autograd_anomaly")
    tdbg.enable_debugging("autograd_anomaly")
    assert tdbg.get_debugging_status()["autograd_anomaly"] and torch.is_anomaly_check_nan_enabled()
    x = torch.zeros(2, requires_grad=True)
    with pytest.warns(UserWarning, match="Error detected"), pytest.raises(RuntimeError, match="nan values"):
        (x.sqrt() * 0).sum().backward()
    tdbg.disable_debugging("autograd_anomaly")
    assert torch.is_anomaly_enabled() and not torch.is_anomaly_check_nan_enabled()


def test_a_model_and_an_optimizer_that_were_there_before():
    model = small_model()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    gc.collect()
    with tdbg.debug_context("basic"):
        train_model(2, model=model, optimizer=optimizer)
        rows = tdbg.history()
    assert [row["step"] for row in rows] == [1, 2]
    assert all(row["samples"] == 6 and row["forward_ms"] > 0 and row["lr"] == [0.1] for row in rows)
    assert not model._forward_hooks and not model._forward_pre_hooks


@pytest.mark.parametrize("how", ["wrapped", "method"])
def test_a_compiled_model_is_watched_and_not_compiled_anew(how):
    from torch._dynamo.utils import counters

    class Model(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.body = small_model()

        def forward(self, x_NF: torch.Tensor) -> torch.Tensor:
            return self.body(x_NF)

    torch._dynamo.reset()
    counters.clear()
    model = Model()
    if how == "wrapped":
        model = torch.compile(model, backend="eager")
    else:
        model.compile(backend="eager")
    train_model(2, model=model)
    before = counters["stats"]["unique_graphs"], counters["frames"]["total"], model._compiled_call_impl
    for _ in range(2):
        with tdbg.debug_context("basic"):
            train_model(2, model=model)
            assert [row["samples"] for row in tdbg.history()] == [6, 6]
    train_model(2, model=model)
    assert (counters["stats"]["unique_graphs"], counters["frames"]["total"], model._compiled_call_impl) == before


def test_the_history():
    assert tdbg.history() == []
    tdbg.clear_history()
    with tdbg.debug_context("basic"):
        train_model(3)
        assert [row["step"] for row in tdbg.history()] == [1, 2, 3]
        assert {"loss", "grad_norm", "lr", "finite"} <= set(tdbg.history()[0])
        tdbg.clear_history()
        assert tdbg.history() == []
        train_model(1)
        assert len(tdbg.history()) == 1
    assert tdbg.history() == []


def test_a_context_of_its_own():
    before = list_torch_hooks()
    with tdbg.debug_context("advanced") as debugger:
        assert isinstance(debugger, tdbg.PyTorchDebugger) and debugger.level is tdbg.DebugLevel.ADVANCED
        assert tdbg.get_debugging_status()["level"] == "advanced"
        train_model(5, bad_at=3)
        assert [found["code"] for found in debugger.findings()] == ["TD-N001"]
    assert list_torch_hooks() == before and session.current_session() is None
    kinds = [type(event) for event in debugger.session.collect_events()]
    assert kinds[0] is Start and kinds[-2:] == [Cost, End] and {Step, NonFinite, Observation} <= set(kinds)
    (finding,) = [found for found in debugger.findings() if found["code"] == "TD-N001"]
    assert finding["first_step"] == 3 and "step 3" in finding["title"]


def test_other_ranks_are_not_judged_by_what_one_tells():
    """Rank 3 saves for a minute, and says so in its own process."""
    with tdbg.debug_context("basic") as debugger:
        events = debugger.session.memory.events
        events.append(Start(t=1.0, rank=0, world_size=8))
        call = {"state": "collective", "op": "all_reduce", "group": "world", "size": 8, "number": 9, "alive_s": 20.0}
        for after_s in (16.0, 64.0, 128.0):
            values = {"began_t": 2.0, "quiet_s": after_s, "limit_s": 15.0, "counts": {"world": 9}, **call}
            seen = {"probe": "hang", "flag": "DISTRIBUTED", "part": "QUIET", "step": 3, "text": "-", "values": values}
            events.append(Observation(t=2.0 + after_s, **seen))
        assert debugger.findings() == []


def test_a_healthy_training_has_no_finding():
    for level in ("basic", "advanced", "extreme"):
        with tdbg.debug_context(level) as debugger:
            train_model(12)
        assert debugger.findings() == [], level


def test_a_context_off():
    with tdbg.debug_context("off") as debugger:
        assert session.current_session() is None and debugger.findings() == []
    with tdbg.debug_context("basic"):
        with tdbg.debug_context("off"):
            train_model(2)
            assert tdbg.history() == [] and tdbg.get_debugging_status()["level"] == "off"
        train_model(1)
        assert len(tdbg.history()) == 1, "it looks again"


def test_contexts_nest_and_restore():
    with tdbg.debug_context("basic") as outer:
        with tdbg.debug_context("extreme") as inner:
            assert inner.session is outer.session
            assert tdbg.get_debugging_status()["level"] == "extreme"
            with pytest.raises(KeyError), tdbg.debug_context("advanced"):
                assert tdbg.get_debugging_status()["level"] == "advanced"
                raise KeyError("x")
            assert tdbg.get_debugging_status()["level"] == "extreme"
        assert tdbg.get_debugging_status()["level"] == "basic"
        train_model(1)
    switches = [(event.level, event.why) for event in outer.session.collect_events() if isinstance(event, Switch)]
    assert switches == [(level, "api") for level in ("extreme", "advanced", "extreme", "basic")]


def test_a_context_leaves_alone_what_somebody_else_changed():
    with tdbg.debug_context("basic") as outer:
        with tdbg.debug_context("advanced"):
            outer.session.change_settings(level="extreme")
        assert tdbg.get_debugging_status()["level"] == "extreme"


def test_flags_set_inside_a_context_end_with_it():
    with tdbg.debug_context("basic"):
        tdbg.enable_debugging(["MEMORY", "autograd_anomaly"])
        assert torch.is_anomaly_enabled()
        train_model(2)
    assert not tdbg.flag("MEMORY") and not torch.is_anomaly_enabled() and session.current_session() is None


def test_a_context_under_enabled_flags_keeps_the_watch():
    tdbg.enable_debugging("MEMORY")
    with tdbg.debug_context("advanced"):
        train_model(1)
    assert tdbg.get_debugging_status()["level"] == "basic" and tdbg.flag("MEMORY")
    tdbg.disable_debugging()


def test_an_error_inside_with_its_context():
    with pytest.raises(ZeroDivisionError), tdbg.debug_context("extreme") as debugger:
        train_model(2)
        raise ZeroDivisionError("ours")
    (entry,) = debugger.debug_history
    assert entry["kind"] == "exception" and entry["exception"] == "ZeroDivisionError"
    assert any('raise ZeroDivisionError("ours")' in line for line in entry["lines"]) and [
        row["step"] for row in entry["steps"]
    ] == [1, 2]
    with pytest.raises(ZeroDivisionError), tdbg.debug_context("basic") as debugger:
        raise ZeroDivisionError("ours")
    assert "lines" not in debugger.debug_history[0]


def test_training_is_bit_identical():
    bare = train_model(6)
    with tdbg.debug_context("extreme"):
        tdbg.enable_debugging()
        watched = train_model(6)
    for one, other in zip(bare.parameters(), watched.parameters(), strict=True):
        assert torch.equal(one, other)


def test_an_unknown_level():
    with pytest.raises(TdbgError, match="no level is named 'loud'"), tdbg.debug_context("loud"):
        pass


def test_memory_is_bounded():
    with tdbg.debug_context("basic") as debugger:
        train_model(1)
        kept = debugger.session.memory
        for index in range(2500):
            kept.emit(Step(step=index, grad_norms=[1.0]))
    assert len(kept.events) == 2000
    assert sum(1 for event in kept.events if isinstance(event, Step) and event.grad_norms) <= 200


def test_in_a_run(program_runner):
    done = program_runner(
        """
        seen = []
        def after(step):
            if step == 3:
                tdbg.enable_debugging("memory_usage")
            if step == 6:
                tdbg.disable_debugging()
            status = tdbg.get_debugging_status()
            seen.append((status["inside_run"], status["level"], status["flags"]["MEMORY"], tdbg.flag("MEMORY")))
        train(8, after)
        with tdbg.debug_context("extreme") as debugger:
            level = tdbg.get_debugging_status()["level"]
        print(json.dumps({
            "seen": seen, "level": level, "after": tdbg.get_debugging_status()["level"],
            "steps": [row["step"] for row in tdbg.history()], "anomaly": torch.is_anomaly_enabled(),
        }))
        """,
        ["--allowance", "0"],  # without the opening inspection the flags alone look
    )
    told = done.printed_json
    assert told["seen"] == [[True, "basic", on, on] for on in [False] * 2 + [True] * 3 + [False] * 3]
    assert (told["level"], told["after"], told["anomaly"]) == ("extreme", "basic", False)
    assert told["steps"] == list(range(1, 9))
    switches = [(event["step"], event["level"], event.get("flags", {})) for event in done.read_events("switch")]
    assert switches == [
        (3, "basic", {"MEMORY": True}),
        (6, "basic", {}),
        (8, "extreme", {}),
        (8, "basic", {}),
    ]
    steps = {event["step"] for event in done.read_events("observation") if event.get("flag") == "MEMORY"}
    assert steps and steps <= {4, 5, 6}


def test_two_ranks_switch_at_the_same_step(program_runner):
    done = program_runner(
        """
        import gc, time
        import torch.distributed as dist
        from torch.nn.parallel import DistributedDataParallel
        dist.init_process_group("gloo")
        real = nn.Sequential
        nn.Sequential = lambda *layers: DistributedDataParallel(real(*layers))
        def after(step):
            tdbg.metric("rank", dist.get_rank())
            if step == 2:
                after.context = tdbg.debug_context("advanced")
                after.context.__enter__()
            if step == 5:
                after.context.__exit__(None, None, None)
        train(7, after)
        gc.collect()
        dist.barrier()
        time.sleep(0.3)
        dist.destroy_process_group()
        """,
        ["--allowance", "0"],  # without the opening inspection the flags alone look
        launcher=("torchrun", "--standalone", "--nproc-per-node=2"),
    )
    assert done.code == 0, done.stderr
    for rank in ("rank0000", "rank0001"):
        switches = [(event["step"], event["level"], event["why"]) for event in done.read_events("switch", rank)]
        assert switches == [(2, "advanced", "api"), (5, "basic", "api")], rank
        assert {event.get("value", 0.0) for event in done.read_events("metric", rank)} == {float(rank[-1])}
        looked = {event["step"] for event in done.read_events("observation", rank) if event["probe"] == "backward"}
        assert looked == {3, 4, 5}, rank


def test_in_a_run_that_is_to_look_at_nothing(program_runner):
    done = program_runner(
        """
        tdbg.enable_debugging("MEMORY")
        with tdbg.debug_context("extreme") as debugger:
            train(2)
        print(json.dumps([tdbg.get_debugging_status()["active"], tdbg.flag("MEMORY"), debugger.findings()]))
        """,
        ["--level", "off"],
    )
    assert done.printed_json == [False, True, []]
    assert done.stderr.count("--level off") == 2
    assert done.read_events("step") == []


def test_a_fork_begins_anew(program_runner):
    done = program_runner(
        """
        import os
        with tdbg.debug_context("basic") as debugger:
            train(3)
            pid = os.fork()
            if pid == 0:
                train(2)
                print(json.dumps([row["step"] for row in tdbg.history()]), flush=True)
                os._exit(0)
            os.waitpid(pid, 0)
            train(1)
            print(json.dumps([row["step"] for row in tdbg.history()]))
        """
    )
    assert done.stdout.splitlines() == ["[1, 2]", "[1, 2, 3, 4]"], done.stderr


def test_the_summary_of_a_context_counts_what_its_findings_hold():
    with tdbg.debug_context("advanced") as debugger:
        train_model(3)
        assert debugger.get_debug_summary()["total_anomalies"] == 0
        model = small_model()
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        model(torch.full((6, 8), float("nan"))).sum().backward()
        optimizer.step()
        debugger.analyze_tensor(torch.tensor([float("inf")]), "x")
        model(torch.ones(6, 8)).sum().backward()
        optimizer.step()
    found = [finding["code"] for finding in debugger.findings() if finding["severity"] != "info"]
    summary = debugger.get_debug_summary()
    assert "TD-N001" in found and summary["anomalies"]["TD-N001"] == 1 and summary["anomalies"]["non-finite"] == 1
    assert summary["total_anomalies"] == len(found) + 1
