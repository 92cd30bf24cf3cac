"""Triton model code: an encoder in ONNX Runtime, on the CPU or (instance groups of KIND_GPU) on a GPU.

`batching.py`, `session.py`, `model.onnx` and `weights.bin` lie next to this file. Parameters of config.pbtxt:
`threads`; `lengths`, whose runs are recorded, for a model of any length (`arlo compile --profiles`).
"""

from __future__ import annotations

from onnxruntime.capi.onnxruntime_pybind11_state import InvalidArgument

from .batching import Encoder, Instance
from .session import Session


class TritonPythonModel(Encoder):
    """See Encoder. An id outside the vocabulary is an InvalidArgument, the caller's mistake."""

    mistakes = (ValueError, InvalidArgument)

    def open(self, instance: Instance) -> Session:
        """The session, on the device of the instance."""
        return Session(
            instance.folder / "model.onnx",
            threads=instance.threads,
            device=instance.device,
            device_id=instance.device_id,
            max_rows=instance.max_rows,
            record=instance.fixed or bool(instance.lengths),
            lengths=instance.lengths,
        )
