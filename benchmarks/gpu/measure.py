"""Timing: contenders take turns, so that whatever the machine does meanwhile falls on all of them."""

from __future__ import annotations

import dataclasses
import math
import statistics
from collections.abc import Mapping

import numpy as np

from arlo.clock import monotonic_s
from benchmarks.gpu.contenders.base import Call, Embeddings


@dataclasses.dataclass(frozen=True, slots=True)
class Stats:
    """Of repeated runs, microseconds."""

    median_us: float
    p25_us: float
    p75_us: float
    p98_us: float
    mean_us: float
    half_width_us: float  # of the 95 % confidence interval of the mean, from the spread of single runs
    runs: int

    @classmethod
    def of(cls, seconds: list[float]) -> Stats:
        """Two or more runs."""
        us = np.array(seconds) * 1e6
        p25, p50, p75, p98 = (round(float(value), 2) for value in np.percentile(us, [25, 50, 75, 98]))
        half = 1.96 * statistics.stdev(us.tolist()) / math.sqrt(len(us))
        return cls(p50, p25, p75, p98, round(float(us.mean()), 2), round(half, 2), len(us))


@dataclasses.dataclass(frozen=True, slots=True)
class Measured:
    """One contender in one cell."""

    whole: Stats  # host to host
    compute: Stats | None  # on the device; None where it cannot be told apart
    first_s: float  # the first run of the shape: compilation, tuning, allocation
    answer: Embeddings


def take_turns(
    calls: Mapping[str, Call], *, cell_s: float, rounds: tuple[int, int], seed: int = 0
) -> dict[str, Measured | Exception]:
    """Measure the calls in rounds, each round in an order of its own; about `cell_s` seconds for each call.

    rounds: least and most repetitions. A call that raises is left out from then on, and its error is its result.
    """
    random = np.random.default_rng(seed)
    failed: dict[str, Exception] = {}
    first: dict[str, tuple[float, Embeddings]] = {}
    estimate: dict[str, float] = {}
    for name, call in calls.items():
        try:
            start = monotonic_s()
            answer = np.array(call.whole(), np.float32)  # a copy: some back-ends answer in a buffer that they keep
            first[name] = monotonic_s() - start, answer
            estimate[name] = min(_once(call) for _ in range(2))
        except Exception as error:  # each back-end raises its own kinds; one that fails is no reason to stop the rest
            failed[name] = error
    whole: dict[str, list[float]] = {name: [] for name in estimate}
    compute: dict[str, list[float]] = {name: [] for name in estimate}
    wanted = {name: min(rounds[1], max(2, rounds[0], math.ceil(cell_s / max(s, 1e-9)))) for name, s in estimate.items()}
    for turn in range(max(wanted.values(), default=0)):
        names = [name for name in estimate if name not in failed and turn < wanted[name]]
        for index in random.permutation(len(names)):
            name = names[index]
            try:
                start = monotonic_s()
                calls[name].whole()
                whole[name].append(monotonic_s() - start)
                timed = calls[name].compute_s
                if timed is not None:
                    compute[name].append(timed())
            except Exception as error:
                failed[name] = error
    results: dict[str, Measured | Exception] = {**failed}
    for name in estimate:
        if name not in failed:
            on_device = Stats.of(compute[name]) if compute[name] else None
            results[name] = Measured(Stats.of(whole[name]), on_device, *first[name])
    return results


def _once(call: Call) -> float:
    start = monotonic_s()
    call.whole()
    if call.compute_s is not None:
        call.compute_s()
    return monotonic_s() - start


def agreement(answer: Embeddings, reference: Embeddings) -> float:
    """Least cosine between rows of two answers; NaN in either counts as -1."""
    a, b = answer.astype(np.float64), reference.astype(np.float64)
    if a.shape != b.shape or not (np.isfinite(a).all() and np.isfinite(b).all()):
        return -1.0
    scale = np.linalg.norm(a, axis=1) * np.linalg.norm(b, axis=1)
    return float(((a * b).sum(1) / np.maximum(scale, 1e-30)).min())
