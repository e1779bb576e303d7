"""Advice: each rule on a trace with its fault, and on the twin without it."""

import inspect

import pytest
from traces.material import (
    find_real_trace,
    make_annotation,
    make_gpu_span,
    make_launch,
    make_memory_event,
    make_op,
    make_span,
    make_step,
    write_trace,
)

from tdbg.core.errors import TdbgError
from tdbg.traces.analyze import summary_figures
from tdbg.traces.analyze.summary_builder import summarize_trace
from tdbg.traces.rules import RULES, Abstain, evaluate_traces, parse_thresholds

A100 = {
    "deviceProperties": [{"id": 0, "name": "A100", "computeMajor": 8, "computeMinor": 0, "totalGlobalMem": 1 << 30}]
}
LOADER = "enumerate(DataLoader)#_MultiProcessingDataLoaderIter.__next__"
ALONE = "enumerate(DataLoader)#_SingleProcessDataLoaderIter.__next__"


def slow_down(events, times=10):
    """The same, so many times as long: there are things that a step of a millisecond is not told."""
    return [{**one, "ts": one["ts"] * times, **({"dur": one["dur"] * times} if "dur" in one else {})} for one in events]


def make_steps(make, count=6, length=1000):
    """Events of some steps: ``make(number, begin)`` gives those of one."""
    found = []
    for number in range(count):
        begin = number * length
        found += [make_step(number, begin, length), *make(number, begin)]
    return found


def make_plain_step(_, begin, wait=10, loader=LOADER):
    """A healthy step on the CPU."""
    return [
        make_annotation(loader, begin, wait),
        make_op("aten::linear", begin + wait, 300),
        make_op("autograd::engine::evaluate_function: AddmmBackward0", begin + wait + 310, 300),
        make_annotation("Optimizer.zero_grad#SGD.zero_grad", begin + 940, 5),
        make_annotation("Optimizer.step#SGD.step", begin + 950, 30),
        make_op("aten::_foreach_add_", begin + 955, 20),
    ]


def device(number, begin, kernel="ampere_s1688gemm_tensorop", size=900, at=20):
    """A healthy step on an accelerator: it is busy all the time."""
    key = number + 1
    return [
        make_op("aten::linear", begin, 20),
        make_launch(begin + 5, 2, key),
        make_gpu_span(kernel, begin + at, size, key),
    ]


def waiting(number, begin):
    return [
        *device(number, begin),
        make_op("aten::item", begin + 100, 300),
        make_op("aten::_local_scalar_dense", begin + 101, 298),
    ]


def copying(number, begin):
    copy = make_gpu_span(
        "Memcpy HtoD (Pageable -> Device)", begin + 400, 500, 900 + number, cat="gpu_memcpy", bytes=10_000
    )
    return [*device(number, begin, size=300), copy]


def tiny(number, begin):
    return [make_gpu_span("k", begin + at, 4, 0) for at in range(0, 1000, 20)] + device(number, begin, size=9)


def starving(number, begin):
    """Kernels that start as soon as they are launched, and nothing between them."""
    found = [make_op("aten::linear", begin, 900)]
    for at in range(0, 900, 90):
        key = number * 100 + at + 1
        found += [make_launch(begin + at, 5, key), make_gpu_span("ampere_s1688gemm_tensorop", begin + at + 12, 40, key)]
    return found


def zeroing(number, begin):
    wide = [
        make_annotation("Optimizer.zero_grad#SGD.zero_grad", begin + 700, 60),
        make_op("aten::zero_", begin + 705, 50),
    ]
    return [*make_plain_step(number, begin)[:3], *wide]


def made_in_forward(number, begin):
    """As much filling with zeros, but for tensors of the model's own."""
    return [*make_plain_step(number, begin), make_op("aten::zero_", begin + 700, 50)]


def make_saving_step(frame):
    """A step that is five times as long, most of it in a frame of Python."""
    longer = [
        make_step(6, 6000, 5000),
        *make_plain_step(6, 6000),
        make_step(7, 11000, 1000),
        *make_plain_step(7, 11000),
    ]
    return slow_down(
        [*make_steps(make_plain_step), *longer, *make_frame("train.py(3): main", 0), *make_frame(frame, 6950)]
    )


def make_frame(frame, at):
    return [make_span(frame, at, 12_000 if not at else 3900, "python_function")]


def exposed(number, begin):
    return [*device(number, begin, size=400), make_gpu_span("ncclDevKernel_AllReduce", begin + 500, 400, 0, stream=9)]


def hidden(number, begin):
    return [*device(number, begin), make_gpu_span("ncclDevKernel_AllReduce", begin + 100, 400, 0, stream=9)]


def looping(number, begin):
    updates = [make_op("aten::add_", begin + 500 + at * 4, 3) for at in range(100)]
    return [*make_plain_step(number, begin)[:2], make_annotation("Optimizer.step#Own.step", begin + 500, 400), *updates]


def make_held(growth):
    def make_step_events(number, begin):
        low = 1000 + growth * number
        rise = [make_memory_event(begin + 100 + at, 10, low + 500, address=number) for at in (0, 200)]
        return [
            *make_plain_step(number, begin),
            make_memory_event(begin + 50, 1, low),
            *rise,
            make_memory_event(begin + 900, -500, low + growth),
        ]

    return make_step_events


def test_evidence_is_of_a_step_as_the_title_is(tmp_path):
    """`in 560 small operations` stood above `480 calls`, which were those of all steps."""

    def looping(number, begin):
        return [
            make_annotation("Optimizer.step#Mine.step", begin + 100, 800),
            *(make_op("aten::add_", begin + 105 + 10 * at, 9) for at in range(70)),
        ]

    (one,) = evaluate_traces([("", summarize_trace(write_trace(tmp_path / "t.json", make_steps(looping, 3))))], {})[0]
    assert one.code == "TD-P111" and one.title.endswith("in 70 small operations")
    assert one.evidence[0] == "aten::add_: 70 calls and 0.63 ms a step"
    waits = slow_down(make_steps(lambda number, begin: make_plain_step(number, begin, wait=300), 3))
    (one,) = evaluate_traces([("", summarize_trace(write_trace(tmp_path / "t.json", waits)))], {})[0]
    assert one.code == "TD-P101" and one.evidence[-1] == f"{LOADER}: 1 call and 3 ms a step"


def test_a_leak_that_is_the_first_thing_a_step_allocates(tmp_path):
    """Gradients of before the trace are freed unseen, so that the first event of the first step is the leak itself."""

    def leaking(kept):
        def make_leaking_step(number, begin):
            low, grads = kept * number, 4 if number else 0
            clear = [make_memory_event(begin + 10, -grads, low + 4, address=1)] if number else []
            keep = (
                [make_memory_event(begin + 20, kept, low + kept + (4 if number else 0), address=100 + number)]
                if kept
                else []
            )
            rise = [
                make_memory_event(begin + 500, 60_000, low + kept + 60_000),
                make_memory_event(begin + 900, -60_000, low + kept + 4),
            ]
            return [*make_plain_step(number, begin), *clear, *keep, *rise]

        return make_leaking_step

    for kept, codes in ((40_000, ["TD-P116"]), (0, [])):
        read = summarize_trace(write_trace(tmp_path / "t.json", slow_down(make_steps(leaking(kept)))))
        assert [one.code for one in evaluate_traces([("", read)], {})[0]] == codes


def make_reserved(allocated, taken):
    def make_step_events(number, begin):
        return [*device(number, begin), make_memory_event(begin + 1, 0, allocated, device_type=1, reserved=taken)]

    return make_step_events


WAITS = {"a": exposed, "b": hidden}
SAVE = "torch/serialization.py(944): save"
FLOAT32 = "sm80_xmma_gemm_f32f32_f32f32_f32_tn_n_tilesize64x64x8_stage3_ffma"
HIGHEST, HIGH = ({**A100, "tdbg": {"float32_matmul_precision": name}} for name in ("highest", "high"))
FAULTS = {
    "TD-P101": (
        slow_down(make_steps(lambda number, begin: make_plain_step(number, begin, 400))),
        slow_down(make_steps(make_plain_step)),
        None,
    ),
    "TD-P102": (
        slow_down(make_steps(lambda number, begin: make_plain_step(number, begin, 400, ALONE))),
        slow_down(make_steps(lambda number, begin: make_plain_step(number, begin, 40, ALONE))),
        None,
    ),
    "TD-P103": (make_steps(copying), make_steps(device), None),
    "TD-P104": (make_steps(lambda number, begin: device(number, begin, size=200, at=100)), make_steps(device), None),
    "TD-P105": (make_steps(starving), make_steps(device), None),
    "TD-P106": (make_steps(waiting), make_steps(device), None),
    "TD-P107": (make_steps(tiny), make_steps(device), None),
    "TD-P108": (
        make_steps(lambda number, begin: device(number, begin, "ampere_sgemm_128x64")),
        make_steps(device),
        A100,
    ),
    "TD-P109": (make_steps(make_reserved(1 << 30, 1_000_000_000)), make_steps(make_reserved(1 << 29, 1 << 29)), A100),
    "TD-P110": (make_steps(make_reserved(1 << 27, 1 << 29)), make_steps(make_reserved(1 << 28, (1 << 29) - 1)), A100),
    "TD-P111": (make_steps(looping), make_steps(make_plain_step), None),
    "TD-P112": (make_steps(zeroing), make_steps(made_in_forward), None),
    "TD-P113": (make_saving_step(SAVE), make_saving_step("train.py(9): think"), None),
    "TD-P114": (make_steps(exposed), make_steps(hidden), None),
    "TD-P116": (make_steps(make_held(200)), make_steps(make_held(0)), None),
    "TD-P117": (
        make_steps(lambda number, begin: device(number, begin, FLOAT32)),
        make_steps(lambda number, begin: device(number, begin, "sm80_xmma_gemm_f32f32_tf32f32_f32_tn_n_tensor16x8x8")),
        HIGHEST,
    ),
}


def evaluate_events(path, events, head=None, **thresholds):
    every = [("rank 0", summarize_trace(write_trace(path / "t.json", events, head=head)))]
    return evaluate_traces(every, thresholds)


@pytest.mark.parametrize("code", FAULTS)
def test_a_fault_is_named_first_and_its_twin_is_healthy(tmp_path, code):
    fault, twin, head = FAULTS[code]
    found, _ = evaluate_events(tmp_path, fault, head)
    assert found and found[0].code == code
    # An accelerator with small kernels, or too few of them, is idle too.
    others = {"TD-P105": {"TD-P104"}, "TD-P107": {"TD-P104", "TD-P105"}}.get(code, set())
    assert {one.code for one in found} - others == {code}
    one = found[0]
    assert one.evidence and one.try_next and one.source
    grave = {"TD-P112": "notice", **dict.fromkeys(("TD-P101", "TD-P102", "TD-P103", "TD-P104", "TD-P114"), "critical")}
    assert one.severity == grave.get(code, "warning")
    assert one.gain is None or 0 < one.gain <= 1
    assert evaluate_events(tmp_path, twin, head)[0] == []


def test_a_slow_rank_is_named_with_what_makes_it_slow(tmp_path):
    def rank(wait):
        events = make_steps(lambda number, begin: make_plain_step(number, begin, wait))
        late = [make_op("c10d::allreduce_", number * 1000 + 700, 200 - wait) for number in range(6)]
        return summarize_trace(write_trace(tmp_path / "t.json", [*events, *late]))

    def evaluate_ranks(*waits, **thresholds):
        every = {f"rank {number}": rank(wait) for number, wait in enumerate(waits)}
        return evaluate_traces(list(every.items()), thresholds, every)[0]

    found = evaluate_ranks(10, 10, 40, straggler_warning=0.02)
    one = next(one for one in found if one.code == "TD-P115")
    assert one.title.startswith("rank 2 does") and "input" in one.try_next
    assert "TD-P115" not in [one.code for one in evaluate_ranks(10, 10)]


def test_every_rule_has_a_case_a_page_and_thresholds():
    rules = list(RULES)
    assert not RULES.broken
    assert {rule.code for rule in rules} == {*FAULTS, "TD-P115"}
    for rule in rules:
        assert "Signal:" in rule.page() and "What to do:" in rule.page()
        assert rule.thresholds and rule.source and inspect.getmodule(rule).__doc__.startswith(f"{rule.code}: ")
    begins = [" ".join(rule.page().split()[:2]) for rule in rules]
    assert {one for one in begins if begins.count(one) > 1} <= {"The program", "The accelerator"}, (
        "each has its own page"
    )
    names = [name for rule in rules for name in rule.thresholds]
    assert len(names) == len(set(names))


def test_the_profilers_own_wait_is_never_blamed(tmp_path):
    closing = make_span("cudaDeviceSynchronize", 6001, 5000, "cuda_runtime")
    assert evaluate_events(tmp_path, [*make_steps(device), closing])[0] == []
    own = make_span("cudaDeviceSynchronize", 2100, 800, "cuda_runtime")
    assert [one.code for one in evaluate_events(tmp_path, [*make_steps(device), own])[0]] == ["TD-P106"]


def test_waiting_for_input_is_not_told_as_work_of_the_accelerator(tmp_path):
    def make_starved_step(number, begin):
        return [make_annotation(LOADER, begin, 200), *device(number, begin, size=200, at=300)]

    found = {one.code: one for one in evaluate_events(tmp_path, make_steps(make_starved_step))[0]}
    assert found["TD-P104"].title == "the accelerator is idle for 60% of a step"
    assert found["TD-P104"].evidence[0].startswith("busy 20% of a step")


def test_waits_of_other_threads_are_not_the_programs(tmp_path):
    def make_pinning_step(number, begin):
        """A thread that pins memory waits all the time, and the accelerator has little to do."""
        wait = make_span("cudaEventSynchronize", begin + 100, 800, "cuda_runtime", tid=9)
        return [*device(number, begin, size=500), wait]

    assert "TD-P106" not in [one.code for one in evaluate_events(tmp_path, make_steps(make_pinning_step))[0]]


@pytest.mark.parametrize(("code", "head"), [("TD-P108", A100), ("TD-P117", HIGHEST)])
def test_kernels_outside_of_the_steps_and_beside_each_other_do_not_add_up(tmp_path, code, head):
    events = make_steps(lambda number, begin: device(number, begin, "k"))
    before = [{**one, "ts": one["ts"] + 5000} for one in events]
    before += [make_gpu_span("ampere_sgemm_128x64", at, 900) for at in range(0, 5000, 1000)]
    assert evaluate_events(tmp_path, before, head)[0] == []
    beside = [
        make_gpu_span("ampere_sgemm_128x64", at * 1000 + 50, 800, stream=stream) for at in range(6) for stream in (7, 8)
    ]
    (found,) = evaluate_events(tmp_path, [*events, *beside], head)[0]
    assert (found.code, found.gain) == (code, 0.8)


def test_an_optimizers_loop_is_what_runs_inside_of_it(tmp_path):
    def codes(make):
        return [one.code for one in evaluate_events(tmp_path, make_steps(make))[0]]

    def clipped(number, begin):
        return [make_op("aten::_foreach_norm", begin + 400, 20), *looping(number, begin)]

    def elsewhere(number, begin):
        """In-place arithmetic of the model, and an optimizer that takes its time for something else."""
        moved = [{**one, "ts": one["ts"] - 400} for one in looping(number, begin) if one["name"] == "aten::add_"]
        return [make_annotation("Optimizer.step#Own.step", begin + 550, 400), *moved]

    def busy(number, begin):
        return [
            *looping(number, begin),
            make_launch(begin + 1, 2, number + 1),
            make_gpu_span("k", begin, 980, number + 1),
        ]

    assert codes(clipped) == ["TD-P111"]
    assert codes(elsewhere) == codes(busy) == []


def test_traces_that_are_no_ranks_of_one_job_do_not_excuse_each_other(tmp_path):
    """A wait that another rank has not is for a late one; another run tells nothing of it."""
    every = {
        name: summarize_trace(write_trace(tmp_path / f"{name}.json", make_steps(make))) for name, make in WAITS.items()
    }

    def codes(ranks):
        return [one.code for one in evaluate_traces(list(every.items()), {}, ranks)[0]]

    assert "TD-P114" in codes({}) and "TD-P114" not in codes(every)


def test_one_step_is_a_notice_two_a_warning_and_the_three_of_a_window_can_be_critical(tmp_path):
    def severity(*waits):
        events = slow_down(make_steps(lambda number, begin: make_plain_step(number, begin, waits[number]), len(waits)))
        (found,) = evaluate_events(tmp_path, events)[0]
        return found.severity

    assert [severity(*[400] * count) for count in (1, 2, 3, 25)] == ["notice", "warning", "critical", "critical"]
    assert severity(400, 400, 190) == "warning", "the share of all is 33 %, but one of few steps is not critical"
    assert severity(*[400] * 19, 190) == "critical"


def test_a_loader_without_workers_is_judged_by_its_usual_wait(tmp_path):
    """Two hiccups in five steps are no batches that are made; one quick step does not hide those that are."""

    def judge_waits(waits, loader):
        events = slow_down(
            make_steps(lambda number, begin: make_plain_step(number, begin, waits[number], loader), len(waits))
        )
        return [(one.code, one.severity) for one in evaluate_events(tmp_path, events)[0]]

    hiccups = [30, 330, 30, 330, 30]
    assert judge_waits(hiccups, ALONE) == [] and judge_waits([30, 330], ALONE) == []
    assert judge_waits(hiccups, LOADER) == [("TD-P101", "warning")], "workers deliver in bursts"
    assert judge_waits([330, 330, 30, 330, 330], ALONE) == [("TD-P102", "warning")]
    assert judge_waits([330] * 5, ALONE) == [("TD-P102", "critical")]


def test_a_longer_hiccup_hides_no_save(tmp_path):
    hiccup = slow_down([make_step(8, 12_000, 9000), *make_plain_step(8, 12_000)])
    (found,) = evaluate_events(tmp_path, [*make_saving_step(SAVE), *hiccup])[0]
    assert (found.code, found.severity) == ("TD-P113", "warning")
    assert found.title == "step 6 takes 5.0 times the median, most of it in a save or a write to the disk"
    assert evaluate_events(tmp_path, [*make_saving_step("train.py(9): think"), *hiccup])[0] == []


@pytest.mark.parametrize(
    "name", ["torch.save", "safetensors.save_file", "torch.distributed.checkpoint.save", "xm.save"]
)
def test_a_save_that_is_marked_needs_no_stacks(tmp_path, name):
    longer = [
        make_step(6, 6000, 5000),
        *make_plain_step(6, 6000),
        make_step(7, 11000, 1000),
        *make_plain_step(7, 11000),
    ]
    inner = make_annotation("tdbg.save: torch.save", 7000, 3000)  # one save calls another
    marked = slow_down(
        [*make_steps(make_plain_step), *longer, make_annotation(f"tdbg.save: {name}", 6950, 3900), inner]
    )
    (found,) = evaluate_events(tmp_path, marked)[0]
    assert (found.code, found.severity) == ("TD-P113", "warning")
    assert "most of it in a save" in found.title
    assert any(line.startswith(f"{name}: 1 call, ") for line in found.evidence)


def test_a_rank_that_is_slow_in_each_step_is_critical(tmp_path):
    def severity(*waits):
        every = {}
        for rank, late in enumerate(([10] * len(waits), waits)):
            events = make_steps(
                lambda number, begin, late=late: make_plain_step(number, begin, late[number]), len(waits)
            )
            events += [make_op("c10d::allreduce_", at * 1000 + 610 + wait, 250 - wait) for at, wait in enumerate(late)]
            every[f"rank {rank}"] = summarize_trace(write_trace(tmp_path / f"{rank}.json", slow_down(events)))
        (found,) = (one for one in evaluate_traces(list(every.items()), {}, every)[0] if one.code == "TD-P115")
        return found.severity

    assert severity(230, 230, 230) == "critical"
    assert severity(230, 230, 120) == "warning"
    assert severity(230, 230) == "warning"


def test_a_cause_comes_before_what_it_causes_even_if_that_is_graver(tmp_path):
    found, _ = evaluate_events(tmp_path, FAULTS["TD-P107"][0])
    assert [(one.code, one.severity) for one in found][:1] == [("TD-P107", "warning")]
    assert ("TD-P104", "critical") in [(one.code, one.severity) for one in found]


def test_a_rule_without_its_signal_abstains_and_says_what_supplies_it(tmp_path):
    found, silent = evaluate_events(tmp_path, [make_op("aten::mm", 0, 10)])
    assert found == []
    assert {one.code for one in silent} == {rule.code for rule in RULES}
    assert Abstain("TD-P116", "memory was not recorded: `tdbg profile --kind memory`") in silent


def test_thresholds_are_settable(tmp_path):
    fault, _, head = FAULTS["TD-P101"]
    assert evaluate_events(tmp_path, fault, head, input_notice=0.9, input_warning=0.9, input_critical=0.9)[0] == []
    assert parse_thresholds(["input_warning=0.3"]) == {"input_warning": 0.3} == parse_thresholds(["input_warning=30%"])
    assert parse_thresholds(["straggler_warning=200%", "loop_calls=80"]) == {
        "straggler_warning": 2.0,
        "loop_calls": 80.0,
    }
    with pytest.raises(TdbgError, match="no threshold is called 'inputwarning'"):
        parse_thresholds(["inputwarning=0.3"])
    with pytest.raises(TdbgError, match="cannot be 'much'"):
        parse_thresholds(["input_warning=much"])


LINE = "train.py(7): fit"
NEXT = "torch/utils/data/dataloader.py(701): __next__"


def put_in_one_line(events):
    """The same with Python's stack: all of it is called from one line of the program."""
    end = max(one["ts"] + one.get("dur", 0) for one in events)
    frames = [make_span(LINE, 0, end, "python_function")]
    for one in events:
        if one["name"].startswith("enumerate(DataLoader)"):
            frames += [make_span(NEXT, one["ts"], one["dur"], "python_function")]
            frames += [make_span("torch/utils/data/dataloader.py(9): _next_data", one["ts"], 1, "python_function")]
    names = {one["name"] for one in events}
    more = [make_op("aten::copy_", 30, 1)] * any("Memcpy" in name for name in names)
    more += [make_op("c10d::allreduce_", 40, 1)] * any("nccl" in name for name in names)
    in_order = (sorted(some, key=lambda one: (one["ts"], -one.get("dur", 0))) for some in ([*events, *more], frames))
    return [one for some in in_order for one in some]


@pytest.mark.parametrize("code", sorted({*FAULTS} - {"TD-P109", "TD-P110", "TD-P113"}))
def test_the_line_of_the_program_is_evidence_where_stacks_are(tmp_path, code):
    fault, _, head = FAULTS[code]

    def evidence(events):
        return "\n".join(next(one for one in evaluate_events(tmp_path, events, head)[0] if one.code == code).evidence)

    assert LINE in evidence(put_in_one_line(fault))
    assert ".py(" not in evidence(fault)


def test_who_waits_for_batches_is_told_once_for_each(tmp_path):
    found, _ = evaluate_events(tmp_path, put_in_one_line(FAULTS["TD-P101"][0]))
    assert f"asked for by {LINE}: 1 call and 4 ms a step" in found[0].evidence


def test_the_busiest_line_is_that_of_the_programs_thread_without_what_it_calls(tmp_path):
    events = [
        *make_steps(make_plain_step, 2),
        make_span("train.py(1): main", 0, 2000, "python_function"),
        make_span("train.py(5): loss", 100, 1500, "python_function"),
        make_span("nn.Module: Net_0", 200, 1400, "python_function"),
        make_span("prefetch.py(2): work", 0, 2000, "python_function", tid=5),
    ]
    events.sort(key=lambda one: one["cat"] == "python_function")
    read = summarize_trace(write_trace(tmp_path / "t.json", events))
    assert summary_figures.busiest_line(read) == [
        "most of the program's own time is in train.py(1): main, 0.25 ms a step"
    ]
    assert (
        summary_figures.busiest_line(summarize_trace(write_trace(tmp_path / "t.json", make_steps(make_plain_step, 2))))
        == []
    )


def test_what_the_real_traces_are_told():
    def codes(name):
        found, _ = evaluate_traces([("rank", summarize_trace(find_real_trace(name)))], {})
        return [one.code for one in found]

    assert codes("control.json.gz") == ["TD-P114", "TD-P106"]
    assert codes("sampled_rank-0.json.gz") == ["TD-P104", "TD-P114"]
