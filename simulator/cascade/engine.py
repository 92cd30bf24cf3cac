"""Cascades simulated: workers with the runtimes of one stage, or of all; rows whose journeys come from records.

The engine decides with src/flow, as the gateway does. A row says at each stage what its record says; rows take records
in the order of their arrival, and again from the first.
"""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from arlo import _core
from arlo.cascade.decide import REASONS
from arlo.cascade.energy import energy_mj, modelled_joules, per_request
from arlo.cascade.spec import Rules
from arlo.errors import ConfigError
from arlo.simulator.profiles import lognormal_quantiles
from arlo.simulator.profiles.model import capacity
from arlo.simulator.report.result import ENGINE_OUTCOMES
from arlo.simulator.scenario.scenario import Fault, RuntimeModel

MS = 1_000_000
_AWHILE = 1_000_000  # rows fed at a time


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Journeys:
    """What the stages say of each record."""

    confidence: NDArray[np.float64]  # [records, stages]
    correct: NDArray[np.bool_]  # [records, stages]: of the answer of a row that ends there
    agrees: NDArray[np.bool_] | None = None  # [records, stages]: it is the last stage's; None: not known
    tokens: NDArray[np.int32] | None = None  # [records, stages]: as that stage gets it; None, or 0: all

    def __post_init__(self) -> None:
        if self.correct.shape != self.confidence.shape or self.confidence.ndim != 2:
            raise ConfigError("confidence and correct must both be [records, stages]")
        for each in (self.tokens, self.agrees):
            if each is not None and each.shape != self.confidence.shape:
                raise ConfigError("tokens and agrees must be [records, stages]")


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class CascadeRun:
    """A simulation of one cascade under one load."""

    stages: Sequence[Sequence[RuntimeModel]]  # cheapest first
    workers: Sequence[int]  # of each stage; of one number: workers that hold all stages
    rules: Rules | None  # None: every row is asked of all stages at once, and answered when the slowest has
    journeys: Journeys
    arrived_ns: NDArray[np.int64]  # ascending, from 0
    lengths: NDArray[np.int32]
    slo_ms: float
    timeout_ms: float | None = None  # None: clients wait for ever
    batching: str = "deadline"
    inflight_limit: int = 2  # batches
    auto_price: bool = False
    margin_ms: float = 2.0
    seed: int = 0
    warmup_s: float = 0.0
    overhead_ms: float = 0.0  # added to each latency
    hop_out_ms: float = 0.0
    hop_back_ms: float = 0.0
    retries: int = 2
    noise_cv: float = 0.0  # of execution times
    faults: Sequence[Fault] = ()  # workers are numbered by stage
    marks_s: Sequence[float] = ()  # moments that the rows are also counted between
    watts: tuple[float, float] | None = None  # of a worker that waits, and one that executes
    energy: Sequence[Sequence[tuple[int, int, float]]] = ()  # where there are none: of each stage (tokens, rows, mJ)


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Part:
    """Figures of some of the rows; nan where none was answered."""

    rows: int
    on_time: float  # share that was answered within the SLO
    mean_ms: float
    p98_ms: float
    p99_ms: float
    exits: tuple[float, ...]  # shares of the answered rows, by stage
    accuracy: float  # of the answered rows
    agreement: float  # with the last stage, of the answered rows; nan where that is not known
    degraded: float  # share of the answered rows


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class CascadeResult(Part):
    """Figures over the rows that arrived after the warm-up."""

    reasons: dict[str, int]  # of the answered rows; from `deadline` on they are degraded
    exit_ms: tuple[tuple[float, float], ...]  # mean and p98 of the rows that end at each stage
    unanswered: dict[str, int]  # rows by outcome
    parts: tuple[Part, ...]  # between the marks
    price: int  # at the end
    utilization: float  # executing, of the workers' time
    joules: float | None  # per row, modelled; None where neither watts nor energy are known


def run(job: CascadeRun) -> CascadeResult:
    """Simulate. ConfigError, ValueError for a job that makes no sense."""
    stages = len(job.stages)
    if job.journeys.confidence.shape[1] != stages or len(job.workers) not in (1, stages):
        raise ConfigError(f"there are {stages} stages: give confidences and workers of each")
    engine = _engine(job)
    if job.rules is not None:
        journeys = job.journeys
        engine.set_cascade(
            list(range(stages)),
            twin(job.rules),
            np.ascontiguousarray(journeys.confidence, np.float64).ravel(),
            tokens=None if journeys.tokens is None else np.ascontiguousarray(journeys.tokens, np.int32).ravel(),
            seed=job.seed,
            margin=round(job.margin_ms * MS),
            auto_price=job.auto_price,
        )
    _feed(engine, job)
    price = engine.price if job.rules is not None else 0
    busy_ns, end_ns = float(engine.workers()["busy_ns"].sum()), int(job.arrived_ns[-1])
    engine.finish()
    return _result(engine.columns(), job, price, busy_ns / max(1, end_ns * sum(job.workers)))


def _engine(job: CascadeRun) -> _core.Simulation:
    by_worker = job.batching == "worker"  # as simulator.run has it: rows are sent one by one, and the worker joins them
    timeout = None if job.timeout_ms is None else round(job.timeout_ms * MS)
    engine = _core.Simulation(
        "late",
        slo=round(job.slo_ms * MS),
        timeout=timeout,
        batching="one" if by_worker else job.batching,
        seed=job.seed,
        max_queued=1 << 30,
        overhead=round(job.overhead_ms * MS),
        hop_out=round(job.hop_out_ms * MS),
        hop_back=round(job.hop_back_ms * MS),
        retries=job.retries,
        record=True,
        noise=lognormal_quantiles(job.noise_cv) if job.noise_cv else None,
    )
    held = [
        [
            engine.add_runtime(
                model.max_length,
                capacity(model, job.slo_ms),
                _points_ns(model.points),
                max_batch=model.max_batch,
                dynamic=model.dynamic,
                inflight_limit=model.rows_in_flight(job.inflight_limit) if by_worker else job.inflight_limit,
                truth=None if model.truth is None else _points_ns(model.truth),
                variant=stage,
            )
            for model in models
        ]
        for stage, models in enumerate(job.stages)
    ]
    if job.rules is None:
        for stage in range(len(job.stages)):
            engine.set_variant(stage, slo=round(job.slo_ms * MS), timeout=timeout)
    if len(job.workers) == 1:
        bundles = [(engine.add_bundle([r for one in held for r in one], inflight_limit=job.inflight_limit))]
    else:
        bundles = [engine.add_bundle(one, inflight_limit=job.inflight_limit) for one in held]
    for bundle, count in zip(bundles, job.workers, strict=True):
        for _ in range(count):
            engine.add_worker(bundle, 0)
    return engine


def _points_ns(points: Sequence[tuple[int, int, float]]) -> list[tuple[int, int, int]]:
    return [(length, batch, round(ms * MS)) for length, batch, ms in points]


def _feed(engine: _core.Simulation, job: CascadeRun) -> None:
    """All rows and all faults, in their order."""
    arrived, lengths = np.ascontiguousarray(job.arrived_ns, np.int64), np.ascontiguousarray(job.lengths, np.int32)
    variants: NDArray[np.uint16] | None = None
    if job.rules is None:
        copies = len(job.stages)
        variants = np.tile(np.arange(copies, dtype=np.uint16), len(arrived))
        arrived, lengths = np.repeat(arrived, copies), np.repeat(lengths, copies)
    moments = [*((round(f.at_s * 1e9), f) for f in sorted(job.faults, key=lambda f: f.at_s)), (None, None)]
    at = 0
    for moment_ns, fault in moments:
        stop = len(arrived) if moment_ns is None else int(np.searchsorted(arrived, moment_ns))
        while at < stop:
            end = min(stop, at + _AWHILE)
            engine.feed(arrived[at:end], lengths[at:end], None if variants is None else variants[at:end])
            at = end
            engine.advance(int(arrived[end - 1]))
        if fault is not None:
            assert moment_ns is not None
            engine.advance(moment_ns)
            if fault.kind == "fail":
                engine.fail(fault.worker, None if fault.restart_s is None else round(fault.restart_s * 1e9))
            else:
                engine.slow(fault.worker, fault.factor)


def twin(rules: Rules) -> _core.CascadeRules:
    """The rules as the engine takes them."""
    return _core.CascadeRules(
        [[(rule.kind, rule.t, rule.c, rule.k) for rule in price] for price in rules.prices],
        skip=rules.skip,
        alpha=rules.prune.alpha,
        mean_over=rules.prune.mean_over,
        to_level=rules.prune.to_level,
        min_words=rules.prune.min_words,
        alpha_max=rules.prune.alpha_max,
        most_removed=rules.prune.most_removed,
        ensemble=rules.ensemble.kind,
        start=rules.start,
    )


def _result(columns: dict[str, NDArray[Any]], job: CascadeRun, price: int, utilization: float) -> CascadeResult:
    outcome = columns["outcome"]
    if job.rules is None:
        rows, stages = len(job.arrived_ns), len(job.stages)
        each = columns["latency_ns"].reshape(rows, stages)
        answered = (each >= 0).all(axis=1)
        latency_ms = each.max(axis=1) / MS
        stage = np.full(rows, stages - 1)  # the columns of the journeys are the vote's, all alike
        reason = np.full(rows, REASONS.index("final"))
        worst = each.argmin(axis=1)  # -1 where it has no answer
        outcome = outcome.reshape(rows, stages)[np.arange(rows), worst]
    else:
        answered = columns["latency_ns"] >= 0
        latency_ms, stage, reason = columns["latency_ns"] / MS, columns["stage"], columns["reason"]
    seen = _Seen(job, answered, latency_ms, stage, reason)
    counted = job.arrived_ns >= job.warmup_s * 1e9
    marks = [0.0, *job.marks_s, np.inf]
    of = answered & counted
    lost, counts = np.unique(outcome[counted & ~answered], return_counts=True)
    seconds = float(job.arrived_ns[-1]) / 1e9
    joules = None
    if job.watts is not None:
        idle_w, max_w = job.watts
        spent = modelled_joules(min(1.0, utilization), seconds * sum(job.workers), idle_w=idle_w, max_w=max_w)
        joules = per_request(spent, len(job.arrived_ns))
    elif job.energy:
        joules = float(_row_mj(job, np.where(answered, stage, -1)).mean()) / 1000
    return CascadeResult(
        **vars_of(seen.part(counted)),
        reasons={name: int((reason[of] == n).sum()) for n, name in enumerate(REASONS) if (reason[of] == n).any()},
        exit_ms=tuple(seen.times(of & (stage == s)) for s in range(len(job.stages))),
        unanswered={ENGINE_OUTCOMES[int(code)]: int(count) for code, count in zip(lost, counts, strict=True)},
        parts=tuple(
            seen.part(counted & (job.arrived_ns >= a * 1e9) & (job.arrived_ns < b * 1e9))
            for a, b in itertools.pairwise(marks)
        )
        if job.marks_s
        else (),
        price=price,
        utilization=utilization,
        joules=joules,
    )


def _row_mj(job: CascadeRun, stage: NDArray[Any]) -> NDArray[np.float64]:
    """mJ [rows] of what rows alone cost at the stages up to that of their answer (-1: at none); all of them for a vote.
    Batches, which cost less, and workers that wait are not in it."""
    tokens, spent = job.journeys.tokens, np.zeros(len(stage))
    skips, start = (False, 0) if job.rules is None else (any(job.rules.skip), job.rules.start)
    for s, points in enumerate(job.energy):
        of_stage = job.lengths if tokens is None or s == 0 else tokens[:, s]
        passed = s >= start and (stage == s if skips and s > start else stage >= s)
        ran = np.full(len(stage), True) if job.rules is None else passed
        spent += ran * energy_mj(points, of_stage, str(s))
    return spent


def vars_of(part: Part) -> dict[str, Any]:
    """Its figures by name."""
    return {field.name: getattr(part, field.name) for field in dataclasses.fields(part)}


@dataclasses.dataclass(frozen=True, slots=True)
class _Seen:
    """What became of every row: arrays [rows]."""

    job: CascadeRun
    answered: NDArray[np.bool_]
    latency_ms: NDArray[np.float64]
    stage: NDArray[np.int64]
    reason: NDArray[np.int64]

    def times(self, which: NDArray[np.bool_]) -> tuple[float, float]:
        """Mean and p98."""
        ms = self.latency_ms[which]
        return (float(ms.mean()), float(np.quantile(ms, 0.98))) if len(ms) else (float("nan"), float("nan"))

    def part(self, counted: NDArray[np.bool_]) -> Part:
        """Figures of these rows."""
        of = self.answered & counted
        journeys, ms, stage = self.job.journeys, self.latency_ms[of], self.stage[of]
        record = np.nonzero(of)[0] % len(journeys.correct)
        total, nothing = max(1, len(ms)), float("nan")

        def share(table: NDArray[np.bool_] | None) -> float:
            return nothing if table is None or not len(ms) else float(table[record, stage].mean())

        mean_ms, p98_ms = self.times(of)
        return Part(
            rows=int(counted.sum()),
            on_time=float((ms <= self.job.slo_ms).sum() / max(1, counted.sum())),
            mean_ms=mean_ms,
            p98_ms=p98_ms,
            p99_ms=float(np.quantile(ms, 0.99)) if len(ms) else nothing,
            exits=tuple((np.bincount(stage, minlength=len(self.job.stages)) / total).tolist()),
            accuracy=share(journeys.correct),
            agreement=share(journeys.agrees),
            degraded=float((self.reason[of] >= REASONS.index("deadline")).sum() / total),
        )
