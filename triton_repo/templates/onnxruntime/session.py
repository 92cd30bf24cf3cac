"""An ONNX graph opened in ONNX Runtime: on the CPU, or on a GPU with CUDA graphs, either of a fixed shape or for some
lengths of a graph that accepts any length, whose weights are then loaded once.

It lies next to model.py in a Triton model version, and is `arlo.templates.onnxruntime.session` in the package: the code
that is verified and measured is the code that serves. It needs numpy and onnxruntime only.

On the CPU a plain run is used: inputs and outputs bound to memory kept between runs took the same time.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime
from numpy.typing import NDArray

CUDA = "CUDAExecutionProvider"
GRAPH_ID = "gpu_graph_id"  # of a run: the CUDA graph to record or to replay
NO_GRAPH = "-1"
# Total tokens from which a run uses several threads. Shorter runs would save the same share of their time at the same
# extra cost in cores, but they end soon on one thread.
WIDE_TOKENS = 128
FREE_TOKENS = 16  # of a run that warms a session of any length up
GRAPH_ROWS_BITS = 11  # of a graph's number, where there are several lengths; the rest is the length

Array = NDArray[Any]

_TYPES: dict[str, Any] = {
    "tensor(int64)": np.int64,
    "tensor(int32)": np.int32,
    "tensor(uint8)": np.uint8,
    "tensor(float)": np.float32,
    "tensor(float16)": np.float16,
}


class Session:
    """An opened graph whose inputs are all [rows, tokens], or of a fixed size for each row.

    Use it from one thread at a time: with CUDA graphs the memory of inputs and outputs belongs to the session.

    graphs: (rows, tokens) for which a CUDA graph is replayed. note: why there is none on a GPU, else empty.
    """

    def __init__(
        self,
        path: Path,
        *,
        threads: int = 1,
        device: str = "cpu",
        device_id: int = 0,
        max_rows: int = 1,
        record: bool = True,
        lengths: Sequence[int] = (),
    ) -> None:
        """Open `path`; on the CPU with so many `threads` for runs of `WIDE_TOKENS` tokens or more, one for others.

        On a GPU, if `record`, record a CUDA graph for each usual number of rows up to `max_rows`. Other numbers of rows
        are padded to the next recorded one.

        device: cpu or cuda. record: False for a graph that takes any length. lengths: of such a graph those to record,
        ascending; rows between them are padded with zeros to the next one, which a mask among the inputs must hide.
        Raises RuntimeError if a GPU is requested and ONNX Runtime cannot use it, and ONNX Runtime's errors for a graph
        that it rejects.
        """
        self.note = ""
        self._lengths, self._max_rows = tuple(lengths), max_rows
        self._replays: dict[tuple[int, int], Bound] = {}
        self._rows: list[int] = []  # counts that are recorded, ascending
        self._plain: Any = None  # run options of runs without a graph; None: the session's own
        self._narrow: Any = None  # on one thread, for few tokens
        if device != "cuda":
            self._open_on_cpu(path, threads)
        else:
            self._open_on_gpu(path, threads, device_id, max_rows if record else 0)
        self.inputs = tuple(entry.name for entry in self._session.get_inputs())
        self.outputs = tuple(entry.name for entry in self._session.get_outputs())

    @property
    def graphs(self) -> tuple[tuple[int, int], ...]:
        """(rows, tokens) that have a CUDA graph."""
        return tuple(self._replays)

    def run(self, wanted: Sequence[str], tensors: Mapping[str, Array]) -> list[Array]:
        """The outputs `wanted`, in that order, for inputs [rows, tokens] or of a fixed size."""
        rows, tokens = next(iter(tensors.values())).shape[:2]
        recorded = next((count for count in self._rows if count >= rows), rows)
        padded = next((length for length in self._lengths if length >= tokens), tokens)
        replay = self._replays.get((recorded, padded))
        if replay is not None and replay.takes(tensors):
            return replay.run(wanted, tensors)
        narrow = self._narrow is not None and rows * tokens < WIDE_TOKENS
        session = self._narrow if narrow else self._session
        answers: list[Array] = session.run(list(wanted), dict(tensors), self._plain)
        return answers

    def warm_up(self) -> None:
        """Run one row and a full batch, so that no request pays for the memory; a few tokens where any length goes."""
        tokens = self._session.get_inputs()[0].shape[1]
        tokens = tokens if isinstance(tokens, int) else FREE_TOKENS
        for rows in sorted({1, self._max_rows}):
            self.run(self.outputs, _ones(self._session, rows, tokens))
        if self._narrow is not None:  # which these runs had, as far as they are small
            self._session.run(list(self.outputs), _ones(self._session, 1, tokens))

    def _open_on_cpu(self, path: Path, threads: int) -> None:
        """Open with one thread if rows are short; a graph that accepts any length gets two sessions."""
        self._session = open_session(path, threads)
        _, *size = self._session.get_inputs()[0].shape
        if threads == 1 or len(size) > 1 or (isinstance(size[0], int) and size[0] >= WIDE_TOKENS):
            return
        narrow = open_session(path, 1)
        if isinstance(size[0], int):
            self._session = narrow
        else:
            self._narrow = narrow

    def _open_on_gpu(self, path: Path, threads: int, device_id: int, max_rows: int) -> None:
        if CUDA not in onnxruntime.get_available_providers():
            raise RuntimeError("this onnxruntime has no CUDA support: install onnxruntime-gpu in its place")
        if preload := getattr(onnxruntime, "preload_dlls", None):
            preload()  # CUDA and cuDNN from Python packages, where they are not in the system
        options = {
            "device_id": str(device_id),
            "use_tf32": "0",  # else float32 has the precision of 10 bits on newer GPUs
            "arena_extend_strategy": "kSameAsRequested",  # by default up to twice the weights is taken
        }
        if max_rows:
            try:
                recording = (CUDA, {**options, "enable_cuda_graph": "1"})
                session = open_session(path, threads, (recording, "CPUExecutionProvider"))
                self._record(session, device_id, max_rows)
            except Exception as error:
                # ONNX Runtime rejects graphs that it would run partly on the CPU.
                self.note = f"no CUDA graph: {error}"
            else:
                self._session, self._plain = session, _run_options(NO_GRAPH)
                return
        # A session made for recording holds memory for it: another one is opened.
        self._replays = {}
        self._session = open_session(path, threads, ((CUDA, options), "CPUExecutionProvider"))
        if CUDA not in self._session.get_providers():
            raise RuntimeError("ONNX Runtime cannot use the GPU: its log says which CUDA or cuDNN library is missing")

    def _record(self, session: Any, device_id: int, max_rows: int) -> None:
        """Record and check the CUDA graphs; RuntimeError says why there cannot be any."""
        if CUDA not in session.get_providers():
            raise RuntimeError("ONNX Runtime cannot use the GPU")
        if reason := unfit_for_replay(session, any_length=bool(self._lengths)):
            raise RuntimeError(reason)
        self._rows = rows_to_record(session, max_rows)
        for tokens in self._lengths or (session.get_inputs()[0].shape[1],):
            for rows in self._rows:
                number = str(tokens << GRAPH_ROWS_BITS | rows) if self._lengths else str(rows)
                replay = Bound(session, rows, "cuda", device_id, graph_id=number, tokens=tokens)
                self._check(session, replay)
                self._replays[rows, tokens] = replay

    @staticmethod
    def _check(session: Any, replay: Bound) -> None:
        """Check that the graph uses the bound memory; otherwise it would keep returning old answers."""
        names = [entry.name for entry in session.get_outputs()]
        ones = _ones(session, *next(iter(replay.shapes.values()))[:2])
        replay.run(names, ones)  # records
        other = {name: array.copy() for name, array in ones.items()}
        for array in other.values():
            array[:, -1] = 0
        expected = session.run(names, other, _run_options(NO_GRAPH))
        for name, plain, again in zip(names, expected, replay.run(names, other), strict=True):
            if not np.allclose(plain, again, rtol=1e-3, atol=1e-3, equal_nan=True):
                raise RuntimeError(f"replayed, it gives other values of {name} for {replay.rows} rows")


class Bound:
    """Runs of one shape on memory that is allocated once, because a CUDA graph records addresses."""

    def __init__(
        self, session: Any, rows: int, device: str, device_id: int = 0, *, graph_id: str = "", tokens: int = 0
    ) -> None:
        """`tokens`: the length, if it is free."""
        self.rows = rows
        first = session.get_inputs()[0]
        self._first, free = first.name, first.shape[1]
        entries = (*session.get_inputs(), *session.get_outputs())
        self._by_token = {entry.name for entry in entries if tokens and entry.shape[1:2] == [free]}
        self._session = session
        self._options = _run_options(graph_id) if graph_id else None
        self._binding = session.io_binding()
        self._inputs, self._outputs = {}, {}
        for entry in session.get_inputs():
            value = _allocate(entry, rows, tokens, device, device_id)
            self._binding.bind_ortvalue_input(entry.name, value)
            self._inputs[entry.name] = value
        for entry in session.get_outputs():
            value = _allocate(entry, rows, tokens, device, device_id)
            self._binding.bind_ortvalue_output(entry.name, value)
            self._outputs[entry.name] = value
        self.shapes = {name: tuple(value.shape()) for name, value in self._inputs.items()}
        self._types = {entry.name: _TYPES[entry.type] for entry in session.get_inputs()}

    def takes(self, tensors: Mapping[str, Array]) -> bool:
        """Whether these are all inputs, of no more rows and free tokens than are bound."""
        if tensors.keys() != self.shapes.keys():
            return False
        rows, tokens = tensors[self._first].shape[:2]
        bound = self.shapes[self._first]
        return (rows <= bound[0] and tokens <= bound[1]) and all(
            tensors[name].shape == ((rows, tokens, *shape[2:]) if name in self._by_token else (rows, *shape[1:]))
            for name, shape in self.shapes.items()
        )

    def run(self, wanted: Sequence[str], tensors: Mapping[str, Array]) -> list[Array]:
        """Copy the inputs in, run, copy the outputs `wanted` out. All outputs are computed: the graph is one.

        Inputs are padded to the bound shape, and outputs are cut to the rows and tokens of the inputs.
        """
        for name, value in self._inputs.items():
            value.update_inplace(np.ascontiguousarray(_padded(tensors[name], self.shapes[name]), self._types[name]))
        self._session.run_with_iobinding(self._binding, self._options)
        rows, tokens = tensors[self._first].shape[:2]
        answers = {name: self._outputs[name].numpy()[:rows] for name in wanted}
        # A copy even where the memory is the CPU's: the next run writes there.
        return [np.array(answers[name][:, :tokens] if name in self._by_token else answers[name]) for name in wanted]


def _padded(array: Array, shape: tuple[int, ...]) -> Array:
    """`array` in the larger `shape`: zeros after its tokens, and its last row again, which every model accepts."""
    if array.shape == shape:
        return array
    larger = np.zeros(shape, array.dtype)
    larger[tuple(slice(size) for size in array.shape)] = array
    larger[len(array) :] = larger[len(array) - 1]
    return larger


def unfit_for_replay(session: Any, *, any_length: bool = False) -> str:
    """Why runs of this session have no memory of known size; empty when they do. `any_length`: the axis of tokens, as
    the inputs call it, may be free."""
    free = session.get_inputs()[0].shape[1] if any_length else None
    for entry in (*session.get_inputs(), *session.get_outputs()):
        if any(not isinstance(size, int) and size != free for size in entry.shape[1:]):
            return f"{entry.name} has the shape {entry.shape}, which is not fixed"
        if entry.type not in _TYPES:
            return f"{entry.name} is of the type {entry.type}"
    return ""


def rows_to_record(session: Any, max_rows: int) -> list[int]:
    """Numbers of rows worth a CUDA graph: all small ones, where launching the kernels takes longer than they run, then
    12, 16, 24, 32 and so on, where padding adds less than half, and the most."""
    first = session.get_inputs()[0].shape[0]
    if isinstance(first, int):
        return [first]
    usual = {*range(1, 9), *(base << power for base in (3, 4) for power in range(2, 9)), max_rows}
    return sorted(rows for rows in usual if rows <= max_rows)


def open_session(
    graph: Path | bytes, threads: int, providers: Sequence[Any] = ("CPUExecutionProvider",), **entries: str
) -> Any:
    """A session of ONNX Runtime for a file or a serialised graph; entries: of its configuration, dots as `__`."""
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = threads
    options.inter_op_num_threads = 1
    options.log_severity_level = 3
    # Instances share the cores of a machine: waiting threads must sleep, not spin.
    options.add_session_config_entry("session.intra_op.allow_spinning", "0")
    for key, value in entries.items():
        options.add_session_config_entry(key.replace("__", "."), value)
    return onnxruntime.InferenceSession(
        graph if isinstance(graph, bytes) else str(graph), options, providers=list(providers)
    )


def _ones(session: Any, rows: int, tokens: int) -> dict[str, Array]:
    """Inputs that every encoder accepts: the second word of its vocabulary, no padding, and zeros for inputs whose size
    differs from the first input's, such as the number of a task. `tokens`: the size of free axes."""
    first = session.get_inputs()[0].shape[1:]
    return {
        entry.name: np.full(
            (rows, *(size if isinstance(size, int) else tokens for size in entry.shape[1:])),
            entry.shape[1:] == first,
            _TYPES[entry.type],
        )
        for entry in session.get_inputs()
    }


def _run_options(graph_id: str) -> Any:
    options = onnxruntime.RunOptions()
    options.add_run_config_entry(GRAPH_ID, graph_id)
    return options


def _allocate(entry: Any, rows: int, tokens: int, device: str, device_id: int) -> Any:
    shape = [rows, *(size if isinstance(size, int) else tokens for size in entry.shape[1:])]
    return onnxruntime.OrtValue.ortvalue_from_shape_and_type(shape, _TYPES[entry.type], device, device_id)
