"""The floating-point operations of an operator by its input shapes; a multiply-add counts as two."""

from math import prod
from typing import Any

CONVOLUTION = "aten::convolution"
DIMENSIONS = 8  # of a tensor; shapes with more are not true, and their product may take for ever
LONG = 1 << 16  # bytes of all shapes
LARGEST = 1 << 60  # of one call; shapes that say more are not true


def per_call(name: str, dims: bytes, concrete: bytes) -> int:
    """Those of one call; 0 for what is not counted, or does not say.

    Counted are matrix products, convolutions, attention and what autograd calls for them: each only by the operator
    that does the work, so that none counts twice. dims, concrete: JSON, as torch writes it.
    """
    count = COUNTS.get(name)
    if count is None or len(dims) + len(concrete) > LONG:
        return 0
    import msgspec

    try:
        shapes = msgspec.json.decode(dims)
        if any(len(one) > DIMENSIONS for one in shapes):
            return 0
        more = msgspec.json.decode(concrete) if concrete else []
        found = count(shapes, more)
    except (msgspec.DecodeError, RecursionError, ValueError, TypeError, AttributeError, LookupError, ArithmeticError):
        return 0  # shapes that are none
    return found if isinstance(found, int) and 0 < found < LARGEST else 0


def _count_matmul(one: list[int], other: list[int]) -> int:
    """Of matrices, or of batches of them."""
    return 2 * prod(one) * other[-1] if one[-1] == other[-2] and len(one) == len(other) < 4 else 0


def _count_convolution(shapes: list[list[int]], concrete: list[Any]) -> int:
    (batch, _, *sides), (wide, channels, *kernel) = shapes[0], shapes[1]
    stride, padding, dilation = (_parse_numbers(concrete[at], len(kernel)) for at in (3, 4, 5))
    if concrete[6] == "True":  # transposed: each value of the input meets the whole kernel
        return 2 * batch * prod(sides) * wide * channels * prod(kernel)
    out = [
        (side + 2 * pad - gap * (size - 1) - 1) // step + 1
        for side, size, step, pad, gap in zip(sides, kernel, stride, padding, dilation, strict=True)
    ]
    return 2 * batch * wide * prod(out) * channels * prod(kernel)


def _parse_numbers(text: str, count: int) -> list[int]:
    found = [int(word) for word in text.strip("[]").split(",")]
    return found * count if len(found) == 1 else found


def _convolution_backward(shapes: list[list[int]], concrete: list[Any]) -> int:
    """Of the input and of the weight, where each is wanted; each as much as the convolution itself."""
    (batch, _, *out), (_, _, *sides), (wide, channels, *kernel) = shapes[:3]
    wanted = [word.strip() for word in concrete[-1].strip("[]").split(",")[:2]].count("True")
    return wanted * 2 * batch * prod(sides if concrete[7] == "True" else out) * wide * channels * prod(kernel)


def _count_attention(shapes: list[list[int]], _: list[Any]) -> int:
    """Query times key, and that times value: batch, heads, length, size."""
    query, key, value = shapes[:3]
    return 2 * prod(query[:-1]) * key[-2] * (query[-1] + value[-1])


def _attention_backward(shapes: list[list[int]], _: list[Any]) -> int:
    """Five products of the size of those two, one of them made anew."""
    return _count_attention(shapes[1:4], _) * 5 // 2


COUNTS = {
    "aten::mm": lambda shapes, _: _count_matmul(shapes[0], shapes[1]),
    "aten::bmm": lambda shapes, _: _count_matmul(shapes[0], shapes[1]),
    "aten::addmm": lambda shapes, _: _count_matmul(shapes[1], shapes[2]),
    "aten::_addmm_activation": lambda shapes, _: _count_matmul(shapes[1], shapes[2]),
    "aten::baddbmm": lambda shapes, _: _count_matmul(shapes[1], shapes[2]),
    CONVOLUTION: _count_convolution,
    "aten::convolution_backward": _convolution_backward,
    **dict.fromkeys(
        (
            "aten::_scaled_dot_product_flash_attention",
            "aten::_scaled_dot_product_flash_attention_for_cpu",
            "aten::_scaled_dot_product_efficient_attention",
            "aten::_scaled_dot_product_cudnn_attention",
        ),
        _count_attention,
    ),
    **dict.fromkeys(
        (
            "aten::_scaled_dot_product_flash_attention_backward",
            "aten::_scaled_dot_product_flash_attention_for_cpu_backward",
            "aten::_scaled_dot_product_efficient_attention_backward",
            "aten::_scaled_dot_product_cudnn_attention_backward",
        ),
        _attention_backward,
    ),
}
