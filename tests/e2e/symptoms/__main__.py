"""Write docs/flags-at-work.md: what each flag's probe said of its symptom program, and of the healthy one.

python -m tests.e2e.symptoms docs/flags-at-work.md
"""

import json
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

from tdbg.core.events import Observation
from tdbg.core.flags import FLAGS
from tdbg.core.rundir import RunDir
from tests.e2e.conftest import build_environment
from tests.e2e.symptoms import Symptom, iter_symptoms

HEAD = """# Every flag at work

Made by `python -m tests.e2e.symptoms docs/flags-at-work.md`: each flag alone, at the default level and budget, on a
program that shows its symptom and on the same program in health (`tests/e2e/symptoms/`). The flags under `LOSS.`,
DUMP_METRICS and VALIDATION_METRICS wake no probe of `tdbg run`; the latter two keep states of the metrics.

| flag | probe | the program | what was said of it | seen in health |
|---|---|---|---|---|
"""


def run_symptom(symptom: Symptom, healthy: bool) -> tuple[dict[str, Any], int]:
    """The verdict of one run, and how often the flag's probe spoke."""
    with tempfile.TemporaryDirectory(prefix="tdbg-symptoms-") as folder:
        where = Path(folder, "run")
        words = [sys.executable, "-m", "tdbg", "run", "--quiet", "--run-dir", str(where), *symptom.run_options()]
        words += ["--", *symptom.build_command(healthy=healthy)]
        subprocess.run(words, cwd=folder, env=build_environment({}), capture_output=True, check=False)
        verdict = json.loads((where / "report.json").read_text(encoding="utf-8"))
        found = RunDir(where)
        seen = sum(
            isinstance(event, Observation) for process in found.list_processes() for event in process.iter_events()
        )
        return verdict, seen


def format_row(symptom: Symptom) -> str:
    """One line of the table."""
    ill, _ = run_symptom(symptom, healthy=False)
    well, seen = run_symptom(symptom, healthy=True)
    said = next((item for item in ill["findings"] if item["code"] == symptom.code), None)
    text = f"{said['code']}: {said['title']}" if said else "NOTHING"
    health = ", ".join(item["code"] for item in well["findings"]) or f"nothing, in {seen} observations"
    probe = next(flag.probe for flag in FLAGS if flag.name == symptom.flag)
    cells = [symptom.flag, probe, symptom.about, text, health]
    return "| " + " | ".join(cell.replace("|", "\\|") for cell in cells) + " |\n"


def main() -> None:
    """Run all programs and write the table."""
    rows = []
    for symptom in iter_symptoms():
        print(symptom.flag, file=sys.stderr, flush=True)
        rows.append(format_row(symptom))
    Path(sys.argv[1]).write_text(HEAD + "".join(rows), encoding="utf-8")


if __name__ == "__main__":
    main()
