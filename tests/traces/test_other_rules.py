"""Rules of other packages, found by their entry points: the one of docs/trace.md, word for word, and broken ones."""

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
from traces.material import make_op, make_step, write_trace

DOCS = Path(__file__).parents[2] / "docs" / "trace.md"
BROKEN = """
from tdbg.traces.rules import Rule

class Broken(Rule):
    code = "MY-002"
    title = "it fails"

    def look(self, view):
        return view.summary.nothing
"""


@pytest.fixture
def run_tdbg(tmp_path):
    """Calls tdbg where a package with rules is installed."""
    (block,) = re.findall(r"```python\n(.*?class Embedding.*?)```", DOCS.read_text(), re.DOTALL)
    package = tmp_path / "mypackage"
    package.mkdir()
    (package / "__init__.py").touch()
    (package / "rules.py").write_text(block)
    (package / "broken.py").write_text(BROKEN)
    info = tmp_path / "mypackage-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: mypackage\nVersion: 1.0\n")
    (entry,) = re.findall(r"```toml\n(.*?)```", DOCS.read_text(), re.DOTALL)
    group = re.sub(r'project.entry-points."(.*)"', r"\1", entry).replace('"', "")
    absent = "absent = mypackage.rules:Absent\nbroken = mypackage.broken:Broken\n"
    (info / "entry_points.txt").write_text(group + absent)

    def call_tdbg(*words):
        command = [sys.executable, "-m", "tdbg", *map(str, words)]
        env = {**os.environ, "PYTHONPATH": str(tmp_path)}
        return subprocess.run(command, env=env, capture_output=True, text=True, timeout=60)

    return call_tdbg


def write_embedding_trace(folder, share):
    """Six steps of a millisecond, this share of all operators' time in embeddings."""
    events = []
    for number in range(6):
        begin, looked_up = number * 1000, round(900 * share)
        events += [make_step(number, begin, 1000), make_op("aten::embedding", begin + 10, looked_up)]
        events += [make_op("aten::linear", begin + 20 + looked_up, 900 - looked_up)]
    return write_trace(folder / "t.json", events)


def test_a_rule_of_another_package_speaks(run_tdbg, tmp_path):
    slow = write_embedding_trace(tmp_path, 0.5)
    done = run_tdbg("trace", "advise", slow)
    assert done.returncode == 0
    assert "MY-001 warning: 50% of the operators' time is embeddings" in done.stdout.splitlines()
    assert "thresholds: embedding_warning 0.2; source: mypackage" in done.stdout
    assert "trace rule 'absent' of mypackage.rules:Absent: " in done.stderr
    assert "MY-002: the rule failed: AttributeError: " in done.stderr and "Traceback" not in done.stderr
    raised = run_tdbg("trace", "advise", slow, "--threshold", "embedding_warning=60%", "--json")
    assert "MY-001" not in [one["code"] for one in json.loads(raised.stdout)["data"]["advice"]], raised.stderr


def test_its_page_is_explained(run_tdbg):
    done = run_tdbg("explain", "MY-001")
    assert done.stdout.startswith("MY-001 (advice): embeddings are slow\n"), done.stderr
    assert "nn.Embedding(..., sparse=True)" in done.stdout
    listed = run_tdbg("explain").stdout.splitlines()
    assert "MY-001\tadvice\tembeddings are slow" in listed and any(line.startswith("TD-P101\t") for line in listed)
