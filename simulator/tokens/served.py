"""Queries for one body at several token counts: workers hold it at all of them, and the gateway's scheduler chooses the
count of each batch. Whether answers are right is drawn here."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from arlo import _core
from arlo.errors import ConfigError
from arlo.planning.planner import PlannerSettings
from arlo.simulator.report.result import Figures
from arlo.simulator.scenario.scenario import Dispatch, Rows, RuntimeModel, Scenario, Workload
from arlo.simulator.tokens.file import TokenSpec

MS_NS = 1_000_000
S_NS = 1_000_000_000
POLICIES = ("printed", "price")
TYPES = ("accurate", "wrong", "late", "evicted")
ON_TIME = 0  # of the outcomes in _core.Simulation.columns()


def scenario_of(spec: TokenSpec, policy: str, workload: Workload, **fields: Any) -> Scenario:
    """Queries that arrive as in the workload, which also gives their lengths if rows have lengths.

    `policy`: printed, price or fixed:N. `fields`: others of Scenario. ConfigError names what there is.
    """
    slo_ms = max(query.slo_ms for query in spec.queries)
    runtimes = tuple(
        RuntimeModel(
            name=f"{variant.tokens}/{length}",
            max_length=length,
            points=tuple((length, rows, ms) for rows, ms in latency),
            max_batch=spec.batch,
            variant=at,
            watts=watts,
        )
        for at, (variant, watts) in enumerate(zip(spec.variants, spec.watts_of, strict=True))
        for length, latency in variant.engines
    )
    own: dict[str, Any] = {
        "name": f"{spec.name} {policy}",
        "workload": workload,
        "runtimes": runtimes,
        "workers": 1,
        "slo_ms": slo_ms,
        "timeout_ms": slo_ms,
        "dispatch": Dispatch(batching="deadline"),
        "bundle": "all",
        "overhead_ms": 0.0,
        "served": TokenCounts(spec, *_policy(spec, policy)),
    }
    return Scenario(**{**own, **fields})


def _policy(spec: TokenSpec, policy: str) -> tuple[str, int]:
    """Its kind, and with fixed:N the place of the count."""
    if policy in POLICIES:
        return policy, 0
    kind, _, count = policy.partition(":")
    if kind == "fixed" and count.lstrip("-+").isdigit() and int(count) in spec.tokens:
        return "fixed", spec.tokens.index(int(count))
    counts = ", ".join(map(str, spec.tokens))
    raise ConfigError(f"dispatch.tokens must be {', '.join(POLICIES)} or fixed:N, N of {counts}; not {policy!r}")


@dataclasses.dataclass(frozen=True, slots=True)
class TokenCounts:
    """A body whose counts are the scheduler's variants, 0 the fewest tokens."""

    spec: TokenSpec
    policy: str
    fixed: int = 0  # place of the count, of the policy fixed
    ahead: int = 0

    @property
    def work_s(self) -> float:
        """Worker-seconds of a query of the greatest length at the most tokens, in the batch cheapest per row."""
        return min(ms / rows for rows, ms in self.spec.variants[-1].engines[-1][1] if rows <= self.spec.batch) / 1000

    def planner(self, settings: PlannerSettings, scenario: Scenario) -> None:
        return None

    def begin(self, engine: _core.Simulation, scenario: Scenario) -> Queries:
        spec = self.spec
        bins, tasks = max(1, len(spec.bins)), list(spec.accuracy)
        counts = _core.TokenCounts(
            list(range(len(spec.variants))),
            [[by_bin[b] for by_bin in spec.accuracy_of(task)] for task in tasks for b in range(bins)],
            policy=self.policy,
            fixed=self.fixed,
            delta=round(spec.delta_ms * MS_NS),
            most=spec.batch,
            eta=round(spec.eta_ms * MS_NS),
            mu=spec.mu,
            beta=spec.beta,
            initial=round(spec.initial_s * S_NS),
            kappa=spec.kappa,
            window=round((spec.horizon_s if self.policy == "price" else spec.window_s) * S_NS),
            horizon=round(spec.horizon_s * S_NS),
            share=spec.share,
            energy=[spec.joule * watts for watts in spec.watts_of] if spec.joule > 0 else [],
        )
        for number, query in enumerate(spec.queries):
            slo = round(query.slo_ms * MS_NS)
            engine.set_variant(number, slo=slo, timeout=slo)
        queries = [(query.utility, bins * tasks.index(query.task)) for query in spec.queries]
        engine.set_tokens(counts, queries, bins=list(spec.bins))
        return Queries(spec, engine, scenario)


class Queries(Rows):
    """The queries of one run: their kinds are drawn as they come."""

    def __init__(self, spec: TokenSpec, engine: _core.Simulation, scenario: Scenario) -> None:
        self._spec, self._engine, self._seed = spec, engine, scenario.seed
        self._warmup_ns = round(scenario.warmup_s * S_NS)
        self._draw = kinds_of(spec, scenario.seed)
        self._kinds: list[NDArray[np.uint16]] = []

    def feed(
        self, arrived: NDArray[np.int64], length: NDArray[np.int32]
    ) -> tuple[NDArray[np.int64], NDArray[np.int32], NDArray[np.uint16]]:
        self._kinds.append(self._draw(len(arrived)))
        length = np.clip(length, 1, self._spec.length).astype(np.int32)
        return arrived, length, self._kinds[-1]

    def figures(self) -> Figures:
        kinds = np.concatenate(self._kinds) if self._kinds else np.zeros(0, np.uint16)
        return figures_of(self._spec, self._engine.columns(), kinds, self._seed, self._warmup_ns)


def kinds_of(spec: TokenSpec, seed: int) -> Callable[[int], NDArray[np.uint16]]:
    """Draws the kinds of so many further queries, by the kinds' shares."""
    random = np.random.default_rng([seed, 1])
    shares = np.array([query.share for query in spec.queries])
    return lambda count: random.choice(len(shares), count, p=shares / shares.sum()).astype(np.uint16)


def figures_of(
    spec: TokenSpec, columns: Mapping[str, NDArray[Any]], kind: NDArray[np.uint16], seed: int, warmup_ns: int = 0
) -> Figures:
    """Figures from the columns of `_core.Simulation.columns()`, over the queries that arrived after the warm-up.

    Whether an answer is right is drawn for each query once, independent of the policy and the count.
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
    types = np.zeros((len(spec.queries), len(TYPES)), np.int64)
    np.add.at(types, (kind[counted], type_of[counted]), 1)
    worth = np.array([query.utility for query in spec.queries])[kind]
    utility, offered = float(worth[counted & in_time & right].sum()), float(worth[counted].sum())
    executed = np.flatnonzero(counted & (count >= 0))
    begun = columns["arrived_ns"][executed] + columns["wait_ns"][executed]
    batches = np.unique(np.stack([columns["worker"][executed], begun]), axis=1, return_inverse=True)[1].ravel()
    of_batch = np.bincount(batches)
    accurate = np.bincount(batches, right[executed])
    count_of = np.zeros(len(of_batch), np.int64)
    count_of[batches] = count[executed]
    all_of = types.sum(0)
    answered = int(all_of[0] + all_of[1])

    def by_tokens(counts: NDArray[np.int64]) -> dict[str, int]:
        return {str(tokens): int(count) for tokens, count in zip(spec.tokens, counts, strict=True)}

    return Figures(
        accuracy=float(all_of[0]) / answered if answered else None,
        utility=utility,
        more={
            "utility_share": utility / offered if offered > 0 else None,
            "types": {name: float(n) / max(1, int(all_of.sum())) for name, n in zip(TYPES, all_of, strict=True)},
            "by_query": {
                f"{q.task} {q.slo_ms:g} {q.utility:g}": dict(zip(TYPES, map(int, counts), strict=True))
                for q, counts in zip(spec.queries, types, strict=True)
            },
            "rows": by_tokens(np.bincount(count[executed], minlength=len(spec.variants))),
            "batches": by_tokens(np.bincount(count_of, minlength=len(spec.variants))),
            "batch_accuracy": np.bincount(
                (100 * accurate / np.maximum(of_batch, 1)).astype(np.int64), minlength=101
            ).tolist(),
        },
    )
