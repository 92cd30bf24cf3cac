"""Random thresholds, denser where accuracy is near the last stage's (HybridServe Algorithm 1). Exact sweeps of four
or more stages start from them."""

from __future__ import annotations

import numpy as np

from arlo.cascade.decide import Floats
from arlo.cascade.search.table import Front, Table, join, pareto

SAMPLES = 1000
EPSILON = 0.02
QUIET_ROUNDS = 3  # without a new point of the front, until it ends
_MOST_ROUNDS = 100
_CELLS = 1 << 22  # rows x samples at a time


def search(
    table: Table, *, samples: int = SAMPLES, epsilon: float = EPSILON, quiet: int = QUIET_ROUNDS, seed: int = 0
) -> Front:
    """Algorithm 1, lines 1-8: K samples of [0, 1]^(n-1); those whose accuracy lies between that of the last two stages
    alone are sampled again within epsilon, until nothing new is found. K, epsilon and the end are ours."""
    rng = np.random.default_rng(seed)
    edges = table.stages - 1
    second, giant = (float(table.right[:, s].mean()) for s in (-2, -1))
    low, high = min(second, giant), max(second, giant)
    front = sample(table, samples=samples, seed=seed)
    still = 0
    for _ in range(_MOST_ROUNDS):
        near = front.thresholds[(front.accuracy >= low) & (front.accuracy <= high)]
        if not len(near) or still >= quiet:
            break
        around = near[rng.integers(len(near), size=samples)] + rng.uniform(-epsilon, epsilon, (samples, edges))
        found = join([front, _measured(table, np.clip(around, 0.0, 1.0))])
        still = still + 1 if _same(found, front) else 0
        front = found
    return front


def sample(table: Table, *, samples: int = SAMPLES, seed: int = 0) -> Front:
    """The front of random thresholds."""
    return _measured(table, np.random.default_rng(seed).uniform(0.0, 1.0, (samples, table.stages - 1)))


def _same(a: Front, b: Front) -> bool:
    return len(a) == len(b) and bool(np.all(a.accuracy == b.accuracy) and np.all(a.cost == b.cost))


def _measured(table: Table, thresholds: Floats) -> Front:
    """Accuracy and cost of many thresholds [samples, stages - 1]."""
    total = np.cumsum(table.cost, axis=1)
    step = max(1, _CELLS // table.rows)
    accuracy, cost = [], []
    for first in range(0, len(thresholds), step):
        part = thresholds[first : first + step]
        right = np.broadcast_to(table.right[:, -1], (len(part), table.rows))
        spent = np.broadcast_to(total[:, -1], (len(part), table.rows))
        for s in range(table.stages - 2, -1, -1):
            leaves = table.confidence[:, s] >= part[:, s, None]
            right = np.where(leaves, table.right[:, s], right)
            spent = np.where(leaves, total[:, s], spent)
        accuracy.append(right.mean(axis=1))
        cost.append(spent.mean(axis=1))
    return pareto(np.concatenate(accuracy), np.concatenate(cost), thresholds)
