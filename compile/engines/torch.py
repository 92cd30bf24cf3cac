"""torch: one process holds the weights once and runs rows padded to recorded shapes, padded as they come, or packed.

On a GPU, static shapes and buckets of packed tokens replay CUDA graphs of layers that inductor compiled; on the CPU the
same code runs as it is written. Triton serves the model folder by our model code in its Python backend.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from arlo.compile.cache import link_or_copy, tool_versions
from arlo.compile.engines.interface import EngineSettings, HostEngine, Serving, SessionRunner, check_runs
from arlo.compile.spec import RuntimeSpec
from arlo.errors import CompileError, ConfigError

# Tokens of a padded batch from which its rows are packed. On an H100 (benchmarks/results/nvidia-h100) graphs of fewer
# tokens take the same time padded or packed; on a CPU padding always costs.
PACKED_FROM = {"cuda": 2048, "cpu": 0}


class TorchRunner(SessionRunner):
    """A runner whose errors name the remedy, for example when code of transformers mixes precisions."""

    def run(self, inputs: Mapping[str, NDArray[np.int64]], outputs: Sequence[str]) -> dict[str, NDArray[np.float32]]:
        try:
            return super().run(inputs, outputs)
        except RuntimeError as error:
            raise CompileError(
                f"torch does not compute this model in {self.session.precision} ({error}): use --precision fp32, or "
                "--engine onnxruntime"
            ) from error


class TorchEngine(HostEngine):
    """See `interface.Engine`. It is built from a model folder (arlo.templates.torch.encoder), not from a graph."""

    name = package = "torch"
    graph, weights = "model.json", "weights.safetensors"

    def __init__(self, settings: EngineSettings) -> None:
        if settings.backend != "python":
            raise ConfigError("torch is served by our model code: use --backend python")
        self.settings = settings

    def versions(self) -> dict[str, str]:
        return tool_versions("torch")

    def lacks_cuda(self) -> str:
        import torch

        return "" if torch.cuda.is_available() else "this torch has no CUDA support: install a build that has it"

    def key(self) -> dict[str, Any]:
        return {"precision": self.settings.precision}

    def build_memory(self, weight_bytes: int) -> int:
        return (256 << 20) + weight_bytes  # the files are linked

    def serving(self, spec: RuntimeSpec) -> Serving:
        """Return the settings of our model code. A static or dynamic runtime has its shape as its only kind."""
        return Serving(
            backend="python",
            gpu=self.settings.device == "cuda",
            template="torch",
            parameters={
                "kinds": ",".join(self._kinds(spec)),
                "lengths": ",".join(map(str, spec.profiles or (spec.max_length,))),
                "packed_from": str(PACKED_FROM[self.settings.device]),
            },
        )

    def build(self, graph: Path, weights: Path, spec: RuntimeSpec, folder: Path, *, scratch: Path) -> dict[str, Any]:
        """Link the model folder together. Whether it can be packed was checked after the export (`kinds_of`)."""
        files = [graph, weights, *graph.parent.glob("config.json")]
        shared = [link_or_copy(path, folder / path.name) for path in files]
        return {"share": all(shared), "notes": []}

    def open(self, folder: Path, spec: RuntimeSpec, *, threads: int) -> TorchRunner:
        check_runs(self, spec)
        return self.open_on(self.settings.device, folder, spec, threads=threads)

    def open_on(self, device: str, folder: Path, spec: RuntimeSpec, *, threads: int) -> TorchRunner:
        """Open the files on the named device, or on the CPU if this machine lacks the GPU."""
        from arlo.templates.torch.session import Session

        try:
            session = Session(
                folder,
                device=device,
                threads=threads,
                kinds=self._kinds(spec),
                lengths=spec.profiles or (spec.max_length,),
                max_rows=spec.max_batch,
                packed_from=PACKED_FROM[device],
            )
        except (ValueError, OSError, RuntimeError) as error:
            raise CompileError(
                f"build: torch does not open {spec.title} ({error}): build the repository again"
            ) from error
        return TorchRunner(session)

    def _kinds(self, spec: RuntimeSpec) -> tuple[str, ...]:
        return self.settings.kinds if spec.shape == "profiles" else (spec.shape,)
