"""The content of each request of a trace: real text cut to its length, or random token ids."""

from __future__ import annotations

import dataclasses

import numpy as np
from numpy.typing import NDArray

from arlo.traces import Row, TextSource, Trace

# Distinct rows prepared for one replay. More only costs memory and time before the start.
MAX_ROWS = 20_000
_FIRST, _LAST, _LOWEST_ID = 101, 102, 1000  # [CLS], [SEP] and the first ordinary token of BERT vocabularies


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Rows:
    """rows[which[i]] is what request i carries; which: uint32[n]."""

    rows: list[Row]
    which: NDArray[np.uint32]

    def of(self, request: int) -> Row:
        """The row of one request."""
        return self.rows[int(self.which[request])]


def make_rows(trace: Trace, source: TextSource | None, *, vocabulary: int = 30_000, seed: int = 0) -> Rows:
    """Rows for a trace, from `source`, or random ids below `vocabulary` where it is None.

    Requests with the same length and text_id share a row; so do others where there would be more than MAX_ROWS.
    """
    lengths = np.unique(trace.length)
    per_length = max(1, MAX_ROWS // max(len(lengths), 1))
    key = trace.text_id if trace.text_id is not None else np.arange(len(trace), dtype=np.int64)
    pairs, which = np.unique(np.stack([trace.length, key], axis=1), axis=0, return_inverse=True)
    if len(pairs) > MAX_ROWS:
        pairs, which = np.unique(np.stack([trace.length, key % per_length], axis=1), axis=0, return_inverse=True)
    rows = [
        source.row(int(length), int(k)) if source is not None else _random_row(int(length), int(k), vocabulary, seed)
        for length, k in pairs.tolist()
    ]
    return Rows(rows=rows, which=which.reshape(-1).astype(np.uint32))


def _random_row(length: int, key: int, vocabulary: int, seed: int) -> Row:
    low = min(_LOWEST_ID, vocabulary - 1)
    rng = np.random.default_rng([seed, length, abs(key)])
    ids = rng.integers(low, vocabulary, length, dtype=np.int64)
    if length >= 2 and vocabulary > _LAST:
        ids[0], ids[-1] = _FIRST, _LAST
    return Row(ids=ids, text=None)
