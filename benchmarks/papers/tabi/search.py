"""Tabi's own search, as printed (section 5), and the systems that it is compared with (section 7.1)."""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Callable, Mapping, Sequence
from typing import Literal

import numpy as np
from numpy.typing import ArrayLike

from arlo.cascade.decide import walk
from arlo.cascade.search.ensemble import printed_weights, spent
from arlo.cascade.search.find import SELECT, single_stage
from arlo.cascade.spec import Ensemble, Prune, Rule, Rules
from arlo.cascade.study import Measured, Study
from arlo.errors import ConfigError

Objective = Literal["mean", "p99", "cost", "energy"]
C_STEPS = tuple(round(0.95 - 0.05 * i, 2) for i in range(19))  # .95, .90, ... .05
ALPHAS = (0.5, 0.6, 0.7, 0.8, 0.9, 1.0)
SLOWEST = 1.5  # p75 over that of the slowest member, above which a candidate is left out
MOST_LOSS = 0.02  # of the large model's accuracy by pruning


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Candidate:
    """Stages with their parameters, and what they give on the rows searched on. A single stage has no c."""

    stages: tuple[int, ...]
    c: float | None
    alpha: float  # 0: nothing is pruned
    accuracy: float
    reach: tuple[float, ...]
    stage_ms: tuple[float, ...]  # mean of the rows that run there
    mean_ms: float
    p75_ms: float
    p99_ms: float
    energy: float  # per row, where joules of a ms are known; else 0


Pruned = Mapping[tuple[int, int, float], Measured]  # (stage that the importance is of, stage that answers, alpha)


def candidates(
    stages: Sequence[Measured],
    truth: ArrayLike,
    *,
    pruned: Pruned | None = None,
    k: float = 10.0,
    seed: int = 0,
    watts: Sequence[float] = (),
) -> list[Candidate]:
    """All ordered subsets by ascending accuracy: c from .95 down until the whole is less accurate than its members on
    average, alpha from .5 up until a stage loses more than 2 % by it, none whose p75 is above 1.5 times that of its
    slowest member; and the stages alone (section 7.5). k is given nowhere; the ensemble is always on (Eq. 6).

    `truth` [rows]: labels. `pruned`: what stages say of pruned rows; without, nothing is pruned. Weights come from the
    rows that are re-routed at each c. Masks are those of each pair, not of one representative small model.
    """
    y = np.asarray(truth)
    accuracy = [float((each.said.answer == y).mean()) for each in stages]
    order = sorted(range(len(stages)), key=lambda s: accuracy[s])
    power = list(watts) or [0.0] * len(stages)
    found = [_single(s, stages[s], accuracy[s], power[s]) for s in order]
    for size in range(2, len(stages) + 1):
        for members in itertools.combinations(order, size):
            slowest = max(float(np.quantile(stages[s].ms, 0.75)) for s in members)
            least = float(np.mean([accuracy[s] for s in members]))
            for alpha in (0.0, *_alphas(members, accuracy, y, pruned or {})):
                chain = [
                    stages[s] if i == 0 or not alpha else (pruned or {})[members[i - 1], s, alpha]
                    for i, s in enumerate(members)
                ]
                for c in C_STEPS:
                    made = _combined(members, chain, y, c=c, alpha=alpha, k=k, seed=seed, watts=power)
                    if made.accuracy < least:
                        break
                    if made.p75_ms <= SLOWEST * slowest:
                        found.append(made)
    return found


def choose(
    found: Sequence[Candidate],
    *,
    accuracy: float = 0.0,
    ms: float = np.inf,
    objective: Objective = "mean",
    fit: Sequence[float] = (),
) -> Candidate:
    """The candidate of least objective that meets both targets (section 5). `fit`: models that fit on a GPU, by stage,
    for the objective cost. ConfigError reports how far the best ones miss the targets."""
    value: Callable[[Candidate], float] = {
        "mean": lambda each: each.mean_ms,
        "p99": lambda each: each.p99_ms,
        "cost": lambda each: cost(each.stage_ms, each.reach, [fit[s] if fit else 1.0 for s in each.stages]),
        "energy": lambda each: each.energy,
    }[objective]
    latency: Callable[[Candidate], float] = (lambda e: e.p99_ms) if objective == "p99" else (lambda e: e.mean_ms)
    good = [each for each in found if each.accuracy >= accuracy and latency(each) <= ms]
    if not good:
        top = max(each.accuracy for each in found)
        raise ConfigError(f"nothing is that accurate within {ms:g} ms: the most accurate has {top:.2%}")
    return min(good, key=value)


def by_stage(study: Study) -> list[Measured]:
    """Answers and times of each stage for whole texts."""
    return [Measured(each, study.ms[:, s]) for s, each in enumerate(study.said)]


def point(study: Study, *, accuracy: float, k: float = 10.0, seed: int = 0) -> Rules:
    """Tabi's choice on the select split, among all stages of the study or one alone. ConfigError if none is that
    accurate."""
    select = study.of(SELECT)
    pruned = {(a, b, alpha): found[1] for (a, b, alpha, how), found in select.pruned.items() if how == "importance"}
    everything = tuple(range(study.stages))
    found = candidates(by_stage(select), select.truth, pruned=pruned, k=k, seed=seed)
    best = choose([each for each in found if each.c is None or each.stages == everything], accuracy=accuracy)
    if best.c is None:
        return single_stage(study.stages, best.stages[0])
    prices = ((Rule(kind="soft", c=best.c, k=k),) * (study.stages - 1),)
    part = select.with_pruning(best.alpha)
    weights = printed_weights(part.said, select.truth, part.play(Rules(prices=prices), seed=seed).ended.stage)
    mix = Ensemble(kind="calibrated", weights=weights)
    return Rules(prices=prices, prune=Prune(alpha=best.alpha), ensemble=mix)


def cost(stage_ms: Sequence[float], reach: Sequence[float], fit: Sequence[float]) -> float:
    """GPU time of a row: sum of T_m W_m / Pf_m (section 7.1), Pf: models that fit on a GPU with little slow-down."""
    return sum(t * w / p for t, w, p in zip(stage_ms, reach, fit, strict=True))


def infaas(stages: Sequence[Measured], truth: ArrayLike, *, accuracy: float) -> int | None:
    """INFaaS: the quickest single stage that is accurate enough; None if none is."""
    y = np.asarray(truth)
    good = [s for s, each in enumerate(stages) if float((each.said.answer == y).mean()) >= accuracy]
    return min(good, key=lambda s: float(stages[s].ms.mean())) if good else None


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Vote:
    """Several stages asked at once."""

    stages: tuple[int, ...]
    accuracy: float
    mean_ms: float  # of the slowest of them, row by row
    busy_ms: float  # of all together


def cocktail(stages: Sequence[Measured], truth: ArrayLike, *, accuracy: float) -> Vote | None:
    """Cocktail: the quickest set of stages, without the last one, whose vote, weighted by accuracy, is accurate enough;
    None where none is."""
    y = np.asarray(truth)
    labels = stages[0].said.raw.shape[1]
    weights = [float((each.said.answer == y).mean()) for each in stages]
    best: Vote | None = None
    for size in range(2, len(stages)):
        for members in itertools.combinations(range(len(stages) - 1), size):
            votes = np.zeros((len(y), labels))
            for s in members:
                votes[np.arange(len(y)), stages[s].said.answer] += weights[s]
            times = np.stack([stages[s].ms for s in members])
            made = Vote(
                stages=members,
                accuracy=float((votes.argmax(axis=1) == y).mean()),
                mean_ms=float(times.max(axis=0).mean()),
                busy_ms=float(times.sum(axis=0).mean()),
            )
            if made.accuracy >= accuracy and (best is None or made.mean_ms < best.mean_ms):
                best = made
    return best


def _single(stage: int, measured: Measured, accuracy: float, watts: float) -> Candidate:
    mean, p75, p99 = float(measured.ms.mean()), *(float(np.quantile(measured.ms, q)) for q in (0.75, 0.99))
    return Candidate(
        stages=(stage,),
        c=None,
        alpha=0.0,
        accuracy=accuracy,
        reach=(1.0,),
        stage_ms=(mean,),
        mean_ms=mean,
        p75_ms=p75,
        p99_ms=p99,
        energy=watts * mean,
    )


def _alphas(members: Sequence[int], accuracy: Sequence[float], y: np.ndarray[tuple[int], np.dtype[np.int64]],
            pruned: Pruned) -> list[float]:  # fmt: skip
    found = []
    for alpha in ALPHAS:
        pairs = [(a, b, alpha) for a, b in itertools.pairwise(members)]
        if any(pair not in pruned for pair in pairs):
            continue
        if any(float((pruned[pair].said.answer == y).mean()) < accuracy[pair[1]] - MOST_LOSS for pair in pairs):
            break
        found.append(alpha)
    return found


def _combined(
    members: tuple[int, ...],
    chain: Sequence[Measured],
    y: np.ndarray[tuple[int], np.dtype[np.int64]],
    *,
    c: float,
    alpha: float,
    k: float,
    seed: int,
    watts: Sequence[float],
) -> Candidate:
    said = [each.said for each in chain]
    prices = ((Rule(kind="soft", c=c, k=k),) * (len(chain) - 1),)
    exits = walk(Rules(prices=prices), said, 0, seed=seed).stage
    ensemble = Ensemble(kind="calibrated", weights=printed_weights(said, y, exits))
    ended = walk(Rules(prices=prices, ensemble=ensemble), said, 0, seed=seed)
    times = np.stack([each.ms for each in chain], axis=1)
    ms = spent(ended.ran, times)
    joules = spent(ended.ran, times * np.asarray([watts[s] for s in members]))
    return Candidate(
        stages=members,
        c=c,
        alpha=alpha,
        accuracy=float((ended.answer == y).mean()),
        reach=tuple(ended.ran.mean(axis=0).tolist()),
        stage_ms=tuple(float(t[r].mean()) if r.any() else 0.0 for t, r in zip(times.T, ended.ran.T, strict=True)),
        mean_ms=float(ms.mean()),
        p75_ms=float(np.quantile(ms, 0.75)),
        p99_ms=float(np.quantile(ms, 0.99)),
        energy=float(joules.mean()),
    )
