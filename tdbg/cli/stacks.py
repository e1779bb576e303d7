"""`tdbg stacks`: where all ranks of a run are in Python, as one tree."""

import time
from typing import TYPE_CHECKING

from tdbg.core.command_spec import JSON, RUN, Args, Command, Option, Options
from tdbg.core.errors import TdbgError
from tdbg.core.output import print_json, print_lines, print_messages
from tdbg.core.tables import format_count

if TYPE_CHECKING:
    from tdbg.core.stack_tree import ThreadStack
    from tdbg.launch.stack_requests import Stacks

HELP = """Print all ranks' Python stacks as one tree: now, or at the last hang.

        tdbg stacks
        tdbg stacks train --all
        tdbg stacks train --json

    Each rank on this host gets a signal at which Python writes its stacks, even while it waits in a collective or
    other native code. No root is needed and the run goes on. The tree branches where ranks differ. For a run that has
    ended, the stacks saved at its last hang are shown. Without --all: main threads of ranks and loader workers only.
    """
OPTIONS: Options = {
    "all": Option(("--all",), "", "Show the other threads as well."),
    "json": JSON,
}


class StacksArgs(Args):
    """What `stacks` can be given."""

    run: str | None = None
    all: bool = False
    json: bool = False


def show_stacks(args: StacksArgs) -> int:
    """Print the stacks; 1 if a rank did not answer."""
    from tdbg.core.rundir import RunDir
    from tdbg.core.stack_tree import MAIN, format_tree, group_by_thread_name
    from tdbg.launch.stack_requests import collect_stacks

    run = RunDir.open(args.run)
    stacks = collect_stacks(run)
    if not stacks.found and not stacks.silent:
        raise TdbgError(f"{run.path.name}: no live rank and no saved stacks", "stacks are saved only when a rank hangs")
    if args.json:
        print_json("stacks", _as_dict(stacks))
        return 1 if stacks.silent else 0
    when = time.strftime("%H:%M:%S", time.localtime(stacks.t))
    print_lines([f"stacks {'now' if stacks.is_live else 'saved at the last hang'}, {when}"])
    for thread, members in group_by_thread_name(stacks.found).items():
        if thread == MAIN or args.all:
            heading = "" if thread == MAIN else f", thread {thread}"
            lines = format_tree(members, format_processes)
            print_lines(["", f"{format_processes([one.process for one in members])}{heading}:"])
            print_lines([f"  {line}" for line in lines])
    print_messages(*(f"{name}: {why}" for name, why in stacks.silent.items()))
    return 1 if stacks.silent else 0


def format_processes(names: list[str]) -> str:
    """``ranks 0-2``, ``rank 1 and 4 workers of ranks 0-1``."""
    from tdbg.rules.text import format_ranks

    ranks = {int(name.split()[1]) for name in names if not name.endswith(" worker")}
    workers = [int(name.split()[1]) for name in names if name.endswith(" worker")]
    parts = [format_ranks(ranks)] if ranks else []
    if workers:
        parts.append(f"{format_count(len(workers), 'worker')} of {format_ranks(set(workers))}")
    return " and ".join(parts)


def _as_dict(stacks: "Stacks") -> dict[str, object]:
    def describe_stack(stack: "ThreadStack") -> dict[str, object]:
        frames = [{"file": frame.file, "line": frame.line, "function": frame.function} for frame in stack.frames]
        return {"process": stack.process, "thread": stack.thread, "frames": frames}

    return {
        "t": stacks.t,
        "live": stacks.is_live,
        "stacks": [describe_stack(stack) for stack in stacks.found],
        "silent": stacks.silent,
    }


COMMAND = Command(show_stacks, StacksArgs, HELP, OPTIONS, RUN)
