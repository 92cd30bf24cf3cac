"""Small workloads and scenarios for the simulator's tests."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from typing import Any

import numpy as np
from numpy.typing import NDArray

from arlo.simulator.scenario.scenario import Dispatch, RuntimeModel, Scenario

SECOND = 1_000_000_000
MS = 1_000_000
SHORT = RuntimeModel(name="short", max_length=64, points=((64, 1, 1.0),))
LONG = RuntimeModel(name="long", max_length=512, points=((512, 1, 5.0),))


@dataclasses.dataclass(frozen=True)
class Listed:
    """Requests as listed, a few at a time."""

    arrived_ns: tuple[int, ...]
    lengths: tuple[int, ...]
    duration_s: float
    chunk: int = 1000
    name: str = "listed"

    def chunks(self) -> Iterator[tuple[NDArray[np.int64], NDArray[np.int32]]]:
        at, tokens = np.array(self.arrived_ns, np.int64), np.array(self.lengths, np.int32)
        for i in range(0, len(at), self.chunk):
            yield at[i : i + self.chunk], tokens[i : i + self.chunk]

    def describe(self) -> str:
        return self.name


@dataclasses.dataclass(frozen=True)
class Phases:
    """Poisson arrivals, phase after phase: (seconds, requests per second, lengths to draw from)."""

    phases: tuple[tuple[float, float, tuple[int, ...]], ...]
    seed: int = 0
    name: str = "phases"

    @property
    def duration_s(self) -> float:
        return sum(seconds for seconds, _, _ in self.phases)

    def chunks(self) -> Iterator[tuple[NDArray[np.int64], NDArray[np.int32]]]:
        rng, begin = np.random.default_rng(self.seed), 0.0
        for seconds, rate, lengths in self.phases:
            count = rng.poisson(seconds * rate)
            at = np.sort(rng.uniform(begin, begin + seconds, count) * SECOND).astype(np.int64)
            yield at, rng.choice(np.array(lengths, np.int32), count)
            begin += seconds

    def describe(self) -> str:
        return self.name


def evenly(rate: float, begin_s: float, end_s: float, length: int) -> list[tuple[int, int]]:
    """Requests (ns, tokens) at equal distances, the first at begin_s."""
    count = round((end_s - begin_s) * rate)
    return [(round((begin_s + i / rate) * SECOND), length) for i in range(count)]


def listed(*parts: list[tuple[int, int]], duration_s: float, chunk: int = 1000) -> Listed:
    """A workload of these requests, in order of arrival."""
    requests = sorted(request for part in parts for request in part)
    return Listed(tuple(at for at, _ in requests), tuple(n for _, n in requests), duration_s, chunk)


def scenario(workload: Any, **fields: Any) -> Scenario:
    """Two runtimes of 1 and 5 ms, an SLO of 150 ms, no overhead."""
    given: dict[str, Any] = {
        "name": "test",
        "workload": workload,
        "runtimes": (SHORT, LONG),
        "workers": 2,
        "slo_ms": 150.0,
        "dispatch": Dispatch(policy="eft"),
        "overhead_ms": 0.0,
    }
    return Scenario(**{**given, **fields})
