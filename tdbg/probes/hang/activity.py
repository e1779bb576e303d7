"""What the training thread is doing, judged by its stack."""

import os
from types import FrameType

# Part of a file's path, function (empty: any) -> what is going on. Looked for from the outermost frame inwards.
KNOWN: tuple[tuple[str, str, str], ...] = (
    ("/pdb.py", "", "debugger"),
    ("/bdb.py", "", "debugger"),
    ("/pydevd", "", "debugger"),
    ("/debugpy/", "", "debugger"),
    ("/IPython/", "", "debugger"),
    ("/code.py", "interact", "debugger"),
    ("/torch/_dynamo/", "", "compile"),
    ("/torch/_inductor/", "", "compile"),
    ("/triton/", "", "compile"),
    ("/torch/utils/cpp_extension.py", "", "compile"),
    ("/torch/serialization.py", "", "checkpoint"),
    ("/torch/distributed/checkpoint/", "", "checkpoint"),
    ("/safetensors/", "", "checkpoint"),
    ("", "save_pretrained", "checkpoint"),
    ("", "save_checkpoint", "checkpoint"),
    ("", "_save_checkpoint", "checkpoint"),
    *(
        (f"/{package}/", "", "network")
        for package in (
            *("huggingface_hub", "urllib", "urllib3", "requests", "httpx", "httpcore", "aiohttp", "grpc", "fsspec"),
            *("botocore", "wandb", "mlflow", "neptune", "comet_ml", "clearml", "swanlab"),
        )
    ),
    ("/http/client.py", "", "network"),
    ("/socket.py", "", "network"),
    ("/ssl.py", "", "network"),
    ("/torch/hub.py", "", "network"),
    ("/subprocess.py", "", "command"),
    ("/torch/utils/data/dataloader.py", "", "loader"),
    ("<frozen importlib._bootstrap", "", "import"),
    ("/threading.py", "", "lock"),
    ("/queue.py", "", "lock"),
)
WAITING_FUNCTIONS = {"sleep": "sleep", "acquire": "lock"}
DISTRIBUTED = f"{os.sep}torch{os.sep}distributed{os.sep}"
NO_CALLS = ("checkpoint", "launcher", "run.py", "elastic", "algorithms", "fsdp", "tensor", "pipelining")


def iter_frames(frame: FrameType | None) -> list[FrameType]:
    """The frames of a stack, innermost first."""
    found = []
    while frame is not None:
        found.append(frame)
        frame = frame.f_back
    return found


def make_stack_key(frames: list[FrameType]) -> int:
    """Equal for two looks at a thread that stands at the same line, in the same functions.

    A wait that polls (a loader's for its workers, every 5 s) makes new frames of the same functions each time.
    """
    return hash(tuple((id(frame.f_code), frame.f_lineno) for frame in frames))


def name_activity(frames: list[FrameType], source_line: str) -> str:
    """The first of `KNOWN` that is on the stack; else sleep or lock by the line that runs; else empty."""
    words = [(frame.f_code.co_filename.replace(os.sep, "/"), frame.f_code.co_name) for frame in reversed(frames)]
    for part, function, name in KNOWN:
        if any(part in file and function in ("", called) for file, called in words):
            return name
    return next((name for word, name in WAITING_FUNCTIONS.items() if f"{word}(" in source_line), "")


def find_distributed_call(frames: list[FrameType]) -> str:
    """The function of torch.distributed that the thread is in, as the program calls it; empty if it is in none."""
    found = ""
    for frame in frames:
        file = frame.f_code.co_filename
        if DISTRIBUTED in file and not file.partition(DISTRIBUTED)[2].startswith(NO_CALLS):
            if frame.f_code.co_name != "wrapper":  # what times and logs each call
                found = frame.f_code.co_name
        elif found:
            break
    return found.lstrip("_")
