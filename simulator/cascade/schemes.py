"""The schemes by which a cascade is compared: which stages run, by which rules. Each is chosen on other rows than those
that are simulated."""

from __future__ import annotations

import itertools
from collections.abc import Sequence

import numpy as np
from numpy.typing import ArrayLike, NDArray

from arlo.cascade.decide import Floats, escalation_probability
from arlo.cascade.search import exact, hybridserve, ladder, points, tabi
from arlo.cascade.search.find import Options, find
from arlo.cascade.search.table import Front, Table
from arlo.cascade.spec import Rule, Rules
from arlo.cascade.study import Study
from arlo.errors import ConfigError
from arlo.simulator.cascade.rows import Chosen, Drawn
from arlo.simulator.scenario.cascades import SINGLE, CascadeSection

PRICE_FLOOR = 0.02  # accuracy that the highest price may cost
SELECT = 1


def whole(stages: Sequence[int], rules: Rules) -> Chosen:
    """All of these stages, one after the other."""
    return Chosen(stages=tuple(stages), rules=rules)


def alone(stage: int) -> Chosen:
    """One stage, for every row: a vote of one."""
    return Chosen(stages=(stage,), rules=None, weights=(1.0,))


def named(section: CascadeSection, names: Sequence[str]) -> Chosen | None:
    """The scheme single:STAGE; None: it is another. ConfigError naming the stages."""
    if not section.scheme.startswith(SINGLE):
        return None
    stage = section.scheme.removeprefix(SINGLE)
    if stage not in names:
        raise ConfigError(f"cascade.scheme {section.scheme}: there is no such stage, only {', '.join(names)}")
    return alone(list(names).index(stage))


def from_records(study: Study, section: CascadeSection, *, seed: int) -> Chosen:
    """Of a study: `arlo` is a point of its manifest, the others are searched on the select split."""
    found = named(section, [stage.name for stage in study.cascade.stages])
    if found is not None:
        return found
    stages = range(study.stages)
    if section.scheme == "arlo":
        return whole(stages, study.cascade.point(section.point).all_rules)
    select = study.of(SELECT)
    last = float((select.said[-1].answer == select.truth).mean())
    target = section.accuracy if section.accuracy is not None else last - section.tolerance
    if section.scheme == "infaas-model":
        return _quickest(tabi.infaas(select.measured(), select.truth, accuracy=target), target)
    if section.scheme == "cocktail":
        vote = tabi.cocktail(select.measured(), select.truth, accuracy=target)
        weights = [float((each.answer == select.truth).mean()) for each in select.said]
        return _voting(None if vote is None else vote.stages, weights, target)
    family, _, name = section.scheme.partition("-")
    search = "tabi" if family == "tabi" else "hybridserve"
    options = Options(
        search=search, tolerance=section.tolerance, accuracy=section.accuracy if search == "tabi" else None,
        k=section.k, ensemble=search == "tabi", prune=search == "tabi", skip="benefit", seed=seed, alone=False,
    )  # fmt: skip
    wanted = "tabi" if search == "tabi" else f"hybridserve-{name}"
    point = next((each for each in find(study, options).points if each.name == wanted), None)
    if point is None:
        raise ConfigError(
            f"cascade.scheme {section.scheme}: it finds no cascade of these stages that is {target:.2%} right"
        )
    return whole(stages, point.all_rules)


def from_population(drawn: Drawn, ms: Floats, names: Sequence[str], section: CascadeSection, *, seed: int) -> Chosen:
    """Of a population; `ms` [rows, stages] is the time of a row at a stage."""
    found = named(section, names)
    if found is not None:
        return found
    stages = range(len(names))
    table = Table(drawn.confidence, drawn.right, ms)
    accuracy = drawn.right.mean(axis=0)
    target = section.accuracy if section.accuracy is not None else float(accuracy[-1]) - section.tolerance
    if section.scheme == "infaas-model":
        good = [s for s in stages if accuracy[s] >= target]
        return _quickest(min(good, key=lambda s: float(ms[:, s].mean())) if good else None, target)
    if section.scheme == "cocktail":
        return _voting(_cheapest_vote(drawn, ms, target), accuracy.tolist(), target)
    if section.scheme == "tabi":
        return whole(
            stages, Rules(prices=((Rule(kind="soft", c=_c(table, section, target), k=section.k),) * (len(names) - 1),))
        )
    front = exact.search(table, seed=seed) if section.scheme == "arlo" else hybridserve.search(table, seed=seed)
    at = points.accuracy_point(
        front, table, tolerance=section.tolerance, level=None
    )  # drawn: there is no noise to fear
    at = len(front) - 1 if at is None else at
    if section.scheme == "hybridserve-eo":
        bend = points.efficient_point(front, table)
        at = at if bend is None else bend
    return whole(stages, Rules(prices=_prices(front, at, section)))


def _prices(front: Front, at: int, section: CascadeSection) -> tuple[tuple[Rule, ...], ...]:
    if section.scheme != "arlo":
        return (ladder.as_rules(front.thresholds[at]),)
    steps = ladder.ladder(front, at, floor=float(front.accuracy[at]) - PRICE_FLOOR)
    return tuple(ladder.as_rules(each) for each in steps)


def _c(table: Table, section: CascadeSection, target: float) -> float:
    """The given c, else the least of Tabi's steps that is accurate enough, Eq. 4 taken as the cut that it acts like."""
    if section.c is not None:
        return section.c
    good = [c for c in tabi.C_STEPS if table.measure(np.full(table.stages - 1, (1 + c) / 2))[0] >= target]
    return min(good, default=max(tabi.C_STEPS))


def _quickest(stage: int | None, target: float) -> Chosen:
    if stage is None:
        raise ConfigError(f"cascade.scheme infaas-model: no stage is {target:.2%} right")
    return alone(stage)


def _voting(stages: Sequence[int] | None, weights: Sequence[float], target: float) -> Chosen:
    if stages is None:
        raise ConfigError(
            f"cascade.scheme cocktail: no two stages or more before the last are {target:.2%} right by a vote"
        )
    return Chosen(stages=tuple(stages), rules=None, weights=tuple(weights[s] for s in stages))


def _cheapest_vote(drawn: Drawn, ms: Floats, target: float) -> tuple[int, ...] | None:
    stages = range(drawn.right.shape[1] - 1)
    accuracy = drawn.right.mean(axis=0)
    best: tuple[float, tuple[int, ...]] | None = None
    for size in range(2, len(stages) + 1):
        for members in itertools.combinations(stages, size):
            chosen = Chosen(stages=members, rules=None, weights=tuple(accuracy[list(members)].tolist()))
            right = drawn.at(chosen, np.ones(len(ms))).correct[:, 0]
            slowest = float(ms[:, list(members)].max(axis=1).mean())
            if right.mean() >= target and (best is None or slowest < best[0]):
                best = (slowest, members)
    return None if best is None else best[1]


def goes_on(chosen: Chosen, confidence: Floats, length: ArrayLike) -> NDArray[np.bool_]:
    """Which rows [rows] the first stage, of these confidences, more likely sends on than not."""
    assert chosen.rules is not None
    return np.asarray(escalation_probability(chosen.rules.prices[0][0], confidence, length) > 0.5)
