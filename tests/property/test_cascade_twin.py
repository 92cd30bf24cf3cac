"""The decisions of cascades in C++ (src/flow), compared with a plain reading of the rules, row by row."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from arlo import _core
from arlo.cascade import decide, drift, prune, spec
from benchmarks.papers.tabi.words import words_of
from tests.property import plain_cascade

ROWS = 2_000  # of each case


def stage_twin(stage: spec.StageSpec) -> _core.CascadeStage:
    by = stage.calibrator
    return _core.CascadeStage(
        kind=by.kind,
        t=by.t,
        by_length=by.by_length,
        scale=by.scale,
        bias=by.bias,
        curve=by.curve,
        score=stage.score,
        over=stage.over,
        squared=stage.scale == "prob2",
        label_order=stage.label_order,
    )


def confidences(random: np.random.Generator) -> np.ndarray[Any, np.dtype[np.float64]]:
    """Evenly, on the thresholds themselves, and at the ends."""
    values = random.random(ROWS)
    values[::7] = random.choice([0.0, 0.25, 0.5, 0.7, 0.9, 1.0], len(values[::7]))
    return values


RULES = {
    "hard": spec.Rules(prices=((spec.hard(0.7), spec.hard(0.5)),)),
    "by length": spec.Rules(prices=((spec.Rule(t=((16, 0.9), (64, 0.7))), spec.hard(0.5)),)),
    "soft": spec.Rules(prices=((spec.Rule(kind="soft", c=0.7, k=10.0), spec.Rule(kind="soft", c=0.25, k=5.0)),)),
    "prices": spec.Rules(prices=((spec.hard(0.9), spec.hard(0.7)), (spec.hard(0.5), spec.hard(0.25)))),
    "skips": spec.Rules(prices=((spec.hard(0.9), spec.hard(0.7)),), skip=((0.5,),)),
    "always and never": spec.Rules(prices=((spec.hard(0.0), spec.hard(spec.NEVER)),)),
}


@pytest.mark.parametrize("name", RULES)
def test_decisions(name: str) -> None:
    rules, random = RULES[name], np.random.default_rng(7)
    conf, length = confidences(random), random.integers(1, 600, ROWS).astype(np.int32)
    for stage in (0, 1, 2):
        for present in (0b111, 0b101, 0b011, 0b001):
            for how in ({}, {"price": 1}, {"price": 9}, {"last": 1}, {"least": 0.6}, {"seed": 5}):
                to, reason = _core.cascade_decide(decide.core_rules(rules), stage, conf, length, present=present, **how)
                rows = enumerate(zip(conf.tolist(), length.tolist(), strict=True))
                plain = [
                    plain_cascade.decide(rules, stage, c, row=i, length=n, present=present, **how) for i, (c, n) in rows
                ]
                assert list(zip(to.tolist(), reason.tolist(), strict=True)) == plain


STAGES = {
    "temperature": spec.StageSpec(calibrator=spec.Calibrator(t=1.3)),
    "by length": spec.StageSpec(calibrator=spec.Calibrator(t=1.3, by_length=((16, 0.8), (64, 2.0)))),
    "squared": spec.StageSpec(calibrator=spec.Calibrator(t=0.9), scale="prob2"),
    "margin": spec.StageSpec(score="margin"),
    "entropy": spec.StageSpec(score="entropy"),
    "order": spec.StageSpec(label_order=(2, 0, 1, 4, 3)),
    "vector": spec.StageSpec(
        calibrator=spec.Calibrator(kind="vector", scale=(1.0, 0.9, 1.1, 0.8, 1.2), bias=(0.1, 0.0, -0.1, 0.2, 0.0))
    ),
    "dirichlet": spec.StageSpec(
        calibrator=spec.Calibrator(
            kind="dirichlet", scale=tuple((np.eye(5) * 0.9 + 0.02).ravel().tolist()), bias=(0.1, 0.0, 0.0, 0.0, 0.0)
        )
    ),
    "isotonic": spec.StageSpec(
        calibrator=spec.Calibrator(kind="isotonic", t=1.1, curve=((0.2, 0.1), (0.5, 0.4), (0.9, 0.95)))
    ),
}


@pytest.mark.parametrize("name", STAGES)
def test_confidences(name: str) -> None:
    stage, random = STAGES[name], np.random.default_rng(3)
    logits = random.normal(0, 3, (ROWS, 5)).astype(np.float32)
    logits[::11] = np.round(logits[::11])  # ties
    logits[5::1000, 2] = np.nan
    logits[6::1000, 1] = np.inf
    logits[7::1000] = 1000.0
    length = random.integers(1, 600, ROWS).astype(np.int32)
    ours = decide.confidence(stage, logits, length)
    theirs = stage_twin(stage).confidence(logits, length)
    np.testing.assert_allclose(theirs, ours, rtol=0, atol=1e-12)
    assert (theirs[~np.isfinite(logits).all(1)] == 0).all()


def test_pruned_rows() -> None:
    random = np.random.default_rng(11)
    vocabulary = prune.Vocabulary.of(random.random(504) < 0.7, (0, 1, 2), (40, 41))
    crossed = 0
    for _ in range(1000):
        count = int(random.integers(1, 80))
        ids = random.integers(0, 600, count)
        ids[random.random(count) < 0.05] = 1
        importance = random.gamma(1.0, 1.0, count).astype(np.float32)
        if random.random() < 0.3:
            importance = np.round(importance)  # ties
        levels = [[], [16, 32, 64], [64], [8, 128]][int(random.integers(4))]
        how = spec.Prune(
            alpha=float(random.choice([0.3, 0.7, 0.9, 1.5])),
            mean_over="words" if random.random() < 0.5 else "all",
            to_level=bool(random.random() < 0.7),
            min_words=int(random.integers(1, 6)),
            alpha_max=float(random.choice([0.0, 1.5, 4.0])),
            most_removed=float(random.choice([0.3, 0.6, 1.0])),
        )
        under = int(random.choice([0, 0, 16, 64, 100]))
        theirs = prune.prune(how, vocabulary, ids, importance, levels, under=under)
        ours = plain_cascade.prune(how, vocabulary, ids, importance, levels, under=under)
        np.testing.assert_array_equal(theirs, ours)
        assert set(np.nonzero(np.isin(ids, [0, 1, 2]))[0]) <= set(theirs)
        if under and len(theirs) < count:
            assert len(theirs) <= max(level for level in levels if level < under)
        other = reworded(random, vocabulary, ids)
        to = prune.Rewording(OTHER, other)
        theirs = prune.prune(how, vocabulary, ids, importance, levels, to=to, under=under)
        ours = plain_cascade.prune(how, vocabulary, ids, importance, levels, to=to, under=under)
        np.testing.assert_array_equal(theirs, ours)
        crossed += len(theirs) < len(other)
    assert crossed > 100


# Even ids begin a word.
OTHER = prune.Vocabulary.of(np.arange(600) % 2 == 0, (0, 2))


def reworded(random: np.random.Generator, vocabulary: prune.Vocabulary, ids: np.ndarray[Any, Any]) -> Any:
    """The same words, of one to three tokens each, twice as many special tokens between; one text in ten has others."""
    words = words_of(vocabulary, ids)
    found: list[int] = []
    for at, word in enumerate(words.word):
        if word < 0:
            found += [2, 0]
        elif at == 0 or words.word[at - 1] != word:
            found += [4 + 2 * int(random.integers(200)), *([5] * int(random.integers(0, 3)))]
    return np.array(found + [6] * (random.random() < 0.1), np.int64)


def test_hashes() -> None:
    for seed, row, stage in ((0, 0, 0), (1, 2, 3), (2**63, 2**60, 7)):
        assert _core.cascade_hash01(seed, row, stage) == plain_cascade.hash01(seed, row, stage)


class Drift:
    """One-sided sequential test of P(disagree) <= epsilon: 24 bets of sizes up to 0.95 / epsilon share the capital, and
    each multiplies its own by 1 + size * (x - epsilon)."""

    def __init__(self, epsilon: float) -> None:
        self.epsilon = epsilon
        self.bets = np.geomspace(0.01, 0.95, 24) / epsilon
        self.log_capital = np.zeros(24)

    def add(self, disagreed: bool) -> bool:
        """Whether the alarm is on after this row."""
        self.log_capital += np.log1p(self.bets * (float(disagreed) - self.epsilon))
        return bool(np.exp(self.log_capital).mean() >= 1 / drift.ALPHA)


@pytest.mark.parametrize("rate", [0.03, 0.09, 0.3])
def test_the_alarm_of_drift_comes_with_the_same_row(rate: float) -> None:
    random = np.random.default_rng(5)
    for _ in range(20):
        differs = (random.random(3000) < rate).astype(np.uint8)
        test = Drift(0.03)
        first = next((i for i, x in enumerate(differs) if test.add(bool(x))), -1)
        assert _core.cascade_drift(0.03, drift.ALPHA, differs) == first
