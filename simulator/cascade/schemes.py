"""The stages of a cascade that run, and their rules: chosen on other rows than those that are simulated."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import ArrayLike, NDArray

from arlo.cascade.decide import Floats, escalation_probability
from arlo.cascade.search import exact, ladder, points
from arlo.cascade.search.table import Table
from arlo.cascade.spec import Rules
from arlo.cascade.study import Study
from arlo.errors import ConfigError
from arlo.simulator.cascade.rows import Chosen, Drawn
from arlo.simulator.scenario.cascades import SINGLE, CascadeSection

PRICE_FLOOR = 0.02  # accuracy that the highest price may cost


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
    """The rules for a study: a point of its manifest, unless the section names others."""
    found = named(section, [stage.name for stage in study.cascade.stages])
    return found or whole(range(study.stages), study.cascade.point(section.point).all_rules)


def from_population(drawn: Drawn, ms: Floats, names: Sequence[str], section: CascadeSection, *, seed: int) -> Chosen:
    """The rules for a population: the cheapest hard thresholds that lose at most the tolerance, and those of higher
    prices. `ms` [rows, stages] is the time of a row at a stage."""
    found = named(section, names)
    if found is not None:
        return found
    table = Table(drawn.confidence, drawn.right, ms)
    front = exact.search(table, seed=seed)
    # Rows are drawn, so noise is not a concern.
    at = points.accuracy_point(front, table, tolerance=section.tolerance, level=None)
    at = len(front) - 1 if at is None else at
    steps = ladder.ladder(front, at, floor=float(front.accuracy[at]) - PRICE_FLOOR)
    return whole(range(len(names)), Rules(prices=tuple(ladder.as_rules(each) for each in steps)))


def goes_on(chosen: Chosen, confidence: Floats, length: ArrayLike) -> NDArray[np.bool_]:
    """The rows [rows] that the first stage, with these confidences, more likely escalates than not."""
    assert chosen.rules is not None
    return np.asarray(escalation_probability(chosen.rules.prices[0][0], confidence, length) > 0.5)
