"""What torch's most common errors mean, and what to do about each."""

import re
from typing import NamedTuple

from tdbg.core.lazy_pattern import lazy_pattern

MAX_MESSAGE = 2000  # characters that are looked at: an event has no more


class KnownError(NamedTuple):
    """An error of torch by the beginning of its text, with its usual cause."""

    text: str  # a regular expression
    cause: str
    try_next: str


KNOWN_ERRORS = (
    KnownError(
        r"element 0 of tensors does not require grad",
        "the loss depends on no parameter that has gradients: it was detached or made of plain numbers (`.item()`,"
        " `.data`, argmax), was computed under `torch.no_grad()`, or every parameter is frozen",
        "print `.grad_fn` of each value from the model's output to the loss: the first that is None was cut off",
    ),
    KnownError(
        r"Trying to backward through the graph a second time",
        "backward went a second time through a graph that the first had freed: a loss sent backward twice, or a hidden"
        " state or running sum that is carried from step to step",
        "detach what is carried over (`state = state.detach()`); `retain_graph=True` only where one graph is meant to be"
        " used twice",
    ),
    KnownError(
        r"one of the variables needed for gradient computation has been modified by an inplace operation",
        "a value that backward needs was changed in place after its use: `+=`, `x[...] = `, `relu_`, or an optimizer's"
        " step between the forward pass and backward",
        "run it again with `-f AUTOGRAD_ANOMALY`, which shows the forward line; then write that out of place",
    ),
    KnownError(
        r"a leaf Variable that requires grad is being used in an in-place operation",
        "a parameter is changed in place while autograd records",
        "change it under `torch.no_grad()`",
    ),
    KnownError(
        r"grad can be implicitly created only for scalar outputs",
        "the loss has more than one element: `reduction='none'`, or one element for each device of DataParallel",
        "call `.mean()` or `.sum()` on it before backward",
    ),
    KnownError(
        r"Target -?\d+ is out of bounds",
        "a label lies outside of 0 to C-1, where C is the number of outputs: labels counted from 1, a null label that is"
        " not `ignore_index`, or a last layer that is too small",
        "print the smallest and the largest label beside the size of the last layer",
    ),
    KnownError(
        r"index out of range in self",
        "an index is negative, or not less than the size of its table: new tokens without a larger embedding, or a sequence"
        " longer than the table of positions",
        "print the smallest and the largest index beside `num_embeddings`",
    ),
    KnownError(
        r"Expected more than 1 value per channel when training",
        "batch norm in train mode got one value per channel: mostly a last batch of one sample",
        "pass `drop_last=True` to the DataLoader, or call `model.eval()` where nothing is trained",
    ),
    KnownError(
        r"(mat1 and mat2 must have the same dtype|expected m1 and m2 to have the same dtype"
        r"|Input type \(\S+\) and (weight|bias) type \(\S+\) should be the same)",
        "the input has another dtype, or is on another device, than the weights; arrays of numpy are float64 by default",
        "convert it: `x.to(weight.device, weight.dtype)`, or `.float()` where the dataset makes it",
    ),
    KnownError(
        r"(Expected all tensors to be on the same device|Tensor on device \S+ is not on the expected device)",
        "one tensor was not moved to the device of the others: a batch, a target, or one that forward makes itself",
        "move it with `.to(device)`; register the constants of a module with `register_buffer`",
    ),
    KnownError(
        r"stack expects each tensor to be equal size",
        "the samples of a batch have different shapes, which the default `collate_fn` cannot stack",
        "pad or crop them to one shape, in the dataset or in a `collate_fn` of your own",
    ),
    KnownError(
        r"Error\(s\) in loading state_dict for ",
        "the checkpoint is of a model with other names or shapes; a prefix `module.` comes from DistributedDataParallel,"
        " `_orig_mod.` from torch.compile",
        "save and load the state of the unwrapped model; `strict=False` leaves what does not fit at its initial value",
    ),
    KnownError(
        r"Weights only load failed",
        "the file holds more than tensors and plain values, and `torch.load` takes no other objects by default",
        "save `state_dict()` instead of whole objects, or name the classes in `torch.serialization.add_safe_globals`;"
        " `weights_only=False` runs code from the file",
    ),
    KnownError(
        r"Expected to have finished reduction in the prior iteration",
        "parameters of the DistributedDataParallel model had no gradient in the step before: what they compute is not part"
        " of the loss, at least on this rank",
        "use every output in the loss, or pass `find_unused_parameters=True`; TORCH_DISTRIBUTED_DEBUG=DETAIL names the"
        " parameters",
    ),
    KnownError(
        r"unscale_\(\) has already been called on this optimizer",
        "`scaler.unscale_` was called twice between two calls of `scaler.update`: with gradient accumulation, or by a"
        " trainer and again by hand",
        "call it once, just before clipping, in steps that update",
    ),
    KnownError(
        r"(CUDA error: )?device-side assert triggered",
        "a kernel refused a value, mostly a label or a token out of range, some operations before the line that is named",
        "run with CUDA_LAUNCH_BLOCKING=1, or one batch on the CPU: both name the line",
    ),
    KnownError(
        r"DataLoader worker \(pid(\(s\))? [\d, ]+\) (is killed by signal|exited unexpectedly)",
        "a worker of the DataLoader was killed or crashed: mostly out of memory, or out of shared memory (/dev/shm)",
        "use fewer workers, or more shared memory (`docker run --shm-size`); `num_workers=0` shows an error of its own",
    ),
    KnownError(
        r"(received 0 items of ancdata|\[Errno 24\] Too many open files)",
        "the process has reached its limit of open files; each tensor that a worker sends takes one",
        "raise `ulimit -n`, or call `torch.multiprocessing.set_sharing_strategy('file_system')`",
    ),
    KnownError(
        r"all elements of (input|target) should be between 0 and 1",
        "`binary_cross_entropy` got a value that is no probability: a logit, or NaN",
        "pass logits to `binary_cross_entropy_with_logits`",
    ),
    KnownError(
        r"optimizer got an empty parameter list",
        "the model has no parameters that torch knows of: layers in a plain list or dict, or a generator that was used up",
        "hold the layers in `nn.ModuleList` or `nn.ModuleDict`",
    ),
    KnownError(
        r" {0,20}An attempt has been made to start a new process before the\s{1,20}current process has finished its"
        " bootstrapping",
        "the script starts processes when it is imported, and each of them imports it again",
        "put what it does below `if __name__ == '__main__':`",
    ),
)
PATTERNS = [lazy_pattern(rf"(?:^|Error: ){known.text}", re.MULTILINE) for known in KNOWN_ERRORS]


def explain_error(message: str) -> KnownError | None:
    """What is known of an error by its text; also of one that torch raises again, with the first one's traceback."""
    message = message[:MAX_MESSAGE]
    return next((known for known, pattern in zip(KNOWN_ERRORS, PATTERNS, strict=True) if pattern.search(message)), None)
