"""A program that has its own start-up file, excepthook, signal handlers, logger class and exit handler.

usage: own_hooks.py quiet|raise|signal
"""

import atexit
import logging
import os
import signal
import sys
from types import FrameType, TracebackType

from common import make_regression, print_fact


class OwnLogger(logging.Logger):
    """A logger class of the program."""


def print_exception(kind: type[BaseException], value: BaseException, trace: TracebackType | None) -> None:
    print_fact("excepthook", exception=kind.__name__, text=str(value))


def print_signal(number: int, frame: FrameType | None) -> None:
    print_fact("handler", signal=signal.Signals(number).name)
    sys.exit(42)


logging.setLoggerClass(OwnLogger)
sys.excepthook = print_exception
signal.signal(signal.SIGTERM, print_signal)
signal.signal(signal.SIGUSR1, print_signal)
atexit.register(lambda: print_fact("atexit"))

import torch  # noqa: E402 - after the hooks, as some programs do
from torch import nn  # noqa: E402

log = logging.getLogger("own.program")


def main() -> None:
    torch.manual_seed(0)
    logging.basicConfig(stream=sys.stdout, level=logging.INFO, format="%(levelname)s %(message)s")
    model = nn.Linear(8, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    x, y = make_regression(32).tensors
    for step in range(1, 6):
        optimizer.zero_grad()
        loss = nn.functional.mse_loss(model(x), y)
        loss.backward()
        optimizer.step()
        log.info("step %d", step)
        log.debug("never on this console")
        print_fact("step", step=step, loss=loss.item())
    print_fact(
        "still-mine",
        start_up=getattr(sys, "own_start_up", None),
        logger=type(log).__name__,
        logger_class=logging.getLoggerClass().__name__,
        handlers=[signal.getsignal(number) is print_signal for number in (signal.SIGTERM, signal.SIGUSR1)],
        interrupt=signal.getsignal(signal.SIGINT) is signal.default_int_handler,
        argv=sys.argv,
        first_path=os.path.basename(sys.path[0]),
        modules=sorted(name for name in sys.modules if name.startswith(("rich", "typer"))),
    )
    if sys.argv[1] == "raise":
        raise ValueError("planted")
    if sys.argv[1] == "signal":
        os.kill(os.getpid(), signal.SIGTERM)


if __name__ == "__main__":
    main()
