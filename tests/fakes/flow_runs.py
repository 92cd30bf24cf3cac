"""Loki's toy of two tasks for simulations, and requests that come evenly."""

from __future__ import annotations

import dataclasses

import numpy as np
from numpy.typing import NDArray

from arlo.catalog.flow import Expand, Flow, FlowEdge, FlowStage, FlowVariant, table_of_ms


def quick(name: str, accuracy: float, ms: float, batch: int = 1, load_ms: float = 0) -> FlowVariant:
    points = [(1, rows, ms * (1 + (rows - 1) / 4)) for rows in (1, 2, 4, 8) if rows <= batch]
    return FlowVariant(name=name, accuracy=(accuracy,), table=table_of_ms(points), max_batch=batch, load_ms=load_ms)


def toy(**changes: object) -> Flow:
    """Loki's toy of two tasks: a1 (accuracy 1, 10/s, 2 children), a2 (.8, 40/s, 1); b1 (1, 20/s), b2 (.9, 80/s)."""
    first = FlowStage(name="A", variants=(quick("a1", 1, 100), quick("a2", 0.8, 25)), entry=True)
    second = FlowStage(name="B", variants=(quick("b1", 1, 50), quick("b2", 0.9, 12.5)))
    edge = FlowEdge(tail="A", head="B", expand=Expand(kind="spans", factor=(2.0, 1.0), distribution="constant"))
    flow = Flow(name="toy", slo_ms=10_000, stages=(first, second), edges=(edge,), router="maf", drop="none")
    return dataclasses.replace(flow, **changes)  # type: ignore[arg-type]


def evenly(rate: float, seconds: float) -> NDArray[np.int64]:
    return (np.arange(round(rate * seconds)) * (1e9 / rate)).astype(np.int64)
