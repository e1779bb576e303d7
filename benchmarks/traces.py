"""How long `tdbg trace` takes on a large trace, and how much memory, beside orjson and dicts.

    python benchmarks/traces.py [MB] [TRACE]

Writes a trace of so many MB (200) into a temporary folder: TRACE (or a small made-up one) again and again, shifted in
time. Each figure is of a process of its own: wall-clock seconds and peak resident memory.
"""

import gzip
import json
import os
import resource
import subprocess
import sys
import tempfile
import time
from pathlib import Path

ORJSON = """
import collections, orjson, sys
sums = collections.Counter()
for event in orjson.loads(open(sys.argv[1], 'rb').read())['traceEvents']:
    sums[event.get('name')] += event.get('dur', 0)
"""


def made_up() -> list[dict[str, object]]:
    """A step of 2,000 operators with shapes, as the profiler writes them."""
    events: list[dict[str, object]] = [
        {"ph": "X", "cat": "user_annotation", "name": "ProfilerStep#0", "pid": 1, "tid": 1, "ts": 0.0, "dur": 20000.0}
    ]
    for number in range(2000):
        args = {"External id": number, "Ev Idx": number, "Input Dims": [[8, 64], [64, 64]], "Input type": ["float"] * 2}
        one = {"ph": "X", "cat": "cpu_op", "name": f"aten::op{number % 40}", "pid": 1, "tid": 1, "args": args}
        events.append({**one, "ts": number * 10.0, "dur": 8.5 if number % 3 else 18.0})
    return events


def enlarge(events: list[dict[str, object]], path: Path, size: int) -> int:
    """Write the events again and again, each time later, until the file has ``size`` bytes; returns how many."""
    times = [float(event.get("ts", 0)) for event in events]  # type: ignore[arg-type]
    ends = [at + float(event.get("dur", 0)) for at, event in zip(times, events, strict=True)]  # type: ignore[arg-type]
    span = max(ends) - min(times) + 1
    written, turn = 0, 0
    with path.open("w") as file:
        file.write('{\n  "schemaVersion": 1,\n  "traceEvents": [\n')
        while file.tell() < size:
            for event in events:
                late = {**event, "ts": float(event.get("ts", 0)) + turn * span}  # type: ignore[arg-type]
                if str(event.get("name", "")).startswith("ProfilerStep#"):
                    late["name"] = f"ProfilerStep#{turn}"
                text = json.dumps(late, indent=2).replace("\n", "\n  ")
                file.write(f",\n  {text}" if written else f"  {text}")
                written += 1
            turn += 1
        file.write("\n  ]\n}\n")
    return written


def measured(command: list[str]) -> tuple[float, float]:
    """Seconds and MB of a command."""
    begun = time.monotonic()
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL)
    _, status, usage = os.wait4(process.pid, 0)
    assert not status, command
    return time.monotonic() - begun, usage.ru_maxrss / (1000 if sys.platform == "linux" else 1e6)


def main() -> None:
    """Print a line for each figure."""
    size = int(sys.argv[1]) if len(sys.argv) > 1 else 200
    events = made_up()
    if len(sys.argv) > 2:
        data = Path(sys.argv[2]).read_bytes()
        events = json.loads(gzip.decompress(data) if data[:2] == b"\x1f\x8b" else data)["traceEvents"]
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "large.pt.trace.json")
        count = enlarge(events, path, size * 1_000_000)
        print(f"{path.stat().st_size / 1e6:.0f} MB, {count:,} events; {resource.getpagesize()} bytes a page")
        tdbg = [sys.executable, "-m", "tdbg", "trace"]
        for name, command in (
            ("show, first look", [*tdbg, "show", str(path)]),
            ("show, from the index", [*tdbg, "show", str(path)]),
            ("advise, from the index", [*tdbg, "advise", str(path)]),
        ):
            seconds, peak = measured(command)
            print(f"{name:<24} {seconds:6.2f} s {peak:7.0f} MB")
        try:
            seconds, peak = measured([sys.executable, "-c", ORJSON, str(path)])
            print(f"{'orjson, dicts, name sums':<24} {seconds:6.2f} s {peak:7.0f} MB")
        except AssertionError:
            print("orjson is not here")


if __name__ == "__main__":
    main()
