"""Triton model code: an encoder in torch, on the CPU or (instance groups of KIND_GPU) on a GPU.

`batching.py`, `session.py`, `encoder.py`, `foreign.py` and the model folder lie beside this file. Parameters of
config.pbtxt: `kinds`, `lengths`, `packed_from`, `budget` (see session.py), `threads`. Threads: the environment variable
ARLO_THREADS, else the parameter, else 1.
"""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import triton_python_backend_utils as pb_utils

# Both are read when torch is loaded. Threads that wait must sleep: instances share the cores of a machine.
os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")
# Inductor compiles in this process: it would start others by the name of the executable, which here is Triton's.
os.environ.setdefault("TORCHINDUCTOR_COMPILE_THREADS", "1")

from .batching import Encoder
from .session import Session


class TritonPythonModel(Encoder):
    """See batching.Encoder. An id outside the vocabulary is a ValueError, the caller's mistake."""

    def initialize(self, args: dict[str, str]) -> None:
        """Load the weights, compile and record, so that no request pays for what happens once."""
        config = json.loads(args["model_config"])
        self.configure(config)
        path = Path(args["model_repository"]) / args["model_version"]
        named = {name: value.get("string_value", "") for name, value in config.get("parameters", {}).items()}
        gpu = args.get("model_instance_kind") == "GPU"
        try:
            self._session = Session(
                path,
                device="cuda" if gpu else "cpu",
                device_id=int(args.get("model_instance_device_id") or 0) if gpu else 0,
                threads=_whole("threads", os.environ.get("ARLO_THREADS") or named.get("threads", "1")),
                kinds=named.get("kinds", "static").split(","),
                lengths=tuple(_whole("lengths", length) for length in named.get("lengths", "").split(",") if length),
                max_rows=max(1, int(config.get("max_batch_size") or 1)),
                packed_from=_whole("packed_from", named.get("packed_from", "0"), least=0),
                budget=_whole("budget", named.get("budget", "16384")),
            )
            self.check()
            self._session.warm_up()
        except Exception as error:
            raise pb_utils.TritonModelException(f"{path} does not open in torch: {error}") from error
        if self._session.note:
            pb_utils.Logger.log_info(f"{config.get('name')}: {self._session.note}")

    def finalize(self) -> None:
        """Give the memory back."""
        self._session.close()


def _whole(name: str, text: Any, *, least: int = 1) -> int:
    if not str(text).isdigit() or int(text) < least:
        raise pb_utils.TritonModelException(f"{name} {text!r} must be a whole number of {least} or more")
    return int(text)
