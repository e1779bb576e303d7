"""Small training runs on a CUDA device, healthy ones and ones with a planted fault.

usage: on_gpu.py KIND [--steps N] [--fault NAME] [--fetch-ms MS]

KIND: plain, amp, bf16, no-sync, pinned, graph, compile, nccl, fsdp, oom, assert, starved, syncs, busy.
Prints one line per step with the loss, but for two: no-sync prints how often the host was made to wait, and busy, whose
device is slower than the host and has batches that take --fetch-ms to fetch, the milliseconds of a step.
--fault: at step 30 the forward pass makes a NaN (forward) or the backward pass (backward), in the module "clipped".
Shapes: B batch, F features.
"""

import argparse
import math
import time
import warnings
from collections.abc import Callable, Iterator

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.utils.data import DataLoader, TensorDataset

BATCH, FEATURES, WIDTH = 64, 32, 512


class Clipped(nn.Module):
    """The identity; while ``ill`` one number of its output is NaN, or all of its gradient."""

    ill = ""

    def forward(self, x_BF: Tensor) -> Tensor:
        if self.ill == "forward":
            return x_BF.index_fill(-1, torch.tensor(1, device=x_BF.device), math.nan)
        return x_BF + 0.0 * torch.sqrt(0.0 * x_BF) if self.ill == "backward" else x_BF


class Net(nn.Module):
    """Three layers with an addition in between."""

    def __init__(self, width: int = WIDTH) -> None:
        super().__init__()
        self.inner = nn.Sequential(nn.Linear(FEATURES, width), nn.ReLU(), nn.Linear(width, width), nn.ReLU())
        self.clipped = Clipped()
        self.head = nn.Linear(width, 1)

    def forward(self, x_BF: Tensor) -> Tensor:
        out: Tensor = self.head(self.clipped(self.inner(x_BF)))
        return out


class SlowDataset(TensorDataset):
    """Rows that take a while to fetch."""

    def __getitem__(self, index: int) -> tuple[Tensor, ...]:
        time.sleep(0.001)
        return tuple(tensor[index] for tensor in self.tensors)


class BatchDataset(TensorDataset):
    """Batches made beforehand, each of which takes a while to fetch."""

    fetch_s = 0.0

    def __getitem__(self, index: int) -> tuple[Tensor, ...]:
        time.sleep(self.fetch_s)
        return tuple(tensor[index] for tensor in self.tensors)


def make_dataset(kind: type[TensorDataset] = TensorDataset) -> TensorDataset:
    """Inputs and targets of a noisy linear map."""
    generator = torch.Generator().manual_seed(0)
    x_NF = torch.randn(16 * BATCH, FEATURES, generator=generator)
    noise_N = torch.randn(len(x_NF), generator=generator)
    return kind(x_NF, (x_NF.mean(1) + 0.1 * noise_N)[:, None])


def iter_batches(steps: int, loader: DataLoader[tuple[Tensor, ...]]) -> Iterator[tuple[Tensor, Tensor]]:
    """So many batches on the device, over as many epochs as it takes."""
    done = 0
    while True:
        for x_BF, y_B1 in loader:
            yield x_BF.cuda(non_blocking=True), y_B1.cuda(non_blocking=True)
            done += 1
            if done == steps:
                return


def print_loss(step: int, loss: Tensor) -> None:
    """One step, one line."""
    print(f"step {step} loss {loss.item():.9g}", flush=True)


def train_plainly(
    steps: int,
    *,
    model: nn.Module | None = None,
    loader: DataLoader[tuple[Tensor, ...]] | None = None,
    before: Callable[[int, nn.Module], object] = lambda step, model: None,
    after: Callable[[int, Tensor], object] = print_loss,
    dtype: torch.dtype | None = None,
) -> None:
    """The usual loop; ``before`` and ``after`` are called around each step."""
    model = Net().cuda() if model is None else model
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3, fused=True)
    scaler = torch.amp.GradScaler("cuda", enabled=dtype is torch.float16)
    loader = loader or DataLoader(make_dataset(), batch_size=BATCH, shuffle=True)
    for step, (x_BF, y_B1) in enumerate(iter_batches(steps, loader), start=1):
        before(step, model)
        with torch.autocast("cuda", dtype=dtype, enabled=dtype is not None):
            loss = nn.functional.mse_loss(model(x_BF).float(), y_B1)
        optimizer.zero_grad()
        scaler.scale(loss).backward()
        scaler.step(optimizer)
        scaler.update()
        after(step, loss)


def train_without_waiting(steps: int) -> None:
    """No step makes the host wait for the device; whoever does is listed."""
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        loader = DataLoader(make_dataset(), batch_size=BATCH, pin_memory=True)
        train_plainly(steps, loader=loader, before=report_waits_from_step_20, after=lambda step, loss: None)
        torch.cuda.set_sync_debug_mode(0)
    waits = [f"{one.filename}:{one.lineno}" for one in caught if "called a synchronizing" in str(one.message)]
    print(f"waits {len(waits)}", *sorted(set(waits)), flush=True)


def report_waits_from_step_20(step: int, model: nn.Module) -> None:
    """Torch warns from then on of each call that waits."""
    if step == 20:
        torch.cuda.set_sync_debug_mode(1)


def train_busily(steps: int, fetch_ms: float, before: Callable[[int, nn.Module], object]) -> None:
    """The device has more to do than the host; the host reads nothing before the end."""
    batches = BatchDataset(torch.randn(16, 4096, FEATURES), torch.randn(16, 4096, 1))
    batches.fetch_s = fetch_ms / 1e3
    begun: list[float] = []

    def take_time(step: int, loss: Tensor) -> None:
        if step in (steps // 2, steps):
            torch.cuda.synchronize()
            begun.append(time.perf_counter())

    loader = DataLoader(batches, batch_size=None, shuffle=True)
    train_plainly(steps, model=Net(4096).cuda(), loader=loader, before=before, after=take_time)
    print(f"ms {1e3 * (begun[1] - begun[0]) / (steps - steps // 2):.3f}", flush=True)


def train_in_graph(steps: int) -> None:
    """The whole step is captured once and replayed."""
    model = Net().cuda()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3, capturable=True)
    x_BF, y_B1 = torch.zeros(BATCH, FEATURES, device="cuda"), torch.zeros(BATCH, 1, device="cuda")

    def run_step() -> Tensor:
        optimizer.zero_grad(set_to_none=True)
        loss = nn.functional.mse_loss(model(x_BF), y_B1)
        loss.backward()
        optimizer.step()
        return loss

    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        for _ in range(3):
            run_step()
    torch.cuda.current_stream().wait_stream(side)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        loss = run_step()
    loader = DataLoader(make_dataset(), batch_size=BATCH, shuffle=True)
    for step, (x, y) in enumerate(iter_batches(steps, loader), start=1):
        x_BF.copy_(x)
        y_B1.copy_(y)
        graph.replay()
        print_loss(step, loss)


def train_ranks(steps: int, *, sharded: bool) -> None:
    """One rank on NCCL, under DDP or FSDP2."""
    dist.init_process_group("nccl")
    model: nn.Module = Net().cuda()
    if sharded:
        from torch.distributed.fsdp import fully_shard

        fully_shard(model.inner)  # type: ignore[arg-type]
        fully_shard(model)
    else:
        model = nn.parallel.DistributedDataParallel(model, device_ids=[0])
    train_plainly(steps, model=model)
    dist.destroy_process_group()


def allocate_too_much(step: int, model: nn.Module) -> None:
    """Step 20 asks for more than there is."""
    if step == 20:
        torch.empty(1 << 42, dtype=torch.uint8, device="cuda")


def look_up_beyond_the_table(step: int, model: nn.Module) -> None:
    """Step 20 reads a row that an embedding does not have: a device-side assertion."""
    if step == 20:
        nn.functional.embedding(torch.tensor([99], device="cuda"), torch.zeros(10, 4, device="cuda")).sum().item()


def read_every_parameter(step: int, model: nn.Module) -> None:
    """The host waits for the device a few times per parameter."""
    for parameter in [*model.parameters()] * 4:
        parameter.sum().item()


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("kind")
    parser.add_argument("--steps", type=int, default=120)
    parser.add_argument("--fault", default="", choices=("", "forward", "backward"))
    parser.add_argument("--fetch-ms", type=float, default=0.0)
    options = parser.parse_args()

    def spoil(step: int, model: nn.Module) -> None:
        model.clipped.ill = options.fault if step == 30 else ""  # type: ignore[union-attr]

    steps = options.steps
    torch.manual_seed(0)
    torch.use_deterministic_algorithms(True, warn_only=True)
    programs: dict[str, Callable[[], object]] = {
        "plain": lambda: train_plainly(steps, before=spoil),
        "amp": lambda: train_plainly(steps, dtype=torch.float16, before=spoil),
        "bf16": lambda: train_plainly(steps, dtype=torch.bfloat16, before=spoil),
        "busy": lambda: train_busily(steps, options.fetch_ms, spoil),
        "no-sync": lambda: train_without_waiting(steps),
        "pinned": lambda: train_plainly(
            steps, loader=DataLoader(make_dataset(), batch_size=BATCH, num_workers=2, pin_memory=True)
        ),
        "graph": lambda: train_in_graph(steps),
        "compile": lambda: train_plainly(steps, model=torch.compile(Net().cuda(), mode="reduce-overhead")),  # type: ignore[arg-type]
        "nccl": lambda: train_ranks(steps, sharded=False),
        "fsdp": lambda: train_ranks(steps, sharded=True),
        "oom": lambda: train_plainly(steps, before=allocate_too_much),
        "assert": lambda: train_plainly(steps, before=look_up_beyond_the_table),
        "starved": lambda: train_plainly(steps, loader=DataLoader(make_dataset(SlowDataset), batch_size=BATCH)),
        "syncs": lambda: train_plainly(steps, before=read_every_parameter),
    }
    programs[options.kind]()
    print("done", flush=True)


if __name__ == "__main__":
    main()
