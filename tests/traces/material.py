"""Traces for tests: written in every layout that somebody writes, and the real ones where they are."""

import gzip
import json
import os
from pathlib import Path

BESIDE = (parent / "shared" / "traces" for parent in Path(__file__).parents[3:])  # of the checkout
REAL = Path(os.environ.get("TDBG_TRACES") or next((path for path in BESIDE if path.is_dir()), "shared/traces"))


def find_real_trace(name):
    """A saved CUDA trace, where there is one."""
    import pytest

    path = REAL / name
    if not path.exists():
        pytest.skip("the saved CUDA traces are not here")
    return path


def load_trace(path):
    """The whole file as plain objects: what the stream is held against."""
    data = path.read_bytes()
    return json.loads(gzip.decompress(data) if data[:2] == b"\x1f\x8b" else data)


def kineto(events, head=None, tail=None):
    """As kineto lays a file out."""
    first = "".join(f'  "{key}": {json.dumps(value)},\n' for key, value in {"schemaVersion": 1, **(head or {})}.items())
    body = ",\n".join("  " + json.dumps(one, indent=2).replace("\n", "\n  ") for one in events)
    last = "".join(f',\n  "{key}": {json.dumps(value)}' for key, value in (tail or {}).items())
    return f'{{\n{first}  "traceEvents": [\n{body}\n  ]{last}\n}}\n'


def python(events, head=None, tail=None):
    """As `json.dump` writes it: one line."""
    return json.dumps({"schemaVersion": 1, **(head or {}), "traceEvents": events, **(tail or {})})


def dense(events, head=None, tail=None):
    """Without a blank."""
    return json.dumps(
        {"schemaVersion": 1, **(head or {}), "traceEvents": events, **(tail or {})}, separators=(",", ":")
    )


def line_per_event(events, head=None, tail=None):
    """A line an event, the comma before it."""
    return python([], head, tail).replace("[]", "[" + "\n,".join(map(json.dumps, events)) + "\n]", 1)


def bare(events, head=None, tail=None):
    """The list alone, as Chrome also takes it."""
    return json.dumps(events)


LAYOUTS = (kineto, python, dense, line_per_event, bare)


def make_span(name, ts, dur, cat="cpu_op", tid=1, pid=1, **args):
    """A span of a thread, in microseconds."""
    return {"ph": "X", "cat": cat, "name": name, "pid": pid, "tid": tid, "ts": ts, "dur": dur, "args": args}


def make_op(name, ts, dur, tid=1, **args):
    return make_span(name, ts, dur, "cpu_op", tid, **args)


def make_annotation(name, ts, dur, tid=1):
    return make_span(name, ts, dur, "user_annotation", tid)


def make_step(number, ts, dur):
    return make_annotation(f"ProfilerStep#{number}", ts, dur)


def make_gpu_span(name, ts, dur, correlation=0, cat="kernel", stream=7, **args):
    return make_span(name, ts, dur, cat, tid=stream, pid=0, correlation=correlation, device=0, stream=stream, **args)


def make_launch(ts, dur, correlation, name="cudaLaunchKernel", tid=1):
    return make_span(name, ts, dur, "cuda_runtime", tid, correlation=correlation)


def make_memory_event(ts, change, allocated, tid=1, address=0, device_type=0, reserved=0):
    values = {"Total Allocated": allocated, "Total Reserved": reserved, "Bytes": change, "Addr": address}
    args = {**values, "Device Type": device_type, "Device Id": -1 if device_type == 0 else 0}
    return {
        "ph": "i",
        "cat": "cpu_instant_event",
        "name": "[memory]",
        "pid": 1,
        "tid": tid,
        "ts": ts,
        "s": "t",
        "args": args,
    }


def write_trace(path, events, layout=kineto, head=None, tail=None):
    """A trace on the disk; packed if its name says so."""
    text = layout(events, head, tail).encode()
    path.write_bytes(gzip.compress(text, 1) if path.suffix == ".gz" else text)
    return path
