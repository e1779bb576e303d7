"""`tdbg stacks`: where all ranks of a run are in Python, as one tree."""

import time
from typing import TYPE_CHECKING

from tdbg.core.command_spec import JSON, RUN, Args, Command, Option, Options
from tdbg.core.errors import TdbgError
from tdbg.core.output import print_json, print_lines, print_messages

if TYPE_CHECKING:
    from tdbg.core.stack_tree import ThreadStack
    from tdbg.launch.stack_requests import Stacks

HELP = """Show where all ranks are in Python, as one tree; also of a run that hung.

        tdbg stacks
        tdbg stacks train --all
        tdbg stacks train --json

    A live run is asked by a signal that Python itself answers, so also a rank that waits in a collective or in other
    native code does; it needs no root, and the run goes on. Where ranks part, the tree says which are where. Of a run
    that is over, what it kept when it hung is shown. Without --all only the threads that train and the loader workers.
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
    from tdbg.core.stack_tree import MAIN, format_tree, group_by_thread
    from tdbg.launch.stack_requests import collect_stacks

    run = RunDir.open(args.run)
    stacks = collect_stacks(run)
    if not stacks.found and not stacks.silent:
        raise TdbgError(
            f"{run.path.name}: no rank is alive, and none kept its stacks", "a rank keeps them when it hangs"
        )
    if args.json:
        print_json("stacks", _as_dict(stacks))
        return 1 if stacks.silent else 0
    when = time.strftime("%H:%M:%S", time.localtime(stacks.t))
    print_lines([f"stacks {'now' if stacks.is_live else 'kept when it hung'}, {when}"])
    for thread, members in group_by_thread(stacks.found).items():
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
        number = f"{len(workers)} workers" if len(workers) > 1 else "1 worker"
        parts.append(f"{number} of {format_ranks(set(workers))}")
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
