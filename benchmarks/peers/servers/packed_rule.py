"""The batching rule of packed_fifo.py: text-embeddings-inference's for models that need no padding."""

from __future__ import annotations

import collections
import dataclasses
import enum
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

Ids = NDArray[np.int64]
Key = tuple[int, int]  # front, its number for the row


class Refusal(enum.Enum):
    """Why a row gets no vector."""

    FULL = enum.auto()
    INVALID = enum.auto()
    FAILED = enum.auto()


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Facts:
    """The model, as far as fronts need it."""

    longest: int  # tokens of a row
    vocabulary: int
    dims: int  # of a vector


@dataclasses.dataclass(slots=True)
class Row:
    """One row of tokens. `arrived_s`: of time.monotonic()."""

    key: Key
    ids: Ids
    arrived_s: float
    left: bool = False  # its client is gone


class PackedFifo:
    """The batching rule. No I/O and no threads.

    budget: tokens of a batch. most_rows: rows of a batch. bound: rows that wait or are computed at a time.
    """

    def __init__(self, *, budget: int, most_rows: int, bound: int) -> None:
        self.budget, self.most_rows, self.bound = budget, most_rows, bound
        self.refused = self.dropped = 0
        self._line: collections.deque[Row] = collections.deque()
        self._held: dict[Key, Row] = {}  # waiting or computed, and not left by their clients

    def add(self, row: Row) -> tuple[Refusal, str] | None:
        """Queue a row; else why not."""
        if len(row.ids) > self.budget:
            self.refused += 1
            return Refusal.INVALID, f"the row has {len(row.ids)} tokens, a batch takes {self.budget}"
        if len(self._held) >= self.bound:
            self.refused += 1
            return Refusal.FULL, f"{self.bound} rows are here already: try again later"
        self._held[row.key] = row
        self._line.append(row)
        return None

    def leave(self, key: Key) -> None:
        """The row's client is gone. Its place is free at once; a row that waits is dropped when its turn comes."""
        if row := self._held.pop(key, None):
            row.left = True

    def take(self) -> list[Row]:
        """The next batch; empty when nothing waits."""
        batch: list[Row] = []
        tokens = 0
        while self._line and len(batch) < self.most_rows:
            row = self._line[0]
            if not row.left:
                tokens += len(row.ids)
                if tokens > self.budget:
                    break
                batch.append(row)
            self.dropped += row.left
            self._line.popleft()
        return batch

    def finish(self, batch: Sequence[Row]) -> None:
        """The batch's rows are answered."""
        for row in batch:
            self._held.pop(row.key, None)
