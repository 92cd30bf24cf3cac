"""ONNX Runtime on the CPU: the graph is the engine, the weights are one file shared by all lengths.

Tried and left out: saving graphs that ONNX Runtime has optimised offline. They load 10 ms sooner (of 40) and run
equally fast, because the same optimisations run when a session opens.
"""

from __future__ import annotations

import platform
import shutil
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from arlo.compile.cache import link_or_copy, tool_versions
from arlo.compile.engine import EngineSettings, Serving
from arlo.compile.spec import GRAPH, ROWS, RuntimeSpec, TOKENS, WEIGHTS
from arlo.errors import CompileError


class _Session:
    def __init__(self, session: Any) -> None:
        self._session = session

    def run(self, inputs: Mapping[str, NDArray[np.int64]], outputs: Sequence[str]) -> dict[str, NDArray[np.float32]]:
        answers = self._session.run(list(outputs), dict(inputs))
        return dict(zip(outputs, answers, strict=True))


class OnnxRuntimeEngine:
    """See `engine.Engine`."""

    name = "onnxruntime"

    def __init__(self, settings: EngineSettings) -> None:
        self.settings = settings

    def versions(self) -> dict[str, str]:
        return tool_versions("onnxruntime")

    def device(self) -> str:
        return f"cpu: {_cpu_name()}"

    def cannot_run(self) -> str:
        return ""

    def key(self) -> dict[str, Any]:
        return {}

    def build_memory(self, weight_bytes: int) -> int:
        return (256 << 20) + 2 * weight_bytes

    def serving(self, spec: RuntimeSpec) -> Serving:
        return Serving(backend="python", template="onnxruntime")

    def build(self, graph: Path, weights: Path, spec: RuntimeSpec, folder: Path, *, scratch: Path) -> dict[str, Any]:
        """Link graph and weights together and check that ONNX Runtime opens them with the promised shapes.

        ONNX Runtime checks where external weights lie (links that leave the folder are refused), so whether it takes a
        hard link is tried, not assumed; where it does not, the weights are copied.
        """
        shutil.copyfile(graph, folder / GRAPH)
        linked = link_or_copy(weights, folder / WEIGHTS)
        try:
            session = self._session(folder, threads=1)
        except Exception as error:
            if not linked:
                raise CompileError(f"build: ONNX Runtime does not open {spec.title} ({error})") from error
            (folder / WEIGHTS).unlink()
            shutil.copyfile(weights, folder / WEIGHTS)
            linked = False
            try:
                session = self._session(folder, threads=1)
            except Exception as again:
                raise CompileError(f"build: ONNX Runtime does not open {spec.title} ({again})") from again
        expected = [spec.fixed.get(ROWS, ROWS), spec.fixed.get(TOKENS, TOKENS)]
        for tensor in session.get_inputs():
            if tensor.shape != expected:
                raise CompileError(f"build: {spec.title}: {tensor.name} has shape {tensor.shape}, not {expected}")
        return {"share": linked}

    def open(self, folder: Path, spec: RuntimeSpec, *, threads: int) -> _Session:
        return _Session(self._session(folder, threads=threads))

    @staticmethod
    def _session(folder: Path, *, threads: int) -> Any:
        import onnxruntime

        options = onnxruntime.SessionOptions()
        options.intra_op_num_threads = threads
        options.inter_op_num_threads = 1
        options.log_severity_level = 3
        options.add_session_config_entry("session.intra_op.allow_spinning", "0")  # as in the model code for Triton
        return onnxruntime.InferenceSession(str(folder / GRAPH), options, providers=["CPUExecutionProvider"])


def _cpu_name() -> str:
    try:
        for line in Path("/proc/cpuinfo").read_text().splitlines():
            if line.startswith("model name"):
                return line.partition(":")[2].strip()
    except OSError:
        pass  # not Linux
    return platform.processor() or platform.machine()
