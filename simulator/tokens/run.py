"""Runs of src/simulate/tokens: a stream of queries on workers that hold one body at all token counts."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from arlo import _core
from arlo.errors import ConfigError
from arlo.simulator.tokens.file import TokenSpec

MS_NS = 1_000_000
S_NS = 1_000_000_000
POLICIES = ("printed", "exact", "price", "load")
TYPES = ("accurate", "wrong", "late", "evicted")


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
    batch_accuracy: tuple[int, ...]  # batches by accurate share in hundredths, [101]
    busy_s: float  # of workers
    plans: int

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


def run(
    spec: TokenSpec,
    policy: str,
    arrived_ns: NDArray[np.int64],
    kind: NDArray[np.uint32],
    *,
    workers: int = 1,
    seed: int = 0,
    warmup_s: float = 0.0,
) -> TokenResult:
    """Simulate queries of `kind` that arrive at `arrived_ns`, ascending, both [queries]; deterministic."""
    name, fixed = check_policy(spec, policy)
    found = _core.simulate_tokens(
        arrived_ns,
        kind,
        latency=[[(rows, round(ms * MS_NS)) for rows, ms in variant.latency] for variant in spec.variants],
        kinds=[(round(q.slo_ms * MS_NS), q.utility, list(spec.accuracy[q.task])) for q in spec.queries],
        policy=name,
        fixed=fixed,
        delta=round(spec.delta_ms * MS_NS),
        most=spec.batch,
        eta=round(spec.eta_ms * MS_NS),
        mu=spec.mu,
        beta=spec.beta,
        initial=round(spec.initial_s * S_NS),
        kappa=spec.kappa,
        by_rate=[(rate, spec.tokens.index(count)) for rate, count in spec.by_rate],
        window=round((spec.horizon_s if name == "price" else spec.window_s) * S_NS),
        switching=round(spec.switch_ms * MS_NS),
        spread=spec.spread,
        workers=workers,
        seed=seed,
        warmup=round(warmup_s * S_NS),
        share=spec.share,
        horizon=round(spec.horizon_s * S_NS),
    )
    outcomes = np.array(found["outcomes"])
    all_of = outcomes.sum(0)
    total = int(all_of.sum())
    answered = int(all_of[0] + all_of[1])
    return TokenResult(
        queries=total,
        utility=found["utility"],
        utility_share=found["utility"] / found["offered"] if found["offered"] > 0 else math.nan,
        outcomes={name: float(count) / max(1, total) for name, count in zip(TYPES, all_of, strict=True)},
        by_query={
            f"{q.task} {q.slo_ms:g} {q.utility:g}": dict(zip(TYPES, map(int, counts), strict=True))
            for q, counts in zip(spec.queries, outcomes, strict=True)
        },
        rows=_by_tokens(spec, found["rows"]),
        batches=_by_tokens(spec, found["batches"]),
        accuracy=float(all_of[0]) / answered if answered else math.nan,
        batch_accuracy=tuple(found["shares"]),
        busy_s=found["busy_ns"] / S_NS,
        plans=found["plans"],
    )


def _by_tokens(spec: TokenSpec, counts: Sequence[int]) -> dict[str, int]:
    return {str(tokens): count for tokens, count in zip(spec.tokens, counts, strict=True)}
