"""A double of CUDA's runtime and of TensorRT's, for machines without a GPU: it does on NumPy arrays what the session
asks a GPU to do. It does no more than the session uses, and is strict about it:

* work that is queued on a stream is done when the stream is waited for, and reads memory as it is then;
* memory of the host and of the GPU are apart, and copies may not leave an allocation;
* between the beginning and the end of a capture nothing is done, only remembered, and a context whose shape changed
  must have run plainly before, as TensorRT demands;
* a context that was captured takes no other shape, runs nothing else and must live as long as its graph.

An engine is a JSON file (`write_plan`). Its outputs are `sum` [rows, 2], the sum of the ids where the mask is 1 and the
number of these places, and `hidden` [rows, tokens, 1], twice the ids. With `task` in the file there is an input `task`
[rows, 1], which is added to the sums.
"""

from __future__ import annotations

import ctypes
import json
import weakref
from collections import Counter
from collections.abc import Callable, Sequence
from enum import IntEnum
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np

INPUTS = ("input_ids", "attention_mask")
OUTPUTS = ("sum", "hidden")


def write_plan(path: Path, profiles: Sequence[tuple[Sequence[int], Sequence[int]]], **change: Any) -> Path:
    """profiles: of each, the least and the largest [rows, tokens]."""
    path.write_text(json.dumps({"profiles": [[list(least), list(most)] for least, most in profiles]} | change))
    return path


class FakeCuda:
    """What the session uses of `cuda.bindings.runtime`. `fail` makes a function give an error code."""

    cudaStreamNonBlocking = 1  # noqa: N815
    cudaMemcpyKind = IntEnum("cudaMemcpyKind", {"cudaMemcpyHostToDevice": 1, "cudaMemcpyDeviceToHost": 2})  # noqa: N815
    cudaStreamCaptureMode = IntEnum("cudaStreamCaptureMode", {"cudaStreamCaptureModeThreadLocal": 1})  # noqa: N815

    def __init__(self) -> None:
        self.fail: dict[str, int] = {}
        self.calls: Counter[str] = Counter()
        self.memory: dict[str, dict[int, Any]] = {"device": {}, "host": {}}  # address -> array
        self.graphs: dict[int, list[Callable[[], object]]] = {}
        self.executables: dict[int, list[Callable[[], object]]] = {}
        self.streams: set[int] = set()
        self.capturing: list[Callable[[], object]] | None = None
        self._queue: list[Callable[[], object]] = []
        self._next = 1

    def __getattribute__(self, name: str) -> Any:
        value = super().__getattribute__(name)
        if name.startswith("cuda") and callable(value) and not isinstance(value, type):

            def called(*arguments: Any) -> Any:
                self.calls[name] += 1
                return (self.fail[name], None) if name in self.fail else value(*arguments)

            return called
        return value

    @property
    def idle(self) -> bool:
        """Whether nothing is left on it."""
        left = (*self.memory.values(), self.graphs, self.executables, self.streams, self._queue)
        return not any(left)

    def queue(self, work: Callable[[], object]) -> None:
        (self._queue if self.capturing is None else self.capturing).append(work)

    def _new(self) -> int:
        self._next += 1
        return self._next

    def cudaSetDevice(self, device: int) -> tuple[int]:  # noqa: N802
        return (0 if device == 0 else 101,)

    def cudaStreamCreateWithFlags(self, flags: int) -> tuple[int, int]:  # noqa: N802
        self.streams.add(stream := self._new())
        return 0, stream

    def cudaStreamDestroy(self, stream: int) -> tuple[int]:  # noqa: N802
        self.streams.remove(stream)
        return (0,)

    def cudaStreamSynchronize(self, stream: int) -> tuple[int]:  # noqa: N802
        assert stream in self.streams
        assert self.capturing is None, "waiting breaks a capture"
        while self._queue:
            self._queue.pop(0)()
        return (0,)

    def cudaMalloc(self, size: int) -> tuple[int, int]:  # noqa: N802
        return self._allocate("device", size)

    def cudaMallocHost(self, size: int) -> tuple[int, int]:  # noqa: N802
        return self._allocate("host", size)

    def _allocate(self, kind: str, size: int) -> tuple[int, int]:
        array = np.full(size, 0xFF, np.uint8)
        self.memory[kind][array.ctypes.data] = array
        return 0, int(array.ctypes.data)

    def cudaFree(self, address: int) -> tuple[int]:  # noqa: N802
        del self.memory["device"][address]
        return (0,)

    def cudaFreeHost(self, address: int) -> tuple[int]:  # noqa: N802
        del self.memory["host"][address]
        return (0,)

    def cudaMemcpyAsync(self, target: int, source: int, size: int, kind: int, stream: int) -> tuple[int]:  # noqa: N802
        ends = ("host", "device") if kind == self.cudaMemcpyKind.cudaMemcpyHostToDevice else ("device", "host")
        if size > len(self.memory[ends[0]][source]) or size > len(self.memory[ends[1]][target]):
            return (1,)
        self.queue(lambda: ctypes.memmove(target, source, size))
        return (0,)

    def cudaStreamBeginCapture(self, stream: int, mode: int) -> tuple[int]:  # noqa: N802
        assert self.capturing is None
        self.capturing = []
        return (0,)

    def cudaStreamEndCapture(self, stream: int) -> tuple[int, int]:  # noqa: N802
        assert self.capturing is not None
        self.graphs[graph := self._new()], self.capturing = self.capturing, None
        return 0, graph

    def cudaGraphInstantiate(self, graph: int, flags: int) -> tuple[int, int]:  # noqa: N802
        self.executables[executable := self._new()] = list(self.graphs[graph])
        return 0, executable

    def cudaGraphDestroy(self, graph: int) -> tuple[int]:  # noqa: N802
        del self.graphs[graph]
        return (0,)

    def cudaGraphLaunch(self, executable: int, stream: int) -> tuple[int]:  # noqa: N802
        for work in self.executables[executable]:
            self.queue(work)
        return (0,)

    def cudaGraphExecDestroy(self, executable: int) -> tuple[int]:  # noqa: N802
        del self.executables[executable]
        return (0,)

    def cudaGetErrorString(self, code: int) -> tuple[int, bytes]:  # noqa: N802
        return 0, b"a double's error"

    def cudaGetLastError(self) -> tuple[int]:  # noqa: N802
        return (0,)


class _Logger:
    def __init__(self) -> None:
        pass


class _Context:
    def __init__(self, engine: _Engine, *, shares: bool = False) -> None:
        self._engine, self._cuda = engine, engine.cuda
        self._shares = shares  # the memory for activations, with other contexts
        self._profile = 0
        self._shapes: dict[str, tuple[int, ...]] = {}
        self._addresses: dict[str, int] = {}
        self._settled, self._captured = False, False
        self._activations: int | None = None

    def set_device_memory(self, address: int, size: int) -> None:
        assert size == self._engine.device_memory_size_v2 <= len(self._cuda.memory["device"][address])
        self._activations = address

    def set_optimization_profile_async(self, index: int, stream: int) -> bool:
        self._profile = index
        return index < self._engine.num_optimization_profiles

    def set_input_shape(self, name: str, shape: Sequence[int]) -> bool:
        least, _, most = self._engine.get_tensor_profile_shape(name, self._profile)
        if not all(low <= size <= high for low, size, high in zip(least, shape, most, strict=True)):
            self._engine.log.log(1, f"{name}: {shape} is outside profile {self._profile}")
            return False
        self._settled = self._settled and self._shapes.get(name) == tuple(shape)
        assert self._settled or not self._captured, "a captured context changes its shape"
        self._shapes[name] = tuple(shape)
        return True

    def get_tensor_shape(self, name: str) -> tuple[int, ...]:
        rows, tokens = self._shapes["input_ids"]
        return {"sum": (rows, 2), "hidden": (rows, tokens, 1), "task": (rows, 1)}.get(name, (rows, tokens))

    def set_tensor_address(self, name: str, address: int) -> bool:
        self._addresses[name] = address
        return address in self._cuda.memory["device"]

    def execute_async_v3(self, stream: int) -> bool:
        if self._cuda.capturing is not None and (not self._settled or not self._engine.plan.get("capturable", True)):
            self._engine.log.log(1, "cannot be captured")
            return False
        if self._engine.plan.get("fails"):
            self._engine.log.log(1, "the engine is broken")
            return False
        assert not self._captured, "a captured context runs again"
        assert self._activations in self._cuda.memory["device"] or not self._shares
        self._settled, self._captured = True, self._shares and self._cuda.capturing is not None
        shapes = {name: self.get_tensor_shape(name) for name in (*self._engine.inputs, *OUTPUTS)}
        alive = weakref.ref(self)

        def compute() -> None:
            context = alive()
            assert context is not None, "the context is gone before its graph"
            context._compute(shapes)

        self._cuda.queue(compute)
        return True

    def _compute(self, shapes: dict[str, tuple[int, ...]]) -> None:
        self._engine.executions.append(shapes["input_ids"])

        def at(name: str, dtype: Any) -> Any:
            raw = self._cuda.memory["device"][self._addresses[name]]
            return raw.view(dtype)[: int(np.prod(shapes[name]))].reshape(shapes[name])

        ids, mask = (at(name, np.int64) for name in INPUTS)
        at("sum", np.float32)[:] = np.stack([(ids * mask).sum(1), mask.sum(1)], 1)
        at("hidden", np.float32)[:] = 2 * ids[..., None]
        if "task" in shapes:
            assert self._shapes["task"] == shapes["task"]
            at("sum", np.float32)[:] += at("task", np.int64)


class _Engine:
    def __init__(self, plan: dict[str, Any], trt: FakeTensorRt, log: Any) -> None:
        self.plan, self.trt, self.cuda, self.log = plan, trt, trt.cuda, log
        self.profiles = plan["profiles"]
        self.inputs: tuple[str, ...] = (*INPUTS, "task") if plan.get("task") else INPUTS
        self.num_optimization_profiles, self.num_io_tensors = len(self.profiles), len(self.inputs) + len(OUTPUTS)
        self.executions: list[tuple[int, ...]] = trt.executions
        if trt.shares:
            self.device_memory_size_v2 = 4096

    def get_tensor_name(self, index: int) -> str:
        return (*self.inputs, *OUTPUTS)[index]

    def get_tensor_mode(self, name: str) -> str:
        return "in" if name in self.inputs else "out"

    def get_tensor_dtype(self, name: str) -> str:
        return "int64" if name in self.inputs else str(self.plan.get("output", "float"))

    def get_tensor_profile_shape(self, name: str, index: int) -> list[tuple[int, ...]]:
        least, most = (tuple([*shape[:1], 1] if name == "task" else shape) for shape in self.profiles[index])
        return [least, most, most]

    def create_execution_context(self, how: Any) -> _Context | None:
        if len(self.trt.contexts) >= self.plan.get("contexts", 1000):
            return None
        self.trt.contexts.append(how)
        return _Context(self, shares=how == "user")

    def create_runtime_config(self) -> Any:
        return _RuntimeConfig(self.trt)


class _RuntimeConfig:
    def __init__(self, trt: FakeTensorRt) -> None:
        self._trt = trt
        self.cuda_graph_strategy = "off"
        self.dynamic_shapes_kernel_specialization_strategy = "lazy"
        self.strategy, self.cache = "", None

    def set_execution_context_allocation_strategy(self, strategy: str) -> None:
        self.strategy = strategy

    def create_runtime_cache(self) -> _RuntimeCache:
        return self._trt.cache

    def set_runtime_cache(self, cache: Any) -> None:
        self.cache = cache


class _RuntimeCache:
    def __init__(self) -> None:
        self.given: list[bytes] = []

    def deserialize(self, content: bytes) -> bool:
        self.given.append(content)
        return content == b"kernels"

    def serialize(self) -> bytes:
        return b"kernels"


class _Runtime:
    def __init__(self, trt: FakeTensorRt, log: Any) -> None:
        self._trt, self._log = trt, log

    def deserialize_cuda_engine(self, content: Any) -> _Engine | None:
        try:
            return _Engine(json.loads(bytes(content)), self._trt, self._log)
        except json.JSONDecodeError:
            self._log.log(0, "magicTag does not match")
            return None


class FakeTensorRt:
    """What the session uses of `tensorrt`, and with `rtx` also what `tensorrt_rtx` has beside it."""

    ILogger = _Logger
    TensorIOMode = SimpleNamespace(INPUT="in", OUTPUT="out")
    DataType = SimpleNamespace(INT64="int64", FLOAT="float")
    ExecutionContextAllocationStrategy = SimpleNamespace(
        STATIC="static", ON_PROFILE_CHANGE="on_change", USER_MANAGED="user"
    )

    def __init__(self, cuda: FakeCuda, *, rtx: bool = False, shares: bool | None = None) -> None:
        """shares: whether contexts can share their memory for activations, which graphs need for contexts of their own;
        by default where this is not `rtx`."""
        self.cuda = cuda
        self.__name__, self.__version__ = f"double_{id(self)}", "10.9"
        self.contexts: list[Any] = []  # what each was made with
        self.executions: list[tuple[int, ...]] = []  # shape of each computation
        self.cache = _RuntimeCache()
        self.shares = not rtx if shares is None else shares
        if rtx:
            self.CudaGraphStrategy = SimpleNamespace(DISABLED="off", WHOLE_GRAPH_CAPTURE="whole")
            self.DynamicShapesKernelSpecializationStrategy = SimpleNamespace(LAZY="lazy", EAGER="eager", NONE="none")

    def Runtime(self, log: Any) -> _Runtime:  # noqa: N802
        return _Runtime(self, log)
