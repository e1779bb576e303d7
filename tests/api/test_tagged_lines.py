"""tdbg.log and tdbg.flag: on and off, in a run and outside."""

import math
import time

import pytest
import torch

import tdbg
from tdbg.api import flag_values as api_flags


def test_off_is_nothing(logged_messages):
    tdbg.log("LOSS.NULL_MASKING", lambda: pytest.fail("the text was made"))
    tdbg.log("NO_SUCH_FLAG", "x")
    assert logged_messages() == []


def test_on_outside_of_a_run(logged_messages):
    api_flags.get_live_flags()["LOSS.NULL_MASKING"] = True
    for name in ("LOSS.NULL_MASKING", "debug.loss.null_masking", "null_masking", "LOSS"):
        tdbg.log(name, "128 targets")
    tdbg.log("null_masking", lambda: "17 without a label", part="in put")
    assert logged_messages() == [
        "[DEBUG_NULL_MASKING] 128 targets",
        "[DEBUG_NULL_MASKING] 128 targets",
        "[DEBUG_NULL_MASKING] 128 targets",
        "[DEBUG_LOSS] 128 targets",
        "[DEBUG_NULL_MASKING_IN_PUT] 17 without a label",
    ]
    tdbg.log("MEMORY", lambda: pytest.fail("another flag's text was made"))
    api_flags.get_live_flags()["LOSS.NULL_MASKING"] = False
    tdbg.log("LOSS", lambda: pytest.fail("off again"))


def test_flag_outside_of_a_run():
    assert tdbg.flag("MEMORY") is False and tdbg.flag("MEMORY", default="x") == "x"
    api_flags.get_live_flags().update({"MEMORY": "7", "LOSS.NULL_MASKING": True, "AMP": False})
    assert [tdbg.flag(name) for name in ("memory_usage", "LOSS", "NULL_MASKING", "AMP")] == ["7", True, True, False]
    assert tdbg.flag(None) is False, "whatever is given, the program goes on"


def test_off_is_free():
    api_flags.get_live_flags()["MEMORY"] = True
    best = math.inf
    for _ in range(5):
        begun = time.perf_counter()
        for _ in range(4_000):
            tdbg.log("LOSS.NULL_MASKING", "x")
        best = min(best, (time.perf_counter() - begun) / 4_000)
    assert best < 20e-6, "0.9 us were measured, 0.3 us without any flag on"


def test_in_a_run(program_runner):
    done = program_runner(
        """
        tdbg.log("LOSS.NULL_MASKING", "before the first step")
        def after(step):
            tdbg.log("LOSS.NULL_MASKING", f"after {step}\\nand more", part="pass")
            tdbg.log("MEMORY", lambda: 1 / 0)
        train(2, after)
        print(json.dumps([tdbg.flag("LOSS.NULL_MASKING"), tdbg.flag("MEMORY")]))
        """,
        ["-f", "LOSS.NULL_MASKING"],
    )
    assert done.printed_json == [True, False]
    ours = [
        line for line in done.log_lines if "NULL_MASKING" in line and "_TARGETS]" not in line
    ]  # tdbg's own of each loss
    assert ours == [
        "[DEBUG_NULL_MASKING] before the first step",
        "[DEBUG_NULL_MASKING_PASS] after 1",
        "[DEBUG_NULL_MASKING_PASS] after 2",
    ]
    taken = [
        event.get("status", "set") for event in done.read_events("injection") if event["flag"] == "LOSS.NULL_MASKING"
    ]
    assert taken == ["set"], "a flag that the program logs under is taken"


@pytest.mark.cold
def test_workers_and_processes_without_torch_fall_back_to_logging(program_runner):
    done = program_runner(
        """
        import logging, tdbg
        logging.basicConfig(level=logging.DEBUG, format="%(name)s %(message)s")
        tdbg.log("MEMORY", "no torch here")
        """,
        ["-f", "MEMORY"],
        header="",
    )
    assert "tdbg [DEBUG_MEMORY] no torch here" in done.stderr


def test_a_flag_of_the_programs_own(program_runner):
    done = program_runner("train(1, lambda step: tdbg.log('TEACHER.EMA', f'decay at {step}'))", ["-f", "TEACHER.EMA"])
    assert done.code == 0, done.stderr
    assert "[DEBUG_EMA] decay at 1" in done.log_lines
    refused = program_runner("train(1)", ["-f", "TEACHER.EMA"])
    assert refused.code == 2 and "no flag is named 'TEACHER.EMA'" in refused.stderr


def test_in_the_worker_of_a_loader(program_runner):
    done = program_runner(
        """
        import logging
        logging.basicConfig(level=logging.DEBUG, format="%(name)s %(message)s")

        class Rows(torch.utils.data.Dataset):
            def __len__(self):
                return 4
            def __getitem__(self, index):
                tdbg.log("MEMORY", f"row {index}")
                tdbg.metric("row", index)
                with tdbg.region("row"):
                    return torch.ones(8)

        train(1)
        for batch in torch.utils.data.DataLoader(Rows(), batch_size=2, num_workers=1):
            pass
        train(1)
        """,
        ["-f", "MEMORY"],
    )
    assert done.code == 0, done.stderr
    assert sorted(line for line in done.stderr.splitlines() if "row" in line) == [
        f"tdbg [DEBUG_MEMORY] row {index}" for index in range(4)
    ]
    assert done.read_events("metric") == [] and not any("row" in line for line in done.log_lines)
    assert [path.name for path in done.folder.glob("rank*")] == ["rank0000"], "a worker is no rank"


def test_torch_compile_sees_nothing_of_the_api():
    @tdbg.region("decorated")
    def double(x: torch.Tensor) -> torch.Tensor:
        return x * 2

    def step(x: torch.Tensor) -> torch.Tensor:
        with tdbg.region("inside"):
            y = x + 1
            tdbg.log("MEMORY", "x")
            tdbg.metric("m", 1.0)
        return double(y)

    api_flags.get_live_flags()["MEMORY"] = True
    torch._dynamo.reset()
    torch._dynamo.utils.counters.clear()
    found = torch.compile(step, backend="eager", fullgraph=True)(torch.ones(2))
    assert found.tolist() == [4.0, 4.0]
    assert torch._dynamo.utils.counters["stats"]["unique_graphs"] == 1
    assert not torch._dynamo.utils.counters["graph_break"]
