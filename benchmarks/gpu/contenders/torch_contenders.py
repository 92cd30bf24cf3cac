"""torch: eager, compiled for each shape or for all, and replayed from CUDA graphs captured for each shape."""

from __future__ import annotations

import dataclasses
import shutil
from typing import Any, Literal, cast

from benchmarks.gpu.contenders.base import Batch, Call, Embeddings, columns, forget, package_missing
from benchmarks.gpu.plan import Shape
from benchmarks.gpu.subject import Subject

Mode = Literal["eager", "compile", "compile-graphs", "graphs"]
_WARM_UP = 3  # runs on a side stream before a capture, as cuBLAS and the allocator set themselves up in them


@dataclasses.dataclass(frozen=True, slots=True)
class Torch:
    """The scaled-dot-product attention that transformers chooses, whatever the mode."""

    mode: Mode
    shape: Shape

    @property
    def backend(self) -> str:
        return f"torch-{self.mode}"

    @property
    def name(self) -> str:
        return f"{self.backend}-{self.shape}"

    @property
    def slow(self) -> bool:
        return self.mode in ("compile", "compile-graphs") and self.shape == "static"

    def available(self, precision: str) -> str:
        if reason := package_missing("torch", "transformers"):
            return reason
        import torch

        cuda = torch.cuda.is_available()
        if not cuda and precision != "fp32":
            return f"{precision} is not measured on a CPU"
        if not cuda and self.mode in ("graphs", "compile-graphs"):
            return "CUDA graphs need a CUDA device"
        if self.mode.startswith("compile"):
            if not cuda and not any(map(shutil.which, ("c++", "g++", "clang++"))):
                return "torch.compile needs a C++ compiler on a CPU"
            if cuda and package_missing("triton"):
                return "torch.compile needs the package triton on a GPU"
        return ""

    def open(self, subject: Subject, length: int) -> _Opened:
        return _Opened(subject.module(), self, subject)


class _Opened:
    def __init__(self, module: Any, how: Torch, subject: Subject) -> None:
        self._how = how
        self._subject = subject
        self._run = _compiled(module, how)

    def prepare(self, batch: Batch) -> Call:
        import torch

        rows = batch.padded(columns(self._how.shape, batch, self._subject.longest))
        cuda = self._subject.device == "cuda"
        host = [torch.from_numpy(rows[name]) for name in ("input_ids", "attention_mask")]
        host = [tensor.pin_memory() for tensor in host] if cuda else host
        held = [tensor.to(self._subject.device) for tensor in host]
        run = self._run
        if self._how.mode == "graphs":
            run = _captured(run, held)

        def whole() -> Embeddings:
            with torch.no_grad():
                if not cuda:
                    return cast(Embeddings, run(*host).numpy())
                for device, source in zip(held, host, strict=True):
                    device.copy_(source, non_blocking=True)
                return cast(Embeddings, run(*held).cpu().numpy())  # .cpu() waits for the device

        return Call(whole, _event_timer(run, held) if cuda else None)

    def close(self) -> None:
        self._run = None
        forget()


def _compiled(module: Any, how: Torch) -> Any:
    if how.mode not in ("compile", "compile-graphs"):
        return module
    import torch

    # A static contender compiles for every length and batch; dynamo's limit is for programs that do so by mistake.
    limits = torch._dynamo.config
    for name in ("recompile_limit", "cache_size_limit", "accumulated_recompile_limit", "accumulated_cache_size_limit"):
        if hasattr(limits, name):
            setattr(limits, name, 100_000)
    mode = "reduce-overhead" if how.mode == "compile-graphs" else "default"
    return torch.compile(module, dynamic=how.shape == "dynamic", mode=mode)


def _captured(run: Any, held: list[Any]) -> Any:
    """The kernels of one shape as a CUDA graph: replayed on the same device buffers each time."""
    import torch

    cuda: Any = torch.cuda
    side = cuda.Stream()
    side.wait_stream(cuda.current_stream())
    with torch.no_grad(), cuda.stream(side):
        for _ in range(_WARM_UP):
            run(*held)
    cuda.current_stream().wait_stream(side)
    graph = cuda.CUDAGraph()
    with torch.no_grad(), cuda.graph(graph):
        answer = run(*held)

    def replay(*_: Any) -> Any:
        graph.replay()
        return answer

    return replay


def _event_timer(run: Any, held: list[Any]) -> Any:
    """Seconds between two events on the stream that runs it. Gaps between launches count: the device waits in them."""
    import torch

    cuda: Any = torch.cuda
    begin, end = (cuda.Event(enable_timing=True) for _ in range(2))

    def compute_s() -> float:
        with torch.no_grad():
            begin.record()
            run(*held)
            end.record()
        end.synchronize()
        return float(begin.elapsed_time(end)) / 1000

    return compute_s


CONTENDERS = (
    Torch("eager", "dynamic"),
    Torch("eager", "padded"),
    Torch("compile", "static"),
    Torch("compile", "dynamic"),
    Torch("compile", "padded"),
    Torch("compile-graphs", "static"),
    Torch("graphs", "static"),
    Torch("graphs", "padded"),
)
