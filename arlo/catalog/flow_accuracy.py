"""The accuracy of a path through a flow: counted on recorded row outcomes if there are any, else a product of means.

If every variant of a path was recorded on the same rows, the path's accuracy is counted (Loki's profiled accuracy of a
path) on the rows that come that way and end there: confident rows end early, and the others go on.
"""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import NDArray

from arlo.catalog.flow import Flow, Prefix
from arlo.catalog.flow_exits import takes
from arlo.catalog.flow_outcomes import RowOutcomes, Way


def path_accuracy(flow: Flow, stage: int, prefix: Prefix, outcomes: RowOutcomes | None = None) -> float:
    """The expected accuracy, in [0, 1], of the answer that a prefix's variants give together at its last stage.

    On an edge of combine `product` all must be right, with `last` only the head's answer counts, and with `weighted`
    both answers are mixed; without recorded probabilities the mix counts as the better of the two. Means over the
    length bins of each stage.
    """
    line = flow.line(stage)
    if outcomes is not None:
        counted = _counted(flow, line, prefix, outcomes)
        if counted is not None:
            return counted
    accuracy = 0.0
    for at, (i, k) in enumerate(zip(line, prefix, strict=True)):
        edge = flow.parent_edge[i]
        combine = "last" if at == 0 or edge is None else flow.edges[edge].combine
        own = flow.stages[i].accuracy(k)
        if combine == "product":
            accuracy *= own
        else:
            accuracy = own if combine == "last" else max(accuracy, own)
    return accuracy


def planned_accuracy(flow: Flow, stage: int, prefix: Prefix, outcomes: RowOutcomes | None = None) -> float:
    """The path accuracy for a plan. If the stage's rows join those of another branch, which chooses the head's
    variants, it is multiplied by the accuracy of the head with the best variants."""
    return path_accuracy(flow, stage, prefix, outcomes) * joined_accuracy(flow, stage)


def joined_accuracy(flow: Flow, stage: int) -> float:
    """The mean over the exits after a stage's edge that joins another branch, by the best variants; 1: no such edge."""
    heads = [flow.edges[i].head for i in flow.out(stage) if flow.edges[i].join and not flow.of_tree(i)]
    return math.prod(_best(flow, flow.index[head]) for head in heads if head is not None)


def _best(flow: Flow, stage: int) -> float:
    own = max(flow.stages[stage].accuracy(k) for k in range(len(flow.stages[stage].variants)))
    behind = [_best(flow, child) for child in flow.children(stage)]
    return own * (math.fsum(behind) / len(behind) if behind else joined_accuracy(flow, stage))


def _counted(flow: Flow, line: tuple[int, ...], prefix: Prefix, outcomes: RowOutcomes) -> float | None:
    """The path accuracy on the recorded rows; None: some variant was not recorded."""
    found = way(flow, line, prefix, outcomes)
    return float(found[0].right[found[1]].mean()) if found is not None and outcomes.rows else None


def way(
    flow: Flow, line: tuple[int, ...], prefix: Prefix, outcomes: RowOutcomes
) -> tuple[Way, NDArray[np.bool_]] | None:
    """The joint answers of a way's variants on each recorded row, and the rows [rows] that come that way and end there;
    all rows, if that was not recorded, or none do. None: some variant was not recorded, or rows join on the way and so
    differ from the recorded ones."""
    ways = [flow.parent_edge[i] for i in line]
    if any(edge is not None and flow.edges[edge].join for edge in ways):
        return None
    keys = [(flow.stages[i].name, flow.stages[i].variants[k].name) for i, k in zip(line, prefix, strict=True)]
    if not keys or any(key not in outcomes.correct for key in keys):
        return None
    so_far = Way(np.zeros(0, bool))
    come = np.ones(outcomes.rows, bool)  # rows that come this way
    for at, (i, k, key) in enumerate(zip(line, prefix, keys, strict=True)):
        own = Way(outcomes.correct[key], outcomes.said.get(key), outcomes.truth.get(key))
        edge = flow.parent_edge[i]
        if at == 0 or edge is None or flow.edges[edge].combine == "last":
            so_far = own
        elif flow.edges[edge].combine == "product":
            so_far = Way(so_far.right & own.right, own.said, own.truth)
        else:
            so_far = outcomes.mixed(so_far, key, flow.edges[edge].weights)
        if not flow.children(i):
            continue
        taken = takes(flow.stages, flow.edges, flow.stages[i], k, outcomes)
        if at + 1 < len(line):
            onward = flow.parent_edge[line[at + 1]]
            mask = taken.get(-1 if onward is None else onward)
        else:
            onward_masks = [taken[e] for e in flow.out(i) if flow.edges[e].head is not None and e in taken]
            mask = ~np.logical_or.reduce(onward_masks) if onward_masks else None
        if mask is not None and bool((come & mask).any()):
            come = come & mask
    return so_far, come
