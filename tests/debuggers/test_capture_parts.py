"""What capturing is made of: bounded memory, the hooks of one pass, the thread that writes."""

import random
import threading
import time
import weakref
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from tdbg.core.errors import TdbgError
from tdbg.debuggers import pool as pools
from tdbg.debuggers.pool import Full, Pool
from tdbg.debuggers.recording_thread import Pass, Recording, iter_parts
from tdbg.debuggers.tap import Clock, Copied, Tap, Target
from tdbg.pages.format.page_writer import PageWriter
from tdbg.pages.read.page_set import PageSet
from tdbg.runtime.budget import Budget

# What it costs


def test_what_was_asked_for_does_not_use_up_the_budget() -> None:
    budget = Budget(1.0, now=0.0)
    budget.charge_to_user(2.0)
    budget.charge("call_begins", 2.5)
    budget.charge("call_ended", 4.0, asked=True)
    assert budget.asked_s == 6.0 and budget.own_s == 0.5 == budget.by_part["call_begins"]
    assert budget.allows(("any",), now=60.0) and not budget.allows(("any",), now=40.0)


def test_hooks_without_a_clock_are_counted_by_those_with_one() -> None:
    clock = Clock(long_s=1.0, moved=100, timed=10, timed_s=0.5)
    assert clock.take_s() == 6.0 and clock.take_s() == 0.0
    clock.moved += 10
    assert clock.take_s() == pytest.approx(0.5)


def test_a_pass_tells_what_its_hooks_took(net: "Net") -> None:
    tap, wanted = Tap(Pool(), raise_error), make_targets(net, conv="output", act="input")
    for _ in range(32):
        tap.release_buffers(capture_pass(tap, net, wanted, torch.zeros(2, 1, 6, 6)))
    assert 0.0 < tap.clock.take_s() < 32.0 and tap.clock.timed == 0, "none of them goes the short way alone"
    wanted = make_targets(net, conv="output")
    for _ in range(32):
        tap.release_buffers(capture_pass(tap, net, wanted, torch.zeros(2, 1, 6, 6)))
    assert tap.clock.take_s() > 0.0


# The pool


def test_memory_is_bounded_and_used_again() -> None:
    pool = Pool(1000, "drop")
    first = pool.take_buffer(600)
    with pytest.raises(Full):
        pool.take_buffer(600)
    assert not pool.crowded or pool.used_bytes == 600
    pool.return_buffer(first)
    assert pool.used_bytes == 0
    assert pool.take_buffer(600) is first, "memory that was free already"


def test_free_buffers_of_other_sizes_make_room() -> None:
    pool = Pool(1000, "drop")
    pool.return_buffer(pool.take_buffer(900))
    other = pool.take_buffer(800)
    assert other.numel() == 800 and pool.used_bytes + pool._free_bytes <= 1000


def test_a_buffer_larger_than_all_is_alone() -> None:
    pool = Pool(1000, "drop")
    large = pool.take_buffer(5000)
    with pytest.raises(Full):
        pool.take_buffer(1)
    pool.return_buffer(large)
    assert pool.take_buffer(1).numel() == 1


def test_whoever_blocks_goes_on_when_there_is_room() -> None:
    pool = Pool(1000)
    held = pool.take_buffer(1000)
    threading.Timer(0.2, pool.return_buffer, [held]).start()
    begun = time.monotonic()
    assert pool.take_buffer(500).numel() == 500
    assert 0.1 < time.monotonic() - begun < 5 and pool.waited_s > 0.1


def test_nobody_waits_for_the_dead(monkeypatch: pytest.MonkeyPatch) -> None:
    pool = Pool(1000)
    pool.take_buffer(1000)
    pool.set_alive_check(lambda: False)
    with pytest.raises(TdbgError, match="cannot be written"):
        pool.take_buffer(1)
    pool.set_alive_check(lambda: True)
    monkeypatch.setattr(pools, "PATIENCE_S", 0.3)
    with pytest.raises(TdbgError, match="has accepted no captured data"):
        pool.take_buffer(1)


def test_room_is_made_by_a_thread_that_is_waited_for() -> None:
    """As by the end of an epoch's recording, which writes all it has and gives the buffers back."""
    pool = Pool(1000)
    writer = threading.Thread(target=pool.return_buffer, args=[pool.take_buffer(1000)])

    def relieve() -> None:
        writer.start()
        writer.join(5)
        assert not writer.is_alive(), "it waits for whoever waits for it"

    pool.relieve = relieve
    assert pool.take_buffer(500).numel() == 500
    writer.join()


# The hooks


class Net(nn.Module):
    """In-place operations, a layer that runs twice, a tuple, keyword arguments, a view of something large."""

    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.Conv2d(1, 2, 3)
        self.act = nn.ReLU(inplace=True)
        self.pair = Pair()
        self.same = nn.Linear(4, 4)
        self.never = nn.Linear(1, 1)

    def forward(self, x_BCHW: Tensor, *, scale: float = 1.0) -> Tensor:
        small_B4, _ = self.pair(self.conv(x_BCHW), scale=torch.tensor(scale))
        return self.same(self.same(self.act(small_B4)))


class Pair(nn.Module):
    """Writes into its input, and returns a view and a number."""

    def forward(self, x_BCHW: Tensor, *, scale: Tensor) -> tuple[Tensor, dict[str, Tensor]]:
        return x_BCHW.add_(scale).flatten(1)[:, :4], {"mean": x_BCHW.mean()}


def make_targets(net: nn.Module, **kinds: str) -> list[Target]:
    modules = dict(net.named_modules())
    return [Target(path, weakref.ref(modules[path]), tuple(words.split())) for path, words in kinds.items()]


def raise_error(error: Exception) -> None:
    raise error


def capture_pass(
    tap: Tap, net: nn.Module, wanted: list[Target], *args: Any, backward: bool = False, **kwargs: Any
) -> Copied:
    tap.begin_pass(wanted)
    out = net(*args, **kwargs)
    tap.remove_hooks()
    if backward:
        out.sum().backward()
    copied = tap.end_pass()
    assert copied is not None and tap.count_hooks() == 0
    return copied


def read_values(copied: Copied) -> dict[str, Tensor]:
    return {
        form.path: torch.frombuffer(bytearray(data) or bytearray(16), dtype=form.dtype)[: form.shape.numel()].view(
            form.shape
        )
        for form, data in iter_parts(copied)
    }


@pytest.fixture
def net() -> Net:
    torch.manual_seed(0)
    return Net()


def test_what_is_copied_is_what_was_there(net: Net) -> None:
    tap, x_BCHW = Tap(Pool(), raise_error), torch.randn(2, 1, 6, 6)
    wanted = make_targets(net, conv="output grad", pair="input output", same="output")
    conv = net.conv(x_BCHW).detach()
    found = read_values(capture_pass(tap, net, wanted, x_BCHW, backward=True, scale=3.0))
    assert list(found) == [
        "conv:output", "pair:input.0", "pair:input.1.scale", "pair:output.0", "pair:output.1.mean",
        "same:output", "same#1:output", "conv:grad",
    ]  # fmt: skip
    assert torch.equal(found["conv:output"], conv), "before the next module wrote into it"
    assert torch.equal(found["pair:input.0"], conv), "before the module itself wrote into it"
    assert torch.equal(found["pair:output.0"], (3 + conv).flatten(1)[:, :4]) and found["pair:output.0"].min() < 3
    assert torch.equal(found["same#1:output"], net.same(found["same:output"]).detach())
    grad = torch.autograd.grad(net(x_BCHW, scale=3.0).sum(), net.conv.bias)[0]
    assert torch.allclose(found["conv:grad"].sum((0, 2, 3)), grad)


def test_a_steady_program_is_copied_by_plan_into_the_same_memory(net: Net) -> None:
    tap, wanted = Tap(Pool(), raise_error), make_targets(net, conv="output", same="output", act="input")
    first = capture_pass(tap, net, wanted, torch.zeros(2, 1, 6, 6))
    assert not first.is_complete and len(first.loose) == 4
    tap.release_buffers(first)
    buffers = set()
    for number in range(4):
        x_BCHW = torch.randn(2, 1, 6, 6)
        copied = capture_pass(tap, net, wanted, x_BCHW)
        assert copied.is_complete and copied.buffer is not None, number
        assert torch.equal(read_values(copied)["conv:output"], net.conv(x_BCHW))
        assert copied.plan is not None and all(offset % 64 == 0 for offset in copied.plan.offsets)
        buffers.add(id(copied.buffer))
        tap.release_buffers(copied)
    assert len(buffers) == 1 and tap.pool.used_bytes == 0


def test_two_passes_on_their_way_do_not_share_memory(net: Net) -> None:
    tap, wanted = Tap(Pool(), raise_error), make_targets(net, conv="output")
    inputs = [torch.randn(2, 1, 6, 6) for _ in range(5)]
    passes = [capture_pass(tap, net, wanted, x_BCHW) for x_BCHW in inputs]
    for copied, x_BCHW in zip(passes, inputs, strict=True):
        assert torch.equal(read_values(copied)["conv:output"], net.conv(x_BCHW))


def test_another_batch_size_is_another_plan_and_both_stay(net: Net) -> None:
    tap, wanted = Tap(Pool(), raise_error), make_targets(net, conv="output", same="output")
    for size in (2, 3, 2, 3, 1):
        x_BCHW = torch.randn(size, 1, 6, 6)
        copied = capture_pass(tap, net, wanted, x_BCHW)
        assert torch.equal(read_values(copied)["conv:output"], net.conv(x_BCHW))
        whole = copied.is_complete
        tap.release_buffers(copied)
    assert not whole, "one sample a batch is new"
    copied = capture_pass(tap, net, wanted, torch.zeros(2, 1, 6, 6))
    assert copied.is_complete


def test_a_pass_that_leaves_its_plan_is_whole_all_the_same(net: Net) -> None:
    tap, wanted = Tap(Pool(), raise_error), make_targets(net, conv="output", pair="output", same="output")
    x_BCHW = torch.randn(2, 1, 6, 6)
    tap.release_buffers(capture_pass(tap, net, wanted, x_BCHW))
    net.same = nn.Linear(4, 5)  # the second call of it fails, and the shape is another
    net.never.register_forward_hook(lambda *_: None)
    tap.begin_pass(make_targets(net, conv="output", pair="output", same="output"))
    with pytest.raises(RuntimeError):
        net(x_BCHW)
    copied = tap.end_pass()
    assert copied is not None and copied.plan is not None and not copied.is_complete
    found = read_values(copied)
    assert torch.equal(found["conv:output"], net.conv(x_BCHW)) and found["same:output"].shape == (2, 5)


class Fickle(nn.Module):
    """Puts out another kind of thing whenever it is told to."""

    KINDS = ("same", "same", "same", "same", "none", "pair", "view", "wide", "long", "complex", "twice", "empty")

    def __init__(self) -> None:
        super().__init__()
        self.kind = "same"
        self.put_out: Any = None

    def forward(self, x_BF: Tensor) -> Any:
        views = {"view": x_BF.t(), "wide": torch.cat([x_BF, x_BF]), "long": x_BF.long(), "complex": x_BF * 1j}
        others = {"none": None, "pair": (x_BF + 1, x_BF + 2), "empty": x_BF[:0]}
        self.put_out = {**views, **others}.get(self.kind, x_BF + 3)
        return self.put_out


def test_whatever_modules_put_out_is_what_is_kept() -> None:
    draw = random.Random(0)
    net, tap = nn.ModuleList(Fickle() for _ in range(6)), Tap(Pool(), raise_error)
    wanted = make_targets(net, **{str(number): "output" for number in range(6)})
    steady = moved = 0
    for number in range(400):
        expected: dict[str, Tensor] = {}
        calls: dict[str, int] = {}
        tap.begin_pass(wanted)
        for path, module in net.named_children():
            if draw.random() < 0.03:
                continue
            module.kind = draw.choice(Fickle.KINDS) if number % 4 == 0 else "same"
            for _ in range(2 if module.kind == "twice" else 1):
                module(torch.full((3, 2), float(number)))
                name = f"{path}#{calls[path]}:output" if path in calls else f"{path}:output"
                calls[path] = calls.get(path, 0) + 1
                found = module.put_out
                if isinstance(found, tuple):
                    expected |= {f"{name}.{index}": each for index, each in enumerate(found)}
                elif found is not None:
                    expected[name] = found
        copied = tap.end_pass()
        assert copied is not None and copied.calls == calls
        got = read_values(copied)
        assert list(got) == list(expected)
        assert all(torch.equal(got[path], tensor) for path, tensor in expected.items())
        assert copied.data_bytes == sum(tensor.nbytes for tensor in expected.values())
        assert copied.find_row_paths(3) == [path for path, tensor in expected.items() if tensor.shape[:1] == (3,)]
        steady += copied.is_complete
        moved += copied.plan is not None and copied.calls is copied.plan.call_counts
        tap.release_buffers(copied)
    assert steady > 150 and moved > 50 and tap.pool.used_bytes == 0


def test_a_tensor_without_bytes_of_its_own_takes_the_longer_way() -> None:
    net, tap, seen = nn.Sequential(nn.Identity()), Tap(Pool(), lambda error: seen.append(error)), []
    wanted = make_targets(net, **{"0": "output"})
    for _ in range(2):
        tap.release_buffers(capture_pass(tap, net, wanted, torch.zeros(2)))
    tap.begin_pass(wanted)
    mapped = torch.func.vmap(net)(torch.ones(1, 2))
    assert mapped.tolist() == [[1, 1]], "training goes on"
    copied = tap.end_pass()
    assert copied is not None and list(copied.skipped) == ["0:output"], "what has no bytes is named"


def test_views_are_stored_as_small_as_they_are() -> None:
    class View(nn.Module):
        def forward(self, x_N: Tensor) -> Tensor:
            return x_N[:10]

    net, tap = nn.Sequential(View()), Tap(Pool(), raise_error)
    copied = capture_pass(tap, net, make_targets(net, **{"0": "output"}), torch.zeros(1 << 20))
    assert sum(buffer.numel() for buffer in copied.list_buffers()) == 40


def test_another_thread_s_pass_is_not_this_one_s(net: Net) -> None:
    tap, other = Tap(Pool(), raise_error), torch.full((2, 1, 6, 6), 9.0)
    tap.begin_pass(make_targets(net, conv="output"))
    thread = threading.Thread(target=lambda: net(other))
    thread.start()
    thread.join()
    x_BCHW = torch.randn(2, 1, 6, 6)
    net(x_BCHW)
    copied = tap.end_pass()
    assert copied is not None and copied.calls == {"conv": 1}
    assert torch.equal(read_values(copied)["conv:output"], net.conv(x_BCHW))


def test_nothing_of_the_program_is_held(net: Net) -> None:
    tap, alive = Tap(Pool(), raise_error), []
    net.conv.register_forward_hook(lambda _, __, out: alive.append(weakref.ref(out)))
    copied = capture_pass(tap, net, make_targets(net, conv="output grad"), torch.randn(2, 1, 6, 6), backward=True)
    assert copied.list_forms() and alive[0]() is None


def test_no_room_costs_the_pass_and_nothing_else(net: Net) -> None:
    tap = Tap(Pool(100, "drop"), raise_error)
    held = tap.pool.take_buffer(90)
    tap.begin_pass(make_targets(net, conv="output", same="output"))
    net(torch.randn(2, 1, 6, 6))
    assert tap.end_pass() is None and tap.pool.used_bytes == 90
    tap.pool.return_buffer(held)


@pytest.mark.parametrize(
    "dtype", [torch.bfloat16, torch.float16, torch.float64, torch.complex64, torch.float8_e4m3fn, torch.bool]
)
def test_element_types(dtype: torch.dtype, tmp_path: Path) -> None:
    class Cast(nn.Module):
        def forward(self, x_N: Tensor) -> Tensor:
            return x_N.to(dtype)

    net, tap = nn.Sequential(Cast()), Tap(Pool(), raise_error)
    recording = Recording(lambda: PageWriter(tmp_path), tap.pool)
    x_N = torch.randn(33)
    for number in range(2):
        recording.submit_job(
            Pass(capture_pass(tap, net, make_targets(net, **{"0": "output"}), x_N), tap.pool, number, {})
        )
    recording.close()
    for point in PageSet.open(tmp_path):
        tensor = point.tensors["0:output"]
        expected = x_N.to(dtype).contiguous()
        assert tensor.dtype.name == str(dtype).removeprefix("torch.") and tensor.shape == (33,)
        assert tensor.read() == bytes(expected.view(torch.uint8).tolist())


# The thread


def iter_passes(count: int, tap: Tap, net: nn.Module) -> Iterator[Pass]:
    for number in range(count):
        copied = capture_pass(tap, net, make_targets(net, conv="output"), torch.full((2, 1, 6, 6), float(number)))
        yield Pass(copied, tap.pool, number, {})


def test_all_is_written_in_order(net: Net, tmp_path: Path) -> None:
    tap = Tap(Pool(), raise_error)
    recording = Recording(lambda: PageWriter(tmp_path), tap.pool)
    for job in iter_passes(50, tap, net):
        recording.submit_job(job)
    assert recording.drain(30)
    assert (recording.written, tap.pool.used_bytes) == (50, 0)
    recording.close()
    points = list(PageSet.open(tmp_path))
    assert [point.key for point in points] == [*range(50)]
    for point in points:
        expected = net.conv(torch.full((2, 1, 6, 6), float(point.key)))
        assert point.tensors["conv:output"].read() == expected.detach().numpy().tobytes()


class Broken(PageWriter):
    """Fails after some datapoints."""

    left = 3

    def _write_datapoint(self, *args: Any, **kwargs: Any) -> int:
        self.left -= 1
        if self.left < 0:
            raise OSError(28, "No space left on device")
        return super()._write_datapoint(*args, **kwargs)


@pytest.mark.parametrize("broken", [lambda folder: lambda: Broken(folder), lambda folder: lambda: 1 / 0])
def test_what_fails_is_raised_once_counted_and_hangs_nobody(
    net: Net, tmp_path: Path, broken: Callable[[Path], Callable[[], PageWriter]]
) -> None:
    tap = Tap(Pool(5000), raise_error)
    recording = Recording(broken(tmp_path), tap.pool)
    raised = 0
    for job in iter_passes(40, tap, net):
        try:
            recording.submit_job(job)
        except (OSError, ZeroDivisionError):
            raised += 1
    try:
        recording.close(10)
    except (OSError, ZeroDivisionError):
        raised += 1
    assert raised == 1
    assert recording.written + sum(recording.dropped.values()) == 40 and recording.written in (0, 3)
    assert tap.pool.used_bytes == 0
    if recording.written:
        assert len(list(PageSet.open(tmp_path))) == 3


def test_dropped_ones_stand_in_the_pages(net: Net, tmp_path: Path) -> None:
    tap = Tap(Pool(), raise_error)
    recording = Recording(lambda: PageWriter(tmp_path), tap.pool)
    recording.submit_job(next(iter_passes(1, tap, net)))
    recording.count_dropped(7, "no room")
    recording.close()
    assert [(drop.datapoints, drop.reason) for drop in PageSet.open(tmp_path).drops] == [(7, "no room")]
    assert not any(thread.name == "tdbg-capture" for thread in threading.enumerate())


def test_a_module_that_calls_itself(tmp_path: Path) -> None:
    class Tree(nn.Module):
        def forward(self, x_N: Tensor, depth: int) -> Tensor:
            return x_N if depth == 0 else self(x_N + 1, depth - 1)

    net, tap = Tree(), Tap(Pool(), raise_error)
    recording = Recording(lambda: PageWriter(tmp_path), tap.pool)
    for key in range(2):
        tap.begin_pass([Target("tree", weakref.ref(net), ("input", "output"))])
        net(torch.zeros(2), 2)
        copied = tap.end_pass()
        assert copied is not None
        recording.submit_job(Pass(copied, tap.pool, key, {}))
    recording.close()
    assert recording.written == 2 and not recording.dropped
    for point in PageSet.open(tmp_path):
        inputs = [point.tensors[f"tree{mark}:input.0"].array().tolist() for mark in ("", "#1", "#2")]
        assert inputs == [[0, 0], [1, 1], [2, 2]]
        assert [path for path in point.tensors if "output" in path] == ["tree#2:output", "tree#1:output", "tree:output"]


def test_gaps_hold_nothing_of_the_program_s_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    net, tap = nn.Linear(3, 3), Tap(Pool(), raise_error)
    monkeypatch.setattr(torch, "empty", lambda size, **kinds: torch.full((size,), 255, **kinds))
    for _ in range(3):
        tap.begin_pass([Target("fc", weakref.ref(net), ("output",))])
        net(torch.ones(1, 3))
        copied = tap.end_pass()
        assert copied is not None
    assert copied.buffer is not None and copied.buffer[12:].count_nonzero() == 0
