"""Cascades simulated: workers with the runtimes of one stage, or of all; rows whose journeys come from records.

The engine decides with src/flow, as the gateway does. A row says at each stage what its record says; rows take records
in the order of their arrival, and again from the first.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from arlo import _core
from arlo.cascade.decide import REASONS
from arlo.cascade.spec import Rules
from arlo.errors import ConfigError
from arlo.simulator.profiles.model import capacity
from arlo.simulator.scenario.scenario import RuntimeModel

MS = 1_000_000
_AWHILE = 1_000_000  # rows fed at a time


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Journeys:
    """What the stages say of each record."""

    confidence: NDArray[np.float64]  # [records, stages]
    correct: NDArray[np.bool_]  # [records, stages]: of the answer of each stage
    tokens: NDArray[np.int32] | None = None  # [records, stages]: as that stage gets it; None, or 0: all

    def __post_init__(self) -> None:
        if self.correct.shape != self.confidence.shape or self.confidence.ndim != 2:
            raise ConfigError("confidence and correct must both be [records, stages]")
        if self.tokens is not None and self.tokens.shape != self.confidence.shape:
            raise ConfigError("tokens must be [records, stages]")


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class CascadeRun:
    """A simulation of one cascade under one load."""

    stages: Sequence[Sequence[RuntimeModel]]  # cheapest first
    workers: Sequence[int]  # of each stage; of one number: workers that hold all stages
    rules: Rules
    journeys: Journeys
    arrived_ns: NDArray[np.int64]  # ascending, from 0
    lengths: NDArray[np.int32]
    slo_ms: float
    timeout_ms: float | None = None  # None: clients wait for ever
    batching: str = "deadline"
    inflight_limit: int = 2
    auto_price: bool = False
    speculate: bool = False
    margin_ms: float = 2.0
    seed: int = 0
    warmup_s: float = 0.0
    hop_ms: float = 0.0  # the way to the scheduler, from there to the worker, and back: each


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class CascadeResult:
    """Figures over the rows that arrived after the warm-up."""

    rows: int
    on_time: float  # share that was answered within the SLO
    mean_ms: float
    p98_ms: float
    p99_ms: float
    exits: tuple[float, ...]  # shares of the answered rows, by stage
    accuracy: float  # of the answered rows
    degraded: float  # share of the answered rows
    reasons: dict[str, int]
    price: int  # at the end
    speculated: int  # rows that the last stage started on beside the first one, of all


def run(job: CascadeRun) -> CascadeResult:
    """Simulate. ConfigError, ValueError for a job that makes no sense."""
    stages = len(job.stages)
    if job.journeys.confidence.shape[1] != stages or len(job.workers) not in (1, stages):
        raise ConfigError(f"there are {stages} stages: give confidences and workers of each")
    engine = _core.Simulation(
        "late",
        slo=round(job.slo_ms * MS),
        timeout=None if job.timeout_ms is None else round(job.timeout_ms * MS),
        batching=job.batching,
        seed=job.seed,
        max_queued=1 << 30,
        overhead=round(job.hop_ms * MS),
        hop_out=round(job.hop_ms * MS),
        hop_back=round(job.hop_ms * MS),
        record=True,
    )
    held = [
        [
            engine.add_runtime(
                model.max_length,
                capacity(model, job.slo_ms),
                [(length, batch, round(ms * MS)) for length, batch, ms in model.points],
                max_batch=model.max_batch,
                dynamic=model.dynamic,
                inflight_limit=job.inflight_limit,
                truth=None
                if model.truth is None
                else [(length, batch, round(ms * MS)) for length, batch, ms in model.truth],
                variant=stage,
            )
            for model in models
        ]
        for stage, models in enumerate(job.stages)
    ]
    if len(job.workers) == 1:
        bundles = [(engine.add_bundle([r for one in held for r in one], inflight_limit=job.inflight_limit))]
    else:
        bundles = [engine.add_bundle(one, inflight_limit=job.inflight_limit) for one in held]
    for bundle, count in zip(bundles, job.workers, strict=True):
        for _ in range(count):
            engine.add_worker(bundle, 0)
    journeys = job.journeys
    engine.set_cascade(
        list(range(stages)),
        twin(job.rules),
        np.ascontiguousarray(journeys.confidence, np.float64).ravel(),
        tokens=None if journeys.tokens is None else np.ascontiguousarray(journeys.tokens, np.int32).ravel(),
        seed=job.seed,
        margin=round(job.margin_ms * MS),
        auto_price=job.auto_price,
        speculate=job.speculate,
    )
    arrived, lengths = np.ascontiguousarray(job.arrived_ns, np.int64), np.ascontiguousarray(job.lengths, np.int32)
    for start in range(0, len(arrived), _AWHILE):
        engine.feed(arrived[start : start + _AWHILE], lengths[start : start + _AWHILE])
        if start + _AWHILE < len(arrived):
            engine.advance(int(arrived[start + _AWHILE]))
    price = engine.price
    engine.finish()
    return _result(engine.columns(), job, price, engine.speculated)


def twin(rules: Rules) -> _core.CascadeRules:
    """The rules as the engine takes them."""
    return _core.CascadeRules(
        [[(rule.kind, rule.t, rule.c, rule.k) for rule in price] for price in rules.prices],
        skip=rules.skip,
        alpha=rules.prune.alpha,
        mean_over=rules.prune.mean_over,
        to_level=rules.prune.to_level,
        min_words=rules.prune.min_words,
        ensemble=rules.ensemble.kind,
    )


def _result(columns: dict[str, NDArray[np.int64]], job: CascadeRun, price: int, speculated: int) -> CascadeResult:
    counted = columns["arrived_ns"] >= job.warmup_s * 1e9
    latency_ms = columns["latency_ns"] / MS
    answered = counted & (columns["latency_ns"] >= 0)
    stage, reason = columns["stage"][answered], columns["reason"][answered]
    record = np.nonzero(answered)[0] % len(job.journeys.correct)
    times = latency_ms[answered]
    total = max(1, len(times))
    return CascadeResult(
        rows=int(counted.sum()),
        on_time=float((times <= job.slo_ms).sum() / max(1, counted.sum())),
        mean_ms=float(times.mean()) if len(times) else float("nan"),
        p98_ms=float(np.quantile(times, 0.98)) if len(times) else float("nan"),
        p99_ms=float(np.quantile(times, 0.99)) if len(times) else float("nan"),
        exits=tuple((np.bincount(stage, minlength=len(job.stages)) / total).tolist()),
        accuracy=float(job.journeys.correct[record, stage].mean()) if len(times) else float("nan"),
        degraded=float((reason >= REASONS.index("deadline")).sum() / total),
        reasons={
            name: int((reason == number).sum()) for number, name in enumerate(REASONS) if (reason == number).any()
        },
        price=price,
        speculated=speculated,
    )
