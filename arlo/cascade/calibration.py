"""Calibrated confidence, which equals the share of right answers: fitting it, and measuring its error.

Calibrators are fitted on one split and judged on another. Temperature is the default (Tabi Eq. 2 and section 4.1,
HybridServe Eq. 1); vector, Dirichlet (Kull et al., NeurIPS'19) and isotonic calibration replace it where they predict
better on held-out rows.
"""

from __future__ import annotations

import dataclasses
import math
import warnings
from collections.abc import Callable, Sequence

import numpy as np
from numpy.typing import ArrayLike, NDArray

from arlo.cascade.decide import Floats, calibrate, finish, score_of, softmax
from arlo.cascade.spec import Calibrator, CalibratorKind, StageSpec
from arlo.errors import ConfigError

LEAST_T, MOST_T = 0.05, 20.0
LEAST_ROWS, FEW_ROWS = 200, 1000
BINS = 15
FOLDS = 5
TIE = 1e-4  # nats by which another kind must beat temperature
_PENALTY = 1e-2  # of vector's distance from temperature, and of Dirichlet's weights off the diagonal (ODIR)
_TINY = 1e-12

KINDS: tuple[CalibratorKind, ...] = ("temperature", "vector", "dirichlet", "isotonic")


def nll(q: Floats, labels: ArrayLike) -> float:
    """Mean negative log-likelihood, in nats, of labels [rows] under probabilities [rows, labels]."""
    picked = q[np.arange(len(q)), np.asarray(labels)]
    return float(-np.log(np.maximum(picked, 1e-300)).mean())


def fit_temperature(logits: ArrayLike, labels: ArrayLike) -> float:
    """T that makes softmax(logits / T) likeliest, in [0.05, 20]; logits [rows, labels], labels [rows].

    The loss is convex in 1/T, so its slope has one zero, which Brent's method finds over log T. If all answers are
    right by any margin, the loss has no minimum and T is the lower bound. UserWarning at either bound.
    """
    from scipy.optimize import brentq

    z, y = np.asarray(logits, np.float64), np.asarray(labels)
    picked = z[np.arange(len(z)), y]

    def slope(log_t: float) -> float:
        q, _ = softmax(z * math.exp(-log_t))
        return float(((q * z).sum(axis=1) - picked).mean())  # d NLL / d (1/T)

    low, high = math.log(LEAST_T), math.log(MOST_T)
    for end, sign, why in ((low, -1, "all rows are answered right"), (high, 1, "the logits say nothing of the labels")):
        if slope(end) * sign >= 0:
            warnings.warn(f"the temperature is at its bound of {math.exp(end):g}: {why}", stacklevel=2)
            return math.exp(end)
    return math.exp(brentq(slope, low, high, xtol=1e-12))


def fit(kind: CalibratorKind, logits: ArrayLike, labels: ArrayLike) -> Calibrator:
    """A calibrator of this kind; logits [rows, labels] in the cascade's order, labels [rows]."""
    z, y = np.asarray(logits, np.float64), np.asarray(labels)
    t = fit_temperature(z, y)
    if kind == "vector":
        return _fit_vector(z, y, t)
    if kind == "dirichlet":
        return _fit_dirichlet(z, y, t)
    if kind == "isotonic":
        q, _ = softmax(z / t)
        return Calibrator(kind="isotonic", t=t, curve=isotonic_curve(q.max(axis=1), q.argmax(axis=1) == y))
    return Calibrator(t=t)


def choose(
    logits: ArrayLike, labels: ArrayLike, *, kinds: Sequence[CalibratorKind] = KINDS, seed: int = 0
) -> tuple[Calibrator, dict[str, float]]:
    """The kind with the lowest cross-validated NLL, fitted on all rows, and the NLL of each; temperature wins ties.

    ConfigError under 200 rows: a fit on so few is noise.
    """
    z, y = np.asarray(logits, np.float64), np.asarray(labels)
    if len(z) < LEAST_ROWS:
        raise ConfigError(f"{len(z)} labelled rows are too few to calibrate on: record at least {LEAST_ROWS}")
    fold = np.random.default_rng(seed).permutation(len(z)) % FOLDS
    losses: dict[str, float] = {}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)
        for kind in kinds:
            held = [
                nll(_predicted(fit(kind, z[fold != f], y[fold != f]), z[fold == f]), y[fold == f]) for f in range(FOLDS)
            ]
            losses[kind] = float(np.mean(held))
        best = min(kinds, key=lambda kind: losses[kind] + (0 if kind == "temperature" else TIE))
        return fit(best, z, y), losses


def fit_by_length(
    calibrator: Calibrator,
    logits: ArrayLike,
    labels: ArrayLike,
    length: ArrayLike,
    bins: Sequence[int],
    *,
    seed: int = 0,
) -> Calibrator:
    """A T for each length bin (its longest row) if that is better on held-out rows; else the unchanged calibrator.

    Bins of under 200 rows take the T of all rows.
    """
    z, y, lengths = np.asarray(logits, np.float64), np.asarray(labels), np.asarray(length)
    if calibrator.kind != "temperature" or len(bins) < 2:
        return calibrator
    which = np.searchsorted(bins, lengths)

    def fitted(rows: NDArray[np.bool_]) -> Calibrator:
        t = fit_temperature(z[rows], y[rows])
        pairs = []
        for b, end in enumerate(bins):
            mine = rows & (which == b)
            pairs.append((int(end), fit_temperature(z[mine], y[mine]) if mine.sum() >= LEAST_ROWS else t))
        return Calibrator(t=t, by_length=tuple(pairs))

    fold = np.random.default_rng(seed).permutation(len(z)) % FOLDS
    plain = split = 0.0
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)
        for f in range(FOLDS):
            train, held = fold != f, fold == f
            found = fitted(train)
            split += nll(calibrate(StageSpec(calibrator=found), z[held], lengths[held])[0], y[held])
            plain += nll(softmax(z[held] / found.t)[0], y[held])
        return fitted(np.ones(len(z), np.bool_)) if split < plain - FOLDS * TIE else calibrator


def _predicted(calibrator: Calibrator, z: Floats) -> Floats:
    """Probabilities; for the isotonic kind, the curve gives the top label's and the other labels share the rest."""
    stage = StageSpec(calibrator=calibrator)
    q, _ = calibrate(stage, z)
    if calibrator.kind != "isotonic":
        return q
    top, at = q.max(axis=1), q.argmax(axis=1)
    p = np.clip(finish(stage, top), 1e-3, 1 - 1e-3)
    out = q * ((1 - p) / np.maximum(1 - top, _TINY))[:, None]
    out[np.arange(len(q)), at] = p
    return np.asarray(out)


def isotonic_curve(confidence: Floats, right: NDArray[np.bool_]) -> tuple[tuple[float, float], ...]:
    """Non-decreasing points of P(right) over confidence (pool adjacent violators), two for each step."""
    from scipy.optimize import isotonic_regression

    order = np.argsort(confidence, kind="stable")
    x = confidence[order]
    y = np.asarray(isotonic_regression(right[order].astype(np.float64)).x)
    points: dict[float, float] = {}
    ends = np.nonzero(np.diff(y))[0]
    for at in np.unique(np.concatenate([[0, len(x) - 1], ends, ends + 1])):
        points[float(x[at])] = max(float(y[at]), points.get(float(x[at]), 0.0))
    return tuple((min(a, 1.0), min(b, 1.0)) for a, b in sorted(points.items()))


def _minimise(loss: Callable[[Floats], tuple[float, Floats]], start: Floats) -> Floats:
    from scipy.optimize import minimize

    return np.asarray(minimize(loss, start, jac=True, method="L-BFGS-B", options={"maxiter": 200}).x)


def _fit_vector(z: Floats, y: NDArray[np.int64], t: float) -> Calibrator:
    rows, labels = z.shape
    target = np.zeros_like(z)
    target[np.arange(rows), y] = 1

    def loss(x: Floats) -> tuple[float, Floats]:
        scale, bias = x[:labels], x[labels:]
        q, _ = softmax(z * scale + bias)
        error = (q - target) / rows
        away = np.concatenate([scale - 1 / t, bias])
        slope = np.concatenate([(error * z).sum(axis=0), error.sum(axis=0)])
        return nll(q, y) + _PENALTY * float(away @ away) / labels, slope + 2 * _PENALTY * away / labels

    x = _minimise(loss, np.concatenate([np.full(labels, 1 / t), np.zeros(labels)]))
    return Calibrator(kind="vector", scale=tuple(x[:labels].tolist()), bias=tuple(x[labels:].tolist()))


def _fit_dirichlet(z: Floats, y: NDArray[np.int64], t: float) -> Calibrator:
    rows, labels = z.shape
    logs = np.log(np.maximum(softmax(z)[0], 1e-300))
    target = np.zeros_like(z)
    target[np.arange(rows), y] = 1
    off = 1 - np.eye(labels)
    share = max(labels * (labels - 1), 1)

    def loss(x: Floats) -> tuple[float, Floats]:
        weights, bias = x[: labels * labels].reshape(labels, labels), x[labels * labels :]
        q, _ = softmax(logs @ weights.T + bias)
        error = (q - target) / rows
        outside = weights * off
        value = nll(q, y) + _PENALTY * (float((outside**2).sum()) / share + float(bias @ bias) / labels)
        slope = error.T @ logs + 2 * _PENALTY * outside / share
        return value, np.concatenate([slope.ravel(), error.sum(axis=0) + 2 * _PENALTY * bias / labels])

    x = _minimise(loss, np.concatenate([(np.eye(labels) / t).ravel(), np.zeros(labels)]))
    return Calibrator(kind="dirichlet", scale=tuple(x[: labels**2].tolist()), bias=tuple(x[labels**2 :].tolist()))


@dataclasses.dataclass(frozen=True, slots=True)
class Bin:
    """Rows whose confidence lies in (low, high]."""

    low: float
    high: float
    rows: int
    confidence: float  # mean; nan without rows
    accuracy: float


def reliability(confidence: ArrayLike, right: ArrayLike, *, bins: int = BINS) -> list[Bin]:
    """Bins of equal width. A confidence of 0 is in the first."""
    edges = np.arange(bins + 1) / bins
    con, ok = np.asarray(confidence, np.float64), np.asarray(right, np.float64)
    which = np.clip(np.searchsorted(edges, con, side="left") - 1, 0, bins - 1)
    rows = np.bincount(which, minlength=bins)
    with np.errstate(invalid="ignore"):
        means = [(np.bincount(which, weights=values, minlength=bins) / rows).tolist() for values in (con, ok)]
    return [Bin(*each) for each in zip(edges[:-1].tolist(), edges[1:].tolist(), rows.tolist(), *means, strict=True)]


def ece(confidence: ArrayLike, right: ArrayLike, *, bins: int = BINS) -> float:
    """Expected calibration error: mean distance of confidence and accuracy, over bins of equal width (lo, hi]."""
    found = reliability(confidence, right, bins=bins)
    return sum(b.rows * abs(b.confidence - b.accuracy) for b in found if b.rows) / max(sum(b.rows for b in found), 1)


def error_of(calibrator: Calibrator, logits: ArrayLike, labels: ArrayLike, length: ArrayLike = 0) -> float:
    """ece() of the top label's probability by a calibrator, on held-out rows; arguments as in fit()."""
    stage = StageSpec(calibrator=calibrator)
    q, _ = calibrate(stage, logits, length)
    return ece(finish(stage, score_of("max", q)), q.argmax(axis=1) == np.asarray(labels))
