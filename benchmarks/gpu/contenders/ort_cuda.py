"""ONNX Runtime on CUDA with I/O binding, with and without CUDA graphs.

Data stays in bound device buffers: a call writes the ids into them, runs, and reads the embeddings back. With CUDA
graphs the session records its kernels in the first runs of a shape and replays them; both axes must then be fixed, so
each length and batch has a session of its own.
"""

from __future__ import annotations

import dataclasses
from typing import Any, cast

import numpy as np

from arlo.clock import monotonic_s
from arlo.compile.spec import GRAPH, ROWS, TOKENS
from benchmarks.gpu.contenders.base import Batch, Call, Embeddings, columns, forget, package_missing
from benchmarks.gpu.graphs import OUTPUT, Graphs
from benchmarks.gpu.plan import Shape
from benchmarks.gpu.subject import Subject

PROVIDER = "CUDAExecutionProvider"


@dataclasses.dataclass(frozen=True, slots=True)
class OrtCuda:
    shape: Shape
    graphs: bool = False

    @property
    def backend(self) -> str:
        return "ort-cuda-graphs" if self.graphs else "ort-cuda"

    @property
    def name(self) -> str:
        return f"{self.backend}-{self.shape}"

    @property
    def slow(self) -> bool:
        return False

    def available(self, precision: str) -> str:
        if reason := package_missing("onnxruntime", "onnx", "onnxscript", "torch", "transformers"):
            return reason
        import onnxruntime

        if PROVIDER not in onnxruntime.get_available_providers():
            return f"this onnxruntime {onnxruntime.__version__} has no {PROVIDER}: install onnxruntime-gpu"
        import torch

        return "" if torch.cuda.is_available() else "there is no CUDA device"

    def open(self, subject: Subject, length: int) -> _Opened:
        at = subject.longest if self.shape == "padded" else length
        return _Opened(Graphs(subject.folder, subject.precision, subject.work, longest=subject.longest), self, at)


class _Opened:
    def __init__(self, graphs: Graphs, how: OrtCuda, length: int) -> None:
        self._graphs = graphs
        self._how = how
        self._length = length
        self._sessions: dict[int, Any] = {}  # by rows that are fixed; 0: any
        self._bindings: dict[tuple[int, int], tuple[Any, Any, dict[str, Any], Any]] = {}

    def prepare(self, batch: Batch) -> Call:
        rows = self._graphs.inputs(batch.padded(columns(self._how.shape, batch, self._length)))
        session, binding, held, answer = self._bound(rows)

        def run() -> None:
            session.run_with_iobinding(binding)
            binding.synchronize_outputs()

        def whole() -> Embeddings:
            for name, values in rows.items():
                held[name].update_inplace(values)
            run()
            return cast(Embeddings, answer.numpy())

        def compute_s() -> float:
            start = monotonic_s()
            run()
            return monotonic_s() - start

        return Call(whole, compute_s)

    def _bound(self, rows: dict[str, Any]) -> tuple[Any, Any, dict[str, Any], Any]:
        """Session, binding and device buffers for rows of this shape, the rows written into them.

        A recorded graph reads and writes where it was recorded, so with CUDA graphs a shape keeps its buffers.
        """
        import onnxruntime

        count, width = rows["input_ids"].shape
        if (count, width) in self._bindings:
            found = self._bindings[count, width]
            for name, values in rows.items():
                found[2][name].update_inplace(values)
            return found
        session = self._session(count if self._how.graphs else 0)
        ort = onnxruntime.OrtValue
        held = {name: ort.ortvalue_from_numpy(values, "cuda", 0) for name, values in rows.items()}
        dims = next(value.shape[-1] for value in session.get_outputs() if value.name == OUTPUT)
        answer = ort.ortvalue_from_shape_and_type([count, dims], np.float32, "cuda", 0)
        binding = session.io_binding()
        for name, value in held.items():
            binding.bind_ortvalue_input(name, value)
        binding.bind_ortvalue_output(OUTPUT, answer)
        found = (session, binding, held, answer)
        if self._how.graphs:
            self._bindings[count, width] = found
        return found

    def close(self) -> None:
        self._bindings.clear()
        self._sessions.clear()
        forget()

    def _session(self, rows: int) -> Any:
        if rows not in self._sessions:
            import onnxruntime

            if hasattr(onnxruntime, "preload_dlls"):
                onnxruntime.preload_dlls()  # CUDA and cuDNN from the packages that torch brings
            fixed = {} if self._how.shape == "dynamic" else {TOKENS: self._length}
            folder = self._graphs.plain(fixed | ({ROWS: rows} if rows else {}))
            options = onnxruntime.SessionOptions()
            options.log_severity_level = 3
            provider = (PROVIDER, {"device_id": "0", "enable_cuda_graph": "1" if self._how.graphs else "0"})
            providers: list[Any] = [provider] if self._how.graphs else [provider, "CPUExecutionProvider"]
            session = onnxruntime.InferenceSession(str(folder / GRAPH), options, providers=providers)
            if session.get_providers()[0] != PROVIDER:
                raise RuntimeError(f"onnxruntime took {session.get_providers()[0]}: its CUDA libraries did not load")
            self._sessions[rows] = session
        return self._sessions[rows]


CONTENDERS = (
    *(OrtCuda(shape) for shape in ("static", "dynamic", "padded")),
    *(OrtCuda(shape, graphs=True) for shape in ("static", "padded")),
)
