"""How much work a workload is, whatever the policy: the least number of workers that could carry it."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from arlo.simulator.scenario.scenario import RuntimeModel, Scenario

MOST_REQUESTS = 20_000_000  # read to know the lengths; the rest is like them


def offered_workers(scenario: Scenario) -> float:
    """Workers kept busy on average if every request ran on the runtime that is quickest for it, in full batches.

    Below this number the queues grow without end, under any policy. Requests that no runtime takes are left out.
    """
    longest = max(runtime.max_length for runtime in scenario.runtimes)
    counts = np.zeros(longest + 1, np.int64)
    seen, last_ns = 0, 0
    for arrived, length in scenario.workload.chunks():
        counts += np.bincount(length[length <= longest], minlength=longest + 1)
        seen += len(length)
        last_ns = int(arrived[-1]) if len(arrived) else last_ns
        if seen >= MOST_REQUESTS:
            break
    duration_s = last_ns / 1e9 if seen >= MOST_REQUESTS else scenario.workload.duration_s
    lengths = np.flatnonzero(counts)
    busy_ms = sum(
        int(counts[n]) * min(_row_ms(r, int(n)) for r in scenario.runtimes if r.max_length >= n) for n in lengths
    )
    return busy_ms / 1000 / duration_s


def least_workers(offered: float) -> int:
    """The smallest number of workers that is more than what is kept busy."""
    return math.floor(offered) + 1


def _row_ms(runtime: RuntimeModel, length: int) -> float:
    """Time of one row, in the batch size that makes it the least."""
    from arlo.simulator.profiles import latency_ms

    points = runtime.truth or runtime.points
    at = length if runtime.dynamic else runtime.max_length
    rows = sorted({batch for _, batch, _ in points if batch <= runtime.max_batch} | {1, runtime.max_batch})
    return min(latency_ms(points, at, batch) / batch for batch in rows)
