"""What debuggers gave for one datapoint, copied, on its way into a page, from which it can be read as it was given."""

from collections.abc import Iterable, Mapping
from dataclasses import fields, is_dataclass
from typing import Any

import torch
from torch import Tensor

from tdbg.debuggers.copies import snapshot
from tdbg.debuggers.plain import NotPlain, Part, split_tensor
from tdbg.debuggers.pool import Pool
from tdbg.debuggers.recording_thread import Job, view_bytes
from tdbg.pages.format.nested_outputs import build_path_steps, dict_note
from tdbg.pages.format.page_writer import Item, PageWriter

MAX_DEPTH = 32
MAX_TEXT = 1 << 16  # letters; longer ones are kept as bytes
PLAIN = bool | int | float | str


class CapturedOutputs(Job):
    """The outputs of one datapoint or batch; the bytes of its tensors are counted in the pool.

    Dicts, lists and tuples are steps of a path (``FeatureMap/stats/mean``); what the path does not tell is in notes, by
    which `tdbg.pages.format.nested_outputs` builds them again. refused: what cannot be stored, as ``path: why``.
    """

    def __init__(self, ids: list[Any], outputs: Mapping[str, object], pool: Pool) -> None:
        self.ids, self.pool = ids, pool
        self.tensors: dict[str, Part] = {}
        self.scalars: dict[str, object] = {}
        self.notes: dict[str, dict[str, object]] = {}
        self.refused: list[str] = []
        self._take_mapping("", outputs, ())
        self.nbytes = sum(part.data.nbytes for part in self.tensors.values())
        pool.reserve_bytes(self.nbytes)

    def _take_value(self, path: str, value: object, around: tuple[int, ...]) -> None:
        if id(value) in around or len(around) > MAX_DEPTH:
            self.refused.append(f"{path}: it contains itself")
        elif isinstance(value, Tensor):
            self._take_tensor(path, value)
        elif hasattr(value, "__array_interface__"):
            self._take_array(path, value)
        elif isinstance(value, bytes | bytearray) or (isinstance(value, str) and len(value) > MAX_TEXT):
            self._take_bytes(path, value)
        elif _is_plain(value):
            self.scalars[path] = value
            if isinstance(value, tuple):
                self.notes[path] = _tuple_note(value)
        else:
            self._take_container(path, value, (*around, id(value)))

    def _take_container(self, path: str, value: object, around: tuple[int, ...]) -> None:
        if isinstance(value, Mapping):
            self._take_mapping(path, value, around)
        elif isinstance(value, list):
            self._take_items(path, enumerate(value), {"list": ""}, around)
        elif isinstance(value, tuple):
            self._take_items(path, enumerate(value), _tuple_note(value), around)
        elif isinstance(value, set | frozenset):
            self._take_items(path, enumerate(sorted(value, key=repr)), {"set": ""}, around)
        elif is_dataclass(value) and not isinstance(value, type):
            self._take_items(path, ((item.name, getattr(value, item.name, None)) for item in fields(value)), {}, around)
        else:
            self.refused.append(f"{path}: a {type(value).__name__} cannot be stored")

    def _take_mapping(self, path: str, value: Mapping[Any, object], around: tuple[int, ...]) -> None:
        keys = build_path_steps(value)
        note = dict_note(keys) if path or keys else {}
        self._take_items(path, ((step, value[key]) for step, key in keys.items()), note, around)

    def _take_items(
        self, path: str, items: Iterable[tuple[object, object]], note: dict[str, object], around: tuple[int, ...]
    ) -> None:
        if note:
            self.notes[path] = note
        for step, item in items:
            self._take_value(f"{path}/{step}" if path else str(step), item, around)

    def _take_array(self, path: str, value: Any) -> None:
        try:
            if not getattr(value, "ndim", 1):
                self.scalars[path] = value.item()
            else:
                self._take_tensor(path, torch.from_numpy(value.copy()))
        except (TypeError, ValueError) as error:
            self.refused.append(f"{path}: {error}")

    def _take_bytes(self, path: str, value: Any) -> None:
        kind, data = ("text", value.encode("utf-8", "surrogatepass")) if isinstance(value, str) else ("bytes", value)
        found = torch.frombuffer(bytearray(data), dtype=torch.uint8) if data else torch.empty(0, dtype=torch.uint8)
        self.tensors[path] = Part("", found, torch.uint8, ((kind, ""),))

    def _take_tensor(self, path: str, value: Tensor) -> None:
        try:
            found = split_tensor(value)
            for part in found:
                copied = snapshot(part.data).contiguous()
                self.tensors[path + part.path] = part._replace(data=copied)
        except (NotPlain, TypeError, ValueError, RuntimeError) as error:
            self.refused.append(f"{path}: {error}")
            return
        layout = dict(found[0].note).get("sparse") if found else None
        if layout:
            self.notes[path] = {"sparse": layout, "shape": list(value.shape)}

    def write_pages(self, writer: PageWriter) -> int:
        items = [
            Item(
                path,
                str(part.dtype).removeprefix("torch."),
                tuple(part.data.shape),
                view_bytes(part.data),
                dict(part.note),
            )
            for path, part in self.tensors.items()
        ]
        more: dict[str, object] = {"notes": self.notes} if self.notes else {}
        if self.refused:
            more["refused"] = self.refused
        key, keys = self.ids[0], self.ids if len(self.ids) > 1 else None
        split = [path for path, part in self.tensors.items() if part.data.shape[:1] == (len(self.ids),)]
        batch = {"keys": keys, "split": split} if keys else {}
        writer.add(key, items, scalars=self.scalars, **batch, **more)
        return self.nbytes

    def release_memory(self) -> None:
        self.pool.release_bytes(self.nbytes)


def _tuple_note(value: tuple[object, ...]) -> dict[str, object]:
    return {"tuple": type(value).__name__ if type(value) is not tuple else ""}


def _is_plain(value: object) -> bool:
    if value is None or isinstance(value, PLAIN | complex):
        return True
    return isinstance(value, list | tuple) and bool(value) and all(isinstance(item, PLAIN | complex) for item in value)
