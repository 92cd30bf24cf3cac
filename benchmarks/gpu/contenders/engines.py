"""The engine back-ends of `arlo compile`, opened as its verification opens them: static, dynamic, padded, profiles."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any, cast

from arlo.compile.engines.interface import Device, Engine, EngineSettings, Precision, Runner, get_engine
from arlo.compile.spec import RuntimeSpec
from arlo.errors import ArloError
from benchmarks.gpu.contenders.base import Batch, Call, Embeddings, columns, forget, package_missing
from benchmarks.gpu.graphs import OUTPUT, Graphs
from benchmarks.gpu.options import COARSE
from benchmarks.gpu.plan import Shape
from benchmarks.gpu.subject import Subject


@dataclasses.dataclass(frozen=True, slots=True)
class EngineContender:
    """`engine` is a name of `arlo compile --engine`."""

    backend: str
    engine: str
    device: Device
    shape: Shape
    slow: bool = False

    @property
    def name(self) -> str:
        return f"{self.backend}-{self.shape}"

    def available(self, precision: str) -> str:
        if self.device == "cpu" and precision != "fp32":
            return f"{precision} is not measured on a CPU, which has no arithmetic for it"
        if reason := package_missing("onnx", "onnxscript", "torch", "transformers"):
            return f"{reason}: the graph cannot be exported"
        try:
            engine = self._engine(precision)
            engine.versions()
            return engine.cannot_run()
        except (ArloError, ImportError, OSError) as error:
            return str(error)

    def open(self, subject: Subject, length: int) -> _Opened:
        engine = self._engine(subject.precision)
        spec = self._spec(subject, length)
        graphs = Graphs(subject.folder, subject.precision, subject.work, longest=subject.longest)
        folder = graphs.engine(engine, spec)
        return _Opened(engine.open(folder, spec, threads=subject.threads), graphs, self.shape, subject.longest)

    def _spec(self, subject: Subject, length: int) -> RuntimeSpec:
        rows, longest = subject.max_batch, subject.longest
        if self.shape == "static":
            return RuntimeSpec(name=f"len{length}", max_length=length, max_batch=rows, shape="static")
        if self.shape == "padded":
            return RuntimeSpec(name=f"len{longest}", max_length=longest, max_batch=rows, shape="static")
        if self.shape == "profiles":
            steps = tuple(sorted({*range(COARSE, longest, COARSE), longest}))
            return RuntimeSpec(name="profiles", max_length=longest, max_batch=rows, shape="profiles", profiles=steps)
        return RuntimeSpec(name="dynamic", max_length=longest, max_batch=rows, shape="dynamic")

    def _engine(self, precision: str) -> Engine:
        settings = EngineSettings(precision=cast(Precision, precision), device=self.device)
        if self.engine == "tensorrt-rtx" and (capability := _capability()):
            settings = dataclasses.replace(settings, compute_capabilities=(capability,))
        return get_engine(self.engine, settings)


class _Opened:
    def __init__(self, runner: Runner, graphs: Graphs, shape: Shape, longest: int) -> None:
        self._runner: Any = runner
        self._graphs = graphs
        self._shape = shape
        self._longest = longest

    def prepare(self, batch: Batch) -> Call:
        runner = self._runner
        rows = self._graphs.inputs(batch.padded(columns(self._shape, batch, self._longest)))

        def whole() -> Embeddings:
            return cast(Embeddings, runner.run(rows, [OUTPUT])[OUTPUT])

        # A back-end that can time its own device work says so; elsewhere only the whole call can be seen.
        timed: Callable[..., float] | None = getattr(runner, "compute_s", None)
        return Call(whole, None if timed is None else lambda: timed(rows, [OUTPUT]))

    def close(self) -> None:
        self._runner = None
        forget()


def _capability() -> str:
    """Of the GPU here, as `SM90`; empty when torch sees none."""
    if package_missing("torch"):
        return ""
    import torch

    if not torch.cuda.is_available():
        return ""
    major, minor = torch.cuda.get_device_capability()
    return f"SM{major}{minor}"


CONTENDERS = (
    *(EngineContender("ort-cpu", "onnxruntime", "cpu", shape) for shape in ("static", "dynamic", "padded")),
    *(
        EngineContender(name, name, "cuda", shape, slow=shape == "static" and name == "tensorrt")
        for name in ("tensorrt", "tensorrt-rtx")
        for shape in ("static", "dynamic", "padded", "profiles")
    ),
)
