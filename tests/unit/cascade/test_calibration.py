"""Calibration: fits in closed form, and a hand-made set with every number."""

from __future__ import annotations

import itertools
import math
import warnings

import numpy as np
import pytest

from arlo.cascade import calibration as c
from arlo.cascade.decide import calibrate, confidence, softmax
from arlo.cascade.spec import Calibrator, StageSpec
from arlo.errors import ConfigError

Z = np.array([[2, 0, 0], [0, 3, 0], [4, 1, 0], [0.5, 0, 0], [1, 2, 0], [0, 0, 5], [3, 0, 1], [0, 1, 3]])
Y = np.array([0, 1, 1, 0, 1, 2, 0, 1])


def test_temperature_in_closed_form() -> None:
    z = np.tile([4.0, 0.0], (10, 1))
    assert c.fit_temperature(z, [0] * 9 + [1]) == pytest.approx(1.820478453254, abs=1e-9)
    z = np.tile([5.0, 0.0, 0.0], (10, 1))
    assert c.fit_temperature(z, [0] * 8 + [1, 2]) == pytest.approx(2.404491734815, abs=1e-9)
    assert c.fit_temperature(z, [0] * 8 + [1, 1]) == pytest.approx(5 / math.log(2 * 0.8 / 0.2), abs=1e-9)


def test_a_set_by_hand() -> None:
    assert c.nll(softmax(Z)[0], Y) == pytest.approx(0.869426537637, abs=1e-11)
    t = c.fit_temperature(Z, Y)
    assert t == pytest.approx(1.651758792, abs=1e-6)
    assert c.nll(softmax(Z / t)[0], Y) == pytest.approx(0.796213156902, abs=1e-9)
    assert c.error_of(Calibrator(), Z, Y) == pytest.approx(0.349624944194, abs=1e-8)
    assert c.error_of(Calibrator(t=t), Z, Y) == pytest.approx(0.304843995124, abs=1e-8)


def test_bounds_are_said() -> None:
    with pytest.warns(UserWarning, match="all rows are answered right"):
        assert c.fit_temperature([[1.0, 0.0]] * 3, [0, 0, 0]) == pytest.approx(0.05)
    with pytest.warns(UserWarning, match="say nothing"):
        assert c.fit_temperature([[1.0, 0.0]] * 3, [1, 1, 1]) == pytest.approx(20)


def test_bins() -> None:
    bins = c.reliability([0.0, 0.2, 0.5, 1.0], [0, 0, 1, 1], bins=5)
    assert [each.rows for each in bins] == [2, 0, 1, 0, 1]
    assert c.ece([0.2, 0.2, 0.2, 0.2, 0.2], [1, 0, 0, 0, 0], bins=5) == pytest.approx(0)


@pytest.fixture(scope="module")
def rows() -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Logits twice as large as they should be, and the last label always meant too rarely; lengths."""
    rng = np.random.default_rng(1)
    true = rng.normal(0, 1.2, (1500, 4))
    p = softmax(true + np.array([0, 0, 0, 1.0]))[0]
    labels = (rng.random((len(p), 1)) > np.cumsum(p, axis=1)).sum(axis=1).clip(0, 3)
    return 2 * true, labels, rng.integers(1, 100, len(p))


def test_the_kind_that_predicts_best_is_taken(rows: tuple[np.ndarray, np.ndarray, np.ndarray]) -> None:
    z, y, _ = rows
    found, losses = c.choose(z, y)
    assert found.kind in ("vector", "dirichlet")  # a bias is what is missing
    assert losses[found.kind] == min(losses.values())
    plain, _ = c.choose(z, y, kinds=("temperature", "isotonic"))
    assert plain.t == pytest.approx(2, rel=0.3)
    for kind in c.KINDS:
        assert c.error_of(c.fit(kind, z, y), z, y) < c.error_of(Calibrator(), z, y) / 2


def test_few_rows_are_refused(rows: tuple[np.ndarray, np.ndarray, np.ndarray]) -> None:
    with pytest.raises(ConfigError, match="at least 200"):
        c.choose(rows[0][:199], rows[1][:199])


def test_temperatures_by_length_only_where_they_help(rows: tuple[np.ndarray, np.ndarray, np.ndarray]) -> None:
    z, y, length = rows
    plain = Calibrator(t=c.fit_temperature(z, y))
    assert c.fit_by_length(plain, z, y, length, (50, 100)) == plain
    tilted = np.where(length[:, None] <= 50, z * 4, z)
    found = c.fit_by_length(plain, tilted, y, length, (50, 100))
    assert found.by_length[0][1] == pytest.approx(4 * found.by_length[1][1], rel=0.4)


def test_confidence_falls_with_t_and_the_answer_stays() -> None:
    rng = np.random.default_rng(0)
    z = rng.normal(0, 3, (1000, 5))
    stages = [StageSpec(calibrator=Calibrator(t=t)) for t in (0.5, 1, 2, 5)]
    levels = [confidence(stage, z) for stage in stages]
    assert all((a >= b).all() for a, b in itertools.pairwise(levels))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert all((calibrate(stage, z)[0].argmax(axis=1) == z.argmax(axis=1)).all() for stage in stages)
