"""Which cells to measure, and in what order: the most telling first, so that a budget drops the least telling. Pure."""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Literal

from benchmarks.gpu.options import COARSE, Options

Shape = Literal["static", "dynamic", "padded", "profiles", "user"]

TIERS = (
    "batch 1 at every 64 tokens",
    "batch 1 between them",
    "larger batches at every 64 tokens",
    "larger batches between them",
    "what other cells nearly tell: padded and slowly built runtimes between every 64 tokens",
)


@dataclasses.dataclass(frozen=True, slots=True, order=True)
class Cell:
    """One contender at one length and batch."""

    model: str
    precision: str
    length: int
    batch: int
    contender: str


@dataclasses.dataclass(frozen=True, slots=True)
class Visit:
    """Cells that are measured together, contenders taking turns: of one model, precision and length."""

    tier: int  # of TIERS
    model: str
    precision: str
    length: int
    cells: tuple[Cell, ...]  # by batch, then in the order of the contenders


def tier_of(cell: Cell, options: Options, shape: Shape, *, slow: bool) -> int:
    """How telling a cell is; smaller is more. See TIERS."""
    coarse = cell.length % COARSE == 0 or cell.length in (options.lengths[0], options.longest)
    if not coarse and (slow or shape == "padded"):
        return 4
    # Many batch sizes say little more than a small, a middle and the largest one.
    return 2 * (cell.batch != 1) + (not coarse)


def plan(
    options: Options,
    contenders: Mapping[tuple[str, str], Sequence[tuple[str, Shape, bool]]],
    done: Collection[Cell] = (),
) -> list[Visit]:
    """The visits in order. contenders: by (model, precision), name, shape and whether it is slow to build."""
    found = set(done)
    visits: list[Visit] = []
    for tier, model, precision, length in itertools.product(
        range(len(TIERS)), options.models, options.precisions, options.lengths
    ):
        cells = [
            cell
            for batch in options.batches
            for name, shape, slow in contenders.get((model, precision), ())
            if (cell := Cell(model, precision, length, batch, name)) not in found
            and tier_of(cell, options, shape, slow=slow) == tier
        ]
        if cells:
            visits.append(Visit(tier, model, precision, length, tuple(cells)))
    return visits


def describe(cells: Iterable[Cell]) -> list[str]:
    """Cells as a few lines for people, one for each model, precision and contender."""
    lines = []
    key = lambda cell: (cell.model, cell.precision, cell.contender)  # noqa: E731  # used twice, below
    for (model, precision, contender), group in itertools.groupby(sorted(cells, key=key), key):
        of_batch: dict[int, list[int]] = {}
        for cell in group:
            of_batch.setdefault(cell.batch, []).append(cell.length)
        parts: dict[str, list[int]] = {}
        for batch, lengths in sorted(of_batch.items()):
            parts.setdefault(_ranges(sorted(lengths)), []).append(batch)
        text = "; ".join(f"batch {', '.join(map(str, batches))} at {where}" for where, batches in parts.items())
        lines.append(f"{model} {precision} {contender}: {text}")
    return lines


def _ranges(lengths: Sequence[int]) -> str:
    """`64`, `64, 128`, or `16 to 512 (25 lengths)` for more than four."""
    if len(lengths) <= 4:
        return ", ".join(map(str, lengths))
    return f"{lengths[0]} to {lengths[-1]} ({len(lengths)} lengths)"
