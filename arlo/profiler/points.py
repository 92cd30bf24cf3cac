"""The choice of the points of a runtime to measure. Pure."""

from __future__ import annotations

from collections.abc import Sequence

from arlo.catalog.manifest import Runtime
from arlo.errors import ConfigError

# Two lengths in each step of 64 tokens show the steps; 16 lengths in all at most.
_SPACING = 32
_FINE = 16
_COARSE = 4  # lengths of a dynamic runtime that every batch is measured at


def choose_points(
    runtime: Runtime, *, lengths: Sequence[int] | None = None, batches: Sequence[int] | None = None
) -> list[tuple[int, int]]:
    """(length, batch) in the order of measuring: the longest length first, since every plan depends on it.

    Batches: those asked for up to max_batch, else 1, 2, 4, ... and max_batch. Lengths of a static runtime: its
    max_length. Of a dynamic one: max_length and those asked for below it; else at batch 1 up to 16, close enough to
    see steps of 64 tokens up to 512, and 4 of them at larger batches.
    """
    rows = [batch for batch in batches if batch <= runtime.max_batch] if batches else default_batches(runtime.max_batch)
    if not rows:
        raise ConfigError(f"runtime {runtime.name} has max_batch {runtime.max_batch}: give a --batches at most that")
    if not runtime.dynamic:
        return [(runtime.max_length, batch) for batch in sorted(set(rows))]
    spacing = _SPACING * max(1, -(-runtime.max_length // (_FINE * _SPACING)))
    fine = {runtime.max_length, *range(spacing, runtime.max_length, spacing)}
    coarse = {runtime.max_length, *sorted(fine)[-1 :: -max(1, len(fine) // _COARSE)]}
    if lengths:
        fine = coarse = {runtime.max_length, *(length for length in lengths if length < runtime.max_length)}
    return [
        (length, batch)
        for batch in sorted(set(rows))
        for length in sorted(fine if batch == 1 else coarse, reverse=True)
    ]


def default_batches(max_batch: int) -> list[int]:
    """1, 2, 4, ... and max_batch itself."""
    return sorted({*(1 << power for power in range(max_batch.bit_length())), max_batch})
