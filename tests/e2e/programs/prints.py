"""A classifier that tells its results as text alone: ``prints.py STYLE [--mislabelled]``.

STYLE is print, logging, bar (tqdm on stderr) or fraction (``Accuracy: 9/64``). --mislabelled numbers the classes of the
training data in another order than those of the validation data.
"""

import argparse
import logging
import sys

import torch
from torch import nn
from torch.nn import functional
from tqdm import tqdm

CLASSES, EPOCHS = 10, 6


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("style", choices=("print", "logging", "bar", "fraction"))
    parser.add_argument("--mislabelled", action="store_true")
    args = parser.parse_args()
    logging.basicConfig(level=logging.INFO, stream=sys.stderr)
    torch.manual_seed(0)
    true = torch.randn(32, CLASSES)
    x, x_val = torch.randn(1024, 32), torch.randn(512, 32)
    y, y_val = (x @ true).argmax(1), (x_val @ true).argmax(1)
    if args.mislabelled:
        y = (y + 1) % CLASSES
    model = nn.Sequential(nn.Linear(32, 64), nn.ReLU(), nn.Linear(64, CLASSES))
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-2)
    for epoch in range(EPOCHS):
        batches = tqdm(x.split(64), file=sys.stderr, mininterval=0, disable=args.style != "bar")
        for xb, yb in zip(batches, y.split(64), strict=True):
            loss = functional.cross_entropy(model(xb), yb)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
        with torch.no_grad():
            hits = int((model(x_val).argmax(1) == y_val).sum())
        if args.style == "print":
            print(f"epoch {epoch} train_loss {loss.item():.4f} val_acc {hits / 512:.4f}")
        elif args.style == "logging":
            logging.info("epoch %d: loss=%.4f val_acc=%.4f", epoch, loss.item(), hits / 512)
        elif args.style == "bar":
            tqdm.write(f"{epoch}: val accuracy {hits / 5.12:.2f}%", file=sys.stderr)
        else:
            print(f"Test set: Average loss: 1.2345, Accuracy: {hits}/512 ({hits / 5.12:.0f}%)")


if __name__ == "__main__":
    main()
