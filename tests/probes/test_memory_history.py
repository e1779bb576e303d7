"""The history of CUDA's allocator as a file; the rest of it needs a GPU."""

import gzip
import json
from pathlib import Path

from tdbg.probes.profiler.memory_history import write_memory_history


def test_a_history_becomes_one_json_document(tmp_path: Path) -> None:
    entries = [{"action": "alloc", "addr": at, "frames": [{"name": "f", "line": at}]} for at in range(2500)]
    snapshot = {
        "segments": [{"blocks": [{"size": 512}], "device": 0}],
        "device_traces": [entries, []],
        "allocator_settings": {"expandable_segments": False, "path": tmp_path},
        "none": None,
        "empty": [],
    }
    write_memory_history(snapshot, tmp_path / "a.memory.json.gz")
    (file,) = tmp_path.iterdir()
    assert json.loads(gzip.decompress(file.read_bytes())) == json.loads(json.dumps(snapshot, default=str))


def test_a_folder_that_takes_none_is_left_without_one(tmp_path: Path) -> None:
    write_memory_history({"segments": []}, tmp_path / "nowhere" / "a.memory.json.gz")
    assert not list(tmp_path.iterdir())
