"""Numbers read from printed text: which are results, what they cost, and what becomes of them in a real run."""

import json
import random
import time
from types import SimpleNamespace
from typing import Any

import pytest

from tdbg.inject.metrics.printed_numbers import (
    KEPT,
    MAX_CHARS,
    MAX_SHAPES,
    MAX_WAITING,
    PAUSE_S,
    PrintedNumbers,
    find_results,
)

LINES = {
    "epoch 0 train_loss 1.9083 val_acc 0.0664": {"train_loss": 1.9083, "val_acc": 0.0664},
    "Test set: Average loss: 0.0456, Accuracy: 9852/10000 (99%)": {
        "test/Average_loss": 0.0456,
        "test/Accuracy": 0.9852,
    },
    "Train Epoch: 1 [0/60000 (0%)]\tLoss: 2.300000": {"Loss": 2.3},
    " 12%|███  | 12/100 [00:01<00:10,  9.50it/s, loss=0.43, acc=91.2%]": {"loss": 0.43, "acc": 91.2},
    "Epoch: [0][ 10/100]\tTime  0.1 ( 0.2)\tLoss 4.4e+00 (4.5e+00)\tAcc@1  12.50 ( 10.20)": {
        "Loss": 4.4,
        "Acc@1": 12.5,
    },
    "{'loss': 0.43, 'learning_rate': 1e-05, 'epoch': 0.1}": {"loss": 0.43},
    '{"step": 3, "loss": 0.5, "norm": 1.25}': {"loss": 0.5},
    "step 250: train loss 1.9, val loss 2.0": {"train_loss": 1.9, "val_loss": 2.0},
    "iter 100: loss 2.3, time 12.34ms, mfu 1.2%": {"loss": 2.3},
    "validation accuracy: 43.2%": {"validation_accuracy": 43.2},
    "Epoch 3 val: loss 0.2 acc 0.3": {"val/loss": 0.2, "val/acc": 0.3},
    "loss=-1.5e-3": {"loss": -0.0015},
    "acc=.5": {"acc": 0.5},
    "Using 8 GPUs": {},
    "2026-11-21 10:00:01 INFO loaded 3 files in 0.2 s": {},
    "lr 0.1, epoch 3, step 40, eta 0:10:30": {},
    "loss at 10:30": {},
    "losses are written to run-3/loss.txt": {},
    "": {},
}


@pytest.mark.parametrize("line", LINES)
def test_results_in_a_line(line: str) -> None:
    assert find_results(line) == LINES[line]


@pytest.mark.parametrize("word", ["nan", "inf", "-inf", "NaN"])
def test_numbers_that_are_not_finite(word: str) -> None:
    (value,) = find_results(f"loss: {word}").values()
    assert str(value) == str(float(word))


HOSTILE = [
    "loss: 1e999 acc=-1e999",
    "loss " + "9" * 400,
    "loss=0." + "1" * 5000,
    "loss\x00=1",
    "\x1b]0;loss=1\x07\x1b[31mloss=2\x1b[0m",
    "\udcffloss=1 \ud800 acc 0.5",
    "lоss=1",  # a Cyrillic letter
    "loss=١٢٣ acc=²",
    "loss=1__2 acc=0x1p4 val_loss=1e",
    "'; rm -rf / #loss=1",
    "<script>loss=1</script>",
    "__class__=1 __dict__: 2 val/loss/../../x=3",
    "loss:" * 200,
    "{'loss': {'loss': {'loss': 1}}}",
    "[" * 900 + "loss=1",
    "nan=nan inf=inf loss=nan=inf",
]


@pytest.mark.parametrize("line", HOSTILE, ids=lambda line: ascii(line)[1:40])
def test_what_a_hostile_line_gives_is_a_few_plain_names_with_numbers(line: str) -> None:
    assert_plain(find_results(line))


def assert_plain(found: dict[str, Any]) -> None:
    """Short names without control codes, each with a number."""
    assert len(found) <= 20
    for name, value in found.items():
        assert name.isprintable() and len(name) < 200, ascii(name)
        float(value)
        json.dumps({name: value}, ensure_ascii=False).encode("utf-8")


def test_lines_by_chance_raise_nothing() -> None:
    chance = random.Random(5)
    pieces = [
        "loss",
        "acc",
        "val",
        "=",
        ":",
        " ",
        "/",
        "%",
        "(",
        ")",
        "[",
        "'",
        "1",
        ".",
        "-",
        "e",
        "nan",
        "\x1b",
        "é",
        "\ud800",
    ]
    for _ in range(3000):
        assert_plain(find_results("".join(chance.choices(pieces, k=chance.randrange(1, 60)))))


@pytest.mark.parametrize(
    "piece", ["x", "a ", "1", "a1.", "loss ", "loss: ", "a-", "a--", "a-a ", "1/", "=", "é", "loss 1."]
)
def test_the_time_of_a_line_grows_with_its_length_not_its_square(piece: str) -> None:
    def seconds(length: int) -> float:
        text = (piece * length)[:length]
        begun = time.process_time()
        for _ in range(20_000 // length):
            find_results(text)
        return time.process_time() - begun

    seconds(2000)  # names are known from here on
    assert min(seconds(2000) for _ in range(3)) < 3 * min(seconds(200) for _ in range(3)) + 0.005


class Recording:
    """A feed that keeps what it is given."""

    def __init__(self) -> None:
        self.rows: list[tuple[str, dict[Any, Any], int, str]] = []
        self.is_listening = True
        self.booked: list[float] = []
        self.left_out: dict[str, int] = {}

    def leave_out(self, why: str, count: int = 1) -> None:
        self.left_out[why] = self.left_out.get(why, 0) + count

    def record_logged(self, source: str, data: Any, *, step: int, phase: str) -> None:
        self.rows.append((source, dict(data), step, phase))

    def record_cost(self, seconds: float) -> None:
        self.booked.append(seconds)


@pytest.fixture
def fake_clock(monkeypatch: pytest.MonkeyPatch) -> SimpleNamespace:
    now = SimpleNamespace(t=100.0)
    monkeypatch.setattr("tdbg.inject.metrics.printed_numbers.time", SimpleNamespace(perf_counter=lambda: now.t))
    return now


def test_a_text_keeps_the_step_at_which_it_was_printed(fake_clock: SimpleNamespace) -> None:
    feed = Recording()
    printed = PrintedNumbers(feed)  # type: ignore[arg-type]
    printed.add_text("loss 3.0", 1, "train")
    printed.add_text("loss 2.0", 2, "train")
    printed.add_text("acc 0.5", 2, "eval")
    assert feed.rows == [("text", {"loss": 3.0}, 1, "train")], "the others wait"
    fake_clock.t += PAUSE_S
    printed.add_text("epoch 0: train_loss 2.5 val_loss 2.7", 3, "")
    assert feed.rows[1:] == [
        ("text", {"loss": 2.0}, 2, "train"),
        ("text", {"acc": 0.5}, 2, "val"),
        ("text", {"train_loss": 2.5}, 3, "train"),
        ("text", {"val_loss": 2.7}, 3, "val"),
    ]
    assert len(feed.booked) == 2


def test_what_waits_is_bounded_and_read_at_the_end(fake_clock: SimpleNamespace) -> None:
    feed = Recording()
    printed = PrintedNumbers(feed)  # type: ignore[arg-type]
    for step in range(10 * MAX_WAITING):
        printed.add_text(f"loss {step}.5", step, "train")
    printed.parse_waiting()
    assert len(feed.rows) == 1 + MAX_WAITING + KEPT + 1, "the last one of a burst"
    assert feed.rows[-1][2] == 10 * MAX_WAITING - 1
    assert len(feed.rows) + feed.left_out["printed"] == 10 * MAX_WAITING, "nothing is dropped without a word"


@pytest.mark.parametrize("every", [20, 50, 199])
@pytest.mark.parametrize(
    "line", ["step {0} loss=0.{0}", "step {0}: loss {0}.5 lr 1e-{0}", "loading shard {0} of the data"]
)
def test_a_score_is_kept_beside_lines_that_come_in_each_step(
    fake_clock: SimpleNamespace, every: int, line: str
) -> None:
    """Steps of a millisecond, of which each prints a line."""
    feed = Recording()
    printed = PrintedNumbers(feed)  # type: ignore[arg-type]
    scores = []
    for step in range(2000):
        fake_clock.t += 1e-3
        printed.add_text(line.format(step), step, "train")
        if step % every == 0:
            scores.append(step)
            printed.add_text(f"epoch {step}: val_acc {step / 1e4:.4f}", step, "eval")
    printed.parse_waiting()
    assert [row[2] for row in feed.rows if "val_acc" in row[1]] == scores
    told = len([row for row in feed.rows if "loss" in row[1]]) + feed.left_out.get("printed", 0)
    assert told == (2000 if "loss" in line else 0), "lines without a result are not counted"


def test_of_lines_that_are_all_unlike_few_are_kept(fake_clock: SimpleNamespace) -> None:
    feed = Recording()
    printed = PrintedNumbers(feed)  # type: ignore[arg-type]
    names = [f"{one}{other}_loss" for one in "abcdefghijklmnop" for other in "abcdefghijklmnop"]
    for step, name in enumerate(names):
        printed.add_text(f"{name} 0.5", step, "train")
    printed.parse_waiting()
    assert [row[2] for row in feed.rows] == [
        *range(1 + MAX_WAITING + MAX_SHAPES),
        *range(len(names) - KEPT, len(names)),
    ]
    assert feed.left_out["printed"] == len(names) - len(feed.rows), "nothing is dropped without a word"


def test_the_last_score_is_kept_among_lines_that_are_all_unlike(fake_clock: SimpleNamespace) -> None:
    feed = Recording()
    printed = PrintedNumbers(feed)  # type: ignore[arg-type]
    for place in range(MAX_WAITING + MAX_SHAPES + 20):
        printed.add_text(f"loading {chr(97 + place // 26) * 2}{chr(97 + place % 26)}", place, "train")
    printed.add_text("test accuracy 0.91", 200, "eval")
    printed.add_text("loading aaa", 201, "train")
    printed.parse_waiting()
    assert [row[1:3] for row in feed.rows] == [({"test_accuracy": 0.91}, 200)]


def test_another_thread_may_print_while_what_waits_is_taken(fake_clock: SimpleNamespace) -> None:
    class Lines(list[Any]):
        """Another thread gets its turn as these are read."""

        def __iter__(self) -> Any:
            printed._add_beyond("another loss 0.5", 2, "train")
            return super().__iter__()

    feed = Recording()
    printed = PrintedNumbers(feed)  # type: ignore[arg-type]
    printed._beyond = {b"one": Lines([("loss 1.0", 1, "train")]), b"two": [("loss 2.0", 1, "train")]}
    printed.parse_waiting()
    assert [row[1] for row in feed.rows] == [{"loss": 1.0}, {"loss": 2.0}]
    printed.parse_waiting()
    assert len(feed.rows) == 3


def test_a_bar_that_is_redrawn_makes_one_row_a_step(fake_clock: SimpleNamespace) -> None:
    feed = Recording()
    printed = PrintedNumbers(feed)  # type: ignore[arg-type]
    for step in (1, 1, 1, 2):
        fake_clock.t += 1
        printed.add_text(f"\r {step}%|# | {step}/9 [00:01<00:02, loss=0.5]", step, "train")
    assert [row[2] for row in feed.rows] == [1, 2]


def test_bars_do_not_crowd_out_what_stands_between_them(fake_clock: SimpleNamespace) -> None:
    feed = Recording()
    printed = PrintedNumbers(feed)  # type: ignore[arg-type]
    printed.add_text("begins", 0, "train")
    for step in range(10 * MAX_WAITING):
        printed.add_text(f"\r {step}it [00:01, loss={step}.5]", step, "train")
        if step == 5:
            printed.add_text("val_acc 0.5", step, "eval")
    printed.parse_waiting()
    assert [(row[1], row[2]) for row in feed.rows] == [
        ({"loss": 5.5}, 5),
        ({"val_acc": 0.5}, 5),
        ({"loss": 10 * MAX_WAITING - 0.5}, 10 * MAX_WAITING - 1),
    ]


def test_only_the_beginning_of_a_long_text_is_read(fake_clock: SimpleNamespace) -> None:
    feed = Recording()
    PrintedNumbers(feed).add_text("x" * MAX_CHARS + " loss 1.0", 1, "train")  # type: ignore[arg-type]
    assert feed.rows == []


def test_a_forked_child_does_not_read_its_parents_texts(fake_clock: SimpleNamespace) -> None:
    feed = Recording()
    printed = PrintedNumbers(feed)  # type: ignore[arg-type]
    for loss in (1.0, 2.0):
        printed.add_text(f"loss {loss}", 1, "train")
    printed.reset_after_fork()
    printed.parse_waiting()
    assert [row[1] for row in feed.rows] == [{"loss": 1.0}]
