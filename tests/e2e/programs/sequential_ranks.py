"""Two ranks evaluate with a `SequentialDebugger` each, and save into one folder; five samples, so one is padding."""

import torch
import torch.distributed as dist
from common import leave_group, print_fact
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, Dataset, DistributedSampler

from tdbg.debuggers.feature_map import FeatureMap
from tdbg.debuggers.sequential import SequentialDebugger


class Numbers(Dataset):
    """Each sample is its own number."""

    def __len__(self) -> int:
        return 5

    def __getitem__(self, index: int) -> tuple[int, Tensor]:
        return index, torch.full((4,), float(index))


def main() -> None:
    dist.init_process_group("gloo")
    model = DistributedDataParallel(nn.Sequential(nn.Linear(4, 3), nn.ReLU(inplace=True)))
    with torch.no_grad():
        model.module[0].weight.fill_(0.5)
        model.module[0].bias.fill_(-1.0)
    config = [{"name": "map", "debugger_config": {"class": FeatureMap, "args": {"layer_name": "0"}}}]
    loader = DataLoader(Numbers(), 1, sampler=DistributedSampler(Numbers(), shuffle=False))
    debugger = SequentialDebugger(config, model)
    for epoch in range(2):
        debugger.enabled = True
        with torch.no_grad():
            for idx, x_BF in loader:
                outputs = model(x_BF)
                debugger({"inputs": x_BF, "labels": idx, "meta_info": {"idx": idx}, "outputs": outputs})
        debugger.save_all(f"run/epoch_{epoch}/debugger")
    debugger.enabled = False
    print_fact("done", rank=dist.get_rank())
    leave_group()


if __name__ == "__main__":
    main()
