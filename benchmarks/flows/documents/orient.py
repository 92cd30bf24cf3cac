"""Model code for Triton: which way up lines are, by the classifier of PP-OCR, and the lines themselves, turned.

Input `strip` [rows, columns, 48]; outputs `logits` [rows, 2] (0 or 180 degrees) and `upright` (BYTES, one strip a row).
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import triton_python_backend_utils as pb_utils

HEIGHT, WIDTH = 48, 192  # that the network sees: the beginning of a line, at half its width
SURE = 0.9  # from which a line is turned


class TritonPythonModel:
    """See the module."""

    def initialize(self, args: dict[str, str]) -> None:
        """Open the classifier, which lies beside this file."""
        import onnxruntime

        options = onnxruntime.SessionOptions()
        options.intra_op_num_threads = options.inter_op_num_threads = 1
        path = Path(args["model_repository"]) / args["model_version"] / "model.onnx"
        self._session = onnxruntime.InferenceSession(str(path), options, providers=["CPUExecutionProvider"])

    def execute(self, requests: list[Any]) -> list[Any]:
        """One response to each request."""
        return [self._answer(request) for request in requests]

    def _answer(self, request: Any) -> Any:
        strips = pb_utils.get_input_tensor_by_name(request, "strip").as_numpy()
        rows, columns, _ = strips.shape
        seen = np.zeros((rows, HEIGHT, WIDTH), np.float32)
        wide = min(columns // 2, WIDTH)
        halves = strips[:, : 2 * wide].astype(np.float32).reshape(rows, wide, 2, HEIGHT).mean(2)
        seen[:, :, :wide] = (halves.transpose(0, 2, 1) / 255 - 0.5) / 0.5
        name = self._session.get_inputs()[0].name
        shares = self._session.run(None, {name: np.repeat(seen[:, None], 3, axis=1)})[0]
        turned = [strip[::-1, ::-1] if share[1] > SURE else strip for strip, share in zip(strips, shares, strict=True)]
        return pb_utils.InferenceResponse(
            [
                pb_utils.Tensor("logits", np.log(np.maximum(shares, 1e-9)).astype(np.float32)),
                pb_utils.Tensor(
                    "upright",
                    np.asarray([np.ascontiguousarray(one).tobytes() for one in turned], np.object_).reshape(-1, 1),
                ),
            ]
        )
