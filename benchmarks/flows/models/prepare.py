"""Triton model code: the step of an ensemble before a stage, which cuts and pads rows; written by
`arlo export-ensemble`. `rows.py` and `tensors.py` lie beside this file.

An ensemble has no conditions: what a guard would have ended goes on all the same, and pick.py leaves it out.
"""

from __future__ import annotations

import json
from typing import Any

import numpy as np
import triton_python_backend_utils as pb_utils

from .rows import padded, pieces, read_flow, rows_of
from .tensors import from_triton, to_triton


class TritonPythonModel:
    """One instance. In: ids, mask [rows, tokens]. Out: the same [pieces, length], and `parent` [pieces]."""

    def initialize(self, args: dict[str, str]) -> None:
        """Take the step from config.pbtxt."""
        self._step = read_flow(json.loads(args["model_config"]))

    def execute(self, requests: list[Any]) -> list[Any]:
        """Answer every request, in order."""
        return [self._answer(request) for request in requests]

    def _answer(self, request: Any) -> Any:
        step = self._step
        try:
            ids, mask = (from_triton(pb_utils.get_input_tensor_by_name(request, name)) for name in ("ids", "mask"))
            cut = [pieces(row, step["window"], step["stride"]) for row in rows_of(ids, mask)]
            made, there = padded([piece for each in cut for piece in each], step["length"], step["pad"])
        except ValueError as error:
            return pb_utils.InferenceResponse(error=pb_utils.TritonError(str(error), pb_utils.TritonError.INVALID_ARG))
        parent = np.repeat(np.arange(len(cut), dtype=np.int32), [len(each) for each in cut])
        return pb_utils.InferenceResponse(
            [
                to_triton("out_ids", made.astype(step["numpy"])),
                to_triton("out_mask", there.astype(step["numpy"])),
                to_triton("parent", parent),
            ]
        )
