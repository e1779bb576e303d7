"""What to capture, and when: `--capture` and the options around it, as data."""

import re
from collections.abc import Iterable, Sequence
from typing import NamedTuple

from tdbg.core.errors import TdbgError, suggest_name

KINDS = ("output", "input", "grad")
PHASES = ("train", "val", "eval")
MAX_DIGITS = 12  # of a number; Python refuses to read one of thousands
PARTS = ("batch", "prediction")  # words of `--capture` that name no layer; `batch:output` is a layer of that name
# Debuggers that `--debugger` knows without a look at other packages: those of a layer, and those of the datapoint.
LAYER_DEBUGGERS = ("activation-stats", "attention", "feature-map", "gradcam", "gradients", "layer-output")
DATAPOINT_DEBUGGERS = ("inputs", "labels", "outputs")
# Why passes are left out, where that is what was asked for.
SAMPLED, OVER_BUDGET, NOT_THE_LAST_EPOCH = "sampled", "over budget", "of an epoch that was not the last"
NO_SAMPLE = "with no sample that --capture-samples selects"
ASKED_FOR = frozenset((SAMPLED, OVER_BUDGET, NOT_THE_LAST_EPOCH, NO_SAMPLE))


class Spec(NamedTuple):
    """Which layers, and what of each: ``layers.*.attn:output,input``."""

    pattern: str
    kinds: tuple[str, ...] = ("output",)

    @classmethod
    def parse(cls, text: str) -> "Spec":
        """TdbgError for a kind that there is not. Kinds stand behind the last colon; an expression may hold others."""
        pattern, colon, kinds = text.strip().rpartition(":")
        found = tuple(word.strip() for word in kinds.split(",") if word.strip())
        is_expression = pattern.startswith("re:") and not re.fullmatch(r"[\w\s,]*", kinds)
        if not colon or is_expression or pattern == "re":
            return cls(_validate_pattern(text.strip()))
        for kind in found:
            if kind not in KINDS:
                raise TdbgError(
                    f"--capture {text!r}: {kind!r} is not a kind of tensor",
                    f"write 'layers.*.attn:output,input,grad'; known kinds: {', '.join(KINDS)}",
                )
        if not pattern or not found:
            raise TdbgError(f"--capture {text!r} names no layer", "write 'layers.*.attn:output', or '*' for all")
        return cls(_validate_pattern(pattern), found)


class DebuggerSpec(NamedTuple):
    """A debugger by name, and where it looks: ``gradcam:layer4``."""

    name: str
    argument: str = ""

    @classmethod
    def parse(cls, text: str) -> "DebuggerSpec":
        """TdbgError for a debugger of a layer without one. The built-in ones may be written with ``_``."""
        word, _, argument = (part.strip() for part in text.partition(":"))
        dashed = word.replace("_", "-")
        name = dashed if dashed in LAYER_DEBUGGERS else word
        if not name:
            raise TdbgError(f"--debugger {text!r} names no debugger", "write --debugger gradcam:layer4")
        if name in LAYER_DEBUGGERS and not argument:
            raise TdbgError(f"--debugger {text} names no layer", f"write --debugger {name}:LAYER, as in {name}:layer4")
        return cls(name, _validate_pattern(argument, "--debugger"))

    def __str__(self) -> str:
        return f"{self.name}:{self.argument}" if self.argument else self.name


def check_debugger_names(texts: Sequence[str], third_party: Iterable[str]) -> None:
    """TdbgError for a debugger that is neither built in nor one of these of other packages."""
    known = [*LAYER_DEBUGGERS, *DATAPOINT_DEBUGGERS, *third_party]
    for name in (DebuggerSpec.parse(text).name for text in texts):
        if name not in known:
            hint = suggest_name(name, known, f"known debuggers: {', '.join(known)}")
            raise TdbgError(f"--debugger: no debugger is named {name!r}", hint)


def split_parts(texts: Sequence[str]) -> tuple[tuple[str, ...], list[Spec]]:
    """What ``--capture`` asks for: the `PARTS` of a datapoint, and the layers."""
    words = [text.strip() for text in texts]
    return tuple(part for part in PARTS if part in words), [Spec.parse(word) for word in words if word not in PARTS]


def _validate_pattern(pattern: str, option: str = "--capture") -> str:
    """The pattern, if it can be one."""
    if pattern.startswith("re:"):
        try:
            re.compile(pattern[3:])
        except re.error as error:
            raise TdbgError(
                f"{option}: {pattern[3:]!r} is not a regular expression: {error}", "see the syntax of Python's re"
            ) from None
    elif "[" in pattern and "]" not in pattern.rpartition("[")[2]:
        raise TdbgError(f"{option}: {pattern!r} has a '[' without a ']'", "write 'layers.[0-3].attn', or '*' for all")
    return pattern


class Epochs(NamedTuple):
    """Which epochs: every Nth and the last, the last alone, or all (the rule of checkpoints).

    every: 0 for the last alone. Which one is the last, `select_indices` alone knows in advance.
    """

    every: int = 1

    @classmethod
    def parse(cls, text: str, name: str = "epochs") -> "Epochs":
        """``all``, ``latest`` or a number above 0; TdbgError for anything else. name: of the option."""
        word = text.strip().lower()
        if word in ("", "all"):
            return cls(1)
        if word == "latest":
            return cls(0)
        if not word.isdecimal() or len(word) > MAX_DIGITS or int(word) == 0:
            raise TdbgError(f"{name} cannot be {text!r}", "write a number above 0, latest or all")
        return cls(int(word))

    def select_indices(self, count: int) -> list[int]:
        """Of so many epochs, from 0: (10, every 3) -> 2, 5, 8, 9."""
        if count <= 0:
            return []
        chosen = set(range(self.every - 1, count, self.every)) if self.every else set()
        return sorted(chosen | {count - 1})

    def is_selected(self, epoch: int) -> bool:
        """True if this epoch is one, however many there are; the last one cannot be told."""
        return bool(self.every) and (epoch + 1) % self.every == 0


class SampleSelection(NamedTuple):
    """Which samples of a batch are kept: those with the largest loss, those predicted wrong, or every Nth.

    kind: worst, wrong or every; empty keeps all. number: how many per batch (worst), or N (every).
    """

    kind: str = ""
    number: int = 1

    @classmethod
    def parse(cls, text: str, name: str = "samples") -> "SampleSelection":
        """``worst``, ``worst:4``, ``wrong``, or a number above 0; TdbgError for anything else. name: of the option."""
        word, colon, number = (part.strip() for part in text.lower().partition(":"))
        if not word and not colon:
            return cls()
        if word.isdecimal() and len(word) <= MAX_DIGITS and int(word) and not colon:
            return cls("every", int(word))
        if word in ("worst", "wrong") and not colon:
            return cls(word)
        if word == "worst" and number.isdecimal() and len(number) <= MAX_DIGITS and int(number):
            return cls(word, int(number))
        raise TdbgError(f"{name} cannot be {text!r}", "write worst, worst:4, wrong, or a number above 0 (every Nth)")

    @property
    def needs_labels(self) -> bool:
        """True if choosing needs labels and the prediction."""
        return self.kind in ("worst", "wrong")


def check_spec(text: str) -> None:
    """TdbgError for a ``--capture`` that cannot be."""
    Spec.parse(text)


def check_debugger(text: str) -> None:
    """TdbgError for a ``--debugger`` that cannot be. Which names there are, the process that starts the run looks up."""
    DebuggerSpec.parse(text)
