"""Samples of `arlo top`, 2 s apart, of the clusters in tests.fakes.control_status."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from arlo.cli.top.tables import Document
from arlo.cli.top.view import History, Sample
from arlo.control.gateway.messages import to_dict
from tests.fakes.control_status import (
    CASCADE,
    FLOW,
    cascade_deployment,
    cascade_stats,
    cascade_status,
    control_status,
    flow_deployment,
    flow_stats,
    gateway_deployment,
    gateway_stats,
    several_deployment,
    several_stats,
    several_status,
)

P98_MS = (38, 41, 40, 44, 52, 61, 96, 139, 171, 122, 70, 45, 41, 40, 41)


def _sample(step: int, deployment: Any, stats: dict[str, Any], others: dict[str, Any]) -> Sample:
    values: dict[str, Any] = {"at_s": 2.0 * step, "deployment": to_dict(deployment), "stats": stats}
    return Sample(**(values | others))


def one(step: int, **other: Any) -> Sample:
    """One model in the middle of a move."""
    stats = to_dict(gateway_stats(step=step))
    stats["total"]["p98_us"] = 1000 * P98_MS[(step - 1) % len(P98_MS)]
    return _sample(step, gateway_deployment(), {"minilm": stats}, {"control": control_status()} | other)


def several(step: int, **other: Any) -> Sample:
    """Two models, each on workers of its own."""
    stats = {model: to_dict(several_stats(model, step=step)) for model in ("embedder", "reranker")}
    return _sample(step, several_deployment(), stats, {"control": several_status(dedicated=True)} | other)


def cascade(step: int, **other: Any) -> Sample:
    """A cascade of two stages."""
    stats = {model: to_dict(cascade_stats(model, step=step)) for model in CASCADE}
    return _sample(step, cascade_deployment(), stats, {"control": cascade_status()} | other)


def pipeline(step: int, **other: Any) -> Sample:
    """A pipeline of two stages, without a control plane."""
    return _sample(step, flow_deployment(), {model: to_dict(flow_stats(model, step=step)) for model in FLOW}, other)


def after(make: Callable[..., Sample], *steps: int, **other: Any) -> Document:
    """The document after these steps."""
    history = History()
    documents = [history.add(make(step, **other)) for step in steps]
    return documents[-1]
