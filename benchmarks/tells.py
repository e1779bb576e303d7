"""What each tool tells of a planted fault, read from what it printed (for tdbg: from its verdict), by one rule for all.

    python benchmarks/tells.py

The GPT of workload.py is ill at step 5: Inf in the forward of blocks.3.fc, NaN in the backward of blocks.2.act, a
harmless NaN that reaches no gradient; alone, and as rank 1 of two. A tool "tells" the step if its output has it as a
number after "step" or "batch_number" (counted from 0 or from 1), the module if its path stands there, the phase if
the word forward or backward stands in a line with the module, the rank if "rank 1" (or "rank1") stands there and
"rank 0" is not blamed as well; a false alarm is any talk of nan or inf, or an exit code that is not 0, in the harmless run.
"""

import json
import os
import re
import subprocess
import sys
import tempfile
from pathlib import Path

WORKLOAD = Path(__file__).with_name("workload.py")
PEERS = {"set_detect_anomaly": "anomaly", "DebugUnderflowOverflow": "hf-debug", "wandb.watch": "wandb-watch"}
PLACES = {"forward-inf": "blocks.3.fc", "backward-nan": "blocks.2.act"}
COLUMNS = ("forward", "backward", "step", "module", "line", "phase", "rank", "batch kept", "false alarm")
PATIENCE_S = 120


def run_tool(peer: str, fault: str, ranks: int = 1) -> tuple[int, str, bool]:
    """Exit code, all that was said, and whether a batch was kept; peer "tdbg" is tdbg at its default level."""
    with tempfile.TemporaryDirectory(prefix="tdbg-tells-") as folder:
        start = [sys.executable] if ranks == 1 else ["torchrun", "--standalone", f"--nproc-per-node={ranks}"]
        words = [*start, str(WORKLOAD), "gpt", "--steps", "8", "--warmup", "2", "--report", f"{folder}/w.json"]
        words += ["--fault", fault, "--with", "" if peer == "tdbg" else peer]
        if peer == "tdbg":
            words = [sys.executable, "-m", "tdbg", "run", "--run-dir", f"{folder}/run", "--", *words]
        path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
        env = {**os.environ, "OMP_NUM_THREADS": "1", "PATH": path}
        try:
            done = subprocess.run(
                words, cwd=folder, env=env, capture_output=True, text=True, timeout=PATIENCE_S, check=False
            )
            code, text = done.returncode, done.stdout + done.stderr
        except subprocess.TimeoutExpired as error:
            code, text = 124, str(error.stdout or "") + str(error.stderr or "")
        kept = any(Path(folder).rglob("*batch*.safetensors")) or any(Path(folder).rglob("*batch*.pt"))
        report = Path(folder, "run", "report.json")
        if peer == "tdbg" and report.exists():
            found = json.loads(report.read_text(encoding="utf-8"))["findings"]
            text += "\n".join(json.dumps(item) for item in found)
        return code, text, kept


def has_reported(code: int, text: str) -> bool:
    """True if the tool said anything of a bad value."""
    return code != 0 or bool(re.search(r"\b(nan|inf|NaN|Inf)\b", text))


def build_row(peer: str) -> list[str]:
    """One row of the table."""
    answers: dict[str, list[bool]] = {column: [] for column in COLUMNS}
    for fault, place in PLACES.items():
        code, text, kept = run_tool(peer, fault)
        answers["forward" if fault == "forward-inf" else "backward"].append(has_reported(code, text))
        answers["step"].append(bool(re.search(r"(step|batch_number)\W{0,3}[45]\b", text)))
        answers["module"].append(place in text)
        answers["line"].append(bool(re.search(r"workload\.py\"?[:,]", text)))
        phase = fault.partition("-")[0]
        answers["phase"].append(any(place in line and phase in line.lower() for line in text.splitlines()))
        answers["batch kept"].append(kept)
        code, text, _ = run_tool(peer, fault, ranks=2)
        said = [
            line for line in text.splitlines() if not line.startswith("{")
        ]  # the verdict also lists who is not to blame
        blamed = [line for line in said if re.search(r"\b(nan|inf)\b", line, re.IGNORECASE)]
        names = {number for line in blamed for number in re.findall(r"rank ?(\d)", line)}
        answers["rank"].append(names == {"1"})
    code, text, _ = run_tool(peer, "harmless")
    answers["false alarm"].append(has_reported(code, text))
    return ["yes" if all(found) else ("no" if not any(found) else "in part") for found in answers.values()]


def build_tells_table(peers: dict[str, str]) -> list[list[str]]:
    """The heading, tdbg at its default level, and every peer."""
    rows = [["tool", *COLUMNS], ["tdbg, default level", *build_row("tdbg")]]
    return rows + [[name, *build_row(peer)] for name, peer in peers.items()]


if __name__ == "__main__":
    table = build_tells_table(PEERS)
    widths = [max(map(len, column)) for column in zip(*table, strict=True)]
    for row in table:
        print("  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip())
