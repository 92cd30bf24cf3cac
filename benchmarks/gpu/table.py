"""Stage `table`: times of encoders by shape, eager and compiled by inductor, launched one by one and as CUDA graphs.

    eager, dynamic, compiled   padded rows; layers as they are, compiled once for all shapes, or for each shape. Rows
                               are full and have no mask, so that attention is the same in all of them
    static                     the torch engine's programs, which take ragged rows; the profiles are made of these
    packed-eager, -compiled    packed rows with the layers of that kind
    packed                     the engine's programs of packed rows

`launched_ms` and `graph_ms` are times on the device, `host_ms` is from ids in host memory to answers in host memory.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Sequence

import numpy as np
import torch

from arlo.templates.torch.encoder import Encoder, layout_of
from benchmarks.gpu import bench as common
from benchmarks.gpu.bench import EMBEDDING, POSITIONS, VOCABULARY, Bench, Cell, Lengths, filled, offsets_of

FILE = "table.json"
LENGTHS, ROWS = (16, 32, 64, 128, 192, 256, 384, 512), (1, 8, 32)
GRID, GRID_ROWS = (16, *range(32, 513, 32)), (1, 2, 4, 8, 16, 32, 64)
CORNERS = (16, 64, 128, 256, 384, 512)
BUCKETS, FEW_BUCKETS = (256, 512, 1024, 2048, 4096, 8192, 16384), (512, 4096, 16384)
MODES = {"eager": None, "compiled": False}  # how layers are compiled; for any shape (True) in all other kinds
GIVE_UP = 3  # failures one after the other, of a section

Host = Callable[[], torch.Tensor]


class Table:
    """The cells so far. A section leaves out what is measured, and ends when the time does."""

    def __init__(self, bench: Bench) -> None:
        self._bench, self._cells, self._seen = bench, list[Cell](), set[tuple[object, ...]]()
        self._models: dict[tuple[str, str], Encoder] = {}

    def padded(self, shape: str, kind: str, lengths: Iterable[int], rows: Sequence[int]) -> None:
        """Cells of padded rows."""
        self._section(({"shape": shape, "kind": kind, "length": n, "rows": r}, None) for n in lengths for r in rows)

    def packed(self, shape: str, kind: str, buckets: Sequence[int]) -> None:
        """Cells of packed rows by bucket and mix. Rows of one length and half a bucket are for the fit of the cost."""
        for tokens in buckets:
            batches = {mix: filled(draw(tokens), tokens) for mix, draw in common.mixes(tokens).items()}
            batches |= {f"fixed:{n}": np.full(tokens // n, n) for n in (16, POSITIONS) if n <= tokens}
            batches["half"] = filled(common.mixes(tokens)["mix"](tokens), tokens // 2)
            about = {"shape": shape, "kind": kind, "tokens": tokens}
            self._section((about | {"mix": mix, **_counted(rows)}, rows) for mix, rows in batches.items())

    def _section(self, wanted: Iterable[tuple[Cell, Lengths | None]]) -> None:
        bench, failed = self._bench, 0
        for about, lengths in wanted:
            key = tuple(about.get(name) for name in ("shape", "kind", "length", "rows", "tokens", "mix"))
            room = f"{about['shape']} {about['kind']}"
            if key in self._seen:
                continue
            if failed == GIVE_UP or not bench.room(room):
                return
            self._seen.add(key)

            def measure(cell: Cell, lengths: Lengths | None = lengths) -> None:
                full = np.full(cell["rows"], cell.get("length", 0)) if lengths is None else lengths
                self._times(cell, *(self._padded(cell) if lengths is None else self._packed(cell, full)))
                cell["tflops"] = common.useful_tflops(cell["shape"], full, cell["graph_ms"])

            found = bench.cell(room, self._cells, lambda: bench.save(FILE, self._cells), about, measure)
            failed = failed + 1 if "error" in found else 0

    def _padded(self, cell: Cell) -> tuple[Callable[[], object], Host | None]:
        rows, length = cell["rows"], cell["length"]
        model, ids = self._model(cell["shape"], cell["kind"]), _ids(rows, length)
        if cell["kind"] == "static":
            program, real = self._bench.padded(model, rows, length), np.full(rows, length)
            return program.compute, lambda: program.of_rows(ids, None, real)(EMBEDDING)
        there = torch.from_numpy(ids).to(self._bench.device)
        return lambda: model.answers_padded(model.padded(there, None), None), None

    def _packed(self, cell: Cell, lengths: Lengths) -> tuple[Callable[[], object], Host | None]:
        bench, model = self._bench, self._model(cell["shape"], cell["kind"].removeprefix("packed-"))
        if cell["kind"] == "packed":
            program = bench.packed(model, len(lengths), int(lengths.max()), cell["tokens"])
            live, borders = _ids(cell["live"]), offsets_of(lengths, len(lengths))
            program.of_tokens(live, None, borders)
            return program.compute, lambda: program.of_tokens(live, None, borders)(EMBEDDING)
        offsets = torch.from_numpy(offsets_of(lengths, len(lengths) + 8)).to(bench.device)
        ids = torch.from_numpy(_ids(cell["tokens"])).to(bench.device)

        def run() -> object:
            layout = layout_of(offsets, len(ids), POSITIONS)
            return model.answers_packed(model.packed_at(ids, layout), layout)

        return run, None

    def _times(self, cell: Cell, run: Callable[[], object], host: Host | None) -> None:
        """Time a run; one that has `host`, the way from memory to memory, is a graph already."""
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

    def _model(self, shape: str, kind: str) -> Encoder:
        kind = kind if kind in MODES else "dynamic"
        if (shape, kind) not in self._models:
            self._models = {key: model for key, model in self._models.items() if key[0] == shape}
            compiled = None if self._bench.dry and kind != "compiled" else MODES.get(kind, True)
            self._models[shape, kind] = self._bench.model(shape, compiled=compiled)
        return self._models[shape, kind]


def _counted(rows: Lengths) -> Cell:
    return {"live": int(rows.sum()), "rows": len(rows), "squares": int(np.square(rows).sum())}


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
