"""`tdbg stacks` asks all ranks at the same time: those that do not answer are waited for once."""

import os
import subprocess
import sys
import time
from pathlib import Path

from streams import Stream

from tdbg.core.config import Settings
from tdbg.core.native_stack import STACKS_NOW
from tdbg.launch.stack_requests import ANSWER_S, collect_stacks

RANKS = 5
# A rank that is asked and does not answer, or answers at once.
RANK = """
import signal, sys, time
from pathlib import Path
from tdbg.core.host import find_signal_number
from tdbg.core.rundir import claim_rank_folder
rank, word, answers = int(sys.argv[2]), sys.argv[3], int(sys.argv[4])
folder, _ = claim_rank_folder(Path(sys.argv[1]), rank)
file = folder / sys.argv[5]
file.touch()
def answer(*_):
    if answers:
        with file.open("a") as out:
            print(f'Thread 0x00007f0000000000 (most recent call first):\\n  File "x.py", line {rank} in f{rank}', file=out)
signal.signal(find_signal_number(word), answer)
print("there", flush=True)
while True:
    time.sleep(60)
"""


def test_ranks_that_do_not_answer_are_waited_for_together(tmp_path: Path) -> None:
    run = Stream(tmp_path / "run")
    word = Settings().stack_signal
    words = [sys.executable, "-c", RANK, str(run.run.path)]
    ranks = [
        subprocess.Popen([*words, str(rank), word, str(int(rank == 2)), STACKS_NOW], stdout=subprocess.PIPE)
        for rank in range(RANKS)
    ]
    try:
        for rank, process in enumerate(ranks):
            assert process.stdout is not None and process.stdout.readline() == b"there\n"
            run.begin_rank(rank, world=RANKS, pid=process.pid)
        run.run.update_info(supervisor={"pid": os.getpid()})
        begun = time.monotonic()
        stacks = collect_stacks(run.run)
        spent_s = time.monotonic() - begun
    finally:
        for process in ranks:
            process.kill()
            process.communicate()
    assert sorted(stacks.silent) == ["rank 0", "rank 1", "rank 3", "rank 4"], stacks
    assert all("did not answer" in why for why in stacks.silent.values())
    assert [found.process for found in stacks.found] == ["rank 2"]
    assert spent_s < 2 * ANSWER_S, "one after the other they take eight seconds"
