"""How accurate a path through a flow is: from row outcomes where they were recorded, else a product of means.

Two models are wrong on the same rows, so a product of accuracies is not the accuracy of a path. Where every stage of a
path was recorded for the same rows, the path's accuracy is counted (Loki's profiled accuracy of a path).
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping

import numpy as np
from numpy.typing import NDArray

from arlo.catalog.flow import Flow, Prefix
from arlo.errors import ConfigError


@dataclasses.dataclass(frozen=True, slots=True)
class RowOutcomes:
    """What variants made of the same labelled rows."""

    correct: Mapping[tuple[str, str], NDArray[np.bool_]]  # (stage, variant) -> [rows]

    def __post_init__(self) -> None:
        if len({len(rows) for rows in self.correct.values()}) > 1:
            raise ConfigError("row outcomes must be of the same rows for all variants")


def path_accuracy(flow: Flow, stage: int, prefix: Prefix, outcomes: RowOutcomes | None = None) -> float:
    """Expected accuracy, in [0, 1], of what the variants of a prefix answer together at its last stage.

    On an edge of combine `product` all must be right, with `last` the head answers anew, and `weighted` counts as the
    better of both, which is what an ensemble is for. Means over the length bins of each stage.
    """
    line = flow.line(stage)
    pairs = list(zip(line, prefix, strict=True))
    names = [(flow.stages[i].name, flow.stages[i].variants[k].name) for i, k in pairs]
    counted = outcomes is not None and all(name in outcomes.correct for name in names)
    accuracy = 0.0
    rows: NDArray[np.bool_] | None = None
    for at, (i, k) in enumerate(pairs):
        edge = flow.parent_edge[i]
        combine = "last" if at == 0 or edge is None else flow.edges[edge].combine
        own = flow.stages[i].accuracy(k)
        if combine == "product":
            accuracy *= own
        else:
            accuracy = own if combine == "last" else max(accuracy, own)
        if counted and outcomes is not None:
            said = outcomes.correct[names[at]]
            if combine == "last" or rows is None:
                rows = said
            elif combine == "product":
                rows = rows & said
            else:
                rows = said if said.mean() >= rows.mean() else rows
    return float(rows.mean()) if rows is not None else accuracy
