"""`tdbg inspect-pages export`: every format read back by the program it is for, names that cannot escape."""

import csv
import io
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from PIL import Image
from safetensors.torch import load_file

from tdbg.pages.export.exporter import TargetExistsError, new_file
from tdbg.pages.export.exporters import png
from tdbg.pages.export.file_names import UniqueNames, file_path
from tdbg.pages.read.page_set import PageSet, Tensor
from tests.pages.arrays import ENVIRONMENT, make_noise, run_inspect_pages, to_bfloat16, write_pages

EVIL = (
    "../../x",
    "/etc/passwd",
    "..",
    ".",
    "",
    "a\x00b",
    "-rf",
    ".hidden",
    "C:\\x",
    "a\nb",
    "~root",
    "\x1b[2J",
    "é\ud800",
)


@pytest.fixture
def pages_folder(tmp_path: Path) -> Path:
    def make_values(n: int) -> dict[str, Any]:
        return {
            "layers.0:output": make_noise(2, 3, seed=n),
            "layers.1:output": to_bfloat16(make_noise(4, seed=n)),
            "fp8": torch.arange(8).to(torch.float8_e4m3fn),
            "ids": np.arange(5) + n,
            "mask": np.array([True, False]),
            "z": make_noise(4).view(np.complex64),
            "scalar": np.array(float(n)),
            "empty": np.zeros((0, 3), np.float32),
            "loss": n / 3,
            "name": f"sample {n}",
        }

    return write_pages(tmp_path / "pages", [(n, make_values(n), {"epoch": 1, "phase": "val"}) for n in range(3)])


def write_tensor(tmp_path: Path, value: Any) -> Tensor:
    return next(iter(PageSet.open(write_pages(tmp_path, [(0, {"x": value}, {})])))).tensors["x"]


# names


@pytest.mark.parametrize("key", EVIL)
@pytest.mark.parametrize("path", [*EVIL, "a/../../b", "//x", "a/./b", "x" * 3000, "/".join("abcdefgh" * 300)])
def test_no_name_leaves_its_folder(key: str, path: str, tmp_path: Path) -> None:
    found = file_path(key, path)
    target = tmp_path / f"{found}.npy"
    assert not found.is_absolute() and ".." not in found.parts and tmp_path in target.resolve().parents
    assert all(part and part[0] not in ".-~" and part.isprintable() and "\\" not in part for part in found.parts)
    target.parent.mkdir(parents=True)
    target.write_bytes(b"")


@given(st.text(max_size=300), st.text(max_size=300))
def test_no_name_at_all_does(key: str, path: str) -> None:
    found = file_path(key, path)
    assert not found.is_absolute() and len(str(found).encode()) < 1500
    assert all(part not in ("", ".", "..") and "/" not in part and len(part.encode()) <= 140 for part in found.parts)


def test_plain_names_stay() -> None:
    assert str(file_path("17", "FeatureMap/stats/mean")) == "17/FeatureMap/stats/mean"
    assert str(file_path("k é", "layers.4.attn:output")) == "k é/layers.4.attn_output"


def test_long_names_that_differ_at_their_end_stay_apart() -> None:
    assert file_path("a" * 500 + "1", "x") != file_path("a" * 500 + "2", "x")
    assert file_path("k", "/".join("ab" * 900) + "1") != file_path("k", "/".join("ab" * 900) + "2")


def test_unique() -> None:
    names = UniqueNames()
    assert [names.make_unique(name) for name in ("a", "a", "A", "a~2", "b", "a")] == [
        "a",
        "a~2",
        "A~3",
        "a~2~2",
        "b",
        "a~4",
    ]


def test_a_file_is_there_whole_or_not_at_all(tmp_path: Path) -> None:
    with pytest.raises(ValueError), new_file(tmp_path / "x") as file:
        file.write(b"half")
        raise ValueError
    assert list(tmp_path.iterdir()) == []


def test_a_file_that_somebody_else_makes_meanwhile_stays(tmp_path: Path) -> None:
    with pytest.raises(TargetExistsError), new_file(tmp_path / "x") as file:
        file.write(b"ours")
        (tmp_path / "x").write_text("theirs")
    assert [path.read_text() for path in tmp_path.iterdir()] == ["theirs"]
    with pytest.raises(TargetExistsError), new_file(tmp_path / "x"):
        pytest.fail("it is known before any work is done")
    with pytest.raises(TargetExistsError), new_file(tmp_path, force=True):
        pytest.fail("a folder is not overwritten")


# formats


def test_npz(pages_folder: Path, tmp_path: Path) -> None:
    done = run_inspect_pages("export", pages_folder, "npz", "-o", tmp_path / "x.npz")
    assert done.returncode == 0 and done.stdout == ""
    assert "wrote 24 tensors" in done.stderr and "bfloat16, float8_e4m3fn: written as float32" in done.stderr
    with np.load(tmp_path / "x.npz") as found:
        assert len(found.files) == 24
        for datapoint in PageSet.open(pages_folder):
            for path, tensor in datapoint.tensors.items():
                read = found[f"{datapoint.key}/{path.replace(':', '_')}"]
                np.testing.assert_array_equal(read, tensor.array())
                assert read.dtype == tensor.array().dtype and read.shape == tensor.shape


def test_npy(pages_folder: Path, tmp_path: Path) -> None:
    assert run_inspect_pages("export", pages_folder, "npy", "-o", tmp_path / "out", "--keys", "2,0").returncode == 0
    names = {str(path.relative_to(tmp_path / "out")) for path in (tmp_path / "out").rglob("*") if path.is_file()}
    assert len(names) == 16 and "2/layers.0_output.npy" in names and not any(name.startswith("1/") for name in names)
    np.testing.assert_array_equal(np.load(tmp_path / "out/2/layers.0_output.npy"), make_noise(2, 3, seed=2))
    one = run_inspect_pages("export", pages_folder, "-o", tmp_path / "one.npy", "--keys", "1", "--layer", "ids")
    assert one.returncode == 0 and np.load(tmp_path / "one.npy").tolist() == [1, 2, 3, 4, 5]
    many = run_inspect_pages("export", pages_folder, "-o", tmp_path / "many.npy", "--layer", "ids")
    assert many.returncode == 2 and "takes one tensor" in many.stderr and not (tmp_path / "many.npy").exists()


def test_safetensors_keeps_every_type(pages_folder: Path, tmp_path: Path) -> None:
    assert run_inspect_pages("export", pages_folder, "safetensors", "-o", tmp_path / "x.safetensors").returncode == 0
    found = load_file(tmp_path / "x.safetensors")
    assert found["1/fp8"].dtype is torch.float8_e4m3fn and found["1/layers.1_output"].dtype is torch.bfloat16
    torch.testing.assert_close(found["1/layers.1_output"], to_bfloat16(make_noise(4, seed=1)), rtol=0, atol=0)
    assert len(found) == 24 and found["0/z"].dtype is torch.complex64
    text = (tmp_path / "x.safetensors").read_bytes()
    length = int.from_bytes(text[:8], "little")
    header = json.loads(text[8 : 8 + length])
    begins = {name: 8 + length + about["data_offsets"][0] for name, about in header.items() if name != "__metadata__"}
    assert all(begins[name] % found[name].element_size() == 0 for name in begins)
    again = PageSet.open(tmp_path / "x.safetensors")
    assert len(next(iter(again)).tensors) == 24


def test_safetensors_of_types_it_has_no_name_for(tmp_path: Path) -> None:
    values = {"c": np.ones(2, np.complex128), "fp4": torch.zeros(4, dtype=torch.uint8).view(torch.float4_e2m1fn_x2)}
    write_pages(tmp_path / "p", [(0, values, {})])
    assert run_inspect_pages("export", tmp_path / "p", "-o", tmp_path / "x.safetensors").returncode == 0
    found = load_file(tmp_path / "x.safetensors")
    assert found["0/c"].dtype is torch.uint8 and found["0/c"].numpy().view(np.complex128).tolist() == [1, 1]
    header = json.loads((tmp_path / "x.safetensors").read_bytes()[8:].split(b"}}")[0] + b"}}")
    types = json.loads(header["__metadata__"]["types"])
    assert types["0/c"] == ["complex128", [2], {}] and types["0/fp4"][0] == "float4_e2m1fn_x2"


def test_csv(pages_folder: Path, tmp_path: Path) -> None:
    done = run_inspect_pages("export", pages_folder, "csv", "-o", tmp_path / "out")
    assert done.returncode == 0 and "6 figures" in done.stderr
    rows = list(csv.reader((tmp_path / "out/1/layers.0_output.csv").open()))
    assert np.array_equal(np.array(rows, np.float32), make_noise(2, 3, seed=1))
    assert (tmp_path / "out/2/ids.csv").read_text().split() == ["2", "3", "4", "5", "6"]
    figures = list(csv.DictReader((tmp_path / "out/figures.csv").open()))
    assert len(figures) == 6 and figures[2] == {
        "key": "1",
        "rank": "0",
        "step": "1",
        "epoch": "1",
        "phase": "val",
        "path": "loss",
        "value": str(1 / 3),
    }
    one = run_inspect_pages("export", pages_folder, "csv", "-o", tmp_path / "f.csv", "--layer", "loss")
    assert one.returncode == 0 and len((tmp_path / "f.csv").read_text().splitlines()) == 4


def test_csv_leaves_out_what_has_too_many_dimensions(tmp_path: Path) -> None:
    write_pages(
        tmp_path / "p", [("=1+1", {"a": make_noise(2, 3, 4), "b": make_noise(1, 3, 4), "s": "=cmd()", "n": -1.5}, {})]
    )
    done = run_inspect_pages("export", tmp_path / "p", "csv", "-o", tmp_path / "out", "--json")
    assert done.returncode == 0 and "left out: 1 tensor: 3 dimensions" in done.stderr
    assert [row["path"] for row in json.loads(done.stdout)["data"]["written"]] == ["b"]
    text = (tmp_path / "out/figures.csv").read_text()
    assert "'=1+1" in text and "'=cmd()" in text and ",-1.5" in text


@pytest.mark.parametrize("chunk", [8, 64, 4096])
def test_csv_of_several_chunks(chunk: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from tdbg.pages.export.exporters import csv as exporter

    monkeypatch.setattr(exporter, "CHUNK_BYTES", chunk * 8)
    file = io.BytesIO()
    exporter.CsvExporter().write_tensor(file, write_tensor(tmp_path, make_noise(50, 7)))
    assert np.array_equal(
        np.array(list(csv.reader(file.getvalue().decode().splitlines())), np.float32), make_noise(50, 7)
    )


# pictures


def export_picture(tmp_path: Path, value: Any) -> tuple[Any, png.Scale]:
    file = io.BytesIO()
    scale = png.PngExporter().write_tensor(file, write_tensor(tmp_path, value))
    return Image.open(io.BytesIO(file.getvalue())), scale


def test_a_map_in_colours(tmp_path: Path) -> None:
    value = np.linspace(0, 10, 600 * 700, dtype=np.float32).reshape(600, 700)
    value[5, 6], value[5, 7], value[5, 8] = np.nan, np.inf, -np.inf
    found, scale = export_picture(tmp_path, value)
    assert found.size == (700, 600) and tuple(scale) == (0.0, 10.0)
    rgb = np.asarray(found.convert("RGB"))
    assert tuple(rgb[0, 0]) == png.VIRIDIS[0] and tuple(rgb[-1, -1]) == png.VIRIDIS[-1]
    assert [tuple(rgb[5, at]) for at in (6, 7, 8)] == [png.NAN, png.PLUS, png.MINUS]
    codes = np.asarray(found)
    assert np.all(np.diff(codes[10:].reshape(-1).astype(int)) >= 0) and len(np.unique(codes[10:])) > 245


def test_signs_have_their_colours(tmp_path: Path) -> None:
    found, _ = export_picture(tmp_path, np.array([[-1.0, 0.0], [0.5, 2.0]]))
    rgb = np.asarray(found.convert("RGB"))
    zoom = png.LARGEST_ZOOM
    assert found.size == (2 * zoom, 2 * zoom) and min(rgb[0, zoom]) > 240  # zero is white
    assert tuple(rgb[-1, -1]) == png.BLUE_RED[-1] and rgb[0, 0][2] > rgb[0, 0][0]


def test_channels_in_a_grid(tmp_path: Path) -> None:
    value = np.arange(5)[:, None, None] * np.ones((5, 300, 200), np.float32)
    found, _ = export_picture(tmp_path, value)
    columns = 3
    assert found.size == (columns * 201 - 1, 2 * 301 - 1)
    codes = np.asarray(found)
    centres = [codes[150 + 301 * (at // columns), 100 + 201 * (at % columns)] for at in range(6)]
    assert centres == [0, 63, 126, 188, 251, png.GAP_CODE] and np.all(codes[300] == png.GAP_CODE)
    assert np.all(codes[:, 200] == png.GAP_CODE)


def test_images_as_they_are(tmp_path: Path) -> None:
    image = np.random.default_rng(0).integers(0, 256, (20, 30, 3), dtype=np.uint8)
    for n, value in enumerate([image, image.transpose(2, 0, 1).copy(), (image.transpose(2, 0, 1) / 255).astype("f4")]):
        found, _ = export_picture(tmp_path / str(n), value)
        assert np.array_equal(np.asarray(found), image), n
    alpha = np.dstack([image, image[..., 0]])
    assert np.array_equal(np.asarray(export_picture(tmp_path / "a", alpha)[0]), alpha)
    stretched, scale = export_picture(tmp_path / "s", image.transpose(2, 0, 1).astype("f4") * 2 - 100)
    assert scale.low == -100 and np.asarray(stretched).min() == 0 and np.asarray(stretched).max() == 255


def test_png_of_a_batch_and_what_is_no_picture(tmp_path: Path) -> None:
    write_pages(
        tmp_path / "p", [("k", {"x": make_noise(1, 2, 4, 5, 6), "v": make_noise(7), "n": np.full((2, 2), np.nan)}, {})]
    )
    done = run_inspect_pages("export", tmp_path / "p", "png", "-o", tmp_path / "out", "--json")
    names = sorted(path.name for path in (tmp_path / "out/k").iterdir())
    assert done.returncode == 0 and names == ["n.png", "x-0.png", "x-1.png"]
    assert "left out: 1 tensor: float32[7] cannot be drawn as PNG" in done.stderr
    assert all("low" in row for row in json.loads(done.stdout)["data"]["written"])
    one = run_inspect_pages("export", tmp_path / "p", "png", "-o", tmp_path / "one.png", "--layer", "x")
    assert one.returncode == 2 and "x of shape (1, 2, 4, 5, 6) makes 2" in one.stderr
    assert not (tmp_path / "one.png").exists()


@pytest.mark.parametrize("dtype", [torch.bool, torch.bfloat16, torch.float8_e5m2, torch.complex64, torch.int64])
def test_maps_of_other_types(dtype: torch.dtype, tmp_path: Path) -> None:
    found, scale = export_picture(tmp_path, torch.arange(12).reshape(3, 4).to(dtype))
    assert found.size == (4 * 16, 3 * 16) and scale.low == 0


# the command


def test_nothing_is_overwritten_unless_forced(pages_folder: Path, tmp_path: Path) -> None:
    for words, target in ((["npz"], tmp_path / "x.npz"), (["npy", "--key", "1"], tmp_path / "out")):
        where = target if target.suffix else target / "1" / "ids.npy"
        where.parent.mkdir(exist_ok=True, parents=True)
        where.write_bytes(b"mine")
        done = run_inspect_pages("export", pages_folder, *words, "-o", target)
        assert done.returncode == 2 and "already exists" in done.stderr and where.read_bytes() == b"mine"
        assert run_inspect_pages("export", pages_folder, *words, "-o", target, "--force").returncode == 0
        assert where.read_bytes() != b"mine"
    assert not [path for path in tmp_path.rglob("*") if path.name.endswith(".part")]


def test_a_link_is_not_followed(pages_folder: Path, tmp_path: Path) -> None:
    victim = tmp_path / "victim"
    victim.write_text("mine")
    (tmp_path / "x.npz").symlink_to(victim)
    assert run_inspect_pages("export", pages_folder, "npz", "-o", tmp_path / "x.npz").returncode == 2
    assert run_inspect_pages("export", pages_folder, "npz", "-o", tmp_path / "x.npz", "--force").returncode == 0
    assert victim.read_text() == "mine" and not (tmp_path / "x.npz").is_symlink()


def test_hostile_keys_stay_in_the_folder(tmp_path: Path) -> None:
    # half a surrogate pair cannot stand in a key that numpy names; it can in a file
    write_pages(tmp_path / "p", [(key, {f"{path}" or "p": make_noise(2) for path in EVIL}, {}) for key in EVIL])
    before = set(tmp_path.rglob("*"))
    for kind in ("npy", "csv"):
        assert run_inspect_pages("export", tmp_path / "p", kind, "-o", tmp_path / "out").returncode == 0
    new = set(tmp_path.rglob("*")) - before
    assert all(tmp_path / "out" in (path, *path.parents) for path in new)
    assert len([path for path in new if path.suffix == ".npy"]) == len(EVIL) ** 2
    for kind in ("npz", "safetensors"):
        assert run_inspect_pages("export", tmp_path / "p", kind, "-o", tmp_path / f"x.{kind}").returncode == 0
    with np.load(tmp_path / "x.npz") as found:
        assert len(found.files) == len(EVIL) ** 2
        assert not any(name.startswith("/") or ".." in name.split("/") for name in found.files)
    assert len(load_file(tmp_path / "x.safetensors")) == len(EVIL) ** 2


def test_keys_that_come_twice_and_ranks(tmp_path: Path) -> None:
    for rank in range(2):
        points = [("k", {"x": np.array([rank, n])}, {}) for n in range(2)]
        write_pages(tmp_path / "p" / f"rank{rank:04d}", points, rank=rank, world_size=2)
    assert run_inspect_pages("export", tmp_path / "p", "npz", "-o", tmp_path / "x.npz").returncode == 0
    with np.load(tmp_path / "x.npz") as found:
        assert {name: found[name].tolist() for name in found.files} == {
            "rank0000/k/x": [0, 0],
            "rank0000/k/x~2": [0, 1],
            "rank0001/k/x": [1, 0],
            "rank0001/k/x~2": [1, 1],
        }


def test_a_row_of_a_batch(tmp_path: Path) -> None:
    more = {"keys": ["a", "b"], "split": ["x"]}
    write_pages(tmp_path / "p", [(0, {"x": make_noise(2, 3), "w": make_noise(4)}, more)])
    assert run_inspect_pages("export", tmp_path / "p", "npz", "-o", tmp_path / "x.npz", "--keys", "b").returncode == 0
    with np.load(tmp_path / "x.npz") as found:
        assert np.array_equal(found["b/x"], make_noise(2, 3)[1]) and found["b/w"].shape == (4,)


@pytest.mark.parametrize(
    ("words", "what"),
    [
        (("pages", "npz"), "missing option: -o FILE"),
        (("pages", "-o", "x"), "a format is missing"),
        (("pages", "xyz", "-o", "x"), "there is no format xyz"),
        (("nowhere", "npz", "-o", "x.npz"), "there is no nowhere"),
        (("pages", "npz", "-o", "x.npz", "--keys", "99"), "no datapoint has the key 99"),
        (("pages", "npz", "-o", "x.npz", "--layer", "layrs.0"), "no tensor is named layrs.0"),
        (("pages", "npy", "-o", "pages/MANIFEST.json"), "is not a folder"),
        (("pages", "npz", "-o", "x.npz", "--steps", "90:"), "no tensor matches the selection"),
        (("pages", "npz", "-o", "/proc/x.npz"), "/proc"),
    ],
)
def test_wrong_use(words: tuple[str, ...], what: str, pages_folder: Path, tmp_path: Path) -> None:
    done = run_inspect_pages("export", *words, cwd=tmp_path)
    assert done.returncode == 2 and what in done.stderr and "Traceback" not in done.stderr, done.stderr
    assert sorted(path.name for path in tmp_path.iterdir()) == ["pages"]


def test_a_damaged_page_costs_its_own_tensors(pages_folder: Path, tmp_path: Path) -> None:
    page = next(pages_folder.glob("*.safetensors"))
    last = list(PageSet.open(pages_folder))[-1].tensors["mask"]
    page.write_bytes(page.read_bytes()[: last.at])
    done = run_inspect_pages("export", pages_folder, "npy", "-o", tmp_path / "out")
    assert done.returncode == 1 and "failed" in done.stderr and (tmp_path / "out/2/ids.npy").exists()
    assert not (tmp_path / "out/2/mask.npy").exists()
    archive = run_inspect_pages("export", pages_folder, "npz", "-o", tmp_path / "x.npz")
    assert archive.returncode == 2 and "Traceback" not in archive.stderr and not (tmp_path / "x.npz").exists()


@pytest.mark.parametrize("kind", ["npz", "npy", "safetensors", "png", "csv"])
def test_memory_is_bounded_and_torch_is_not_loaded(kind: str, tmp_path: Path) -> None:
    large = np.zeros((64, 1000, 1000), np.float32) if kind != "csv" else np.zeros((4000, 250), np.float64)
    large[..., 5] = 1
    write_pages(tmp_path / "p", [(0, {"x": large, "small": make_noise(2, 2)}, {})])
    code = (
        "import sys; from tdbg.cli import main; code = main(sys.argv[1:]);"
        " print(code, 'torch' in sys.modules, open('/proc/self/status').read().split('VmHWM:')[1].split()[0])"
    )
    words = [
        "inspect-pages",
        "export",
        str(tmp_path / "p"),
        kind,
        "-o",
        str(tmp_path / ("out" if kind in "npy png csv" else f"x.{kind}")),
    ]
    done = subprocess.run(
        [sys.executable, "-c", code, *words], env=ENVIRONMENT, capture_output=True, text=True, timeout=60, check=True
    )
    code_, torch_, peak_kb = done.stdout.split()
    assert (code_, torch_) == ("0", "False")
    assert int(peak_kb) < 150_000, done.stdout  # the tensor has 256 MB
