"""Two workers of Ray Train: `python ray_train.py FAULT STEPS FOLDER`; rank 1 has the fault. It needs ray[train]."""

import sys
import time
from typing import Any

import ray.train
import torch
from ray.train import RunConfig, ScalingConfig
from ray.train.torch import TorchTrainer, prepare_model
from torch import nn

NAN_STEP = 12


def train(config: dict[str, Any]) -> None:
    rank = ray.train.get_context().get_world_rank()
    torch.manual_seed(0)
    model = prepare_model(nn.Sequential(nn.Linear(32, 64), nn.ReLU(), nn.Linear(64, 4)))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    generator = torch.Generator().manual_seed(rank)
    for step in range(config["steps"]):
        inputs = torch.randn(16, 32, generator=generator)
        labels = torch.randint(0, 4, (16,), generator=generator)
        if config["fault"] == "nan" and rank == 1 and step == NAN_STEP:
            inputs[3] = float("nan")
        loss = nn.functional.cross_entropy(model(inputs), labels)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        time.sleep(0.02)
    ray.train.report({"loss": loss.item()})


if __name__ == "__main__":
    trainer = TorchTrainer(
        train,
        train_loop_config={"fault": sys.argv[1], "steps": int(sys.argv[2])},
        scaling_config=ScalingConfig(num_workers=2, use_gpu=False),
        run_config=RunConfig(storage_path=sys.argv[3], name="trial"),
    )
    trainer.fit()
