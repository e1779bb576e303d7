"""The words: read from babel, labelled, split, augmented, and handed out in batches.

B: samples of a batch. L: letters of a word. M: meta-features. R: ranks of the taxonomy.
"""

import hashlib
import re
import unicodedata
from collections.abc import Callable, Sequence
from functools import cache
from typing import NamedTuple

import torch
from babel import Locale
from languages import LINEAGES, NULL, RANKS, Lineage, common
from torch import Tensor
from torch.utils.data import DataLoader, Dataset, DistributedSampler, Subset
from yacs.config import CfgNode

KINDS = ("territory", "language", "month", "day")
SCRIPTS = ("LATIN", "CYRILLIC")
LEAST_LETTERS = 3
PAD = 0
# The meta-features, by component: each is masked as a whole.
COMPONENTS = {"LENGTH": 1, "SCRIPT": len(SCRIPTS), "CAPITALS": 1, "KIND": len(KINDS)}
META_DIM = sum(COMPONENTS.values())
PARTS = ("train", "val", "test")


class Row(NamedTuple):
    """One word with all that is known of it."""

    word: str  # lower case, NFC
    lineage: Lineage
    meta: tuple[float, ...]  # (M), in the order of COMPONENTS
    part: str


@cache
def rows() -> tuple[Row, ...]:
    """All words in the order of their hash, so that the first N are a fair choice. Takes about two seconds."""
    codes: dict[str, set[str]] = {}
    kinds: dict[str, set[str]] = {}
    capitals: dict[str, list[bool]] = {}
    for code in LINEAGES:
        for kind, name in _list_names(Locale(code)):
            for piece in re.findall(r"[^\W\d_]+", unicodedata.normalize("NFC", name)):
                word = piece.lower()
                if len(word) < LEAST_LETTERS or _script(word) is None:
                    continue
                codes.setdefault(word, set()).add(code)
                kinds.setdefault(word, set()).add(kind)
                capitals.setdefault(word, []).append(piece[0].isupper())
    found = []
    for word, shared in codes.items():
        share = sum(capitals[word]) / len(capitals[word])
        meta = (
            len(word) / 10,
            *(float(_script(word) == script) for script in SCRIPTS),
            share,
            *(float(kind in kinds[word]) for kind in KINDS),
        )
        found.append((_hash(word), Row(word, common(frozenset(shared)), meta, _choose_part(word))))
    return tuple(row for _, row in sorted(found))


@cache
def alphabet() -> dict[str, int]:
    """Each letter of the words -> its index; 0 pads."""
    letters = sorted({letter for row in rows() for letter in row.word})
    return {letter: index + 1 for index, letter in enumerate(letters)}


@cache
def classes() -> dict[str, tuple[str, ...]]:
    """The classes of each rank; the first is null."""
    labels = ({lineage[rank] for lineage in LINEAGES.values()} - {None} for rank in range(len(RANKS)))
    return {name: (NULL, *sorted(map(str, found))) for name, found in zip(RANKS, labels, strict=True)}


def _list_names(locale: Locale) -> list[tuple[str, str]]:
    """What CLDR calls things in a language, each with its kind."""
    found = [("territory", name) for name in locale.territories.values()]
    found += [("language", name) for name in locale.languages.values()]
    for kind, table in (("month", locale.months), ("day", locale.days)):
        found += [(kind, name) for form in table.values() for name in form.get("wide", {}).values()]
    return found


def _script(word: str) -> str | None:
    """The script of a word; None if it is another one, or there are two."""
    found = {_letter_script(letter) for letter in word}
    return found.pop() if len(found) == 1 and found <= set(SCRIPTS) else None


@cache
def _letter_script(letter: str) -> str:
    return unicodedata.name(letter, "").partition(" ")[0]


def _hash(word: str) -> int:
    return int.from_bytes(hashlib.sha1(word.encode(), usedforsecurity=False).digest()[:8], "big")


def _choose_part(word: str) -> str:
    """Eight tenths train, one validates, one tests; a word is always in the same part."""
    return {0: "val", 1: "test"}.get(_hash(word) // 7 % 10, "train")


class DropLetter:
    """Leaves out one letter, with probability ``p``; of words longer than three."""

    def __init__(self, p: float) -> None:
        self.p = p

    def __call__(self, letters_L: Tensor) -> Tensor:
        length = int((letters_L != PAD).sum())
        if length <= LEAST_LETTERS or torch.rand(()) >= self.p:
            return letters_L
        at = int(torch.randint(length, ()))
        return torch.cat([letters_L[:at], letters_L[at + 1 :], letters_L.new_tensor([PAD])])


class SwapLetters:
    """Swaps two neighbours, with probability ``p``."""

    def __init__(self, p: float) -> None:
        self.p = p

    def __call__(self, letters_L: Tensor) -> Tensor:
        length = int((letters_L != PAD).sum())
        if torch.rand(()) >= self.p:
            return letters_L
        at = int(torch.randint(length - 1, ()))
        swapped = letters_L.clone()
        swapped[at], swapped[at + 1] = letters_L[at + 1], letters_L[at]
        return swapped


class Compose:
    """Calls one transform after the other."""

    def __init__(self, transforms: Sequence[Callable[[Tensor], Tensor]]) -> None:
        self.transforms = list(transforms)

    def __call__(self, letters_L: Tensor) -> Tensor:
        for transform in self.transforms:
            letters_L = transform(letters_L)
        return letters_L


def augmentation(config: CfgNode) -> Compose | None:
    """The transforms of the training words; None if they are off."""
    return Compose([DropLetter(config.DROP), SwapLetters(config.SWAP)]) if config.ENABLED else None


class Words(Dataset[dict[str, Tensor]]):
    """The words of one part as tensors: letters (L), meta (M), labels (R)."""

    def __init__(self, part: str, *, words: int = 0, max_letters: int = 20, transform: Compose | None = None) -> None:
        chosen = rows()[: words or None]
        self.rows = [row for row in chosen if row.part == part]
        self.transform = transform
        index = alphabet()
        numbers = [{label: at for at, label in enumerate(classes()[rank])} for rank in RANKS]
        self.letters_NL = torch.full((len(self.rows), max_letters), PAD)
        for at, row in enumerate(self.rows):
            codes = [index[letter] for letter in row.word[:max_letters]]
            self.letters_NL[at, : len(codes)] = torch.tensor(codes)
        self.meta_NM = torch.tensor([row.meta for row in self.rows])
        self.labels_NR = torch.tensor(
            [[number[label or NULL] for number, label in zip(numbers, row.lineage, strict=True)] for row in self.rows]
        )

    def __len__(self) -> int:
        return len(self.rows)

    def __getitem__(self, index: int) -> dict[str, Tensor]:
        letters_L = self.letters_NL[index]
        if self.transform is not None:
            letters_L = self.transform(letters_L)
        return {"letters": letters_L, "meta": self.meta_NM[index], "labels": self.labels_NR[index]}

    def counts(self) -> dict[str, Tensor]:
        """Samples of each class, by rank."""
        return {
            rank: torch.bincount(self.labels_NR[:, at], minlength=len(classes()[rank])) for at, rank in enumerate(RANKS)
        }


def loaders(config: CfgNode, rank: int, world: int) -> tuple[DataLoader[dict[str, Tensor]], ...]:
    """The loaders of training and validation; each rank has samples of its own."""
    size = {"words": config.DATA.WORDS, "max_letters": config.DATA.MAX_LETTERS}
    train = Words("train", transform=augmentation(config.AUGMENT), **size)
    val = Words("val", **size)
    sampler: DistributedSampler[dict[str, Tensor]] = DistributedSampler(
        train, world, rank, shuffle=True, seed=config.SEED, drop_last=True
    )
    workers = {"num_workers": config.DATA.WORKERS, "persistent_workers": config.DATA.WORKERS > 0}
    return (
        DataLoader(train, config.DATA.BATCH_SIZE, sampler=sampler, drop_last=True, **workers),
        # Not a DistributedSampler: it would count some words twice to make the ranks even.
        DataLoader(Subset(val, range(rank, len(val), world)), config.DATA.BATCH_SIZE),
    )


def hide(meta_BM: Tensor, prob: float = 0.0, components: Sequence[str] = ()) -> tuple[Tensor, Tensor]:
    """Meta-features with components hidden, by name or each with a probability: (B, M) and what is shown (B, components)."""
    shown = (torch.rand(len(meta_BM), len(COMPONENTS), device=meta_BM.device) >= prob).float()
    for at, name in enumerate(COMPONENTS):
        if name in components:
            shown[:, at] = 0.0
    widths = torch.tensor(list(COMPONENTS.values()), device=meta_BM.device)
    return meta_BM * shown.repeat_interleave(widths, dim=1), shown
