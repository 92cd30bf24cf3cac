"""Load-dependent exits in a plan: rows are sent on at the same price that the plan then has."""

from __future__ import annotations

import math
from collections.abc import Callable

from arlo.catalog.flow import Flow
from arlo.catalog.flow_exits import at_price, cost_s
from arlo.catalog.flow_outcomes import RowOutcomes
from arlo.planning.flows.problem import FlowPlan

HALVINGS = 10
RANGE = 1e4  # between the price at which no row goes on and the lowest price tried
WHOLE = 1e-4  # share of the demand that may be unserved


def settled(flow: Flow, records: RowOutcomes, plan: Callable[[Flow, RowOutcomes], FlowPlan]) -> FlowPlan:
    """The plan of a flow at which both prices agree, to a hundredth. The dearer time is, the fewer rows go on, which
    makes it cheaper: so the price is found by halving. At price 0 every row that gains goes on, if there is room;
    where not all can be served, fewer go on."""
    found = plan(*at_price(flow, records, 0.0))
    if found.price <= 0 and found.served >= 1 - WHOLE:
        return found
    least = min(cost_s(flow.stages, flow.edges, e) for e, edge in enumerate(flow.edges) if edge.when.follows)
    high = 1 / least  # no row gains more than one right answer
    low = high / RANGE
    found = plan(*at_price(flow, records, high))
    for _ in range(HALVINGS):
        middle = math.sqrt(low * high)
        tried = plan(*at_price(flow, records, middle))
        if tried.served < 1 - WHOLE or tried.price > middle:
            low = middle
        else:
            high, found = middle, tried
    return found
