"""Flows with few numbers, for tests of planners."""

from __future__ import annotations

import dataclasses
import random
from collections.abc import Mapping, Sequence

from arlo.catalog.flow import Expand, Flow, FlowEdge, FlowStage, FlowVariant, Guard, table_of_ms

FREE = 1e9  # an SLO that binds nothing


def variant(name: str, accuracy: float, rate: float, batches: Sequence[tuple[int, float]] = ()) -> FlowVariant:
    """Of so many rows per second one at a time; `batches`: (rows, ms) instead."""
    points = [(1, rows, ms) for rows, ms in batches] or [(1, 1, 1000 / rate)]
    return FlowVariant(
        name=name, accuracy=(accuracy,), table=table_of_ms(points), max_batch=max(rows for _, rows, _ in points)
    )


def toy(slo_ms: float = FREE) -> Flow:
    """A (a1: accuracy 1, 10/s, 2 children; a2: .8, 40/s, 1) before B (b1: 1, 20/s; b2: .9, 80/s)."""
    return Flow(
        name="toy",
        slo_ms=slo_ms,
        stages=(
            FlowStage(name="A", variants=(variant("a1", 1, 10), variant("a2", 0.8, 40))),
            FlowStage(name="B", variants=(variant("b1", 1, 20), variant("b2", 0.9, 80))),
        ),
        edges=(FlowEdge(tail="A", head="B", expand=Expand(kind="spans", factor=(2, 1))),),
    )


def metered(flow: Flow, joule: float, watts: Mapping[str, float] | float) -> Flow:
    """A flow whose variants, by their names, draw so much, and what a joule is worth."""

    def drawn(stage: FlowStage) -> FlowStage:
        each = [
            dataclasses.replace(one, watts=watts[one.name] if isinstance(watts, Mapping) else watts)
            for one in stage.variants
        ]
        return dataclasses.replace(stage, variants=tuple(each))

    return dataclasses.replace(flow, joule=joule, stages=tuple(map(drawn, flow.stages)))


def branches() -> Flow:
    """a (10/s) before b (2 rows each, 20/s) and c (half a row each, 5/s)."""
    return Flow(
        name="branches",
        slo_ms=FREE,
        stages=tuple(
            FlowStage(name=name, variants=(variant(name, 1, rate),)) for name, rate in (("a", 10), ("b", 20), ("c", 5))
        ),
        edges=(
            FlowEdge(tail="a", head="b", expand=Expand(factor=(2,))),
            FlowEdge(tail="a", head="c", expand=Expand(factor=(0.5,))),
        ),
    )


def cascade() -> Flow:
    """small (100/s), which answers 70 % itself, before large (10/s)."""
    return Flow(
        name="cascade",
        slo_ms=FREE,
        stages=(
            FlowStage(name="small", variants=(variant("s", 0.9, 100),)),
            FlowStage(name="large", variants=(variant("l", 0.95, 10),)),
        ),
        edges=(
            FlowEdge(tail="small", head=None, when=Guard(share=(0.7,))),
            FlowEdge(tail="small", head="large", combine="last"),
        ),
    )


def random_flow(seed: int, *, most_stages: int = 3, most_variants: int = 3) -> Flow:
    """A random tree: exits, batches, factors and latencies that bind now and then."""
    rng = random.Random(seed)
    count = rng.randint(1, most_stages)
    stages = []
    for i in range(count):
        made = []
        for k in range(rng.randint(1, most_variants)):
            one = rng.uniform(5, 40)
            caps = [1, *([rng.choice((2, 4))] if rng.random() < 0.6 else [])]
            points = [(rows, one * rows ** rng.uniform(0.5, 0.9)) for rows in caps]
            made.append(variant(f"v{k}", round(rng.uniform(0.4, 1), 3), 1, points))
        stages.append(FlowStage(name=f"s{i}", variants=tuple(made)))
    edges: list[FlowEdge] = []
    for i in range(1, count):
        tail = stages[rng.randrange(i)]
        if rng.random() < 0.3 and not any(edge.tail == tail.name and edge.head is None for edge in edges):
            share = tuple(round(rng.uniform(0.1, 0.8), 2) for _ in tail.variants)
            edges.append(FlowEdge(tail=tail.name, head=None, when=Guard(share=share)))
        factor = tuple(round(rng.uniform(0.2, 3), 2) for _ in tail.variants)
        combine = rng.choice(("product", "last"))
        edges.append(
            FlowEdge(
                tail=tail.name,
                head=stages[i].name,
                hop_ms=rng.choice((0.0, 1.0)),
                expand=Expand(factor=factor),
                combine=combine,  # type: ignore[arg-type]
            )
        )
    return Flow(name=f"random-{seed}", slo_ms=rng.uniform(60, 400), stages=tuple(stages), edges=tuple(edges))
