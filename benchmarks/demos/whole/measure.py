"""What this machine can do, measured before the replay: every worker busy, closed loop, the demo's own texts.

The replay's rate and SLO follow from it (`plan`), so that the demo's figures say something on any machine.
"""

from __future__ import annotations

import asyncio
import dataclasses
import itertools
import math
import os
import threading
from collections.abc import Sequence
from typing import Any

import numpy as np

from arlo.clock import monotonic_s
from arlo.profiler.machine import CpuTimes

LEAST_S = 6.0  # of measuring
MOST_S = 40.0
ENOUGH = 60  # answers, after those of the warm-up
PER_WORKER = 2  # requests under way: one computes, one waits, as the gateway's in-flight limit allows

LOAD = 0.5
"""Share of the measured throughput that the replay asks for. Arrivals are random, so a higher share would show queues
rather than the service, and this machine carries the sender too."""

MOST_RPS = 100.0  # what one Python process sends in time
SLO_FACTOR = 2.0
"""The SLO over the p98 latency with every worker busy and one request waiting at each."""

LEAST_SLO_MS = 20.0
DISTURBED = 0.15  # of the machine's CPU time: a change of other programs' share that changes the result


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Capacity:
    """With all workers busy: answers per second, and the latency of one request in milliseconds."""

    workers: int
    answers: int
    rps: float
    p50_ms: float
    p98_ms: float
    others: float | None  # share of the machine's CPU time that other programs took; None: too short to say

    def text(self) -> str:
        """One line for people."""
        return (
            f"{self.workers} workers, all busy, answer {digits(self.rps)} requests per second; one takes "
            f"{digits(self.p50_ms)} ms (p50), {digits(self.p98_ms)} ms (p98)"
        )


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Asked:
    """What the replay asks of the cluster, and why."""

    rate: float
    slo_ms: int
    why_rate: str
    why_slo: str


def plan(found: Capacity | None, *, rate: float | None, slo_ms: int | None) -> Asked:
    """Rate and SLO from the measurements; `rate` and `slo_ms` are the user's own, which need no measurement."""
    why_rate, why_slo = "as asked", "as asked"
    if rate is None:
        assert found is not None
        wanted = LOAD * found.rps
        rate = _two_digits(min(wanted, MOST_RPS), math.floor)
        why_rate = f"{LOAD:.0%} of what all workers together answer"
        if wanted > MOST_RPS:
            why_rate = f"this machine answers {digits(found.rps)}; one sender in Python is good for {MOST_RPS:g}"
    if slo_ms is None:
        assert found is not None
        slo_ms = max(1, round(_two_digits(max(SLO_FACTOR * found.p98_ms, LEAST_SLO_MS), math.ceil)))
        why_slo = f"{SLO_FACTOR:g} times the p98 with every worker busy"
    return Asked(rate=rate, slo_ms=slo_ms, why_rate=why_rate, why_slo=why_slo)


def workers_for(wanted: int, cores: int) -> int:
    """Workers to start: one for each core that is ours, at least two, at most as many as are wanted."""
    return min(wanted, max(2, cores))


def cores() -> int:
    """Cores that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


async def measure(client: Any, rows: Sequence[Any], workers: int, stop: threading.Event) -> Capacity | None:
    """Keep PER_WORKER requests under way at each worker until ENOUGH are answered, or MOST_S are over.

    client: an AsyncClient. rows: what to send, in turn. Errors of the client are raised. None: `stop` was set.
    """
    content = itertools.cycle(rows)
    started_s: list[float] = []
    ended_s: list[float] = []
    at_once = PER_WORKER * workers
    warm = 2 * at_once
    begin_s = monotonic_s()

    def over() -> bool:
        spent_s = monotonic_s() - begin_s
        return stop.is_set() or spent_s >= MOST_S or (spent_s >= LEAST_S and len(ended_s) >= ENOUGH + warm)

    async def one_after_another() -> None:
        while not over():
            sent_s = monotonic_s()
            await client.infer(next(content), timeout_s=4 * MOST_S)
            started_s.append(sent_s)
            ended_s.append(monotonic_s())

    cpu = CpuTimes.read(os.getpid())
    await asyncio.gather(*(one_after_another() for _ in range(at_once)))
    if stop.is_set():
        return None
    return capacity(workers, warm, started_s, ended_s, cpu.other_load(CpuTimes.read(os.getpid())))


def capacity(
    workers: int, warm: int, started_s: Sequence[float], ended_s: Sequence[float], others: float | None
) -> Capacity:
    """The capacity from instants in the order of the answers; the first `warm` answers only begin the time.

    A machine too slow for the warm-up counts from its first answer.
    """
    first = min(warm, len(ended_s) // 2)
    latency_ms = (np.array(ended_s) - np.array(started_s))[first:] * 1e3
    took_s = ended_s[-1] - ended_s[first - 1 if first else 0]
    answers = len(ended_s) - max(first, 1)
    p50, p98 = np.percentile(latency_ms, [50, 98])
    return Capacity(
        workers=workers,
        answers=answers,
        rps=answers / took_s if took_s > 0 else len(ended_s) / (ended_s[-1] - started_s[0]),
        p50_ms=float(p50),
        p98_ms=float(p98),
        others=others,
    )


def disturbance(measured: float | None, replayed: float | None) -> str:
    """What to say where other programs took more of the machine in the replay than in the measurement; else empty."""
    if measured is None or replayed is None or replayed - measured < DISTURBED:
        return ""
    return (
        f"Other programs took {replayed:.0%} of the machine during the replay and {measured:.0%} while it was "
        "measured: the latencies say as much of them as of Arlo. Run it again when the machine is quieter."
    )


def digits(value: float) -> str:
    """Three digits, never as a power of ten."""
    return f"{value:.0f}" if value >= 100 else f"{value:.3g}"


def _two_digits(value: float, toward: Any) -> float:
    """Rounded to two digits: math.floor down, math.ceil up."""
    step = 10.0 ** (math.floor(math.log10(value)) - 1)
    return float(f"{toward(value / step + (1e-9 if toward is math.floor else -1e-9)) * step:.6g}")
