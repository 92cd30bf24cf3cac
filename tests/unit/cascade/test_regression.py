"""Confidence of numbers: right to within a tolerance, as often as it says."""

from __future__ import annotations

import numpy as np
import pytest

from arlo.cascade.calibration import ece
from arlo.cascade.regression import RegressionConfidence, fit_regression
from arlo.errors import ConfigError

Rows = tuple[np.ndarray, np.ndarray, np.ndarray]


def rows(count: int, seed: int = 0) -> Rows:
    """Similarities from 0 to 5, read less well in the middle of the range, and of long rows."""
    rng = np.random.default_rng(seed)
    truth = rng.uniform(0, 5, count)
    length = rng.integers(5, 300, count).astype(np.float64)
    spread = (0.15 + 0.5 * np.exp(-((truth - 2.5) ** 2))) * (length / 60) ** 0.4
    return truth + rng.normal(0, spread), length, truth


def fitted(tolerance: float = 0.4) -> RegressionConfidence:
    return fit_regression(*rows(4000), tolerance=tolerance)


def test_it_is_right_as_often_as_it_says_on_other_rows() -> None:
    score, length, truth = rows(20_000, seed=1)
    confidence = fitted()(score, length)
    near = np.abs(score - truth) <= 0.4
    assert ece(confidence, near) < 0.03
    best = np.argsort(-confidence)[:5000]
    assert near[best].mean() > near.mean() + 0.15  # and it tells rows apart


def test_both_features_count() -> None:
    confidence = fitted()
    middle, end = confidence([2.5, 4.9], [60, 60])
    short, long = confidence([2.5, 2.5], [10, 290])
    assert end > middle + 0.1
    assert short > long + 0.1


def test_a_larger_tolerance_is_met_more_often() -> None:
    score, length, _ = rows(2000, seed=2)
    shares = [fitted(tolerance)(score, length).mean() for tolerance in (0.1, 0.4, 1.0)]
    assert shares == sorted(shares)
    assert shares[2] > shares[0] + 0.3


def test_no_number_is_no_confidence() -> None:
    assert fitted()([np.nan, np.inf], [10, 10]).tolist() == [0, 0]


def test_mistakes_say_what_to_do() -> None:
    score, length, truth = rows(500)
    with pytest.raises(ConfigError, match="above 0"):
        fit_regression(score, length, truth, tolerance=0)
    with pytest.raises(ConfigError, match="400 or more"):
        fit_regression(score[:399], length[:399], truth[:399], tolerance=1)
    with pytest.raises(ConfigError, match="of the same rows"):
        fit_regression(score, length[:-1], truth, tolerance=1)
    with pytest.raises(ConfigError, match="must be numbers"):
        fit_regression(np.append(score[:-1], np.nan), length, truth, tolerance=1)
    with pytest.warns(UserWarning, match="all rows lie within"):
        found = fit_regression(score, length, truth, tolerance=100)
    assert found([1.0], [10]).tolist() == [1.0]
