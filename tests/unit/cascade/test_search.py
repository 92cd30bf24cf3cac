"""Searches, on ten rows whose front is known."""

from __future__ import annotations

import itertools

import numpy as np
import pytest

from arlo.cascade.search import exact, sampling
from arlo.cascade.search.points import (
    accuracy_point,
    efficient_point,
    interval,
    paired,
    remove_stages,
    second_derivatives,
)
from arlo.cascade.search.table import Front, Table, pareto

TEN = [
    (0.95, 1, 0.99, 1, 1),
    (0.90, 1, 0.97, 1, 1),
    (0.85, 1, 0.60, 0, 1),
    (0.80, 0, 0.90, 1, 1),
    (0.75, 1, 0.55, 1, 1),
    (0.70, 1, 0.95, 1, 1),
    (0.65, 0, 0.50, 0, 1),
    (0.60, 0, 0.92, 1, 0),
    (0.55, 1, 0.45, 0, 0),
    (0.50, 0, 0.40, 0, 1),
]
TABLE = Table.of([(r[0], r[2]) for r in TEN], [(r[1], r[3], r[4]) for r in TEN], (1, 3, 10))


def test_operating_points() -> None:
    front = exact.search(TABLE)
    ap = accuracy_point(front, TABLE, level=None)
    assert ap == 2
    assert front.thresholds[ap] == pytest.approx((0.85, 0.45), abs=1e-9)
    assert np.bincount(TABLE.exits(front.thresholds[ap])).tolist() == [3, 6, 1]
    assert efficient_point(front, TABLE) == 1
    assert second_derivatives(front.accuracy, front.cost) == pytest.approx([50, 20])
    assert TABLE.measure([2, 2]) == pytest.approx((0.8, 14))
    assert exact.search(Table.of(np.ones((10, 1)), TABLE.right[:, 2:], (10,))).cost.tolist() == [10]


def test_ap_asks_for_more_than_chance() -> None:
    front = exact.search(TABLE)
    assert accuracy_point(front, TABLE) == 3  # at point 2 one row of ten is worse, and one better
    assert accuracy_point(front, TABLE, tolerance=0.6) == 0


def test_eo_needs_three_points() -> None:
    assert efficient_point(exact.search(TABLE).take([2, 3]), TABLE) is None


def test_intervals() -> None:
    found = interval([1] * 30 + [0] * 960 + [-1] * 10)
    assert found.mean == pytest.approx(0.02)
    assert found.low == pytest.approx(0.02 - 1.96 * 0.0063, abs=0.002)
    same = paired([1, 0, 1], [1, 0, 1])
    assert (same.low, same.high) == (0, 0)


def test_a_stage_that_is_never_sure_is_removed() -> None:
    rng = np.random.default_rng(0)
    right = np.column_stack([rng.random(300) < 0.25, rng.random(300) < 0.8, rng.random(300) < 0.9])
    right[:, 2] |= right[:, 1]
    con = np.column_stack([rng.random(300), np.where(right[:, 1], 0.9, 0.3)])
    whole = Table.of(con, right, (1.0, 3.0, 30.0))

    def part(of: list[int]) -> Table:
        return Table(whole.confidence[:, of], whole.right[:, of], whole.cost[:, of])

    kept, removed = remove_stages(3, part, exact.search)
    assert kept == [1, 2]
    assert removed[0][0] == 0
    assert removed[0][1] <= 0


def brute_force(table: Table) -> Front:
    cuts = [[2.0, *np.unique(table.confidence[:, s])[::-1]] for s in range(table.stages - 1)]
    points = [(*table.measure(t), t) for t in itertools.product(*cuts)]
    return pareto([p[0] for p in points], [p[1] for p in points], [p[2] for p in points])


@pytest.mark.parametrize("stages", [1, 2, 3])
def test_exact_is_brute_force(stages: int) -> None:
    rng = np.random.default_rng(stages)
    for rows in (1, 2, 7, 12):
        for _ in range(6):
            table = Table.of(
                rng.integers(0, 8, (rows, stages)) / 8,
                rng.random((rows, stages)) < 0.6,
                rng.integers(1, 9, (rows, stages)),
            )
            found, expected = exact.search(table), brute_force(table)
            assert found.accuracy == pytest.approx(expected.accuracy)
            assert found.cost == pytest.approx(expected.cost)
            for a, e, t in zip(found.accuracy, found.cost, found.thresholds, strict=True):
                assert table.measure(t) == pytest.approx((a, e))


def made(rows: int, stages: int, seed: int = 0) -> Table:
    rng = np.random.default_rng(seed)
    con = rng.beta(2, 1.2, (rows, stages))
    right = rng.random((rows, stages)) < np.clip(con * 0.75 + 0.06 * np.arange(stages), 0, 1)
    return Table.of(con, right, rng.uniform(0.8, 1.2, (rows, stages)) * 3.0 ** np.arange(stages))


def hypervolume(front: Front, cost: float) -> float:
    """Area that the points dominate, of accuracy 0 to 1 and cost 0 to `cost`."""
    return float((front.accuracy * np.diff(np.append(np.minimum(front.cost, cost), cost))).sum())


@pytest.mark.parametrize("stages", [2, 3, 4])
def test_sampling_never_beats_exact(stages: int) -> None:
    table = made(400, stages)
    whole, sampled = exact.search(table), sampling.search(table)
    top = float(table.cost.sum(axis=1).mean())
    assert hypervolume(whole, top) >= hypervolume(sampled, top) - 1e-12
    for a, e in zip(sampled.accuracy, sampled.cost, strict=True):
        assert (whole.cost[whole.accuracy >= a - 1e-12] <= e + 1e-9).any()
    assert hypervolume(sampled, top) > (0.99 if stages < 4 else 0.97) * hypervolume(whole, top)
