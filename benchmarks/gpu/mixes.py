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

from arlo.templates.torch.encoder import Encoder
from benchmarks.gpu import bench as common
from benchmarks.gpu.bench import POSITIONS, VOCABULARY, Bench, Cell, Lengths, Power, offsets_of, padded_borders

FILE = "mixes.json"
ROWS, BUDGETS = 32, (4096, 8192, 16384)
LEAST_S, MOST_S = 0.8, 3.0  # of a measurement, for the energy counter's steps and for the slowest plan

Step = tuple[Callable[[], None], int]  # and its rows


@dataclasses.dataclass(frozen=True, slots=True)
class Batch:
    """Rows of these lengths, padded to `size` tokens each or packed into `size` tokens together."""

    lengths: Lengths
    size: int
    packed: bool = False


def fifo(lengths: Lengths, steps: Sequence[int] = ()) -> list[Batch]:
    """Rows in order of arrival, padded to the longest, or on to the next of `steps`."""
    parts = [lengths[at : at + ROWS] for at in range(0, len(lengths), ROWS)]
    return [Batch(part, next((s for s in steps if s >= part.max()), int(part.max()))) for part in parts]


def classes(lengths: Lengths, steps: Sequence[int]) -> dict[int, Lengths]:
    """The rows of each length class."""
    bounds = zip((0, *steps[:-1]), steps, strict=True)
    return {high: lengths[(lengths > low) & (lengths <= high)] for low, high in bounds}


def by_length(lengths: Lengths, steps: Sequence[int]) -> list[Batch]:
    """Rows of one class together."""
    groups = classes(lengths, steps).items()
    return [Batch(rows[at : at + ROWS], size) for size, rows in groups for at in range(0, len(rows), ROWS)]


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
    """Runs batches, with a program for each distinct shape."""

    def __init__(self, bench: Bench, model: Encoder) -> None:
        self._bench, self._model, self._power = bench, model, Power()
        ids = np.random.default_rng(1).integers(1000, VOCABULARY, 2**15)  # tokens of the largest batch
        self._ids = self._pinned(torch.from_numpy(ids))

    def play(self, cell: Cell, batches: Sequence[Batch], *, graphs: bool, least_s: float = LEAST_S) -> None:
        """Play all batches again and again for `least_s`, at most MOST_S; keep rows a second and joules for a row."""
        steps, first = self._prepared(batches, graphs=graphs)
        for step in first:
            step()
        self._bench.sync()
        before, rows, took_s, began_s = self._power.read("TotalEnergyConsumption"), 0, 0.0, time.monotonic()
        while took_s < least_s:
            for step, count in steps:
                step()
                rows += count
                if time.monotonic() - began_s > MOST_S:
                    break
            self._bench.sync()
            took_s = time.monotonic() - began_s
        after = self._power.read("TotalEnergyConsumption")
        cell |= {"rows_s": round(rows / took_s, 1), "seconds": round(took_s, 3), "through": rows}
        if before is not None and after is not None:
            cell["joules_row"] = round((after - before) / rows, 5)

    def _pinned(self, tensor: torch.Tensor) -> torch.Tensor:
        return tensor.pin_memory() if self._bench.cuda else tensor

    def _prepared(self, batches: Sequence[Batch], *, graphs: bool) -> tuple[list[Step], list[Callable[[], None]]]:
        """A step for each batch, and one for each distinct shape, whose first run takes longer."""
        together = [batch.lengths for batch in batches if batch.packed]
        most = max(map(len, together), default=0)
        longest = max((int(lengths.max()) for lengths in together), default=0)
        programs: dict[tuple[bool, int, int], Any] = {}
        steps: list[Step] = []
        first: dict[tuple[bool, int, int], Callable[[], None]] = {}
        for batch in batches:
            rows = len(batch.lengths)
            key = (batch.packed, batch.size, 0 if batch.packed else rows)
            if key not in programs and batch.packed:
                programs[key] = self._bench.packed(self._model, most, longest, batch.size)
            elif key not in programs:
                programs[key] = self._bench.padded(self._model, rows, batch.size, record=graphs)
            program = programs[key]
            borders = (
                offsets_of(batch.lengths, program.rows) if batch.packed else padded_borders(batch.lengths, batch.size)
            )
            steps.append((functools.partial(self._step, program, self._pinned(torch.from_numpy(borders))), rows))
            first.setdefault(key, steps[-1][0])
        return steps, list(first.values())

    def _step(self, program: Any, borders: torch.Tensor) -> None:
        program.ids.copy_(self._ids[: program.tokens], non_blocking=True)
        program.offsets.copy_(borders, non_blocking=True)
        program.compute()


def both(player: Player, lengths: Lengths, steps: Sequence[int], budget: int) -> list[Batch]:
    """Each class padded or packed, whichever was quicker in a trial."""
    chosen, rest = [], [lengths[:0]]
    for size, rows in classes(lengths, steps).items():
        rates = []
        for way in (by_length(rows[:256], (size,)), packed(rows[:256], budget)):
            trial: Cell = {"rows_s": 0.0}
            if way:
                player.play(trial, way, graphs=True, least_s=0.05)
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
    player, cells = Player(bench, bench.model(shape, compiled=None if bench.dry else True)), list[Cell]()
    plans: dict[str, Callable[[Lengths], list[Batch]]] = {
        "fifo32": fifo,
        "lengths8": lambda rows: by_length(rows, steps8),
        **{f"packed{budget}": functools.partial(packed, budget=budget) for budget in budgets},
        "lengths16": lambda rows: by_length(rows, steps16),
        "both": lambda rows: both(player, rows, steps16, budgets[-1]),
        "fifo32-graphs": lambda rows: fifo(rows, steps16),
    }
    rows = {mix: draw(count) for mix, draw in common.mixes(9).items()}
    for mix, plan in itertools.product(("mix", "tweets", "rag"), plans):
        if not bench.room("plan"):
            return
        lengths = rows[mix]

        def measure(cell: Cell, lengths: Lengths = lengths) -> None:
            batches = plans[cell["plan"]](lengths)
            cell["batches"] = len(batches)
            player.play(cell, batches, graphs=cell["plan"] != "fifo32", least_s=least_s)
            work = common.architecture(shape).flops(lengths.astype(np.float64)) / count
            cell["tflops"] = round(work * cell["rows_s"] / 1e12, 2)

        about: Cell = {"shape": shape, "mix": mix, "plan": plan, "rows": count, "tokens": int(lengths.sum())}
        bench.cell("plan", cells, lambda: bench.save(FILE, cells), about, measure)
        if bench.cuda:
            torch.cuda.empty_cache()
