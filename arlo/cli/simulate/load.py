"""The work in a workload, independent of the policy: the least number of workers that could carry it."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from arlo.simulator.scenario.scenario import RuntimeModel, Scenario, Workload

MOST_REQUESTS = 20_000_000  # read to learn the lengths; the rest is like them


ROUNDING = 1e-9  # relative: a load of exactly 5 workers is computed as 5.000000000000001 at times


def offered_workers(scenario: Scenario, share: float = 1.0) -> float:
    """Workers kept busy on average if every request ran on the runtime that is quickest for it, in full batches.

    Below this number the queues grow without end, under any policy. Requests that no runtime takes are left out.
    `share`: of all requests, those that take the least time; so much must be done if that share is to be on time.
    """
    if scenario.served is not None:
        rows = float(scenario.workload.expected())  # type: ignore[attr-defined]
        return scenario.served.work_s * rows / scenario.workload.duration_s
    work: list[tuple[float, float]] = []  # ms of a row, rows in a second
    for workload, runtimes in _parts(scenario):
        longest = max(runtime.max_length for runtime in runtimes)
        counts = np.zeros(longest + 1, np.int64)
        seen, last_ns = 0, 0
        for arrived, length in workload.chunks():
            counts += np.bincount(length[length <= longest], minlength=longest + 1)
            seen += len(length)
            last_ns = int(arrived[-1]) if len(arrived) else last_ns
            if seen >= MOST_REQUESTS:
                break
        duration_s = last_ns / 1e9 if seen >= MOST_REQUESTS else scenario.workload.duration_s
        work += [
            (min(_row_ms(r, n) for r in runtimes if r.max_length >= n), counts[n] / duration_s)
            for n in np.flatnonzero(counts).tolist()
        ]
        too_long = seen - int(counts.sum())
        work.append((0.0, too_long / duration_s))
    busy, left = 0.0, share * sum(rows for _, rows in work)
    for ms, rows in sorted(work):
        done = min(rows, left)
        busy, left = busy + done * ms / 1000, left - done
    return busy


def _parts(scenario: Scenario) -> Iterator[tuple[Workload, Sequence[RuntimeModel]]]:
    """The requests and the runtimes of each model."""
    if not scenario.models:
        yield scenario.workload, scenario.runtimes
    first = 0
    for model in scenario.models:
        yield model.workload, scenario.runtimes[first : first + model.runtimes]
        first += model.runtimes


def least_workers(offered: float) -> int:
    """The smallest number of workers, at least 1, for a load that keeps `offered` of them busy."""
    return max(1, math.ceil(offered * (1 - ROUNDING)))


def fewest_workers(scenario: Scenario, attainment: float) -> int:
    """No smaller number of workers can have the share `attainment` of the requests on time: their work alone takes
    longer than the workload and one SLO."""
    duration_s = scenario.workload.duration_s
    if scenario.served is not None:  # rows may need less than they could take
        return len({runtime.variant for runtime in scenario.runtimes}) if scenario.bundle == "variant" else 1
    return least_workers(offered_workers(scenario, attainment) * duration_s / (duration_s + scenario.slo_ms / 1000))


def _row_ms(runtime: RuntimeModel, length: int) -> float:
    """The time of one row, in the batch size that minimises it."""
    from arlo.simulator.profiles import latency_ms

    points = runtime.truth or runtime.points
    at = length if runtime.dynamic else runtime.max_length
    rows = sorted({batch for _, batch, _ in points if batch <= runtime.max_batch} | {1, runtime.max_batch})
    return min(latency_ms(points, at, batch) / batch for batch in rows)
