"""Triton model code: an encoder as an engine of TensorRT or TensorRT-RTX, on the GPU of the instance.

`batching.py`, `session.py` and `model.plan` lie beside this file. Parameters of config.pbtxt: `package` (tensorrt,
tensorrt-rtx), `cuda_graphs` (shapes whose CUDA graph is kept, 0: none; default 128). Kernels that TensorRT-RTX compiles
for this GPU are kept below `$ARLO_CACHE`, else `~/.cache/arlo`. A token id outside the vocabulary is not noticed:
TensorRT does not check it.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import triton_python_backend_utils as pb_utils

from .batching import Encoder
from .session import MAX_GRAPHS, PACKAGES, Session, kernels_folder


class TritonPythonModel(Encoder):
    """See Encoder. Only outputs that are asked for leave the GPU."""

    def initialize(self, args: dict[str, str]) -> None:
        """Open the engine and run every usual shape, so that no request pays for what happens once."""
        config = json.loads(args["model_config"])
        self.configure(config)
        path = Path(args["model_repository"]) / args["model_version"] / "model.plan"
        package, graphs = _parameters(config)
        try:
            self._session = Session(
                path,
                package,
                device_id=int(args.get("model_instance_device_id") or 0),
                max_graphs=graphs,
                kernels=kernels_folder(),
            )
            self.check()
            self._session.warm_up()
        except Exception as error:
            raise pb_utils.TritonModelException(f"{path} does not open in {package}: {error}") from error
        if self._session.note:
            pb_utils.Logger.log_info(f"{config.get('name')}: {self._session.note}")

    def finalize(self) -> None:
        """Give the engine's memory back."""
        self._session.close()


def _parameters(config: dict[str, Any]) -> tuple[str, int]:
    """The package and the number of CUDA graphs that config.pbtxt asks for."""
    named = {name: value.get("string_value", "") for name, value in config.get("parameters", {}).items()}
    package, graphs = named.get("package", ""), named.get("cuda_graphs", str(MAX_GRAPHS))
    if package not in PACKAGES:
        raise pb_utils.TritonModelException(
            f"the parameter package is {package!r}, not one of {', '.join(PACKAGES)}: build the repository again"
        )
    if not graphs.isdigit():
        raise pb_utils.TritonModelException(f"the parameter cuda_graphs is {graphs!r}, not a whole number")
    return package, int(graphs)
