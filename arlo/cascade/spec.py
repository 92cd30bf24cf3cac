"""A cascade as data: its stages' outputs, and the rules applied to them (the twin of src/flow/cascade/spec.h).

Stages count from 0, the cheapest. Constructing a value checks it; ConfigError names the field.
"""

from __future__ import annotations

import dataclasses
import itertools
import math
from typing import Literal

import numpy as np

from arlo.errors import ConfigError

MAX_STAGES = 8
MAX_PRICES = 16
NEVER = float(np.nextafter(1.0, 2.0))  # a threshold that no confidence reaches: 1 + eps

CalibratorKind = Literal["temperature", "vector", "dirichlet", "isotonic"]
ScoreKind = Literal["max", "margin", "entropy", "output"]
OverKind = Literal["min", "mean", "q10"]
ScaleKind = Literal["prob", "prob2"]
EnsembleKind = Literal["none", "raw", "calibrated"]


def _ascending(values: tuple[tuple[int, float], ...] | tuple[tuple[float, float], ...], name: str) -> None:
    if any(b[0] <= a[0] for a, b in itertools.pairwise(values)):
        raise ConfigError(f"{name} must ascend")


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Calibrator:
    """The mapping from logits to calibrated probabilities (Tabi Eq. 2, HybridServe Eq. 1)."""

    kind: CalibratorKind = "temperature"
    t: float = 1.0  # temperature, isotonic: softmax(z / t)
    by_length: tuple[tuple[int, float], ...] = ()  # (tokens up to, t), ascending; longer rows: t
    scale: tuple[float, ...] = ()  # vector: [labels]; dirichlet: [labels * labels], by row
    bias: tuple[float, ...] = ()  # [labels]
    curve: tuple[tuple[float, float], ...] = ()  # isotonic: confidence before, after; linear between, flat outside
    rows: int = 0  # that it was fitted on
    ece15: tuple[float, float] | None = None  # on held-out rows, before and after

    def __post_init__(self) -> None:
        if not all(math.isfinite(t) and t > 0 for t in (self.t, *(t for _, t in self.by_length))):
            raise ConfigError("calibrator.t and those of by_length must be above 0")
        _ascending(self.by_length, "calibrator.by_length")
        _ascending(self.curve, "calibrator.curve")
        after = [y for _, y in self.curve]
        if any(not 0 <= x <= 1 or not 0 <= y <= 1 for x, y in self.curve) or after != sorted(after):
            raise ConfigError("calibrator.curve must lie in [0, 1] and never fall")
        if self.kind == "isotonic" and not self.curve:
            raise ConfigError("calibrator.curve must have a point")
        if self.kind in ("vector", "dirichlet"):
            labels = len(self.bias)
            if not labels or len(self.scale) != (labels if self.kind == "vector" else labels * labels):
                raise ConfigError(f"calibrator.scale and bias do not fit together for {self.kind}")
            if not all(map(math.isfinite, (*self.scale, *self.bias))):
                raise ConfigError("calibrator.scale and bias must be finite")


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class StageSpec:
    """How confidence is computed from a stage's answer."""

    calibrator: Calibrator = Calibrator()
    score: ScoreKind = "max"  # margin: largest less second; entropy: 1 - entropy / ln(labels); output: the stage's own
    over: OverKind = "min"  # for an answer with probabilities per token: their reduction to one per row
    scale: ScaleKind = "prob"  # prob2: confidence^2 (HybridServe section IV-A)
    label_order: tuple[int, ...] = ()  # place of each of the stage's labels among the cascade's; none: the same

    def __post_init__(self) -> None:
        if sorted(self.label_order) != list(range(len(self.label_order))):
            raise ConfigError("label_order must name each label once")


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Rule:
    """When an answer is good enough: confidence at or above t (hard), or by chance above c (soft, Tabi Eq. 4)."""

    kind: Literal["hard", "soft"] = "hard"
    t: tuple[tuple[int, float], ...] = ()  # hard: (tokens up to, threshold), ascending; the last: of longer rows too
    c: float = 0.0
    k: float = 0.0

    def __post_init__(self) -> None:
        if self.kind == "soft":
            if not 0 <= self.c <= 1:
                raise ConfigError("rule.c must be in [0, 1]")
            if not 0 < self.k < math.inf:
                raise ConfigError("rule.k must be above 0 and finite: without end it is the hard rule at (1 + c) / 2")
            return
        if not self.t:
            raise ConfigError("rule.t must have a threshold")
        _ascending(self.t, "rule.t")
        if not all(0 <= t <= NEVER for _, t in self.t):
            raise ConfigError("rule.t must be in [0, 1], or 1 + eps for never")


def hard(t: float) -> Rule:
    """One threshold for rows of all lengths."""
    return Rule(t=((1 << 20, float(t)),))


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Prune:
    """The removal of unimportant words on the way to the next stage (Tabi Eq. 5, section 4.2)."""

    alpha: float = 0.0  # a token stays if its importance is above alpha times the mean; 0: nothing is pruned
    mean_over: Literal["words", "all"] = "words"  # all: special tokens also count in the mean
    to_level: bool = True  # prune only until a shorter runtime is reached
    min_words: int = 4
    # A row without time for its runtime may lose words up to this alpha to reach a shorter one, and with them at most
    # this share of its importance; below `alpha`: none.
    alpha_max: float = 0.0
    most_removed: float = 0.5

    def __post_init__(self) -> None:
        if not 0 <= self.alpha < math.inf or not 0 <= self.alpha_max < math.inf:
            raise ConfigError("prune.alpha and prune.alpha_max must not be below 0")
        if not 0 <= self.most_removed <= 1:
            raise ConfigError("prune.most_removed must be in [0, 1]")
        if self.min_words < 1:
            raise ConfigError("prune.min_words must be at least 1")


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Ensemble:
    """The combination of a row's answers so far: sum of w_s p_s / sum of w_s (Tabi Eq. 6)."""

    kind: EnsembleKind = "none"  # whose probabilities: none (the last answer alone), softmax(z), the calibrated ones
    weights: tuple[float, ...] = ()  # [stages], above 0

    def __post_init__(self) -> None:
        if self.kind != "none" and not (self.weights and all(0 < w < math.inf for w in self.weights)):
            raise ConfigError("ensemble.weights must be above 0, one for each stage")


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Rules:
    """The rules of a decision; one of the prices is in force for each decision."""

    prices: tuple[tuple[Rule, ...], ...]  # [price][stage but the last]; price 0: as searched, above: less escalates
    start: int = 0  # stage that rows begin at; the last one: it alone answers
    skip: tuple[tuple[float, ...], ...] = ()  # [stage but the last]: confidences, ascending (HybridServe IV-C)
    prune: Prune = Prune()
    ensemble: Ensemble = Ensemble()

    def __post_init__(self) -> None:
        if not 1 <= len(self.prices) <= MAX_PRICES:
            raise ConfigError(f"rules must be of 1 to {MAX_PRICES} prices")
        edges = len(self.prices[0])
        if edges >= MAX_STAGES:
            raise ConfigError(f"a cascade has at most {MAX_STAGES} stages")
        if any(len(rules) != edges for rules in self.prices):
            raise ConfigError("rules must have a rule for each stage but the last, at every price")
        for lower, higher in itertools.pairwise(self.prices):
            if any(not _no_stricter(b, a) for a, b in zip(lower, higher, strict=True)):
                raise ConfigError("rules of a higher price must not escalate more than those of a lower one")
        if not 0 <= self.start <= edges:
            raise ConfigError(f"start must be a stage, 0 to {edges}, not {self.start}")
        if len(self.skip) > edges:
            raise ConfigError("skip must not be longer than the stages but the last")
        for i, cuts in enumerate(self.skip):
            if len(cuts) + i + 1 > edges or list(cuts) != sorted(cuts) or any(not 0 <= c <= 1 for c in cuts):
                raise ConfigError(f"skip[{i}] must ascend in [0, 1], one cut less than there are later stages")
        if self.ensemble.weights and len(self.ensemble.weights) != edges + 1:
            raise ConfigError("ensemble.weights must be one for each stage")


def threshold(rule: Rule, length: int) -> float:
    """The hard rule's threshold of a row of `length` tokens."""
    return next((t for up_to, t in rule.t if length <= up_to), rule.t[-1][1])


def bounded(prices: tuple[tuple[Rule, ...], ...], floor: tuple[Rule, ...]) -> tuple[tuple[Rule, ...], ...]:
    """A price ladder bounded from below: no row that both the first price and the rules `floor` would escalate exits at
    any price. Equal rungs become one. Soft rules, which have one price, are unchanged."""
    if any(rule.kind == "soft" for rules in (*prices, floor) for rule in rules):
        return prices
    kept = [prices[0]]
    for rules in prices[1:]:
        rung = []
        for rule, first, least in zip(rules, prices[0], floor, strict=True):
            ends = sorted({up_to for each in (rule, first, least) for up_to, _ in each.t})
            rung.append(
                Rule(
                    t=tuple(
                        (end, max(threshold(rule, end), min(threshold(first, end), threshold(least, end))))
                        for end in ends
                    )
                )
            )
        if any(threshold(a, end) != threshold(b, end) for a, b in zip(rung, kept[-1], strict=True) for end, _ in a.t):
            kept.append(tuple(rung))
    return tuple(kept)


def _no_stricter(higher: Rule, lower: Rule) -> bool:
    """Whether `higher` escalates no row that `lower` lets exit. Rules of two kinds cannot be compared: False."""
    if higher.kind != lower.kind:
        return False
    if higher.kind == "soft":
        return higher.c <= lower.c and higher.k == lower.k
    ends = {up_to for up_to, _ in (*higher.t, *lower.t)}
    return all(threshold(higher, end) <= threshold(lower, end) for end in ends | {max(ends) + 1})
