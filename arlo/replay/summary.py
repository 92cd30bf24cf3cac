"""The summary of a replay: from the records to the numbers that people compare."""

from __future__ import annotations

import dataclasses

import numpy as np
from numpy.typing import NDArray

from arlo.replay.outcomes import OUTCOMES, Outcome
from arlo.replay.records import Records, delay_us, latency_us

ANSWERED = (OUTCOMES.index("on_time"), OUTCOMES.index("late"))


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Latency:
    """Milliseconds from the scheduled instant to the answer, over all answered requests, late ones included."""

    mean_ms: float
    p50_ms: float
    p90_ms: float
    p98_ms: float
    p99_ms: float
    max_ms: float


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Level:
    """One level, identified by its maximum length, because each plan renumbers levels. If answers do not report it, the
    number identifies the level, and `max_length` is the most tokens computed there, None if never reported.

    `level`: the number in the last answer. `demoted` of the `requests` came from a shorter level.
    """

    level: int
    max_length: int | None
    requests: int
    demoted: int


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Padding:
    """Tokens of answered requests. `longest`: tokens per request if every one were padded to one shape.

    `told_by` is "response" if the target reports its computed tokens, "request" if they are taken to be the width
    that was sent. Shares are of computed tokens.
    """

    tokens: int
    computed_tokens: int
    share: float
    longest: int
    share_if_longest: float
    computed_saved: float  # 1 - computed / (requests * longest)
    told_by: str


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Sends:
    """How well the sender kept to the trace: requests that left more than `threshold_ms` late, and how late."""

    late: int
    threshold_ms: float
    p98_delay_ms: float
    max_delay_ms: float
    cpu_us_per_request: float


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class ServerTime:
    """Means over answered requests of the time split in the responses, milliseconds; None where never told."""

    queue_ms: float | None
    execute_ms: float | None
    total_ms: float | None


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Summary:
    """requests: arrivals sent. duration_s: from the start to the last arrival or answer, whichever is later.

    slo_attainment: on-time share of *all* arrivals. goodput_rps: on-time answers per second of duration_s.
    """

    planned: int
    requests: int
    outcomes: dict[Outcome, int]
    duration_s: float
    arrival_rps: float
    goodput_rps: float
    slo_ms: float
    slo_attainment: float
    latency: Latency | None  # None: nothing was answered
    levels: tuple[Level, ...]  # empty: the target names none
    padding: Padding | None  # None: nothing was answered
    server: ServerTime
    sends: Sends
    interrupted: bool
    undrained: bool

    @property
    def answered(self) -> int:
        """Requests that were answered, on time or late."""
        return self.outcomes["on_time"] + self.outcomes["late"]


def summarize(
    records: Records,
    *,
    planned: int,
    longest: int,
    slo_ms: float,
    late_ms: float,
    cpu_s: float = 0.0,
    interrupted: bool = False,
    undrained: bool = False,
) -> Summary:
    """The summary of RECORD[n]. `longest`: max_length of the longest runtime."""
    n = len(records)
    counts = np.bincount(records["outcome"], minlength=len(OUTCOMES))
    outcomes: dict[Outcome, int] = {name: int(counts[i]) for i, name in enumerate(OUTCOMES)}
    answered = records[np.isin(records["outcome"], ANSWERED)]
    last_us = max(int(records["done_us"].max()), int(records["scheduled_us"].max())) if n else 0
    duration_s = last_us / 1e6
    per_second = 1 / duration_s if duration_s > 0 else 0.0
    return Summary(
        planned=planned,
        requests=n,
        outcomes=outcomes,
        duration_s=duration_s,
        arrival_rps=n * per_second,
        goodput_rps=outcomes["on_time"] * per_second,
        slo_ms=slo_ms,
        slo_attainment=outcomes["on_time"] / n if n else 0.0,
        latency=_latency(latency_us(answered)),
        levels=_levels(answered),
        padding=_padding(answered, longest),
        server=ServerTime(
            queue_ms=_mean_ms(answered["queue_us"]),
            execute_ms=_mean_ms(answered["execute_us"]),
            total_ms=_mean_ms(answered["total_us"]),
        ),
        sends=_sends(delay_us(records), late_ms, cpu_s),
        interrupted=interrupted,
        undrained=undrained,
    )


def computed_tokens(records: Records) -> NDArray[np.int64]:
    """int64[n]: what the target says it computed for each request, else the width that was sent."""
    told = records["computed_tokens"]
    return np.where(told >= 0, told, records["width"]).astype(np.int64)


def _latency(us: NDArray[np.int64]) -> Latency | None:
    if len(us) == 0:
        return None
    p50, p90, p98, p99 = (float(v) / 1000 for v in np.percentile(us, [50, 90, 98, 99]))
    return Latency(
        mean_ms=float(us.mean()) / 1000, p50_ms=p50, p90_ms=p90, p98_ms=p98, p99_ms=p99, max_ms=float(us.max()) / 1000
    )


def _levels(answered: Records) -> tuple[Level, ...]:
    found = []
    told = answered[answered["level"] >= 0]
    known = told["max_length"] > 0
    keys = np.stack([np.where(known, told["max_length"], 0), np.where(known, -1, told["level"])], axis=1)
    for key in np.unique(keys, axis=0):
        here = told[(keys == key).all(axis=1)]
        most = int(key[0]) or int(here["computed_tokens"].max())
        found.append(
            Level(
                level=int(here["level"][-1]),
                max_length=most if most >= 0 else None,
                requests=len(here),
                demoted=int((here["demoted"] > 0).sum()),
            )
        )
    return tuple(found)


def _padding(answered: Records, longest: int) -> Padding | None:
    if len(answered) == 0:
        return None
    tokens = int(answered["length"].sum(dtype=np.int64))
    computed = int(computed_tokens(answered).sum())
    longest = max(longest, int(answered["length"].max()))
    if_longest = len(answered) * longest
    return Padding(
        tokens=tokens,
        computed_tokens=computed,
        share=1 - tokens / computed if computed else 0.0,
        longest=longest,
        share_if_longest=1 - tokens / if_longest,
        computed_saved=1 - computed / if_longest,
        told_by="response" if bool((answered["computed_tokens"] >= 0).all()) else "request",
    )


def _mean_ms(us: NDArray[np.int64]) -> float | None:
    told = us[us >= 0]
    return float(told.mean()) / 1000 if len(told) else None


def _sends(delay: NDArray[np.int64], late_ms: float, cpu_s: float) -> Sends:
    return Sends(
        late=int((delay > late_ms * 1000).sum()),
        threshold_ms=late_ms,
        p98_delay_ms=float(np.percentile(delay, 98)) / 1000 if len(delay) else 0.0,
        max_delay_ms=float(delay.max()) / 1000 if len(delay) else 0.0,
        cpu_us_per_request=cpu_s * 1e6 / len(delay) if len(delay) else 0.0,
    )
