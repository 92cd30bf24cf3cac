"""Which rows take which edge, counted on recorded rows: shares of exits, and the gain of going on.

A guard that follows the load (`at_least = "price"`) applies this rule: a row goes on if its expected gain, given its
confidence, is worth more than the worker-seconds and joules that it costs. Gains are counted on recorded rows; without
records, a calibrated probability says how often the tail is right, and the head's mean accuracy how often the head is.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping, Sequence

import numpy as np
from numpy.typing import NDArray

from arlo.catalog.flow import Flow, FlowEdge, FlowStage, Guard
from arlo.catalog.flow_outcomes import Key, RowOutcomes, Way

BIN_ROWS = 100  # fewest recorded rows per point of a gain's curve
MOST_POINTS = 16

Curve = tuple[tuple[float, float], ...]  # (score, gain), by rising score: straight lines between them
Masks = Mapping[int, NDArray[np.bool_]]  # edge -> [rows]


def with_shares(stages: Sequence[FlowStage], edges: Sequence[FlowEdge], records: RowOutcomes) -> tuple[FlowEdge, ...]:
    """The edges, with `when.share` set from the records if they lack one."""
    found = list(edges)
    for stage in stages:
        taken = [takes(stages, edges, stage, k, records) for k in range(len(stage.variants))]
        for e, edge in enumerate(edges):
            if edge.tail != stage.name or not all(e in each for each in taken):
                continue
            if (edge.when.score or edge.when.label_in) and not edge.when.share:
                share = tuple(float(each[e].mean()) for each in taken)
                found[e] = dataclasses.replace(edge, when=dataclasses.replace(edge.when, share=share))
    return tuple(found)


def at_price(flow: Flow, records: RowOutcomes, price: float) -> tuple[Flow, RowOutcomes]:
    """A flow and its records at this price of a worker-second."""
    priced = dataclasses.replace(records, price=price, joule=flow.joule)
    following = tuple(dataclasses.replace(e, when=_unshared(e.when)) if e.when.follows else e for e in flow.edges)
    return dataclasses.replace(flow, edges=with_shares(flow.stages, following, priced)), priced


def _unshared(guard: Guard) -> Guard:
    return dataclasses.replace(guard, share=())


def takes(
    stages: Sequence[FlowStage], edges: Sequence[FlowEdge], stage: FlowStage, variant: int, records: RowOutcomes
) -> Masks:
    """The rows that take each edge of a stage after this variant answered them. Empty if a guard reads unrecorded
    values: labels, or other signals."""
    key = (stage.name, stage.variants[variant].name)
    out = [e for e, edge in enumerate(edges) if edge.tail == stage.name]
    if key not in records.correct:
        return {}
    if any(edges[e].when.follows for e in out) and not any(edges[e].falls_back for e in out):
        return {}  # Flow reports the error
    held: dict[int, NDArray[np.bool_]] = {}
    for e in out:
        mask = _holds(stages, edges, e, key, variant, records)
        if mask is None and (edges[e].head is None or stage.fire == "first"):
            return {}  # the rows of the other edges depend on it
        if mask is not None:
            held[e] = mask
    found: dict[int, NDArray[np.bool_]] = {}
    ended, before = np.zeros(records.rows, bool), np.zeros(records.rows, bool)
    for e, mask in held.items():
        if edges[e].head is None:
            found[e] = mask & ~ended
            ended |= mask
    for e, mask in held.items():
        if edges[e].head is not None:
            found[e] = mask & ~ended & ~before
            if stage.fire == "first":
                before |= mask
    return found


def _holds(  # noqa: PLR0917 - as its callers have them
    stages: Sequence[FlowStage], edges: Sequence[FlowEdge], e: int, key: Key, variant: int, records: RowOutcomes
) -> NDArray[np.bool_] | None:
    guard = edges[e].when
    mask = np.ones(records.rows, bool)
    if guard.label_in:
        label = records.label(key)
        if label is None:
            return None
        mask &= np.isin(label, [n for n, name in enumerate(records.labels[key]) if name in guard.label_in])
    if not guard.score:
        return mask
    score = records.signal(key, guard.score)
    if score is None:
        return None
    if guard.follows:
        curve = np.asarray(gain(stages, edges, e, variant, records))
        cost = records.price * cost_s(stages, edges, e)
        if records.joule > 0:
            cost += records.joule * cost_s(stages, edges, e, joules=True)
        worth = np.interp(score, curve[:, 0], curve[:, 1]) > cost
        return np.asarray(mask & (worth if edges[e].head is not None else ~worth))
    if isinstance(guard.at_least, float | int):
        mask &= score >= guard.at_least
    if isinstance(guard.below, float | int) and guard.below > 0:
        mask &= score < guard.below
    return mask


def _onward(edges: Sequence[FlowEdge], e: int) -> FlowEdge:
    """The edge that a row takes instead of an exit, or this one."""
    if edges[e].head is not None:
        return edges[e]
    return next(edge for edge in edges if edge.tail == edges[e].tail and edge.falls_back)


def _stage(stages: Sequence[FlowStage], name: str | None) -> FlowStage:
    return next(stage for stage in stages if stage.name == name)


def gain(
    stages: Sequence[FlowStage], edges: Sequence[FlowEdge], e: int, variant: int, records: RowOutcomes | None
) -> Curve:
    """A row's gain by going on from this variant of an edge's tail, by its score: right answers of the head's most
    accurate variant, in its mix, less those of the tail, -1 to 1."""
    tail, guard, onward = _stage(stages, edges[e].tail), edges[e].when, _onward(edges, e)
    head = _stage(stages, onward.head)
    best = max(range(len(head.variants)), key=head.accuracy)
    here, there = (tail.name, tail.variants[variant].name), (head.name, head.variants[best].name)
    score = None
    if records is not None and here in records.correct and there in records.correct:
        score = records.signal(here, guard.score or "calibrated_max")
    if records is None or score is None:
        ahead = head.accuracy(best)
        return ((0.0, ahead), (1.0, max(ahead - 1.0, -1.0)))
    own = Way(records.correct[here], records.said.get(here), records.truth.get(here))
    after = records.mixed(own, there, onward.weights).right if onward.weights else records.correct[there]
    gained: NDArray[np.float64] = after.astype(float) - own.right
    order = np.argsort(score, kind="stable")
    parts = np.array_split(order, max(min(len(order) // BIN_ROWS, MOST_POINTS), 1))
    means = [float(gained[part].mean()) for part in parts]
    smooth = [float(np.mean(means[max(i - 1, 0) : i + 2])) for i in range(len(means))]
    return tuple((float(score[part].mean()), value) for part, value in zip(parts, smooth, strict=True))


def cost_s(stages: Sequence[FlowStage], edges: Sequence[FlowEdge], e: int, *, joules: bool = False) -> float:
    """Worker-seconds, or joules, per row that goes on, with the most accurate variants, in full batches."""

    def of(stage: FlowStage) -> float:
        best = max(range(len(stage.variants)), key=stage.accuracy)
        found = work_s(stage, best) * (stage.variants[best].watts if joules else 1.0)
        for edge in edges:
            if edge.tail == stage.name and edge.head is not None:
                share = edge.when.share[min(best, len(edge.when.share) - 1)] if edge.when.share else 1.0
                rows = edge.expand.factor[min(best, len(edge.expand.factor) - 1)]
                found += share * rows * of(_stage(stages, edge.head))
        return found

    return of(_stage(stages, _onward(edges, e).head))


def work_s(stage: FlowStage, variant: int) -> float:
    """Worker-seconds per row of a stage, in full batches, over its lengths."""
    spec = stage.variants[variant]
    batch = spec.max_batch
    ns = math.fsum(share * spec.latency_ns(batch, i) for i, share in enumerate(stage.bins(variant)))
    return ns / batch / 1e9
