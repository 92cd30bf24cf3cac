"""A stream of queries on simulated workers that hold one body at all token counts.

The simulator's event loop and the gateway's scheduler (`_core.Simulation`), which chooses the count of each batch;
whether answers are right is drawn here.
"""

from __future__ import annotations

import dataclasses
import math
import statistics
from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from arlo import _core
from arlo.errors import ConfigError
from arlo.simulator.tokens.file import TokenSpec

MS_NS = 1_000_000
S_NS = 1_000_000_000
POLICIES = ("printed", "price")
TYPES = ("accurate", "wrong", "late", "evicted")
ON_TIME = 0  # of the outcomes in _core.Simulation.columns()
NOISES = 1024  # factors on execution times


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class TokenResult:
    """Figures over the queries that arrived after the warm-up."""

    queries: int
    utility: float  # of accurate answers in time
    utility_share: float  # of that of all queries
    outcomes: dict[str, float]  # share of the queries by type: accurate, wrong in time, late, evicted
    by_query: dict[str, dict[str, int]]  # counts of the same, by "task slo_ms utility"
    rows: dict[str, int]  # executed, by token count
    batches: dict[str, int]
    accuracy: float  # share of the answers in time that are accurate
    joules: float | None  # of a query that was executed: what busy workers drew beyond idle; None: it is not known
    joules_total: float | None
    batch_accuracy: tuple[int, ...]  # batches by accurate share in hundredths, [101]

    def as_dict(self) -> dict[str, Any]:
        """For JSON."""
        found = dataclasses.asdict(self)
        del found["batch_accuracy"]
        return found


def check_policy(spec: TokenSpec, policy: str) -> tuple[str, int]:
    """A policy's kind, and with fixed:N the place of the count. ConfigError names what there is."""
    if policy in POLICIES:
        return policy, 0
    kind, _, count = policy.partition(":")
    if kind == "fixed" and count.lstrip("-+").isdigit() and int(count) in spec.tokens:
        return "fixed", spec.tokens.index(int(count))
    counts = ", ".join(map(str, spec.tokens))
    raise ConfigError(f"--tokens must be {', '.join(POLICIES)} or fixed:N, N of {counts}; not {policy!r}")


def draw_kinds(spec: TokenSpec, count: int, seed: int) -> NDArray[np.uint32]:
    """The kind of each query, by the kinds' shares."""
    shares = np.array([query.share for query in spec.queries])
    return np.random.default_rng([seed, 1]).choice(len(shares), count, p=shares / shares.sum()).astype(np.uint32)


def draw_lengths(spec: TokenSpec, count: int, seed: int) -> NDArray[np.int32]:
    """The length of each query in tokens, as [workload] has them."""
    return spec.lengths.draw(count, np.random.default_rng([seed, 3]))


def run(
    spec: TokenSpec,
    policy: str,
    arrived_ns: NDArray[np.int64],
    kind: NDArray[np.uint32],
    *,
    lengths: NDArray[np.int32] | None = None,
    workers: int = 1,
    seed: int = 0,
    warmup_s: float = 0.0,
) -> TokenResult:
    """Simulate queries of `kind` that arrive at `arrived_ns`, ascending, both [queries]; deterministic.

    lengths: [queries], tokens, where rows have lengths; None: drawn as [workload] has them. What is longer than the
    longest is cut to it.
    """
    kinds = kind.astype(np.uint16)
    if lengths is None:
        lengths = draw_lengths(spec, len(kind), seed) if spec.by_length else np.ones(len(kind), np.int32)
    lengths = np.clip(lengths, 1, spec.length).astype(np.int32)
    engine = _engine(spec, policy, workers=workers, seed=seed, warmup_s=warmup_s)
    engine.feed(arrived_ns, lengths, kinds)
    if warmup_s > 0 and spec.metered:
        engine.advance(round(warmup_s * S_NS))
    before_j = _joules(spec, engine)
    engine.finish()
    spent_j = _joules(spec, engine) - before_j if spec.metered else None
    return result_of(spec, engine.columns(), kinds, seed, round(warmup_s * S_NS), spent_j=spent_j)


def _joules(spec: TokenSpec, engine: _core.Simulation) -> float:
    watts = [w for w, variant in zip(spec.watts_of, spec.variants, strict=True) for _ in variant.engines]
    busy = engine.runtimes()["busy_ns"][: len(watts)]  # a bundle of them comes after
    return float(busy @ np.array(watts)) / S_NS


def _engine(spec: TokenSpec, policy: str, *, workers: int, seed: int, warmup_s: float) -> _core.Simulation:
    """Workers that hold the body at all counts; the counts are the scheduler's variants, 0 the fewest tokens."""
    name, fixed = check_policy(spec, policy)
    slos = [round(query.slo_ms * MS_NS) for query in spec.queries]
    normal = statistics.NormalDist()
    noise = [math.exp(spec.spread * normal.inv_cdf((i + 0.5) / NOISES)) for i in range(NOISES)] if spec.spread else None
    engine = _core.Simulation(
        "late",
        batching="deadline",
        slo=max(slos),
        timeout=max(slos),
        max_queued=1 << 30,
        seed=seed,
        warmup=round(warmup_s * S_NS),
        record=True,
        noise=None if noise is None else np.array(noise),
    )
    runtimes = [
        engine.add_runtime(
            length,
            max(1, int(max(slos) / MS_NS * spec.capacity(variant.tokens) / 1000)),
            [(length, rows, round(ms * MS_NS)) for rows, ms in latency],
            max_batch=spec.batch,
            variant=at,
        )
        for at, variant in enumerate(spec.variants)
        for length, latency in variant.engines
    ]
    bins = max(1, len(spec.bins))
    tasks = list(spec.accuracy)
    counts = _core.TokenCounts(
        list(range(len(spec.variants))),
        [[by_bin[b] for by_bin in spec.accuracy_of(task)] for task in tasks for b in range(bins)],
        policy=name,
        fixed=fixed,
        delta=round(spec.delta_ms * MS_NS),
        most=spec.batch,
        eta=round(spec.eta_ms * MS_NS),
        mu=spec.mu,
        beta=spec.beta,
        initial=round(spec.initial_s * S_NS),
        kappa=spec.kappa,
        window=round((spec.horizon_s if name == "price" else spec.window_s) * S_NS),
        horizon=round(spec.horizon_s * S_NS),
        share=spec.share,
        energy=[spec.joule * watts for watts in spec.watts_of] if spec.joule > 0 else [],
    )
    for number, slo in enumerate(slos):
        engine.set_variant(number, slo=slo, timeout=slo)
    queries = [(query.utility, bins * tasks.index(query.task)) for query in spec.queries]
    engine.set_tokens(counts, queries, bins=list(spec.bins))
    held = runtimes[0] if len(runtimes) == 1 else engine.add_bundle(runtimes)
    for _ in range(workers):
        engine.add_worker(held, 0)
    return engine


def result_of(
    spec: TokenSpec,
    columns: Mapping[str, NDArray[Any]],
    kind: NDArray[np.uint16],
    seed: int,
    warmup_ns: int,
    *,
    spent_j: float | None,
) -> TokenResult:
    """The figures, from columns as of `_core.Simulation.columns()`.

    Whether an answer is right is drawn for each query once, whatever the policy and the count.
    """
    counted = columns["arrived_ns"] >= warmup_ns
    count_of_runtime = [at for at, variant in enumerate(spec.variants) for _ in variant.engines]
    count = np.array([*count_of_runtime, -1])[columns["runtime"]]  # -1: it was never executed
    in_time = columns["outcome"] == ON_TIME
    accuracy = np.array([spec.accuracy_of(query.task) for query in spec.queries])  # [kinds, counts, bins]
    in_bin = np.searchsorted(spec.bins[:-1], columns["length"])
    luck = np.random.default_rng([seed, 2]).random(len(kind))
    right = (count >= 0) & (luck < accuracy[kind, count, in_bin])
    type_of = np.where(in_time, np.where(right, 0, 1), np.where(count >= 0, 2, 3))
    outcomes = np.zeros((len(spec.queries), len(TYPES)), np.int64)
    np.add.at(outcomes, (kind[counted], type_of[counted]), 1)
    worth = np.array([query.utility for query in spec.queries])[kind]
    utility = float(worth[counted & in_time & right].sum())
    offered = float(worth[counted].sum())
    executed = np.flatnonzero(counted & (count >= 0))
    begun = columns["arrived_ns"][executed] + columns["wait_ns"][executed]
    batches = np.unique(np.stack([columns["worker"][executed], begun]), axis=1, return_inverse=True)[1].ravel()
    of_batch = np.bincount(batches)
    accurate = np.bincount(batches, right[executed])
    count_of = np.zeros(len(of_batch), np.int64)
    count_of[batches] = count[executed]
    total = int(counted.sum())
    all_of = outcomes.sum(0)
    answered = int(all_of[0] + all_of[1])
    return TokenResult(
        queries=total,
        utility=utility,
        utility_share=utility / offered if offered > 0 else math.nan,
        outcomes={name: float(each) / max(1, total) for name, each in zip(TYPES, all_of, strict=True)},
        by_query={
            f"{q.task} {q.slo_ms:g} {q.utility:g}": dict(zip(TYPES, map(int, counts), strict=True))
            for q, counts in zip(spec.queries, outcomes, strict=True)
        },
        rows=_by_tokens(spec, np.bincount(count[executed], minlength=len(spec.variants))),
        batches=_by_tokens(spec, np.bincount(count_of, minlength=len(spec.variants))),
        accuracy=float(all_of[0]) / answered if answered else math.nan,
        joules=None if spent_j is None else spent_j / max(1, int(all_of[:3].sum())),
        joules_total=spent_j,
        batch_accuracy=tuple(
            map(int, np.bincount((100 * accurate / np.maximum(of_batch, 1)).astype(np.int64), minlength=101))
        ),
    )


def _by_tokens(spec: TokenSpec, counts: NDArray[np.int64]) -> dict[str, int]:
    return {str(tokens): int(count) for tokens, count in zip(spec.tokens, counts, strict=True)}
