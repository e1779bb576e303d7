"""Folders of pages that lie: each a name and a function that makes it in an empty folder."""

import json
import os
import struct
import zlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

from tdbg.pages.format.file_format import MANIFEST
from tdbg.pages.format.journal import encode_frame, iter_records
from tests.pages.material import fill_writer, list_sealed, write_pages

Records = list[dict[str, Any]]
HUGE = 10**400
OPEN = {"t": "open", "version": {"major": 1, "minor": 0}, "run": "", "rank": 0, "pid": 1, "time": 0}


def write_with_records(folder: Path, change: Callable[[Records], Any]) -> None:
    """Pages that are being filled, whose journal says something else, with good checksums."""
    fill_writer(folder, 4)
    journal = next(folder.glob("*.journal"))
    records = [record for _, record in iter_records(journal)]
    change(records)
    journal.write_bytes(b"".join(map(encode_frame, records)))


def change_records(change: Callable[[Records], Any]) -> Callable[[Path], None]:
    return lambda folder: write_with_records(folder, change)


def change_datapoint(**fields: Any) -> Callable[[Path], None]:
    """The second datapoint says something else."""
    return change_records(lambda records: records[4].update(fields))


def change_item(place: int, value: Any) -> Callable[[Path], None]:
    """The second tensor of the layout does."""
    return change_records(lambda records: records[2]["items"][1].__setitem__(place, value))


def keep_one_tensor(dtype: str, shape: list[Any], length: int, note: Any) -> Callable[[Path], None]:
    """The layout has one tensor alone."""
    return change_records(lambda records: records[2].update(items=[["t", dtype, shape, 0, length, note]]))


def pack_frame(body: bytes) -> bytes:
    return struct.pack("<II", len(body), zlib.crc32(body)) + body


def write_journal(*bodies: bytes, raw: bytes = b"") -> Callable[[Path], None]:
    """A journal alone, of these bodies, with good checksums."""
    data = b"".join(map(pack_frame, bodies)) + raw

    def write_file(folder: Path) -> None:
        (folder / "r0000-1.journal").write_bytes(encode_frame(OPEN) + data)

    return write_file


def encode_datapoint(**fields: Any) -> bytes:
    return json.dumps({"t": "dp", "key": "k", "seq": 0, **fields}).encode()


def write_header(text: bytes, length: int | None = None, data: bytes = b"abcd") -> Callable[[Path], None]:
    """A sealed page alone."""

    def write_file(folder: Path) -> None:
        size = len(text) if length is None else length
        (folder / "r0000-000000.safetensors").write_bytes(size.to_bytes(8, "little") + text + data)

    return write_file


def encode_tensors(**entries: Any) -> bytes:
    """The header of a page; each entry is (dtype, shape, offsets)."""
    names = ("dtype", "shape", "data_offsets")
    return json.dumps({name: dict(zip(names, entry, strict=True)) for name, entry in entries.items()}).encode()


def encode_metadata(**fields: str) -> bytes:
    known = {"format": "tdbg-pages", "version": "1.0", "layouts": "[]", "datapoints": "[]"}
    return json.dumps({"__metadata__": {**known, **fields}}).encode()


def replace_file(name: str, kind: str, target: str = "") -> Callable[[Path], None]:
    """A file of the folder is no plain file. name: a glob."""

    def replace_in(folder: Path) -> None:
        write_pages(folder, 3)
        (path,) = folder.glob(name)
        path.unlink()
        if kind == "pipe":
            os.mkfifo(path)
        elif kind == "folder":
            path.mkdir()
        else:
            path.symlink_to(target)

    return replace_in


def cut_file(name: str, share: float) -> Callable[[Path], None]:
    """A file of the folder ends too early."""

    def cut_in(folder: Path) -> None:
        write_pages(folder, 3)
        (path,) = folder.glob(name)
        os.truncate(path, int(path.stat().st_size * share))

    return cut_in


def write_manifest(data: bytes) -> Callable[[Path], None]:
    def write_file(folder: Path) -> None:
        write_pages(folder, 3)
        (folder / MANIFEST).write_bytes(data)

    return write_file


def write_bare_header(**fields: Any) -> Callable[[Path], None]:
    """Pages without a journal; what the header's own records say is changed."""

    def change_header(folder: Path) -> None:
        write_pages(folder, 3)
        next(folder.glob("*.journal")).unlink()
        page = list_sealed(folder)[0]
        data = page.read_bytes()
        size = int.from_bytes(data[:8], "little")
        head = json.loads(data[8 : 8 + size])
        records = json.loads(head["__metadata__"]["datapoints"])
        records[0].update(fields)
        head["__metadata__"]["datapoints"] = json.dumps(records)
        text = json.dumps(head).encode().ljust(size)
        page.write_bytes(len(text).to_bytes(8, "little") + text + data[8 + size :])

    return change_header


def link_around(folder: Path) -> None:
    """Folders that are below themselves, and all of the machine."""
    write_pages(folder / "rank0000" / "pages", 2)
    (folder / "rank0001").symlink_to(folder)
    (folder / "epoch_1").symlink_to("/")
    (folder / "rank0000" / "pages" / "debugger").symlink_to("..")


def write_several_runs(folder: Path) -> None:
    """Ranks that both say they are rank 3 of 10**9."""
    for name in ("rank0000", "rank0001"):
        write_pages(folder / name / "pages", 2, rank=3, world_size=10**9, run=name)


def add_many_layouts(records: Records) -> None:
    """A structure of its own for each of many datapoints."""
    layout, point = records[2], records[3]
    for number in range(120):
        records.append({**layout, "id": 100 + number})
        records.append({**point, "layout": 100 + number, "seq": 100 + number, "key": f"q{number}"})


DEEP = b'{"t":"dp","key":"k","seq":0,"scalars":{"x":' + b"[" * 200_000
LONG = "y" * (3 << 20)
VALUES: dict[str, Any] = {
    "nothing": None, "true": True, "negative": -1, "long": 2**63, "huge": HUGE, "fraction": 1.5, "text": "x",
    "escape": "\x1b]0;title\x07\x1b[2J", "list": [], "lists": [[[]]], "dict": {}, "float": {"$float": "zz"},
    "complex": {"$complex": [1]}, "bytes": {"$bytes": "%%"}, "marks": {"$dict": 5}, "surrogate": "\ud800", "nul": "a\0b",
}  # fmt: skip

PAGES: dict[str, Callable[[Path], None]] = {
    **{f"{field}-{name}": change_datapoint(**{field: value})
       for field in ("key", "keys", "split", "step", "epoch", "phase", "base", "length", "page", "layout", "crc")
       for name, value in VALUES.items() if name in ("true", "negative", "huge", "escape", "lists", "marks", "nul")},
    **{f"loss-{name}": change_datapoint(scalars={"loss": value, "n": 1}) for name, value in VALUES.items()},
    **{f"more-{field}": change_datapoint(**{field: VALUES[name]})
       for field in ("containers", "notes", "calls", "stats", "flags", "scalars", "source", "skipped")
       for name in ("huge", "lists", "marks")},
    "containers-cross": change_datapoint(containers={"layers.0.attn/output": "list", "": "tuple", "empty/x": "dict"}),
    "notes-cross": change_datapoint(notes={"flags": {"list": ""}, "a": {"dict": {"b": "c"}}, "empty": {"tuple": 5}}),
    **{f"figures-{name}": change_datapoint(scalars={"x/count": value, "x/nan": value, "x/mean": value, "x/low": value})
       for name, value in {**VALUES, "inf": {"$float": "inf"}, "nan": {"$float": "nan"}}.items()},
    **{f"loss-complex-{name}": change_datapoint(scalars={"loss": {"$complex": [value, value]}})
       for name, value in {"huge": HUGE, "large": 1e308, "nan": {"$float": "nan"}}.items()},
    "keys-many": change_datapoint(keys=list(range(50_000)), split=["flags"]),
    "split-scalars": change_datapoint(keys=["a", "b"], split=["loss", "nope", "flags"], scalars={"loss": 1}),
    "page-far": change_datapoint(page=10**18),
    "base-negative": change_datapoint(base=-64),
    "base-beyond": change_datapoint(base=2**61),
    "base-unaligned": change_datapoint(base=(1 << 20) + 1),
    "base-in-header": change_datapoint(base=0),
    "length-short": change_datapoint(length=64),
    "offset-negative": change_item(3, -64),
    "offset-overlap": change_item(3, 16),
    "offset-beyond": change_item(3, 2**40),
    "shape-huge": change_item(2, [2**62, 2**62]),
    "shape-negative": change_item(2, [-1, 3]),
    "shape-many": change_item(2, [1] * 10_000),
    "shape-empty": change_item(2, [0] * 60),
    "shape-zero-times-huge": change_item(2, [2**62, 0, 2**62]),
    "path-up": change_item(0, "../../../../tmp/up"),
    "path-root": change_item(0, "/etc/passwd"),
    "path-none": change_item(0, ""),
    "path-same": change_item(0, "layers.0.attn/output/0"),
    "path-below": change_item(0, "layers.0.attn/output/0/x"),
    "path-long": change_item(0, "p/" * 30_000),
    "path-escape": change_item(0, "\x1b[31mred\x9b0m\u202e"),
    "path-markup": change_item(0, "</script><script>alert(1)</script>"),
    "dtype-unknown": change_item(1, "float3"),
    "dtype-wider": change_item(1, "complex128"),
    "packed-odd": keep_one_tensor("quint4x2", [5, 3], 15, {"scale": 1, "zero_point": 0}),
    "scale-text": keep_one_tensor("quint8", [16], 16, {"scale": "x", "zero_point": []}),
    "scale-huge": keep_one_tensor("qint8", [16], 16, {"scale": HUGE, "zero_point": HUGE}),
    "scale-nan": keep_one_tensor("qint32", [4], 16, {"scale": {"$float": "nan"}, "zero_point": -(2**70)}),
    "scales-few": keep_one_tensor("qint8", [4, 4], 16, {"scales": [1.0], "zero_points": [], "axis": 0}),
    "scales-axis": keep_one_tensor("qint8", [4, 4], 16, {"scales": [1.0] * 4, "zero_points": [0] * 4, "axis": 9}),
    "scales-many": keep_one_tensor("qint8", [4, 4], 16, {"scales": [0.1] * 30_000, "zero_points": [0] * 30_000, "axis": -1}),
    "note-list": keep_one_tensor("float32", [4], 16, ["scale"]),
    "note-text": keep_one_tensor("uint8", [16], 16, {"text": ""}),
    "fp4-odd": keep_one_tensor("float4_e2m1fn_x2", [3, 3], 9, {}),
    "layouts-many": change_records(add_many_layouts),
    "layout-twice": change_records(lambda records: records.insert(3, {**records[2], "items": records[2]["items"][:1]})),
    "layout-late": change_records(lambda records: records.append(records.pop(2))),
    "records-bare": change_records(lambda r: r.extend({"t": t} for t in ("page", "layout", "dp", "seal", "drop", "end", "x"))),
    "drops": change_records(lambda r: r.extend({"t": "drop", "count": c, "reason": why, "first": c, "last": why}
                                     for c, why in ((HUGE, "\x1b[2J"), (-5, 7), ("x", None), (True, [])))),
    "seals": change_records(lambda r: r.extend({"t": "seal", "page": page, "size": size}
                                     for page, size in ((0, 1), (0, HUGE), (-1, -1), ("x", []), (10**18, 5)))),
    "pages-twice": change_records(lambda records: records.insert(2, {"t": "page", "page": 0, "data": -64})),
    "time": change_records(lambda records: records[0].update(time="x", pid=[], host={}, rank=-1, world_size=HUGE, start=HUGE)),
    "frame-length-0": write_journal(raw=bytes(64)),
    "frame-length-max": write_journal(raw=b"\xff" * 64),
    "frame-length-lies": write_journal(raw=struct.pack("<II", 16 << 20, 0) + b"{}"),
    "frame-crc": write_journal(raw=struct.pack("<II", 2, 1) + b"{}"),
    "frame-no-object": write_journal(b"[]", b"1", b"null", b'"x"', encode_datapoint()),
    "frame-no-json": write_journal(b"\xff\xfe", b"{", b"{}}", encode_datapoint()),
    "frame-nan": write_journal(b'{"t":"dp","key":"k","seq":0,"step":NaN}', encode_datapoint(scalars={"x": 1})),
    "frames-many": write_journal(*[b"{}"] * 30_000),
    "datapoints-many": write_journal(*[encode_datapoint(key=n, seq=n, scalars={"loss": n}) for n in range(5_000)]),
    "nesting": write_journal(DEEP + b"]" * 200_000 + b"}}"),
    "nesting-names": write_journal(b'{"t":"dp","key":"k","seq":0,"scalars":{"x":' + b'{"a":' * 50_000 + b"1" + b"}" * 50_002),
    "nesting-bearable": write_journal(encode_datapoint(scalars={"x": json.loads("[" * 500 + "]" * 500)})),
    "string-long": write_journal(encode_datapoint(scalars={"x": LONG})),
    "key-long": write_journal(encode_datapoint(key=LONG, scalars={"x": 1})),
    "name-long": write_journal(encode_datapoint(scalars={LONG: 1})),
    "numbers-many": write_journal(encode_datapoint(scalars={"loss": [0] * 400_000})),
    "names-many": write_journal(encode_datapoint(scalars={f"n{n}": n for n in range(20_000)})),
    "digits-many": write_journal(b'{"t":"dp","key":"k","seq":0,"step":' + b"9" * 100_000 + b"}"),
    "exponent": write_journal(b'{"t":"dp","key":"k","seq":1e999,"scalars":{"loss":-1e999}}', encode_datapoint(scalars={"loss": 1})),
    "journal-empty": lambda folder: (folder / "r0000-1.journal").touch(),
    "journal-zeros": lambda folder: (folder / "r0000-1.journal").write_bytes(bytes(1 << 20)) and None,
    "header-empty": write_header(b"", 0, b""),
    "header-length-max": write_header(b"", 2**64 - 1),
    "header-length-lies": write_header(b"{}", 100),
    "header-nesting": write_header(b"[" * 1_000_000),
    "header-nesting-names": write_header(b'{"a":' * 500_000),
    "header-overlap": write_header(encode_tensors(a=("U8", [4], [0, 4]), b=("U8", [4], [0, 4]))),
    "header-negative": write_header(encode_tensors(a=("U8", [4], [-4, 0]))),
    "header-beyond": write_header(encode_tensors(a=("U8", [4], [0, 2**62]))),
    "header-huge": write_header(encode_tensors(a=("F32", [2**32, 2**32], [0, 4]))),
    "header-wrong-types": write_header(encode_tensors(a=(7, "4", None), b=("F32", [True], [0.0, 4.0]))),
    "header-metadata": write_header(b'{"__metadata__":{"format":"tdbg-pages"}}'),
    **{f"header-{name}-{value[:3]!r}": write_header(encode_metadata(**{name: value}))
       for name in ("version", "layouts", "datapoints", "opened", "data", "writer")
       for value in ("", "null", "[" * 100_000, '[{"t":1}]', "9" * 5000)},
    "header-datapoint-base": write_bare_header(base=-64),
    "header-datapoint-page": write_bare_header(page=77, layout=99),
    "header-datapoint-scalars": write_bare_header(scalars=[1], key={}, keys=5),
    "manifest-empty": write_manifest(b""),
    "manifest-list": write_manifest(b"[]"),
    "manifest-deep": write_manifest(b"[" * 1_000_000),
    "manifest-types": write_manifest(b'{"format":"tdbg-pages","version":{"major":true},"rank":"x","run":[]}'),
    "manifest-version": write_manifest(b'{"format":"tdbg-pages","version":{"major":9,"minor":0}}'),
    "manifest-large": write_manifest(b'{"format":"' + b"x" * (64 << 20) + b'"}'),
    "part-alone": lambda folder: (folder / "r0000-000000.part").write_bytes(bytes(5000)) and None,
    **{f"cut-{name[1:]}-{share}": cut_file(name, share) for name in ("*.journal", "*.safetensors") for share in (0, 0.3, 0.9)},
    **{f"{kind}-{name.strip('*.')}": replace_file(name, kind)
       for kind in ("pipe", "folder") for name in ("*.journal", "*.safetensors", MANIFEST)},
    **{f"link-{target.strip('/').replace('/', '-')}-{name.strip('*.')}": replace_file(name, "link", target)
       for target in ("/dev/zero", "/etc/passwd", "nowhere") for name in ("*.journal", "*.safetensors", MANIFEST)},
    "folders-around": link_around,
    "several-runs": write_several_runs,
}  # fmt: skip
