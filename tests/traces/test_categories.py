"""Traces of older profilers and of other devices: their categories count as today's, or are named as left out."""

import json
from pathlib import Path

import pytest

from tdbg import cli

TODAY = {"operator": "cpu_op", "kernel": "kernel", "copy": "gpu_memcpy", "fill": "gpu_memset", "call": "cuda_runtime"}
OTHERS = {
    "old": {"operator": "Operator", "kernel": "Kernel", "copy": "Memcpy", "fill": "Memset", "call": "Runtime"},
    "capitals": {
        "operator": "CPU_OP",
        "kernel": "KERNEL",
        "copy": "GPU_MEMCPY",
        "fill": "GPU_MEMSET",
        "call": "CUDA_Runtime",
    },
    "gpu": {
        "operator": "cpu_op",
        "kernel": "gpu_kernel",
        "copy": "cuda_memcpy",
        "fill": "cuda_memset",
        "call": "cuda_driver",
    },
    "mtia": {
        "operator": "cpu_op",
        "kernel": "mtia_kernel",
        "copy": "mtia_memcpy",
        "fill": "mtia_memset",
        "call": "mtia_runtime",
    },
    "xpu": {
        "operator": "cpu_op",
        "kernel": "xpu_kernel",
        "copy": "xpu_memcpy",
        "fill": "xpu_memset",
        "call": "xpu_driver",
    },
    "hpu": {
        "operator": "cpu_op",
        "kernel": "hpu_kernel",
        "copy": "hpu_memcpy",
        "fill": "hpu_memset",
        "call": "hpu_runtime",
    },
    "private": {
        "operator": "cpu_op",
        "kernel": "privateuse1_kernel",
        "copy": "privateuse1_memcpy",
        "fill": "privateuse1_memset",
        "call": "privateuse1_runtime",
    },
}


def write_trace(path: Path, names: dict[str, str], *, step: bool = True) -> Path:
    """One step of 100 us: an operator that launches a kernel, a copy, a fill."""
    events = [
        ("operator", "aten::mm", 1, 10, 50, {}),
        ("call", "cudaLaunchKernel", 1, 12, 5, {"correlation": 7}),
        ("kernel", "gemm", 2, 30, 20, {"correlation": 7, "device": 0}),
        ("copy", "Memcpy HtoD (Pageable -> Device)", 2, 55, 10, {"device": 0, "bytes": 100}),
        ("fill", "Memset (Device)", 2, 70, 5, {"device": 0}),
    ]
    rows = [{"ph": "X", "cat": "user_annotation", "name": "ProfilerStep#1", "pid": 1, "tid": 1, "ts": 0, "dur": 100}]
    rows += [
        {"ph": "X", "cat": names[kind], "name": name, "pid": 1, "tid": tid, "ts": ts, "dur": dur, "args": args}
        for kind, name, tid, ts, dur, args in events
    ]
    path.write_text(json.dumps({"schemaVersion": 1, "traceEvents": rows if step else rows[1:]}))
    return path


def show_trace(path: Path, capsys: pytest.CaptureFixture[str], *words: str) -> tuple[str, str]:
    assert cli.main(["trace", "show", str(path), *words]) == 0
    told = capsys.readouterr()
    return told.out, told.err


@pytest.mark.parametrize("device", OTHERS)
def test_other_names_of_a_category_tell_the_same(
    device: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    today, _ = show_trace(write_trace(tmp_path / "a.json", TODAY), capsys, "--json")
    other, err = show_trace(write_trace(tmp_path / "b.json", OTHERS[device]), capsys, "--json")
    assert other.replace("b.json", "a.json") == today
    assert "left out" not in err and "gemm" in other


def test_a_category_that_nobody_knows_is_named(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    names = dict.fromkeys(TODAY, "mtia_insight") | {"kernel": "quantum\x1b[31m_unit"}
    out, err = show_trace(write_trace(tmp_path / "a.json", names, step=False), capsys)
    assert "nothing was recorded" not in out + err
    assert "none of its 5 events is of a kind that tdbg reads" in out
    assert "5 events of other kinds left out: mtia_insight, quantum\\x1b[31m_unit" in out + err


def test_what_torch_writes_besides_is_not_complained_of(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    names = TODAY | {"fill": "gpu_user_annotation", "copy": "overhead"}
    out, err = show_trace(write_trace(tmp_path / "a.json", names), capsys)
    assert "left out" not in out + err
