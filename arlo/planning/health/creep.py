"""Finds the worker whose latency creeps up: throttled, leaking, or sharing its device with something. Pure.

The time of a row is the time that the instance had work divided by the number of rows sent to it: with one or two rows
in flight an instance that computes one after the other has no other time between them. It is compared with two
measures. The latency profile gives the expected time of a row. The peers, workers with the same runtime, give its
present time: if all of them are slow the profile or the machine is at fault, and restarting workers does not help.
"""

from __future__ import annotations

import dataclasses
import statistics
from collections import Counter, defaultdict
from collections.abc import Mapping

LONGEST_GRACE_S = 3600.0
MOST_INTERVALS = 20  # of one observation; older ones say little about the present


@dataclasses.dataclass(frozen=True, slots=True)
class Sample:
    """One worker's work in one interval."""

    runtime: str
    rows: int  # started
    busy_s: float  # with a row in flight
    expected_ms: float  # of one row, by the latency profile

    @property
    def row_ms(self) -> float:
        """Time of one row in ms."""
        return self.busy_s * 1000 / self.rows


@dataclasses.dataclass(frozen=True, slots=True)
class Suspect:
    """A worker to recycle."""

    worker: str
    ratio: float  # its time over the larger of the profile's and the peers'
    reason: str


class CreepDetector:
    """Gets a sample of each worker per interval.

    A worker is suspect when its rows take `factor` times as long as the profile says, and as the median of its peers
    if it has any, in `intervals` observations in a row. An observation has at least `min_rows` rows: a worker that
    got fewer in an interval, because the gateway has also found it slow, is observed over several. If it has
    peers but none has an observation that ends now, nothing is concluded.

    There is one suspect at a time, the worst: the next one follows, at the earliest, when that one is seen again or its
    grace period is over. In its grace period a worker is neither judged nor a measure for its peers. It is `grace_s`,
    and doubles up to an hour each time that a worker is suspect again without having been well in between: restarting
    does not help it.
    """

    def __init__(self, factor: float, *, intervals: int = 3, min_rows: int = 20, grace_s: float = 120.0) -> None:
        self._factor = factor  # above 1
        self._intervals = intervals
        self._min_rows = min_rows
        self._first_grace_s = grace_s
        self._slow: dict[str, tuple[str, int]] = {}  # worker -> runtime, observations in a row
        self._grace: dict[str, tuple[float, float]] = {}  # worker -> end, length
        self._begun: dict[str, tuple[Sample, int]] = {}  # observations with too few rows yet, number of intervals
        self._away: str | None = None  # the last suspect, until it is seen again

    def observe(self, now_s: float, samples: Mapping[str, Sample]) -> list[Suspect]:
        """The worker to recycle now, if any. `samples` has the workers that are in service undisturbed."""
        if self._away in samples or (self._away is not None and not self._in_grace(self._away, now_s)):
            self._away = None
        self._forget(now_s)
        measured = self._measured(samples)
        found = self._slow_ones(now_s, samples, measured)
        for worker in set(measured) - set(found):
            if not self._in_grace(worker, now_s):
                self._grace.pop(worker, None)  # it is well: its next grace period is short again
        waiting = {
            worker: (runtime, count)
            for worker, (runtime, count) in self._slow.items()
            if worker in self._begun and self._begun[worker][0].runtime == runtime
        }
        self._slow = waiting | {
            worker: (sample.runtime, self._row_of(worker, sample.runtime) + 1)
            for worker, sample in measured.items()
            if worker in found
        }
        ready = [suspect for worker, suspect in found.items() if self._slow[worker][1] >= self._intervals]
        if not ready or self._away is not None:
            return []
        worst = max(ready, key=lambda suspect: suspect.ratio)
        length = self._first_grace_s
        if worst.worker in self._grace:
            length = min(2 * self._grace[worst.worker][1], LONGEST_GRACE_S)
        self._grace[worst.worker] = (now_s + length, length)
        self._away = worst.worker
        del self._slow[worst.worker]
        return [worst]

    def _measured(self, samples: Mapping[str, Sample]) -> dict[str, Sample]:
        """The observations that end now; those that go on are kept, for at most MOST_INTERVALS."""
        measured, begun = {}, {}
        for worker, sample in samples.items():
            before, intervals = self._begun.get(worker, (None, 0))
            if before is not None and before.runtime == sample.runtime:
                rows, busy_s = before.rows + sample.rows, before.busy_s + sample.busy_s
                sample = dataclasses.replace(sample, rows=rows, busy_s=busy_s)  # noqa: PLW2901
            if sample.expected_ms > 0 and sample.rows >= self._min_rows:
                measured[worker] = sample
            elif sample.expected_ms > 0 and intervals + 1 < MOST_INTERVALS:
                begun[worker] = (sample, intervals + 1)
        self._begun = begun
        return measured

    def _slow_ones(
        self, now_s: float, samples: Mapping[str, Sample], measured: Mapping[str, Sample]
    ) -> dict[str, Suspect]:
        """The workers that are slow by both measures in this observation."""
        workers = Counter(sample.runtime for sample in samples.values())
        times: defaultdict[str, dict[str, float]] = defaultdict(dict)
        for worker, sample in measured.items():
            if not self._in_grace(worker, now_s):
                times[sample.runtime][worker] = sample.row_ms
        found = {}
        for runtime, own in times.items():
            for worker, row_ms in own.items():
                peers = [other_ms for other, other_ms in own.items() if other != worker]
                if not peers and workers[runtime] > 1:
                    continue
                expected_ms = measured[worker].expected_ms
                ratios = [row_ms / expected_ms, *([row_ms / max(statistics.median(peers), 1e-6)] if peers else [])]
                if min(ratios) >= self._factor:
                    found[worker] = Suspect(worker, min(ratios), self._told(worker, measured[worker], ratios, peers))
        return found

    def _told(self, worker: str, sample: Sample, ratios: list[float], peers: list[float]) -> str:
        told = (
            f"a row takes {sample.row_ms:.2f} ms on {worker}, {ratios[0]:.1f} times the {sample.expected_ms:.2f} ms of "
            f"the latency profile of {sample.runtime}"
        )
        if peers:
            told += f" and {ratios[1]:.1f} times the median of {len(peers)} other worker(s)"
        return f"{told}, in {self._row_of(worker, sample.runtime) + 1} observations in a row"

    def _row_of(self, worker: str, runtime: str) -> int:
        """Slow observations in a row before this one."""
        before, count = self._slow.get(worker, (runtime, 0))
        return count if before == runtime else 0

    def _in_grace(self, worker: str, now_s: float) -> bool:
        return worker in self._grace and now_s < self._grace[worker][0]

    def _forget(self, now_s: float) -> None:
        """Forget workers that have been out of their grace period for long."""
        self._grace = {
            worker: (end_s, length)
            for worker, (end_s, length) in self._grace.items()
            if now_s < end_s + 2 * LONGEST_GRACE_S
        }
