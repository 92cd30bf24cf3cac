"""Workloads: streams of requests that can be read again and again, some seconds at a time.

A workload has a name, a duration, chunks() and describe(); simulator and tools take anything that has these. The same
seed gives the same requests.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from arlo.errors import ConfigError
from arlo.traces import streams
from arlo.traces.drift import Drift, Resampled
from arlo.traces.lengths import Lengths
from arlo.traces.processes import BLOCK_NS, Arrivals
from arlo.traces.rates import SECOND_NS, Rate, expected_requests
from arlo.traces.trace import Trace

Chunk = tuple[NDArray[np.int64], NDArray[np.int32]]

_CHUNK_REQUESTS = 1 << 18  # of a trace
MOST_IN_MEMORY = 50_000_000


class Workload(Protocol):
    """The interface of every workload here."""

    @property
    def name(self) -> str:
        """A short name."""

    @property
    def duration_s(self) -> float:
        """All requests arrive before this."""

    def chunks(self) -> Iterator[Chunk]:
        """Arrivals in order, some seconds at a time: ns from the start int64[n], tokens int32[n]."""

    def expected(self) -> float:
        """How many requests there will be, on average: for progress bars and for guarding memory."""

    def describe(self) -> str:
        """One line: the parameters and where the data come from."""


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Synthetic:
    """Arrivals of a process at a rate over time, with independent lengths, whose distribution may drift."""

    name: str
    duration_s: float
    rate: Rate
    arrivals: Arrivals
    lengths: Lengths
    drift: Drift | Resampled | None = None
    seed: int = 0

    def __post_init__(self) -> None:
        if not (np.isfinite(self.duration_s) and self.duration_s > 0):
            raise ConfigError(f"duration_s must be above 0, not {self.duration_s}")
        if self.seed < 0:
            raise ConfigError(f"seed must be 0 or more, not {self.seed}")

    def chunks(self) -> Iterator[Chunk]:
        end_ns = round(self.duration_s * SECOND_NS)
        blocks = -(-end_ns // BLOCK_NS)
        path = self._path(blocks)
        seconds = BLOCK_NS // SECOND_NS
        for number, arrived in zip(range(blocks), self.arrivals.blocks(self.rate, self.seed), strict=False):
            random = streams.generator(self.seed, streams.LENGTHS, number)
            if self.drift is None:
                length = self.lengths.draw(len(arrived), random)
            else:
                edges = number * BLOCK_NS + SECOND_NS * np.arange(1, seconds)
                counts = np.diff(np.concatenate(([0], np.searchsorted(arrived, edges), [len(arrived)])))
                if isinstance(self.drift, Resampled):
                    length = self.drift.draw(self.lengths, counts, number * seconds, self.seed, random)
                else:
                    spread, shift = np.repeat(path[:, number * seconds : (number + 1) * seconds], counts, axis=1)
                    length = self.lengths.draw_drifted(len(arrived), random, spread, shift)
            if (number + 1) * BLOCK_NS > end_ns:
                kept = int(np.searchsorted(arrived, end_ns))
                yield arrived[:kept], length[:kept]
            else:
                yield arrived, length

    def _path(self, blocks: int) -> NDArray[np.float32]:
        """float32[2, seconds]: factor of all deviations and logarithm of that of the median, in each second."""
        if not isinstance(self.drift, Drift):
            return np.empty((2, 0), np.float32)
        path = self.drift.path(blocks * (BLOCK_NS // SECOND_NS), self.seed)
        path[0] *= np.float32(self.drift.correction(self.lengths))
        return path

    def expected(self) -> float:
        return expected_requests(self.rate, self.duration_s)

    def describe(self) -> str:
        drift = f"; {self.drift.describe()}" if self.drift is not None else ""
        return (
            f"{self.arrivals.describe()} arrivals, {self.rate.describe()}, for {self.duration_s:g} s; "
            f"lengths {self.lengths.source}{drift}; seed {self.seed}"
        )


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Replayed:
    """The requests of a trace."""

    name: str
    duration_s: float
    trace: Trace
    source: str

    def chunks(self) -> Iterator[Chunk]:
        arrived = np.rint(self.trace.arrived_at_s * SECOND_NS).astype(np.int64)
        for start in range(0, len(arrived), _CHUNK_REQUESTS):
            part = slice(start, start + _CHUNK_REQUESTS)
            yield arrived[part], self.trace.length[part]

    def expected(self) -> float:
        return float(len(self.trace))

    def describe(self) -> str:
        return f"{len(self.trace)} requests in {self.duration_s:g} s of {self.source}"


def replayed(trace: Trace, name: str, source: str, *, duration_s: float | None = None) -> Replayed:
    """A trace as a workload; with a duration, only the requests that arrive before its end."""
    if len(trace) == 0:
        raise ConfigError(f"{source} holds no request")
    if duration_s is not None:
        kept = int(np.searchsorted(trace.arrived_at_s, duration_s))
        text_id = None if trace.text_id is None else trace.text_id[:kept]
        trace = Trace(arrived_at_s=trace.arrived_at_s[:kept], length=trace.length[:kept], text_id=text_id)
    # The last request arrives before the end, as everywhere.
    whole_s = float(np.nextafter(trace.duration_s, np.inf)) + 1e-9
    return Replayed(name=name, duration_s=whole_s if duration_s is None else duration_s, trace=trace, source=source)


def materialise(workload: Workload, *, most: int = MOST_IN_MEMORY) -> Trace:
    """All requests of a workload at once. ConfigError when there are more than `most`."""
    expected = workload.expected()
    if expected > most:
        raise ConfigError(
            f"{workload.name} has about {expected:,.0f} requests, more than the {most:,} that are kept in memory: "
            "take a shorter duration or a lower rate"
        )
    parts = list(workload.chunks())
    arrived = np.concatenate([arrived for arrived, _ in parts]) if parts else np.empty(0, np.int64)
    length = np.concatenate([length for _, length in parts]) if parts else np.empty(0, np.int32)
    return Trace(arrived_at_s=arrived / SECOND_NS, length=length)
