"""Triton model code: an encoder in ONNX Runtime, on the CPU or (instance groups of KIND_GPU) on a GPU.

`batching.py`, `session.py`, `model.onnx` and `weights.bin` lie beside this file. Threads: the environment variable
ARLO_THREADS, else the model parameter `threads`, else 1.
"""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import triton_python_backend_utils as pb_utils
from onnxruntime.capi.onnxruntime_pybind11_state import InvalidArgument

from .batching import Encoder
from .session import Session


class TritonPythonModel(Encoder):
    """See Encoder. An id outside the vocabulary is an InvalidArgument, the caller's mistake."""

    mistakes = (ValueError, InvalidArgument)

    def initialize(self, args: dict[str, str]) -> None:
        """Open the session and run it, so that the first requests do not pay for allocations."""
        config = json.loads(args["model_config"])
        self.configure(config)
        path = Path(args["model_repository"]) / args["model_version"] / "model.onnx"
        max_rows = max(1, int(config.get("max_batch_size") or 1))
        threads = _threads(config)
        gpu = args.get("model_instance_kind") == "GPU"
        try:
            self._session = Session(
                path,
                threads=threads,
                device="cuda" if gpu else "cpu",
                device_id=int(args.get("model_instance_device_id") or 0) if gpu else 0,
                max_rows=max_rows,
                record=int(config["input"][0]["dims"][-1]) > 0 or bool(_lengths(config)),
                lengths=_lengths(config),
            )
            self.check()
        except Exception as error:
            raise pb_utils.TritonModelException(f"{path} does not open in ONNX Runtime: {error}") from error
        if self._session.note:
            pb_utils.Logger.log_info(f"{config.get('name')}: {self._session.note}")
        self._session.warm_up(max_rows, free_tokens=16)

    def finalize(self) -> None:
        """Give the engine's memory back."""
        self._session = None


def _lengths(config: dict[str, Any]) -> tuple[int, ...]:
    """Those whose runs are recorded, of a model of any length (`arlo compile --profiles`)."""
    text = config.get("parameters", {}).get("graph_lengths", {}).get("string_value") or ""
    return tuple(int(length) for length in text.split(",") if length)


def _threads(config: dict[str, Any]) -> int:
    text = os.environ.get("ARLO_THREADS") or config.get("parameters", {}).get("threads", {}).get("string_value") or "1"
    if not text.isdigit() or int(text) < 1:
        raise pb_utils.TritonModelException(f"threads {text!r} must be a whole number of 1 or more: see ARLO_THREADS")
    return int(text)
