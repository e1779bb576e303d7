"""Files of lines that several threads write to."""

import os
import subprocess
import sys
import threading
from pathlib import Path

from tdbg.core.lines import LineWriter

WAIT_S = 0.3  # for a thread that is to be held up; one that is not is back much sooner


def test_a_line_that_comes_while_another_thread_opens_the_file_is_written(tmp_path: Path) -> None:
    other = threading.Thread(target=lambda: writer.write_line(b"other\n"))

    def place() -> Path:
        if not other.ident:
            other.start()
            other.join(WAIT_S)
        return tmp_path / "lines"

    writer = LineWriter(place, 0, print)
    assert writer.write_line(b"one\n")
    other.join(30)
    assert writer.dropped == 0
    assert (tmp_path / "lines").read_bytes() == b"one\nother\n"


def test_a_line_of_a_signal_handler_while_the_file_is_opened_is_written(tmp_path: Path) -> None:
    inner: list[bool] = []

    def place() -> Path:
        if not inner:
            inner.append(False)
            inner[0] = writer.write_line(b"handler\n")
        return tmp_path / "lines"

    writer = LineWriter(place, 0, print)
    assert writer.write_line(b"one\n") and inner == [True]
    assert (tmp_path / "lines").read_bytes() == b"handler\none\n"


def test_a_file_that_cannot_be_opened_is_not_tried_again(tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(b"")
    asked: list[int] = []
    said: list[str] = []

    def place() -> Path:
        asked.append(1)
        return tmp_path / "file" / "lines"

    writer = LineWriter(place, 0, said.append)
    assert not writer.write_line(b"one\n") and not writer.write_line(b"two\n")
    assert (len(asked), len(said), writer.dropped) == (1, 1, 2)


def test_who_is_told_of_trouble_may_wait_for_another_thread_that_writes(tmp_path: Path) -> None:
    told: list[bool] = []

    def trouble(text: str) -> None:
        other = threading.Thread(target=lambda: writer.write_line(b"other\n"), daemon=True)
        other.start()
        other.join(10)
        told.append(not other.is_alive())

    writer = LineWriter(lambda: tmp_path / "lines", 2, trouble)
    assert not writer.write_line(b"one\n")
    assert told == [True] and writer.dropped == 2


def test_a_child_forked_while_a_thread_writes_has_a_turn_of_its_own(tmp_path: Path) -> None:
    program = f"""if True:
        import os, signal, threading
        from pathlib import Path
        from tdbg.core.lines import LineWriter

        opening, forked = threading.Event(), threading.Event()

        def place():
            if os.getpid() == parent:
                opening.set()
                forked.wait(10)
            return Path({str(tmp_path)!r}) / str(os.getpid() == parent)

        parent = os.getpid()
        writer = LineWriter(place, 0, print)
        thread = threading.Thread(target=writer.write_line, args=(b"of the parent\\n",))
        thread.start()
        assert opening.wait(10)
        child = os.fork()
        if not child:
            signal.alarm(10)
            os._exit(not writer.write_line(b"of the child\\n"))
        _, status = os.waitpid(child, 0)
        forked.set()
        thread.join()
        print(os.waitstatus_to_exitcode(status))
    """
    env = {**os.environ, "PYTHONPATH": str(Path(__file__).parents[2])}
    done = subprocess.run([sys.executable, "-c", program], env=env, capture_output=True, text=True, timeout=60)
    assert done.stdout == "0\n", done.stderr
    assert (tmp_path / "True").read_text() == "of the parent\n" and (tmp_path / "False").read_text() == "of the child\n"
