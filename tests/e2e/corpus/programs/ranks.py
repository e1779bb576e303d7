"""Healthy trainings of several processes.

usage: torchrun --nproc-per-node=2 ranks.py KIND; ranks.py hogwild for the one that starts its own.
"""

import sys
from contextlib import nullcontext

import parts
import torch
import torch.distributed as dist
import torch.multiprocessing as mp
from torch import nn
from torch.distributed.fsdp import fully_shard
from torch.nn import functional
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, DistributedSampler


def make_model() -> nn.Sequential:
    """Three layers."""
    return nn.Sequential(
        nn.Linear(parts.FEATURES, 32), nn.ReLU(), nn.Linear(32, 32), nn.ReLU(), nn.Linear(32, parts.CLASSES)
    )


def load_shares() -> tuple[DataLoader, DistributedSampler, DataLoader]:
    """A loader of this rank's share, its sampler, and one for validation of this rank's share."""
    train, held = parts.draw_classes(2560, seed=1), parts.draw_classes(256, seed=2)
    sampler = DistributedSampler(train)
    validation = DataLoader(held, 32, sampler=DistributedSampler(held, shuffle=False))
    return DataLoader(train, 32, sampler=sampler, drop_last=True), sampler, validation


def measure_accuracy(model: nn.Module, validation: DataLoader) -> float:
    """Accuracy over all ranks."""
    model.eval()
    with torch.no_grad():
        hits = torch.tensor([sum(int((model(x).argmax(1) == y).sum()) for x, y in validation)])
    dist.all_reduce(hits)
    model.train()
    return hits.item() / 256


def data_parallel() -> None:
    """DDP over epochs, with a schedule, validation on all ranks, and checkpoints of rank 0."""
    train, sampler, validation = load_shares()
    model, record, folder = DistributedDataParallel(make_model()), parts.Record(), parts.make_folder()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, 8)
    for epoch in range(8):
        sampler.set_epoch(epoch)
        for x, y in train:
            optimizer.zero_grad()
            loss = functional.cross_entropy(model(x), y)
            loss.backward()
            optimizer.step()
            record.add_loss(loss)
        schedule.step()
        accuracy = measure_accuracy(model, validation)
        if dist.get_rank() == 0:
            print(f"epoch {epoch} accuracy {accuracy:.3f}", flush=True)
            torch.save(model.module.state_dict(), folder / "last.pt")
        dist.barrier()
    record.print_summary()


def accumulated() -> None:
    """DDP that reduces gradients every second batch alone; batch norm is synchronised by hand never."""
    train, sampler, _ = load_shares()
    model, record, epoch = DistributedDataParallel(make_model(), gradient_as_bucket_view=True), parts.Record(), 0
    optimizer = torch.optim.AdamW(model.parameters(), lr=2e-3)
    steps = 0
    while steps < 310:
        sampler.set_epoch(epoch)
        epoch += 1
        for at, (x, y) in enumerate(train):
            last = at % 2 == 1
            with nullcontext() if last else model.no_sync():
                loss = functional.cross_entropy(model(x), y) / 2
                loss.backward()
            if last:
                nn.utils.clip_grad_norm_(model.parameters(), 1.0)
                optimizer.step()
                optimizer.zero_grad()
                record.add_loss(2 * loss)
                steps += 1
    record.print_summary()


def sharded() -> None:
    """FSDP2 with a clip over all shards."""
    train, sampler, validation = load_shares()
    model, record = make_model(), parts.Record()
    for layer in (model[0], model[2]):
        fully_shard(layer)
    fully_shard(model)
    optimizer = torch.optim.AdamW(model.parameters(), lr=2e-3)
    for epoch in range(8):
        sampler.set_epoch(epoch)
        for x, y in train:
            optimizer.zero_grad()
            loss = functional.cross_entropy(model(x), y)
            loss.backward()
            nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
            record.add_loss(loss)
        accuracy = measure_accuracy(model, validation)
        if dist.get_rank() == 0:
            print(f"epoch {epoch} accuracy {accuracy:.3f}", flush=True)
    record.print_summary()


def train_shared(model: nn.Module, seed: int) -> None:
    """One of the processes that train a shared model."""
    torch.manual_seed(seed)
    torch.set_num_threads(1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.5)
    loader = DataLoader(parts.draw_classes(1280, seed=1), 32, shuffle=True)
    model.train()
    for _, (x, y) in parts.repeat_batches(loader, 320):
        optimizer.zero_grad()
        loss = functional.cross_entropy(model(x), y)
        loss.backward()
        optimizer.step()
    print(f"seed {seed}: {loss.item():.3f}", flush=True)


def hogwild() -> None:
    """Two processes update one model in shared memory; the parent evaluates it afterwards."""
    model = make_model().share_memory()
    children = [mp.get_context("spawn").Process(target=train_shared, args=(model, seed)) for seed in (1, 2)]
    for child in children:
        child.start()
    for child in children:
        child.join()
    print(f"{parts.measure_accuracy(model, DataLoader(parts.draw_classes(256, seed=2), 32)):.3f}")


KINDS = {"data-parallel": data_parallel, "accumulated": accumulated, "sharded": sharded}

if __name__ == "__main__":
    if sys.argv[1] == "hogwild":
        torch.manual_seed(0)
        hogwild()
    else:
        dist.init_process_group("gloo")
        parts.run_kind(KINDS)
        dist.barrier()
        dist.destroy_process_group()
