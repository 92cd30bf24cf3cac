"""Triton model code: an encoder in torch, on the CPU or (instance groups of KIND_GPU) on a GPU.

`batching.py`, `session.py`, `encoder.py`, `foreign.py` and the model folder lie next to this file. Parameters of
config.pbtxt: `kinds`, `lengths`, `packed_from` (see session.py), `threads`.
"""

from __future__ import annotations

import os

# Both are read when torch is loaded. Threads that wait must sleep: instances share the cores of a machine.
os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")
# Inductor compiles in this process: it would start others by the name of the executable, which here is Triton's.
os.environ.setdefault("TORCHINDUCTOR_COMPILE_THREADS", "1")

from .batching import Encoder, Instance
from .session import Session


class TritonPythonModel(Encoder):
    """See batching.Encoder. An id outside the vocabulary is a ValueError, the caller's mistake."""

    def open(self, instance: Instance) -> Session:
        """The session, on the device of the instance."""
        return Session(
            instance.folder,
            device=instance.device,
            device_id=instance.device_id,
            threads=instance.threads,
            kinds=instance.parameters.get("kinds", "static").split(","),
            lengths=instance.lengths,
            max_rows=instance.max_rows,
            packed_from=instance.whole("packed_from", instance.parameters.get("packed_from", "0"), least=0),
        )
