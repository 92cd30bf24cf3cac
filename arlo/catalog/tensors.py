"""Inputs that are not by token: pictures, texts, and numbers that belong to a row as a whole.

Rows of tokens differ in length. So do rows of tensors if the first dim of one tensor is -1: that dim is the length.
Otherwise all rows of the model are alike, by the `length_rule` of its first tensor: `constant` is 1, and `patches:P`
counts squares of P x P over the last two dims, plus one token, as in vision transformers. Another resolution is another
model.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

if TYPE_CHECKING:
    from arlo.catalog.manifest import InputTensor

DATATYPES = (
    "BOOL", "UINT8", "INT8", "UINT16", "INT16", "FP16", "BF16", "UINT32", "INT32", "FP32", "UINT64", "INT64", "FP64",
    "BYTES",
)  # fmt: skip
_ITEM = {name: int("".join(filter(str.isdigit, name)) or 8) // 8 for name in DATATYPES if name != "BYTES"}
MAX_DIMS = 7
MAX_ROW_BYTES = 1 << 30
# For models that are compiled here.
DTYPES: dict[str, Any] = {
    "FP32": np.float32,
    "FP16": np.float16,
    "UINT8": np.uint8,
    "INT32": np.int32,
    "INT64": np.int64,
}
_RULE = re.compile(r"constant|patches:([1-9][0-9]{0,4})")


def row_length(inputs: Sequence[InputTensor]) -> int | None:
    """The tokens of every row; None if rows differ in length.

    ValueError for an unknown rule, or one that does not suit its dims.
    """
    if not inputs or any(tensor.role != "tensor" or tensor.dims[:1] == (-1,) for tensor in inputs):
        return None
    first = next((tensor for tensor in inputs if not tensor.optional), inputs[0])
    rule = _RULE.fullmatch(first.length_rule)
    if rule is None:
        raise ValueError(f"input {first.name!r} has the length_rule {first.length_rule!r}; it is constant or patches:P")
    if rule[1] is None:
        return 1
    side = int(rule[1])
    if len(first.dims) < 2 or any(size % side for size in first.dims[-2:]):
        raise ValueError(f"input {first.name!r} of {list(first.dims)} has no whole patches of {side} x {side}")
    return first.dims[-2] // side * (first.dims[-1] // side) + 1


def sample(tensor: InputTensor, seed: Sequence[int]) -> NDArray[Any]:
    """A row [dims] of numbers drawn from `seed`, always the same, for verifying and measuring a model."""
    draws, dtype = np.random.default_rng(list(seed)), DTYPES[tensor.datatype]
    if np.issubdtype(dtype, np.floating):
        return draws.standard_normal(tensor.dims, np.float32).astype(dtype)
    return draws.integers(0, tensor.vocabulary or 256, tensor.dims).astype(dtype)


def tensor_problems(inputs: Sequence[InputTensor]) -> Iterator[str]:
    """The reasons why the inputs of role tensor cannot be served."""
    alone = all(tensor.role == "tensor" for tensor in inputs)
    for tensor in inputs:
        if tensor.role != "tensor":
            if tensor.dims or tensor.length_rule:
                yield f"input {tensor.name!r} has dims or a length_rule, and is no tensor"
            continue
        if tensor.datatype not in DATATYPES:
            yield f"input {tensor.name!r} is {tensor.datatype!r}; tensors are {', '.join(DATATYPES)}"
            return
        if tensor.datatype == "BYTES":
            if not alone or tensor.dims not in ((), (1,)):
                yield f"input {tensor.name!r} is BYTES: one element a row, and never beside token ids"
            continue
        ragged = alone and tensor.dims[:1] == (-1,)
        sizes = tensor.dims[1:] if ragged else tensor.dims
        if len(tensor.dims) > MAX_DIMS or not all(isinstance(size, int) and size > 0 for size in sizes):
            yield f"input {tensor.name!r} has the dims {list(tensor.dims)}; they are at most {MAX_DIMS}, each above 0"
        elif math.prod(sizes) * _ITEM[tensor.datatype] > MAX_ROW_BYTES:
            yield f"input {tensor.name!r} has more than {MAX_ROW_BYTES >> 20} MiB a row"
