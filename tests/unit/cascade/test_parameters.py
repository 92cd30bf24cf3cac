"""Skips, ensembles, ladders, thresholds by length."""

from __future__ import annotations

import itertools

import numpy as np
import pytest

from arlo.cascade.decide import Answers, softmax, walk
from arlo.cascade.search import ensemble as mixing
from arlo.cascade.search import exact, ladder, skips
from arlo.cascade.search.points import accuracy_point
from arlo.cascade.search.table import Table
from arlo.cascade.spec import NEVER, Ensemble, Rule, Rules, bounded, hard, threshold

from .conftest import said_by


def test_cuts_by_benefit_are_the_best_there_are() -> None:
    rng = np.random.default_rng(5)
    for _ in range(20):
        rows = 7
        table = Table.of(rng.random((rows, 3)), rng.random((rows, 4)) < 0.5, (1.0, 3.0, 9.0, 30.0))
        thresholds = np.array([0.9, NEVER, NEVER])
        con = table.confidence[:, 0]

        def worth(cuts: tuple[float, ...], table: Table = table, con: np.ndarray = con) -> float:
            """Of the first stage's cuts, when a row ends where it is sent."""
            to = 1 + 2 - np.searchsorted(cuts, con, side="right")
            to = np.where(con >= 0.9, 0, to)
            rows = np.arange(len(con))
            return float((20 * table.right[rows, to] - np.where(to > 0, table.cost[rows, to], 0)).sum())

        only = Table(np.column_stack([con, *[np.full(rows, 2.0)] * 3]), table.right, table.cost)
        found = skips.by_benefit(only, np.array([0.9, 0.0, 0.0]), 20.0)[0]
        values = [0.0, *np.minimum(np.sort(con), 0.9), 0.9]
        best = max(worth(cuts) for cuts in itertools.combinations_with_replacement(values, 2))
        assert worth(found) == pytest.approx(best)
        assert [len(each) for each in skips.by_benefit(table, thresholds, 20.0)] == [2, 1, 0]


def test_an_ensemble_is_on_only_where_it_is_proven() -> None:
    said, y = said_by(4000, (1.2, 1.3))  # equals: two views are better than one
    fit, select = (
        [Answers(*(v[part] for v in _fields(s))) for s in said] for part in (slice(0, 2000), slice(2000, 4000))
    )
    found, gains = mixing.choose((fit, y[:2000]), (select, y[2000:]), np.array([0.9]))
    assert found.kind != "none"
    assert max(g.mean for g in gains.values()) > 0.02
    said, y = said_by(4000, (0.2, 3.0))
    fit, select = (
        [Answers(*(v[part] for v in _fields(s))) for s in said] for part in (slice(0, 2000), slice(2000, 4000))
    )
    assert mixing.choose((fit, y[:2000]), (select, y[2000:]), np.array([0.9]))[0] == Ensemble()


def _fields(a: Answers) -> list[np.ndarray]:
    return [a.confidence, a.answer, a.calibrated, a.raw, a.finite]


def test_printed_weights() -> None:
    said, y = said_by(500, (1.0, 2.0))
    exits = np.where(said[0].confidence >= 0.8, 0, 1)
    a = [(s.answer == y)[exits == 1].mean() for s in said]
    assert mixing.printed_weights(said, y, exits) == pytest.approx(tuple(a))


def test_the_table_is_what_a_walk_gives() -> None:
    said, y = said_by(300, (0.8, 1.2, 2.0))
    for mix in (Ensemble(), Ensemble(kind="calibrated", weights=(0.5, 0.6, 0.9))):
        table = mixing.table_of(said, y, (1.0, 3.0, 9.0), mix)
        ended = walk(Rules(prices=((hard(0.7), hard(0.6)),), ensemble=mix), said, 0)
        right, cost = table.at(table.exits((0.7, 0.6)))
        assert (right == (ended.answer == y)).all()
        assert cost == pytest.approx(mixing.spent(ended.ran, (1.0, 3.0, 9.0)))


def test_prices_only_let_more_rows_out() -> None:
    said, y = said_by(2000, (1.0, 2.0, 3.0))
    table = mixing.table_of(said, y, (1.0, 3.0, 9.0))
    front = exact.search(table)
    point = accuracy_point(front, table, tolerance=0.02)
    assert point is not None
    steps = ladder.ladder(front, point, floor=0.6)
    assert 2 <= len(steps) <= 16
    assert (np.diff(steps, axis=0) <= 0).all()
    rules = Rules(prices=tuple(ladder.as_rules(t) for t in steps))  # which checks the same
    ends = np.stack([walk(rules, said, 0, price=p).stage for p in range(len(steps))])
    cost = [table.at(e)[1].mean() for e in ends]
    assert all(a >= b for a, b in itertools.pairwise(cost))
    assert len(ladder.ladder(front, 0)) == 1


def test_a_price_goes_no_further_than_its_floor() -> None:
    prices = tuple((hard(t), hard(t / 2)) for t in (0.9, 0.7, 0.5, 0.3))
    floor = (Rule(t=((32, 0.6), (64, 0.95))), hard(0.1))
    bound = bounded(prices, floor)
    assert [[threshold(rules[0], length) for length in (10, 50, 500)] for rules in bound] == [
        [0.9, 0.9, 0.9],
        [0.7, 0.9, 0.9],  # at no length is a row sent on that price 0 would let out
        [0.6, 0.9, 0.9],
        [0.6, 0.9, 0.9],
    ]
    assert [threshold(rules[1], 10) for rules in bound] == [0.45, 0.35, 0.25, 0.15]
    Rules(prices=bound)  # prices let more rows out
    assert len(bounded(prices, prices[1])) == 2
    assert bounded(prices, prices[0]) == prices[:1]
    soft = ((Rule(kind="soft", c=0.5, k=10.0),),)
    assert bounded(soft, (hard(0.9),)) == soft


def test_one_price_over_lengths_costs_less() -> None:
    said, y = said_by(3000, (1.2, 2.5))
    length = np.random.default_rng(1).choice([30, 400], 3000)
    table = mixing.table_of(said, y, np.column_stack([np.full(3000, 0.1), length / 100]))
    plain, binned = exact.search(table), ladder.merge(table, length, (64, 512), exact.search)
    assert binned.bins == (64, 512)
    at = accuracy_point(plain, table, level=None)
    assert at is not None
    cheaper = binned.cost[binned.accuracy >= plain.accuracy[at] - 0.002]
    assert cheaper.min() < 0.97 * plain.cost[at]
    i = len(binned.cost) // 2
    rules = Rules(prices=(ladder.as_rules(binned.thresholds[i], binned.bins),))
    ended = walk(rules, said, length)
    assert (ended.answer == y).mean() == pytest.approx(binned.accuracy[i])
    assert ladder.merge(table, length, (8, 64, 512), exact.search).bins == (64, 512)
    assert ladder.slope_at(plain, at) > 0


def test_softmax_of_far_logits() -> None:
    assert softmax([[1000.0, 0.0]])[0].tolist() == [[1.0, 0.0]]
