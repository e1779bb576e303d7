"""A training that prints what hardly is text: control codes, numbers beyond all sizes, objects whose str() is odd."""

import logging
import sys
import time

import torch
from torch import nn

ODD = [
    "loss: 1e999 acc=-1e999",
    "loss " + "9" * 4000,
    "loss\x00=1",
    "\x1b]0;loss=1\x07\x1b[31mval_loss=2\x1b[0m",
    "lоss=1 val_acc ٠٫٥",
    "val_acc=1__2 acc=0x1p4 val_loss=1e",
    "__class__=1 __dict__: 2 val/loss/../../x=3",
    "{'loss': {'loss': {'loss': 1}}}",
    "[" * 5000 + "loss=1",
    "nan=nan inf=inf loss=nan=inf",
    "",
    "\r\r\r",
]


class Text(str):
    """A text of a class of its own."""

    __slots__ = ()

    def __contains__(self, part: object) -> bool:
        raise RuntimeError("nobody looks into it")


def main() -> None:
    torch.manual_seed(0)
    logging.basicConfig(level=logging.INFO, stream=sys.stderr)
    model = nn.Linear(8, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    for step in range(60):
        x = torch.randn(16, 8)
        loss = (model(x) - x.sum(1, keepdim=True)).pow(2).mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        line = ODD[step % len(ODD)]
        print(line)
        sys.stdout.write(Text(f"val_loss {step}\n"))
        sys.stdout.writelines([line, "\n"])
        sys.stdout.buffer.write(b"val_acc \xc3\xa9 0.5\n")
        logging.info("%s loss=%s", line[:80], step)
        logging.getLogger("loss=1\n").info({"loss": 1})
        time.sleep(0.005)
        try:
            sys.stdout.write(3)  # type: ignore[arg-type]
        except TypeError as error:
            print(type(error).__name__)
    sys.stdout.flush()


if __name__ == "__main__":
    main()
