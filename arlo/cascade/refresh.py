"""Refits an operating point to today's traffic, from the sample that a gateway keeps (src/gateway/desk/sample.h).

Each sampled row has the answers of some early stages and of the last stage, but no label: the last stage's answer
counts as right. Rows are sampled with one probability, so they are weighted by 1 / share: rows of larger shares are
thinned to the smallest share, so that bounds on counts hold.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from arlo.cascade.calibration import LEAST_ROWS, error_of, fit_temperature
from arlo.cascade.decide import Bools, Floats, Ints, confidence, in_order
from arlo.cascade.drift import shift
from arlo.cascade.guarantee import STEPS, safe_threshold
from arlo.cascade.manifest import CascadeManifest, Guarantee, Point, Stage
from arlo.cascade.search.ladder import joined
from arlo.cascade.spec import NEVER, Rule, threshold
from arlo.errors import ConfigError

SIGN_ROWS = 2000  # rows searched for early signs
_LONGEST = 1 << 20
_SEED = 0x726566  # of thinning


@dataclasses.dataclass(frozen=True, slots=True)
class Sample:
    """Rows of one share, oldest first."""

    length: Ints  # [rows], tokens before any were left out
    logits: tuple[Floats, ...]  # by stage: [rows, labels] in the cascade's order; NaN where the row was not there

    @property
    def rows(self) -> int:
        """The number of rows."""
        return len(self.length)

    def known(self, stage: int) -> Bools:
        """Rows [rows] that the stage has answered."""
        there: Bools = ~np.isnan(self.logits[stage][:, 0])
        return there

    @property
    def giant(self) -> Ints:
        """The last stage's answers [rows]."""
        return np.asarray(self.logits[-1].argmax(axis=-1))

    def take(self, which: Bools) -> Sample:
        """Some of the rows."""
        return Sample(self.length[which], tuple(each[which] for each in self.logits))


def sample_of(rows: Sequence[Any], cascade: CascadeManifest) -> Sample:
    """The sample of arlo.v1.SampledRow messages. ConfigError if they are of another cascade, or too few."""
    stages, labels = len(cascade.stages), len(cascade.labels)
    shares = np.array([row.share for row in rows], np.float64)
    if len(rows) and not (shares > 0).all():
        raise ConfigError("the gateway's sample has rows of no share: it is of another version of Arlo")
    if len(rows):
        kept = np.random.default_rng(_SEED).random(len(rows)) < shares.min() / shares
        rows = [row for row, keep in zip(rows, kept, strict=True) if keep]
    if len(rows) < LEAST_ROWS:
        raise ConfigError(
            f"the gateway's sample has {len(rows)} rows, and {LEAST_ROWS} are needed: serve with [cascade] "
            "shadow_share above 0, and ask again after more traffic"
        )
    logits = [np.full((len(rows), labels), np.nan) for _ in range(stages)]
    for i, row in enumerate(rows):
        for said in row.said:
            if said.stage >= stages or len(said.logits) != labels:
                raise ConfigError("the gateway serves another cascade: its sample has other stages or labels")
            logits[said.stage][i] = said.logits
    ordered = tuple(in_order(stage.spec, z) for stage, z in zip(cascade.stages, logits, strict=True))
    whole = ~np.isnan(ordered[-1]).any(axis=1)
    return Sample(np.array([row.length for row in rows], np.int64)[whole], tuple(z[whole] for z in ordered))


def signs(cascade: CascadeManifest, sample: Sample) -> dict[str, tuple[float, float]]:
    """The distance of the last SIGN_ROWS rows from the test split, by length and by the first stage's confidence, and
    the chance of that distance without a change (`shift`). Figures that the search did not note, or a confidence that a
    stage outputs itself, are left out."""
    data, found = cascade.data, dict[str, tuple[float, float]]()
    if data is None:
        return found
    rows = round(data.rows * data.split[2])
    latest = sample.take(np.arange(sample.rows) >= sample.rows - SIGN_ROWS)
    if data.lengths:
        found["length"] = shift(data.lengths, rows, latest.length)
    spec = dataclasses.replace(cascade.stages[0].spec, label_order=())  # the sample is in order
    if data.confidences and spec.score != "output":
        known = latest.take(latest.known(0))
        if known.rows:
            found["confidence"] = shift(data.confidences, rows, confidence(spec, known.logits[0], known.length))
    return found


@dataclasses.dataclass(frozen=True, slots=True)
class Temperature:
    """A stage's T before and after, and the expected calibration error of both on the other half of the sample, against
    the last stage's answers."""

    stage: str
    t: tuple[float, float]
    ece15: tuple[float, float]


def fit_temperatures(cascade: CascadeManifest, sample: Sample) -> tuple[CascadeManifest, list[Temperature]]:
    """The cascade with T of every stage but the last fitted to every other row of the sample, from the first. Stages
    with calibrators of other kinds, or with too few rows, stay unchanged and are not in the list."""
    stages, found = list(cascade.stages), []
    for s, stage in enumerate(cascade.stages[:-1]):
        first = np.arange(sample.rows) % 2 == 0
        fit, held = (sample.take(which & sample.known(s)) for which in (first, ~first))
        if stage.calibrator.kind != "temperature" or min(fit.rows, held.rows) < LEAST_ROWS:
            continue
        t = fit_temperature(fit.logits[s], fit.giant)
        new = dataclasses.replace(stage.calibrator, t=t, by_length=(), rows=fit.rows)
        ece = [error_of(each, held.logits[s], held.giant, held.length) for each in (stage.calibrator, new)]
        stages[s] = dataclasses.replace(stage, calibrator=dataclasses.replace(new, ece15=(ece[0], ece[1])))
        found.append(Temperature(stage.name, (stage.calibrator.t, t), (ece[0], ece[1])))
    return dataclasses.replace(cascade, stages=tuple(stages)), found


def refreshed(
    cascade: CascadeManifest,
    point: Point,
    sample: Sample,
    *,
    name: str,
    stage_ms: Sequence[float],
    bins: Sequence[int] | None = None,
) -> tuple[Point, list[str]]:
    """The point with thresholds as low as its promise allows on this sample, and notes on it.

    The promise is the point's guarantee of disagreement, tested again (fixed sequence, Learn then Test), each stage
    with its part of epsilon and delta. A point without a guarantee promises the share of rows on which it disagreed
    with the last stage on the test split. `bins`: longest rows of length bins, ascending; None: the point's bins. Each
    bin's thresholds keep the whole promise with a part of delta, so that all bins together keep it; bins with fewer
    than LEAST_ROWS rows are joined. A price's threshold keeps its ratio to the first one. `stage_ms`: milliseconds of a
    row at each stage; only their ratios matter.
    """
    notes = []
    edges = len(cascade.stages) - 1
    ends = joined(sample.length, (*(bins_of(point) if bins is None else bins)[:-1], _LONGEST))
    which = np.searchsorted(ends[:-1], sample.length)
    promised = point.guarantee if point.guarantee is not None and point.guarantee.risk == "disagreement" else None
    if point.guarantee is not None and promised is None:
        notes.append(f"its guarantee is of {point.guarantee.risk}, which needs labels: it has none now")
    giant, gone = sample.giant, np.zeros(sample.rows, np.bool_)
    wrong = np.zeros(sample.rows, np.bool_)
    found: list[list[float]] = []  # [stage][bin]
    reach = [1.0]
    for s, stage in enumerate(cascade.stages[:-1]):
        there = sample.known(s) & ~gone
        missing = int((~sample.known(s) & ~gone).sum())
        if missing and s:
            notes.append(f"{missing} rows would go on to {stage.name} that it has not seen: they count as sent on")
        z = np.nan_to_num(sample.logits[s])
        sure = np.where(there, _confidence(stage, z, sample.length), -1.0)
        answer = z.argmax(axis=-1)
        chosen = []
        for b in range(len(ends)):
            mine = which == b
            if promised is not None:

                def at(t: float, sure: Floats = sure[mine], answer: Ints = answer[mine]) -> tuple[Ints, Bools]:
                    return answer, sure >= t

                part = promised.epsilon / edges, promised.delta / edges / len(ends)
                chosen.append(safe_threshold(at, giant[mine], None, epsilon=part[0], delta=part[1]))
            else:
                chosen.append(_lowest(sure[mine], (answer != giant)[mine], (1 - point.agreement) / edges))
        out = sure >= np.array(chosen)[which]
        wrong |= out & (answer != giant)
        gone |= out
        found.append(chosen)
        reach.append(float((~gone).mean()))
    if any(rule.kind == "soft" for rule in point.rules[0]):
        notes.append("its soft rules have become thresholds")
    rules = _prices(point, ends, found)
    before, now = (float(np.dot(each, stage_ms)) for each in (point.reach, reach))
    return (
        dataclasses.replace(
            point,
            name=name,
            search="refresh",
            accuracy=None,
            agreement=1 - float(wrong.mean()),
            reach=tuple(reach),
            reach_by_bin=(),
            mean_ms=point.mean_ms * now / before if before > 0 else point.mean_ms,
            rules=rules,
            guarantee=None if promised is None else dataclasses.replace(promised, rows=sample.rows),
        ),
        notes,
    )


def _confidence(stage: Stage, logits: Floats, length: Ints) -> Floats:
    # The logits are in the cascade's order already.
    return confidence(dataclasses.replace(stage.spec, label_order=()), logits, length)


def _lowest(sure: Floats, differ: Bools, most: float) -> float:
    """The lowest threshold at which at most this share of the rows ends with another answer than the last stage's."""
    passed = NEVER
    for step in range(STEPS, -1, -1):
        if float(((sure >= step / STEPS) & differ).mean()) > most:
            break
        passed = step / STEPS
    return passed


def bins_of(point: Point) -> tuple[int, ...]:
    """The longest rows of a point's threshold bins; one bin if its thresholds apply to all lengths."""
    ends = {up_to for rule in point.rules[0] if rule.kind == "hard" for up_to, _ in rule.t}
    return tuple(sorted(ends)) or (_LONGEST,)


def _prices(point: Point, ends: Sequence[int], found: Sequence[Sequence[float]]) -> tuple[tuple[Rule, ...], ...]:
    soft = any(rule.kind == "soft" for rules in point.rules for rule in rules)
    ladder = point.rules[:1] if soft else point.rules

    def at(price: int, s: int, end: int, t: float) -> float:
        if price == 0:
            return t
        was, now = (threshold(rules[s], end) for rules in (point.rules[0], point.rules[price]))
        return min(t, t * now / was) if was > 0 else t

    return tuple(
        tuple(
            Rule(t=tuple((end, at(price, s, end, t)) for end, t in zip(ends, found[s], strict=True)))
            for s in range(len(found))
        )
        for price in range(len(ladder))
    )


def promise(guarantee: Guarantee | None, point: Point) -> str:
    """The promise of the thresholds, in words."""
    if guarantee is None:
        return f"at most {1 - point.agreement:.2%} answered otherwise than the last stage, as found on the test split"
    return f"P(ends early and differs) <= {guarantee.epsilon:g}, with probability {1 - guarantee.delta:g}"


def mean_ms(latency: Sequence[tuple[int, float]], length: Ints) -> float:
    """Mean ms of rows of these lengths [rows], from (tokens, ms) of a stage's runtimes, ascending; each row runs on the
    shortest that takes it."""
    ends = np.array([end for end, _ in latency])
    ms = np.array([each for _, each in latency])
    at = np.minimum(np.searchsorted(ends, length), len(ends) - 1)
    found = float(ms[at].mean())
    return found if math.isfinite(found) else 0.0
