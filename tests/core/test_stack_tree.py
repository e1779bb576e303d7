"""Stacks as Python writes them, and the tree that is made of them."""

import faulthandler
import tempfile
import threading
from collections.abc import Callable

from tdbg.core.frames import OWN_FOLDER
from tdbg.core.stack_tree import MAIN, ThreadStack, format_tree, group_by_thread_name, parse_dump, parse_kept
from tdbg.runtime.thread_stacks import format_all_stacks

OLD = """Thread 0x00007f1 (most recent call first):
  File "/usr/lib/python3.11/threading.py", line 320 in wait
  File "/home/me/net.py", line 7 in watch

Current thread 0x00007f2 (most recent call first):
  File "/usr/lib/python3/site-packages/torch/nn/linear.py", line 125 in forward
  File "/home/me/train.py", line 41 in main
  File "/home/me/train.py", line 60 in <module>
"""


def join_names(names: list[str]) -> str:
    return "+".join(names)


def wait_in_thread(body: Callable[[], str]) -> str:
    """What ``body`` returns while a thread named "pump 3" waits in a function of its own."""
    end = threading.Event()

    def pump_data() -> None:
        end.wait(30)

    thread = threading.Thread(target=pump_data, name="pump 3")
    thread.start()
    try:
        return body()
    finally:
        end.set()
        thread.join()


def test_a_dump_is_read_from_the_outside_inwards() -> None:
    other, main = parse_dump(OLD, "rank 2")
    assert (main.thread, main.process) == (MAIN, "rank 2") and other.thread == "0x00007f1"
    assert [frame.format_frame() for frame in main.frames] == [
        "/home/me/train.py:60 in <module>",
        "/home/me/train.py:41 in main",
        "torch/nn/linear.py:125 in forward",
    ]


def test_names_of_threads_are_read_where_python_writes_them() -> None:
    (stack, _) = parse_dump(OLD.replace("0x00007f1", "0x00007f1 [pump]"), "rank 0")
    assert stack.thread == "pump"


def test_what_this_python_writes_is_read() -> None:
    def dump_threads() -> str:
        with tempfile.TemporaryFile("w+") as file:
            faulthandler.dump_traceback(file, all_threads=True)
            file.seek(0)
            return file.read()

    found = parse_dump(wait_in_thread(dump_threads), "rank 0")
    assert found[-1].is_main and found[-1].frames[-1].function == "dump_threads"
    assert any("pump_data" in frame.function for stack in found for frame in stack.frames)


def test_what_a_rank_keeps_is_read() -> None:
    kept: dict[str, list[str]] = {}
    wait_in_thread(lambda: str(kept.update(format_all_stacks())))
    (stack,) = [stack for stack in parse_kept(kept, "rank 1") if stack.thread == "pump 3"]
    assert stack.frames[-2].function == "pump_data" or "pump_data" in [frame.function for frame in stack.frames]


def test_threads_of_tdbg_are_left_out() -> None:
    text = f"""Thread 0x1 (most recent call first):
  File "{OWN_FOLDER}probes/hang/hang_watch.py", line 9 in _watch
  File "/usr/lib/python3.11/threading.py", line 982 in run

Thread 0x2 (most recent call first):
  File "{OWN_FOLDER}runtime/monitor.py", line 9 in step
  File "/home/me/train.py", line 60 in <module>
"""
    (main,) = parse_dump(text, "rank 0")
    assert main.is_main and [frame.function for frame in main.frames] == ["<module>"]


def test_what_is_no_dump_has_no_stacks() -> None:
    assert parse_dump("", "rank 0") == [] and parse_dump('\0\nFile\n  File "x", line y\n', "rank 0") == []
    for lines in (["no frame", "", 7, None], 5, "text", {"a": 1}):
        assert parse_kept({"MainThread (1)": lines}, "rank 0")[0].frames == []


def make_stack(process: str, *calls: str) -> ThreadStack:
    text = "Thread 0x1 (most recent call first):\n" + "".join(
        f'  File "/p/{call}.py", line 1 in {call}\n' for call in reversed(calls)
    )
    (stack,) = parse_dump(text, process)
    return stack


def test_the_tree_parts_where_the_ranks_do() -> None:
    stacks = [
        make_stack("0", "main", "train", "reduce"),
        make_stack("1", "main", "train", "load"),
        make_stack("2", "main", "train", "reduce"),
        make_stack("3", "main"),
    ]
    assert format_tree(stacks, join_names) == [
        "/p/main.py:1 in main",
        "  0+1+2:",
        "    /p/train.py:1 in train",
        "      0+2:",
        "        /p/reduce.py:1 in reduce",
        "      1:",
        "        /p/load.py:1 in load",
        "  3: the stack ends here",
    ]


def test_equal_stacks_are_told_once() -> None:
    stacks = [make_stack(str(rank), "main", "train") for rank in range(64)]
    assert format_tree(stacks, join_names) == ["/p/main.py:1 in main", "/p/train.py:1 in train"]
    assert format_tree([], join_names) == []


def test_threads_are_grouped_by_name() -> None:
    stacks = [ThreadStack("0", "Thread-12"), ThreadStack("1", "Thread-3"), ThreadStack("1", MAIN)]
    groups = group_by_thread_name(stacks)
    assert list(groups) == [MAIN, "Thread"] and len(groups["Thread"]) == 2
