"""SequentialDebugger where a disk fails, the writer fails, threads share a model, or a folder is not new."""

import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from tdbg.core.errors import TdbgError
from tdbg.debuggers.sequential import SequentialDebugger
from tdbg.pages.format.page_writer import PageWriter
from tdbg.pages.read.page_set import PageSet
from tdbg.pages.repair.verification import verify_pages
from tests.debuggers.test_sequential import Ones, Output, make_config, make_datapoint

ROOT = Path(__file__).parents[2]


def make_debugger(folder: Path, **more: Any) -> SequentialDebugger:
    """One that stores a megabyte a datapoint, a page each."""
    found = SequentialDebugger([make_config("ones", Ones)], nn.Linear(1, 1), 1, output_dir=folder, **more)
    found.enabled = True
    return found


def test_files_that_may_not_grow(tmp_path: Path) -> None:
    """In a process of its own, whose limit needs no rights: the error is raised once, it ends, pages before are whole."""
    code = """
import resource, sys, torch
from torch import nn
from tdbg.debuggers.sequential import SequentialDebugger
from tests.debuggers.test_sequential import Ones, make_config, make_datapoint
resource.setrlimit(resource.RLIMIT_FSIZE, (3_500_000, 3_500_000))
found = SequentialDebugger([make_config("ones", Ones)], nn.Linear(1, 1), 100, output_dir=sys.argv[1])
found.enabled = True
raised = []
for call in (*(lambda idx=idx: found(make_datapoint(idx)) for idx in range(8)), found.flush, found.save_all, found.close):
    try:
        call()
    except OSError as error:
        raised.append(error.strerror)
print(raised, found.dropped)
"""
    command = [sys.executable, "-c", code, str(tmp_path / "out")]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=120, check=True)
    assert done.stdout.splitlines() == ["['File too large'] {'not written': 6}"]
    points = list(PageSet.open(tmp_path / "out"))
    assert [one.tensors["ones/ones"].array()[-1] for one in points] == [0.0, 1.0]
    assert not [problem for problem in verify_pages(tmp_path / "out") if problem.grave]


def test_a_fault_of_the_thread_is_raised_and_hangs_nobody(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    before, seen = PageWriter.add, []

    def add(self: PageWriter, *args: Any, **fields: Any) -> int:
        seen.append(1)
        if len(seen) == 3:
            raise ZeroDivisionError("planted")
        return before(self, *args, **fields)

    monkeypatch.setattr(PageWriter, "add", add)
    found = make_debugger(tmp_path / "out", ring_bytes=2_200_000)
    begun, raised = time.monotonic(), 0
    for call in (*(lambda idx=idx: found(make_datapoint(idx)) for idx in range(8)), found.save_all, found.close):
        try:
            call()
        except ZeroDivisionError:
            raised += 1
    assert raised == 1 and time.monotonic() - begun < 30
    assert found.dropped == {"not written": 6}
    assert [one.key for one in PageSet.open(tmp_path / "out")] == [0, 1]


def test_threads_on_one_model(tmp_path: Path) -> None:
    """Two hundred datapoints by four threads: each has the activation of its own pass."""
    torch.manual_seed(0)
    net = nn.Sequential(nn.Linear(4, 3), nn.ReLU(inplace=True), nn.Linear(3, 2))
    found = SequentialDebugger([make_config("out", Output, layer_name="0")], net, output_dir=tmp_path / "out")
    found.enabled = True
    failed: list[BaseException] = []

    def work(first: int) -> None:
        try:
            for idx in range(first, first + 50):
                with torch.no_grad():
                    net(torch.full((1, 4), float(idx)))
                time.sleep(0)
                found(make_datapoint(idx))
        except BaseException as error:
            failed.append(error)

    threads = [threading.Thread(target=work, args=(1000 * number,)) for number in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    found.save_all()
    assert failed == []
    points = list(PageSet.open(tmp_path / "out"))
    assert sorted(one.key for one in points) == sorted(1000 * number + idx for number in range(4) for idx in range(50))
    for one in points:
        expected = net[0](torch.full((1, 4), float(one.key)))
        assert one.tensors["out/feature_map"].array() == pytest.approx(expected.detach().numpy())


def test_a_folder_of_an_earlier_run_is_refused(tmp_path: Path) -> None:
    first = make_debugger(tmp_path / "out")
    for idx in range(3):
        first(make_datapoint(idx))
    first.save_all()
    first(make_datapoint(3))  # the same object goes on
    first.save_all()
    again = make_debugger(tmp_path / "out")
    with pytest.raises(TdbgError, match="holds pages of an earlier run"):
        again(make_datapoint(0))
    again.close()
    assert [one.key for one in PageSet.open(tmp_path / "out")] == [0, 1, 2, 3]
    other = make_debugger(tmp_path / "out", rank=1)
    other(make_datapoint(9))
    other.save_all()
    assert [(one.rank, one.key) for one in PageSet.open(tmp_path / "out")] == [(0, 0), (0, 1), (0, 2), (0, 3), (1, 9)]
