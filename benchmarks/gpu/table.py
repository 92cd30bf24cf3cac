"""Stage `table`: times of encoders by shape, eager and compiled by inductor, launched one by one and as CUDA graphs.

    eager, dynamic, compiled   padded rows; layers as they are, compiled once for all shapes, or for each shape. Rows
                               are full and have no mask, so that attention is the same in all of them
    static                     the torch engine's programs, which take ragged rows; the profiles are made of these
    packed-eager, -compiled    packed rows with the layers of that kind
    packed                     the engine's programs of packed rows

`launched_ms` and `graph_ms` are times on the device, `host_ms` is from ids in host memory to answers in host memory.
"""

from __future__ import annotations

import functools
import itertools
import time
from collections.abc import Callable, Sequence

import numpy as np
import torch

from arlo.templates.torch.encoder import Encoder, layout_of
from arlo.templates.torch.session import PackedProgram, PaddedProgram
from benchmarks.gpu import BUCKETS, LENGTHS, ROWS, Cell
from benchmarks.gpu import bench as common
from benchmarks.gpu.bench import EMBEDDING, POSITIONS, VOCABULARY, Bench, Lengths, filled, offsets_of

GRID, GRID_ROWS = (16, *range(32, 513, 32)), (1, 2, 4, 8, 16, 32, 64)
CORNERS = (16, 64, 128, 256, 384, 512)
FEW_BUCKETS = (512, 4096, 16384)
MODES = {"eager": None, "compiled": False}  # how layers are compiled; for any shape (True) in all other kinds
GIVE_UP = 3

Host = Callable[[], torch.Tensor]


class Table:
    """Measures each cell once, and none of a shape and kind that failed GIVE_UP times in a row."""

    def __init__(self, bench: Bench) -> None:
        self._bench, self._made = bench, functools.cache(bench.model)

    def padded(self, shape: str, kind: str, lengths: Sequence[int], rows: Sequence[int]) -> None:
        """Cells of padded rows, which are full."""
        for length, count in itertools.product(lengths, rows):
            self._cell({"shape": shape, "kind": kind, "length": length, "rows": count}, np.full(count, length))

    def packed(self, shape: str, kind: str, buckets: Sequence[int]) -> None:
        """Cells of packed rows by bucket and mix. Rows of one length and half a bucket are for the fit of the cost."""
        for tokens in buckets:
            batches = {mix: filled(rows, tokens) for mix, rows in common.mixes(tokens, seed=tokens).items()}
            batches |= {f"fixed:{n}": np.full(tokens // n, n) for n in (16, POSITIONS) if n <= tokens}
            batches["half"] = filled(batches["mix"], tokens // 2)
            for mix, rows in batches.items():
                about = {"shape": shape, "kind": kind, "tokens": tokens, "mix": mix, "live": int(rows.sum())}
                self._cell(about | {"rows": len(rows), "squares": int(np.square(rows).sum())}, rows)

    def _cell(self, about: Cell, lengths: Lengths) -> None:
        name = f"{about['shape']} {about['kind']}"
        before = [cell for cell in self._bench.cells if f"{cell['shape']} {cell['kind']}" == name]
        failures = sum("error" in cell for cell in before[-GIVE_UP:])
        if failures == GIVE_UP or any(about.items() <= cell.items() for cell in before):
            return

        def measure(cell: Cell) -> None:
            self._times(cell, *(self._packed(cell, lengths) if "tokens" in cell else self._padded(cell)))
            cell["tflops"] = common.useful_tflops(cell["shape"], lengths, cell["graph_ms"])

        self._bench.cell(name, about, measure)

    def _padded(self, cell: Cell) -> tuple[Callable[[], object], Host | None]:
        rows, length = cell["rows"], cell["length"]
        model, ids = self._model(cell), _ids(rows, length)
        if cell["kind"] == "static":
            program, real = self._bench.recorded(PaddedProgram(model, rows, length)), np.full(rows, length)
            return program.compute, lambda: program.of_rows(ids, None, real)(EMBEDDING)
        there = torch.from_numpy(ids).to(self._bench.device)
        return lambda: model.answers_padded(model.padded(there, None), None), None

    def _packed(self, cell: Cell, lengths: Lengths) -> tuple[Callable[[], object], Host | None]:
        bench, model = self._bench, self._model(cell)
        if cell["kind"] == "packed":
            program = bench.recorded(PackedProgram(model, *common.packed_sizes(lengths, cell["tokens"])))
            live, borders = _ids(cell["live"]), offsets_of(lengths, len(lengths))
            program.of_tokens(live, None, borders)
            return program.compute, lambda: program.of_tokens(live, None, borders)(EMBEDDING)
        offsets = torch.from_numpy(offsets_of(lengths, len(lengths) + 8)).to(bench.device)
        ids = torch.from_numpy(_ids(cell["tokens"])).to(bench.device)

        def run() -> object:
            layout = layout_of(offsets, len(ids), POSITIONS)
            return model.answers_packed(model.packed(ids, layout), layout)

        return run, None

    def _times(self, cell: Cell, run: Callable[[], object], host: Host | None) -> None:
        """Time a run. A run with `host`, the way from memory to memory, is already a graph."""
        bench, began_s = self._bench, time.monotonic()
        run()
        bench.sync()
        cell["first_s"] = round(time.monotonic() - began_s, 3)
        if host is None:
            cell["launched_ms"] = bench.time_ms(run)
            run = bench.graph(run)
        cell["graph_ms"] = bench.time_ms(run)
        if host is not None:
            cell["host_ms"] = bench.time_ms(lambda: host().cpu().numpy(), clock=True)

    def _model(self, cell: Cell) -> Encoder:
        compiled = MODES.get(cell["kind"].removeprefix("packed-"), True)
        return self._made(cell["shape"], compiled=None if self._bench.dry and compiled else compiled)


def _ids(*shape: int) -> Lengths:
    return np.random.default_rng(1).integers(1000, VOCABULARY, shape)


def run(bench: Bench) -> None:
    """Write table.json, the sections of most value first and quick builds before slow ones."""
    table, base = Table(bench), "bert-base"
    if bench.dry:
        table.padded("tiny", "eager", (16, 64), (1, 4))
        table.padded("tiny", "static", (16, 512), (1, 4))
        table.packed("tiny", "packed-eager", (64, 256))
        table.packed("tiny", "packed", (256,))
        table.padded("tiny", "compiled", (16,), (4,))
        return
    table.padded(base, "eager", LENGTHS, ROWS)
    table.padded(base, "dynamic", LENGTHS, ROWS)
    table.packed(base, "packed", BUCKETS)
    table.padded("bert-large", "static", CORNERS, GRID_ROWS)
    table.packed("bert-large", "packed", BUCKETS)
    table.padded(base, "compiled", (16, 128, 512), ROWS)
    table.padded(base, "static", GRID, GRID_ROWS)
    table.packed(base, "packed-eager", FEW_BUCKETS)
    table.padded("minilm-l6", "static", CORNERS, GRID_ROWS)
    table.packed("minilm-l6", "packed", BUCKETS)
    for shape in ("bert-large", "minilm-l6"):
        table.padded(shape, "eager", CORNERS, ROWS)
    table.packed(base, "packed-eager", BUCKETS)
    table.padded(base, "compiled", LENGTHS, ROWS)
    table.packed(base, "packed-compiled", FEW_BUCKETS)
