"""Launching is light: tdbg's own process never loads what only a rank or a report needs."""

import json
import subprocess
import sys

HEAVY = {"torch", "numpy", "rich", "wandb", "yacs", "pandas", "safetensors"}


def test_tdbg_run_loads_nothing_heavy(tmp_path) -> None:
    text = (
        "import json, sys\nfrom tdbg.cli import main\n"
        "code = main(['run', '-q', '--tee', '--', 'true'])\n"
        "print(json.dumps([code, sorted({name.partition('.')[0] for name in sys.modules})]))"
    )
    done = subprocess.run([sys.executable, "-c", text], cwd=tmp_path, capture_output=True, text=True, check=True)
    code, loaded = json.loads(done.stdout)
    assert code == 0
    assert not HEAVY & set(loaded)
