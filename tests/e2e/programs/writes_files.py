"""Writes, moves and deletes files in every usual way before its first update. usage: writes_files.py, in a folder of its own."""

import io
import json
import logging
import os
import shutil
import sqlite3
from pathlib import Path

import numpy as np
import torch
from safetensors.torch import load_file, save_file
from torch import nn
from torch.utils.tensorboard import SummaryWriter

Path("before.txt").write_text("changed")
assert Path("before.txt").read_text() == "changed"
with open("appended.txt", "a", encoding="utf-8") as file:
    file.write("more")
assert Path("appended.txt").read_text() == "old more", Path("appended.txt").read_text()
os.remove("deleted.txt")
assert not os.path.exists("deleted.txt") and "deleted.txt" not in os.listdir()
os.replace("moved.txt", "moved-to.txt")
assert Path("moved-to.txt").read_text() == "moved" and not Path("moved.txt").exists()
shutil.rmtree("old-run")
assert not Path("old-run").is_dir()
os.makedirs("out/deep", exist_ok=True)
assert Path("out").is_dir() and sorted(path.name for path in Path().iterdir() if path.name.startswith("o")) == ["out"]
logging.basicConfig(filename="out/log.txt", level="INFO")
logging.info("begun")
np.save("out/array.npy", np.ones(3))
assert np.load("out/array.npy").sum() == 3
sqlite3.connect("out/rows.db").execute("create table rows (x int)")
try:
    io.FileIO("refused.bin", "w")
except PermissionError as error:
    print("refused", os.path.basename(error.filename))

model = nn.Linear(4, 2)
torch.save(model.state_dict(), "out/model.pt")
torch.save({"step": 1}, Path("out/part.tmp"))
os.rename("out/part.tmp", "out/state.pt")
assert torch.load("out/state.pt")["step"] == 1
model.load_state_dict(torch.load("out/model.pt"))
torch.jit.save(torch.jit.script(model), "out/script.pt")
torch.jit.script(model).save("script-of-before.pt")
os.makedirs("out/scripts")
torch.jit.script(model).save("out/scripts/script.pt")
torch.from_file("mapped.bin", shared=True, size=4).fill_(2.0)
torch.UntypedStorage.from_file("mapped.bin", True, 16).fill_(1)
os.makedirs("visited/deep")
os.chdir("visited/deep")
Path("here.txt").write_text("here")
assert Path.cwd().name == "deep" and Path("here.txt").read_text() == "here"
os.chdir("../..")
assert Path("kept.txt").read_text() == "kept" and "kept.txt" in os.listdir() and Path("visited/deep/here.txt").exists()
shutil.move("folder", "moved-folder")
assert not Path("folder/inside.txt").exists() and Path("moved-folder/inside.txt").read_text() == "inside"
os.makedirs("folder")
assert os.listdir("folder") == []
save_file(dict(model.state_dict()), "out/model.safetensors")
load_file("out/model.safetensors")
Path("link.txt").symlink_to("before.txt")
writer = SummaryWriter("runs/one")
writer.add_scalar("loss", 1.0, 0)
writer.close()
Path("config.json").write_text(json.dumps({"seed": 0}))
print(sorted(os.listdir("out")))
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for _ in range(3):
    nn.functional.mse_loss(model(torch.randn(8, 4)), torch.randn(8, 2)).backward()
    optimizer.step()
    print("updated")
