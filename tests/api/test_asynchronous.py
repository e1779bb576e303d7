"""AsyncTrainingLogger: what it says, and that the event loop goes on meanwhile."""

import asyncio
import inspect
import json
import logging
import math
import threading
from typing import Any

import pytest
import torch

from tdbg import AsyncTrainingLogger, TrainingPhase

from .conftest import small_model


@pytest.fixture
def training_records(caplog):
    caplog.set_level(logging.DEBUG, logger="tdbg.training")
    return lambda: [record for record in caplog.records if record.name == "tdbg.training"]


def test_the_names_people_know():
    assert [phase.name for phase in TrainingPhase] == [
        "INITIALIZATION",
        "DATA_LOADING",
        "TRAINING",
        "VALIDATION",
        "CHECKPOINTING",
        "COMPLETION",
    ]
    signature = inspect.signature(AsyncTrainingLogger)
    assert {name: item.default for name, item in signature.parameters.items()} == {
        "user_id": None,
        "model_name": None,
        "enable_autograd_debug": False,
    }


def test_a_whole_training(training_records):
    async def main() -> dict:
        logger = AsyncTrainingLogger("ada", "tiny")
        assert logger.phase is TrainingPhase.INITIALIZATION
        logger.start_training(total_epochs=2, total_steps=10)
        for step in range(1, 11):
            told = await logger.update_progress_async(step // 6, step, torch.tensor(1.0 / step), 1e-3)
        assert told["percent"] == 100.0 and told["eta_s"] == 0.0 and told["loss"] == pytest.approx(0.1)
        logger.log_warning("slow disk", phase=TrainingPhase.DATA_LOADING)
        return logger.complete_training()

    summary = asyncio.run(main())
    assert (summary["step"], summary["warnings"], summary["errors"], summary["anomalies"]) == (10, 1, 0, 0)
    assert (summary["user_id"], summary["model_name"], summary["phase"]) == ("ada", "tiny", "completion")
    json.dumps(summary)
    said = training_records()
    assert [record.levelname for record in said] == ["INFO"] * 11 + ["WARNING", "INFO"]
    assert said[11].getMessage() == "[data_loading] slow disk"
    assert (said[11].user_id, said[11].model_name, said[11].phase) == ("ada", "tiny", "data_loading")
    assert said[5].getMessage() == "[training] epoch 0, step 5 (50 %): loss 0.2, lr 0.001"


def test_bad_values(training_records):
    async def main() -> list:
        logger = AsyncTrainingLogger()
        logger.start_training(1, 0)
        good = await logger.check_tensor_anomalies_async(torch.ones(3), "x")
        bad = await logger.check_tensor_anomalies_async(torch.tensor([math.nan, 1.0]), "x")
        told = await logger.update_progress_async(0, 1, math.inf, 0.1)
        with pytest.raises(ValueError, match="3 elements"):
            await logger.update_progress_async(0, 1, torch.ones(3), 0.1)
        assert (good["has_nan"], good["has_inf"], good["finite"], good["shape"]) == (False, False, True, [3])
        assert (bad["has_nan"], bad["has_inf"], bad["nan_count"], bad["name"]) == (True, False, 1, "x")
        mask = await logger.check_tensor_anomalies_async(torch.tensor([-math.inf, 0.0]), "mask")
        assert (mask["has_inf"], mask["inf_count"], mask.problems) == (True, 1, [])
        json.dumps([good, bad, mask])
        return [
            good.problems,
            bad["problems"],
            told["percent"],
            told["eta_s"],
            logger.get_training_summary()["anomalies"],
        ]

    assert asyncio.run(main()) == [[], ["1 NaN in x"], None, None, 2]
    warnings = [record.getMessage() for record in training_records() if record.levelname == "WARNING"]
    assert warnings == ["[training] 1 NaN in x", "[training] the loss is inf at step 1"]


def test_gradients(training_records):
    model = small_model()

    async def main() -> list[Any]:
        logger = AsyncTrainingLogger()
        found = [await logger.check_gradient_anomalies_async(model)]
        model(torch.randn(6, 8)).pow(2).mean().backward()
        found.append(await logger.check_gradient_anomalies_async(model))
        model[0].weight.grad[0, 0] = math.nan
        model[0].bias.grad[0] = math.inf
        model[2].weight.grad.mul_(1e6)
        model[2].bias.grad.zero_()
        found.append(await logger.check_gradient_anomalies_async(model))
        return found

    found = asyncio.run(main())
    none, good, bad = found
    assert (none["params_with_grad"], good["params_with_grad"], good["total_params"]) == (0, 4, 4)
    assert (good["has_nan"], good["has_inf"], good["params_with_nan_grad"], good["exploding"]) == (False, False, 0, [])
    assert (bad["has_nan"], bad["has_inf"]) == (True, True)
    assert (bad["params_with_nan_grad"], bad["params_with_inf_grad"]) == (1, 1)
    assert (bad["non_finite"], bad["exploding"], bad["vanishing"]) == (
        ["0.weight", "0.bias"],
        ["2.weight"],
        ["2.bias"],
    )
    assert [one.problems for one in found] == [
        [],
        [],
        [
            "gradient norm not finite: 0.weight and 1 more",
            "gradient norm above 10: 2.weight",
            "gradient norm below 1e-06: 2.bias",
        ],
    ]


def test_errors_with_phase_and_context(training_records):
    logger = AsyncTrainingLogger()
    try:
        raise OSError("disk full")
    except OSError as error:
        logger.log_error(error, TrainingPhase.CHECKPOINTING, {"path": "x.pt", "tensor": torch.ones(2)})
    (row,) = logger.records
    assert (row["phase"], row["exception"], row["text"]) == ("checkpointing", "OSError", "OSError: disk full")
    assert row["lines"][-1] == "OSError: disk full" and "disk full" in "".join(row["lines"])
    json.dumps(row)
    (record,) = training_records()
    assert record.levelname == "ERROR" and record.exc_info[0] is OSError
    logger.log_error(ValueError("x"), "no such phase")
    assert logger.records[-1]["phase"] == "training"


def test_anomaly_mode_for_the_duration():
    logger = AsyncTrainingLogger(enable_autograd_debug=True)
    assert not torch.is_anomaly_enabled()
    logger.start_training(1, 1)
    assert torch.is_anomaly_enabled()
    logger.complete_training()
    assert not torch.is_anomaly_enabled()


def test_as_a_context_manager():
    async def main() -> AsyncTrainingLogger:
        with pytest.raises(KeyError):
            async with AsyncTrainingLogger(enable_autograd_debug=True) as logger:
                logger.start_training(1, 1)
                raise KeyError("x")
        return logger

    logger = asyncio.run(main())
    assert logger.get_training_summary()["errors"] == 1 and logger.phase is TrainingPhase.COMPLETION
    assert not torch.is_anomaly_enabled()


def test_the_loop_goes_on_while_tensors_are_read(monkeypatch):
    """A check waits for a coroutine that takes its turn after the check has begun: in a blocked loop it waits in vain."""
    begun, over, answers = threading.Event(), threading.Event(), []

    async def main() -> list[str]:
        logger = AsyncTrainingLogger()
        judge_tensor = logger.debugger.judge_tensor

        def patient(tensor: torch.Tensor, name: str) -> str:
            begun.set()
            answers.append(over.wait(30))
            return judge_tensor(tensor, name)

        async def beside() -> None:
            while not begun.is_set():
                await asyncio.sleep(0.001)
            over.set()

        monkeypatch.setattr(logger.debugger, "judge_tensor", patient)
        found, _ = await asyncio.gather(logger.check_tensor_anomalies_async(torch.tensor([math.nan]), "x"), beside())
        return found.problems

    assert asyncio.run(main()) == ["1 NaN in x"] and answers == [True]


def test_many_at_once():
    async def main() -> AsyncTrainingLogger:
        logger = AsyncTrainingLogger()
        bad = torch.tensor([math.nan])
        await asyncio.gather(*(logger.check_tensor_anomalies_async(bad, f"t{index}") for index in range(50)))
        return logger

    logger = asyncio.run(main())
    assert logger.get_training_summary()["anomalies"] == 50
    assert {row["text"] for row in logger.records} == {f"1 NaN in t{index}" for index in range(50)}


def test_an_error_becomes_part_of_the_run(program_runner):
    done = program_runner(
        """
        import asyncio
        async def main():
            logger = tdbg.AsyncTrainingLogger("ada", "tiny")
            logger.start_training(1, 3)
            train(3)
            found = await logger.check_tensor_anomalies_async(torch.tensor([float("inf")]), "logits")
            try:
                raise OSError("disk full")
            except OSError as error:
                logger.log_error(error, tdbg.TrainingPhase.CHECKPOINTING, {})
            logger.complete_training()
        asyncio.run(main())
        """,
        [],
    )
    assert done.code == 0, done.stderr
    (error,) = done.read_events("traceback")
    assert (error["exception"], error["message"], error["how"]) == ("OSError", "disk full", "logged")
    assert "[DEBUG_FORWARD_NON_FINITE] 1 Inf in logits" in done.log_lines
    assert done.stderr.count("Inf in logits") == 1, "the program's console says it once"
