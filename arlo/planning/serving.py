"""The planner for any serving mode: one function for the control plane and the simulator."""

from __future__ import annotations

from collections.abc import Sequence

from arlo.catalog.flow import Flow
from arlo.catalog.flow_outcomes import RowOutcomes
from arlo.catalog.manifest import Runtime
from arlo.planning.by_length import Lengths
from arlo.planning.cascade import Stages
from arlo.planning.flows.serving import Variants
from arlo.planning.models import Models, Served
from arlo.planning.planner import Planner, PlannerSettings, Subject


def planner_for(
    settings: PlannerSettings,
    runtimes: Sequence[Runtime] = (),
    *,
    models: Sequence[Served] = (),
    divides: bool = True,
    reach: Sequence[float] = (),
    lengths: Sequence[float] = (),
    flow: Flow | None = None,
    outcomes: RowOutcomes | None = None,
    most: int = 0,
) -> Planner:
    """A planner for one model with these `runtimes`, or for several `models` in the order of the configuration.

    `divides`: False if all workers serve all of the models, so that only their load matters.
    `reach`: the models are the stages of a cascade, which these shares of the rows reach at the operating point in
    force; `lengths`: of rows, as far as known before there is traffic: quantiles, in the first stage's tokens.
    `flow`: the models are its variants, in the core's order; `outcomes`: recorded rows; `most`: workers that there may
    be, 0: the present number.
    """
    subject: Subject
    if flow is not None:
        subject = Variants(settings, models, flow, divides=divides, outcomes=outcomes, most=most)
    elif reach:
        subject = Stages(settings, models, reach, lengths=lengths, divides=divides)
    elif models:
        subject = Models(settings, models, divides=divides)
    else:
        subject = Lengths(settings, runtimes)
    return Planner(settings, subject)
