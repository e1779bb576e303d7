"""The callbacks in the real frameworks: outside of a run they record, inside they do nothing."""

import json
from pathlib import Path

import pytest

from tdbg.core.errors import TdbgError
from tdbg.core.events import Cost, End, Params, Plan, Start, Step
from tdbg.core.rundir import RunDir
from tdbg.rules.rule_engine import judge_run

LIGHTNING = """
import json, sys, warnings, logging
warnings.filterwarnings("ignore")
logging.getLogger("lightning.pytorch").setLevel(logging.ERROR)
import lightning, torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset
import tdbg
from tdbg.api.callbacks.lightning import TdbgCallback

class Net(lightning.LightningModule):
    bad_at = 0
    def __init__(self):
        super().__init__()
        self.body = nn.Sequential(nn.Linear(8, 16), nn.Tanh(), nn.Linear(16, 1))
    def training_step(self, batch, index):
        x, y = batch
        if self.global_step + 1 == self.bad_at:
            x = x * float("nan")
        if self.bad_at < 0 and self.global_step == 3:
            raise KeyError("broken")
        return nn.functional.mse_loss(self.body(x), y)
    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), lr=0.05)

def fit(callback, devices=1, **more):
    torch.manual_seed(0)
    net = Net()
    net.bad_at = more.pop("bad_at", 0)
    data = DataLoader(TensorDataset(torch.randn(32, 8), torch.randn(32, 1)), batch_size=4)
    trainer = lightning.Trainer(accelerator="cpu", devices=devices, strategy="ddp" if devices > 1 else "auto",
        max_epochs=1, logger=False, enable_checkpointing=False, enable_progress_bar=False, enable_model_summary=False,
        callbacks=[callback], **more)
    trainer.fit(net, data)
    return net
"""

TRANSFORMERS = """
import json, os, sys, tempfile
import torch, tdbg
from torch import nn
from transformers import GPT2Config, GPT2LMHeadModel, Trainer, TrainingArguments, set_seed
from transformers.trainer_callback import PrinterCallback
from tdbg.api.callbacks.transformers import TdbgCallback

def fit(callback, bad=False):
    set_seed(0)
    config = GPT2Config(vocab_size=50, n_positions=16, n_embd=32, n_layer=1, n_head=2, bos_token_id=0, eos_token_id=0)
    data = [{"input_ids": row, "labels": row} for row in (torch.arange(16) + torch.arange(40)[:, None]) % 50]
    model = GPT2LMHeadModel(config)
    if bad:
        model.transformer.ln_f.weight.data[0] = float("nan")
    with tempfile.TemporaryDirectory() as folder:
        arguments = TrainingArguments(output_dir=folder, max_steps=6, per_device_train_batch_size=4, logging_steps=100,
            save_strategy="no", report_to=[], disable_tqdm=True, use_cpu=True, seed=0)
        trainer = Trainer(model=model, args=arguments, train_dataset=data, callbacks=[callback])
        trainer.remove_callback(PrinterCallback)
        trainer.train()
"""

IGNITE = """
import json, sys
import torch, tdbg
from torch import nn
from ignite.engine import create_supervised_trainer
from tdbg.api.callbacks.ignite import TdbgCallback

def fit(callback, bad_at=-1, epochs=2):
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 1))
    trainer = create_supervised_trainer(model, torch.optim.SGD(model.parameters(), lr=0.05), nn.MSELoss())
    callback.attach(trainer, model)
    data = [(torch.randn(4, 8) * (float("nan") if i == bad_at else 1), torch.randn(4, 1)) for i in range(4)]
    trainer.run(data, max_epochs=epochs)
    return trainer, data
"""

# As many steps as are recorded whatever it costs: these take less than a millisecond.
FRAMEWORKS = {"lightning": (LIGHTNING, 8), "transformers": (TRANSFORMERS, 6), "ignite": (IGNITE, 8)}
by_framework = pytest.mark.parametrize("name", FRAMEWORKS)


def list_events(folder: Path, kind: type, rank: int = 0) -> list:
    (process,) = [process for process in RunDir(folder).list_processes() if process.rank == rank and process.is_rank]
    return [event for event in process.iter_events() if isinstance(event, kind)]


@by_framework
def test_into_a_directory_and_again(program_runner, name):
    header, steps = FRAMEWORKS[name]
    done = program_runner(
        """
        first, second = TdbgCallback("runs/a", flags=["memory_usage"]), TdbgCallback("runs/a", level="advanced")
        fit(first), fit(second)
        print(json.dumps([first.findings(), second.findings(), tdbg.get_debugging_status()["active"],
            first.watch.session.monitor.hook_count(), tdbg.flag("MEMORY")]))
        """,
        header=header,
    )
    assert done.printed_json == [[], [], False, 0, False]
    runs = done.folder.parent / "runs"
    assert sorted(path.name for path in runs.iterdir()) == ["a", "a-2"]
    for folder in (runs / "a", runs / "a-2"):
        assert [step.step for step in list_events(folder, Step)] == list(range(1, steps + 1))
        assert all(step.loss is not None and step.grad_norm for step in list_events(folder, Step))
        assert [plan.steps for plan in list_events(folder, Plan)] == [steps]
        assert len(list_events(folder, Start)) == len(list_events(folder, End)) == len(
            list_events(folder, Params)
        ) == 1 and list_events(folder, Cost)
        verdict = judge_run(RunDir(folder)).as_dict()
        assert verdict["findings"] == [] and verdict["trouble"] == []
        assert verdict["exit"]["text"] == "exit 0" and verdict["ranks"][0]["ended"] == "ended"
    lines = (runs / "a" / "rank0000" / "debug_log_rank0.txt").read_text()
    assert "[DEBUG_MEMORY" in lines
    assert RunDir(runs / "a-2").read_info()["settings"]["level"] == "advanced"


def test_in_memory(program_runner):
    done = program_runner(
        """
        callback = TdbgCallback()
        fit(callback)
        print(json.dumps([callback.findings(), callback.watch.session.run_dir, tdbg.history()]))
        """,
        header=IGNITE,
    )
    assert done.printed_json == [[], "", []]
    assert sorted(path.name for path in done.folder.parent.iterdir()) == ["program.py"]


@pytest.mark.parametrize(
    ("name", "how", "step"), [("lightning", "bad_at=4", 4), ("transformers", "bad=True", 1), ("ignite", "bad_at=2", 3)]
)
def test_a_fault_is_found(program_runner, name, how, step):
    header, _ = FRAMEWORKS[name]
    done = program_runner(
        f"""
        callback = TdbgCallback("runs/a")
        fit(callback, {how})
        print(json.dumps([(found["code"], found["first_step"]) for found in callback.findings()]))
        """,
        header=header,
    )
    assert done.printed_json[0] == ["TD-N001", step]
    assert judge_run(RunDir(done.folder.parent / "runs" / "a")).findings[0].code == "TD-N001"


@by_framework
def test_inside_a_run_it_does_nothing(program_runner, name):
    header, steps = FRAMEWORKS[name]
    done = program_runner(
        """
        callback = TdbgCallback("runs/a", level="extreme", flags=["memory_usage"])
        fit(callback)
        print(json.dumps([callback.watch.session is None, callback.findings(), tdbg.flag("MEMORY")]))
        """,
        [],
        header=header,
    )
    assert done.printed_json == [True, [], False]
    assert not (done.folder.parent / "runs").exists()
    numbers = [event["step"] for event in done.read_events("step")]
    assert numbers == list(range(1, steps + 1)), "each step once"


def test_lightning_with_two_processes(program_runner):
    done = program_runner("fit(TdbgCallback('runs/a'), devices=2)", header=LIGHTNING)
    assert done.code == 0, done.stderr
    runs = done.folder.parent / "runs"
    assert [path.name for path in runs.iterdir()] == ["a"], "both ranks write into one directory"
    for rank in (0, 1):
        assert [step.step for step in list_events(runs / "a", Step, rank)] == list(range(1, 5))
        assert list_events(runs / "a", Start, rank)[0].world_size == 2
    verdict = judge_run(RunDir(runs / "a"))
    assert verdict.findings == [] and [row["rank"] for row in verdict.ranks] == [0, 1]


def test_an_exception_in_lightning_is_on_record(program_runner):
    done = program_runner(
        """
        callback = TdbgCallback("runs/a")
        try:
            fit(callback, bad_at=-1)
        except KeyError:
            print(json.dumps(tdbg.get_debugging_status()["active"]))
        """,
        header=LIGHTNING,
    )
    assert done.printed_json is False
    verdict = judge_run(RunDir(done.folder.parent / "runs" / "a")).as_dict()
    assert "TD-R003" in [finding["code"] for finding in verdict["findings"]]
    assert verdict["exit"]["text"] == "exit 1"


def test_after_an_exception_nobody_told_of_the_next_training_is_watched(program_runner):
    done = program_runner(
        """
        callback = TdbgCallback("runs/a")
        torch.manual_seed(0)
        model = nn.Linear(8, 1)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
        trainer, again = (create_supervised_trainer(model, optimizer, nn.MSELoss()) for _ in range(2))
        callback.attach(trainer, model), callback.attach(again, model)
        good = [(torch.randn(4, 8), torch.randn(4, 1)) for _ in range(5)]
        try:
            trainer.run([*good[:3], (torch.randn(4, 7), torch.randn(4, 1))], max_epochs=1)
        except RuntimeError as error:
            told = "shapes" in str(error)
        again.run(good, max_epochs=1)
        print(json.dumps(told))
        """,
        header=IGNITE,
    )
    assert done.printed_json is True, "the handler keeps no exception from being raised"
    runs = done.folder.parent / "runs"
    assert len(list_events(runs / "a", Step)) == 3 and len(list_events(runs / "a-2", Step)) == 5
    assert RunDir(runs / "a").read_info()["exit"] == {"code": 1, "signal": None}


def test_an_ignite_engine_that_goes_on_has_a_plan_of_its_own(program_runner):
    done = program_runner(
        """
        trainer, data = fit(TdbgCallback("runs/a"), epochs=2)
        trainer.run(data, max_epochs=3)
        """,
        header=IGNITE,
    )
    assert done.code == 0, done.stderr
    folder = done.folder.parent / "runs" / "a-2"
    assert [plan.steps for plan in list_events(folder, Plan)] == [4] and len(list_events(folder, Step)) == 4
    assert judge_run(RunDir(folder)).findings == []


def test_wrong_use(program_runner, tmp_path):
    from tdbg.api.callbacks.ignite import TdbgCallback

    with pytest.raises(TdbgError, match="no level is named 'loud'"):
        TdbgCallback(level="loud")
    with pytest.raises(TdbgError, match="no flag is named 'memry'; did you mean MEMORY"):
        TdbgCallback(flags=["memry"])
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "thesis.tex").write_text("x")
    done = program_runner("fit(TdbgCallback('mine', flags=['MEMORY']))", header=IGNITE)
    assert done.code == 1 and "is not empty and holds no run" in done.stderr
    assert [path.name for path in (tmp_path / "mine").iterdir()] == ["thesis.tex"]


def test_a_directory_that_cannot_be_written_costs_no_training(program_runner, tmp_path):
    (tmp_path / "file").write_text("x")
    done = program_runner(
        """
        callback = TdbgCallback("file/a")
        fit(callback)
        print(json.dumps([callback.findings(), callback.watch.session.run_dir]))
        """,
        header=IGNITE,
    )
    assert done.printed_json == [[], ""] and "events are kept in memory" in done.stderr


def test_under_a_watch_that_is_on_it_does_nothing(program_runner):
    done = program_runner(
        """
        with tdbg.debug_context("basic") as debugger:
            callback = TdbgCallback("runs/a")
            fit(callback)
            print(json.dumps([callback.watch.session is None, len(tdbg.history())]))
        """,
        header=IGNITE,
    )
    assert json.loads(done.stdout) == [True, 8]
