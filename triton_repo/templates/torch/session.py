"""A torch encoder that holds its weights once and runs rows in one of three ways.

static: rows are padded to a recorded length and number, and the whole run is replayed as one CUDA graph. dynamic: rows
are padded to the longest of the batch and the kernels are launched one by one. packed: rows lie end to end without
padding, up to a bucket of tokens that has a CUDA graph. On a CPU the same code runs without graphs, and static rows are
not padded further.

It lies next to model.py in a Triton model version and is `arlo.templates.torch.session` in the package: the code that
is verified and measured is the code that serves. It needs NumPy and torch only.
"""

from __future__ import annotations

import abc
import itertools
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from .encoder import Architecture, Encoder, layout_of, load

Array = NDArray[Any]
Answers = dict[str, Tensor]
KINDS = ("static", "dynamic", "packed")
LEAST_BUCKET = 256  # tokens of the smallest packed graph; each further bucket is twice as large
SHORT = 128  # rows up to this length have packed graphs whose attention has fewer blocks
# A packed graph has room for one row per this many tokens: attention starts blocks even for absent rows. Batches with
# more rows than the last value allows are split.
HEADROOM = (64, 24, 12)


class Session:
    """An opened encoder. Use it from one thread at a time: its buffers are its own.

    kind: how the last run was made. note: why a requested feature is missing, else empty.
    """

    def __init__(
        self,
        folder: Path,
        *,
        device: str = "cpu",
        device_id: int = 0,
        threads: int = 1,
        precision: str = "",
        kinds: Sequence[str] = ("static",),
        lengths: Sequence[int] = (),
        max_rows: int = 1,
        packed_from: int = 0,
        budget: int = 16384,
        compiled: bool = True,
    ) -> None:
        """Open a model folder (see encoder.py) on the CPU with so many `threads`, or on a GPU.

        precision: empty for that of the folder. kinds: of KINDS. lengths: ascending, those that are recorded.
        packed_from: tokens of a padded batch, padding included, from which it is packed where another kind is there
        too. budget: tokens that a packed run computes at most; longer requests are split. compiled: on a GPU, layers
        are compiled by inductor.
        Raises ValueError for a folder or kinds that do not go together, RuntimeError where torch cannot use the GPU.
        """
        self._device = torch.device(f"cuda:{device_id}" if device == "cuda" else "cpu")
        if device == "cuda" and not torch.cuda.is_available():
            raise RuntimeError("this torch cannot use a GPU: install a build with CUDA, and check the driver")
        self._model = _open(folder, str(self._device), precision)
        self.arch: Architecture = self._model.arch
        self.precision = precision or self.arch.precision
        self.kinds = check_kinds(kinds, packs=self._model.packs, family=self.arch.family)
        self.kind, self.note = self.kinds[0], ""
        self.inputs = ("input_ids", "attention_mask") + (("token_type_ids",) if self.arch.types > 1 else ())
        self.outputs = self.arch.outputs
        self.vocabulary = self.arch.vocabulary
        self._lengths = tuple(length for length in lengths if length <= self.arch.positions) or (self.arch.positions,)
        self._rows = rows_to_record(max_rows)
        self._packed_from, self._budget = packed_from, budget
        self._graphs: dict[tuple[str, int, int, int], Any] = {}  # programs by kind, rows, tokens and longest row
        if device == "cpu":
            torch.set_num_threads(threads)
            self._model.prepack()
        else:
            self._varlen = self._model.packs and not self.arch.relative and self.precision != "fp32"
            with torch.inference_mode():
                self._prepare(compiled)

    @property
    def graphs(self) -> tuple[tuple[str, int, int], ...]:
        """(kind, rows, tokens of a row or of the bucket) that have a CUDA graph."""
        return tuple((kind, rows, tokens) for kind, rows, tokens, _ in self._graphs)

    def run(self, wanted: Sequence[str], tensors: Mapping[str, Array]) -> list[Array]:
        """The outputs `wanted`, in that order, float32, for INT64 inputs [rows, tokens]. Token-level outputs are
        [rows, tokens, ...], undefined at padding.

        Raises ValueError for a token id outside the vocabulary, rows that are too long, and a batch without tokens.
        """
        ids, mask, types = self._read(tensors)
        rows, tokens = ids.shape
        if not ids.size or tokens > self.arch.positions:
            raise ValueError(f"input_ids is {rows} x {tokens}: rows have 1 to {self.arch.positions} tokens")
        real = mask.sum(1)
        prefix = bool((mask[:, 0] == 1).all() and (np.diff(mask, axis=1) <= 0).all())
        self.kind = self._kind_of(rows, tokens) if prefix else "dynamic"
        with torch.inference_mode():
            if self.kind == "packed":
                return self._run_packed(wanted, ids, mask, types, real)
            answers = self._padded(ids, mask, types, real, full=bool((real == tokens).all()), prefix=prefix)
            return [_numpy(answers(name)) for name in wanted]

    def run_packed(self, wanted: Sequence[str], ids: Array, offsets: Array, types: Array | None = None) -> list[Array]:
        """Run rows that lie end to end, like `run`: `ids` INT64 [tokens], `offsets` [rows + 1] the rows' borders.

        Answers are [rows, ...]; token-level ones [tokens, ...].
        """
        self._check(ids)
        if types is not None:
            self._check_types(types)
        offsets = np.asarray(offsets)
        if np.diff(offsets).min(initial=1) < 1 or len(offsets) < 2 or offsets[0] != 0 or offsets[-1] != len(ids):
            raise ValueError(f"offsets must ascend from 0 to the {len(ids)} tokens, a row has one or more")
        self.kind = "packed"
        with torch.inference_mode():
            return self._in_chunks(wanted, ids, offsets, types)

    def _in_chunks(self, wanted: Sequence[str], ids: Array, offsets: Array, types: Array | None) -> list[Array]:
        """The answers to packed rows that were checked, in runs that keep to the budget."""
        found: list[list[Array]] = []
        for first, last in self._chunks(offsets):
            begin, end = int(offsets[first]), int(offsets[last])
            part = offsets[first : last + 1] - begin
            answers = self._packed(ids[begin:end], part, None if types is None else types[begin:end])
            found.append([_numpy(answers(name)) for name in wanted])
        return [np.concatenate(parts) if len(parts) > 1 else parts[0] for parts in zip(*found, strict=True)]

    def warm_up(self) -> None:
        """Run the shortest and the longest of each kind, so that no request pays for one-time work."""
        for tokens in {self._lengths[0], self._lengths[-1]}:
            for rows in {1, self._rows[-1]}:
                ones = np.ones((rows, tokens), np.int64)
                self.run(self.outputs[:1], {name: ones * (name != "token_type_ids") for name in self.inputs})

    def _kind_of(self, rows: int, tokens: int) -> str:
        if self.kinds == ("packed",) or "packed" not in self.kinds:
            return self.kinds[0]
        count, length = self._shape(rows, tokens) if "static" in self.kinds else (rows, tokens)
        return self.kinds[0] if 0 < count * length < self._packed_from else "packed"

    def _shape(self, rows: int, tokens: int) -> tuple[int, int]:
        """The recorded rows and length that take a batch; 0 where there are none."""
        count = next((count for count in self._rows if count >= rows), 0)
        return count, next((length for length in self._lengths if length >= tokens), 0)

    def _read(self, tensors: Mapping[str, Array]) -> tuple[Array, Array, Array | None]:
        ids = tensors["input_ids"]
        self._check(ids)
        mask = tensors.get("attention_mask")
        types = tensors.get("token_type_ids") if "token_type_ids" in self.inputs else None
        if types is not None and not types.any():
            types = None
        if types is not None:
            self._check_types(types)
        return ids, np.ones_like(ids) if mask is None else (mask != 0).astype(np.int64), types

    def _check(self, ids: Array) -> None:
        """Reject ids outside the vocabulary, which would crash a GPU."""
        if ids.size and (int(ids.min()) < 0 or int(ids.max()) >= self.vocabulary):
            raise ValueError(f"input_ids has an id outside 0 to {self.vocabulary - 1}")

    def _check_types(self, types: Array) -> None:
        if int(types.min()) < 0 or int(types.max()) >= self.arch.types:
            raise ValueError(f"token_type_ids has a type outside 0 to {self.arch.types - 1}")

    def _run_packed(
        self, wanted: Sequence[str], ids: Array, mask: Array, types: Array | None, real: Array
    ) -> list[Array]:
        """A padded request, packed; token-level answers are padded again."""
        rows, tokens = ids.shape
        there = mask.astype(bool)
        offsets = np.zeros(rows + 1, np.int64)
        np.cumsum(real, out=offsets[1:])
        answers = self._in_chunks(wanted, ids[there], offsets, None if types is None else types[there])
        for index, name in enumerate(wanted):
            if self.arch.by_token(name):
                spread = np.zeros((rows, tokens, *answers[index].shape[1:]), np.float32)
                spread[there] = answers[index]
                answers[index] = spread
        return answers

    def _chunks(self, offsets: Array) -> list[tuple[int, int]]:
        """Rows [first, last) of runs that keep to the budget; one row at least."""
        chunks, first, most = [], 0, max(1, self._budget // HEADROOM[-1])
        for row in range(1, len(offsets)):
            if row - first > 1 and (offsets[row] - offsets[first] > self._budget or row - first > most):
                chunks.append((first, row - 1))
                first = row - 1
        return [*chunks, (first, len(offsets) - 1)]

    def _padded(
        self, ids: Array, mask: Array, types: Array | None, real: Array, *, full: bool, prefix: bool
    ) -> Callable[[str], Tensor]:
        """A function that returns each output of a padded batch by name."""
        rows, tokens = ids.shape
        if self._device.type == "cuda" and prefix:
            shape = self._shape(rows, tokens)
            program: PaddedProgram | MaskedProgram | None = (
                self._graphs.get(("static", *shape, shape[1])) if self.kind == "static" else None
            )
            if program is None and self._varlen:
                program = PaddedProgram(self._model, rows, tokens)
            if program is not None:
                return program.of_rows(ids, types, real)

        def move(array: Array) -> Tensor:
            return torch.from_numpy(np.ascontiguousarray(array)).to(self._device)

        masked = None if full else move(mask)
        hidden = self._model.padded(move(ids), masked, None if types is None else move(types))
        answers = self._model.answers_padded(hidden, masked)
        return lambda name: answers[name]

    def _packed(self, ids: Array, offsets: Array, types: Array | None) -> Callable[[str], Tensor]:
        """A function that returns each output of a packed batch by name."""
        rows, tokens, longest = len(offsets) - 1, len(ids), int(np.diff(offsets).max(initial=0))
        if longest > self.arch.positions:
            raise ValueError(f"a row has {longest} tokens and the model reads {self.arch.positions}")
        if self._device.type == "cuda":
            key = next(
                (
                    key
                    for key in self._graphs
                    if key[0] == "packed" and rows <= key[1] and tokens <= key[2] and longest <= key[3]
                ),
                None,
            )
            if key is not None:
                program: PackedProgram = self._graphs[key]
                return program.of_tokens(ids, types, offsets)

        def place(array: Array, dtype: type[np.int32 | np.int64]) -> Tensor:
            return torch.from_numpy(array.astype(dtype)).to(self._device)

        layout = layout_of(place(offsets, np.int32), tokens, longest)
        hidden = self._model.packed(place(ids, np.int64), layout, None if types is None else place(types, np.int64))
        answers = self._model.answers_packed(hidden, layout)
        return lambda name: answers[name]

    def _prepare(self, compiled: bool) -> None:
        """Compile and record on the GPU."""
        program = PaddedProgram if self._varlen else MaskedProgram
        if compiled and self._model.packs:
            self._model.compile_layers()
            try:
                program(self._model, 2, self._lengths[0]).compute()
                torch.cuda.synchronize()
            except Exception as error:  # inductor raises many kinds
                self._model.uncompile_layers()
                self.note = f"layers are not compiled: {error}"
        pool = torch.cuda.graph_pool_handle()
        if "static" in self.kinds:
            for length in reversed(self._lengths):
                for rows in reversed(self._rows):
                    if "packed" in self.kinds and rows * length >= self._packed_from:
                        continue  # such batches are packed
                    self._graphs["static", rows, length, length] = program(self._model, rows, length).record(pool)
        if "packed" in self.kinds and self._varlen:
            longest = self._lengths[-1]
            bucket = LEAST_BUCKET
            while bucket <= self._budget:
                warm = True  # kernels of the bucket are loaded by its first run
                for room, most in itertools.product(HEADROOM, sorted({min(SHORT, longest), longest})):
                    packed = PackedProgram(self._model, bucket // room, bucket, most)
                    self._graphs["packed", bucket // room, bucket, most] = packed.record(pool, warm=warm)
                    warm = False
                bucket *= 2
        # The smallest that fits is taken first.
        self._graphs = dict(
            sorted(self._graphs.items(), key=lambda item: (item[0][0], item[0][2], item[0][1], item[0][3]))
        )


class Program(abc.ABC):
    """A run of one shape on buffers that stay where they are, recorded as a CUDA graph or launched."""

    def __init__(self, model: Encoder, rows: int, tokens: int) -> None:
        self._model, self.rows, self.tokens = model, rows, tokens
        self._graph: Any = None
        self._hidden: Tensor
        self._answers: Answers
        self._allocate(next(model.parameters()).device)

    @abc.abstractmethod
    def _allocate(self, device: torch.device) -> None:
        """Make the buffers."""

    @abc.abstractmethod
    def _compute(self) -> tuple[Tensor, Answers]:
        """The hidden states and the answers for the inputs in the buffers."""

    def compute(self) -> None:
        """Run on the inputs in the buffers."""
        if self._graph is not None:
            self._graph.replay()
        else:
            self._hidden, self._answers = self._compute()

    def record(self, pool: Any, *, warm: bool = True) -> Program:
        """Record the run as a CUDA graph, whose memory is shared with those of the same pool. warm: run once before,
        which loads and compiles kernels."""
        if warm:
            side = torch.cuda.Stream()  # type: ignore[no-untyped-call]  # torch leaves it untyped
            side.wait_stream(torch.cuda.current_stream())
            with torch.cuda.stream(side):
                self._compute()
            torch.cuda.current_stream().wait_stream(side)
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph, pool=pool):
            self._hidden, self._answers = self._compute()
        self._graph = graph
        return self

    def _copy(self, buffer: Tensor, array: Array) -> None:
        buffer.copy_(torch.from_numpy(np.ascontiguousarray(array)), non_blocking=True)


class PackedProgram(Program):
    """Packed rows: up to `rows` in up to `tokens` tokens, none longer than `longest`."""

    def __init__(self, model: Encoder, rows: int, tokens: int, longest: int) -> None:
        self._longest = longest
        super().__init__(model, rows, tokens)

    def _allocate(self, device: torch.device) -> None:
        self.ids = torch.ones(self.tokens, dtype=torch.int64, device=device)
        self._types = torch.zeros_like(self.ids) if self._model.arch.types > 1 else None
        self.offsets = torch.full((self.rows + 1,), min(self.tokens, self._longest), dtype=torch.int32, device=device)
        self.offsets[0] = 0

    def _compute(self) -> tuple[Tensor, Answers]:
        layout = layout_of(self.offsets, self.tokens, self._longest)
        hidden = self._model.packed(self.ids, layout, self._types)
        return hidden, self._model.answers_packed(hidden, layout, tokens=False)

    def of_tokens(self, ids: Array, types: Array | None, offsets: Array) -> Callable[[str], Tensor]:
        rows, tokens = len(offsets) - 1, len(ids)
        borders = np.full(self.rows + 1, tokens, np.int32)
        borders[: rows + 1] = offsets
        self._copy(self.ids[:tokens], ids)
        self._copy(self.offsets, borders)
        if self._types is not None:
            self._types.zero_() if types is None else self._copy(self._types[:tokens], types)
        self.compute()

        def answer(name: str) -> Tensor:
            if name == "last_hidden_state":
                return self._hidden[:tokens].float()
            found = self._answers[name]
            return found[:tokens] if self._model.arch.by_token(name) else found[:rows]

        return answer


class PaddedProgram(PackedProgram):
    """Rows padded to one length, as packed rows: each is two, its tokens and its padding, so that no mask is needed."""

    def __init__(self, model: Encoder, rows: int, length: int) -> None:
        self.length, self.padded_rows = length, rows
        super().__init__(model, 2 * rows, rows * length, length)

    def of_rows(self, ids: Array, types: Array | None, real: Array) -> Callable[[str], Tensor]:
        rows, tokens = ids.shape
        borders = np.zeros(2 * self.padded_rows + 1, np.int32)
        borders[2::2] = np.arange(1, self.padded_rows + 1) * self.length
        borders[1::2] = borders[:-1:2] + 1
        borders[1 : 2 * rows : 2] = borders[: 2 * rows : 2] + real
        shape = (self.padded_rows, self.length)
        self._copy(self.ids, _larger(ids, shape).reshape(-1))
        self._copy(self.offsets, borders)
        if self._types is not None:
            self._types.zero_() if types is None else self._copy(self._types, _larger(types, shape).reshape(-1))
        self.compute()

        def answer(name: str) -> Tensor:
            found = self._hidden.float() if name == "last_hidden_state" else self._answers[name]
            if self._model.arch.by_token(name):
                return found.reshape(self.padded_rows, self.length, *found.shape[1:])[:rows, :tokens]
            return found[0 : 2 * rows : 2]

        return answer


class MaskedProgram(Program):
    """Padded rows with a mask, for models that do not pack and for fp32."""

    def _allocate(self, device: torch.device) -> None:
        self.ids = torch.ones(self.rows, self.tokens, dtype=torch.int64, device=device)
        self._mask = torch.ones_like(self.ids)
        self._types = torch.zeros_like(self.ids) if self._model.arch.types > 1 else None

    def _compute(self) -> tuple[Tensor, Answers]:
        hidden = self._model.padded(self.ids, self._mask, self._types)
        return self.ids, self._model.answers_padded(hidden, self._mask)

    def of_rows(self, ids: Array, types: Array | None, real: Array) -> Callable[[str], Tensor]:
        rows, tokens = ids.shape
        shape = (self.rows, self.tokens)
        mask = _larger(np.arange(self.tokens) < real[:, None], shape)
        mask[rows:, 0] = 1  # rows that are not there have a token
        self._copy(self.ids, _larger(ids, shape))
        self._copy(self._mask, mask)
        if self._types is not None:
            self._types.zero_() if types is None else self._copy(self._types, _larger(types, shape))
        self.compute()

        def answer(name: str) -> Tensor:
            found = self._answers[name][:rows]
            return found[:, :tokens] if self._model.arch.by_token(name) else found

        return answer


def rows_to_record(max_rows: int) -> tuple[int, ...]:
    """Numbers of rows that have a CUDA graph, ascending: all up to 8, then 12, 16, 24, 32, 48 and so on; the most."""
    usual = {*range(1, 9), *(base << power for base in (3, 4) for power in range(2, 9)), max_rows}
    return tuple(sorted(rows for rows in usual if rows <= max_rows))


def check_kinds(kinds: Sequence[str], *, packs: bool, family: str) -> tuple[str, ...]:
    """The kinds in the order of KINDS. ValueError for unknown ones, and for packed where the family does not pack."""
    for kind in kinds:
        if kind not in KINDS:
            raise ValueError(f"kind {kind!r} is unknown: use {', '.join(KINDS)}")
    if "packed" in kinds and not packs:
        raise ValueError(f"models of the type {family} are not packed here: use --kinds static or dynamic")
    if not kinds:
        raise ValueError(f"name at least one kind of {', '.join(KINDS)}")
    return tuple(kind for kind in KINDS if kind in kinds)


def _open(folder: Path, device: str, precision: str) -> Any:
    if Architecture.read(folder).family != "transformers":
        return load(folder, device=device, precision=precision)
    from .foreign import Foreign

    return Foreign(folder, device=device, precision=precision)


def _larger(array: Array, shape: tuple[int, int]) -> Array:
    """`array` [rows, tokens] in the corner of zeros of a larger shape."""
    larger = np.zeros(shape, np.int64)
    larger[: array.shape[0], : array.shape[1]] = array
    return larger


def _numpy(tensor: Tensor) -> Array:
    """The tensor on the host, contiguous; a graph's output is copied, because the next run overwrites it."""
    array: Array = tensor.float().contiguous().cpu().numpy()
    return array
