"""A point fitted anew to a gateway's sample: the promise holds on traffic of today, not of the day it was found on."""

from __future__ import annotations

import dataclasses
from collections import Counter
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from arlo import proto
from arlo.cascade.decide import confidence
from arlo.cascade.drift import quantiles
from arlo.cascade.manifest import CascadeManifest, DataUsed, Guarantee, Point, Stage
from arlo.cascade.refresh import Sample, fit_temperatures, refreshed, sample_of, signs
from arlo.cascade.spec import Calibrator, Rule, hard, threshold
from arlo.control.watch import drift
from arlo.errors import ConfigError

LABELS = 4
Logits = NDArray[np.float64]


def cascade(*points: Point, stages: int = 2, t: float = 1.0) -> CascadeManifest:
    return CascadeManifest(
        name="kinds",
        task="sequence-classification",
        labels=tuple(f"label{i}" for i in range(LABELS)),
        stages=tuple(
            Stage(name=f"s{i}", repository=f"s{i}", manifest_sha256="", calibrator=Calibrator(t=t))
            for i in range(stages)
        ),
        points=points,
    )


def point(*thresholds: float, agreement: float = 0.96, **more: Any) -> Point:
    fields = {
        "search": "exact",
        "objective": "mean",
        "accuracy": (0.9, 0.89, 0.91),
        "reach": (1.0, *(0.5**i for i in range(1, len(thresholds) + 1))),
        "mean_ms": 3.0,
        "rules": (tuple(hard(t) for t in thresholds),),
    }
    return Point(name="ap", agreement=agreement, **{**fields, **more})


def traffic(rows: int, strengths: tuple[float, ...], seed: int = 0, scale: float = 1.0) -> list[Logits]:
    """Logits of each stage [rows, labels]: the stronger a stage, the more often it says what the last one does."""
    random = np.random.default_rng(seed)
    truth = np.eye(LABELS)[random.integers(0, LABELS, rows)]
    return [scale * s * (s * truth + random.normal(0, 1, (rows, LABELS))) for s in strengths]


def sampled(said: list[Logits], thresholds: tuple[float, ...], share: float = 0.5, seed: int = 1) -> list[Any]:
    """What a gateway keeps of rows that ended by these thresholds."""
    random = np.random.default_rng(seed)
    spec = cascade(stages=len(said)).stages[0].spec
    sure = [confidence(spec, logits) for logits in said]
    rows = []
    for i in range(len(said[0])):
        row = proto.message("SampledRow")(length=int(random.integers(2, 60)), share=share)
        for s, logits in enumerate(said[:-1]):
            row.said.add(stage=s, logits=logits[i])
            if sure[s][i] >= thresholds[s]:
                break
        row.said.add(stage=len(said) - 1, logits=said[-1][i])
        rows.append(row)
    return rows


def risk(said: list[Logits], t: float) -> float:
    """Of all rows, those that end at the first of two stages with another answer."""
    early = confidence(cascade().stages[0].spec, said[0]) >= t
    return float((early & (said[0].argmax(1) != said[1].argmax(1))).mean())


def test_thresholds_follow_the_traffic() -> None:
    """Where early answers have become worse the threshold rises until the promise holds, and falls where they have
    become better."""
    for strength, before in ((1.2, 0.6), (2.6, 0.95)):
        old = point(before, agreement=0.96)
        sample = sample_of(sampled(traffic(4000, (strength, 3.2)), (before,)), cascade())
        new, notes = refreshed(cascade(), old, sample, name="now", stage_ms=(1, 4))
        t = threshold(new.rules[0][0], 10)
        assert (t > before) == (strength < 2)
        assert not notes
        fresh = risk(traffic(20_000, (strength, 3.2), seed=5), t)
        assert 0.03 < fresh < 0.05  # of 4 %
        assert new.agreement == pytest.approx(1 - fresh, abs=0.008)
        assert new.accuracy is None
        assert (new.mean_ms > 3) == (new.reach[1] > 0.5)


def test_a_guarantee_is_tested_anew() -> None:
    """Of 12 samples, at most so many miss the promise as its delta, and chance, allow."""
    old = point(0.6, guarantee=Guarantee(risk="disagreement", epsilon=0.05, delta=0.1, rows=700))
    truth = traffic(40_000, (1.4, 3.2), seed=99)
    missed = 0
    for seed in range(12):
        sample = sample_of(sampled(traffic(800, (1.4, 3.2), seed=seed), (0.6,)), cascade())
        new, _ = refreshed(cascade(), old, sample, name="now", stage_ms=(1, 4))
        assert new.guarantee == Guarantee(risk="disagreement", epsilon=0.05, delta=0.1, rows=800)
        missed += risk(truth, threshold(new.rules[0][0], 10)) > 0.05
    assert missed <= 4


def test_three_stages_share_the_promise() -> None:
    said = traffic(6000, (1.4, 2.2, 3.2))
    sample = sample_of(sampled(said, (0.6, 0.6)), cascade(stages=3))
    old = point(0.6, 0.6, agreement=0.94)
    new, notes = refreshed(cascade(stages=3), old, sample, name="now", stage_ms=(1, 2, 4))
    assert 0.94 <= new.agreement < 0.97
    assert list(new.reach) == sorted(new.reach, reverse=True)
    if threshold(new.rules[0][0], 10) > 0.6:
        assert any("has not seen" in note for note in notes)


def test_prices_and_soft_rules() -> None:
    sample = sample_of(sampled(traffic(2000, (1.4, 3.2)), (0.6,)), cascade())
    ladder = point(0.8, rules=((hard(0.8),), (hard(0.4),), (hard(0.0),)))
    new, _ = refreshed(cascade(), ladder, sample, name="now", stage_ms=(1, 4))
    first, second, third = (threshold(rules[0], 10) for rules in new.rules)
    assert (second, third) == (pytest.approx(first / 2), 0)
    soft = point(0.8, rules=((Rule(kind="soft", c=0.5, k=10.0),),))
    new, notes = refreshed(cascade(), soft, sample, name="now", stage_ms=(1, 4))
    assert new.rules[0][0].kind == "hard"
    assert notes == ["its soft rules have become thresholds"]


def test_temperatures_follow_the_traffic() -> None:
    """Logits three times as large as they were fitted on: T is three times what it was, and confidence right again."""
    usual, found = fit_temperatures(cascade(), sample_of(sampled(traffic(4000, (1.6, 3.2)), (0.6,)), cascade()))
    grown = sample_of(sampled(traffic(4000, (1.6, 3.2), scale=3.0), (0.6,)), cascade())
    now, again = fit_temperatures(usual, grown)
    assert [each.stage for each in again] == ["s0"]
    assert again[0].t == (pytest.approx(found[0].t[1]), pytest.approx(3 * found[0].t[1], rel=0.05))
    assert again[0].ece15[1] < again[0].ece15[0] / 2
    assert now.stages[1].calibrator == usual.stages[1].calibrator


def test_rows_of_several_shares_count_alike() -> None:
    """A year of one in ten, then all of an evil day: that day is no ten times as much of the traffic."""
    usual = sampled(traffic(3000, (2.6, 3.2)), (0.6,), share=0.1)
    evil = sampled(traffic(3000, (0.2, 3.2), seed=2), (0.6,), share=1.0)
    sample = sample_of(usual + evil, cascade())
    assert 3200 < sample.rows < 3400
    assert isinstance(sample, Sample)


def by_length(strengths: tuple[float, float], rows: int = 6000, seed: int = 0) -> tuple[list[Logits], Any]:
    """Traffic whose first stage is of the first strength for rows of up to 30 tokens, of the second one for longer
    ones; the logits and the sample."""
    both = [traffic(rows, (strength, 3.2), seed=seed + i) for i, strength in enumerate(strengths)]
    rows_ = []
    for part, (low, high) in zip(both, ((2, 31), (31, 61)), strict=True):
        for row, length in zip(
            sampled(part, (0.6,)), np.random.default_rng(seed).integers(low, high, rows), strict=True
        ):
            row.length = int(length)
            rows_.append(row)
    return both, rows_


def test_thresholds_by_length() -> None:
    """Long rows are another matter than short ones: each has its own threshold, and the promise holds for each, which
    one threshold for all keeps for both together only."""
    (short, long), rows = by_length((2.4, 1.2))
    binned = point(0.6, agreement=0.96, rules=((Rule(t=((30, 0.7), (1 << 20, 0.6))),),))
    sample = sample_of(rows, cascade())
    new, _ = refreshed(cascade(), binned, sample, name="now", stage_ms=(1, 4))
    assert [end for end, _ in new.rules[0][0].t] == [30, 1 << 20]
    for said, (_, t) in zip((short, long), new.rules[0][0].t, strict=True):
        assert 0.03 < risk(said, t) < 0.045  # of 4 %
    whole, _ = refreshed(cascade(), binned, sample, name="now", stage_ms=(1, 4), bins=(1 << 20,))
    one = threshold(whole.rules[0][0], 10)
    assert max(risk(short, one), risk(long, one)) > 0.05
    # Bins without rows are parts of longer ones, and a guarantee is tested in each with its part of delta.
    promise = Guarantee(risk="disagreement", epsilon=0.05, delta=0.1, rows=700)
    kept, _ = refreshed(
        cascade(),
        point(0.6, guarantee=promise),
        sample,
        name="now",
        stage_ms=(1, 4),
        bins=(1, 30, 60, 512),
    )
    assert [end for end, _ in kept.rules[0][0].t] == [30, 1 << 20]
    thresholds = [t for _, t in kept.rules[0][0].t]
    assert max(risk(short, thresholds[0]), risk(long, thresholds[1])) < 0.055


def test_the_prices_of_each_length_keep_their_ratio() -> None:
    _, rows = by_length((2.4, 1.2))
    ladder = point(
        0.8,
        rules=(
            (Rule(t=((30, 0.8), (1 << 20, 0.9))),),
            (Rule(t=((30, 0.4), (1 << 20, 0.3))),),
        ),
    )
    new, _ = refreshed(cascade(), ladder, sample_of(rows, cascade()), name="now", stage_ms=(1, 4))
    (first, second), (lower, higher) = (tuple(t for _, t in rules[0].t) for rules in new.rules)
    assert (lower, higher) == (pytest.approx(first / 2), pytest.approx(second / 3))


def test_what_cannot_be_refreshed_says_why() -> None:
    rows = sampled(traffic(150, (1.4, 3.2)), (0.6,))
    with pytest.raises(ConfigError, match="has 150 rows, and 200 are needed: serve with"):
        sample_of(rows, cascade())
    with pytest.raises(ConfigError, match="has 0 rows"):
        sample_of([], cascade())
    three = sampled(traffic(300, (1.4, 2.2, 3.2)), (0.6, 0.6))
    with pytest.raises(ConfigError, match="another cascade"):
        sample_of(three, cascade())


def test_early_signs(monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> None:
    """Rows that are surer than those of the test split are told of once, and anew after they were as usual."""
    usual = traffic(4000, (1.4, 3.2), seed=1)
    known = Sample(np.random.default_rng(0).integers(2, 60, 4000), tuple(usual))
    sure = confidence(cascade().stages[0].spec, usual[0])
    data = DataUsed(
        sha256="", rows=8000, split=(0.25, 0.25, 0.5), lengths=quantiles(known.length), confidences=quantiles(sure)
    )
    noted = dataclasses.replace(cascade(), data=data)
    same = sampled(traffic(3000, (1.4, 3.2), seed=2), (0.6,))
    other = sampled(traffic(3000, (2.0, 3.2), seed=3), (0.6,))
    found = signs(noted, sample_of(other, noted))
    assert found["length"][1] > 1e-3
    assert found["confidence"][0] > 0.1
    assert found["confidence"][1] < 1e-6
    assert signs(cascade(), sample_of(other, cascade())) == {}

    monkeypatch.setattr(drift, "cascade_manifest", lambda path: noted)
    counters: Counter[str] = Counter()
    config: Any = SimpleNamespace(manifest=None, drift="alarm")
    watch = drift.DriftWatch(config, None, counters)  # type: ignore[arg-type]
    for rows, told in ((same, 0), (other, 1), (other, 1), (other[:5], 1), (same, 1), (other, 2)):
        watch.look(rows)
        assert counters["shift_signs"] == told
    assert sum("cascade_shift" in record.getMessage() for record in caplog.records) == 2
