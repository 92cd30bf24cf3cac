"""Stage `mixes`: rows a second of a long queue, by how its rows are put into batches.

    fifo32             32 rows in order of arrival, padded to the longest of them, kernels launched one by one
    fifo32-graphs      the same, padded on to the next of 16 lengths and replayed as CUDA graphs
    lengths8, 16       rows of one length class together, 32 at a time, padded to it, as graphs
    packed4096, ...    rows end to end in order of arrival, up to so many tokens, as one graph
    both               each length class as lengths16 or packed, whichever took less for a row in a trial

All are programs of the torch engine with the same kernels. The clock includes the copies of ids and row borders to the
card, and not the making of batches on the host.
"""

from __future__ import annotations

import dataclasses
import functools
import itertools
import time
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from arlo.templates.torch.encoder import Encoder
from arlo.templates.torch.session import PackedProgram, PaddedProgram
from benchmarks.gpu import Cell
from benchmarks.gpu import bench as common
from benchmarks.gpu.bench import POSITIONS, VOCABULARY, Bench, Lengths, offsets_of, packed_sizes, power

ROWS, BUDGETS = 32, (4096, 8192, 16384)
LEAST_S, MOST_S = 0.8, 3.0  # of a measurement, for the energy counter's steps and for the slowest plan


@dataclasses.dataclass(frozen=True, slots=True)
class Batch:
    """Rows of these lengths, padded to `size` tokens each or packed into `size` tokens together."""

    lengths: Lengths
    size: int
    packed: bool = False


def by_rows(lengths: Lengths) -> list[Lengths]:
    """32 rows at a time."""
    return [lengths[at : at + ROWS] for at in range(0, len(lengths), ROWS)]


def fifo(lengths: Lengths, steps: Sequence[int] = ()) -> list[Batch]:
    """Rows in order of arrival, padded to the longest, or on to the next of `steps`."""
    return [Batch(rows, next((s for s in steps if s >= rows.max()), int(rows.max()))) for rows in by_rows(lengths)]


def classes(lengths: Lengths, steps: Sequence[int]) -> dict[int, Lengths]:
    """The rows of each length class."""
    bounds = zip((0, *steps[:-1]), steps, strict=True)
    return {high: lengths[(lengths > low) & (lengths <= high)] for low, high in bounds}


def by_length(lengths: Lengths, steps: Sequence[int]) -> list[Batch]:
    """Rows of one class together."""
    return [Batch(rows, size) for size, group in classes(lengths, steps).items() for rows in by_rows(group)]


def packed(lengths: Lengths, budget: int) -> list[Batch]:
    """Rows in order of arrival, as many as fit into the budget."""
    total, batches, first = np.cumsum(lengths), [], 0
    while first < len(lengths):
        before = int(total[first - 1]) if first else 0
        last = max(first + 1, int(np.searchsorted(total, before + budget, "right")))
        batches.append(Batch(lengths[first:last], budget, packed=True))
        first = last
    return batches


class Player:
    """Runs batches, with a program for each distinct shape that is kept for all plans."""

    def __init__(self, bench: Bench, model: Encoder) -> None:
        self._bench, self._model = bench, model
        self._pool = torch.cuda.graph_pool_handle() if bench.cuda else None
        self._programs: dict[tuple[int, ...], Any] = {}
        self._ids = self._pinned(np.random.default_rng(1).integers(1000, VOCABULARY, 2**15))  # of the largest batch
        with torch.inference_mode():  # compiles the layers
            self._program(Batch(np.full(2, POSITIONS), POSITIONS), graphs=False).compute()

    def play(self, cell: Cell, batches: Sequence[Batch], *, graphs: bool, least_s: float = LEAST_S) -> None:
        """Play all batches again and again for `least_s`, at most MOST_S; keep rows a second and joules for a row."""
        programs = [self._program(batch, graphs=graphs) for batch in batches]
        borders = np.zeros((len(batches), 1 + max(program.rows for program in programs)), np.int32)
        for line, batch, program in zip(borders, batches, programs, strict=True):
            rows = batch.lengths
            parts = rows if batch.packed else np.stack([rows, batch.size - rows], 1).reshape(-1)  # tokens, padding
            line[: program.rows + 1] = offsets_of(parts, program.rows)
        pinned = self._pinned(borders)  # one buffer, as making one takes about a millisecond
        steps = [(program, line[: program.rows + 1]) for program, line in zip(programs, pinned, strict=True)]
        self._bench.sync()
        before, through, took_s, began_s = power("TotalEnergyConsumption"), 0, 0.0, time.monotonic()
        while took_s < least_s:
            for batch, (program, line) in zip(batches, steps, strict=True):
                program.ids.copy_(self._ids[: program.tokens], non_blocking=True)
                program.offsets.copy_(line, non_blocking=True)
                program.compute()
                through += len(batch.lengths)
                if time.monotonic() - began_s > MOST_S:
                    break
            self._bench.sync()
            took_s = time.monotonic() - began_s
        after = power("TotalEnergyConsumption")
        cell |= {"rows_s": round(through / took_s, 1), "seconds": round(took_s, 3), "through": through}
        if before is not None and after is not None:
            cell["joules_row"] = round((after - before) / through, 5)

    def _pinned(self, array: NDArray[Any]) -> torch.Tensor:
        tensor = torch.from_numpy(array)
        return tensor.pin_memory() if self._bench.cuda else tensor

    def _program(self, batch: Batch, *, graphs: bool) -> Any:
        """The program of a batch's shape. A graph has run once, as its first run takes longer."""
        rows = len(batch.lengths)
        sizes = packed_sizes(batch.lengths, batch.size) if batch.packed else (rows, batch.size)
        if (graphs, *sizes) not in self._programs:
            program: Any = (PackedProgram if batch.packed else PaddedProgram)(self._model, *sizes)
            if graphs:
                self._bench.recorded(program, self._pool).compute()
            self._programs[graphs, *sizes] = program
        return self._programs[graphs, *sizes]


def both(player: Player, lengths: Lengths, steps: Sequence[int], budget: int) -> list[Batch]:
    """Each class padded or packed, whichever was quicker in a trial."""
    chosen, rest = [], [lengths[:0]]
    for size, rows in classes(lengths, steps).items():
        some, rates = rows[: 4 * budget // size], []
        for way in (by_length(some, (size,)), packed(some, budget)):
            trial: Cell = {"rows_s": 0.0}
            if full := way[:-1]:
                player.play(trial, full, graphs=True, least_s=0.05)
            rates.append(trial["rows_s"])
        if rates[0] > rates[1]:
            chosen += by_length(rows, (size,))
        else:
            rest.append(rows)
    loose = np.concatenate(rest)
    np.random.default_rng(2).shuffle(loose)
    return chosen + packed(loose, budget)


def run(bench: Bench) -> None:
    """Write mixes.json: each plan of each mix."""
    shape, count, least_s = ("tiny", 120, 0.1) if bench.dry else ("bert-base", 20_000, LEAST_S)
    steps8, steps16 = range(64, POSITIONS + 1, 64), range(32, POSITIONS + 1, 32)
    budgets = (512,) if bench.dry else BUDGETS
    player = Player(bench, bench.model(shape, compiled=None if bench.dry else True))
    plans: dict[str, Callable[[Lengths], list[Batch]]] = {
        "fifo32": fifo,
        "lengths8": lambda rows: by_length(rows, steps8),
        **{f"packed{budget}": functools.partial(packed, budget=budget) for budget in budgets},
        "lengths16": lambda rows: by_length(rows, steps16),
        "both": lambda rows: both(player, rows, steps16, budgets[-1]),
        "fifo32-graphs": lambda rows: fifo(rows, steps16),
    }
    rows = common.mixes(count, seed=9)

    def measure(cell: Cell) -> None:
        lengths = rows[cell["mix"]]
        batches = plans[cell["plan"]](lengths)
        cell |= {"rows": count, "tokens": int(lengths.sum()), "batches": len(batches)}
        player.play(cell, batches, graphs=cell["plan"] != "fifo32", least_s=least_s)
        cell["tflops"] = common.useful_tflops(shape, lengths, 1e3 * count / cell["rows_s"])

    for mix, plan in itertools.product(("mix", "tweets", "rag"), plans):
        bench.cell("plan", {"shape": shape, "mix": mix, "plan": plan}, measure)
