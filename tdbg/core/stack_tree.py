"""Python stacks of many threads, as `faulthandler` and `traceback` write them, merged into one tree."""

import re
from collections import defaultdict
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from tdbg.core.frames import OWN_FOLDER
from tdbg.core.lazy_pattern import lazy_pattern
from tdbg.core.native_stack import FRAME, OWN_PART

THREAD = lazy_pattern(r"^(?:Current thread|Thread) (0x[0-9a-f]+)(?: \[(.*)\])? \(most recent call first\):")
TRACEBACK_FRAME = lazy_pattern(r'^\s*File "(.*)", line (\d+), in (.*)$')
MAX_THREADS = 512
MAIN = "MainThread"


class Frame(NamedTuple):
    """One call: where its function is at the moment."""

    file: str
    line: int
    function: str

    def format_frame(self, width: int = 60) -> str:
        """``train.py:41 in main``: the end of the path, from the package's name on where it is one."""
        file = self.file
        for part in ("/site-packages/", "/dist-packages/"):
            file = file.rpartition(part)[2]
        if len(file) > width:
            file = "..." + file[3 - width :]
        return f"{file}:{self.line} in {self.function}"


@dataclass(slots=True)
class ThreadStack:
    """A thread's calls, the outermost first. process: whose thread it is, such as ``rank 3``."""

    process: str
    thread: str
    frames: list[Frame] = field(default_factory=list)

    @property
    def is_main(self) -> bool:
        """True for the thread that trains."""
        return self.thread == MAIN


def parse_dump(text: str, process: str) -> list[ThreadStack]:
    """The stacks of what `faulthandler` wrote: innermost call first, the main thread last."""
    found: list[ThreadStack] = []
    for line in text.splitlines():
        thread = THREAD.match(line)
        if thread is not None:
            if len(found) >= MAX_THREADS:
                break
            found.append(ThreadStack(process, thread[2] or thread[1]))
        elif found and (frame := FRAME.match(line)) is not None:
            found[-1].frames.insert(0, Frame(frame[1], int(frame[2]), frame[3]))
    if found:
        found[-1].thread = MAIN
    return [_drop_own_frames(stack) for stack in found if not _is_own_thread(stack)]


def parse_kept(threads: dict[str, Sequence[str]], process: str) -> list[ThreadStack]:
    """The same of the stacks that a rank keeps when it hangs: by thread, as `traceback.format_stack` has them."""
    found = []
    for name, lines in list(threads.items())[:MAX_THREADS]:
        stack = ThreadStack(process, re.sub(r" \(\d+\)$", "", name))
        for line in lines if isinstance(lines, list) else ():
            frame = TRACEBACK_FRAME.match(str(line).partition("\n")[0])
            if frame is not None:
                stack.frames.append(Frame(frame[1], int(frame[2]), frame[3]))
        found.append(stack)
    return [_drop_own_frames(stack) for stack in found if not _is_own_thread(stack)]


def _is_own_file(file: str) -> bool:
    return file.startswith(OWN_FOLDER) or OWN_PART.search(file) is not None


def _is_own_thread(stack: ThreadStack) -> bool:
    """True for tdbg's threads: all their calls but those of `threading` and below are its own."""
    first = next((frame for frame in stack.frames if not frame.file.endswith("/threading.py")), None)
    return not stack.is_main and first is not None and _is_own_file(first.file)


def _drop_own_frames(stack: ThreadStack) -> ThreadStack:
    stack.frames = [frame for frame in stack.frames if not _is_own_file(frame.file)]
    return stack


@dataclass(slots=True)
class _Node:
    below: dict[Frame, "_Node"] = field(default_factory=dict)
    processes: list[str] = field(default_factory=list)  # one entry a thread


def format_tree(stacks: Iterable[ThreadStack], format_processes: Callable[[list[str]], str]) -> list[str]:
    """The stacks as a tree, the outermost call first; a line says which processes are in a call where they part.

    format_processes: ``ranks 0-2`` for the processes of the threads that are in a call.
    """
    root = _Node()
    for stack in stacks:
        node = root
        node.processes.append(stack.process)
        for frame in stack.frames:
            node = node.below.setdefault(frame, _Node())
            node.processes.append(stack.process)
    lines: list[str] = []
    _add_lines(root, "", lines, format_processes)
    return lines


def _add_lines(node: _Node, indent: str, lines: list[str], format_processes: Callable[[list[str]], str]) -> None:
    """Calls that all threads of a node are in stand below each other; where they part, each way is set in."""
    while len(node.below) == 1:
        frame, below = next(iter(node.below.items()))
        if len(below.processes) < len(node.processes):  # some threads end here
            break
        lines.append(f"{indent}{frame.format_frame()}")
        node = below
    ways = sorted(node.below.items(), key=lambda way: -len(way[1].processes))  # of as many, in the order of ranks
    ending = len(node.processes) - sum(len(below.processes) for _, below in ways)
    for frame, below in ways:
        if ways and (len(ways) > 1 or ending):
            lines.append(f"{indent}  {format_processes(below.processes)}:")
            lines.append(f"{indent}    {frame.format_frame()}")
            _add_lines(below, f"{indent}    ", lines, format_processes)
    if ending and ways:
        ended = list(node.processes)
        for _, below in ways:
            for name in below.processes:
                ended.remove(name)
        lines.append(f"{indent}  {format_processes(ended)}: the stack ends here")


def group_by_thread_name(stacks: Iterable[ThreadStack]) -> dict[str, list[ThreadStack]]:
    """The stacks by the thread's name without its number, the main thread first."""
    groups: defaultdict[str, list[ThreadStack]] = defaultdict(list)
    for stack in stacks:
        groups[stack.thread if stack.is_main else re.sub(r"(0x[0-9a-f]+|[-_ ]*\d+)+$", "", stack.thread)].append(stack)
    return dict(sorted(groups.items(), key=lambda group: (group[0] != MAIN, group[0])))
