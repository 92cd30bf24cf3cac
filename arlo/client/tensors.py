"""Rows of a fixed size, as pictures are: which inputs take them, and how they are read."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any, TypeAlias

import numpy as np

from arlo.client.errors import InvalidRequestError
from arlo.client.model import TensorInfo
from arlo.client.rows import PreparedRow, RowReader, as_row, with_number

_NO_IDS = np.zeros(1, np.int64)  # a row of tensors counts as one, whatever it is
_TOKENS = ("INT64", "INT32")


def sized_inputs(inputs: Sequence[TensorInfo]) -> dict[str, TensorInfo]:
    """The inputs of a fixed size for each row: all of a model without token ids; of others what stands beside them."""
    inputs = [each for each in inputs if each.datatype != "BYTES"]
    of_tokens = [each for each in inputs if each.datatype in _TOKENS and len(each.shape) == 2]
    if len(of_tokens) == len(inputs) and all(each.shape[1] > 0 for each in inputs):  # a Triton model of one length
        return {}
    return {each.name: each for each in inputs if all(size > 0 for size in each.shape[1:])}


@dataclasses.dataclass(frozen=True, slots=True)
class TensorReader:
    """Checks rows of a model that takes tensors alone."""

    inputs: Mapping[str, tuple[TensorInfo, np.dtype[Any]]]
    tasks: tuple[str, ...] = ()  # by their numbers

    def read(self, rows: Sequence[Any]) -> list[PreparedRow]:
        """All rows in their order. InvalidRequestError."""
        if isinstance(rows, str | bytes | Mapping):
            raise InvalidRequestError("infer_batch takes a list of rows; use infer for one")
        if len(rows) == 0:
            raise InvalidRequestError("no rows: give at least one")
        return [self.read_one(row) for row in rows]

    def read_one(self, row: Any) -> PreparedRow:
        """One row: an array, or a mapping of input names to arrays."""
        if not isinstance(row, Mapping):
            needed = [name for name, (tensor, _) in self.inputs.items() if not tensor.optional]
            if len(needed) != 1:
                raise InvalidRequestError(f"give a mapping with {', '.join(needed) or 'some input'}")
            row = {needed[0]: row}
        row = with_number(row, self.tasks)
        unknown = [name for name in row if name not in self.inputs]
        if unknown:
            raise InvalidRequestError(f"there is no input {', '.join(unknown)}; there are {', '.join(self.inputs)}")
        return PreparedRow(_NO_IDS, {name: as_row(values, *self.inputs[name]) for name, values in row.items()})


Reader: TypeAlias = RowReader | TensorReader
"""What reads the rows of a model."""
