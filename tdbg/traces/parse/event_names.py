"""The names that traces use for their events and categories, defined here alone."""

import re

FAR = 4e15  # microseconds; a time beyond it is none
LARGEST = 1 << 62  # bytes, ranks ...
STEP = re.compile(r"ProfilerStep#(\d{1,18})")
OPERATOR = "cpu_op"
MEMORY = "[memory]"
MODULE = "nn.Module: "
ANNOTATION = "user_annotation"
FRAMES = "python_function"

# Parts of a step, in the order of the bar.
INPUT, H2D, FORWARD, BACKWARD, OPTIMIZER = "input", "h2d", "forward", "backward", "optimizer"
COMMUNICATION, COPY, IDLE, OTHER = "communication", "copy", "idle", "other"
BAR = (INPUT, H2D, FORWARD, BACKWARD, OPTIMIZER, COMMUNICATION, COPY, IDLE, OTHER)

LOADER = "enumerate(DataLoader)#"
LOADER_ALONE = "_SingleProcessDataLoaderIter"
SAVES = "tdbg.save: "  # spans of `tdbg profile` around a save
OPTIMIZERS = ("Optimizer.step#", "Optimizer.zero_grad#")
TOGETHER = ("aten::_foreach_", "aten::_fused_")  # operators on many tensors
ELEMENTWISE = (  # in place, on one
    "aten::add_",
    "aten::mul_",
    "aten::addcmul_",
    "aten::addcdiv_",
    "aten::lerp_",
    "aten::sqrt",
    "aten::sub_",
)
PRODUCTS = (  # matrix products and convolutions, as a program calls them
    *("aten::linear", "aten::matmul", "aten::mm", "aten::bmm", "aten::addmm", "aten::baddbmm", "aten::einsum"),
    *("aten::conv1d", "aten::conv2d", "aten::conv3d", "aten::scaled_dot_product_attention"),
)
AUTOGRAD = "autograd::engine::evaluate_function"
COLLECTIVES = ("c10d::", "nccl:", "gloo:", "mpi:", "ucc:", "xccl:", "hccl:", "record_param_comms", "c10d_functional")
COLLECTIVE_KERNEL = re.compile(r"nccl|rccl|oneccl|hccl_|ccl_kernel", re.IGNORECASE)
RUNTIMES = (
    "cuda_runtime",
    "cuda_driver",
    "xpu_runtime",
    "mtia_ccp_events",
    "privateuse1_runtime",
    "privateuse1_driver",
)
KERNELS = ("kernel", "mtia_kernel")
LEFT_OUT = frozenset(  # what torch writes besides, and nobody asks for
    (
        "",
        "ac2g",
        "async_cpu_to_gpu",
        "fwdbwd",
        "gpu_user_annotation",
        "overhead",
        "cuda_sync",
        "cuda_event",
        "cpu_instant_event",
        "instant",
        "trace",
        "async",
        "external",
        "forward",
        "backward",
        "cuda_profiler_range",
    )
)
COPIES, FILLS = "gpu_memcpy", "gpu_memset"
LAUNCH = re.compile(r"Launch|Memcpy|Memset|Graph")
WAITS = re.compile(r"(cuda|hip|xpu)?(Stream|Device|Event)Synchronize$")
DEVICE_WAIT = "DeviceSynchronize"
MATRIX = re.compile(
    r"(?<!fb)gem[mv]|conv(?!er)|wgrad|dgrad|cutlass|xmma|nvjet|_scudnn|implicit|winograd|fprop", re.IGNORECASE
)
# Names that cuBLAS, cuDNN and CUTLASS give kernels on tensor cores; a name is all there is to go by.
TENSOR_CORES = re.compile(
    r"tensorop|s1688|s16816|h1688|h16816|884|16832|wgmma|hmma|imma|bf16_s|xmma|sm90|nvjet|tf32", re.I
)
# float32 on the usual units, although the rest of the name looks like the above.
PLAIN = re.compile(r"ffma|simt|gemm_f32f32_f32f32_f32", re.IGNORECASE)
# Frames that are nobody's own: whoever called them is meant.
FOREIGN = re.compile(
    r"(torch|tdbg)[/\\]|<|nn\.Module: |.*site-packages|"
    r"(contextlib|threading|functools|runpy|queue|selectors|typing|enum|abc|re|copy|logging/.*|multiprocessing/.*|"
    r"concurrent/.*|importlib/.*)(\.py)?\("
)

# Python's frames that write to the disk, and wait for it.
SAVE = re.compile(r"torch[/\\]serialization\.py\(\d+\): save$|safetensors.*: save|save_checkpoint|fsync")

# The frame in which a program waits for the next batch.
NEXT_BATCH = re.compile(r"torch[/\\]utils[/\\]data[/\\]dataloader\.py\(\d+\): __next__$")


# Words that a category ends with in traces of older profilers and of other devices -> the category of today.
ENDINGS = {
    "kernel": "kernel",
    "kernels": "kernel",
    "memcpy": COPIES,
    "memset": FILLS,
    "runtime": "cuda_runtime",
    "driver": "cuda_runtime",
    "ccp_events": "cuda_runtime",
}
KNOWN = frozenset((OPERATOR, ANNOTATION, FRAMES, *KERNELS, COPIES, FILLS, *RUNTIMES)) | LEFT_OUT


def normalize_category(written: str) -> str:
    """A category as today's torch writes it: ``Operator`` is ``cpu_op``, ``Memcpy`` and ``xpu_memcpy`` ``gpu_memcpy``."""
    name = written.strip().lower().replace(" ", "_")
    if name in ("operator", "cpuop"):
        return OPERATOR
    if name in KNOWN:
        return name
    return next((today for ending, today in ENDINGS.items() if re.search(rf"(^|_){ending}$", name)), written)


def whole_number(value: object) -> int | None:
    """A whole number as it stands in a trace; None for what is none, and for one that nothing has so much of."""
    return value if isinstance(value, int) and -LARGEST < value < LARGEST else None


def short_frame(frame: str) -> str:
    """What a frame of Python is called for short: ``torch.save``, ``fsync``; else as it is."""
    if "serialization.py" in frame:
        return "torch.save"
    return "fsync" if "fsync" in frame else frame


def parse_copy_direction(name: str) -> str:
    """``HtoD``, ``DtoH`` ... of the name of a copy; empty if it tells none."""
    match = re.search(r"\b([HDP]to[HDP])\b", name)
    return match[1] if match else ""


def classify_kernel(name: str) -> str:
    """What a kernel does, by its name: ``communication``, ``tensor``, ``matrix`` or ``other``."""
    if COLLECTIVE_KERNEL.search(name):
        return COMMUNICATION
    if MATRIX.search(name):
        return "tensor" if TENSOR_CORES.search(name) and not PLAIN.search(name) else "matrix"
    return OTHER
