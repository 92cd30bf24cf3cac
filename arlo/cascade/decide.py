"""Confidences of arrays of rows, and rows on their way through a cascade, decided by src/flow/cascade.

Confidences are computed as there: in double, the largest logit is subtracted first, and sums run in the order of the
labels. If exp() differs in its last bit between the two, a confidence may differ by that much; thresholds that the
search writes therefore keep a distance from confidences (search/table.py).
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

import numpy as np
from numpy.typing import ArrayLike, NDArray

from arlo import _core
from arlo.cascade.spec import Calibrator, Rule, Rules, ScoreKind, StageSpec

Floats = NDArray[np.float64]
Bools = NDArray[np.bool_]
Ints = NDArray[np.int64]

# Reasons, in the order of src/flow/cascade/cascade.h. From DEADLINE on, an answer is degraded.
REASONS = ("confident", "final", "client_limit", "deadline", "load", "stage_absent", "stage_failed")
DEADLINE = REASONS.index("deadline")
_TINY = 1e-300  # of which a logarithm is taken in place of 0


def softmax(z: ArrayLike) -> tuple[Floats, Bools]:
    """Probabilities [..., labels], and whether all logits of a row are finite [...]; other rows are meaningless."""
    given = np.asarray(z, np.float64)
    finite = np.isfinite(given).all(axis=-1)
    given = np.where(finite[..., None], given, 0.0)
    e = np.exp(given - given.max(axis=-1, keepdims=True))
    q: Floats = e / np.add.accumulate(e, axis=-1)[..., -1:]
    return q, finite


def temperatures(calibrator: Calibrator, length: ArrayLike) -> Floats:
    """The temperature T of each row, by its length."""
    return _by_length((*calibrator.by_length, (np.iinfo(np.int64).max, calibrator.t)), length)


def calibrate(stage: StageSpec, logits: ArrayLike, length: ArrayLike = 0) -> tuple[Floats, Bools]:
    """Calibrated probabilities [rows, labels], in the order of the cascade's labels, from logits [rows, labels] of rows
    of `length` tokens, and which rows are finite (Tabi Eq. 2 and section 4.1). The isotonic curve is applied later, to
    the confidence."""
    by, z = stage.calibrator, in_order(stage, logits)
    if by.kind == "vector":
        return softmax(z * np.asarray(by.scale) + np.asarray(by.bias))
    if by.kind == "dirichlet":
        q, finite = softmax(z)
        labels = z.shape[-1]
        weights = np.asarray(by.scale).reshape(labels, labels)
        return softmax(np.log(np.maximum(q, _TINY)) @ weights.T + np.asarray(by.bias))[0], finite
    t = temperatures(by, length)
    return softmax(z / t.reshape(t.shape + (1,) * (z.ndim - t.ndim)))


def in_order(stage: StageSpec, logits: ArrayLike) -> Floats:
    """Logits [..., labels] in the order of the cascade's labels."""
    z = np.asarray(logits, np.float64)
    if not stage.label_order:
        return z
    out = np.empty_like(z)
    out[..., list(stage.label_order)] = z
    return out


def score_of(kind: ScoreKind, q: Floats) -> Floats:
    """One number in [0, 1] from probabilities [..., labels]."""
    if kind == "margin":
        top = np.sort(q, axis=-1)[..., -2:]
        return np.asarray(top[..., -1] - (top[..., 0] if q.shape[-1] > 1 else 0.0))
    if kind == "entropy":
        if q.shape[-1] < 2:
            return np.ones(q.shape[:-1])
        terms = np.where(q > 0, q * np.log(np.maximum(q, _TINY)), 0.0)
        return np.asarray(np.clip(1 + np.add.accumulate(terms, axis=-1)[..., -1] / np.log(q.shape[-1]), 0.0, 1.0))
    return np.asarray(q.max(axis=-1))


def finish(stage: StageSpec, value: ArrayLike) -> Floats:
    """The isotonic curve and the scale, on scores."""
    out = np.asarray(value, np.float64)
    if stage.calibrator.kind == "isotonic":
        x, y = np.asarray(stage.calibrator.curve).T
        out = np.interp(out, x, y)
    return out * out if stage.scale == "prob2" else out


def confidence(stage: StageSpec, logits: ArrayLike, length: ArrayLike = 0, own: ArrayLike | None = None) -> Floats:
    """Confidence [rows] of logits [rows, labels]; 0 where one is not finite. `own` [rows]: the model's own output, for
    the score `output`."""
    if stage.score == "output":
        given = np.asarray(own, np.float64)
        return np.where(np.isfinite(given), finish(stage, np.clip(np.nan_to_num(given), 0.0, 1.0)), 0.0)
    q, finite = calibrate(stage, logits, length)
    return np.where(finite, finish(stage, score_of(stage.score, q)), 0.0)


def escalation_probability(rule: Rule, conf: ArrayLike, length: ArrayLike = 0) -> Floats:
    """Probability of escalation, for confidences [rows] of rows of these lengths (Tabi Eq. 4)."""
    con = np.asarray(conf, np.float64)
    if rule.kind == "hard":
        return (con < _by_length(rule.t, length)).astype(np.float64)
    if rule.c >= 1:
        return np.ones_like(con)
    norm = (con - rule.c) / (1 - rule.c) - 0.5
    with np.errstate(over="ignore"):
        return np.where(con <= rule.c, 1.0, 1 / (1 + np.exp(rule.k * norm)))


@dataclasses.dataclass(frozen=True, slots=True)
class Answers:
    """A stage's answers to every row: [rows], and [rows, labels] in the order of the cascade's labels."""

    confidence: Floats
    answer: Ints  # label of the largest logit; calibration never changes it
    calibrated: Floats
    raw: Floats
    finite: Bools


def answers(stage: StageSpec, logits: ArrayLike, length: ArrayLike = 0, own: ArrayLike | None = None) -> Answers:
    """The fields that decisions need, from logits [rows, labels]."""
    calibrated, finite = calibrate(stage, logits, length)
    raw, _ = softmax(in_order(stage, logits))
    if stage.score == "output":
        conf = confidence(stage, logits, length, own)
    else:
        conf = np.where(finite, finish(stage, score_of(stage.score, calibrated)), 0.0)
    top = np.where(finite[:, None], in_order(stage, logits), 0.0).argmax(axis=1)
    return Answers(conf, top, calibrated, raw, finite)


def mixed(rules: Rules, said: Sequence[Answers], ran: Bools) -> Ints:
    """The answer [rows] of rows that ran on the stages of `ran` [rows, stages]: the last stage's, or the ensemble's
    (Tabi Eq. 6). A stage whose logits are not finite counts as not run, unless no other is left."""
    good = ran & np.stack([each.finite for each in said], axis=1)
    good = np.where(good.any(axis=1, keepdims=True), good, ran)
    n = len(said)
    last = n - 1 - good[:, ::-1].argmax(axis=1)
    alone: Ints = np.stack([each.answer for each in said], axis=1)[np.arange(len(ran)), last]
    ensemble = rules.ensemble
    if ensemble.kind == "none":
        return alone
    parts = [each.raw if ensemble.kind == "raw" else each.calibrated for each in said]
    total = sum(good[:, s, None] * (ensemble.weights[s] * parts[s]) for s in range(n))
    total = np.asarray(total) / (good @ np.asarray(ensemble.weights))[:, None]
    return np.where(good.sum(axis=1) > 1, total.argmax(axis=1), alone)


@dataclasses.dataclass(frozen=True, slots=True)
class Ended:
    """How rows ended, [rows]; `ran`: on which stages, [rows, stages]."""

    stage: Ints
    reason: Ints
    answer: Ints
    confidence: Floats
    ran: Bools


def core_rules(rules: Rules) -> _core.CascadeRules:
    """The rules in the form that the C++ decision takes."""
    return _core.CascadeRules(
        [[(rule.kind, rule.t, rule.c, rule.k) for rule in price] for price in rules.prices],
        skip=rules.skip,
        alpha=rules.prune.alpha,
        mean_over=rules.prune.mean_over,
        to_level=rules.prune.to_level,
        min_words=rules.prune.min_words,
        alpha_max=rules.prune.alpha_max,
        most_removed=rules.prune.most_removed,
        ensemble=rules.ensemble.kind,
        start=rules.start,
    )


def walk(
    rules: Rules,
    said: Sequence[Answers],
    length: ArrayLike,
    *,
    row: ArrayLike | None = None,
    seed: int = 0,
    price: int = 0,
) -> Ended:
    """Run every row through the whole cascade, from each stage's answers. `length` [rows]; `row` [rows]: different
    numbers for the chance of the soft rule; None: 0, 1, ... `price`: capped at the last one of the rules."""
    count, n = len(said[0].confidence), len(said)
    number = np.arange(count) if row is None else np.asarray(row)
    core, numbers = core_rules(rules), int(number.max(initial=-1)) + 1
    lengths = np.zeros(numbers, np.int32)
    lengths[number] = length
    at = np.full(count, rules.start)
    ran = np.zeros((count, n), np.bool_)
    stage, reason, conf = np.full(count, -1), np.full(count, -1), np.zeros(count)
    for s in range(n):
        every = np.zeros(numbers)
        every[number] = said[s].confidence
        to, why = (each[number] for each in _core.cascade_decide(core, s, every, lengths, seed=seed, price=price))
        here = (at == s) & (stage < 0)
        ran[here, s] = True
        out = here & (to < 0)
        stage[out], reason[out], conf[out] = s, why[out], said[s].confidence[out]
        at = np.where(here & ~out, to, at)
    return Ended(stage, reason, mixed(rules, said, ran), conf, ran)


def _by_length(pairs: Sequence[tuple[int, float]], length: ArrayLike) -> Floats:
    """Each row's value by its length: from the first (tokens up to, value) that the row fits, else the last."""
    ends = np.asarray([up_to for up_to, _ in pairs])
    values = np.asarray([value for _, value in pairs], np.float64)
    return np.asarray(values[np.minimum(np.searchsorted(ends, np.asarray(length)), len(ends) - 1)])
