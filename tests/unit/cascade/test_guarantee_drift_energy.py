"""Bounds, alarms and joules."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import numpy as np
import pytest

from arlo import _core
from arlo.cascade import energy
from arlo.cascade.drift import ALPHA, allowed, quantiles, shift
from arlo.cascade.guarantee import clopper_pearson, safe_threshold, upper_risk
from arlo.cascade.manifest import DataUsed, Guarantee, Point
from arlo.cascade.spec import NEVER, hard
from arlo.errors import ConfigError, EnvironmentProblem


@pytest.mark.parametrize(("k", "n", "high"), [(0, 300, 0.009936082), (3, 1000, 0.007735245), (10, 1000, 0.016903175)])
def test_clopper_pearson(k: int, n: int, high: float) -> None:
    assert clopper_pearson(k, n, 0.05)[1] == pytest.approx(high, abs=1e-9)


def test_the_ends_of_a_bound() -> None:
    assert clopper_pearson(0, 10, 0.05)[0] == 0
    assert clopper_pearson(10, 10, 0.05)[1] == 1
    assert clopper_pearson(5, 10, 0.05)[0] < 0.5 < clopper_pearson(5, 10, 0.05)[1]


def population(rows: int, seed: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Confidence, whether the first stage differs from the last (the less often the surer), and labels."""
    rng = np.random.default_rng(seed)
    con = rng.random(rows)
    differs = rng.random(rows) < 0.5 * (1 - con)
    return con, differs.astype(np.int64), rng.integers(0, 2, rows)


@pytest.mark.long
def test_a_guarantee_holds_for_most_samples() -> None:
    con, differs, _ = population(200_000, 0)
    broken = 0
    for seed in range(40):
        pick = np.random.default_rng(seed + 1).choice(len(con), 400, replace=False)

        def at(t: float, pick: np.ndarray = pick) -> tuple[np.ndarray, np.ndarray]:
            exits = con[pick] >= t
            return np.where(exits, differs[pick], 0), exits

        t = safe_threshold(at, np.zeros(400), None, epsilon=0.05, delta=0.1)
        broken += float((differs * (con >= t)).mean()) > 0.05
        assert t < 1
    assert broken <= 40 * 0.1 + 2 * (40 * 0.1 * 0.9) ** 0.5


def test_risks() -> None:
    giant, truth = np.zeros(100, np.int64), np.r_[np.zeros(90), np.ones(10)].astype(np.int64)
    answer = np.r_[np.ones(5), np.zeros(85), np.ones(10)].astype(np.int64)
    exits = np.ones(100, np.bool_)
    disagreement = upper_risk(answer, giant, None, exits, risk="disagreement", delta=0.1)
    harm = upper_risk(answer, giant, truth, exits, risk="harm", delta=0.1)
    loss = upper_risk(answer, giant, truth, exits, risk="accuracy loss", delta=0.1)
    assert disagreement == clopper_pearson(15, 100, 0.1)[1]
    assert harm == clopper_pearson(5, 100, 0.1)[1]
    assert loss < harm
    with pytest.raises(ConfigError, match="needs labels"):
        upper_risk(answer, giant, None, exits, risk="harm", delta=0.1)
    never = safe_threshold(lambda t: (answer, exits), giant, None, epsilon=0.01, delta=0.1)
    assert never == NEVER


def test_a_threefold_disagreement_is_seen_in_time() -> None:
    for seed in range(5):
        rng = np.random.default_rng(seed)
        assert _core.cascade_drift(0.03, ALPHA, (rng.random(3000) < 0.03).astype(np.uint8)) == -1
        assert _core.cascade_drift(0.03, ALPHA, (rng.random(2000) < 0.09).astype(np.uint8)) >= 0


def test_what_an_operating_point_allows() -> None:
    """20 of 700 early rows of the test split differed: the bound of that."""
    point = Point(
        name="p",
        search="exact",
        objective="mean",
        accuracy=None,
        agreement=0.98,
        reach=(1.0, 0.3),
        mean_ms=1.0,
        rules=((hard(0.9),),),
    )
    data = DataUsed(sha256="", rows=2000, split=(0.25, 0.25, 0.5))
    assert allowed(point, data) == pytest.approx(clopper_pearson(20, 700, 0.01)[1])
    assert allowed(dataclasses.replace(point, reach=(1.0, 1.0)), data) == 0
    promised = Guarantee(risk="disagreement", epsilon=0.035, delta=0.05, rows=1000)
    assert allowed(dataclasses.replace(point, guarantee=promised)) == pytest.approx(0.05)


def test_shift() -> None:
    rng = np.random.default_rng(0)
    known = quantiles(rng.random(5000))
    assert len(known) == 129
    assert shift(known, 5000, rng.random(500)) == (pytest.approx(0.0, abs=0.06), pytest.approx(1.0, abs=0.5))
    distance, chance = shift(known, 5000, rng.random(500) ** 2)  # whose distribution function is the square root
    assert distance == pytest.approx(0.25, abs=0.05)
    assert chance < 1e-6
    lengths = rng.choice([8, 12, 16], 3000)  # ties
    known = quantiles(lengths)
    signs = sum(shift(known, 3000, rng.choice([8, 12, 16], 1000))[1] < 0.01 for _ in range(300))
    assert signs <= 8
    assert shift(known, 3000, rng.choice([8, 12, 16], 1000, p=[0.2, 0.3, 0.5]))[1] < 1e-6


def test_joules() -> None:
    assert energy.per_request(88.0, 40) == pytest.approx(2.2)
    points = [(64, 1, 12.0), (512, 1, 60.0), (64, 8, 30.0)]
    assert energy.energy_mj(points, [10, 64, 288], "s").tolist() == [12, 12, 36]


def test_static_runtimes_are_stairs() -> None:
    points = energy.stairs([(32, 1, 10.0), (64, 1, 20.0), (64, 8, 50.0), (64, 1, 21.0)])
    assert points == ((1, 1, 10.0), (32, 1, 10.0), (33, 1, 20.0), (64, 1, 20.0), (1, 8, 50.0), (64, 8, 50.0))
    assert energy.energy_mj(points, [5, 32, 33, 64, 90], "s").tolist() == [10, 10, 20, 20, 20]


def test_counters(tmp_path: Path) -> None:
    with pytest.raises(EnvironmentProblem, match="modelled"):
        energy.RaplCounter(tmp_path)
    for name, uj in (("intel-rapl:0", 9_000_000), ("intel-rapl:1", 0), ("intel-rapl:0:0", 5)):
        zone = tmp_path / name
        zone.mkdir()
        (zone / "energy_uj").write_text(f"{uj}\n")
        (zone / "max_energy_range_uj").write_text("10000000\n")
    counter = energy.RaplCounter(tmp_path)
    (tmp_path / "intel-rapl:0/energy_uj").write_text("1000000\n")  # over its largest value
    (tmp_path / "intel-rapl:1/energy_uj").write_text("500000\n")
    assert counter.joules() == pytest.approx(2.5)
    assert counter.joules() == pytest.approx(2.5)
