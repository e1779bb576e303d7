"""Two metrics of one class in a model, a free one, a collection; batch values, epoch values, one compute() twice."""

import torch
import torchmetrics
from common import print_fact
from torch import nn
from torchmetrics.classification import MulticlassAccuracy, MulticlassF1Score


class Net(nn.Module):
    """A classifier that holds its metrics."""

    def __init__(self) -> None:
        super().__init__()
        self.body = nn.Linear(8, 3)
        self.train_acc = MulticlassAccuracy(3, average="micro")
        self.val_acc = MulticlassAccuracy(3, average="micro")

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.body(x)


def main() -> None:
    torch.manual_seed(0)
    x, labels = torch.randn(60, 8), torch.randint(3, (60,))
    net = Net()
    optimizer = torch.optim.SGD(net.parameters(), lr=0.5)
    both = torchmetrics.MetricCollection({"acc": MulticlassAccuracy(3), "f1": MulticlassF1Score(3)}, prefix="val/")
    mean, per_class = torchmetrics.MeanMetric(), MulticlassAccuracy(3, average="none")
    for epoch in range(2):
        for start in range(0, 60, 16):
            out = net(x[start : start + 16])
            loss = nn.functional.cross_entropy(out, labels[start : start + 16])
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            net.train_acc(out, labels[start : start + 16])  # a batch value: nobody asked for it
            mean.update(loss.detach())
        with torch.no_grad():
            out = net(x)
        net.val_acc.update(out, labels)
        both.update(out, labels)
        per_class.update(out, labels)
        print_fact("epoch", epoch=epoch, train=net.train_acc.compute().item(), val=net.val_acc.compute().item())
        net.val_acc.compute()
        per_class.compute()
        print_fact(
            "more", mean=mean.compute().item(), **{name[4:]: value.item() for name, value in both.compute().items()}
        )
        for metric in (net.train_acc, net.val_acc, both, mean, per_class):
            metric.reset()
    print_fact("done", steps=8)


if __name__ == "__main__":
    main()
