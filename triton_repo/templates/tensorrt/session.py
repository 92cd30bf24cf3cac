"""An engine of TensorRT or TensorRT-RTX on a GPU: its memory allocated once, its runs replayed as CUDA graphs.

Used by the `model.py` next to it inside Triton, and by `arlo.compile` to verify and to measure. It needs NumPy,
cuda-bindings and one of the TensorRT packages, nothing of Arlo.

The engine's inputs are INT64 [rows, tokens], or [rows, ...] of a fixed size; its outputs are FP32 with the rows first.
Each optimisation profile gets an execution context; all share one stream, one set of buffers on the GPU and one of
page-locked memory on the host.
With TensorRT each captured graph has its own context, as NVIDIA advises, and all contexts share one block of GPU
memory for activations, since only one of them runs at a time.

CUDA graphs. TensorRT: the copies of the inputs and the kernels of one shape are captured once and launched as one; an
engine of fixed length captures a shape when it first runs, one of free length when a shape comes again, and the shape
that was used least recently gives way. TensorRT-RTX captures by itself (`CudaGraphStrategy`), as only it knows when its
kernels for a shape are compiled; these kernels are kept in a file between starts.
"""

from __future__ import annotations

import contextlib
import ctypes
import dataclasses
import hashlib
import importlib
import mmap
import os
import tempfile
import weakref
from collections import OrderedDict
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

Array = NDArray[Any]
Range = tuple[int, int]  # least and most

PACKAGES = {"tensorrt": ("tensorrt",), "tensorrt-rtx": ("tensorrt_rtx", "tensorrt_rtx_bindings")}
MAX_GRAPHS = 128

_LOGS: dict[str, Any] = {}  # a process has one log for each package: TensorRT ignores a second one


def import_tensorrt(package: str) -> Any:
    """The Python module of `tensorrt` or `tensorrt-rtx`; ImportError, saying how to get it."""
    for name in PACKAGES[package]:
        with contextlib.suppress(ModuleNotFoundError):
            return importlib.import_module(name)
    raise ImportError(f"the package of {package} is missing: pip install 'arlo-serve[{package}]'")


def import_cuda() -> Any:
    """CUDA's runtime for Python; ImportError, saying how to get it."""
    try:
        return importlib.import_module("cuda.bindings.runtime")
    except ImportError as error:
        raise ImportError(f"CUDA for Python does not open ({error}): pip install cuda-bindings") from error


def log_of(trt: Any) -> Any:
    """The log of this process for the module `trt`: an ILogger whose `take()` hands over (severity, text) so far.

    Severity is TensorRT's own number: 0 internal error, 1 error, 2 warning. What is less is not kept.
    """
    if trt.__name__ not in _LOGS:

        class Log(trt.ILogger):  # type: ignore[misc]
            def __init__(self) -> None:
                trt.ILogger.__init__(self)
                self._records: list[tuple[int, str]] = []

            def log(self, severity: Any, message: str) -> None:
                if int(severity) <= 2:
                    self._records.append((int(severity), message.strip()))

            def take(self) -> list[tuple[int, str]]:
                taken, self._records = self._records, []
                return taken

        _LOGS[trt.__name__] = Log()
    return _LOGS[trt.__name__]


def kernels_folder() -> Path:
    """Where compiled kernels are kept between starts: below `$ARLO_CACHE`, else `~/.cache/arlo`."""
    named = os.environ.get("ARLO_CACHE")
    return (Path(named) if named else Path.home() / ".cache" / "arlo") / "kernels"


class CudaError(RuntimeError):
    """A call of CUDA failed; the message names it."""


class Cuda:
    """Calls into CUDA's runtime, whose errors become exceptions."""

    def __init__(self, runtime: Any) -> None:
        self.runtime = runtime

    def call(self, name: str, *arguments: Any) -> Any:
        """Call the function `name`; returns its results after the error code: nothing, one value or a tuple."""
        code, *values = getattr(self.runtime, name)(*arguments)
        if int(code) != 0:
            raise CudaError(f"{name} failed: {self._describe(code)}")
        return values[0] if len(values) == 1 else tuple(values)

    def _describe(self, code: Any) -> str:
        _, text = self.runtime.cudaGetErrorString(code)
        return f"{text.decode() if isinstance(text, bytes) else text} (CUDA error {int(code)})"


def _release(owned: contextlib.ExitStack) -> None:
    """Release resources, the last one first; never raises, because it also runs when the process ends."""
    with contextlib.suppress(Exception):
        owned.close()


class _Buffer:
    """Memory of one tensor at its largest, on the GPU and page-locked on the host."""

    def __init__(self, cuda: Cuda, owned: contextlib.ExitStack, dtype: Any, size: int) -> None:
        self._cuda = cuda
        self.dtype = np.dtype(dtype)
        size_bytes = max(1, size) * self.dtype.itemsize
        self.device = int(cuda.call("cudaMalloc", size_bytes))
        owned.callback(cuda.call, "cudaFree", self.device)
        self._host = int(cuda.call("cudaMallocHost", size_bytes))
        owned.callback(cuda.call, "cudaFreeHost", self._host)
        raw: Any = (ctypes.c_byte * size_bytes).from_address(self._host)  # numpy's stubs know no ctypes arrays
        self._view: Array = np.frombuffer(raw, self.dtype)

    def write(self, array: Array) -> None:
        """Put `array` into the host's memory."""
        self._view[: array.size] = array.reshape(-1)

    def read(self, shape: tuple[int, ...]) -> Array:
        """A copy of the host's memory, which the next run overwrites."""
        return self._view[: int(np.prod(shape))].reshape(shape).copy()

    def upload(self, size: int, stream: Any) -> None:
        """Queue the copy of the first `size` elements to the GPU."""
        self._copy(self.device, self._host, size, "cudaMemcpyHostToDevice", stream)

    def download(self, size: int, stream: Any) -> None:
        """Queue the copy of the first `size` elements from the GPU."""
        self._copy(self._host, self.device, size, "cudaMemcpyDeviceToHost", stream)

    def _copy(self, target: int, source: int, size: int, kind: str, stream: Any) -> None:
        kind = getattr(self._cuda.runtime.cudaMemcpyKind, kind)
        self._cuda.call("cudaMemcpyAsync", target, source, size * self.dtype.itemsize, kind, stream)


@dataclasses.dataclass(slots=True)
class _Lane:
    """An execution context, with the optimisation profile that it is set to."""

    profile: int
    context: Any
    rows: Range
    tokens: Range
    shape: tuple[int, int] | None = None  # that the context is set to

    def takes(self, rows: int, tokens: int) -> bool:
        return self.rows[0] <= rows <= self.rows[1] and self.tokens[0] <= tokens <= self.tokens[1]


@dataclasses.dataclass(slots=True)
class _Known:
    """A shape that ran before."""

    lane: _Lane
    outputs: dict[str, tuple[int, ...]]
    graph: Any = None
    tried: bool = False  # whether a capture was tried


class Session:
    """An opened engine. Use it from one thread at a time: its memory is written by every run. Letting go of it gives
    the GPU's memory back.

    inputs, outputs: names, in the engine's order. profiles: of each, the range of rows and that of tokens.
    fixed_length: whether each profile takes one length only. note: why a CUDA graph is not used, else empty.
    """

    def __init__(
        self,
        path: Path,
        package: str,
        *,
        device_id: int = 0,
        max_graphs: int = MAX_GRAPHS,
        kernels: Path | None = None,
        modules: tuple[Any, Any] | None = None,
    ) -> None:
        """Open the engine `path` of `package` (tensorrt, tensorrt-rtx) on the GPU `device_id`.

        max_graphs: shapes whose CUDA graph is kept; 0: none is captured. kernels: folder where TensorRT-RTX keeps the
        kernels that it compiles for this GPU; None: they are compiled at every start. modules: those of TensorRT and of
        CUDA, where they are imported already. Raises ImportError when a package is missing, CudaError when the GPU
        fails, RuntimeError saying why when the engine does not suit this GPU or this version.
        """
        self._trt, runtime = modules or (import_tensorrt(package), import_cuda())
        self._cuda, self._log, self._owned = Cuda(runtime), log_of(self._trt), contextlib.ExitStack()
        weakref.finalize(self, _release, self._owned)
        self.note = ""
        self._device_id, self._max_graphs = device_id, max_graphs
        self._known: OrderedDict[tuple[int, int], _Known] = OrderedDict()
        self._cuda.call("cudaSetDevice", device_id)
        stream = self._cuda.call("cudaStreamCreateWithFlags", runtime.cudaStreamNonBlocking)
        self._stream = int(stream)
        cuda, known = self._cuda, self._known
        self._owned.callback(cuda.call, "cudaStreamDestroy", stream)
        self._owned.callback(
            lambda: [cuda.call("cudaGraphExecDestroy", shape.graph) for shape in known.values() if shape.graph]
        )
        self._engine = self._deserialise(path)
        names = [self._engine.get_tensor_name(index) for index in range(self._engine.num_io_tensors)]
        incoming = self._trt.TensorIOMode.INPUT
        self.inputs = tuple(name for name in names if self._engine.get_tensor_mode(name) == incoming)
        self.outputs = tuple(name for name in names if name not in self.inputs)
        self.profiles = [self._profile(index) for index in range(self._engine.num_optimization_profiles)]
        most = {name: tuple(self._engine.get_tensor_profile_shape(name, 0)[2])[1:] for name in self.inputs}
        self._own = {name: size for name, size in most.items() if size != most[self.inputs[0]]}
        self.fixed_length = all(least == most for _, (least, most) in self.profiles)
        self._kernels = _Kernels(kernels, path, self._trt) if kernels else None
        self._own_graphs = max_graphs > 0 and not hasattr(self._trt, "CudaGraphStrategy")
        # Of all contexts; TensorRT before 10.1 cannot share it, and graphs share contexts there.
        self._activation_bytes = getattr(self._engine, "device_memory_size_v2", None) if self._own_graphs else None
        if self._activation_bytes is not None:
            self._activations = int(self._cuda.call("cudaMalloc", max(1, self._activation_bytes)))
            self._owned.callback(self._cuda.call, "cudaFree", self._activations)
        self._buffers: dict[str, _Buffer] = {}
        self._lanes = [self._lane(index) for index in range(len(self.profiles))]
        self._buffers = self._allocate()
        for lane in self._lanes:
            self._bind(lane)

    @property
    def graphs(self) -> tuple[tuple[int, int], ...]:
        """Shapes (rows, tokens) whose CUDA graph was captured here."""
        return tuple(shape for shape, known in self._known.items() if known.graph is not None)

    def run(self, wanted: Sequence[str], tensors: Mapping[str, Array]) -> list[Array]:
        """The outputs `wanted`, in that order, for inputs [rows, tokens], or of a fixed size; the others stay on the
        GPU.

        Raises ValueError for inputs that the engine does not take, CudaError or RuntimeError when the GPU fails.
        """
        shape = self._checked_shape(tensors)
        self._cuda.call("cudaSetDevice", self._device_id)  # of this thread
        for name in self.inputs:
            self._buffers[name].write(tensors[name])
        known = self._launch(shape)
        for name in wanted:
            self._buffers[name].download(int(np.prod(known.outputs[name])), self._stream)
        self._cuda.call("cudaStreamSynchronize", self._stream)
        return [self._buffers[name].read(known.outputs[name]) for name in wanted]

    def warm_up(self) -> None:
        """Run the usual numbers of rows at the full length of each profile, so that no request pays for one-time work:
        all small numbers, the powers of two above, and the most. Kernels compiled for it are kept."""
        for lane in self._lanes:
            usual = {*range(1, 9), *(1 << power for power in range(4, 11)), lane.rows[1]}
            for rows in sorted(count for count in usual if lane.takes(count, lane.tokens[1])):
                sizes = {name: self._shape_of(name, (rows, lane.tokens[1])) for name in self.inputs}
                self.run(self.outputs, {name: np.full(size, name not in self._own) for name, size in sizes.items()})
        if self._kernels is not None:
            self._kernels.save()

    def _checked_shape(self, tensors: Mapping[str, Array]) -> tuple[int, int]:
        missing = [name for name in self.inputs if name not in tensors]
        if missing:
            raise ValueError(f"input {missing[0]} is missing: the engine takes {', '.join(self.inputs)}")
        shape = tensors[self.inputs[0]].shape
        for name in self.inputs:
            if len(shape) != 2 or tensors[name].shape != self._shape_of(name, shape):
                wanted = ["rows", *self._own.get(name, ("tokens",))]
                found = f"input {name} has the shape {tensors[name].shape}"
                raise ValueError(f"{found}, where [{', '.join(map(str, wanted))}] was expected")
        rows, tokens = shape
        if not any(lane.takes(rows, tokens) for lane in self._lanes):
            ranges = "; ".join(
                f"{lane.rows[0]} to {lane.rows[1]} rows of {lane.tokens[0]} to {lane.tokens[1]} tokens"
                for lane in self._lanes
            )
            raise ValueError(f"the engine does not take {rows} rows of {tokens} tokens, only {ranges}")
        return rows, tokens

    def _shape_of(self, name: str, shape: tuple[int, ...]) -> tuple[int, ...]:
        """The shape of an input for the rows and tokens in `shape`."""
        return (shape[0], *self._own.get(name, shape[1:]))

    def _deserialise(self, path: Path) -> Any:
        self._log.take()
        self._runtime = self._trt.Runtime(self._log)  # must outlive the engine
        # Mapped, not read: the engine's weights need not lie in the host's memory twice.
        with path.open("rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as plan:
            engine = self._runtime.deserialize_cuda_engine(plan)
        if engine is None:
            raise RuntimeError(self._why(f"{path} does not open in {self._trt.__name__} {self._trt.__version__}"))
        return engine

    def _profile(self, index: int) -> tuple[Range, Range]:
        least, _, most = (tuple(dims) for dims in self._engine.get_tensor_profile_shape(self.inputs[0], index))
        return (least[0], most[0]), (least[1], most[1])

    def _lane(self, index: int) -> _Lane:
        context = self._context()
        if context is None:
            raise RuntimeError(self._why("the GPU has no room for the engine's execution context"))
        if self._activation_bytes is not None:
            context.set_device_memory(self._activations, self._activation_bytes)
        if index and not context.set_optimization_profile_async(index, self._stream):
            raise RuntimeError(self._why(f"the engine refuses its optimisation profile {index}"))
        self._cuda.call("cudaStreamSynchronize", self._stream)
        rows, tokens = self.profiles[index]
        lane = _Lane(index, context, rows, tokens)
        self._bind(lane)
        return lane

    def _bind(self, lane: _Lane) -> None:
        for name, buffer in self._buffers.items():
            if not lane.context.set_tensor_address(name, buffer.device):
                raise RuntimeError(self._why(f"the engine refuses the memory for {name}"))

    def _context(self) -> Any:
        """A new context. With several profiles its memory is sized for its profile, not for the largest one."""
        strategies = self._trt.ExecutionContextAllocationStrategy
        several = len(self.profiles) > 1
        strategy = strategies.ON_PROFILE_CHANGE if several else strategies.STATIC
        if self._activation_bytes is not None:
            strategy = strategies.USER_MANAGED
        graphs = getattr(self._trt, "CudaGraphStrategy", None)
        if graphs is None:
            return self._engine.create_execution_context(strategy)
        config = self._engine.create_runtime_config()
        config.set_execution_context_allocation_strategy(strategy)
        if self._max_graphs:
            config.cuda_graph_strategy = graphs.WHOLE_GRAPH_CAPTURE
        # Of a fixed length there are few shapes, all met while warming up: better to wait for their kernels there. Of a
        # free length there are hundreds: a general kernel serves until the shape's own is compiled.
        kinds = self._trt.DynamicShapesKernelSpecializationStrategy
        config.dynamic_shapes_kernel_specialization_strategy = kinds.EAGER if self.fixed_length else kinds.LAZY
        if self._kernels is not None:
            self._kernels.attach(config)
        return self._engine.create_execution_context(config)

    def _allocate(self) -> dict[str, _Buffer]:
        """Buffers for the largest shapes."""
        largest = dict.fromkeys((*self.inputs, *self.outputs), 0)
        for lane in self._lanes:
            for name, shape in self._set_shape(lane, (lane.rows[1], lane.tokens[1])).items():
                largest[name] = max(largest[name], int(np.prod(shape)))
            for name in self.inputs:
                size = int(np.prod(self._shape_of(name, (lane.rows[1], lane.tokens[1]))))
                largest[name] = max(largest[name], size)
        kinds = {self._trt.DataType.INT64: np.int64, self._trt.DataType.FLOAT: np.float32}
        buffers = {}
        for name, size in largest.items():
            kind = self._engine.get_tensor_dtype(name)
            if kind not in kinds:
                raise RuntimeError(
                    f"{name} is of the type {kind}, not INT64 or FLOAT: build the engine with arlo compile"
                )
            buffers[name] = _Buffer(self._cuda, self._owned, kinds[kind], size)
        return buffers

    def _set_shape(self, lane: _Lane, shape: tuple[int, int]) -> dict[str, tuple[int, ...]]:
        """Set the context to `shape`; returns the outputs' shapes."""
        if lane.shape != shape:
            for name in self.inputs:
                if not lane.context.set_input_shape(name, self._shape_of(name, shape)):
                    raise RuntimeError(self._why(f"the engine refuses the shape {shape} for {name}"))
            lane.shape = shape
        return {name: tuple(lane.context.get_tensor_shape(name)) for name in self.outputs}

    def _launch(self, shape: tuple[int, int]) -> _Known:
        """Queue a run on the inputs in the host's memory."""
        known = self._known.get(shape)
        again = known is not None
        if known is None:
            lane = min((lane for lane in self._lanes if lane.takes(*shape)), key=lambda lane: lane.tokens[1])
            known = self._known[shape] = _Known(lane, self._set_shape(lane, shape))
            self._forget()
        self._known.move_to_end(shape)
        if known.graph is not None:
            self._cuda.call("cudaGraphLaunch", known.graph, self._stream)
            return known
        captures = self._own_graphs and not known.tried and (again or self.fixed_length) and self._separate(known)
        self._set_shape(known.lane, shape)
        self._enqueue(known.lane, shape)
        # After a plain run, in which TensorRT does work deferred from a change of shape, which must not be captured.
        if captures:
            self._capture(known, shape)
        return known

    def _separate(self, known: _Known) -> bool:
        """Give `known` its own context, which runs nothing else once it is captured. False where there is no room
        for one; `note` says why."""
        known.tried = True
        if self._activation_bytes is not None:
            try:
                known.lane = self._lane(known.lane.profile)
            except RuntimeError as error:
                self.note = f"no execution context for a CUDA graph: {error}"
                return False
        return True

    def _enqueue(self, lane: _Lane, shape: tuple[int, int]) -> None:
        for name in self.inputs:
            self._buffers[name].upload(int(np.prod(self._shape_of(name, shape))), self._stream)
        if not lane.context.execute_async_v3(self._stream):
            raise RuntimeError(self._why("the engine failed"))

    def _capture(self, known: _Known, shape: tuple[int, int]) -> None:
        """Capture the graph of a shape; if CUDA or TensorRT cannot, runs continue without it and `note` says why."""
        runtime, graph = self._cuda.runtime, None
        try:
            mode = runtime.cudaStreamCaptureMode.cudaStreamCaptureModeThreadLocal
            self._cuda.call("cudaStreamBeginCapture", self._stream, mode)
            try:
                self._enqueue(known.lane, shape)
            finally:
                graph = self._cuda.call("cudaStreamEndCapture", self._stream)
            known.graph = self._cuda.call("cudaGraphInstantiate", graph, 0)
        except RuntimeError as error:
            runtime.cudaGetLastError()  # forgets the error, which the next call would report
            self.note = f"no CUDA graph for {known.lane.shape}: {error}"
            self._cuda.call("cudaStreamSynchronize", self._stream)  # the plain run is still in its context
            known.lane = self._lanes[known.lane.profile]
        finally:
            if graph is not None:
                self._cuda.call("cudaGraphDestroy", graph)

    def _forget(self) -> None:
        while len(self._known) > max(1, self._max_graphs):
            _, old = self._known.popitem(last=False)
            if old.graph is not None:
                self._cuda.call("cudaStreamSynchronize", self._stream)
                self._cuda.call("cudaGraphExecDestroy", old.graph)

    def _why(self, what: str) -> str:
        """`what` with the errors that TensorRT logged."""
        errors = [text for severity, text in self._log.take() if severity < 2]
        return f"{what}: {'; '.join(errors)}" if errors else what


class _Kernels:
    """The kernels that TensorRT-RTX compiled for this GPU, one file for each engine and version.

    TensorRT-RTX itself checks that they suit the GPU and the driver. Files that cannot be read or written are skipped.
    """

    def __init__(self, folder: Path, plan: Path, trt: Any) -> None:
        with plan.open("rb") as stream, mmap.mmap(stream.fileno(), 0, access=mmap.ACCESS_READ) as content:
            digest = hashlib.sha256(content).hexdigest()[:24]  # Triton's image has Python 3.10: no file_digest
        self._path = folder / f"{trt.__name__}-{trt.__version__}-{digest}.kernels"
        self._cache: Any = None

    def attach(self, config: Any) -> None:
        """Give the kernels to the contexts that are made with `config`."""
        if self._cache is None:
            self._cache = config.create_runtime_cache()
            with contextlib.suppress(OSError):
                self._cache.deserialize(self._path.read_bytes())
        config.set_runtime_cache(self._cache)

    def save(self) -> None:
        """Write the file whole, or not at all."""
        if self._cache is None:
            return
        content = bytes(self._cache.serialize())
        with contextlib.suppress(OSError):
            self._path.parent.mkdir(parents=True, exist_ok=True)
            handle, name = tempfile.mkstemp(dir=self._path.parent, prefix=".kernels-")
            try:
                with os.fdopen(handle, "wb") as stream:
                    stream.write(content)
                Path(name).replace(self._path)
            finally:
                Path(name).unlink(missing_ok=True)
