"""Model code for Triton: the text of lines, by the recogniser of PP-OCRv4, and how sure it is of them on average.

Input `strip` [rows, columns, 48]; outputs `text` (BYTES) and `confidence`, one each a row. Parameter `squeeze`: columns
of which one is made, so that the network has less to look at.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import triton_python_backend_utils as pb_utils


class TritonPythonModel:
    """See the module."""

    def initialize(self, args: dict[str, str]) -> None:
        """Open the recogniser, which lies beside this file and has its alphabet inside."""
        import onnxruntime

        config = json.loads(args["model_config"])
        options = onnxruntime.SessionOptions()
        options.intra_op_num_threads = options.inter_op_num_threads = 1
        path = Path(args["model_repository"]) / args["model_version"] / "model.onnx"
        self._session = onnxruntime.InferenceSession(str(path), options, providers=["CPUExecutionProvider"])
        self._squeeze = float(config["parameters"]["squeeze"]["string_value"])
        listed = self._session.get_modelmeta().custom_metadata_map["character"].splitlines()
        self._alphabet = ["", *listed, " "]

    def execute(self, requests: list[Any]) -> list[Any]:
        """One response to each request."""
        return [self._answer(request) for request in requests]

    def _answer(self, request: Any) -> Any:
        strips = pb_utils.get_input_tensor_by_name(request, "strip").as_numpy().astype(np.float32)
        columns = strips.shape[1]
        kept = max(16, round(columns / self._squeeze))
        if kept != columns:
            edges = np.linspace(0, columns, kept + 1).round().astype(int)
            starts = np.minimum(edges[:-1], columns - 1)
            wide = np.maximum(np.diff(edges), 1).astype(np.float32)
            strips = np.add.reduceat(strips, starts, axis=1) / wide[None, :, None]
        pixels = np.repeat(((strips / 255 - 0.5) / 0.5).transpose(0, 2, 1)[:, None], 3, axis=1)
        shares = self._session.run(None, {self._session.get_inputs()[0].name: np.ascontiguousarray(pixels)})[0]
        texts, sure = [], []
        for row in shares:
            best = row.argmax(-1)
            fresh = (best != 0) & np.concatenate([[True], best[1:] != best[:-1]])
            texts.append("".join(self._alphabet[i] for i in best[fresh]).encode())
            sure.append(float(row.max(-1)[fresh].mean()) if fresh.any() else 0.0)
        return pb_utils.InferenceResponse(
            [
                pb_utils.Tensor("text", np.asarray(texts, np.object_).reshape(-1, 1)),
                pb_utils.Tensor("confidence", np.asarray(sure, np.float32).reshape(-1, 1)),
            ]
        )
