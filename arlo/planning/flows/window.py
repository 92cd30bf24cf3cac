"""The utilisation that a window of seconds allows: `arlo` leaves the rest free for variation that its means omit.

A plan is for the mean demand and the mean factors known when it was made. Each second of the window records the
deviation: the work that came to each stage relative to the plan in force. `by_window` replays these seconds through
a plan as a fluid, as `queueing` does it (allocation/queueing_model.py), and looks for the largest utilisation at
which ON_TIME of the window's roots are on time. The recorded path is one of many, and the next one may be worse: as
there, loads are raised to the power SWING, which also covers waits within a second. Pure.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence

from arlo.catalog.flow import Flow
from arlo.planning.allocation.queueing_model import SWING
from arlo.planning.flows.problem import FlowPlan

WINDOW_S = 120  # seconds that are kept
LEAST_SECONDS = 20  # needed to judge how much the demand varies
ON_TIME = 0.99  # of the window's roots
LOWEST, HIGHEST = 0.3, 0.95  # utilisation: above, rows wait because of variation within a second
STEP = 0.02  # precision of the utilisation


@dataclasses.dataclass(frozen=True, slots=True)
class Second:
    """A second of traffic, compared with the plan in force."""

    roots: float  # that came
    load: tuple[float, ...]  # by stage in the flow's order: work relative to the plan


def on_time(plan: FlowPlan, window: Sequence[Second]) -> float:
    """Share of the window's roots that this plan would have answered in time.

    A stage's workers are one fluid queue: rows that one pool cannot carry go to the stage's others. Rows beyond their
    capacity wait, at most for the time that the pools' budgets leave after executing, and are late beyond that: the
    drop rules give up such rows, so that they hold up no others. A root is late with the stage where most rows are.
    """
    place = {stage: at for at, stage in enumerate(plan.flow.order)}
    busy, workers, room = ([0.0] * len(place) for _ in range(3))
    for pool in plan.pools:
        at = place[pool.stage]
        busy[at] += pool.load / pool.capacity * pool.instances
        workers[at] += pool.instances
        room[at] += max(pool.budget_s - pool.latency_s, 0.0) * pool.instances
    waiting = [0.0] * len(place)  # worker-seconds
    late = 0.0
    for second in window:
        worst = 0.0
        for at, load in enumerate(second.load):
            came = busy[at] * load**SWING
            left = max(waiting[at] + came - workers[at], 0.0)
            waiting[at] = min(left, room[at])
            if left > room[at]:
                worst = max(worst, min((left - room[at]) / came, 1.0))
        late += second.roots * worst
    roots = sum(second.roots for second in window)
    return plan.served * (1 - late / roots) if roots > 0 else plan.served


def by_window(flow: Flow, window: Sequence[Second], plan: Callable[[float], FlowPlan]) -> FlowPlan:
    """The plan at the flow's utilisation or, if the window determines it, at the largest one that keeps ON_TIME; if
    none does, at the one with the most on time. `plan` makes one at a utilisation."""
    number = flow.known_utilisation
    if flow.utilisation != "window":
        return plan(number)
    known = sum(1 for second in window if second.roots > 0)
    if known < LEAST_SECONDS:
        note = f"utilisation {number:g}: a window needs {LEAST_SECONDS} seconds with traffic, {known} are known"
        return dataclasses.replace(plan(number), note=note)
    tried: list[tuple[float, FlowPlan]] = []

    def good(utilisation: float) -> bool:
        made = plan(utilisation)
        tried.append((on_time(made, window), made))
        return tried[-1][0] >= ON_TIME

    if not good(HIGHEST):
        low, high = (number, HIGHEST) if good(number) else (LOWEST, number)
        while high - low > STEP:
            middle = (low + high) / 2
            low, high = (middle, high) if good(middle) else (low, middle)
    kept = [each for each in tried if each[0] >= ON_TIME]
    share, best = (
        max(kept, key=lambda each: each[1].utilisation)
        if kept
        else max(tried, key=lambda each: (round(each[0], 3), -abs(each[1].utilisation - number)))
    )
    note = f"utilisation {best.utilisation:.3g}: {share:.2%} of {len(window)} seconds' requests are on time with it"
    return dataclasses.replace(best, note=note)
