"""The planner of what is served. The control plane and the simulator get theirs here, and name no class of planner."""

from __future__ import annotations

from collections.abc import Sequence
from typing import overload

from arlo.catalog.flow import Flow
from arlo.catalog.flow_outcomes import RowOutcomes
from arlo.catalog.manifest import Runtime
from arlo.planning.cascade import CascadePlanner
from arlo.planning.flows.serving import FlowPlanner
from arlo.planning.models import ModelPlanner, Served
from arlo.planning.planner import Planner, PlannerSettings


@overload
def planner_for(settings: PlannerSettings, *, runtimes: Sequence[Runtime]) -> Planner: ...


@overload
def planner_for(settings: PlannerSettings, *, models: Sequence[Served], divides: bool = True) -> ModelPlanner: ...


@overload
def planner_for(
    settings: PlannerSettings,
    *,
    models: Sequence[Served],
    divides: bool = True,
    reach: Sequence[float],
    lengths: Sequence[float] = (),
) -> CascadePlanner: ...


@overload
def planner_for(
    settings: PlannerSettings,
    *,
    models: Sequence[Served],
    divides: bool = True,
    flow: Flow,
    outcomes: RowOutcomes | None = None,
    most: int = 0,
) -> FlowPlanner: ...


def planner_for(
    settings: PlannerSettings,
    *,
    runtimes: Sequence[Runtime] = (),
    models: Sequence[Served] = (),
    divides: bool = True,
    reach: Sequence[float] | None = None,
    lengths: Sequence[float] = (),
    flow: Flow | None = None,
    outcomes: RowOutcomes | None = None,
    most: int = 0,
) -> Planner:
    """The planner of one model with these `runtimes`, or of several `models`, which may be stages or variants.

    `divides`: each worker holds one model; otherwise all of them. A cascade has a `reach`, and `lengths` that are known
    before there is traffic; a flow has `outcomes`, its recorded rows, and `most`, the workers that there may be (0:
    those that there are).
    """
    if flow is not None:
        return FlowPlanner(settings, models, flow, divides=divides, outcomes=outcomes, most=most)
    if reach is not None:
        return CascadePlanner(settings, models, reach, lengths=lengths, divides=divides)
    if models:
        return ModelPlanner(settings, models, divides=divides)
    return Planner(settings, runtimes)
