"""The flag TRAINING_LOOP: the calls between updates, what becomes of gradients, epochs, recomputation."""

import weakref
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from probes.judging import judge_codes, judge_watch, list_observations
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint
from torch.utils.data import DataLoader, TensorDataset

from tdbg.core.observations.training_loop import window_text
from tdbg.probes.training_loop.windows import Track, compress_calls

FLAG = {"flags": {"TRAINING_LOOP": True}, "max_overhead": 1e6}
Loop = Callable[[], Any]


def make_setup(lr: float = 0.01, kind: Any = torch.optim.SGD) -> tuple[nn.Sequential, Any]:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 2))
    return model, kind(model.parameters(), lr=lr)


def make_batches(count: int = 12, seed: int = 0) -> DataLoader:
    generator = torch.Generator().manual_seed(seed)
    return DataLoader(TensorDataset(torch.randn(2 * count, 4, generator=generator)), batch_size=2)


def iter_inputs(epochs: int = 1, count: int = 12) -> Iterator[Tensor]:
    for _ in range(epochs):
        for (x,) in make_batches(count):
            yield x


def compute_loss(model: nn.Module, x: Tensor) -> Tensor:
    return model(x).square().mean()


def index_faults(watched: Any) -> dict[str, Any]:
    return {event.values["kind"]: event for event in list_observations(watched, "training-loop", "FAULT")}


# what is wrong


def forgotten() -> None:
    model, optimizer = make_setup()
    for x in iter_inputs():
        compute_loss(model, x).backward()
        optimizer.step()


def forgotten_with_clipping() -> None:
    """Clipping writes to the gradients, but before the update."""
    model, optimizer = make_setup()
    for x in iter_inputs():
        compute_loss(model, x).backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()


def wrong_model_reset() -> None:
    model, optimizer = make_setup()
    other, _ = make_setup()
    for x in iter_inputs():
        other.zero_grad()
        compute_loss(model, x).backward()
        optimizer.step()


def closure_without_reset() -> None:
    model, optimizer = make_setup()
    for x in iter_inputs():

        def closure(x: Tensor = x) -> Tensor:
            loss = compute_loss(model, x)
            loss.backward()
            return loss

        optimizer.step(closure)


def emptied(**how: Any) -> None:
    model, optimizer = make_setup()
    for x in iter_inputs():
        compute_loss(model, x).backward()
        optimizer.zero_grad(**how)
        optimizer.step()


def emptied_to_zeros() -> None:
    emptied(set_to_none=False)


def emptied_by_the_model() -> None:
    model, optimizer = make_setup()
    for x in iter_inputs():
        compute_loss(model, x).backward()
        model.zero_grad()
        optimizer.step()


def reset_for_every_micro_batch() -> None:
    model, optimizer = make_setup()
    for number, x in enumerate(iter_inputs(), start=1):
        optimizer.zero_grad()
        compute_loss(model, x).backward()
        if number % 3 == 0:
            optimizer.step()


def tail_cleared() -> None:
    model, optimizer = make_setup()
    for _ in range(4):
        optimizer.zero_grad()
        for number, x in enumerate(iter_inputs(count=10), start=1):
            compute_loss(model, x).backward()
            if number % 4 == 0:
                optimizer.step()
                optimizer.zero_grad()


def clipped_late() -> None:
    model, optimizer = make_setup()
    for x in iter_inputs():
        optimizer.zero_grad()
        compute_loss(model, x).backward()
        optimizer.step()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)


def same_loss_twice() -> None:
    model, optimizer = make_setup()
    for x in iter_inputs():
        optimizer.zero_grad()
        loss = compute_loss(model, x)
        loss.backward(retain_graph=True)
        loss.backward()
        optimizer.step()


WRONG: list[tuple[Loop, str, str]] = [
    (forgotten, "unreset", "TD-C013"),
    (forgotten_with_clipping, "unreset", "TD-C013"),
    (wrong_model_reset, "unreset", "TD-C013"),
    (closure_without_reset, "unreset", "TD-C013"),
    (emptied, "emptied", "TD-C014"),
    (emptied_to_zeros, "emptied", "TD-C014"),
    (emptied_by_the_model, "emptied", "TD-C014"),
    (reset_for_every_micro_batch, "thrown", "TD-C014"),
    (tail_cleared, "tail", "TD-C014"),
    (clipped_late, "late_clip", "TD-C015"),
    (same_loss_twice, "twice", "TD-C015"),
]


@pytest.mark.parametrize(("loop", "kind", "code"), WRONG, ids=[loop.__name__ for loop, _, _ in WRONG])
def test_what_is_wrong_is_named(start_watch: Any, tmp_path: Path, loop: Loop, kind: str, code: str) -> None:
    watched = start_watch(**FLAG)
    loop()
    assert set(index_faults(watched)) == {kind}
    (finding,) = judge_watch(watched, tmp_path)
    assert finding.code == code
    assert finding.first_step == index_faults(watched)[kind].values["since"]
    assert not watched.notes


def test_the_figures_of_a_finding(start_watch: Any, tmp_path: Path) -> None:
    watched = start_watch(**FLAG)
    reset_for_every_micro_batch()
    (finding,) = judge_watch(watched, tmp_path)
    assert finding.title == "2 of 3 backward calls of each update are thrown away, from step 2, rank 0"
    assert finding.evidence == ["3 updates in a row, to step 4"]


def test_the_figures_of_a_tail(start_watch: Any, tmp_path: Path) -> None:
    watched = start_watch(**FLAG)
    tail_cleared()
    (finding,) = judge_watch(watched, tmp_path)
    assert finding.title == "the last 2 backward calls of 10 in an epoch went into no update, from step 2, rank 0"
    assert finding.severity == "info"


def test_how_long_it_must_last_can_be_set(start_watch: Any) -> None:
    watched = start_watch(**FLAG, thresholds={"TRAINING_LOOP.lasting": 6})
    forgotten()
    assert index_faults(watched)["unreset"].values["streak"] == 6
    watched = start_watch(**FLAG, thresholds={"TRAINING_LOOP.lasting": 12})
    forgotten()
    assert not index_faults(watched)


def test_leftovers_on_an_accelerator_are_read_late(start_watch: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    from tdbg.runtime import tensors

    watched = start_watch(**FLAG)
    monkeypatch.setattr(tensors, "on_host", lambda tensor: False)
    forgotten()
    assert set(index_faults(watched)) == {"unreset"}
    watched = start_watch(**FLAG)
    reset_behind_autograd()
    assert not index_faults(watched)


# what is right


def make_loop(reset: Callable[[nn.Module, Any], None]) -> Loop:
    def run_loop() -> None:
        model, optimizer = make_setup()
        for x in iter_inputs(epochs=2):
            reset(model, optimizer)
            compute_loss(model, x).backward()
            optimizer.step()

    return run_loop


def reset_by_hand(model: nn.Module, optimizer: Any) -> None:
    for parameter in model.parameters():
        parameter.grad = None


def reset_in_place(model: nn.Module, optimizer: Any) -> None:
    for parameter in model.parameters():
        if parameter.grad is not None:
            parameter.grad.zero_()


def reset_data(model: nn.Module, optimizer: Any) -> None:
    """As old code does: autograd does not notice."""
    for parameter in model.parameters():
        if parameter.grad is not None:
            parameter.grad.data.zero_()


def gradient_momentum(model: nn.Module, optimizer: Any) -> None:
    for parameter in model.parameters():
        if parameter.grad is not None:
            parameter.grad.mul_(0.9)


reset_behind_autograd = make_loop(reset_data)


def reset_after_the_update() -> None:
    model, optimizer = make_setup()
    for x in iter_inputs(epochs=2):
        compute_loss(model, x).backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad()


def accumulation(*, tail: bool) -> Loop:
    """The tail of an epoch is updated with, or carried into the next epoch."""

    def run_loop() -> None:
        model, optimizer = make_setup()
        for _ in range(4):
            for number, x in enumerate(iter_inputs(count=10), start=1):
                (compute_loss(model, x) / 4).backward()
                if number % 4 == 0 or (tail and number == 10):
                    optimizer.step()
                    optimizer.zero_grad()

    return run_loop


def closure(kind: Any) -> Loop:
    def run_loop() -> None:
        model, optimizer = make_setup(kind=kind)
        for x in iter_inputs():

            def evaluate(x: Tensor = x) -> Tensor:
                optimizer.zero_grad()
                loss = compute_loss(model, x)
                loss.backward()
                return loss

            optimizer.step(evaluate)

    return run_loop


def gan(critics: int) -> Loop:
    """The generator's backward fills the critic's gradients, which are cleared before the critic's own."""

    def run_loop() -> None:
        model, ours = make_setup(kind=torch.optim.Adam)
        critic = nn.Linear(2, 1)
        theirs = torch.optim.Adam(critic.parameters())
        for x in iter_inputs(epochs=2):
            for _ in range(critics):
                theirs.zero_grad()
                critic(model(x).detach()).mean().backward()
                theirs.step()
            ours.zero_grad()
            (-critic(model(x)).mean()).backward()
            ours.step()

    return run_loop


def two_loaders_two_optimizers() -> None:
    """As CycleGAN: each optimizer has a batch, and the other's backward lies between."""
    model, ours = make_setup()
    critic = nn.Linear(2, 1)
    theirs = torch.optim.SGD(critic.parameters(), lr=0.01)
    first, second = iter_inputs(epochs=3), iter_inputs(epochs=3)
    for x in first:
        ours.zero_grad()
        critic(model(x)).mean().backward()
        ours.step()
        theirs.zero_grad()
        critic(model(next(second)).detach()).mean().backward()
        theirs.step()


def attack() -> None:
    """Adversarial training: a first backward for the input, cleared before the one that counts."""
    model, optimizer = make_setup()
    for x in iter_inputs():
        x.requires_grad_()
        compute_loss(model, x).backward()
        worse = (x + 0.1 * x.grad.sign()).detach()
        optimizer.zero_grad()
        compute_loss(model, worse).backward()
        optimizer.step()


def sharpness_aware() -> None:
    model, optimizer = make_setup()
    for x in iter_inputs():
        compute_loss(model, x).backward()
        moves = [0.05 * parameter.grad for parameter in model.parameters()]
        with torch.no_grad():
            for parameter, move in zip(model.parameters(), moves, strict=True):
                parameter += move
        optimizer.zero_grad()
        compute_loss(model, x).backward()
        with torch.no_grad():
            for parameter, move in zip(model.parameters(), moves, strict=True):
                parameter -= move
        optimizer.step()
        optimizer.zero_grad()


def mixed_precision() -> None:
    """Skipped updates: the gradients are cleared without one."""
    model, optimizer = make_setup()
    scaler = torch.amp.GradScaler("cpu", init_scale=2.0**10, growth_interval=1000)
    for number, x in enumerate(iter_inputs(epochs=4)):
        optimizer.zero_grad()
        scaler.scale(compute_loss(model, x)).backward()
        if number in (1, 3, 5, 7):
            model[0].weight.grad.fill_(float("inf"))
        scaler.step(optimizer)
        scaler.update()


def heads_in_turn() -> None:
    """Two optimizers that step each time, although only one head was used."""
    body, _ = make_setup()
    heads = [nn.Linear(2, 1), nn.Linear(2, 1)]
    optimizers = [torch.optim.SGD(head.parameters(), lr=0.01) for head in heads]
    for number, x in enumerate(iter_inputs(epochs=2)):
        for optimizer in optimizers:
            optimizer.zero_grad()
        heads[number % 2](body(x)).mean().backward()
        for optimizer in optimizers:
            optimizer.step()


def update_inside_backward() -> None:
    model, _ = make_setup()
    optimizers = {parameter: torch.optim.SGD([parameter], lr=0.01) for parameter in model.parameters()}

    def update_parameter(parameter: Tensor) -> None:
        optimizers[parameter].step()
        optimizers[parameter].zero_grad()

    for parameter in model.parameters():
        parameter.register_post_accumulate_grad_hook(update_parameter)
    for x in iter_inputs():
        compute_loss(model, x).backward()


def update_inside_backward_and_reset_before_it() -> None:
    model, _ = make_setup()
    optimizers = {parameter: torch.optim.SGD([parameter], lr=0.01) for parameter in model.parameters()}
    for parameter in model.parameters():
        parameter.register_post_accumulate_grad_hook(lambda parameter: optimizers[parameter].step())
    for x in iter_inputs():
        for optimizer in optimizers.values():
            optimizer.zero_grad()
        compute_loss(model, x).backward()


def two_losses() -> None:
    model, optimizer = make_setup()
    for x in iter_inputs():
        optimizer.zero_grad()
        out = model(x)
        out.square().mean().backward(retain_graph=True)
        out.abs().mean().backward()
        optimizer.step()


def one_loss_for_two_groups() -> None:
    model, optimizer = make_setup()
    first, rest = list(model.parameters())[:2], list(model.parameters())[2:]
    for x in iter_inputs():
        optimizer.zero_grad()
        loss = compute_loss(model, x)
        loss.backward(inputs=first, retain_graph=True)
        loss.backward(inputs=rest)
        optimizer.step()


def a_group_that_counts_twice() -> None:
    model, optimizer = make_setup()
    for x in iter_inputs():
        optimizer.zero_grad()
        loss = compute_loss(model, x)
        loss.backward(retain_graph=True)
        loss.backward(inputs=list(model.parameters())[:2])
        optimizer.step()


def gradient_surgery() -> None:
    """Gradients of two tasks are taken, cleared, joined and put back by hand."""
    model, optimizer = make_setup()
    for x in iter_inputs():
        found = []
        for task in range(2):
            optimizer.zero_grad()
            model(x)[:, task].square().mean().backward()
            found.append([parameter.grad.clone() for parameter in model.parameters()])
        optimizer.zero_grad()
        for parameter, *grads in zip(model.parameters(), *found, strict=True):
            parameter.grad = sum(grads)
        optimizer.step()


def sparse() -> None:
    torch.manual_seed(0)
    table = nn.Embedding(20, 4, sparse=True)
    optimizer = torch.optim.SparseAdam(table.parameters())
    for _ in range(12):
        optimizer.zero_grad()
        table(torch.randint(20, (3,))).square().mean().backward()
        optimizer.step()


def bad_batches_left_out() -> None:
    model, optimizer = make_setup()
    for number, x in enumerate(iter_inputs(epochs=3)):
        compute_loss(model, x).backward()
        if number % 5 == 3:
            optimizer.zero_grad()
            continue
        optimizer.step()
        optimizer.zero_grad()


def gradients_moved_to_copies() -> None:
    """The optimizer holds copies of the weights, whose gradients the program writes anew in each step."""
    model, _ = make_setup()
    copies = [p.detach().clone() for p in model.parameters()]
    optimizer = torch.optim.SGD(copies, lr=0.01)
    for x in iter_inputs(epochs=2):
        model.zero_grad()
        compute_loss(model, x).backward()
        for own, one in zip(model.parameters(), copies, strict=True):
            one.grad = own.grad.clone()
        optimizer.step()


RIGHT: dict[str, Loop] = {
    "by hand": make_loop(reset_by_hand),
    "in place": make_loop(reset_in_place),
    "behind autograd": reset_behind_autograd,
    "gradient momentum": make_loop(gradient_momentum),
    "set to zero": make_loop(lambda model, optimizer: optimizer.zero_grad(set_to_none=False)),
    "by the model": make_loop(lambda model, optimizer: model.zero_grad()),
    "after the update": reset_after_the_update,
    "accumulation": accumulation(tail=True),
    "accumulation over epochs": accumulation(tail=False),
    "closure": closure(torch.optim.Adam),
    "lbfgs": closure(torch.optim.LBFGS),
    "gan": gan(1),
    "critic five times": gan(5),
    "two loaders": two_loaders_two_optimizers,
    "attack": attack,
    "sharpness": sharpness_aware,
    "mixed precision": mixed_precision,
    "heads": heads_in_turn,
    "inside backward": update_inside_backward,
    "two losses": two_losses,
    "one loss, two groups": one_loss_for_two_groups,
    "a group twice": a_group_that_counts_twice,
    "surgery": gradient_surgery,
    "sparse": sparse,
    "left out": bad_batches_left_out,
    "copies": gradients_moved_to_copies,
}


@pytest.mark.parametrize("name", RIGHT)
def test_what_is_right_is_left_alone(start_watch: Any, tmp_path: Path, name: str) -> None:
    watched = start_watch(**FLAG)
    RIGHT[name]()
    assert not index_faults(watched)
    assert judge_codes(watched, tmp_path) == []
    assert name == "inside backward" or list_observations(watched, "training-loop", "STEP")


def test_updates_inside_backward_on_an_accelerator(start_watch: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing of the gradients can be read there."""
    from tdbg.runtime import tensors

    watched = start_watch(**FLAG)
    monkeypatch.setattr(tensors, "on_host", lambda tensor: False)
    update_inside_backward_and_reset_before_it()
    assert not index_faults(watched)


# what is told


def test_the_calls_of_a_step_in_order(start_watch: Any) -> None:
    watched = start_watch(**FLAG)
    accumulation(tail=True)()
    first, second, third = list_observations(watched, "training-loop", "STEP")[:3]
    assert first.step == 1 and first.text == "(batch, forward, backward) x 4, step"
    assert second.values["order"] == "zero_grad, (batch, forward, backward) x 4, step"
    assert third.values["order"] == "zero_grad, (batch, forward, backward) x 2, step"
    assert (second.values["backwards"], second.values["batches"], second.values["zero_grads"]) == (4, 4, 1)


def test_windows_and_epochs(start_watch: Any) -> None:
    watched = start_watch(**FLAG)
    accumulation(tail=True)()
    changes = [(event.step, event.values["window"]) for event in list_observations(watched, "training-loop", "WINDOW")]
    assert changes[:4] == [(1, 4), (3, 2), (4, 4), (6, 2)]
    epochs = list_observations(watched, "training-loop", "EPOCH")
    assert [event.step for event in epochs] == [3, 6, 9]
    assert epochs[0].values["windows"] == {"4": 2, "2": 1} and epochs[0].values["backwards"] == 10
    assert "4 backward calls an update (2 of 3)" in epochs[0].text


def test_evaluation_within_an_epoch_and_batches_taken_ahead(start_watch: Any) -> None:
    watched = start_watch(**FLAG)
    model, optimizer = make_setup()
    for _ in range(3):
        loader = iter(make_batches(6))
        ahead = [next(loader), next(loader)]
        while ahead:
            optimizer.zero_grad()
            compute_loss(model, ahead.pop(0)[0]).backward()
            optimizer.step()
            ahead += [batch for batch in [next(loader, None)] if batch is not None]
            with torch.no_grad():
                for (x,) in make_batches(2, seed=1):
                    model(x)
                    break
    assert [event.step for event in list_observations(watched, "training-loop", "EPOCH")] == [6, 12]


def test_phases(start_watch: Any) -> None:
    watched = start_watch(**FLAG)
    model, optimizer = make_setup()
    for number, x in enumerate(iter_inputs()):
        if number >= 6 or number == 3:  # from then on beside every step
            with torch.no_grad():
                model(x)
        optimizer.zero_grad()
        compute_loss(model, x).backward()
        optimizer.step()
    told = [(event.step, event.values["evaluations"]) for event in list_observations(watched, "training-loop", "PHASE")]
    assert told == [(4, 1), (7, 1)]


def test_a_tail_that_is_carried_over_is_told(start_watch: Any) -> None:
    watched = start_watch(**FLAG)
    accumulation(tail=False)()
    epochs = list_observations(watched, "training-loop", "EPOCH")
    assert [event.values["carried"] for event in epochs] == [2, 2, 2]
    assert not any(event.values["dropped"] for event in epochs)


def test_the_last_epoch_is_told_when_the_process_leaves(start_watch: Any) -> None:
    watched = start_watch(**FLAG)
    reset_after_the_update()
    assert len(list_observations(watched, "training-loop", "EPOCH")) == 1
    watched.monitor.finish_run()
    assert [event.values["updates"] for event in list_observations(watched, "training-loop", "EPOCH")] == [12, 12]


def test_a_skipped_update_ends_its_window(start_watch: Any) -> None:
    watched = start_watch(**FLAG)
    mixed_precision()
    assert {event.values["window"] for event in list_observations(watched, "training-loop", "WINDOW")} == {1}


@pytest.mark.parametrize("reentrant", [True, False])
def test_recomputation_is_counted_and_changes_nothing(start_watch: Any, reentrant: bool) -> None:
    def train_checkpointed() -> Tensor:
        model, optimizer = make_setup()
        for x in iter_inputs():
            optimizer.zero_grad()
            x.requires_grad_()
            torch.utils.checkpoint.checkpoint(model, x, use_reentrant=reentrant).square().mean().backward()
            optimizer.step()
        return model[0].weight.detach()

    expected, original = train_checkpointed(), checkpoint
    watched = start_watch(**FLAG)
    assert torch.utils.checkpoint.checkpoint is not original
    assert torch.equal(train_checkpointed(), expected)
    told = list_observations(watched, "training-loop", "RECOMPUTE")
    assert len(told) == 12
    assert {(event.values["runs"], event.values["recomputed"]) for event in told} == {(2, 1)}
    assert all(event.values["recompute_ms"] > 0 for event in told)
    watched.monitor.activate_probes([])
    assert torch.utils.checkpoint.checkpoint is original


def test_a_backward_that_fails_is_over(start_watch: Any) -> None:
    watched = start_watch(**FLAG)
    model, optimizer = make_setup()
    for number, x in enumerate(iter_inputs()):
        optimizer.zero_grad()
        if number == 2:
            with pytest.raises(RuntimeError):
                torch.ones(()).backward()
        compute_loss(model, x).backward()
        optimizer.step()
    assert watched.monitor.find_probe("training-loop")._depth == 0
    assert list_observations(watched, "training-loop", "STEP")[-1].values["backwards"] == 1


def test_it_can_be_switched_on_in_the_middle(start_watch: Any) -> None:
    from tdbg.probes.catalog import CATALOG
    from tdbg.probes.training_loop import TrainingLoop

    watched = start_watch(max_overhead=1e6)
    forgotten()
    watched.monitor.settings.flags["TRAINING_LOOP"] = True
    watched.monitor.activate_probes([*CATALOG.select_probes("basic", {}), TrainingLoop])
    forgotten()
    assert set(index_faults(watched)) == {"unreset"}
    before = len(watched.events)
    watched.monitor.activate_probes(CATALOG.select_probes("basic", {}))
    forgotten()
    assert not [event for event in watched.events[before:] if getattr(event, "probe", "") == "training-loop"]


@pytest.mark.parametrize(
    ("calls", "text"),
    [
        ([], ""),
        (["a"], "a"),
        (["a", "a", "a"], "a x 3"),
        (["z", "b", "f", "b", "f", "s"], "z, (b, f) x 2, s"),
        (["a", "b", "a"], "a, b, a"),
        (["a", "a", "b", "a", "a", "b"], "(a, a, b) x 2"),
    ],
)
def test_calls_are_written_shortly(calls: list[str], text: str) -> None:
    assert compress_calls(calls) == text


def test_windows_in_words() -> None:
    assert window_text({}) == "no update"
    assert window_text({"1": 3}) == "1 backward call an update"


def test_a_track_without_gradients_gives_up() -> None:
    parameter = nn.Parameter(torch.ones(2))
    optimizer = torch.optim.SGD([parameter])
    track = Track(weakref.ref(optimizer), "SGD", 3)
    for _ in range(100):
        assert not track.choose_sample()
    parameter.grad = torch.ones(2)
    assert not track.choose_sample(), "not looked for any more"
