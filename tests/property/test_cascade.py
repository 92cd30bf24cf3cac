"""Properties of cascades: what calibration, rules, pruning and searches must never do."""

from __future__ import annotations

import itertools

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from arlo.cascade.decide import answers, walk
from arlo.cascade.search import exact, sampling
from arlo.cascade.search.points import accuracy_point
from arlo.cascade.search.table import Table, pareto
from arlo.cascade.spec import NEVER, Calibrator, Ensemble, Rules, StageSpec, hard

QUICK = settings(max_examples=60, deadline=None)
SEEDS = st.integers(0, 2**32 - 1)


def at(t: float, scale: str = "prob") -> StageSpec:
    return StageSpec(calibrator=Calibrator(t=t), scale=scale)  # type: ignore[arg-type]


@QUICK
@given(SEEDS, st.integers(1, 5))
def test_every_row_ends_once_and_stages_only_grow(seed: int, n: int) -> None:
    rng = np.random.default_rng(seed)
    said = [answers(at(1.0), rng.normal(0, 2, (100, 3))) for _ in range(n)]
    t = rng.random(n - 1)
    skip = tuple(tuple(np.sort(rng.random(rng.integers(0, n - 1 - s)) * t[s])) for s in range(n - 1))
    mix = Ensemble(kind="raw", weights=tuple(rng.random(n) + 0.1)) if seed % 2 else Ensemble()
    rules = Rules(prices=(tuple(map(hard, t)),), skip=skip, ensemble=mix)
    ended = walk(rules, said, 10, seed=seed)
    assert (ended.stage >= 0).all()
    assert (ended.reason >= 0).all()
    assert ended.ran[np.arange(100), ended.stage].all()
    assert (ended.stage == n - 1 - ended.ran[:, ::-1].argmax(axis=1)).all()


def test_thresholds_at_the_ends_are_single_stages() -> None:
    rng = np.random.default_rng(3)
    said = [answers(at(1.0), rng.normal(0, 30, (5000, 3))) for _ in range(3)]  # confidences of exactly 1, too
    for t, stage in ((0.0, 0), (NEVER, 2)):
        ended = walk(Rules(prices=((hard(t), hard(t)),)), said, 10)
        assert (ended.stage == stage).all()
        assert (ended.answer == said[stage].answer).all()


@QUICK
@given(SEEDS, st.integers(1, 3), st.integers(1, 12))
def test_exact_search_is_brute_force(seed: int, stages: int, rows: int) -> None:
    rng = np.random.default_rng(seed)
    table = Table.of(
        rng.integers(0, 5, (rows, stages)) / 4, rng.random((rows, stages)) < 0.6, rng.random((rows, stages))
    )
    cuts = [[NEVER, *np.unique(table.confidence[:, s])] for s in range(stages - 1)]
    points = [(*table.measure(t), t) for t in itertools.product(*cuts)]
    best = pareto([p[0] for p in points], [p[1] for p in points], [p[2] for p in points])
    found = exact.search(table)
    assert np.allclose(found.accuracy, best.accuracy)
    assert np.allclose(found.cost, best.cost)


@settings(max_examples=10, deadline=None)
@given(SEEDS, st.integers(2, 3))
def test_sampling_never_beats_exact_search(seed: int, stages: int) -> None:
    rng = np.random.default_rng(seed)
    con = rng.random((150, stages))
    table = Table.of(con, rng.random((150, stages)) < 0.3 + 0.5 * con, 3.0 ** np.arange(stages))
    whole, sampled = exact.search(table), sampling.sample(table, samples=200, seed=seed)
    for a, e in zip(sampled.accuracy, sampled.cost, strict=True):
        assert (whole.cost[whole.accuracy >= a - 1e-12] <= e + 1e-9).any()
    ap = accuracy_point(whole, table, level=None)
    assert ap is not None
    assert whole.accuracy[ap] >= table.right[:, -1].mean() - 1e-12
