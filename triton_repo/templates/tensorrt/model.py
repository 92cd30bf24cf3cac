"""Triton model code: an encoder as an engine of TensorRT or TensorRT-RTX, on the GPU of the instance.

`batching.py`, `session.py` and `model.plan` lie next to this file. The parameter `package` of config.pbtxt is tensorrt
or tensorrt-rtx. Kernels that TensorRT-RTX compiles for this GPU are kept below `$ARLO_CACHE`, else `~/.cache/arlo`. A
token id outside the vocabulary goes undetected: TensorRT does not check it.
"""

from __future__ import annotations

from .batching import Encoder, Instance
from .session import PACKAGES, Session, kernels_folder


class TritonPythonModel(Encoder):
    """See Encoder. Only outputs that are asked for leave the GPU."""

    def open(self, instance: Instance) -> Session:
        """The session, on the GPU of the instance."""
        package = instance.parameters.get("package", "")
        if package not in PACKAGES:
            raise ValueError(
                f"the parameter package is {package!r}, not one of {', '.join(PACKAGES)}: build the repository again"
            )
        plan = instance.folder / "model.plan"
        return Session(plan, package, device_id=instance.device_id, kernels=kernels_folder())
