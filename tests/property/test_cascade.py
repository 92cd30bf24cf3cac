"""Properties of cascades: what calibration, rules, pruning and searches must never do."""

from __future__ import annotations

import itertools

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from arlo.cascade.decide import answers, calibrate, confidence, decide, escalation_probability, walk
from arlo.cascade.prune import Vocabulary, prune, words_of
from arlo.cascade.search import exact, sampling
from arlo.cascade.search.points import accuracy_point
from arlo.cascade.search.table import Table, pareto
from arlo.cascade.spec import NEVER, Calibrator, Ensemble, Prune, Rule, Rules, StageSpec, hard

QUICK = settings(max_examples=60, deadline=None)
SEEDS = st.integers(0, 2**32 - 1)


def at(t: float, scale: str = "prob") -> StageSpec:
    return StageSpec(calibrator=Calibrator(t=t), scale=scale)  # type: ignore[arg-type]


@QUICK
@given(SEEDS, st.integers(2, 9), st.floats(0.05, 20), st.floats(1.0001, 4))
def test_calibration_keeps_the_answer_and_confidence_falls_with_t(
    seed: int, labels: int, t: float, more: float
) -> None:
    z = np.random.default_rng(seed).normal(0, 4, (200, labels)).astype(np.float32)
    q, _ = calibrate(at(t), z)
    rows = np.arange(len(z))
    assert (q[rows, z.argmax(axis=1)] >= q.max(axis=1)).all()  # equal where rounding makes ties
    assert (confidence(at(t), z) >= confidence(at(t * more), z) - 1e-15).all()


def test_squared_confidence_and_squared_thresholds_decide_alike() -> None:
    rng = np.random.default_rng(0)
    z = rng.normal(0, 3, (1_000_000, 3))
    plain, squared = confidence(at(1.3), z), confidence(at(1.3, "prob2"), z)
    for t in (0.4, 0.7, 0.93):
        assert ((plain < t) == (squared < t * t)).all()


@QUICK
@given(st.floats(0, 0.99), SEEDS)
def test_the_soft_rule_becomes_the_hard_one(c: float, seed: int) -> None:
    con = np.random.default_rng(seed).random(500)
    middle = (1 + c) / 2
    clear = np.abs(con - middle) > 1e-3
    soft = escalation_probability(Rule(kind="soft", c=c, k=1e7), con)
    assert (np.round(soft[clear], 9) == (con < middle)[clear]).all()


@QUICK
@given(SEEDS, st.floats(0, 1), st.floats(0, 1), st.floats(1, 30))
def test_more_threshold_never_fewer_escalations(seed: int, a: float, b: float, k: float) -> None:
    con = np.random.default_rng(seed).random(300)
    low, high = sorted((a, b))
    for rules in ((hard(low), hard(high)), *([(Rule(kind="soft", c=low, k=k), Rule(kind="soft", c=high, k=k))])):
        less, more = (decide(Rules(prices=((r,),)), 0, con, row=np.arange(300), seed=seed)[0] >= 0 for r in rules)
        assert not (less & ~more).any()


@QUICK
@given(SEEDS, st.integers(1, 5))
def test_every_row_ends_once_and_stages_only_grow(seed: int, n: int) -> None:
    rng = np.random.default_rng(seed)
    said = [answers(at(1.0), rng.normal(0, 2, (100, 3))) for _ in range(n)]
    t = rng.random(n - 1)
    skip = tuple(tuple(np.sort(rng.random(rng.integers(0, n - 1 - s)) * t[s])) for s in range(n - 1))
    mix = Ensemble(kind="raw", weights=tuple(rng.random(n) + 0.1)) if seed % 2 else Ensemble()
    present = rng.random((100, n)) < 0.7
    present[:, 0] = True
    rules = Rules(prices=(tuple(map(hard, t)),), skip=skip, ensemble=mix)
    ended = walk(rules, said, 10, seed=seed, present=present)
    assert (ended.stage >= 0).all()
    assert (ended.reason >= 0).all()
    assert ended.ran[np.arange(100), ended.stage].all()
    assert not (ended.ran & ~present).any()
    assert (ended.stage == n - 1 - ended.ran[:, ::-1].argmax(axis=1)).all()


def test_thresholds_at_the_ends_are_single_stages() -> None:
    rng = np.random.default_rng(3)
    said = [answers(at(1.0), rng.normal(0, 30, (5000, 3))) for _ in range(3)]  # confidences of exactly 1, too
    for t, stage in ((0.0, 0), (NEVER, 2)):
        ended = walk(Rules(prices=((hard(t), hard(t)),)), said, 10)
        assert (ended.stage == stage).all()
        assert (ended.answer == said[stage].answer).all()


@st.composite
def texts(draw: st.DrawFn) -> tuple[list[int], list[float]]:
    """Ids 0 to 1: special, 2 to 5: begin a word, 6 to 9: go on with one; with their importance."""
    ids = draw(st.lists(st.integers(0, 9), min_size=1, max_size=40))
    return ids, draw(st.lists(st.floats(0, 5, width=32), min_size=len(ids), max_size=len(ids)))


VOCABULARY = Vocabulary(np.arange(10) < 6, special=frozenset({0, 1}), keep=frozenset({5}))


@settings(max_examples=200, deadline=None)
@given(texts(), st.floats(0.05, 3), st.integers(1, 6), st.sampled_from([(), (8,), (8, 16, 24, 32, 48)]), st.booleans())
def test_pruned_text_is_what_it_should_be(
    text: tuple[list[int], list[float]], alpha: float, least: int, levels: tuple[int, ...], to_level: bool
) -> None:
    ids, importance = text
    kept = prune(Prune(alpha=alpha, min_words=least, to_level=to_level), VOCABULARY, ids, importance, levels)
    places = set(kept.tolist())
    assert kept.tolist() == sorted(places)  # a subsequence
    assert all(i in places for i, token in enumerate(ids) if token in (0, 1, 5))
    words = words_of(VOCABULARY, ids)
    whole = [set(np.nonzero(words.word == w)[0].tolist()) for w in range(len(words.size))]
    assert all(word <= places or not word & places for word in whole)
    left = [w for w, word in enumerate(whole) if word <= places]
    assert len(left) >= min(least, len(whole))
    assert {words.segment[w] for w in left} == set(words.segment.tolist())
    if levels and to_level and len(kept) < len(ids):  # it pays: a shorter runtime takes it
        before, after = (next((x for x in levels if x >= size), 1 << 30) for size in (len(ids), len(kept)))
        assert after < before


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
