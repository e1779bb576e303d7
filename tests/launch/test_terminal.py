"""What a terminal shows of `tdbg run` and a program: the program's rows are what they are without tdbg, and none is mixed."""

import contextlib
import sys
from collections.abc import Sequence
from itertools import product
from pathlib import Path
from typing import Any

import pytest
from screens import Shown, run_on_terminal

from tdbg.core.rundir import RunDir
from tdbg.rules.rule_engine import judge_run
from tests.chance import pick_share
from tests.launch.conftest import TDBG, build_clean_env

TRAIN = """
import sys, time, torch
torch.manual_seed(0)
model = torch.nn.Linear(4, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
def train(step):
    x = torch.randn(8, 4)
    if step == 8:
        x[0, 0] = float("nan")
    loss = model(x).pow(2).mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    time.sleep(0.1)
"""
ALONE = "import time\ndef train(step):\n    pass\n" + "#\n" * (TRAIN.count("\n") - 3)  # lines have the same numbers
# In the middle it waits until tdbg has drawn its line, where there is one; how soon that is depends on the machine.
PRINTS = """
import os, pathlib
print("first line of the program")
for step in range(1, 21):
    train(step)
    print(f"step {step}", "a quite long line of the program " * 2, flush=True)
    if step == 12:
        time.sleep(1.5)
        while "DRAWN" in os.environ and not pathlib.Path(os.environ["DRAWN"]).exists():
            time.sleep(0.05)
print("begun,", end="", flush=True)
time.sleep(1.2)
print(" and ended")
print("no end", end="")
"""
TQDM = """
from tqdm import tqdm
class Still(tqdm):
    @property
    def format_dict(self):
        return {**super().format_dict, "elapsed": self.n / 100, "rate": None}
for step in Still(range(1, 21), mininterval=0, miniters=1, dynamic_ncols=True, desc="train"):
    train(step)
print("done")
"""
RICH = """
from rich.progress import BarColumn, Progress, TextColumn
with Progress(TextColumn("{task.description}"), BarColumn(), TextColumn("{task.completed}")) as bars:
    one, two = bars.add_task("steps", total=20), bars.add_task("data", total=20)
    for step in range(1, 21):
        train(step)
        bars.update(one, completed=step)
        bars.update(two, completed=step)
print("done")
"""
PDB = """
for step in range(1, 13):
    train(step)
    if step == 9:
        breakpoint()
print("done")
"""
# What a busy machine makes of PRINTS: the finding comes in the middle of a row. The program waits for it there.
BEGUN = """
import glob, sys
print("first line of the program")
print("begun,", end="", flush=True)
if "torch" in sys.modules:
    for step in range(1, 9):
        train(step)
    while not glob.glob("tdbg_runs/*/findings.jsonl"):
        time.sleep(0.05)
    time.sleep(1.5)
print(" and ended")
"""
TYPED = [(r"\(Pdb\) ", "p step"), (r"\(Pdb\) ", "p 'some' + 'thing'"), (r"\(Pdb\) ", "c")]
PROGRAMS = {"prints": PRINTS, "tqdm": TQDM, "rich": RICH, "pdb": PDB, "begun": BEGUN}
REDRAWN = {"tqdm": ("train:",), "rich": ("steps ", "data ")}  # how rows begin that the program draws again and again
OURS = "tdbg: "
BEHIND = {False: [*TDBG, "run", "--"], True: [*TDBG, "run", "--tee", "--"]}


@pytest.fixture(scope="module")
def program_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("on")


@pytest.fixture(scope="module")
def bare_rows() -> dict[tuple[str, int], list[str]]:
    """The rows of each program without tdbg, at each width."""
    return {}


def play_program(
    folder: Path, program: str, columns: int, before: Sequence[str] = (), *, trains: bool = True, **env: str
) -> Shown:
    """Play a program on a terminal, behind what stands before it."""
    script = folder / f"play_{program}.py"
    script.write_text((TRAIN if trains else ALONE) + PROGRAMS[program], encoding="utf-8")
    clean = {name: value for name, value in build_clean_env().items() if name not in ("COLUMNS", "NO_COLOR", "CI")}
    typed = TYPED if program == "pdb" else ()
    words = [*before, sys.executable, str(script)]
    marked = None
    if "DRAWN" in env:
        marked = rf"{OURS}step \d+", Path(env["DRAWN"])
        marked[1].unlink(missing_ok=True)
    return run_on_terminal(words, folder, columns, typed, marked, **{**clean, "TERM": "xterm-256color", **env})


def play_alone(bare: dict[tuple[str, int], list[str]], folder: Path, program: str, columns: int) -> list[str]:
    """What the program shows without tdbg; it need not train for it."""
    if (program, columns) not in bare:
        bare[program, columns] = play_program(folder, program, columns, trains=False).rows
    return bare[program, columns]


def split_rows(shown: Shown) -> tuple[list[str], list[str]]:
    """The rows of tdbg and those of the program."""
    ours = [row for row in shown.rows if row.startswith("tdbg:")]
    return ours, [row for row in shown.rows if row and not row.startswith("tdbg:")]


def rejoin_rows(shown: Shown, alone: Sequence[str]) -> list[str]:
    """The program's rows, those that lines of tdbg came into whole again.

    A program that waits in the middle of a row leaves it open for as long: what tdbg says then begins a row below, and
    the program goes on below that.
    """
    rows: list[str] = []
    is_parted = False
    for row in filter(None, shown.rows):
        if row.startswith("tdbg:"):
            is_parted = True
            continue
        if is_parted and rows and rows[-1] not in alone and rows[-1] + row in alone:
            rows[-1] += row
        else:
            rows.append(row)
        is_parted = False
    return rows


def check_words(ours: list[str], folder: Path) -> None:
    """The verdict stands there with its words whole, but for a path that is wider than a row."""
    run = RunDir(max((folder / "tdbg_runs").iterdir(), key=lambda path: path.stat().st_mtime_ns))
    with contextlib.chdir(folder):  # the run is named as it is typed there
        lines = judge_run(run, 0).format_summary()
    begin = max(at for at, row in enumerate(ours) if row.startswith(f"{OURS}verdict: "))
    shown = [word for row in ours[begin:] for word in row.removeprefix(OURS).split()]
    wanted = " ".join(lines).split()
    assert "".join(shown) == "".join(wanted)
    assert [word for word in shown if len(word) < 40 and word not in wanted] == [] or any(
        len(word) > 60 for word in wanted
    )


@pytest.mark.cold
@pytest.mark.parametrize(("tee", "columns"), pick_share(product(BEHIND, (80, 200)), 3))
@pytest.mark.parametrize("program", [name for name in PROGRAMS if name != "begun"])
def test_no_row_is_mixed(program_folder: Path, bare_rows: Any, program: str, tee: bool, columns: int) -> None:
    alone = play_alone(bare_rows, program_folder, program, columns)
    drawn = {"DRAWN": str(program_folder / "drawn")} if tee and program == "prints" else {}
    shown = play_program(program_folder, program, columns, BEHIND[tee], **drawn)
    ours, others = split_rows(shown)
    assert shown.code == 0 and not [row for row in others if "tdbg:" in row], shown.rows
    final = [row for row in rejoin_rows(shown, alone) if row in alone or not row.startswith(REDRAWN.get(program, "\0"))]
    assert final[-len(alone) :] == alone, shown.rows
    assert max(map(len, shown.rows)) <= columns
    check_words(ours, program_folder)
    assert any("critical: first NaN at step 8" in row for row in ours[:2]), "told while the program goes on"
    if tee or program != "rich":  # where tdbg does not see that rows above are redrawn, its last row may go with them
        assert sum("TD-N001 critical" in row for row in ours) == 2
        assert any("missing labels" in row for row in ours)
    live = {text for text in shown.screen.erased if text.startswith(f"{OURS}step ")}
    assert live if tee and program == "prints" else not live or (tee and program == "pdb"), live
    assert not [row for row in shown.rows if row.startswith(f"{OURS}step ")], "the live line is gone at the end"


@pytest.mark.cold
@pytest.mark.parametrize(("tee", "env"), pick_share(product(BEHIND, ({"CI": "true"}, {"TERM": "dumb"})), 3))
@pytest.mark.parametrize("program", ["tqdm", "prints"])
def test_no_row_is_mixed_where_nothing_can_be_redrawn(
    program_folder: Path, bare_rows: Any, program: str, tee: bool, env: dict[str, str]
) -> None:
    """Neither wraps what is too long, nor need it obey an escape sequence: tdbg begins a row with a line feed alone."""
    alone = play_alone(bare_rows, program_folder, program, 200)
    shown = play_program(program_folder, program, 200, BEHIND[tee], **env)
    ours, others = split_rows(shown)
    assert shown.code == 0 and not [row for row in others if "tdbg:" in row], shown.rows
    assert not [row for row in ours if "train:" in row or "%|" in row]
    final = [row for row in rejoin_rows(shown, alone) if row in alone or not row.startswith(REDRAWN.get(program, "\0"))]
    assert final[-len(alone) :] == alone, shown.rows
    check_words(ours, program_folder)
    assert any("critical: first NaN at step 8" in row for row in ours[:2]), "told while the program goes on"
    written = [line for line in shown.stream.split("\n") if "tdbg:" in line]
    assert written and all(line.startswith("tdbg:") for line in written), (
        "on a row of its own also in the bytes of a log"
    )
    if program == "prints" and tee:
        assert "\n\n" not in shown.stream.replace("\r", ""), "where the end of a row is seen, none is left empty"


@pytest.mark.cold
@pytest.mark.parametrize("tee", BEHIND, ids=["direct", "tee"])
def test_a_row_that_the_program_has_begun_is_left_and_gone_on_with_below(
    tmp_path: Path, bare_rows: Any, tee: bool
) -> None:
    alone = play_alone(bare_rows, tmp_path, "begun", 80)
    assert alone == ["first line of the program", "begun, and ended"]
    shown = play_program(tmp_path, "begun", 80, BEHIND[tee])
    ours, others = split_rows(shown)
    at = shown.rows.index("begun,")
    assert shown.rows[at + 1].startswith("tdbg: TD-N001 critical: first NaN at step 8"), shown.rows
    assert others == ["first line of the program", "begun,", " and ended"], shown.rows
    assert rejoin_rows(shown, alone) == alone
    check_words(ours, tmp_path)


@pytest.mark.cold
def test_severities_are_coloured_and_the_rest_is_plain(program_folder: Path) -> None:
    before = [*TDBG, "run", "--quiet", "--"]
    shown = play_program(program_folder, "tqdm", 80, before)
    assert shown.screen.find_styles("1 critical") == {"1;31"} and shown.screen.find_styles("verdict") == {""}
    for more, env in (
        (["--color", "never"], {}),
        ([], {"NO_COLOR": "1"}),
        ([], {"CI": "true"}),
        ([], {"TERM": "dumb"}),
    ):
        shown = play_program(program_folder, "prints", 80, [*TDBG, "run", "--quiet", *more, "--"], trains=False, **env)
        assert "\x1b[1;31m" not in shown.stream and "verdict" in shown.stream
