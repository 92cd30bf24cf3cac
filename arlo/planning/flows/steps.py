"""Building blocks of planners: the greatest value that can be served, the fewest workers for it, and why not."""

from __future__ import annotations

import dataclasses
import math

from arlo.catalog.flow import Flow
from arlo.planning.flows.problem import Answer, FlowProblem, FlowSolver

WHOLE = 1e-7  # a share of the demand this near to all of it counts as all of it


def best_variants(flow: Flow) -> list[list[int]]:
    """The most accurate variant of every stage [stages][1]; of equal ones the first."""
    return [
        [max(range(len(stage.variants)), key=lambda k, stage=stage: (stage.accuracy(k), -k))]  # type: ignore[misc]
        for stage in flow.stages
    ]


def slo_below_latency(problem: FlowProblem) -> str | None:
    """The reason why no path can be on time, or None."""
    least, limit, stage = problem.least_latency()
    if least <= limit:
        return None
    names = ">".join(problem.stages[i].name for i in problem.line(stage))
    return (
        f"slo_below_latency({names}): executing takes {least * 1e3:.4g} ms at least, and half of the SLO less the hops"
        f" is {limit * 1e3:.4g} ms. A longer SLO, quicker variants or smaller batches help"
    )


def overload(answer: Answer, problem: FlowProblem) -> str:
    """The message for a demand that cannot be served completely."""
    return (
        f"overload: {problem.workers} workers serve {answer.served:.4g} of {problem.demand:.5g} requests per second;"
        " more workers or cheaper variants help"
    )


def most_accurate(problem: FlowProblem, solver: FlowSolver) -> Answer:
    """The largest share that can be served, and the greatest value for it: accuracy, if energy does not matter."""
    found = solver.solve(problem)
    assert found is not None
    if found.served >= 1 - WHOLE:
        return found
    most = solver.solve(problem, served_only=True)
    assert most is not None
    share = min(max(most.served, found.served), 1.0)
    if share <= 0:
        return found
    again = solver.solve(problem, served=share * (1 - 1e-9))
    if again is None or again.served < share * (1 - 1e-6):
        return most if most.served > found.served else found
    return again


def fewest_workers(problem: FlowProblem, solver: FlowSolver, best: Answer, within: float) -> Answer:
    """The value of `best`, less at most `within`, on as few workers as possible."""
    target = problem.value(best) - within * best.served
    least, most = 1, best.workers
    while least < most:  # workers that fail with fractional instances fail with whole ones
        middle = (least + most) // 2
        found = solver.solve(dataclasses.replace(problem, workers=middle), served=best.served, target=-math.inf)
        if found is not None and found.relaxed >= target - 1e-9:
            most = middle
        else:
            least = middle + 1
    for workers in range(least, best.workers):
        fewer = dataclasses.replace(problem, workers=workers)
        found = solver.solve(fewer, served=best.served, target=target)
        if found is not None and found.served >= best.served - WHOLE and problem.value(found) >= target - 1e-9:
            return dataclasses.replace(found, relaxed=best.relaxed, bound=best.bound, price=best.price)
    return best
