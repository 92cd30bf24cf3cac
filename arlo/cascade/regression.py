"""How sure a stage is of a number: the probability that it is right to within a tolerance (Tabi section 4.1: regression
has no softmax; calibrated as Kuleshov et al., ICML'18, by held-out rows).

Two steps. A logistic model of |score - truth| <= tolerance over what is known before the truth is, the score and the
row's length, puts rows in order; an isotonic curve, fitted on other rows, makes that order a probability that is right
as often as it says. Offline: searches and simulations take it as any confidence; the gateway serves classes.
"""

from __future__ import annotations

import dataclasses
import warnings

import numpy as np
from numpy.typing import ArrayLike

from arlo.cascade.calibration import LEAST_ROWS, isotonic_curve
from arlo.cascade.decide import Floats
from arlo.errors import ConfigError

_RIDGE = 1e-3  # of the weights but the constant: rows that a line parts would drive them without end
_HALF = 0.5  # of the rows fit the order, the others the curve


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class RegressionConfidence:
    """What fit_regression() found."""

    tolerance: float  # of the score, in its unit
    center: tuple[float, float]  # of score and log length, as fitted on
    scale: tuple[float, float]
    weights: tuple[float, ...]  # of the features
    curve: tuple[tuple[float, float], ...]  # logistic value -> P(within tolerance); linear between, flat outside
    rows: int

    def __call__(self, score: ArrayLike, length: ArrayLike) -> Floats:
        """Confidence [rows] of scores [rows] of rows of so many tokens [rows]; 0 where a score is no number."""
        s = np.asarray(score, np.float64)
        finite = np.isfinite(s)
        order = self._order(np.where(finite, s, 0.0), np.asarray(length, np.float64))
        x, y = np.asarray(self.curve).T
        return np.where(finite, np.interp(order, x, y), 0.0)

    def _order(self, score: Floats, length: Floats) -> Floats:
        z = _features(score, length, self.center, self.scale) @ np.asarray(self.weights)
        return np.asarray(1 / (1 + np.exp(-np.clip(z, -500, 500))))


def fit_regression(
    score: ArrayLike, length: ArrayLike, truth: ArrayLike, *, tolerance: float, seed: int = 0
) -> RegressionConfidence:
    """From held-out rows: scores, lengths in tokens and true values, all [rows]. `tolerance` has no default: what is
    near enough is a matter of the task.

    ConfigError for a tolerance that is not above 0, under 400 rows (half for each step), or values that are no numbers;
    UserWarning where all rows, or none, lie within the tolerance: confidence is then one number.
    """
    s, n, y = (np.asarray(each, np.float64) for each in (score, length, truth))
    if not (np.isfinite(tolerance) and tolerance > 0):
        raise ConfigError(f"the tolerance of a score must be above 0, not {tolerance:g}")
    if not s.shape == n.shape == y.shape or s.ndim != 1:
        raise ConfigError("scores, lengths and true values must be of the same rows")
    if len(s) < 2 * LEAST_ROWS:
        raise ConfigError(f"{len(s)} rows are too few: regression is calibrated on {2 * LEAST_ROWS} or more")
    if not (np.isfinite(s).all() and np.isfinite(y).all() and (n >= 1).all()):
        raise ConfigError("scores and true values must be numbers, and lengths at least 1 token")
    near = np.abs(s - y) <= tolerance
    if near.all() or not near.any():
        warnings.warn(f"{'all' if near.all() else 'no'} rows lie within {tolerance:g}: choose another", stacklevel=2)
    first = np.random.default_rng(seed).permutation(len(s)) < _HALF * len(s)
    logs = np.log(n)
    center = (float(s[first].mean()), float(logs[first].mean()))
    scale = (float(s[first].std()) or 1.0, float(logs[first].std()) or 1.0)
    weights = _logistic(_features(s[first], n[first], center, scale), near[first])
    made = RegressionConfidence(
        tolerance=tolerance, center=center, scale=scale, weights=weights, curve=((0.0, 0.0),), rows=len(s)
    )
    order = made._order(s[~first], n[~first])
    return dataclasses.replace(made, curve=isotonic_curve(order, near[~first]))


def _features(score: Floats, length: Floats, center: tuple[float, float], scale: tuple[float, float]) -> Floats:
    """[rows, 6]: scores at the ends of a range are often surer than those in its middle, so squares are among them."""
    a = (score - center[0]) / scale[0]
    b = (np.log(length) - center[1]) / scale[1]
    return np.stack([np.ones_like(a), a, a * a, b, b * b, a * b], axis=1)


def _logistic(x: Floats, y: np.ndarray[tuple[int], np.dtype[np.bool_]]) -> tuple[float, ...]:
    """Weights of a logistic regression."""
    from scipy.optimize import minimize

    target = y.astype(np.float64)
    penalty = np.full(x.shape[1], _RIDGE)
    penalty[0] = 1e-6

    def loss(w: Floats) -> tuple[float, Floats]:
        z = x @ w
        value = float(np.logaddexp(0, z).mean() - (target * z).mean() + (penalty * w * w).sum())
        p = 1 / (1 + np.exp(-np.clip(z, -500, 500)))
        return value, x.T @ (p - target) / len(x) + 2 * penalty * w

    return tuple(minimize(loss, np.zeros(x.shape[1]), jac=True, method="L-BFGS-B").x.tolist())
