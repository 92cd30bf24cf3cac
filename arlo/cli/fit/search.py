"""Operating points, found on the select split."""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    from arlo.cascade.search.find import Found, Options
    from arlo.cascade.study import Study

CURVE_POINTS = 200


def search(study: Study, options: Options) -> dict[str, Any]:
    """The points as in cascade.json, the curve, the gain of ensembles, accuracies of stages alone, and warnings."""
    from rich.console import Console

    from arlo.cascade.drift import quantiles
    from arlo.cascade.search.find import find, removable
    from arlo.report.progress import LiveBar

    with LiveBar(Console(stderr=True), "searching"):
        found = find(study, options)
        _, useless = removable(study, options)
    stages, test = study.cascade.stages, study.of(2)
    useless_lines = [
        f"stage {stages[s].name} does not pay (benefit {benefit:.3g}): a cascade without it costs no more"
        for s, benefit in useless
    ]
    return {
        "points": [dataclasses.asdict(point) for point in found.points],
        "ensembles": {name: dataclasses.asdict(gain) for name, gain in found.gains.items()},
        "curve": _curve(found),
        "accuracies": [float((said.answer == test.truth).mean()) for said in test.said],
        "lengths": quantiles(test.length),
        "confidences": quantiles(test.said[0].confidence),
        "warnings": [*found.warnings, *useless_lines],
    }


def _curve(found: Found) -> list[list[float]]:
    """At most CURVE_POINTS points of the front."""
    front = found.front
    at = np.unique(np.linspace(0, len(front) - 1, min(CURVE_POINTS, len(front))).round().astype(np.int64))
    return [list(each) for each in zip(front.accuracy[at].tolist(), front.cost[at].tolist(), strict=True)]
