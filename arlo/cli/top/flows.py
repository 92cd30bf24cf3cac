"""A pipeline for `arlo top`, as numbers: its stages as a tree, with what came to each, who answered, and what ended.

Pure. Statistics and deployments are arlo.v1's as dictionaries; rates are between two statistics of one life of the
gateway, and None where there is only one.
"""

from __future__ import annotations

import dataclasses
from typing import Any


@dataclasses.dataclass(slots=True, kw_only=True)
class VariantShare:
    """One variant of a stage."""

    name: str
    accuracy: float | None  # of its stage's task, as deployed
    price: float | None  # of a second of its workers, in utility
    share: float | None = None  # of the stage's answers


@dataclasses.dataclass(slots=True, kw_only=True)
class FlowStageRow:
    """One stage. Shares are of the rows that it answered, but that of what was dropped: of those that came."""

    name: str
    depth: int  # 0: the entry
    rows_per_s: float | None = None  # that came to it
    of_one: float | None = None  # rows that a row of the entry becomes here
    accuracy: float | None = None  # mean of its variants, by their answers
    ended: float | None = None
    rerouted: float | None = None
    dropped: float | None = None
    variants: list[VariantShare] = dataclasses.field(default_factory=list)


@dataclasses.dataclass(slots=True, kw_only=True)
class FlowRows:
    """A pipeline: the plan in force, and its stages, each below the one that it follows."""

    name: str
    planner: str  # empty: there is no plan yet
    step: str
    served: float
    accuracy: float
    price: float
    workers: int
    stages: list[FlowStageRow]


def flows(
    deployment: dict[str, Any], now: dict[str, dict[str, Any]], base: dict[str, dict[str, Any]], chosen: str
) -> list[FlowRows]:
    """Those of a deployment that have statistics: `now` and `base`, by model. `chosen`: that one alone, empty: all."""
    return [
        _flow(pipeline, now[pipeline["name"]], base.get(pipeline["name"]))
        for pipeline in deployment.get("pipelines", ())
        if pipeline["name"] in now and chosen in ("", pipeline["name"])
    ]


def _flow(pipeline: dict[str, Any], stats: dict[str, Any], before: dict[str, Any] | None) -> FlowRows:
    plan = pipeline["plan"] or {}
    elapsed_s = (stats["uptime_ns"] - before["uptime_ns"]) / 1e9 if before is not None else 0.0
    old = {stage["stage"]: stage for stage in before["pipeline"]} if before is not None and elapsed_s > 0 else {}
    found = {stage["stage"]: stage for stage in stats["pipeline"]}
    parent = {edge["to"]: edge["from"] for edge in pipeline["edges"] if edge["to"] >= 0}
    rows, entry = [], 0
    for number in _downwards(len(pipeline["stages"]), parent):
        spec = pipeline["stages"][number]
        depth, at = 0, number
        while at in parent:
            depth, at = depth + 1, parent[at]
        row = FlowStageRow(name=spec["name"], depth=depth)
        rows.append(row)
        was, is_now = old.get(spec["name"]), found.get(spec["name"])
        prices = is_now["price"] if is_now is not None else []
        for k, variant in enumerate(spec["variants"]):
            name = variant["model"].removeprefix(f"{pipeline['name']}.{spec['name']}.")
            price = prices[k] if k < len(prices) else None
            row.variants.append(VariantShare(name=name, accuracy=variant["accuracy"], price=price))
        if was is None or is_now is None:
            continue
        came = is_now["arrived"] - was["arrived"]
        entry = came if depth == 0 else entry
        row.rows_per_s, row.of_one = came / elapsed_s, came / entry if entry else None
        if came:
            row.dropped = (sum(is_now["dropped"]) - sum(was["dropped"])) / came
        _answers(row, is_now, was)
    return FlowRows(
        name=pipeline["name"],
        planner=plan.get("planner", ""),
        step=plan.get("step", ""),
        served=plan.get("served", 0.0),
        accuracy=plan.get("accuracy", 0.0),
        price=plan.get("price", 0.0),
        workers=plan.get("workers", 0),
        stages=rows,
    )


def _answers(row: FlowStageRow, now: dict[str, Any], was: dict[str, Any]) -> None:
    answered = now["answered"] - was["answered"]
    if answered <= 0:
        return
    row.ended = (now["ends"] - was["ends"]) / answered
    row.rerouted = (now["rerouted"] - was["rerouted"]) / answered
    for variant, is_now, old in zip(row.variants, now["variants"], was["variants"], strict=False):
        variant.share = (is_now["answered"] - old["answered"]) / answered
    known = [(each.share, each.accuracy) for each in row.variants if each.share and each.accuracy is not None]
    if known:
        row.accuracy = sum(share * accuracy for share, accuracy in known) / sum(share for share, _ in known)


def _downwards(count: int, parent: dict[int, int]) -> list[int]:
    """Stages, each one's own right below it."""
    order: list[int] = []
    below = [number for number in range(count) if number not in parent]
    while below:
        number = below.pop(0)
        order.append(number)
        below = [child for child in range(count) if parent.get(child) == number] + below
    return order
