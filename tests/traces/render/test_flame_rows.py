"""Trees of calls: by operator within spans, by line of the program, by module; bounded, and held against torch."""

import json
from collections import defaultdict

import pytest
from traces.material import find_real_trace, load_trace, make_annotation, make_op, make_span, make_step, write_trace

from tdbg.core.errors import TdbgError
from tdbg.traces.analyze import call_tree
from tdbg.traces.analyze.flops import per_call
from tdbg.traces.analyze.summary_builder import summarize_trace
from tdbg.traces.render import flame_rows


def make_frame(name, ts, dur, tid=1):
    return make_span(name, ts, dur, "python_function", tid)


def build_tree(row):
    """Rows as name -> (calls, own us, total us, what is below)."""
    return {one.name: (one.calls, one.own // 1000, one.total // 1000, build_tree(one)) for one in row.below}


EVENTS = [
    make_step(1, 0, 200),
    make_annotation("enumerate(DataLoader)#x", 0, 20),
    make_op("aten::stack", 5, 10),
    make_op("aten::linear", 30, 20),
    make_op("aten::addmm", 32, 15),
    make_op("aten::linear", 60, 10),
    make_op("autograd::engine::evaluate_function: AddmmBackward0", 80, 40),
    make_op("aten::mm", 90, 20),
    make_annotation("Optimizer.step#SGD.step", 150, 40),
    make_op("aten::add_", 160, 10),
    make_frame("train.py(9): main", 0, 200),
    make_frame("torch/nn/modules/module.py(1): _call_impl", 25, 50),
    make_frame("nn.Module: Net_0", 26, 48),
    make_frame("net.py(3): forward", 27, 46),
    make_frame("nn.Module: Linear_0", 28, 24),
    make_frame("nn.Module: Linear_1", 58, 14),
]


@pytest.fixture
def flame_summary(tmp_path):
    return summarize_trace(write_trace(tmp_path / "t.json", EVENTS))


def test_by_operator_within_the_spans_around_them(flame_summary):
    assert build_tree(flame_rows.build_tree(flame_summary, "operator")) == {
        "enumerate(DataLoader)#x": (1, 10, 20, {"aten::stack": (1, 10, 10, {})}),
        "aten::linear": (2, 15, 30, {"aten::addmm": (1, 15, 15, {})}),
        "autograd::engine::evaluate_function: AddmmBackward0": (1, 20, 40, {"aten::mm": (1, 20, 20, {})}),
        "Optimizer.step#SGD.step": (1, 30, 40, {"aten::add_": (1, 10, 10, {})}),
    }


def test_by_stack_without_what_is_nobodys_own(flame_summary):
    assert flame_rows.available_views(flame_summary) == ["stack", "module", "operator"]
    (main,) = flame_rows.build_tree(flame_summary).below
    assert (main.name, main.total) == ("train.py(9): main", 200_000)
    below = build_tree(main)
    assert below["nn.Module: Net_0"] == (
        *(1, 2, 48),
        {
            "net.py(3): forward": (
                *(1, 8, 46),
                {
                    "nn.Module: Linear_0": (1, 4, 24, {"aten::linear": (1, 20, 20, {})}),
                    "nn.Module: Linear_1": (1, 4, 14, {"aten::linear": (1, 10, 10, {})}),
                },
            )
        },
    )
    assert set(below) == {
        "nn.Module: Net_0",
        "aten::stack",
        "autograd::engine::evaluate_function: AddmmBackward0",
        "aten::add_",
    }


def test_by_module_the_lines_between_them_are_their_own_time(flame_summary):
    root = flame_rows.build_tree(flame_summary, "module")
    found = build_tree(root)
    assert found["nn.Module: Net_0"][:3] == (1, 10, 48)
    assert set(found["nn.Module: Net_0"][3]) == {"nn.Module: Linear_0", "nn.Module: Linear_1"}
    assert set(found[flame_rows.OUTSIDE][3]) == {
        "aten::stack",
        "autograd::engine::evaluate_function: AddmmBackward0",
        "aten::add_",
    }
    assert root.total == 200_000
    (net,) = flame_rows.build_module_tree(flame_summary).below
    assert (net.own, net.total, len(net.below)) == (10_000, 48_000, 2)


def test_a_way_that_is_not_there(tmp_path):
    read = summarize_trace(write_trace(tmp_path / "t.json", [make_op("aten::mm", 0, 5)]))
    assert flame_rows.available_views(read) == ["operator"]
    with pytest.raises(TdbgError, match="no calls by module"):
        flame_rows.build_tree(read, "module")
    with pytest.raises(TdbgError, match="cannot be shown by 'line'"):
        flame_rows.build_tree(read, "line")


def test_threads_stand_apart_where_there_are_several(tmp_path):
    events = [make_step(1, 0, 100), make_op("aten::mm", 0, 50), make_op("aten::bmm", 0, 70, tid=2)]
    found = build_tree(flame_rows.build_tree(summarize_trace(write_trace(tmp_path / "t.json", events))))
    assert set(found) == {"the program's thread", "thread 2"}
    assert found["thread 2"][1:3] == (0, 70)


def test_folded_lines_add_up_and_hold_no_other_separator(tmp_path):
    events = [make_op("a;b\n c", 0, 100), make_op("d e", 10, 40), make_op("f", 20, 10), make_op("f", 200, 5)]
    lines = list(
        flame_rows.fold_stacks(flame_rows.build_tree(summarize_trace(write_trace(tmp_path / "t.json", events))))
    )
    assert sorted(lines) == ["a:b\\n c 60", "a:b\\n c;d e 30", "a:b\\n c;d e;f 10", "f 5"]


def test_what_finds_no_room_is_its_callers_own_time(tmp_path, monkeypatch):
    monkeypatch.setattr(call_tree, "MOST", 4)
    events = [make_op("outer", 0, 1000), *(make_op(f"inner{number}", 10 + 10 * number, 10) for number in range(20))]
    read = summarize_trace(write_trace(tmp_path / "t.json", events))
    (outer,) = flame_rows.build_tree(read).below
    assert (outer.total, outer.own, len(outer.below)) == (1_000_000, 980_000, 2)
    assert flame_rows.count_cut_calls(read) == 18


def test_a_summary_keeps_the_longest(tmp_path, monkeypatch):
    monkeypatch.setattr(call_tree, "KEPT", 5)
    events = [make_op(f"op{number}", 100 * number, number + 1) for number in range(20)]
    read = summarize_trace(write_trace(tmp_path / "t.json", events))
    assert [row.name for row in flame_rows.sort_rows(flame_rows.build_tree(read))] == ["op19", "op18", "op17", "op16"]
    assert flame_rows.count_cut_calls(read) == 16


def test_calls_within_calls_without_end(tmp_path):
    deep = 3000
    events = [make_op(f"r{number}", number, 2 * (deep - number)) for number in range(deep)]
    read = summarize_trace(write_trace(tmp_path / "t.json", events))
    rows = flame_rows.sort_rows(flame_rows.build_tree(read))
    assert len(rows) == call_tree.DEEP - 1 and flame_rows.count_cut_calls(read) == deep - len(rows)
    assert sum(row.own for row in rows) == 2 * deep * 1000


@pytest.mark.parametrize("name", ["control.json.gz", "sampled_rank-0.json.gz"])
def test_times_of_real_operators_are_in_the_tree(name):
    """Own times of all nodes of a name add up to those of the operator, as far as the tree has room."""
    path = find_real_trace(name)
    read = summarize_trace(path)
    found = defaultdict(int)
    for row in flame_rows.sort_rows(flame_rows.build_tree(read, "operator")):
        if row.kind == call_tree.OPERATOR:
            found[row.name] += row.calls
    counted = defaultdict(int)
    for event in load_trace(path)["traceEvents"]:
        if event.get("cat") == "cpu_op":
            counted[event["name"]] += 1
    assert all(found[one] <= counted[one] for one in found)
    assert sum(found.values()) >= 0.9 * sum(counted.values())
    assert sum(found.values()) + flame_rows.count_cut_calls(read, "operator") >= sum(counted.values())


# floating-point operations


@pytest.fixture(scope="module")
def recorded_trace(tmp_path_factory):
    """A real trace with everything on, and what torch itself makes of it."""
    torch = pytest.importorskip("torch")
    from torch import nn
    from torch.profiler import ProfilerActivity, profile, schedule

    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.conv = nn.Conv2d(4, 8, 3, stride=2, padding=1, groups=2)
            self.head = nn.Sequential(nn.Linear(32, 16), nn.GELU(), nn.Linear(16, 2))

        def forward(self, x_BCHW):
            return self.head(self.conv(x_BCHW).flatten(1))

    net = Net()
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
    options = {"record_shapes": True, "profile_memory": True, "with_stack": True, "with_flops": True}
    with profile(activities=[ProfilerActivity.CPU], schedule=schedule(wait=1, warmup=1, active=2), **options) as made:
        for _ in range(4):
            loss = net(torch.randn(5, 4, 4, 4)).sum() + torch.bmm(torch.randn(3, 4, 5), torch.randn(3, 5, 6)).sum()
            loss.backward()
            optimizer.step()
            optimizer.zero_grad()
            made.step()
    path = tmp_path_factory.mktemp("flops") / "t.pt.trace.json"
    made.export_chrome_trace(str(path))
    return path, {one.key: one.flops for one in made.key_averages()}


def test_as_many_operations_as_torch_counts(recorded_trace):
    path, wanted = recorded_trace
    found = defaultdict(int)
    for one in summarize_trace(path).operators:
        found[one.name] += one.flops
    for name in ("aten::mm", "aten::addmm", "aten::bmm"):
        assert found[name] == wanted[name] > 0
    assert found["aten::convolution"] == wanted["aten::conv2d"] > 0
    assert found["aten::convolution_backward"] == found["aten::convolution"]  # its input wants no gradient


def test_modules_of_a_real_trace(recorded_trace):
    read = summarize_trace(recorded_trace[0])
    (net,) = flame_rows.build_module_tree(read).below
    assert net.display_name.startswith("Net_") and net.calls == 2
    assert sorted(row.display_name.partition("_")[0] for row in net.below) == ["Conv2d", "Sequential"]
    sequence = next(row for row in net.below if row.display_name.startswith("Sequential"))
    assert sorted(row.display_name.partition("_")[0] for row in sequence.below) == ["GELU", "Linear", "Linear"]
    assert flame_rows.available_views(read) == ["stack", "module", "operator"]


CPU_ATTENTION = "aten::_scaled_dot_product_flash_attention_for_cpu"
ATTENTION = [[2, 4, 8, 16], [2, 4, 10, 16], [2, 4, 10, 32]]


@pytest.mark.parametrize(
    ("name", "dims", "concrete", "flops"),
    [
        ("aten::mm", [[3, 4], [4, 5]], [], 120),
        ("aten::baddbmm", [[], [2, 3, 4], [2, 4, 5]], [], 240),
        (CPU_ATTENTION, ATTENTION, [], 2 * 2 * 4 * 8 * 10 * (16 + 32)),
        *(
            (
                f"aten::_scaled_dot_product_{kind}_attention_backward",
                [[2, 4, 8, 32], *ATTENTION],
                [],
                5 * 2 * 4 * 8 * 10 * 48,
            )
            for kind in ("flash", "efficient", "cudnn")
        ),
        ("aten::add", [[3, 4], [3, 4]], [], 0),
        ("aten::mm", [[3, 4], [9, 5]], [], 0),
        ("aten::mm", [[3, 4]], [], 0),
        ("aten::mm", {"a": 1}, [], 0),
        (CPU_ATTENTION, [[1] * 8] * 3, [], 4),
        (CPU_ATTENTION, [[1] * 9] * 3, [], 0),
        (CPU_ATTENTION, [*ATTENTION, [" " * 65536]], [], 0),
        ("aten::mm", [[2, 1e300], [1e300, 2]], [], 0),
        ("aten::mm", [[2, 10**18], [10**18, 2]], [], 0),
        ("aten::convolution", [[1, 1, 5], [1, 1, 3], []], ["", "", "", "[x]", "[0]", "[1]", "False"], 0),
        ("aten::convolution", [[1, 1, 5], [1, 1, 3], []], ["", "", "", "[0]", "[0]", "[1]", "False"], 0),
        ("aten::convolution", [[1, 1, 5], [1, 1, 3], []], [1, 2, 3, 4, 5, 6, 7], 0),
        (
            "aten::convolution",
            [[2, 3, 5], [4, 3, 3], []],
            ["", "", "", "[1]", "[0]", "[1]", "False"],
            2 * 2 * 4 * 3 * 9,
        ),
    ],
)
def test_operations_of_a_call(name, dims, concrete, flops):
    assert per_call(name, json.dumps(dims).encode(), json.dumps(concrete).encode()) == flops


def test_shapes_that_are_no_json():
    assert per_call("aten::mm", b"[[3,", b"") == per_call("aten::mm", b"[" * 10_000, b"") == 0
